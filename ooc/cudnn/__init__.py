"""CuPy v13's `cudnn` module on arrays of any size: `import ooc.cudnn as cudnn`.

Names, arguments, defaults and errors are those of CuPy v13; arrays may be NumPy's, memmaps, CuPy's, PyTorch's, each where
it is, and larger than any device. The fused calls have cuDNN's style of names; CuPy never had them, so that
`from ooc.cudnn import *` leaves them out. docs/dropin.md lists what differs.
"""

from __future__ import annotations

from typing import Any

from ooc.cudnn.checks import get_data_type
from ooc.cudnn.conv import convolution_backward_data, convolution_backward_filter, convolution_forward
from ooc.cudnn.descriptors import (
    Descriptor,
    add_tensor,
    create_activation_descriptor,
    create_convolution_descriptor,
    create_dropout_descriptor,
    create_filter_descriptor,
    create_pooling_descriptor,
    create_tensor_descriptor,
    create_tensor_nd_descriptor,
    create_uninitialized_tensor_descriptor,
    set_dropout_descriptor,
)
from ooc.cudnn.fused import activation_convolution_backward_data_filter_bias as activation_convolution_backward_data_filter_bias
from ooc.cudnn.fused import convolution_backward_data_filter_bias as convolution_backward_data_filter_bias
from ooc.cudnn.fused import convolution_bias_activation_forward as convolution_bias_activation_forward
from ooc.cudnn.fused import convolution_bias_activation_pooling_forward as convolution_bias_activation_pooling_forward
from ooc.cudnn.fused import deconvolution_bias_activation_forward as deconvolution_bias_activation_forward
from ooc.cudnn.fused import (
    pooling_activation_convolution_backward_data_filter_bias as pooling_activation_convolution_backward_data_filter_bias,
)
from ooc.cudnn.layers import (
    DropoutStates,
    activation_backward,
    activation_forward,
    create_dropout_states,
    softmax_backward,
    softmax_forward,
)
from ooc.cudnn.norm import (
    batch_normalization_backward,
    batch_normalization_forward_inference,
    batch_normalization_forward_training,
    batch_normalization_forward_training_ex,
)
from ooc.cudnn.pool import pooling_backward, pooling_forward
from ooc.cudnn.state import (
    get_handle,
    get_max_workspace_size,
    is_tensor_core_available,
    reset_handles,
    set_max_workspace_size,
)

__all__ = [
    "Descriptor", "DropoutStates", "activation_backward", "activation_forward", "add_tensor", "batch_normalization_backward",
    "batch_normalization_forward_inference", "batch_normalization_forward_training",
    "batch_normalization_forward_training_ex", "convolution_backward_data", "convolution_backward_filter",
    "convolution_forward", "create_activation_descriptor", "create_convolution_descriptor", "create_dropout_descriptor",
    "create_dropout_states", "create_filter_descriptor", "create_pooling_descriptor", "create_tensor_descriptor",
    "create_tensor_nd_descriptor", "create_uninitialized_tensor_descriptor", "get_data_type", "get_handle",
    "get_max_workspace_size", "is_tensor_core_available", "pooling_backward", "pooling_forward", "reset_handles",
    "set_dropout_descriptor", "set_max_workspace_size", "softmax_backward", "softmax_forward",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Say what is not here; `hasattr` stays false for it."""
    raise AttributeError(
        f"ooc.cudnn does not provide {name}: only convolution, pooling, activations, softmax, batch normalisation and dropout"
    )

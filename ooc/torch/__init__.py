"""ooc for PyTorch: functions on tensors that autograd follows, modules as graphs, modules that run through ooc."""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ImportError:
    raise ImportError('ooc.torch: needs PyTorch; pip install "ooc[torch]"', name="torch") from None

from ooc.torch.convert import convert_model, revert_model
from ooc.torch.filtering import conv1d, conv2d, conv3d, conv_transpose1d, conv_transpose2d, conv_transpose3d, linear
from ooc.torch.functions import (
    batch_norm,
    cross_entropy,
    elu,
    interpolate,
    leaky_relu,
    local_response_norm,
    log_softmax,
    relu,
    relu6,
    sigmoid,
    softmax,
    tanh,
)
from ooc.torch.pooling import avg_pool1d, avg_pool2d, avg_pool3d, max_pool1d, max_pool2d, max_pool3d
from ooc.torch.translation import graph

__all__ = [
    "avg_pool1d", "avg_pool2d", "avg_pool3d", "batch_norm", "conv1d", "conv2d", "conv3d", "conv_transpose1d",
    "conv_transpose2d", "conv_transpose3d", "convert_model", "cross_entropy", "elu", "graph", "interpolate", "leaky_relu",
    "linear", "local_response_norm", "log_softmax", "max_pool1d", "max_pool2d", "max_pool3d", "relu", "relu6", "revert_model",
    "sigmoid", "softmax", "tanh",
]  # fmt: skip

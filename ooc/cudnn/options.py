"""What the arguments of the calls of `ooc.cudnn` are, said once and put into their docstrings; as `ooc.libcudnn.arguments`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from ooc.api.options import fill
from ooc.libcudnn.arguments import complete, explained

T = TypeVar("T", bound=Callable[..., Any])

# What arguments of a name, or of a call and a name (a regular expression), are: the first that fits. A call's own goes before.
ARGUMENTS = {
    r"(\w+_)?convolution_backward_data_filter_bias\.x": "n x c x spatial, the forward call's",
    r"(\w+_)?convolution_backward_data_filter_bias\.W": "k x c/groups x taps, the forward call's",
    r"(convolution|pooling)_\w+\.x": "n x c x spatial",
    "W": "k x c/groups x taps, the filters",
    r"convolution_\w*forward\.b": "k values of any shape, or a single one that stands for all; None: none",
    "b": "c values of any shape, or a single one that stands for all; None: none",
    "gx": "array like x to be overwritten with its gradient, C-contiguous; None: not wanted. At least one of gx, gW and gb is",
    "gW": "the same like W",
    "gb": "the same with k values, of any shape",
    r"create_\w+\.pad": "tuple of ints, one per spatial axis: positions added on either side of it",
    r"pooling_(for|back)ward\.pad|pool_pad":
        "tuple of ints, one per spatial axis: positions added on either side, from 0 to ksize - 1",
    "pad": "tuple of ints, one per spatial axis: positions added on either side of it, not negative",
    r"create_\w+\.stride": "tuple of ints, one per spatial axis: positions between windows",
    "stride": "tuple of ints, one per spatial axis: positions between windows, at least 1",
    "dilation": "tuple of ints, one per spatial axis: positions between taps, at least 1; None: ones",
    "groups": "int that divides c and k; each group of filters reads its own c/groups channels",
    "deterministic": "True: the same bits at any budget, on one kind of processor; False: what is fastest",
    "auto_tune": "taken and not looked at: the planner chooses by its model of the machine, and times nothing",
    "tensor_core": '"auto", "always" or "never": checked, and decides nothing; see tf32 of `ooc.device`',
    r"batch_\w+\.d_layout":
        "how x of four axes is stored where is_for_conv2d is true: CUDNN_TENSOR_NCHW (default) or CUDNN_TENSOR_NHWC (channels "
        "last); not looked at for other numbers of axes, which are channels first",
    "d_layout":
        "how data of four axes are stored: CUDNN_TENSOR_NCHW (default) or CUDNN_TENSOR_NHWC (channels last); not looked at for "
        "other numbers of axes, which are channels first",
    "w_layout": "the same of the filters; it may differ from d_layout",
    r"activation_mode|activation_(for|back)ward\.mode":
        "CUDNN_ACTIVATION_SIGMOID, _RELU, _TANH, _CLIPPED_RELU, _ELU or _IDENTITY (ints of `ooc.libcudnn`)",
    "coef": "number: the ceiling of clipped ReLU, the alpha of ELU (default 0.0 where it has one); not looked at by others",
    r"pooling_(for|back)ward\.ksize": "tuple of ints, one per spatial axis: extents of a window, at least 1",
    "ksize": "tuple of ints, one per spatial axis: extents of a window of the pooling, at least 1",
    "pool_stride": "tuple of ints, one per spatial axis: positions between its windows, at least 1",
    r"pooling_(for|back)ward\.mode|pool_mode":
        "CUDNN_POOLING_MAX, _MAX_DETERMINISTIC (the same), _AVERAGE_COUNT_INCLUDE_PADDING or _AVERAGE_COUNT_EXCLUDE_PADDING "
        "(ints of `ooc.libcudnn`)",
    "axis": "int, the axis that is summed over; negative ones count from the end",
    "algorithm":
        "CUDNN_SOFTMAX_FAST, _ACCURATE (the same here: never overflows) or _LOG (the logarithm; ints of `ooc.libcudnn`)",
    r"batch_\w+_training\w*\.(gamma|beta)": "the scale and bias: as many values as x has channels, of any shape and dtype",
    r"running_\w+": "like gamma; moved in place: decay * old + (1 - decay) * batch, with the unbiased variance",
    r"batch_\w+_training\w*\.(mean|inv_std)":
        "like gamma, to be overwritten with the batch's mean and 1 / sqrt(variance + eps); None (both): new ones",
    "decay": "number, what running_mean and running_var keep of themselves",
    "eps": "number added to the variance, at least CUDNN_BN_MIN_EPSILON (0)",
    "is_for_conv2d":
        "true: x is n x k x 1 to 3 spatial axes, its channels axis 1 (of NHWC the last); false: x has any shape (contiguous, "
        "with more than five axes), its channels the last axis",
    "cudnn_mode":
        "CUDNN_BATCHNORM_SPATIAL or _SPATIAL_PERSISTENT (a value per channel), or _PER_ACTIVATION (one per channel and position "
        "where is_for_conv2d is true)",
    "debug": "taken and not looked at",
    r"\w+_dropout_descriptor\.handle|add_tensor\.handle": "a handle of cuDNN, as `get_handle` returns it",
    "handle": "taken and not looked at; what `get_handle` returns, or None",
    "dropout": "the probability of being dropped, from 0 to 1",
    "seed": "int, of which the lowest 64 bits count",
}  # fmt: skip
TEXTS = {
    "arrays": """\
Arrays: of NumPy, np.memmap, CuPy, PyTorch, or with the CUDA array interface or DLPack, each where it is and of any size; those
    read may have any strides. All have one dtype unless said otherwise: float16, float32, float64 or bfloat16. Shapes: n
    images, c channels read, k channels made, `spatial` 1 to 3 axes (w; h x w; d x h x w), `taps` as many.""",
    "beside": """\
a new C-contiguous array beside it: of NumPy, or where it lies in a device's memory one there, of PyTorch if it is, else of
    CuPy.""",
    "descriptor": "descriptor: a `Descriptor`; it is destroyed with its object.",
    "outputs": "None: results are in the outputs.",
    "errors": """\
TypeError: something that is no array, an unsupported dtype, or that must be a tuple or an int and is not.
ValueError: an output that is read-only, not C-contiguous or overlaps what is read (`ooc.ShapeError`), or a word, layout, axis or
    number of values that is not one of those above.
CuDNNError: status 2000 (BAD_PARAM): sizes or dtypes that do not fit together, an extent of 0, an unknown mode; its lines say
    what was called with what.
ooc.BudgetError, ooc.UnsupportedError: no plan fits the budget, or the device does not reach an array's memory.
ooc.StoreError, ooc.BackendError: a file, or computing, failed. All others are raised before an output is written.""",
    "refused": """\
TypeError: no array, an unsupported dtype, or something that must be a tuple or an int and is not.
ValueError: an array that must be C-contiguous and is not, an unknown format, or tuples of different lengths.
CuDNNError: a value that cuDNN refuses.""",
}


def documented(definition: T) -> T:
    """Decorator: complete the docstring of a function or class; nothing is wrapped."""
    name, signature = definition.__name__, inspect.signature(definition)
    kinds, returned = {parameter.annotation for parameter in signature.parameters.values()}, signature.return_annotation
    computes, describes = bool(kinds & {"Array", "Array | None"}), "Descriptor" in {*kinds, returned}
    results = "descriptor" if returned == "Descriptor" else "outputs" if computes and returned == "None" else ""
    errors = "errors" if computes else "refused" if describes and kinds else ""
    sections = {head: f"\n    <{text}>" for head, text in (("Returns", results), ("Raises", errors)) if text}
    source = f" cudnn{''.join(map(str.capitalize, name.split('_')))}; CuPy v13's cudnn.{name}."
    complete(definition, explained(definition, ARGUMENTS), "<arrays>" if computes else "", Source=source, **sections)
    return fill(definition, TEXTS)

"""What the calls of `ooc.cudnn` share, said once and put into their docstrings; as `ooc.api.options`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ooc.api.options import fill

T = TypeVar("T", bound=Callable[..., Any])

TEXTS = {
    "arrays": """\
Arrays: of NumPy, np.memmap, CuPy, PyTorch, or with the CUDA array interface or DLPack, each where it is and of any size; those
    read may have any strides. All have one dtype unless said otherwise: float16, float32, float64 or bfloat16. Shapes: n
    images, c channels read, k channels made, `spatial` 1 to 3 axes (w; h x w; d x h x w), `taps` as many.""",
    "geometry": """\
pad: tuple of ints, one per spatial axis: positions added on either side of it, not negative.
stride: tuple of ints, one per spatial axis: positions between windows, at least 1.
dilation: tuple of ints, one per spatial axis: positions between taps, at least 1; None: ones.
groups: int that divides c and k; each group of filters reads its own c/groups channels.""",
    "deterministic": "deterministic: True: the same bits at any budget, on one kind of processor; False: what is fastest.",
    "choices": """\
auto_tune: taken and not looked at: the planner chooses by its model of the machine, and times nothing.
tensor_core: "auto", "always" or "never": checked, and decides nothing; see tf32 of `ooc.device`.
d_layout: how data of four axes are stored: CUDNN_TENSOR_NCHW (default) or CUDNN_TENSOR_NHWC (channels last); not looked at
    for other numbers of axes, which are channels first.
w_layout: the same of the filters; it may differ from d_layout.""",
    "one layout": """\
d_layout: how x of four axes is stored where is_for_conv2d is true: CUDNN_TENSOR_NCHW (default) or CUDNN_TENSOR_NHWC (channels
    last); not looked at for other numbers of axes, which are channels first.""",
    "activation": """\
activation_mode: CUDNN_ACTIVATION_SIGMOID, _RELU, _TANH, _CLIPPED_RELU, _ELU or _IDENTITY (ints of `ooc.libcudnn`).
coef: number: the ceiling of clipped ReLU, the alpha of ELU (default 0.0 where it has one); not looked at by others.""",
    "mode": """\
mode: CUDNN_ACTIVATION_SIGMOID, _RELU, _TANH, _CLIPPED_RELU, _ELU or _IDENTITY (ints of `ooc.libcudnn`).
coef: number: the ceiling of clipped ReLU, the alpha of ELU; default 0.0; not looked at by others.""",
    "pooling": """\
ksize: tuple of ints, one per spatial axis: extents of a window, at least 1.
stride: tuple of ints, one per spatial axis: positions between windows, at least 1.
pad: tuple of ints, one per spatial axis: positions added on either side, from 0 to ksize - 1.
mode: CUDNN_POOLING_MAX, _MAX_DETERMINISTIC (the same), _AVERAGE_COUNT_INCLUDE_PADDING or _AVERAGE_COUNT_EXCLUDE_PADDING (ints
    of `ooc.libcudnn`).""",
    "pooled": """\
ksize: tuple of ints, one per spatial axis: extents of a window of the pooling, at least 1.
pool_stride: tuple of ints, one per spatial axis: positions between its windows, at least 1.
pool_pad: tuple of ints, one per spatial axis: positions added on either side, from 0 to ksize - 1.
pool_mode: CUDNN_POOLING_MAX, _MAX_DETERMINISTIC (the same), _AVERAGE_COUNT_INCLUDE_PADDING or _AVERAGE_COUNT_EXCLUDE_PADDING.""",
    "gradients": """\
gx: array like x to be overwritten with its gradient, C-contiguous; None: not wanted. At least one of gx, gW and gb is.
gW: the same like W.
gb: the same with k values, of any shape.""",
    "softmax": """\
axis: int, the axis that is summed over; negative ones count from the end.
algorithm: CUDNN_SOFTMAX_FAST, _ACCURATE (the same here: never overflows) or _LOG (the logarithm; ints of `ooc.libcudnn`).""",
    "normal": """\
eps: number added to the variance, at least CUDNN_BN_MIN_EPSILON (0).""",
    "channels": """\
is_for_conv2d: true: x is n x k x 1 to 3 spatial axes, its channels axis 1 (of NHWC the last); false: x has any shape
    (contiguous, with more than five axes), its channels the last axis.
cudnn_mode: CUDNN_BATCHNORM_SPATIAL or _SPATIAL_PERSISTENT (a value per channel), or _PER_ACTIVATION (one per channel and position
    where is_for_conv2d is true).""",
    "debug": "debug: taken and not looked at.",
    "handle": "handle: taken and not looked at; what `get_handle` returns, or None.",
    "number": "handle: a handle of cuDNN, as `get_handle` returns it.",
    "errors": """\
TypeError: something that is no array, an unsupported dtype, or that must be a tuple or an int and is not.
ValueError: an output that is read-only, not C-contiguous or overlaps what is read (`ooc.ShapeError`), or a word, layout, axis or
    number of values that is not one of those above.
CuDNNError: status 2000 (BAD_PARAM): sizes or dtypes that do not fit together, an extent of 0, an unknown mode; its lines say
    what was called with what.
ooc.BudgetError, ooc.UnsupportedError: no plan fits the budget, or the device does not reach an array's memory.
ooc.StoreError, ooc.BackendError: a file, or computing, failed. All others are raised before an output is written.""",
    "beside": """\
a new C-contiguous array beside it: of NumPy, or where it lies in a device's memory one there, of PyTorch if it is, else of
    CuPy.""",
}  # fmt: skip


def documented(function: T) -> T:
    """Decorator: fill in the docstring of a function."""
    return fill(function, TEXTS)

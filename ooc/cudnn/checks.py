"""What the calls of `ooc.cudnn` take: checked as CuPy v13 and cuDNN did, and seen as arrays of ooc. Messages are made only
for an error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from operator import index
from typing import Any, NamedTuple

import numpy as np
from numpy.ma import MaskedArray

from ooc.api.foreign import known
from ooc.errors import ShapeError
from ooc.ir.op import dtype_name, numpy_dtype
from ooc.libcudnn import CUDNN_TENSOR_NCHW, CUDNN_TENSOR_NHWC, CuDNNError
from ooc.libcudnn.guard import refusal
from ooc.libcudnn.memory import TYPES as NAMES

CODES = {numpy_dtype(name): code for code, name in NAMES.items()}
TYPES = {numpy_dtype(name): name for name in NAMES.values()}
MOST_AXES = 5  # of an array that an operation takes
FOREIGN = ("__cuda_array_interface__", "__dlpack__")

Shape = tuple[int, ...]


class ConvolutionGeometry(NamedTuple):
    """Stride, padding and dilation per spatial axis, groups, and which operands are stored channels last (4-D ones)."""

    pad: Shape
    stride: Shape
    dilation: Shape
    groups: int
    last: bool
    filters_last: bool


def get_data_type(dtype: Any) -> int:
    """cuDNN's number of a dtype.

    Parameters:
        dtype: float16, float32, float64 or, beyond v13, bfloat16: anything that np.dtype takes for them.

    Returns:
        number: CUDNN_DATA_HALF, _FLOAT, _DOUBLE or _BFLOAT16.

    Raises:
        TypeError: another dtype.

    Source: CuPy v13's cudnn.get_data_type.
    """
    try:
        return CODES[np.dtype(dtype if dtype is not None else object)]  # NumPy takes None for f64
    except (KeyError, TypeError):
        raise TypeError(f"Dtype {dtype} is not supported in cuDNN") from None


def any_array(name: str, argument: Any) -> Any:
    """An argument as ooc sees it, nothing copied. Raises TypeError for what is no array."""
    if isinstance(argument, np.ndarray) and not isinstance(argument, MaskedArray):
        return argument
    if isinstance(argument, np.ndarray) or not any(hasattr(argument, mark) for mark in FOREIGN):
        raise TypeError(f"Argument '{name}' has incorrect type (expected an array, got {type(argument).__name__})")
    return known(name, argument)


def array(name: str, argument: Any) -> Any:
    """An argument as `any_array` sees it. Raises TypeError for an unsupported dtype, too."""
    tensor = any_array(name, argument)
    if tensor.dtype not in TYPES:
        raise TypeError(f"Dtype {tensor.dtype} is not supported in cuDNN")
    return tensor


def writable(name: str, tensor: Any, text: str = "cupyx.cudnn supports c-contiguous arrays only") -> None:
    """Raise ValueError unless an output is C-contiguous and can be written."""
    if not tensor.flags.c_contiguous:
        raise ValueError(text)
    if not tensor.flags.writeable:
        raise ValueError(f"{name} is read-only; pass a writable array (a memmap opened with mode 'r+' or 'w+')")


def numbers(name: str, value: Any) -> Shape:
    """A tuple of integers. Raises TypeError for anything else, a list too."""
    if not isinstance(value, tuple):
        raise TypeError(f"Argument '{name}' has incorrect type (expected tuple, got {type(value).__name__})")
    return tuple(map(index, value))


def windows_of(ksize: Any, stride: Any, pad: Any) -> tuple[Shape, Shape, Shape]:
    """Window, stride and padding of a pooling. Raises TypeError and ValueError."""
    sizes = numbers("ksize", ksize), numbers("stride", stride), numbers("pad", pad)
    if not len(sizes[0]) == len(sizes[1]) == len(sizes[2]):
        raise ValueError("ksize, stride, and pad must be of same length")
    return sizes


def steps_of(pad: Any, stride: Any, dilation: Any) -> tuple[Shape, Shape, Shape]:
    """Padding, stride and dilation of a convolution; None dilates nothing. Raises TypeError and ValueError."""
    pads, strides = numbers("pad", pad), numbers("stride", stride)
    if len(pads) != len(strides):
        raise ValueError("pad and stride must be of same length")
    dilations = (1,) * len(pads) if dilation is None else numbers("dilation", dilation)
    if len(dilations) != len(pads):
        raise ValueError("pad and dilation must be of same length")
    return pads, strides, dilations


def channels_last(layout: Any, rank: int) -> bool:
    """Whether an array is stored channels last: only one of four axes may be. Raises ValueError for an unknown layout,
    TypeError for no integer."""
    if index(layout) == CUDNN_TENSOR_NCHW or rank != 4:
        return False
    if layout != CUDNN_TENSOR_NHWC:
        raise ValueError(f"unknown cudnnTensorFormat: {layout}")
    return True


def check_tensor_core(mode: Any) -> None:
    """Raise ValueError for an unknown mode; which units compute is decided by the backend."""
    if mode not in ("auto", "always", "never"):
        raise ValueError('tensor_code_mode must be either of "always", "auto", or "never".')


def geometry(rank: int, sizes: tuple[Any, ...], tensor_core: Any, layouts: tuple[int, int]) -> ConvolutionGeometry:
    """The arguments that all convolutions share: sizes are pad, stride, dilation and groups, layouts those of data and
    filters; rank: the axes of their arrays. Raises TypeError and ValueError."""
    pad, stride, dilation, groups = sizes
    check_tensor_core(tensor_core)
    last, filters_last = (channels_last(layout, rank) for layout in layouts)
    return ConvolutionGeometry(*steps_of(pad, stride, dilation), index(groups), last, filters_last)


def pieces(axis: int, *arrays: Any) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Arrays of one shape as views of at most five axes, and where `axis` is in these; for what treats each line along it
    alone. More axes are merged where that needs no copy; else another axis is taken apart, element by element."""
    shape = arrays[0].shape
    if len(shape) <= MOST_AXES:
        yield axis, arrays
    elif all(a.flags.c_contiguous for a in arrays):
        yield 1, tuple(a.reshape(prod(shape[:axis]), shape[axis], -1) for a in arrays)
    else:
        apart = min((i for i in range(len(shape)) if i != axis), key=shape.__getitem__)
        for at in range(shape[apart]):
            part = (*(slice(None),) * apart, at)
            yield from pieces(axis - (apart < axis), *(a[part] for a in arrays))


def layout_of(last: bool) -> str:
    """What ooc calls a layout."""
    return "channels_last" if last else "channels_first"


def view(tensor: Any, last: bool) -> Any:
    """An array seen channels first."""
    return tensor.transpose(0, tensor.ndim - 1, *range(1, tensor.ndim - 1)) if last else tensor


def first(shape: Shape, last: bool) -> Shape:
    """A shape as it is channels first."""
    return (*shape[:1], *shape[-1:], *shape[1:-1]) if last else shape


class Checking:
    """Context manager around the checks of a call: what they refuse is raised as v13 raised it, as cuDNN's error with what was
    called and what with."""

    def __init__(self, func: str, arrays: Mapping[str, Any], **numbers: Any) -> None:
        self.func, self.arrays, self.numbers = func, arrays, numbers

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if not isinstance(error, (CuDNNError, ShapeError)):
            return
        refused = error if isinstance(error, CuDNNError) else refusal(str(error))
        refused.add_info(f"func: {self.func}")
        refused.add_infos(f"{name}: {describe(a)}" for name, a in self.arrays.items())
        refused.add_info(", ".join(f"{name}={value!r}" for name, value in self.numbers.items()))
        raise refused from None


def describe(argument: Any) -> str:
    """Shape, dtype and strides of an array."""
    if argument is None:
        return "None"
    tensor = array("", argument)
    return f"shape={tuple(tensor.shape)!r}, dtype={tensor.dtype.name}, strides={tuple(tensor.strides)!r}"


def one_type(arrays: Mapping[str, Any]) -> str:
    """ooc's name of the dtype that all arrays have. Raises CuDNNError where they differ."""
    first, *others = arrays.values()
    if any(other.dtype != first.dtype for other in others):
        raise refusal("dtypes differ: " + ", ".join(f"{name} {a.dtype}" for name, a in arrays.items()))
    return TYPES.get(first.dtype) or dtype_name(first.dtype)

"""Descriptors of the low-level calls, as `ooc.cudnn` makes them: numbers that are destroyed with their object."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from itertools import chain
from math import prod
from typing import Any

import numpy as np

import ooc.libcudnn as libcudnn
from ooc.cudnn.checks import array, channels_last, first, get_data_type, steps_of, windows_of
from ooc.cudnn.options import documented
from ooc.libcudnn import CUDNN_CROSS_CORRELATION, CUDNN_PROPAGATE_NAN, CUDNN_TENSOR_NCHW


@documented
class Descriptor:
    """A descriptor of cuDNN, destroyed with this object.

    descriptor: its number, an int.
    destroyer: a function of that number, called once when this object goes; None: nothing is.

    Fields:
        value: its number, for the calls of `ooc.libcudnn`.

    Source: CuPy v13's cudnn.Descriptor.
    """

    def __init__(self, descriptor: int, destroyer: Callable[[int], Any] | None) -> None:
        self.value = descriptor
        if descriptor and destroyer is not None:
            weakref.finalize(self, destroyer, descriptor)


def contiguous(arr: Any) -> Any:
    """An array for a descriptor. Raises ValueError unless it is C-contiguous."""
    tensor = array("arr", arr)
    if not tensor.flags.c_contiguous:
        raise ValueError("cupyx.cudnn supports c-contiguous arrays only")
    return tensor


class IntegerList(tuple[int, ...]):
    """Integers that a low-level call takes by their address, as C has them."""


def described(kind: str, fill: Callable[..., None], *values: Any) -> Descriptor:
    """A new descriptor of a kind, filled by a call of `ooc.libcudnn`."""
    create, destroy = (getattr(libcudnn, f"{verb}{kind}Descriptor") for verb in ("create", "destroy"))
    desc = Descriptor(create(), destroy)
    lists = {i: np.array(value, np.int32) for i, value in enumerate(values) if isinstance(value, IntegerList)}
    fill(desc.value, *(lists[i].ctypes.data if i in lists else value for i, value in enumerate(values)))
    return desc


@documented
def create_tensor_descriptor(arr: Any, format: int = CUDNN_TENSOR_NCHW) -> Descriptor:
    """The descriptor of an array.

    arr: a C-contiguous array of float16, float32, float64 or bfloat16; only its shape and dtype are looked at.
    format: how one of four axes is stored: CUDNN_TENSOR_NCHW (default) or CUDNN_TENSOR_NHWC.

    Source: cudnnCreateTensorDescriptor, cudnnSetTensor4dDescriptor, cudnnSetTensorNdDescriptor.
    """
    tensor = contiguous(arr)
    if tensor.ndim != 4:
        return _dense(tensor)
    sizes = first(tensor.shape, channels_last(format, 4))
    return described("Tensor", libcudnn.setTensor4dDescriptor, format, get_data_type(tensor.dtype), *sizes)


@documented
def create_uninitialized_tensor_descriptor() -> Descriptor:
    """A tensor descriptor that is not set yet.

    Source: cudnnCreateTensorDescriptor.
    """
    return Descriptor(libcudnn.createTensorDescriptor(), libcudnn.destroyTensorDescriptor)


@documented
def create_tensor_nd_descriptor(arr: Any) -> Descriptor:
    """The descriptor of an array with 2 to 8 axes; of an empty one, the number 0.

    arr: a C-contiguous array of float16, float32, float64 or bfloat16; only its shape and dtype are looked at.

    Source: cudnnCreateTensorDescriptor, cudnnSetTensorNdDescriptor.
    """
    return Descriptor(0, None) if array("arr", arr).size == 0 else _dense(contiguous(arr))


def _dense(tensor: Any) -> Descriptor:
    """The descriptor of a contiguous array; NumPy's strides of axes of extent 1 mean nothing."""
    strides = IntegerList(prod(tensor.shape[axis + 1 :]) for axis in range(tensor.ndim))
    values = get_data_type(tensor.dtype), tensor.ndim, IntegerList(tensor.shape), strides
    return described("Tensor", libcudnn.setTensorNdDescriptor, *values)


@documented
def create_filter_descriptor(arr: Any, format: int = CUDNN_TENSOR_NCHW) -> Descriptor:
    """The descriptor of filters.

    arr: an array of float16, float32, float64 or bfloat16; only its shape and dtype are looked at.
    format: how filters of four axes are stored: CUDNN_TENSOR_NCHW (default) or CUDNN_TENSOR_NHWC.

    Source: cudnnCreateFilterDescriptor, cudnnSetFilter4dDescriptor, cudnnSetFilterNdDescriptor.
    """
    filters = array("arr", arr)
    kind, shape = get_data_type(filters.dtype), filters.shape
    if len(shape) == 4:
        return described("Filter", libcudnn.setFilter4dDescriptor_v4, kind, format, *first(shape, channels_last(format, 4)))
    return described("Filter", libcudnn.setFilterNdDescriptor_v4, kind, format, len(shape), IntegerList(shape))


@documented
def create_convolution_descriptor(
    pad: tuple[int, ...], stride: tuple[int, ...], dtype: Any, mode: int = CUDNN_CROSS_CORRELATION,
    dilation: tuple[int, ...] | None = None, use_tensor_core: bool = False, groups: int = 1,
) -> Descriptor:  # fmt: skip
    """The descriptor of a convolution, computed in float32 unless its arrays are float64.

    dtype: of the arrays.
    mode: CUDNN_CROSS_CORRELATION (default) or CUDNN_CONVOLUTION (filters flipped).
    dilation: tuple of ints, one per spatial axis: positions between taps; default None: ones.
    use_tensor_core: True asks for CUDNN_TENSOR_OP_MATH, which is kept and decides nothing; default False.
    groups: number of groups; default 1.

    Source: cudnnCreateConvolutionDescriptor, cudnnSetConvolution2dDescriptor, cudnnSetConvolutionNdDescriptor,
    cudnnSetConvolutionMathType, cudnnSetConvolutionGroupCount.
    """
    steps = steps_of(pad, stride, dilation)
    stored = get_data_type(dtype)
    kind = stored if stored == libcudnn.CUDNN_DATA_DOUBLE else libcudnn.CUDNN_DATA_FLOAT
    if len(pad) == 2:
        desc = described("Convolution", libcudnn.setConvolution2dDescriptor_v5, *chain(*steps), mode, kind)
    else:
        lists = map(IntegerList, steps)
        desc = described("Convolution", libcudnn.setConvolutionNdDescriptor_v3, len(pad), *lists, mode, kind)
    if use_tensor_core:
        libcudnn.setConvolutionMathType(desc.value, libcudnn.CUDNN_TENSOR_OP_MATH)
    if groups > 1:
        libcudnn.setConvolutionGroupCount(desc.value, groups)
    return desc


@documented
def create_pooling_descriptor(ksize: tuple[int, ...], stride: tuple[int, ...], pad: tuple[int, ...], mode: int) -> Descriptor:
    """The descriptor of a pooling.

    ksize: tuple of ints, one per spatial axis: extents of a window.
    mode: CUDNN_POOLING_*, an int.

    Source: cudnnCreatePoolingDescriptor, cudnnSetPooling2dDescriptor, cudnnSetPoolingNdDescriptor.
    """
    windows, strides, pads = windows_of(ksize, stride, pad)
    nan = libcudnn.CUDNN_NOT_PROPAGATE_NAN
    if len(windows) == 2:
        return described("Pooling", libcudnn.setPooling2dDescriptor_v4, mode, nan, *windows, *pads, *strides)
    lists = map(IntegerList, (windows, pads, strides))
    return described("Pooling", libcudnn.setPoolingNdDescriptor_v4, mode, nan, len(windows), *lists)


@documented
def create_activation_descriptor(mode: int, relu_nan_opt: int = CUDNN_PROPAGATE_NAN, coef: float = 0.0) -> Descriptor:
    """The descriptor of an activation.

    mode: CUDNN_ACTIVATION_*, an int.
    relu_nan_opt: CUDNN_PROPAGATE_NAN (default) or CUDNN_NOT_PROPAGATE_NAN: checked; NaN always passes through.
    coef: number: the ceiling of clipped ReLU, the alpha of ELU; default 0.0.

    Source: cudnnCreateActivationDescriptor, cudnnSetActivationDescriptor.
    """
    return described("Activation", libcudnn.setActivationDescriptor, mode, relu_nan_opt, coef)


@documented
def create_dropout_descriptor(handle: int, dropout: float, states: int, state_size_in_bytes: int, seed: int) -> Descriptor:
    """The descriptor of a dropout.

    states: address of the states, which are not used.
    state_size_in_bytes: their size, not looked at.

    Source: cudnnCreateDropoutDescriptor, cudnnSetDropoutDescriptor.
    """
    return described("Dropout", libcudnn.setDropoutDescriptor, handle, dropout, states, state_size_in_bytes, seed)


@documented
def set_dropout_descriptor(desc: Descriptor, handle: int, dropout: float) -> None:
    """Change the rate of a dropout descriptor; its seed stays.

    desc: a `Descriptor` that `create_dropout_descriptor` made.

    Source: cudnnSetDropoutDescriptor.
    """
    libcudnn.setDropoutDescriptor(desc.value, handle, dropout, 0, 0, 0)


@documented
def add_tensor(handle: int, alpha: int, biasDesc: int, biasData: int, beta: int, srcDestDesc: int, srcDestData: int) -> None:
    """data = alpha * bias + beta * data, all by number and address; each axis of the bias is the data's, or 1 and repeated.

    alpha, beta: addresses of floats on the host, of doubles for double data.
    biasDesc, srcDestDesc: numbers of tensor descriptors.
    biasData, srcDestData: addresses of what these describe; the second is overwritten.

    Raises:
        CuDNNError: descriptors that do not fit together, or no address.
        ooc.BudgetError, ooc.StoreError: no plan fits the budget, or a file failed.
    """
    libcudnn.addTensor_v3(handle, alpha, biasDesc, biasData, beta, srcDestDesc, srcDestData)

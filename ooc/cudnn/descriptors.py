"""Descriptors of the low-level calls, as `ooc.cudnn` makes them: numbers that are destroyed with their object."""

from __future__ import annotations

import weakref
from collections.abc import Callable
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

    Parameters:
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


def pointer(values: Any) -> tuple[np.ndarray[Any, Any], int]:
    """Integers as C sees them, and their address."""
    held = np.ascontiguousarray(values, np.int32)
    return held, held.ctypes.data


@documented
def create_tensor_descriptor(arr: Any, format: int = CUDNN_TENSOR_NCHW) -> Descriptor:
    """The descriptor of an array.

    Parameters:
        arr: a C-contiguous array of float16, float32, float64 or bfloat16; only its shape and dtype are looked at.
        format: how one of four axes is stored: CUDNN_TENSOR_NCHW (default) or CUDNN_TENSOR_NHWC.

    Returns:
        descriptor: a `Descriptor`; it is destroyed with its object.

    Raises:
        TypeError: no array, or an unsupported dtype. ValueError: not C-contiguous, or an unknown format.
        CuDNNError: a value that cuDNN refuses.

    Source: cudnnCreateTensorDescriptor, cudnnSetTensor4dDescriptor, cudnnSetTensorNdDescriptor.
    """
    tensor = contiguous(arr)
    if tensor.ndim != 4:
        return _nd(create_uninitialized_tensor_descriptor(), tensor)
    sizes = first(tensor.shape, channels_last(format, 4))
    desc = create_uninitialized_tensor_descriptor()
    libcudnn.setTensor4dDescriptor(desc.value, format, get_data_type(tensor.dtype), *sizes)
    return desc


@documented
def create_uninitialized_tensor_descriptor() -> Descriptor:
    """A tensor descriptor that is not set yet.

    Returns:
        descriptor: a `Descriptor`; it is destroyed with its object.

    Source: cudnnCreateTensorDescriptor.
    """
    return Descriptor(libcudnn.createTensorDescriptor(), libcudnn.destroyTensorDescriptor)


@documented
def create_tensor_nd_descriptor(arr: Any) -> Descriptor:
    """The descriptor of an array with 2 to 8 axes; of an empty one, the number 0.

    Parameters:
        arr: a C-contiguous array of float16, float32, float64 or bfloat16; only its shape and dtype are looked at.

    Returns:
        descriptor: a `Descriptor`; it is destroyed with its object.

    Raises:
        TypeError: no array, or an unsupported dtype. ValueError: not C-contiguous.
        CuDNNError: a value that cuDNN refuses.

    Source: cudnnCreateTensorDescriptor, cudnnSetTensorNdDescriptor.
    """
    return Descriptor(0, None) if array("arr", arr).size == 0 else _nd(create_uninitialized_tensor_descriptor(), contiguous(arr))


def _nd(desc: Descriptor, tensor: Any) -> Descriptor:
    """Set a descriptor to a contiguous array; NumPy's strides of axes of extent 1 mean nothing."""
    dense = [prod(tensor.shape[axis + 1 :]) for axis in range(tensor.ndim)]
    (shape, at), (strides, steps) = pointer(tensor.shape), pointer(dense)
    libcudnn.setTensorNdDescriptor(desc.value, get_data_type(tensor.dtype), len(shape), at, steps)
    del strides
    return desc


@documented
def create_filter_descriptor(arr: Any, format: int = CUDNN_TENSOR_NCHW) -> Descriptor:
    """The descriptor of filters.

    Parameters:
        arr: an array of float16, float32, float64 or bfloat16; only its shape and dtype are looked at.
        format: how filters of four axes are stored: CUDNN_TENSOR_NCHW (default) or CUDNN_TENSOR_NHWC.

    Returns:
        descriptor: a `Descriptor`; it is destroyed with its object.

    Raises:
        TypeError: no array, or an unsupported dtype. ValueError: an unknown format.
        CuDNNError: a value that cuDNN refuses.

    Source: cudnnCreateFilterDescriptor, cudnnSetFilter4dDescriptor, cudnnSetFilterNdDescriptor.
    """
    filters = array("arr", arr)
    desc, kind = Descriptor(libcudnn.createFilterDescriptor(), libcudnn.destroyFilterDescriptor), get_data_type(filters.dtype)
    if filters.ndim == 4:
        libcudnn.setFilter4dDescriptor_v4(desc.value, kind, format, *first(filters.shape, channels_last(format, 4)))
        return desc
    shape, at = pointer(filters.shape)
    libcudnn.setFilterNdDescriptor_v4(desc.value, kind, format, len(shape), at)
    return desc


@documented
def create_convolution_descriptor(
    pad: tuple[int, ...], stride: tuple[int, ...], dtype: Any, mode: int = CUDNN_CROSS_CORRELATION,
    dilation: tuple[int, ...] | None = None, use_tensor_core: bool = False, groups: int = 1,
) -> Descriptor:  # fmt: skip
    """The descriptor of a convolution, computed in float32 unless its arrays are float64.

    Parameters:
        pad: tuple of ints, one per spatial axis: positions added on either side of it.
        stride: tuple of ints, one per spatial axis: positions between windows.
        dtype: of the arrays.
        mode: CUDNN_CROSS_CORRELATION (default) or CUDNN_CONVOLUTION (filters flipped).
        dilation: tuple of ints, one per spatial axis: positions between taps; default None: ones.
        use_tensor_core: True asks for CUDNN_TENSOR_OP_MATH, which is kept and decides nothing; default False.
        groups: number of groups; default 1.

    Returns:
        descriptor: a `Descriptor`; it is destroyed with its object.

    Raises:
        TypeError: an unsupported dtype, or no tuple of ints. ValueError: tuples of different lengths.
        CuDNNError: a value that cuDNN refuses.

    Source: cudnnCreateConvolutionDescriptor, cudnnSetConvolution2dDescriptor, cudnnSetConvolutionNdDescriptor,
    cudnnSetConvolutionMathType, cudnnSetConvolutionGroupCount.
    """
    pads, strides, dilations = steps_of(pad, stride, dilation)
    stored = get_data_type(dtype)
    kind = stored if stored == libcudnn.CUDNN_DATA_DOUBLE else libcudnn.CUDNN_DATA_FLOAT
    desc = Descriptor(libcudnn.createConvolutionDescriptor(), libcudnn.destroyConvolutionDescriptor)
    if len(pads) == 2:
        (pad_h, pad_w), (u, v), (dilation_h, dilation_w) = pads, strides, dilations
        libcudnn.setConvolution2dDescriptor_v5(desc.value, pad_h, pad_w, u, v, dilation_h, dilation_w, mode, kind)
    else:
        held = [pointer(v) for v in (pads, strides, dilations)]
        pads_at, strides_at, dilations_at = (at for _, at in held)
        libcudnn.setConvolutionNdDescriptor_v3(desc.value, len(pads), pads_at, strides_at, dilations_at, mode, kind)
    if use_tensor_core:
        libcudnn.setConvolutionMathType(desc.value, libcudnn.CUDNN_TENSOR_OP_MATH)
    if groups > 1:
        libcudnn.setConvolutionGroupCount(desc.value, groups)
    return desc


@documented
def create_pooling_descriptor(ksize: tuple[int, ...], stride: tuple[int, ...], pad: tuple[int, ...], mode: int) -> Descriptor:
    """The descriptor of a pooling.

    Parameters:
        ksize: tuple of ints, one per spatial axis: extents of a window.
        stride: tuple of ints, one per spatial axis: positions between windows.
        pad: tuple of ints, one per spatial axis: positions added on either side of it.
        mode: CUDNN_POOLING_*, an int.

    Returns:
        descriptor: a `Descriptor`; it is destroyed with its object.

    Raises:
        TypeError: no tuple of ints. ValueError: tuples of different lengths.
        CuDNNError: a value that cuDNN refuses.

    Source: cudnnCreatePoolingDescriptor, cudnnSetPooling2dDescriptor, cudnnSetPoolingNdDescriptor.
    """
    windows, strides, pads = windows_of(ksize, stride, pad)
    desc = Descriptor(libcudnn.createPoolingDescriptor(), libcudnn.destroyPoolingDescriptor)
    nan = libcudnn.CUDNN_NOT_PROPAGATE_NAN
    if len(windows) == 2:
        libcudnn.setPooling2dDescriptor_v4(desc.value, mode, nan, *windows, *pads, *strides)
    else:
        held = [pointer(v) for v in (windows, pads, strides)]
        libcudnn.setPoolingNdDescriptor_v4(desc.value, mode, nan, len(windows), *(at for _, at in held))
    return desc


@documented
def create_activation_descriptor(mode: int, relu_nan_opt: int = CUDNN_PROPAGATE_NAN, coef: float = 0.0) -> Descriptor:
    """The descriptor of an activation.

    Parameters:
        mode: CUDNN_ACTIVATION_*, an int.
        relu_nan_opt: CUDNN_PROPAGATE_NAN (default) or CUDNN_NOT_PROPAGATE_NAN: checked; NaN always passes through.
        coef: number: the ceiling of clipped ReLU, the alpha of ELU; default 0.0.

    Returns:
        descriptor: a `Descriptor`; it is destroyed with its object.

    Raises:
        TypeError: no int.
        CuDNNError: a value that cuDNN refuses.

    Source: cudnnCreateActivationDescriptor, cudnnSetActivationDescriptor.
    """
    desc = Descriptor(libcudnn.createActivationDescriptor(), libcudnn.destroyActivationDescriptor)
    libcudnn.setActivationDescriptor(desc.value, mode, relu_nan_opt, coef)
    return desc


@documented
def create_dropout_descriptor(handle: int, dropout: float, states: int, state_size_in_bytes: int, seed: int) -> Descriptor:
    """The descriptor of a dropout.

    Parameters:
        <number>
        dropout: the probability of being dropped, from 0 to 1.
        states: address of the states, which are not used.
        state_size_in_bytes: their size, not looked at.
        seed: int, of which the lowest 64 bits count.

    Returns:
        descriptor: a `Descriptor`; it is destroyed with its object.

    Raises:
        TypeError: no int.
        CuDNNError: a value that cuDNN refuses.

    Source: cudnnCreateDropoutDescriptor, cudnnSetDropoutDescriptor.
    """
    desc = Descriptor(libcudnn.createDropoutDescriptor(), libcudnn.destroyDropoutDescriptor)
    libcudnn.setDropoutDescriptor(desc.value, handle, dropout, states, state_size_in_bytes, seed)
    return desc


@documented
def set_dropout_descriptor(desc: Descriptor, handle: int, dropout: float) -> None:
    """Change the rate of a dropout descriptor; its seed stays.

    Parameters:
        desc: a `Descriptor` that `create_dropout_descriptor` made.
        <number>
        dropout: the probability of being dropped, from 0 to 1.

    Raises:
        CuDNNError: a value that cuDNN refuses.

    Source: cudnnSetDropoutDescriptor.
    """
    libcudnn.setDropoutDescriptor(desc.value, handle, dropout, 0, 0, 0)


@documented
def add_tensor(handle: int, alpha: int, biasDesc: int, biasData: int, beta: int, srcDestDesc: int, srcDestData: int) -> None:
    """data = alpha * bias + beta * data, all by number and address; each axis of the bias is the data's, or 1 and repeated.

    Parameters:
        <number>
        alpha, beta: addresses of floats on the host, of doubles for double data.
        biasDesc, srcDestDesc: numbers of tensor descriptors.
        biasData, srcDestData: addresses of what these describe; the second is overwritten.

    Raises:
        CuDNNError: descriptors that do not fit together, or no address.
        ooc.BudgetError, ooc.StoreError: no plan fits the budget, or a file failed.

    Source: cudnnAddTensor; CuPy v13's cudnn.add_tensor.
    """
    libcudnn.addTensor_v3(handle, alpha, biasDesc, biasData, beta, srcDestDesc, srcDestData)

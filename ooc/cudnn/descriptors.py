"""Descriptors of the low-level calls, as `ooc.cudnn` makes them: numbers that are destroyed with their object."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

import ooc.libcudnn as libcudnn
from ooc.cudnn.checks import array, channels_last, first, get_data_type, steps_of, windows_of
from ooc.libcudnn import CUDNN_CROSS_CORRELATION, CUDNN_PROPAGATE_NAN, CUDNN_TENSOR_NCHW


class Descriptor:
    """A descriptor of cuDNN: `value` is its number, destroyed with this object."""

    def __init__(self, descriptor: int, destroyer: Callable[[int], Any] | None) -> None:
        self.value = descriptor
        if descriptor and destroyer is not None:
            weakref.finalize(self, destroyer, descriptor)


def contiguous(given: Any) -> Any:
    """An array for a descriptor. Raises ValueError unless it is C-contiguous."""
    seen = array("arr", given)
    if not seen.flags.c_contiguous:
        raise ValueError("cupyx.cudnn supports c-contiguous arrays only")
    return seen


def pointer(values: Any) -> tuple[np.ndarray[Any, Any], int]:
    """Integers as C sees them, and their address."""
    held = np.ascontiguousarray(values, np.int32)
    return held, held.ctypes.data


def create_tensor_descriptor(arr: Any, format: int = CUDNN_TENSOR_NCHW) -> Descriptor:
    """The descriptor of an array; format: how one of four axes is stored."""
    seen = contiguous(arr)
    if seen.ndim != 4:
        return _nd(create_uninitialized_tensor_descriptor(), seen)
    sizes = first(seen.shape, channels_last(format, 4))
    found = create_uninitialized_tensor_descriptor()
    libcudnn.setTensor4dDescriptor(found.value, format, get_data_type(seen.dtype), *sizes)
    return found


def create_uninitialized_tensor_descriptor() -> Descriptor:
    """A tensor descriptor that is not set yet."""
    return Descriptor(libcudnn.createTensorDescriptor(), libcudnn.destroyTensorDescriptor)


def create_tensor_nd_descriptor(arr: Any) -> Descriptor:
    """The descriptor of an array with any number of axes; of an empty one, the number 0."""
    return Descriptor(0, None) if array("arr", arr).size == 0 else _nd(create_uninitialized_tensor_descriptor(), contiguous(arr))


def _nd(found: Descriptor, seen: Any) -> Descriptor:
    """Set a descriptor to a contiguous array; NumPy's strides of axes of extent 1 mean nothing."""
    dense = [prod(seen.shape[axis + 1 :]) for axis in range(seen.ndim)]
    (shape, at), (strides, steps) = pointer(seen.shape), pointer(dense)
    libcudnn.setTensorNdDescriptor(found.value, get_data_type(seen.dtype), len(shape), at, steps)
    del strides
    return found


def create_filter_descriptor(arr: Any, format: int = CUDNN_TENSOR_NCHW) -> Descriptor:
    """The descriptor of filters."""
    seen = array("arr", arr)
    found, kind = Descriptor(libcudnn.createFilterDescriptor(), libcudnn.destroyFilterDescriptor), get_data_type(seen.dtype)
    if seen.ndim == 4:
        libcudnn.setFilter4dDescriptor_v4(found.value, kind, format, *first(seen.shape, channels_last(format, 4)))
        return found
    shape, at = pointer(seen.shape)
    libcudnn.setFilterNdDescriptor_v4(found.value, kind, format, len(shape), at)
    return found


def create_convolution_descriptor(
    pad: tuple[int, ...], stride: tuple[int, ...], dtype: Any, mode: int = CUDNN_CROSS_CORRELATION,
    dilation: tuple[int, ...] | None = None, use_tensor_core: bool = False, groups: int = 1,
) -> Descriptor:  # fmt: skip
    """The descriptor of a convolution, computed in f32 where its arrays are f16."""
    pads, strides, dilations = steps_of(pad, stride, dilation)
    stored = get_data_type(dtype)
    kind = stored if stored == libcudnn.CUDNN_DATA_DOUBLE else libcudnn.CUDNN_DATA_FLOAT
    found = Descriptor(libcudnn.createConvolutionDescriptor(), libcudnn.destroyConvolutionDescriptor)
    if len(pads) == 2:
        (pad_h, pad_w), (u, v), (dilation_h, dilation_w) = pads, strides, dilations
        libcudnn.setConvolution2dDescriptor_v5(found.value, pad_h, pad_w, u, v, dilation_h, dilation_w, mode, kind)
    else:
        held = [pointer(v) for v in (pads, strides, dilations)]
        pads_at, strides_at, dilations_at = (at for _, at in held)
        libcudnn.setConvolutionNdDescriptor_v3(found.value, len(pads), pads_at, strides_at, dilations_at, mode, kind)
    if use_tensor_core:
        libcudnn.setConvolutionMathType(found.value, libcudnn.CUDNN_TENSOR_OP_MATH)
    if groups > 1:
        libcudnn.setConvolutionGroupCount(found.value, groups)
    return found


def create_pooling_descriptor(ksize: tuple[int, ...], stride: tuple[int, ...], pad: tuple[int, ...], mode: int) -> Descriptor:
    """The descriptor of a pooling."""
    windows, strides, pads = windows_of(ksize, stride, pad)
    found = Descriptor(libcudnn.createPoolingDescriptor(), libcudnn.destroyPoolingDescriptor)
    nan = libcudnn.CUDNN_NOT_PROPAGATE_NAN
    if len(windows) == 2:
        libcudnn.setPooling2dDescriptor_v4(found.value, mode, nan, *windows, *pads, *strides)
    else:
        held = [pointer(v) for v in (windows, pads, strides)]
        libcudnn.setPoolingNdDescriptor_v4(found.value, mode, nan, len(windows), *(at for _, at in held))
    return found


def create_activation_descriptor(mode: int, relu_nan_opt: int = CUDNN_PROPAGATE_NAN, coef: float = 0.0) -> Descriptor:
    """The descriptor of an activation."""
    found = Descriptor(libcudnn.createActivationDescriptor(), libcudnn.destroyActivationDescriptor)
    libcudnn.setActivationDescriptor(found.value, mode, relu_nan_opt, coef)
    return found


def create_dropout_descriptor(handle: int, dropout: float, states: int, state_size_in_bytes: int, seed: int) -> Descriptor:
    """The descriptor of a dropout."""
    found = Descriptor(libcudnn.createDropoutDescriptor(), libcudnn.destroyDropoutDescriptor)
    libcudnn.setDropoutDescriptor(found.value, handle, dropout, states, state_size_in_bytes, seed)
    return found


def set_dropout_descriptor(desc: Descriptor, handle: int, dropout: float) -> None:
    """Change a dropout descriptor's rate."""
    libcudnn.setDropoutDescriptor(desc.value, handle, dropout, 0, 0, 0)


def add_tensor(handle: int, alpha: int, biasDesc: int, biasData: int, beta: int, srcDestDesc: int, srcDestData: int) -> None:
    """alpha * bias + beta * data into data, all by number and address."""
    libcudnn.addTensor_v3(handle, alpha, biasDesc, biasData, beta, srcDestDesc, srcDestData)

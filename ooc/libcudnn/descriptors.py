"""Descriptors: created, set, read and destroyed, by the integers that stand for them.

What a set call refuses is what cuDNN 9's descriptor layer refuses, but for two things: tensors may have 2^31 elements and
more, and a descriptor that was created but never set is refused by every call that reads it. Lists of integers (`dimA` and
the like) are addresses of C ints, as in CuPy v13, or sequences.
"""

from __future__ import annotations

import operator

from ooc.libcudnn.guard import refusal
from ooc.libcudnn.registry import (
    ActivationDescriptor,
    ConvolutionDescriptor,
    FilterDescriptor,
    PoolingDescriptor,
    TensorDescriptor,
    add,
    drop,
    find,
    packed,
)
from ooc.libcudnn.values import Ints, among, at_least, axes, ints

__all__ = [
    "createActivationDescriptor", "createConvolutionDescriptor", "createFilterDescriptor",
    "createPoolingDescriptor", "createTensorDescriptor", "deriveBNTensorDescriptor", "destroyActivationDescriptor",
    "destroyConvolutionDescriptor", "destroyFilterDescriptor", "destroyPoolingDescriptor",
    "destroyTensorDescriptor", "getConvolutionGroupCount", "getConvolutionMathType", "getFilterNdDescriptor",
    "getTensor4dDescriptor", "setActivationDescriptor", "setConvolution2dDescriptor_v4", "setConvolution2dDescriptor_v5",
    "setConvolutionGroupCount", "setConvolutionMathType", "setConvolutionNdDescriptor_v3",
    "setFilter4dDescriptor_v4", "setFilterNdDescriptor_v4", "setPooling2dDescriptor_v4", "setPoolingNdDescriptor_v4",
    "setTensor4dDescriptor", "setTensor4dDescriptorEx", "setTensorNdDescriptor",
]  # fmt: skip

DATA_TYPES = range(10)
FILTER_TYPES = (0, 1, 2, 3, 5, 6, 7, 8, 9)
COMPUTE_TYPES = (0, 1, 2, 4)  # float, double, half, int32
MOST_DIMS, MOST_SPATIAL = 8, 6


# ---- tensors


def createTensorDescriptor() -> int:
    """A new tensor descriptor, an int; to be set before it is used."""
    return add(TensorDescriptor())


def setTensor4dDescriptor(tensorDesc: int, format: int, dataType: int, n: int, c: int, h: int, w: int) -> None:
    """Set a descriptor to a dense n x c x h x w tensor."""
    tensor = find(TensorDescriptor, tensorDesc, "tensorDesc", ready=False)
    order = among("format", format, (0, 1))
    dims = at_least("n, c, h, w", ints("n, c, h, w", (n, c, h, w), 4), 1)
    tensor.fill(dtype=among("dataType", dataType, DATA_TYPES), dims=dims, strides=packed(dims, order))


def setTensor4dDescriptorEx(
    tensorDesc: int, dataType: int, n: int, c: int, h: int, w: int, nStride: int, cStride: int, hStride: int, wStride: int
) -> None:
    """Set a descriptor to an n x c x h x w tensor with strides.

    nStride, cStride, hStride, wStride: strides in elements, negative ones too, 0 along extents of 1 only.
    """
    setTensorNdDescriptor(tensorDesc, dataType, 4, (n, c, h, w), (nStride, cStride, hStride, wStride))


def setTensorNdDescriptor(tensorDesc: int, dataType: int, nbDims: int, dimA: Ints, strideA: Ints) -> None:
    """Set a descriptor to a tensor of extents dimA and strides strideA (in elements).

    nbDims: number of axes, 2 to 8.
    """
    tensor = find(TensorDescriptor, tensorDesc, "tensorDesc", ready=False)
    count = axes("nbDims", nbDims, 2, MOST_DIMS)
    dims, strides = at_least("dimA", ints("dimA", dimA, count), 1), ints("strideA", strideA, count)
    if any(s == 0 and e > 1 for s, e in zip(strides, dims, strict=True)):
        raise refusal(f"strideA: a stride of 0 along an axis of more than one element: {strides} for {dims}")
    tensor.fill(dtype=among("dataType", dataType, DATA_TYPES), dims=dims, strides=strides)


def getTensor4dDescriptor(tensorDesc: int) -> tuple[int, ...]:
    """(dataType, n, c, h, w, nStride, cStride, hStride, wStride) of a tensor descriptor: of one with more axes the first four, of
    one with fewer zeros behind, as cuDNN does."""
    tensor = find(TensorDescriptor, tensorDesc, "tensorDesc")
    dims, strides = ((*values, 0, 0)[:4] for values in (tensor.dims, tensor.strides))
    return (tensor.dtype, *dims, *strides)


def destroyTensorDescriptor(tensorDesc: int) -> None:
    """Forget a tensor descriptor, set or not; 0 and None are nothing to forget."""
    drop(TensorDescriptor, tensorDesc, "tensorDesc")


def deriveBNTensorDescriptor(derivedBnDesc: int, xDesc: int, mode: int) -> None:
    """Set a descriptor to that of a batch norm's scale, bias and statistics: 1 x c x 1 ..., or 1 x c x spatial per activation;
    float for half data.

    mode: CUDNN_BATCHNORM_PER_ACTIVATION, _SPATIAL or _SPATIAL_PERSISTENT.
    """
    derived, x = find(TensorDescriptor, derivedBnDesc, "derivedBnDesc", ready=False), find(TensorDescriptor, xDesc, "xDesc")
    mode = among("mode", mode, (0, 1, 2))
    dims = (1, *x.dims[1:]) if mode == 0 else (1, x.dims[1], *(1,) * (len(x.dims) - 2))
    derived.fill(dtype=1 if x.dtype == 1 else 0, dims=dims, strides=packed(dims, 0))


# ---- filters


def createFilterDescriptor() -> int:
    """A new filter descriptor, an int; to be set before it is used."""
    return add(FilterDescriptor())


def setFilter4dDescriptor_v4(filterDesc: int, dataType: int, format: int, k: int, c: int, h: int, w: int) -> None:
    """Set a descriptor to dense k x c x h x w filters.

    k, c, h, w: number of filters, channels (of one group), taps; at least 1.
    """
    setFilterNdDescriptor_v4(filterDesc, dataType, format, 4, (k, c, h, w))


def setFilterNdDescriptor_v4(filterDesc: int, dataType: int, format: int, nbDims: int, filterDimA: Ints) -> None:
    """Set a descriptor to dense filters of extents filterDimA: k, c / groups, taps.

    nbDims: number of axes, 3 to 8.
    """
    filters = find(FilterDescriptor, filterDesc, "filterDesc", ready=False)
    dims = at_least("filterDimA", ints("filterDimA", filterDimA, axes("nbDims", nbDims, 3, MOST_DIMS)), 1)
    filters.fill(dtype=among("dataType", dataType, FILTER_TYPES), format=among("format", format, (0, 1)), dims=dims)


def getFilterNdDescriptor(wDesc: int, nbDimsRequested: int) -> tuple[int, int, int, tuple[int, ...]]:
    """(dataType, format, nbDims, dims) of a filter descriptor.

    nbDimsRequested: how many dims to return, 1 to 8; zeros stand behind those that there are.
    """
    filters, count = find(FilterDescriptor, wDesc, "wDesc"), axes("nbDimsRequested", nbDimsRequested, 1, MOST_DIMS)
    return filters.dtype, filters.format, len(filters.dims), (*filters.dims, *(0,) * MOST_DIMS)[:count]


def destroyFilterDescriptor(filterDesc: int) -> None:
    """Forget a filter descriptor, set or not; 0 and None are nothing to forget."""
    drop(FilterDescriptor, filterDesc, "filterDesc")


# ---- convolutions


def createConvolutionDescriptor() -> int:
    """A new convolution descriptor, an int; one group, CUDNN_DEFAULT_MATH; to be set before it is used."""
    return add(ConvolutionDescriptor())


def setConvolution2dDescriptor_v4(
    convDesc: int, pad_h: int, pad_w: int, u: int, v: int, dilation_h: int, dilation_w: int, mode: int
) -> None:
    """Set a descriptor to a 2-D convolution: `setConvolution2dDescriptor_v5`, computing in float.

    Source: cudnnSetConvolution2dDescriptor of cuDNN 4.
    """
    setConvolution2dDescriptor_v5(convDesc, pad_h, pad_w, u, v, dilation_h, dilation_w, mode, 0)


def setConvolution2dDescriptor_v5(
    convDesc: int, pad_h: int, pad_w: int, u: int, v: int, dilation_h: int, dilation_w: int, mode: int, computeType: int
) -> None:
    """Set a descriptor to a 2-D convolution."""
    lists = (pad_h, pad_w), (u, v), (dilation_h, dilation_w)
    setConvolutionNdDescriptor_v3(convDesc, 2, *lists, mode, computeType)


def setConvolutionNdDescriptor_v3(
    convDesc: int, arrayLength: int, padA: Ints, filterStrideA: Ints, dilationA: Ints, mode: int, dataType: int
) -> None:
    """Set a descriptor to a convolution of any number of axes: its padding padA (at least 0), stride filterStrideA and dilation
    dilationA (at least 1).

    arrayLength: number of spatial axes, 0 to 6; 1 to 3 are computed with.
    """
    conv = find(ConvolutionDescriptor, convDesc, "convDesc", ready=False)
    count = axes("arrayLength", arrayLength, 0, MOST_SPATIAL)
    conv.fill(
        pad=at_least("padA", ints("padA", padA, count), 0),
        stride=at_least("filterStrideA", ints("filterStrideA", filterStrideA, count), 1),
        dilation=at_least("dilationA", ints("dilationA", dilationA, count), 1),
        mode=among("mode", mode, (0, 1)),
        compute=among("dataType", dataType, COMPUTE_TYPES),
    )


def setConvolutionMathType(convDesc: int, mathType: int) -> None:
    """Keep a math type; the algorithm queries tell it, whether TF32 is used is the device's choice (`ooc.device(tf32=)`).

    mathType: CUDNN_DEFAULT_MATH, _TENSOR_OP_MATH, _TENSOR_OP_MATH_ALLOW_CONVERSION or _FMA_MATH.
    """
    find(ConvolutionDescriptor, convDesc, "convDesc", ready=False).math = among("mathType", mathType, range(4))


def getConvolutionMathType(convDesc: int) -> int:
    """The math type of a convolution descriptor, set or not: CUDNN_*_MATH."""
    return find(ConvolutionDescriptor, convDesc, "convDesc", ready=False).math


def setConvolutionGroupCount(convDesc: int, groupCount: int) -> None:
    """Set the number of groups of a convolution.

    groupCount: an int, at least 1.
    """
    (count,) = at_least("groupCount", (operator.index(groupCount),), 1)
    find(ConvolutionDescriptor, convDesc, "convDesc", ready=False).groups = count


def getConvolutionGroupCount(convDesc: int) -> int:
    """The number of groups of a convolution descriptor, set or not."""
    return find(ConvolutionDescriptor, convDesc, "convDesc", ready=False).groups


def destroyConvolutionDescriptor(convDesc: int) -> None:
    """Forget a convolution descriptor, set or not; 0 and None are nothing to forget."""
    drop(ConvolutionDescriptor, convDesc, "convDesc")


# ---- pooling, activation


def createPoolingDescriptor() -> int:
    """A new pooling descriptor, an int; to be set before it is used."""
    return add(PoolingDescriptor())


def setPooling2dDescriptor_v4(
    poolingDesc: int, mode: int, maxpoolingNanOpt: int, windowHeight: int, windowWidth: int, verticalPadding: int,
    horizontalPadding: int, verticalStride: int, horizontalStride: int,
) -> None:  # fmt: skip
    """Set a descriptor to a 2-D pooling.

    windowHeight, windowWidth: extents of a window, at least 1.
    verticalPadding, horizontalPadding: positions added on either side.
    verticalStride, horizontalStride: positions between windows, at least 1.
    """
    window, pad = (windowHeight, windowWidth), (verticalPadding, horizontalPadding)
    setPoolingNdDescriptor_v4(poolingDesc, mode, maxpoolingNanOpt, 2, window, pad, (verticalStride, horizontalStride))


def setPoolingNdDescriptor_v4(
    poolingDesc: int, mode: int, maxpoolingNanOpt: int, nbDims: int, windowDimA: Ints, paddingA: Ints, strideA: Ints
) -> None:
    """Set a descriptor to a pooling of any number of axes: its windows windowDimA and stride strideA (at least 1), padding
    paddingA.

    nbDims: number of spatial axes, 1 to 6; 1 to 3 are computed with.
    """
    pooling = find(PoolingDescriptor, poolingDesc, "poolingDesc", ready=False)
    count = axes("nbDims", nbDims, 1, MOST_SPATIAL)
    among("maxpoolingNanOpt", maxpoolingNanOpt, (0, 1))
    pooling.fill(
        mode=among("mode", mode, range(4)),
        window=at_least("windowDimA", ints("windowDimA", windowDimA, count), 1),
        pad=ints("paddingA", paddingA, count),
        stride=at_least("strideA", ints("strideA", strideA, count), 1),
    )


def destroyPoolingDescriptor(poolingDesc: int) -> None:
    """Forget a pooling descriptor, set or not; 0 and None are nothing to forget."""
    drop(PoolingDescriptor, poolingDesc, "poolingDesc")


def createActivationDescriptor() -> int:
    """A new activation descriptor, an int; to be set before it is used."""
    return add(ActivationDescriptor())


def setActivationDescriptor(activationDesc: int, mode: int, reluNanOpt: int, reluCeiling: float) -> None:
    """Set a descriptor to an activation.

    mode: CUDNN_ACTIVATION_*; SWISH can be set, and is refused by the calls that would compute it.
    reluNanOpt: CUDNN_NOT_PROPAGATE_NAN or CUDNN_PROPAGATE_NAN; NaN passes through, whatever is asked for.
    reluCeiling: a number: the ceiling of CLIPPED_RELU, alpha of ELU.
    """
    activation = find(ActivationDescriptor, activationDesc, "activationDesc", ready=False)
    among("reluNanOpt", reluNanOpt, (0, 1))
    activation.fill(mode=among("mode", mode, range(7)), coef=float(reluCeiling))


def destroyActivationDescriptor(activationDesc: int) -> None:
    """Forget an activation descriptor, set or not; 0 and None are nothing to forget."""
    drop(ActivationDescriptor, activationDesc, "activationDesc")

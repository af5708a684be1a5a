"""Descriptors: created, set, read and destroyed, by the integers that stand for them.

What a set call refuses is what cuDNN 9's descriptor layer refuses, but for two things: tensors may have 2^31 elements and
more, and a descriptor that was created but never set is refused by every call that reads it. Lists of integers (`dimA` and
the like) are addresses of C ints, as in CuPy v13, or sequences.
"""

from __future__ import annotations

import operator

from ooc.libcudnn.guard import refusal
from ooc.libcudnn.registry import Activation, Convolution, Filter, Pooling, Tensor, add, drop, find, packed
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
    """A new tensor descriptor. Source: cudnnCreateTensorDescriptor."""
    return add(Tensor())


def setTensor4dDescriptor(tensorDesc: int, format: int, dataType: int, n: int, c: int, h: int, w: int) -> None:
    """A dense n x c x h x w tensor: CUDNN_TENSOR_NCHW, or NHWC (channels fastest). Source: cudnnSetTensor4dDescriptor."""
    tensor = find(Tensor, tensorDesc, "tensorDesc", ready=False)
    order = among("format", format, (0, 1))
    dims = at_least("n, c, h, w", ints("n, c, h, w", (n, c, h, w), 4), 1)
    tensor.fill(dtype=among("dataType", dataType, DATA_TYPES), dims=dims, strides=packed(dims, order))


def setTensor4dDescriptorEx(
    tensorDesc: int, dataType: int, n: int, c: int, h: int, w: int, nStride: int, cStride: int, hStride: int, wStride: int
) -> None:
    """An n x c x h x w tensor with strides in elements, negative ones too. Source: cudnnSetTensor4dDescriptorEx."""
    setTensorNdDescriptor(tensorDesc, dataType, 4, (n, c, h, w), (nStride, cStride, hStride, wStride))


def setTensorNdDescriptor(tensorDesc: int, dataType: int, nbDims: int, dimA: Ints, strideA: Ints) -> None:
    """A tensor of 2 to 8 axes, strides in elements. Source: cudnnSetTensorNdDescriptor."""
    tensor = find(Tensor, tensorDesc, "tensorDesc", ready=False)
    count = axes("nbDims", nbDims, 2, MOST_DIMS)
    dims, strides = at_least("dimA", ints("dimA", dimA, count), 1), ints("strideA", strideA, count)
    if any(s == 0 and e > 1 for s, e in zip(strides, dims, strict=True)):
        raise refusal(f"strideA: a stride of 0 along an axis of more than one element: {strides} for {dims}")
    tensor.fill(dtype=among("dataType", dataType, DATA_TYPES), dims=dims, strides=strides)


def getTensor4dDescriptor(tensorDesc: int) -> tuple[int, ...]:
    """(dataType, n, c, h, w, nStride, cStride, hStride, wStride): of a tensor with more axes the first four, of one with fewer
    zeros behind, as cuDNN does. Source: cudnnGetTensor4dDescriptor."""
    tensor = find(Tensor, tensorDesc, "tensorDesc")
    dims, strides = ((*values, 0, 0)[:4] for values in (tensor.dims, tensor.strides))
    return (tensor.dtype, *dims, *strides)


def destroyTensorDescriptor(tensorDesc: int) -> None:
    """Source: cudnnDestroyTensorDescriptor."""
    drop(Tensor, tensorDesc, "tensorDesc")


def deriveBNTensorDescriptor(derivedBnDesc: int, xDesc: int, mode: int) -> None:
    """The descriptor of a batch norm's scale, bias and statistics: 1 x c x 1 ..., or 1 x c x spatial per activation; float
    for half data. Source: cudnnDeriveBNTensorDescriptor."""
    derived, x = find(Tensor, derivedBnDesc, "derivedBnDesc", ready=False), find(Tensor, xDesc, "xDesc")
    mode = among("mode", mode, (0, 1, 2))
    dims = (1, *x.dims[1:]) if mode == 0 else (1, x.dims[1], *(1,) * (len(x.dims) - 2))
    derived.fill(dtype=1 if x.dtype == 1 else 0, dims=dims, strides=packed(dims, 0))


# ---- filters


def createFilterDescriptor() -> int:
    """A new filter descriptor. Source: cudnnCreateFilterDescriptor."""
    return add(Filter())


def setFilter4dDescriptor_v4(filterDesc: int, dataType: int, format: int, k: int, c: int, h: int, w: int) -> None:
    """Dense k x c x h x w filters, in NCHW or NHWC order (k x h x w x c). Source: cudnnSetFilter4dDescriptor."""
    setFilterNdDescriptor_v4(filterDesc, dataType, format, 4, (k, c, h, w))


def setFilterNdDescriptor_v4(filterDesc: int, dataType: int, format: int, nbDims: int, filterDimA: Ints) -> None:
    """Dense filters of 3 to 8 axes (k, c / groups, taps). Source: cudnnSetFilterNdDescriptor."""
    found = find(Filter, filterDesc, "filterDesc", ready=False)
    dims = at_least("filterDimA", ints("filterDimA", filterDimA, axes("nbDims", nbDims, 3, MOST_DIMS)), 1)
    found.fill(dtype=among("dataType", dataType, FILTER_TYPES), format=among("format", format, (0, 1)), dims=dims)


def getFilterNdDescriptor(wDesc: int, nbDimsRequested: int) -> tuple[int, int, int, tuple[int, ...]]:
    """(dataType, format, nbDims, dims); as many dims as requested, zeros behind. Source: cudnnGetFilterNdDescriptor."""
    found, count = find(Filter, wDesc, "wDesc"), axes("nbDimsRequested", nbDimsRequested, 1, MOST_DIMS)
    return found.dtype, found.format, len(found.dims), (*found.dims, *(0,) * MOST_DIMS)[:count]


def destroyFilterDescriptor(filterDesc: int) -> None:
    """Source: cudnnDestroyFilterDescriptor."""
    drop(Filter, filterDesc, "filterDesc")


# ---- convolutions


def createConvolutionDescriptor() -> int:
    """A new convolution descriptor: one group, CUDNN_DEFAULT_MATH. Source: cudnnCreateConvolutionDescriptor."""
    return add(Convolution())


def setConvolution2dDescriptor_v4(
    convDesc: int, pad_h: int, pad_w: int, u: int, v: int, dilation_h: int, dilation_w: int, mode: int
) -> None:
    """`setConvolution2dDescriptor_v5`, computing in float."""
    setConvolution2dDescriptor_v5(convDesc, pad_h, pad_w, u, v, dilation_h, dilation_w, mode, 0)


def setConvolution2dDescriptor_v5(
    convDesc: int, pad_h: int, pad_w: int, u: int, v: int, dilation_h: int, dilation_w: int, mode: int, computeType: int
) -> None:
    """Padding, stride (u, v), dilation, and the mode: CUDNN_CROSS_CORRELATION, or CUDNN_CONVOLUTION (filters flipped).

    computeType is kept; what is computed in follows from the data. Source: cudnnSetConvolution2dDescriptor.
    """
    lists = (pad_h, pad_w), (u, v), (dilation_h, dilation_w)
    setConvolutionNdDescriptor_v3(convDesc, 2, *lists, mode, computeType)


def setConvolutionNdDescriptor_v3(
    convDesc: int, arrayLength: int, padA: Ints, filterStrideA: Ints, dilationA: Ints, mode: int, dataType: int
) -> None:
    """The same with arrayLength spatial axes. Source: cudnnSetConvolutionNdDescriptor."""
    found = find(Convolution, convDesc, "convDesc", ready=False)
    count = axes("arrayLength", arrayLength, 0, MOST_SPATIAL)
    found.fill(
        pad=at_least("padA", ints("padA", padA, count), 0),
        stride=at_least("filterStrideA", ints("filterStrideA", filterStrideA, count), 1),
        dilation=at_least("dilationA", ints("dilationA", dilationA, count), 1),
        mode=among("mode", mode, (0, 1)),
        compute=among("dataType", dataType, COMPUTE_TYPES),
    )


def setConvolutionMathType(convDesc: int, mathType: int) -> None:
    """Kept, and told by the algorithm queries; whether TF32 is used is the device's choice (`ooc.device(tf32=)`).

    Source: cudnnSetConvolutionMathType.
    """
    find(Convolution, convDesc, "convDesc", ready=False).math = among("mathType", mathType, range(4))


def getConvolutionMathType(convDesc: int) -> int:
    """Source: cudnnGetConvolutionMathType."""
    return find(Convolution, convDesc, "convDesc", ready=False).math


def setConvolutionGroupCount(convDesc: int, groupCount: int) -> None:
    """Source: cudnnSetConvolutionGroupCount."""
    (count,) = at_least("groupCount", (operator.index(groupCount),), 1)
    find(Convolution, convDesc, "convDesc", ready=False).groups = count


def getConvolutionGroupCount(convDesc: int) -> int:
    """Source: cudnnGetConvolutionGroupCount."""
    return find(Convolution, convDesc, "convDesc", ready=False).groups


def destroyConvolutionDescriptor(convDesc: int) -> None:
    """Source: cudnnDestroyConvolutionDescriptor."""
    drop(Convolution, convDesc, "convDesc")


# ---- pooling, activation


def createPoolingDescriptor() -> int:
    """A new pooling descriptor. Source: cudnnCreatePoolingDescriptor."""
    return add(Pooling())


def setPooling2dDescriptor_v4(
    poolingDesc: int, mode: int, maxpoolingNanOpt: int, windowHeight: int, windowWidth: int, verticalPadding: int,
    horizontalPadding: int, verticalStride: int, horizontalStride: int,
) -> None:  # fmt: skip
    """Window, padding and stride of a pooling: CUDNN_POOLING_*. Maxima propagate NaN, whatever is asked for.

    Source: cudnnSetPooling2dDescriptor.
    """
    window, pad = (windowHeight, windowWidth), (verticalPadding, horizontalPadding)
    setPoolingNdDescriptor_v4(poolingDesc, mode, maxpoolingNanOpt, 2, window, pad, (verticalStride, horizontalStride))


def setPoolingNdDescriptor_v4(
    poolingDesc: int, mode: int, maxpoolingNanOpt: int, nbDims: int, windowDimA: Ints, paddingA: Ints, strideA: Ints
) -> None:
    """The same with nbDims spatial axes. Source: cudnnSetPoolingNdDescriptor."""
    found = find(Pooling, poolingDesc, "poolingDesc", ready=False)
    count = axes("nbDims", nbDims, 1, MOST_SPATIAL)
    among("maxpoolingNanOpt", maxpoolingNanOpt, (0, 1))
    found.fill(
        mode=among("mode", mode, range(4)),
        window=at_least("windowDimA", ints("windowDimA", windowDimA, count), 1),
        pad=ints("paddingA", paddingA, count),
        stride=at_least("strideA", ints("strideA", strideA, count), 1),
    )


def destroyPoolingDescriptor(poolingDesc: int) -> None:
    """Source: cudnnDestroyPoolingDescriptor."""
    drop(Pooling, poolingDesc, "poolingDesc")


def createActivationDescriptor() -> int:
    """A new activation descriptor. Source: cudnnCreateActivationDescriptor."""
    return add(Activation())


def setActivationDescriptor(activationDesc: int, mode: int, reluNanOpt: int, reluCeiling: float) -> None:
    """CUDNN_ACTIVATION_*; reluCeiling: the ceiling of CLIPPED_RELU, alpha of ELU. NaN passes through, whatever is asked for.

    Source: cudnnSetActivationDescriptor.
    """
    found = find(Activation, activationDesc, "activationDesc", ready=False)
    among("reluNanOpt", reluNanOpt, (0, 1))
    found.fill(mode=among("mode", mode, range(7)), coef=float(reluCeiling))


def destroyActivationDescriptor(activationDesc: int) -> None:
    """Source: cudnnDestroyActivationDescriptor."""
    drop(Activation, activationDesc, "activationDesc")

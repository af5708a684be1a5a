"""Convolution: its result, its gradients, the sizes of its result.

`alpha`, `beta`: a float is the value; an integer is the address of a float on the host (of a double for double data), as
CuPy v13 passed it. Data: pointers or arrays, of the host or the device. `algo` and the workspace change nothing: ooc plans
within its own budget.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ooc.api.arguments import per_channel as computed_in
from ooc.api.backward import bias_backward, conv_backward
from ooc.api.dispatch import compute, spatial_result
from ooc.api.forward import conv
from ooc.api.layers import Activation as Act
from ooc.api.layers import Conv, act_of, flatten, stages_of
from ooc.ir.bounds import Node
from ooc.ir.fused import Fused
from ooc.ir.op import compute_dtype, dtype_name, numpy_dtype
from ooc.libcudnn.elementwise import activation_of
from ooc.libcudnn.guard import guarded, refusal
from ooc.libcudnn.memory import view
from ooc.libcudnn.problem import (
    ConvolutionProblem,
    blend_small,
    blending,
    check_algo,
    check_handle,
    laid_out,
    output_dims,
    per_channel,
)  # fmt: skip
from ooc.libcudnn.registry import ConvolutionDescriptor, FilterDescriptor, TensorDescriptor, find
from ooc.ops import Pointwise
from ooc.ops.registry import IN

__all__ = [
    "convolutionBackwardBias", "convolutionBackwardData_v3", "convolutionBackwardFilter_v3", "convolutionBiasActivationForward",
    "convolutionForward", "getConvolution2dForwardOutputDim", "getConvolutionNdForwardOutputDim",
]  # fmt: skip

FORWARD_ALGOS, DATA_ALGOS, FILTER_ALGOS = 8, 6, 7


def getConvolution2dForwardOutputDim(convDesc: int, inputTensorDesc: int, filterDesc: int) -> tuple[int, ...]:
    """(n, c, h, w) of a convolution's result, ints."""
    return getConvolutionNdForwardOutputDim(convDesc, inputTensorDesc, filterDesc, 4)


def getConvolutionNdForwardOutputDim(convDesc: int, inputTensorDesc: int, filterDesc: int, nbDims: int) -> tuple[int, ...]:
    """The first extents of a convolution's result, a tuple of ints.

    nbDims: how many, from 0 to its number of axes.
    """
    conv = find(ConvolutionDescriptor, convDesc, "convDesc")
    dims = output_dims(
        conv, find(TensorDescriptor, inputTensorDesc, "inputTensorDesc"), find(FilterDescriptor, filterDesc, "filterDesc")
    )
    if not 0 <= nbDims <= len(dims):
        raise refusal(f"nbDims: the result has {len(dims)} axes, got {nbDims}")
    return dims[:nbDims]


@guarded
def convolutionForward(
    handle: int, alpha: Any, srcDesc: int, srcData: Any, filterDesc: int, filterData: Any, convDesc: int, algo: int,
    workSpace: Any, workSpaceSizeInBytes: int, beta: Any, destDesc: int, destData: Any,
) -> None:  # fmt: skip
    """dest = alpha * conv(src, filter) + beta * dest."""
    check_algo(algo, FORWARD_ALGOS)
    p = ConvolutionProblem.of(handle, srcDesc, filterDesc, destDesc, convDesc)
    x, w = view("srcData", p.x, srcData), view("filterData", p.w, filterData)
    layout, (x, w, y) = laid_out(x, p.flipped(w), view("destData", p.y, destData, write=True))
    conv(x, w, out=y, **p.how(layout), **blending(alpha, beta, y))


@guarded
def convolutionBackwardData_v3(
    handle: int, alpha: Any, filterDesc: int, filterData: Any, diffDesc: int, diffData: Any, convDesc: int, algo: int,
    workSpace: Any, workSpaceSizeInBytes: int, beta: Any, gradDesc: int, gradData: Any,
) -> None:  # fmt: skip
    """grad = alpha * (gradient of the input) + beta * grad: the transposed convolution of diff."""
    check_algo(algo, DATA_ALGOS)
    p = ConvolutionProblem.of(handle, gradDesc, filterDesc, diffDesc, convDesc)
    dy, w = view("diffData", p.y, diffData), view("filterData", p.w, filterData)
    layout, (dy, w, dx) = laid_out(dy, p.flipped(w), view("gradData", p.x, gradData, write=True))
    conv_backward(None, w, dy, want="dx", x_shape=dx.shape, dx=dx, **p.how(layout), **blending(alpha, beta, dx))


@guarded
def convolutionBackwardFilter_v3(
    handle: int, alpha: Any, srcDesc: int, srcData: Any, diffDesc: int, diffData: Any, convDesc: int, algo: int,
    workSpace: Any, workSpaceSizeInBytes: int, beta: Any, gradDesc: int, gradData: Any,
) -> None:  # fmt: skip
    """grad = alpha * (gradient of the filters) + beta * grad."""
    check_algo(algo, FILTER_ALGOS)
    p = ConvolutionProblem.of(handle, srcDesc, gradDesc, diffDesc, convDesc)
    x, dy = view("srcData", p.x, srcData), view("diffData", p.y, diffData)
    layout, (x, dy, dw) = laid_out(x, dy, p.flipped(view("gradData", p.w, gradData, write=True)))
    conv_backward(x, dw, dy, want="dw", dw=dw, **p.how(layout), **blending(alpha, beta, dw))


@guarded
def convolutionBackwardBias(handle: int, alpha: Any, srcDesc: int, srcData: Any, beta: Any, destDesc: int, destData: Any) -> None:
    """dest (1 x c x 1 ...) = alpha * (sum of src over images and positions) + beta * dest."""
    check_handle(handle)
    src, dest = find(TensorDescriptor, srcDesc, "srcDesc"), find(TensorDescriptor, destDesc, "destDesc")
    if src.dtype != dest.dtype:
        raise refusal(f"data types differ: src {src.dtype}, dest {dest.dtype}")
    layout, (dy,) = laid_out(view("srcData", src, srcData))
    db = per_channel("destDesc", dest, view("destData", dest, destData, write=True), src.dims[1])
    blend, total = blending(alpha, beta, db), np.empty(db.shape, numpy_dtype(compute_dtype(dtype_name(dy.dtype))))
    bias_backward(dy, layout=layout, out=total)
    blend_small(db, total, **blend)


@guarded
def convolutionBiasActivationForward(
    handle: int, alpha1: Any, xDesc: int, x: Any, wDesc: int, w: Any, convDesc: int, algo: int, workSpace: Any,
    workSpaceSizeInBytes: int, alpha2: Any, zDesc: int, z: Any, biasDesc: int, bias: Any, activationDesc: int, yDesc: int, y: Any,
) -> None:  # fmt: skip
    """y = activation(alpha1 * conv(x, w) + alpha2 * z + bias), in one pass; bias: 1 x k x 1 ...; z, which may be y, is not
    read where alpha2 is 0. Any activation is taken.

    Source: cudnnConvolutionBiasActivationForward (not in CuPy v13).
    """
    check_algo(algo, FORWARD_ALGOS)
    p = ConvolutionProblem.of(handle, xDesc, wDesc, yDesc, convDesc)
    act, target = activation_of(activationDesc), view("y", p.y, y, write=True)
    one, two = blending(alpha1, alpha2, target).values()
    added, form = find(TensorDescriptor, zDesc, "zDesc") if two else p.y, find(TensorDescriptor, biasDesc, "biasDesc")
    if (added.dims, added.dtype, form.dtype) != (p.y.dims, p.y.dtype, p.y.dtype):
        raise refusal(f"zDesc, biasDesc: expected the shape {p.y.dims} of y, and its data type")
    b = per_channel("biasDesc", form, view("bias", form, bias), p.y.dims[1])
    views = (view("x", p.x, x), p.flipped(view("w", p.w, w)), target, *((view("z", added, z),) if two else ()))
    layout, arrays = laid_out(*views)
    op, inputs = _fused(p, arrays[0], arrays[1], layout, (one, two), act)
    if two:
        inputs["z"] = views[3]
    inputs["b"] = computed_in("bias", b, p.y.dims[1], target.dtype)
    compute(op, inputs, [spatial_result(op.outputs[0], layout, arrays[2])])


def _fused(
    p: ConvolutionProblem, x: Any, w: Any, layout: str, scales: tuple[float, float], act: Act
) -> tuple[Fused, dict[str, Any]]:
    """The convolution, and behind it addition, bias and activation; its x and w."""
    images = np.moveaxis(x, -1, 1) if layout == "channels_last" else x
    layer = Conv(w, None, p.conv.stride, p.conv.pad, p.conv.dilation, p.conv.groups, None, None)
    stages, operands = stages_of(images.shape, images.dtype, flatten([layer]), layout, layout)
    n, k, *extent = p.y.dims
    name, coef = act_of(act)
    behind = Pointwise(
        n, k, tuple(extent), True, name, coef, scales[0], scales[1], "nk" + IN[len(extent)] if scales[1] else "",
        groups=getattr(stages[0], "groups", 1), dtype=stages[0].dtype, layout=layout,
    )  # fmt: skip
    reads = tuple("conv" if o.name == "x" else o.name for o in behind.inputs)
    nodes = (Node(stages[0], tuple(o.name for o in stages[0].inputs), ("conv",)), Node(behind, reads, ("y",)))
    return Fused(nodes, ("y",)), {"x": images, **operands}

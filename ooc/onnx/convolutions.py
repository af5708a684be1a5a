"""Conv, ConvTranspose, Gemm and MatMul, with a batch normalisation and an activation behind them taken in."""

from __future__ import annotations

from typing import Any

import numpy as np

from ooc.networks import layers
from ooc.onnx.elementwise import activation_of
from ooc.onnx.norms import factors
from ooc.onnx.translator import OnnxNode, operator
from ooc.translate.building import GraphTensor, Shape, spatial
from ooc.translate.parts import Pads


def pads_of(context: OnnxNode, extent: Shape, taps: Shape, stride: Shape, dilation: Shape) -> Pads:
    """Padding before and after, from pads or auto_pad."""
    how = context.attribute("auto_pad", "NOTSET")
    rank = len(extent)
    if how in ("NOTSET", ""):
        flat = context.attribute("pads", [0] * 2 * rank)
        return tuple(zip(flat[:rank], flat[rank:], strict=True))
    if how == "VALID":
        return ((0, 0),) * rank
    pads = []
    for e, t, s, d in zip(extent, taps, stride, dilation, strict=True):
        total = max(0, (-(-e // s) - 1) * s + (t - 1) * d + 1 - e)
        less, more = total // 2, total - total // 2
        pads.append((less, more) if how == "SAME_UPPER" else (more, less))
    return tuple(pads)


def folded(context: OnnxNode, w: Any, b: Any, axis: int) -> tuple[Any, Any]:
    """Filters and bias with the batch normalisation behind them, whose channels are an axis of the filters."""
    behind = context.takes_in("BatchNormalization")
    if behind is None or any(behind.value(i) is None or isinstance(behind.value(i), GraphTensor) for i in range(1, 5)):
        return w, b
    scale, shift = factors(behind)
    context.take_in(behind)
    shape = [1] * w.ndim
    shape[axis] = -1
    exact = w.astype(np.float64) * scale.reshape(shape)
    return exact.astype(w.dtype), (0 if b is None else b.astype(np.float64)) * scale + shift


def bias_of(k: int, b: Any) -> Any:
    return None if b is None else np.asarray(b).reshape(k)


@operator("Conv")
def conv(context: OnnxNode) -> GraphTensor:
    x, w, b = context.tensor(), context.constant(1, "filter"), context.constant(2, "bias")
    extent, taps = spatial(context, x), tuple(w.shape[2:])
    rank, groups = len(extent), context.attribute("group", 1)
    if len(taps) != rank:
        raise context.refuse(f"a filter of shape {w.shape} on a tensor of shape {x.shape}")
    stride, dilation = (tuple(context.attribute(name, [1] * rank)) for name in ("strides", "dilations"))
    pads = pads_of(context, extent, taps, stride, dilation)
    if groups == 1:
        w, b = folded(context, w, b, 0)
    act, coef = activation_of(context)
    y = context.add(x, layers.ConvLayer(w.shape[0], taps, stride, pads, dilation, groups, b is not None, act, coef))
    context.own(y, w=w, b=bias_of(w.shape[0], b))
    return context.finish(y)


@operator("ConvTranspose")
def conv_transpose(context: OnnxNode) -> GraphTensor:
    x, w, b = context.tensor(), context.constant(1, "filter"), context.constant(2, "bias")
    extent, taps, groups = spatial(context, x), tuple(w.shape[2:]), context.attribute("group", 1)
    rank, k = len(extent), w.shape[1] * groups
    stride, dilation = (tuple(context.attribute(name, [1] * rank)) for name in ("strides", "dilations"))
    more = tuple(context.attribute("output_padding", [0] * rank))
    pads, more = _transposed_pads(context, extent, taps, stride, dilation, more)
    if groups == 1:
        w, b = folded(context, w, b, 1)
    act, coef = activation_of(context)
    layer = layers.ConvTranspose(k, taps, stride, pads, more, dilation, groups, b is not None, act, coef)
    y = context.add(x, layer)
    context.own(y, w=w, b=bias_of(k, b))
    return context.finish(y)


def _transposed_pads(
    context: OnnxNode, extent: Shape, taps: Shape, stride: Shape, dilation: Shape, more: Shape
) -> tuple[Pads, Shape]:
    """Padding and output padding of a transposed convolution: given, or what makes the result as large as asked."""
    output_shape, how = context.attribute("output_shape"), context.attribute("auto_pad", "NOTSET")
    if output_shape is None and how in ("NOTSET", "VALID", ""):
        return pads_of(context, extent, taps, stride, dilation), more
    sizes = output_shape[-len(extent) :] if output_shape else [e * s for e, s in zip(extent, stride, strict=True)]
    pads, behind = [], []
    for e, t, s, d, m, size in zip(extent, taps, stride, dilation, more, sizes, strict=True):
        total = s * (e - 1) + m + (t - 1) * d + 1 - size
        less, rest = max(0, total) // 2, max(0, total) - max(0, total) // 2
        pads.append((less, rest) if how == "SAME_UPPER" else (rest, less))
        behind.append(m + (max(0, -total) if output_shape else 0))
    return tuple(pads), tuple(behind)


def linear(context: OnnxNode, x: GraphTensor, w: Any, b: Any) -> GraphTensor:
    """y = w x + b of a tensor of channels alone; w: k x c."""
    act, coef = activation_of(context)
    y = context.add(x, layers.Linear(w.shape[0], b is not None, act, coef))
    context.own(y, w=w, b=bias_of(w.shape[0], b))
    return context.finish(y)


@operator("Gemm")
def gemm(context: OnnxNode) -> GraphTensor:
    x, w, b = context.tensor(), context.constant(1, "B"), context.constant(2, "C")
    if context.attribute("transA", 0) or len(x.shape) != 2 or w is None:
        raise context.refuse("a product over the batch")
    w = w if context.attribute("transB", 0) else w.T
    w = w * w.dtype.type(context.attribute("alpha", 1.0))
    if b is not None:
        b = np.broadcast_to(b * b.dtype.type(context.attribute("beta", 1.0)), (x.shape[0], w.shape[0]))
        if (b != b[:1]).any():
            raise context.refuse("its C differs from sample to sample")
        b = b[0]
    return linear(context, x, np.ascontiguousarray(w), b)


@operator("MatMul")
def matmul(context: OnnxNode) -> GraphTensor:
    """x @ w over the last axis, as a pointwise convolution."""
    x, w = context.value(0), context.value(1)
    if not isinstance(x, GraphTensor) or isinstance(w, GraphTensor) or w is None or w.ndim != 2:
        raise context.refuse("a product of two tensors that the network computes", "attention has no place in ooc yet")
    filters = np.ascontiguousarray(w.T)
    if len(x.shape) == 2:
        return linear(context, x, filters, None)
    rank = len(x.shape) - 2
    front = context.add(x, layers.PermuteLayer((rank, *range(rank))), last=False)
    ones, zeros = (1,) * rank, ((0, 0),) * rank
    y = context.add(front, layers.ConvLayer(w.shape[1], ones, ones, zeros, ones), last=False)
    context.own(y, w=filters.reshape(*filters.shape, *ones))
    return context.add(y, layers.PermuteLayer((*range(1, rank + 1), 0)))

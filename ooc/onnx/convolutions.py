"""Conv, ConvTranspose, Gemm and MatMul."""

from __future__ import annotations

import numpy as np

from ooc.onnx.translator import OnnxNode, constant, operator
from ooc.translate import attention, products
from ooc.translate.building import GraphTensor, Shape, spatial
from ooc.translate.parts import Pads, folded


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


@operator("Conv")
def conv(context: OnnxNode) -> GraphTensor:
    x, w, b = context.tensor(), context.weight(1, "filter"), context.weight(2, "bias")
    extent = spatial(context, x)
    rank, groups = len(extent), context.attribute("group", 1)
    if w is None or len(w.shape) != rank + 2:
        raise context.refuse(f"a filter of shape {w and w.shape} on a tensor of shape {x.shape}")
    stride, dilation = (tuple(context.attribute(name, [1] * rank)) for name in ("strides", "dilations"))
    pads = pads_of(context, extent, w.shape[2:], stride, dilation)
    return products.conv(context, x, w, b, stride, pads, dilation, groups)


@operator("ConvTranspose")
def conv_transpose(context: OnnxNode) -> GraphTensor:
    x, w, b = context.tensor(), context.weight(1, "filter"), context.weight(2, "bias")
    extent = spatial(context, x)
    rank, groups = len(extent), context.attribute("group", 1)
    if w is None or len(w.shape) != rank + 2:
        raise context.refuse(f"a filter of shape {w and w.shape} on a tensor of shape {x.shape}")
    stride, dilation = (tuple(context.attribute(name, [1] * rank)) for name in ("strides", "dilations"))
    more = tuple(context.attribute("output_padding", [0] * rank))
    pads, more = _transposed_pads(context, extent, w.shape[2:], stride, dilation, more)
    return products.conv_transpose(context, x, w, b, stride, pads, more, dilation, groups)


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


@operator("Col2Im")
def fold(context: OnnxNode) -> GraphTensor:
    x, extent, taps = context.tensor(), context.constant(1, "image_shape"), context.constant(2, "block_shape")
    rank = len(extent)
    stride, dilation = (tuple(context.attribute(name, [1] * rank)) for name in ("strides", "dilations"))
    pads = context.attribute("pads", [0] * 2 * rank)
    around = tuple(zip(pads[:rank], pads[rank:], strict=True))
    return folded(context, x, tuple(map(int, extent)), tuple(map(int, taps)), stride, around, dilation)


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
    return products.linear(context, x, constant(np.ascontiguousarray(w)), None if b is None else constant(b))


@operator("MatMul")
def matmul(context: OnnxNode) -> GraphTensor:
    """Over the last axis, with constants as a pointwise convolution."""
    return attention.matmul(context, context.waiting(0), context.waiting(1))


@operator("Einsum")
def einsum(context: OnnxNode) -> GraphTensor:
    return attention.einsum(context, context.attribute("equation"), [context.waiting(i) for i in range(len(context.op.input))])

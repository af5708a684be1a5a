"""From a graph to an ONNX model: a function for each kind of layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ooc.errors import UnsupportedError
from ooc.networks.layer_graph import LayerGraph
from ooc.onnx import elementwise, tables
from ooc.onnx.translator import BOOLEAN
from ooc.onnx.writer import CODES, OnnxLayer, OnnxWriter, flat_pads
from ooc.ops.convert import RANGES
from ooc.translate.building import registering
from ooc.translate.leaving import arithmetic, leaving, spreading, wide

EXPORTS: dict[str, Callable[[OnnxLayer], str]] = {}  # by the kind of layer: writes its nodes
exporter = registering(EXPORTS)  # function decorator: it exports layers of these kinds


def export(graph: LayerGraph, path: str | Path | None, parameters: Mapping[str, Any] | None) -> bytes | None:
    """See `ooc.Graph.to_onnx`."""
    try:
        import onnx  # noqa: F401
    except ImportError:
        raise UnsupportedError('ooc.onnx: writing ONNX files needs onnx; pip install "ooc[onnx]"') from None
    writer = OnnxWriter(graph, leaving(graph, parameters))
    for node in writer.leaving.nodes:
        context = OnnxLayer(writer, node)
        write = EXPORTS.get(node.layer.kind)
        if write is None:
            raise context.refuse("ONNX has no such layer")
        context.finish(write(context))
    if path is None:
        return writer.content()
    writer.save(Path(path))
    return None


# ---- activations and functions


ACTIVATIONS: dict[str, Callable[[OnnxLayer, str, float], str]] = {
    "identity": lambda context, x, coef: x,
    "relu": lambda context, x, coef: context.op("Relu", x),
    "sigmoid": lambda context, x, coef: context.op("Sigmoid", x),
    "tanh": lambda context, x, coef: context.op("Tanh", x),
    "clipped_relu": lambda context, x, coef: _clipped(context, x, 0.0, coef),
    "elu": lambda context, x, coef: context.op("Elu", x, alpha=coef),
    "leaky_relu": lambda context, x, coef: context.op("LeakyRelu", x, alpha=coef),
}


def activated(context: OnnxLayer, x: str) -> str:
    """What the activation of a layer makes."""
    return ACTIVATIONS[context.layer.act](context, x, context.layer.coef)


def _clipped(context: OnnxLayer, x: str, low: float, high: float) -> str:
    """x between limits, those that are finite."""
    limits = [context.constant(what, limit) if math.isfinite(limit) else "" for what, limit in (("min", low), ("max", high))]
    return context.op("Clip", x, *limits)


@exporter("activation")
def activation(context: OnnxLayer) -> str:
    return activated(context, context.reads[0])


def _number(context: OnnxLayer, condition: str) -> str:
    """A condition as 1 or 0."""
    return context.op("Cast", condition, to=CODES[context.dtype])


def _plain(kind: str) -> Callable[[OnnxLayer, str, float, float], str]:
    """A function that ONNX has by itself."""
    return lambda context, x, a, b: context.op(kind, x)


FUNCTIONS: dict[str, Callable[[OnnxLayer, str, float, float], str]] = {
    "clip": _clipped,
    "hard_sigmoid": lambda context, x, a, b: context.op("HardSigmoid", x, alpha=a, beta=b),
    "silu": lambda context, x, a, b: context.op("Mul", x, context.op("Sigmoid", x)),
    "gelu": lambda context, x, a, b: context.op("Gelu", x, opset=20),
    "gelu_tanh": lambda context, x, a, b: context.op("Gelu", x, opset=20, approximate="tanh"),
    "above": lambda context, x, a, b: _number(context, context.op("Greater", x, context.constant("a", a))),
    "rsqrt": lambda context, x, a, b: context.op("Pow", x, context.constant("exponent", -0.5)),
    "pow": lambda context, x, a, b: context.op("Pow", x, context.constant("exponent", a)),
    "soft_shrink": lambda context, x, a, b: context.op("Shrink", x, lambd=a, bias=a),
    "hard_shrink": lambda context, x, a, b: context.op("Shrink", x, lambd=a, bias=0.0),
    "celu": lambda context, x, a, b: context.op("Celu", x, alpha=a),
    "zero": lambda context, x, a, b: context.op("Mul", x, context.constant("zero", 0.0)),
    **{name: _plain(kind) for kind, name in elementwise.FUNCTIONS.items()},
}


@exporter("function")
def function(context: OnnxLayer) -> str:
    write = FUNCTIONS.get(context.layer.how)
    if write is None:
        raise context.refuse(f"ONNX has no function {context.layer.how}")
    return write(context, context.reads[0], context.layer.a, context.layer.b)


@exporter("softmax")
def softmax(context: OnnxLayer) -> str:
    return context.op("Softmax" if context.layer.how == "plain" else "LogSoftmax", context.reads[0], axis=1)


@exporter("dropout")
def dropout(context: OnnxLayer) -> str:
    return context.op("Dropout", context.reads[0], context.constant("rate", context.layer.rate))


# ---- sums and products


@exporter("add")
def add(context: OnnxLayer) -> str:
    return activated(context, _sum(context, context.beside(0), context.beside(1), context.layer.beta))


def _sum(context: OnnxLayer, x: str, z: str, by: float) -> str:
    """x + by * z."""
    if by in (1, -1):
        return context.op("Add" if by == 1 else "Sub", x, z)
    return context.op("Add", x, context.op("Mul", z, context.constant("factor", by)))


@exporter("multiply")
def multiply(context: OnnxLayer) -> str:
    return activated(context, context.op("Mul", context.beside(0), context.beside(1)))


@exporter("matmul")
def matmul(context: OnnxLayer) -> str:
    how, factors = context.layer.how, [context.beside(i) for i in (0, 1)]
    turned = [context.op("Transpose", f, perm=[0, 1, 3, 2]) if h == "t" else f for f, h in zip(factors, how, strict=True)]
    y = context.op("MatMul", *turned)
    return y if context.layer.alpha == 1 else context.op("Mul", y, context.constant("factor", context.layer.alpha))


@exporter("attention")
def attention(context: OnnxLayer) -> str:
    q, k, v, *biases = (context.beside(i) for i in range(len(context.node.reads)))
    layer, shapes = context.layer, [context.shape(i) for i in range(len(context.node.reads))]
    scores = context.op("MatMul", q, context.op("Transpose", k, perm=[0, 1, 3, 2]))
    scores = scores if layer.scale == 1 else context.op("Mul", scores, context.constant("scale", layer.scale))
    for bias, apart, shape in zip(biases, layer.apart(shapes), shapes[3:], strict=True):
        if layer.groups > 1:
            heads = np.asarray((1, layer.groups, shapes[0][0] // layer.groups, 1, 1), np.int64)
            bias = context.op("Expand", context.reshaped(bias, apart), context.constant("heads", heads))
            bias = context.reshaped(bias, (shapes[0][0], *shape[1:]))
        scores = context.op("Add", scores, bias)
    return context.op("MatMul", context.op("Softmax", scores, axis=-1), v)


COMPARISONS = {"greater": "Greater", "not_less": "GreaterOrEqual", "equal": "Equal"}
PAIRS = {"divide": "Div", "power": "Pow", "maximum": "Max", "minimum": "Min"}


@exporter("binary")
def binary(context: OnnxLayer) -> str:
    how, x, z = context.layer.how, context.beside(0), context.beside(1)
    if how in PAIRS:
        return context.op(PAIRS[how], x, z)
    if how in COMPARISONS:
        return _number(context, context.op(COMPARISONS[how], x, z))
    parts = (x, context.constant("zero", 0.0))
    return context.op("Where", context.op("Cast", z, to=BOOLEAN), *(parts if how == "where" else parts[::-1]))


@exporter("expand")
def expand(context: OnnxLayer) -> str:
    return context.op("Expand", context.beside(0), context.constant("size", np.asarray((1, *context.layer.size), np.int64)))


@exporter("parameter")
def parameter(context: OnnxLayer) -> str:
    """As many times as there are samples in the first input."""
    value = context.weight("value", (1, *wide(context.layer.values, context.rank)))
    if not context.writer.leaving.inputs:
        raise context.refuse("no input says how many samples there are")
    samples = context.op("Shape", context.writer.leaving.inputs[0], start=0, end=1)
    size = context.op("Concat", samples, context.constant("size", np.asarray(context.layer.size, np.int64)), axis=0)
    return context.op("Expand", value, size)


@exporter("affine")
def affine(context: OnnxLayer) -> str:
    x, value = context.beside(0), context.weight("value", (1, *wide(context.layer.values, context.rank)))
    y = context.op("Mul", x, value) if context.layer.how == "scale" else _sum(context, value, x, context.layer.alpha)
    return activated(context, y)


# ---- convolutions and normalisations


def _filter(context: OnnxLayer) -> dict[str, Any]:
    """Attributes of both convolutions."""
    layer = context.layer
    return {
        "kernel_shape": layer.taps, "strides": layer.stride, "pads": flat_pads(layer.pad), "dilations": layer.dilation,
        "group": layer.groups,
    }  # fmt: skip


@exporter("conv")
def conv(context: OnnxLayer) -> str:
    return activated(context, context.op("Conv", context.reads[0], *context.weights("w", "b"), **_filter(context)))


@exporter("conv_transpose")
def conv_transpose(context: OnnxLayer) -> str:
    more = context.layer.output_padding
    y = context.op("ConvTranspose", context.reads[0], *context.weights("w", "b"), **_filter(context), output_padding=more)
    return activated(context, y)


@exporter("linear")
def linear(context: OnnxLayer) -> str:
    return activated(context, context.op("Gemm", context.reads[0], *context.weights("w", "b"), transB=1))


@exporter("batch_norm")
def batch_norm(context: OnnxLayer) -> str:
    layer, values = context.layer, [context.weight(key, statistics=True) for key in ("scale", "b", "mean", "var")]
    y = context.op("BatchNormalization", context.reads[0], *values, epsilon=layer.eps, momentum=1 - layer.momentum)
    return activated(context, y)


@exporter("group_norm")
def group_norm(context: OnnxLayer) -> str:
    layer, k = context.layer, context.shape()[0]
    plain = [] if layer.affine else [context.constant(what, np.full(k, value)) for what, value in (("scale", 1.0), ("b", 0.0))]
    reads = [context.reads[0], *context.weights("scale", "b"), *plain]
    if not layer.groups:
        return activated(context, context.op("InstanceNormalization", *reads, epsilon=layer.eps))
    y = context.op("GroupNormalization", *reads, opset=21, epsilon=layer.eps, num_groups=layer.groups)
    return activated(context, y)


@exporter("lrn")
def lrn(context: OnnxLayer) -> str:
    """ONNX Runtime has two spatial axes, and odd sizes."""
    layer, x, shape = context.layer, context.reads[0], context.shape()
    flat = (*shape, 1)[:3] if len(shape) < 4 else (*shape[:2], math.prod(shape[2:]))
    if flat != shape:
        x = context.reshaped(x, flat)
    y = context.op("LRN", x, size=layer.size, alpha=layer.alpha, beta=layer.beta, bias=layer.base)
    return y if flat == shape else context.reshaped(y, shape)


# ---- pooling


@exporter("pool")
def pool(context: OnnxLayer) -> str:
    layer = context.layer
    window = {"kernel_shape": layer.window, "strides": layer.stride, "pads": flat_pads(layer.pad)}
    if layer.how == "max":
        return context.op("MaxPool", context.reads[0], **window)
    return context.op("AveragePool", context.reads[0], **window, count_include_pad=int(layer.how == "average"))


@exporter("max_unpool")
def max_unpool(context: OnnxLayer) -> str:
    """By the places of the maxima, which pooling once more says."""
    layer, (x, values) = context.layer, context.reads
    window = {"kernel_shape": layer.window, "strides": layer.stride, "pads": flat_pads(layer.pad)}
    _, places = context.several("MaxPool", 2, x, **window)
    return context.op("MaxUnpool", values, places, context.op("Shape", x), **window)


@exporter("global_pool")
def global_pool(context: OnnxLayer) -> str:
    kind = "GlobalMaxPool" if context.layer.how == "max" else "GlobalAveragePool"
    return context.op("Flatten", context.op(kind, context.reads[0]))


# ---- values that move


@exporter("grid_sample")
def grid_sample(context: OnnxLayer) -> str:
    """Positions are the last axis there; how far they lie at most is not said. Lines become pictures: ONNX Runtime has none."""
    layer, (x, grid), shape = context.layer, context.reads, context.shape()
    words = {"mode": layer.how, "padding_mode": layer.padding, "align_corners": int(layer.aligned)}
    if len(shape) > 2:
        turned = context.op("Transpose", grid, perm=[0, *range(2, len(shape) + 1), 1])
        return context.op("GridSample", x, turned, opset=20, **words)
    beside = context.op("Mul", grid, context.constant("middle", 0.0))
    turned = context.op("Transpose", context.op("Concat", grid, beside, axis=1), perm=[0, 2, 1])
    flat = context.reshaped(x, (shape[0], 1, shape[1])), context.reshaped(turned, (1, *context.node.shape[1:], 2))
    return context.reshaped(context.op("GridSample", *flat, opset=20, **words), context.node.shape)


@exporter("concat")
def concat(context: OnnxLayer) -> str:
    return context.op("Concat", *context.reads, axis=1)


@exporter("flatten")
def flatten(context: OnnxLayer) -> str:
    return context.op("Flatten", context.reads[0])


@exporter("stop")
def stop(context: OnnxLayer) -> str:
    """ONNX has no gradients."""
    return context.op("Identity", context.reads[0])


@exporter("reshape")
def reshape(context: OnnxLayer) -> str:
    return context.reshaped(context.reads[0], context.layer.size)


def _permuted(context: OnnxLayer, x: str, order: tuple[int, ...]) -> str:
    return context.op("Transpose", x, perm=[0, *(axis + 1 for axis in order)])


@exporter("permute")
def permute(context: OnnxLayer) -> str:
    return _permuted(context, context.reads[0], context.layer.order)


@exporter("depth_to_space")
def depth_to_space(context: OnnxLayer) -> str:
    """ONNX has two spatial axes; others are moved by hand."""
    layer, x, (_, *extent) = context.layer, context.reads[0], context.shape()
    if len(extent) == 2:
        return context.op("DepthToSpace", x, blocksize=layer.block, mode=layer.how.upper())
    for view, order in spreading(context.node.shape[0], tuple(extent), layer.block, layer.how):
        x = _permuted(context, context.reshaped(x, view), order)
    return context.reshaped(x, context.node.shape)


@exporter("pad")
def pad(context: OnnxLayer) -> str:
    return context.padded(context.reads[0], context.layer.around)


@exporter("laid")
def laid(context: OnnxLayer) -> str:
    layer = context.layer
    pads = [(lead, s - e - lead) for lead, e, s in zip(layer.lead, context.shape(), layer.size, strict=True)]
    return context.padded(context.reads[0], pads, context.constant("fill", layer.value))


exporter("upsample")(tables.upsample)
exporter("resize")(tables.resize)


# ---- integers


@exporter("convert")
def convert(context: OnnxLayer) -> str:
    layer, x, to = context.layer, context.reads[0], context.layer.dtype
    if (layer.scale, layer.offset) == (1, 0):
        return context.op("Cast", x, to=CODES[to])
    wide_type = arithmetic(context.dtype, to)
    y = context.op("Cast", x, to=CODES[wide_type])
    if layer.scale != 1:
        y = context.op("Mul", y, context.constant("scale", layer.scale, wide_type))
    if layer.offset:
        y = context.op("Add", y, context.constant("offset", layer.offset, wide_type))
    return y if wide_type == to else context.op("Cast", y, to=CODES[to])


@exporter("round")
def round_(context: OnnxLayer) -> str:
    """The nearest, halves to even, within the range."""
    to, x, wide_type = context.layer.store, context.reads[0], arithmetic(context.layer.store, context.dtype)
    if wide_type != context.dtype:
        x = context.op("Cast", x, to=CODES[wide_type])
    limits = [context.constant(what, float(limit), wide_type) for what, limit in zip(("min", "max"), RANGES[to], strict=True)]
    return context.op("Cast", context.op("Clip", context.op("Round", x), *limits), to=CODES[to])


@exporter("argmax")
def argmax(context: OnnxLayer) -> str:
    return context.op("Cast", context.op("ArgMax", context.reads[0], axis=1, keepdims=1), to=CODES[context.layer.store])

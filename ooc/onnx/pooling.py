"""Pooling over windows and over all positions, means over some axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ooc.networks import layers
from ooc.onnx.convolutions import pads_of
from ooc.onnx.translator import OnnxNode, operator
from ooc.translate import along, reductions
from ooc.translate.building import GraphTensor, Shape, spatial
from ooc.translate.elementwise import divide
from ooc.translate.parts import MaximaPlaces, Pads, average, maximum
from ooc.translate.reductions import REDUCTIONS


def windows(context: OnnxNode, x: GraphTensor) -> tuple[Shape, Shape, Pads, bool, Shape]:
    """Window, stride, padding, whether the number of windows is rounded up, and dilation."""
    extent, taps = spatial(context, x), tuple(context.attribute("kernel_shape"))
    ones = (1,) * len(extent)
    stride, dilation = tuple(context.attribute("strides", ones)), tuple(context.attribute("dilations", ones))
    return taps, stride, pads_of(context, extent, taps, stride, dilation), bool(context.attribute("ceil_mode", 0)), dilation


@operator("MaxPool")
def max_pool(context: OnnxNode) -> list[Any]:
    """The maxima, and their places for those who unpool by them."""
    x = context.tensor()
    taps, stride, pads, ceil, dilation = windows(context, x)
    y = maximum(context, x, taps, stride, pads, ceil, dilation)
    plain = not ceil and set(dilation) == {1} and not context.attribute("storage_order", 0)
    return [y, MaximaPlaces(x, taps, stride, pads)] if plain else [y]


@operator("MaxUnpool")
def max_unpool(context: OnnxNode) -> GraphTensor:
    values, places = context.tensor(), context.translator.values[context.op.input[1]]
    if not isinstance(places, MaximaPlaces):
        raise context.refuse("places that no pooling of the network has made")
    size = context.constant(2, "output_shape")
    extent = places.covered(values) if size is None else tuple(np.asarray(size).ravel().tolist())[2:]
    return places.unpooled(context, values, extent)


@operator("AveragePool")
def average_pool(context: OnnxNode) -> GraphTensor:
    """Padding may count, what ceil_mode adds does not."""
    x = context.tensor()
    taps, stride, pads, ceil, dilation = windows(context, x)
    if set(dilation) != {1}:
        raise context.refuse("a dilated window")
    return average(context, x, taps, stride, pads, ceil, bool(context.attribute("count_include_pad", 0)))


@operator("GlobalAveragePool", "GlobalMaxPool")
def global_pool(context: OnnxNode) -> GraphTensor:
    """One value per channel, with the spatial axes."""
    x = context.tensor()
    rank = len(spatial(context, x))
    pooled = context.add(x, layers.GlobalPool("max" if "Max" in context.op.op_type else "average"), last=False)
    return context.add(pooled, layers.Reshape((x.shape[1], *(1,) * rank)))


OF_AXES = {
    "ReduceL1": "l1", "ReduceL2": "l2", "ReduceLogSum": "log_sum", "ReduceLogSumExp": "log_sum_exp", "ReduceMax": "max",
    "ReduceMean": "mean", "ReduceMin": "min", "ReduceSum": "sum", "ReduceSumSquare": "sum_square",
}  # fmt: skip


@operator(*OF_AXES)
def reduce(context: OnnxNode) -> GraphTensor:
    x, kind = context.tensor(), context.op.op_type
    rank, keep = len(x.shape), bool(context.attribute("keepdims", 1))
    axes: Any = context.constant(1, "axes")
    axes = context.attribute("axes") if axes is None else axes.ravel().tolist()
    if not axes and context.attribute("noop_with_empty_axes", 0):
        return x
    axes = sorted({int(a) % rank for a in axes}) if axes else list(range(rank))
    return REDUCTIONS[OF_AXES[kind]](context, x, axes, keep)


@operator("CumSum")
def running(context: OnnxNode) -> GraphTensor:
    x = context.tensor()
    axis = int(context.constant(1, "axis").reshape(())) % len(x.shape)
    return along.running(context, x, axis, bool(context.attribute("exclusive", 0)), bool(context.attribute("reverse", 0)))


@operator("ArgMax", "ArgMin")
def place_of_extreme(context: OnnxNode) -> GraphTensor:
    if context.attribute("select_last_index", 0):
        raise context.refuse("the last of equals")
    x, keep = context.tensor(), bool(context.attribute("keepdims", 1))
    place = reductions.place_of_largest if context.op.op_type == "ArgMax" else reductions.place_of_smallest
    return place(context, x, context.attribute("axis", 0) % len(x.shape), keep)


@operator("LpNormalization")
def lp_norm(context: OnnxNode) -> GraphTensor:
    x = context.tensor()
    axis, how = context.attribute("axis", -1) % len(x.shape), "l1" if context.attribute("p", 2) == 1 else "l2"
    return divide(context, x, REDUCTIONS[how](context, x, [axis], True))

"""Pooling over windows and over all positions, means over some axes."""

from __future__ import annotations

import math
from typing import Any

from ooc.networks import layers
from ooc.onnx.convolutions import Pads, pads_of
from ooc.onnx.elementwise import affine
from ooc.onnx.translator import Context, Made, Shape, operator, spatial


def windows(context: Context, x: Made) -> tuple[Shape, Shape, Pads, Pads]:
    """Window, stride, padding, and padding with what ceil_mode adds behind."""
    extent, taps = spatial(context, x), tuple(context.attribute("kernel_shape"))
    ones = (1,) * len(extent)
    if tuple(context.attribute("dilations", ones)) != ones:
        raise context.refuse("a dilated window")
    stride = tuple(context.attribute("strides", ones))
    pads = pads_of(context, extent, taps, stride, ones)
    if not context.attribute("ceil_mode", 0):
        return taps, stride, pads, pads
    more = []
    for e, t, s, (before, after) in zip(extent, taps, stride, pads, strict=True):
        count = -(-(e + before + after - t) // s) + 1
        count -= (count - 1) * s >= e + before  # the last window begins inside
        more.append((before, max(after, (count - 1) * s + t - e - before)))
    return taps, stride, pads, tuple(more)


@operator("MaxPool")
def max_pool(context: Context) -> Made:
    x = context.tensor()
    taps, stride, _, pads = windows(context, x)
    return context.add(x, layers.Pool("max", taps, stride, pads))


@operator("AveragePool")
def average_pool(context: Context) -> Made:
    """Padding may count, what ceil_mode adds does not."""
    x = context.tensor()
    taps, stride, given, pads = windows(context, x)
    if not context.attribute("count_include_pad", 0):
        return context.add(x, layers.Pool("average_valid", taps, stride, pads))
    if pads == given:
        return context.add(x, layers.Pool("average", taps, stride, pads))
    wide = context.add(x, layers.Pad(given), last=False)
    rest = tuple((0, after - before[1]) for (_, after), before in zip(pads, given, strict=True))
    return context.add(wide, layers.Pool("average_valid", taps, stride, rest))


@operator("GlobalAveragePool", "GlobalMaxPool")
def global_pool(context: Context) -> Made:
    """One value per channel, with the spatial axes."""
    x = context.tensor()
    rank = len(spatial(context, x))
    made = context.add(x, layers.GlobalPool("max" if "Max" in context.op.op_type else "average"), last=False)
    return context.add(made, layers.Reshape((x.shape[1], *(1,) * rank)))


@operator("ReduceMean", "ReduceMax", "ReduceSum")
def reduce(context: Context) -> Made:
    x, kind = context.tensor(), context.op.op_type
    rank, keep = len(x.shape), bool(context.attribute("keepdims", 1))
    given: Any = context.constant(1, "axes")
    given = context.attribute("axes") if given is None else given.ravel().tolist()
    if not given and context.attribute("noop_with_empty_axes", 0):
        return x
    axes = sorted({int(a) % rank for a in given}) if given else list(range(rank))
    if axes[0] == 0:
        raise context.refuse("over the batch")
    how = "max" if kind == "ReduceMax" else "average"
    if axes[0] >= 2 and keep and axes != list(range(2, rank)):
        window = tuple(x.shape[a] if a in axes else 1 for a in range(2, rank))
        made = context.add(x, layers.Pool(how, window, window, ((0, 0),) * (rank - 2)), last=kind != "ReduceSum")
    else:
        made = over(context, x, axes, how, keep)
    return affine(context, made, "scale", float(math.prod(x.shape[a] for a in axes))) if kind == "ReduceSum" else made


def over(context: Context, x: Made, axes: list[int], how: str, keep: bool) -> Made:
    """The mean or maximum over some axes: those that stay become the channels, the others positions."""
    rest = [a for a in range(1, len(x.shape)) if a not in axes]
    order = tuple(a - 1 for a in (*rest, *axes))
    channels, positions = (math.prod(x.shape[a] for a in some) for some in (rest, axes))
    if order != tuple(range(len(order))):
        x_front = context.add(x, layers.Permute(order), last=False)
    else:
        x_front = x
    if x_front.shape[1:] != (channels, positions):
        x_front = context.add(x_front, layers.Reshape((channels, positions)), last=False)
    made = context.add(x_front, layers.GlobalPool(how), last=False)
    final = tuple(1 if a in axes else e for a, e in enumerate(x.shape) if a and (keep or a not in axes))
    return made if final in ((channels,), ()) else context.add(made, layers.Reshape(final), last=False)

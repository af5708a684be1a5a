"""Pooling, resizing, and calls that only move values."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ooc.networks import layers
from ooc.ops.resize import Line4, table
from ooc.torch.translator import MovedStatistic, TorchCall, Values, name_of, operator
from ooc.translate.binary import as_tensor, binary, expanded
from ooc.translate.building import Constant, GraphTensor, Shape
from ooc.translate.parts import (
    Pads,
    average,
    ceiled,
    chosen,
    cut,
    joined,
    padded,
    picked,
    positions_of_blocks,
    resized,
    rolled,
    shuffled,
    sliced,
    split,
    stacked,
    tiled,
)
from ooc.translate.views import permuted, reshaped

# ---- windows


def windows(context: TorchCall, x: GraphTensor) -> tuple[Shape, Shape, Pads, bool]:
    """Window, stride, padding, and whether the number of windows is rounded up."""
    rank = len(x.shape) - 2
    taps = context.per_axis("kernel_size", rank)
    stride = context.per_axis("stride", rank) if context.argument("stride") else taps
    if any(d != 1 for d in context.per_axis("dilation", rank, 1)):
        raise context.refuse("a dilated window")
    return taps, stride, tuple((p, p) for p in context.per_axis("padding", rank)), bool(context.argument("ceil_mode"))


@operator("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool(context: TorchCall) -> Any:
    x = context.image()
    taps, stride, pads, ceil = windows(context, x)
    y = context.add(x, layers.PoolLayer("max", taps, stride, ceiled(x.shape[2:], taps, stride, pads) if ceil else pads))
    return [y] if "indices" in name_of(context.node) else y


@operator("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(context: TorchCall) -> GraphTensor:
    x = context.image()
    if context.argument("divisor_override") is not None:
        raise context.refuse("a divisor of its own")
    return average(context, x, *windows(context, x), bool(context.argument("count_include_pad")))


@operator(
    *(f"adaptive_{how}_pool{rank}d" for how in ("avg", "max") for rank in (1, 2, 3)), *(f"_adaptive_avg_pool{r}d" for r in (2, 3))
)
def adaptive_pool(context: TorchCall) -> Any:
    """Where every window has the same extent, or one position."""
    x, how = context.image(), "max" if "_max_" in name_of(context.node) else "average"
    extent, size = x.shape[2:], context.per_axis("output_size", len(x.shape) - 2)
    zeros = ((0, 0),) * len(extent)
    if set(size) == {1}:
        pooled = context.add(x, layers.GlobalPool(how), last=False)
        y = context.add(pooled, layers.Reshape((x.shape[1], *size)))
    elif size == extent:
        y = x
    elif all(e % s == 0 for e, s in zip(extent, size, strict=True)):
        window = tuple(e // s for e, s in zip(extent, size, strict=True))
        y = context.add(x, layers.PoolLayer(how, window, window, zeros))
    elif all(s % e == 0 for e, s in zip(extent, size, strict=True)):
        y = context.add(x, layers.UpsampleLayer("nearest", size))
    elif how == "average":
        y = _uneven(context, x, size)
    else:
        raise context.refuse(f"from {extent} to {size}: windows of several extents")
    return [y] if how == "max" else y


def _uneven(context: TorchCall, x: GraphTensor, size: Shape) -> GraphTensor:
    """Means over windows of several extents, axis by axis: as channels, they are multiplied by what each counts for."""
    rank = len(size)
    ones, none = (1,) * rank, ((0, 0),) * rank
    for axis, (e, s) in enumerate(zip(x.shape[2:], size, strict=True), 1):
        order = list(range(rank + 1))
        order[0], order[axis] = axis, 0
        front = context.add(x, layers.PermuteLayer(tuple(order)), last=False)
        share = _shares(e, s, rank)
        means = context.layer(front, layers.ConvLayer(s, ones, ones, none, ones), {"w": share}, last=False)
        x = context.add(means, layers.PermuteLayer(tuple(order)), last=axis == rank)
    return x


def _shares(extent: int, size: int, rank: int) -> Constant:
    """What each position counts for in each window, as pointwise filters."""
    shape = (size, extent, *(1,) * rank)

    def compute(_: Values) -> torch.Tensor:
        shares = torch.zeros(size, extent, dtype=torch.float64)
        for i in range(size):
            begin, end = i * extent // size, -(-(i + 1) * extent // size)
            shares[i, begin:end] = 1 / (end - begin)
        return shares.reshape(shape)

    return Constant(compute, shape)


# ---- resizing


def _scaled(context: TorchCall) -> tuple[GraphTensor, Shape, list[float | None]]:
    """What is resized, to which extents, and what each axis is scaled by where that is not the quotient of lengths."""
    x = context.image("input" if "input" in context.arguments else "self")
    size = context.shape[2:]
    return x, size, [None if f is None else float(f) for f in context.argument("scale_factors") or [None] * len(size)]


def picking(extent: int, size: int, scale: float | None, exact: bool, rank: int, dtype: str) -> tuple[str, Line4]:
    """How `ooc.ops.resize` picks the sources that PyTorch does, along one of rank axes; exact: for "nearest-exact".

    PyTorch's positions are f32, but those of f64 tensors of one or three axes.
    """
    if rank == 2 and not exact and size in (extent, 2 * extent):
        scale = None  # it copies or repeats, whatever the scale
    shift = 0.5 if exact else 0.0
    if dtype == "f64" and rank != 2:
        return "prefer_ceil", (shift, float(extent), float(size), 0.5) if scale is None else (shift, 1.0, scale, 0.5)
    by = np.float32(extent) / np.float32(size) if scale is None else np.float32(1 / scale)
    return "floor", (shift, float(by), 1.0, 0.0)


def _picked(context: TorchCall, exact: bool) -> GraphTensor:
    """As a layer with a gradient where the lengths alone say what is picked; else by tables."""
    x, size, scales = _scaled(context)
    axes = list(zip(x.shape[2:], size, scales, strict=True))
    how, lines = zip(*(picking(e, s, f, exact, len(size), x.dtype) for e, s, f in axes), strict=True)
    tables = [table(how[0], e, s, line)[0] for (e, s, _), line in zip(axes, lines, strict=True)]
    if all(np.array_equal(have, np.arange(s) * e // s) for have, (e, s, _) in zip(tables, axes, strict=True)):
        return x if size == x.shape[2:] else context.add(x, layers.UpsampleLayer("nearest", size))
    return context.add(x, layers.ResizeLayer(how[0], size, tuple(v for line in lines for v in line)))


@operator("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
def upsample_nearest(context: TorchCall) -> GraphTensor:
    return _picked(context, exact=False)


@operator("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d")
def upsample_nearest_exact(context: TorchCall) -> GraphTensor:
    return _picked(context, exact=True)


@operator("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")
def upsample_linear(context: TorchCall) -> GraphTensor:
    """As a layer with a gradient where each extent is scaled by the quotient of lengths; else by tables."""
    x, size, scales = _scaled(context)
    extent, aligned = x.shape[2:], bool(context.argument("align_corners"))
    by = [s / e if f is None else f for f, s, e in zip(scales, size, extent, strict=True)]
    plain = aligned or all(abs(f * e - s) < 1e-9 for f, e, s in zip(by, extent, size, strict=True))
    if size == extent and plain:
        return x
    if plain:
        return context.add(x, layers.UpsampleLayer("aligned" if aligned else "linear", size))
    return resized(context, x, size, by, "linear", "half_pixel")


@operator("pixel_shuffle")
def pixel_shuffle(context: TorchCall) -> GraphTensor:
    return context.add(context.image(), layers.DepthToSpace(context.argument("upscale_factor"), "crd"))


@operator("pixel_unshuffle")
def pixel_unshuffle(context: TorchCall) -> GraphTensor:
    return positions_of_blocks(context, context.image(), context.argument("downscale_factor"), "crd")


# ---- cuts, joins, axes


@operator("cat", "concatenate")
def cat(context: TorchCall) -> GraphTensor:
    """Of tensors; what depends on parameters alone is the same for each sample."""
    xs = _tensors(context)
    return joined(context, xs, context.argument("dim") % len(xs[0].shape))


@operator("stack")
def stack(context: TorchCall) -> GraphTensor:
    xs = _tensors(context)
    return stacked(context, xs, context.argument("dim") % (len(xs[0].shape) + 1))


def _tensors(context: TorchCall) -> list[GraphTensor]:
    operands = context.argument("tensors")
    like = next(o for o in operands if isinstance(o, GraphTensor))
    return [as_tensor(context, o, like) for o in operands]


@operator("select")
def select(context: TorchCall) -> GraphTensor:
    x = context.tensor()
    return chosen(context, x, context.argument("dim") % len(x.shape), context.argument("index"))


@operator("index_select", "index")
def index(context: TorchCall) -> GraphTensor:
    """Places that are constants of the code, along one axis."""
    x = context.tensor()
    if "indices" in context.arguments:
        named = [(axis, one) for axis, one in enumerate(context.arguments["indices"]) if one is not None]
        if len(named) != 1:
            raise context.refuse("places along several axes at once")
        ((axis, places),) = named
    else:
        axis, places = context.argument("dim") % len(x.shape), context.arguments["index"]
    return picked(context, x, axis, context.places(places, x.shape[axis]))


@operator("unbind")
def unbind(context: TorchCall) -> list[GraphTensor]:
    x = context.tensor()
    axis = context.argument("dim") % len(x.shape)
    return [chosen(context, x, axis, i) for i in range(x.shape[axis])]


@operator("flip")
def flip(context: TorchCall) -> GraphTensor:
    x = context.tensor()
    for d in context.argument("dims"):
        x = picked(context, x, d % len(x.shape), range(x.shape[d])[::-1])
    return x


@operator("channel_shuffle")
def channel_shuffle(context: TorchCall) -> GraphTensor:
    return shuffled(context, context.tensor(), context.argument("groups"))


@operator("roll")
def roll(context: TorchCall) -> GraphTensor:
    x, dims = context.tensor(), context.argument("dims")
    if not dims:
        raise context.refuse("over all axes at once")
    for by, d in zip(context.argument("shifts"), dims, strict=True):
        x = rolled(context, x, d % len(x.shape), by)
    return x


@operator("repeat", "tile")
def repeat(context: TorchCall) -> GraphTensor:
    x, times = context.tensor(), context.argument("repeats" if "repeats" in context.arguments else "dims")
    if len(times) > len(x.shape):
        raise context.refuse("axes in front of the batch")
    return tiled(context, x, [1] * (len(x.shape) - len(times)) + list(times))


@operator("expand")
def expand(context: TorchCall) -> GraphTensor:
    x = context.tensor()
    if len(context.shape) != len(x.shape):
        raise context.refuse(f"from {x.shape} to {context.shape}: axes in front of the batch")
    return expanded(context, x, context.shape)


@operator("slice_scatter")
def slice_scatter(context: TorchCall) -> GraphTensor:
    """What is around a stretch of an axis, with something else in it."""
    x, source, axis = context.tensor(), context.operand("src"), context.argument("dim") % len(context.shape)
    begin, end, step = slice(*(context.argument(name) for name in ("start", "end", "step"))).indices(x.shape[axis])
    if step != 1 or axis == 0:
        raise context.refuse("in steps, or of samples")
    middle = as_tensor(context, source, x)
    ends = [cut(context, x, axis, lo, hi - lo, last=False) for lo, hi in ((0, begin), (end, x.shape[axis])) if lo < hi]
    order = [ends[0], middle, *ends[1:]] if begin else [middle, *ends]
    return joined(context, order, axis)


@operator(*(f"{how}_like" for how in ("zeros", "ones", "full")), *(f"new_{how}" for how in ("zeros", "ones", "full")))
def filled(context: TorchCall) -> Constant:
    """Numbers of whose tensor the size alone is looked at."""
    name = name_of(context.node)
    value = context.argument("fill_value") if "full" in name else float("ones" in name)
    if isinstance(value, (GraphTensor, Constant)):
        raise context.refuse("filled with a tensor")
    return context.site.full(float(value), context.shape)


@operator("_assert_tensor_metadata")
def nothing(context: TorchCall) -> None:
    """What exporters write before a conversion: it checks what is known."""


@operator("slice")
def slice_(context: TorchCall) -> GraphTensor:
    x = context.tensor()
    begin, end, step = (context.argument(name) for name in ("start", "end", "step"))
    return sliced(context, x, context.argument("dim") % len(x.shape), slice(begin, end, step))


@operator("narrow")
def narrow(context: TorchCall) -> GraphTensor:
    x = context.tensor()
    axis, begin = context.argument("dim") % len(x.shape), context.argument("start")
    if axis == 0:
        raise context.refuse("along the batch")
    return cut(context, x, axis, begin % x.shape[axis], context.argument("length"))


@operator("split", "split_with_sizes", "chunk")
def split_(context: TorchCall) -> list[GraphTensor]:
    x = context.tensor()
    axis = context.argument("dim") % len(x.shape)
    parts = context.node.meta["val"]
    return split(context, x, axis, [part.shape[axis] for part in parts])


@operator("constant_pad_nd")
def constant_pad(context: TorchCall) -> GraphTensor:
    return _padded(context, "constant", float(context.argument("value", 0)))


@operator("pad")
def pad(context: TorchCall) -> GraphTensor:
    mode = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}[context.argument("mode")]
    return _padded(context, mode, float(context.argument("value") or 0))


@operator(*(f"{how}_pad{rank}d" for how in ("reflection", "replication") for rank in (1, 2, 3)))
def pad_by(context: TorchCall) -> GraphTensor:
    return _padded(context, "reflect" if "reflection" in name_of(context.node) else "edge", 0.0)


def _padded(context: TorchCall, mode: str, fill: float) -> GraphTensor:
    x = context.tensor()
    pads = context.argument("padding" if "padding" in context.arguments else "pad")
    before, after = [0] * len(x.shape), [0] * len(x.shape)
    for i in range(0, len(pads), 2):  # from the last axis on
        before[-1 - i // 2], after[-1 - i // 2] = pads[i], pads[i + 1]
    return padded(context, x, before, after, mode, fill)


@operator("view", "reshape", "_unsafe_view", "flatten", "squeeze", "unsqueeze", "unflatten")
def view(context: TorchCall) -> GraphTensor:
    return reshaped(context, context.tensor(), context.shape)


@operator("permute", "transpose")
def permute(context: TorchCall) -> GraphTensor:
    x = context.tensor()
    if "transpose" in name_of(context.node):
        order = list(range(len(x.shape)))
        a, b = (context.argument(name) % len(order) for name in ("dim0", "dim1"))
        order[a], order[b] = order[b], order[a]
    else:
        order = [d % len(x.shape) for d in context.argument("dims")]
    if order[0] != 0:
        raise context.refuse(f"axes {order}: the batch moves")
    return permuted(context, x, tuple(i - 1 for i in order[1:]))


@operator("clone", "contiguous", "detach", "alias", "lift_fresh_copy", "_to_copy", "to", "dropout_", "type_as")
def same(context: TorchCall) -> GraphTensor | MovedStatistic:
    """What only says how values lie; running statistics become what the buffer is of anyway."""
    if isinstance(moved := context.argument("self"), MovedStatistic):
        return moved
    x = context.tensor()
    if name_of(context.node) == "detach" and not context.translator.fold:
        raise context.refuse("gradients that stop")
    target = context.node.meta["val"]
    if target.dtype is torch.bool:  # conditions are numbers, 1 and 0
        return binary(context, x, context.site.full(0), "not_equal")
    if tuple(target.shape) != x.shape or str(target.dtype).removeprefix("torch.") != {
        "f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16",
    }.get(x.dtype):  # fmt: skip
        raise context.refuse(f"from {x.shape}, {x.dtype} to {tuple(target.shape)}, {target.dtype}")
    return x

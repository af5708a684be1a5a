"""Windows in exported programs: pooling, unfolding, resizing."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from ooc.networks import layers
from ooc.ops.resize import Line4, table
from ooc.torch.translator import TorchCall, name_of, operator
from ooc.translate.along import uneven_maxima
from ooc.translate.building import GraphTensor, Shape
from ooc.translate.elementwise import affine
from ooc.translate.parts import MaximaPlaces, Pads, average, ceiled, folded, joined, maximum, positions_of_blocks, resized
from ooc.translate.resampling import Sources, averaged, interpolated, resampled, smoothed
from ooc.translate.views import permuted, reshaped

# ---- windows


def windows(context: TorchCall, x: GraphTensor) -> tuple[Shape, Shape, Pads, bool]:
    """Window, stride, padding, and whether the number of windows is rounded up."""
    rank = len(x.shape) - 2
    taps = context.per_axis("kernel_size", rank)
    stride = context.per_axis("stride", rank) if context.argument("stride") else taps
    return taps, stride, tuple((p, p) for p in context.per_axis("padding", rank)), bool(context.argument("ceil_mode"))


@operator("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool(context: TorchCall) -> Any:
    x = context.image()
    taps, stride, pads, ceil = windows(context, x)
    dilation = context.per_axis("dilation", len(x.shape) - 2, 1)
    y = maximum(context, x, taps, stride, pads, ceil, dilation)
    if "indices" not in name_of(context.node):
        return y
    plain = not ceil and set(dilation) == {1}
    return [y, MaximaPlaces(x, taps, stride, pads)] if plain else [y]


@operator("max_unpool2d", "max_unpool3d")
def max_unpool(context: TorchCall) -> GraphTensor:
    values, places = context.tensor(), context.argument("indices")
    if not isinstance(places, MaximaPlaces):
        raise context.refuse("places that no pooling of the network has made")
    return places.unpooled(context, values, tuple(context.argument("output_size")))


@operator("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(context: TorchCall) -> GraphTensor:
    x = context.image()
    taps, stride, pads, ceil = windows(context, x)
    divisor = context.argument("divisor_override")
    if divisor is None:
        return average(context, x, taps, stride, pads, ceil, bool(context.argument("count_include_pad")))
    wide = ceiled(x.shape[2:], taps, stride, pads) if ceil else pads
    mean = context.add(x, layers.PoolLayer("average", taps, stride, wide), last=False)
    return affine(context, mean, "scale", context.site.full(math.prod(taps) / divisor))


@operator(
    *(f"adaptive_{how}_pool{rank}d" for how in ("avg", "max") for rank in (1, 2, 3)), *(f"_adaptive_avg_pool{r}d" for r in (2, 3))
)
def adaptive_pool(context: TorchCall) -> Any:
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
        y = resampled(context, x, [averaged(e, s) for e, s in zip(extent, size, strict=True)])
    else:
        y = uneven_maxima(context, x, size)
    return [y] if how == "max" else y


# ---- windows as channels


@operator("im2col")
def unfold(context: TorchCall) -> GraphTensor:
    """What each place of the window sees, as channels of the positions."""
    x, taps, dilation, stride, size = _unfolding(context)
    pads, (n, c, *extent) = context.per_axis("padding", 2), x.shape
    steps = max(stride) > 1
    if steps and any(pads):
        x = context.add(x, layers.Laid((0, *pads), (c, *(e + 2 * p for e, p in zip(extent, pads, strict=True)))), last=False)
    shifted = []
    for place in itertools.product(*map(range, taps)):
        begins = [at * by for at, by in zip(place, dilation, strict=True)]
        if steps:
            lines = ((0.0, float(step), 1.0, -float(begin)) for step, begin in zip(stride, begins, strict=True))
            layer: layers.Layer = layers.ResizeLayer("floor", size, tuple(itertools.chain(*lines)))
        else:
            layer = layers.Laid((0, *(pad - begin for pad, begin in zip(pads, begins, strict=True))), (c, *size))
        shifted.append(context.add(x, layer, last=False))
    places = reshaped(context, joined(context, shifted, 1, last=False), (n, len(shifted), c, math.prod(size)), last=False)
    return reshaped(context, permuted(context, places, (0, 2, 1, 3), last=False), context.shape)


@operator("col2im")
def fold(context: TorchCall) -> GraphTensor:
    extent, taps, stride, pads, dilation = (
        context.per_axis(name, 2) for name in ("output_size", "kernel_size", "stride", "padding", "dilation")
    )
    return folded(context, context.tensor(), extent, taps, stride, tuple((p, p) for p in pads), dilation)


def _unfolding(context: TorchCall) -> tuple[GraphTensor, Shape, Shape, Shape, Shape]:
    """What is cut in windows: the taps, dilation and stride of these, and how many there are along each axis."""
    x = context.image()
    names = ("kernel_size", "dilation", "stride", "padding")
    taps, dilation, stride, pads = (context.per_axis(name, 2) for name in names)
    axes = zip(x.shape[2:], taps, dilation, stride, pads, strict=True)
    return x, taps, dilation, stride, tuple((e + 2 * p - d * (t - 1) - 1) // s + 1 for e, t, d, s, p in axes)


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


@operator("upsample_bicubic2d")
def upsample_cubic(context: TorchCall) -> GraphTensor:
    x, size, scales = _scaled(context)
    aligned, axes = bool(context.argument("align_corners")), list[Sources]()
    for extent, made, scale in zip(x.shape[2:], size, scales, strict=True):
        at = np.arange(made)
        by = extent / made if scale is None else 1 / scale
        positions = at * ((extent - 1) / max(made - 1, 1)) if aligned else (at + 0.5) * by - 0.5
        axes.append(interpolated(positions, extent, "cubic"))
    return resampled(context, x, axes)


@operator("_upsample_bicubic2d_aa", "_upsample_bilinear2d_aa")
def upsample_smoothed(context: TorchCall) -> GraphTensor:
    x, size, scales = _scaled(context)
    how, aligned = "cubic" if "cubic" in name_of(context.node) else "linear", bool(context.argument("align_corners"))
    axes = list[Sources]()
    for extent, made, scale in zip(x.shape[2:], size, scales, strict=True):
        by = (extent - 1) / max(made - 1, 1) if aligned else extent / made if scale is None else 1 / scale
        axes.append(smoothed(extent, made, by, how))
    return resampled(context, x, axes)


@operator("pixel_shuffle")
def pixel_shuffle(context: TorchCall) -> GraphTensor:
    return context.add(context.image(), layers.DepthToSpace(context.argument("upscale_factor"), "crd"))


@operator("pixel_unshuffle")
def pixel_unshuffle(context: TorchCall) -> GraphTensor:
    return positions_of_blocks(context, context.image(), context.argument("downscale_factor"), "crd")

"""Local normalisation, softmax and loss, sums, dropout, joining, resizing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from ooc.api.arguments import (
    Array,
    PerAxis,
    along,
    as_array,
    as_float,
    as_int,
    as_spatial,
    channels_first,
    check_layout,
    check_out,
    computed,
    per_axis,
)
from ooc.api.dispatch import Output, compute, spatial_result
from ooc.api.foreign import empty_beside
from ooc.api.layers import Activation, act_of
from ooc.api.options import ArrayLike, BlendOptions, ConvertOptions, ImageOptions, LayoutOptions, RunOptions, documented
from ooc.errors import ArgumentError, DtypeError, ShapeError
from ooc.ir.op import integer_name, numpy_dtype
from ooc.ops import (
    Dropout,
    LrnBackward,
    LrnForward,
    Pointwise,
    Upsample,
    UpsampleBackward,
)  # fmt: skip
from ooc.ops.registry import IN
from ooc.ops.resample import KINDS as RESIZINGS
from ooc.runtime.aliasing import overlap
from ooc.runtime.call_options import flag


@documented
def lrn(
    x: ArrayLike, size: int = 5, alpha: float = 1e-4, beta: float = 0.75, base: float = 2.0, *, before: int | None = None,
    layout: str = "channels_first", out: ArrayLike | None = None, blend: tuple[float, float] = (1.0, 0.0),
    **options: Unpack[ConvertOptions],
) -> Array:  # fmt: skip
    """y = x / (base + alpha/size * (sum of x**2 over a window of channels))**beta: local response normalisation.

    The window of channel i holds channels i - before to i - before + size - 1, those that exist.

    <arrays>

    Parameters:
        x: n x k x spatial.
        size: channels in a window, at least 1; default 5.
        alpha: factor of the mean square, not the `alpha` of other calls; default 1e-4.
        beta: exponent, not the `beta` of other calls; default 0.75.
        base: what is added to the mean square, cuDNN's k; default 2.0.
        before: channels of the window before its own, from 0 to size - 1; default None: (size - 1) // 2, as in cuDNN.
        <layout, conversion, out>
        blend: a pair, the `alpha` and `beta` of other calls: the result is blend[0] * y + blend[1] * (what out holds before);
            default (1.0, 0.0); blend[1] other than 0 needs out.
        <run>

    Returns:
        y: like x, <beside x>

    Raises:
        <errors, before>

    Source: cudnnLRNCrossChannelForward; Krizhevsky, Sutskever, Hinton, "ImageNet classification with deep convolutional
    neural networks", 2012.
    """
    return _lrn(LrnForward, {"x": x}, size, alpha, beta, base, before, layout, out, blend, options)


@documented
def lrn_backward(
    x: ArrayLike, dy: ArrayLike, size: int = 5, alpha: float = 1e-4, beta: float = 0.75, base: float = 2.0, *,
    before: int | None = None, layout: str = "channels_first", out: ArrayLike | None = None,
    blend: tuple[float, float] = (1.0, 0.0), **options: Unpack[RunOptions],
) -> Array:  # fmt: skip
    """dx = dy / s**beta - 2 * alpha * beta/size * x * (sum of dy * x / s**(beta + 1) over windows that hold the channel),
    where s = base + alpha/size * (sum of x**2 over a window): the gradient of `ooc.lrn`'s x.

    <arrays>

    Parameters:
        x: n x k x spatial, the forward call's.
        dy: like x, the gradient of the result.
        size: channels in a window, at least 1; default 5.
        alpha: factor of the mean square, not the `alpha` of other calls; default 1e-4.
        beta: exponent, not the `beta` of other calls; default 0.75.
        base: what is added to the mean square, cuDNN's k; default 2.0.
        before: channels of the window before its own, from 0 to size - 1; default None: (size - 1) // 2, as in cuDNN.
        <layout, out>
        blend: a pair, the `alpha` and `beta` of other calls: the result is blend[0] * dx + blend[1] * (what out holds before);
            default (1.0, 0.0); blend[1] other than 0 needs out.
        <run>

    Returns:
        dx: like x, <beside x>

    Raises:
        <errors, before>

    Source: cudnnLRNCrossChannelBackward.
    """
    return _lrn(LrnBackward, {"x": x, "dy": dy}, size, alpha, beta, base, before, layout, out, blend, options)


def _lrn(
    kind: Any, inputs: dict[str, Array], size: int, alpha: float, beta: float, base: float, before: int | None, layout: str,
    out: Array | None, blend: tuple[float, float], options: Mapping[str, Any],
) -> Array:  # fmt: skip
    check_layout(layout)
    views = {name: channels_first(as_array(name, a), layout, name) for name, a in inputs.items()}
    n, k, *extent = views["x"].shape
    if not isinstance(blend, (tuple, list)) or len(blend) != 2:
        raise ArgumentError(f"blend: expected two numbers, alpha and beta, got {blend!r}")
    size = as_int("size", size)
    start = (size - 1) // 2 if before is None else as_int("before", before)
    blend = as_float("blend", blend[0]), as_float("blend", blend[1])
    numbers = (as_float("alpha", alpha), as_float("beta", beta), as_float("base", base))
    op = kind(n, k, tuple(extent), size, start, *numbers, computed(*(a.dtype for a in views.values())), layout)
    image = "x" if kind is LrnForward else ""
    return compute(op, views, [spatial_result(op.outputs[0], layout, out)], *blend, image=image, **options)[0]


@documented
def dropout(
    x: ArrayLike, rate: float = 0.5, seed: int = 0, *, out: ArrayLike | None = None, **options: Unpack[LayoutOptions]
) -> Array:
    """y = x / (1 - rate) where an element is kept, 0 where it is dropped.

    What is dropped depends on the seed and the element's row-major index in x alone, never on the tiling. Applied to dy with
    the same seed and rate, it is its own gradient.

    <arrays>

    Parameters:
        x: any shape; more than five axes must be contiguous enough to be seen as five.
        rate: the probability of being dropped, 0 <= rate < 1; default 0.5.
        seed: an int of 64 bits, not negative; default 0.
        out: an array of the shape and dtype of x to write to; x itself for example; default None: a new one.
        <blend, any layout, run>

    Returns:
        y: like x, <beside x>

    Raises:
        <errors, before>

    Source: cudnnDropoutForward, cudnnDropoutBackward; Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as
    1, 2, 3", SC 2011 (Philox 4x32-10).
    """
    x = as_array("x", x)
    x, see, sizes = along("dropout", x, min(1, len(x.shape) - 1))
    options.pop("layout", None)  # the same for every layout
    op = Dropout(**{k: v for k, v in sizes.items() if k != "dtype"}, rate=as_float("rate", rate), seed=as_int("seed", seed, 64),
                 dtype=sizes["dtype"])  # fmt: skip
    return compute(op, {"x": see(x)}, [Output("y", x.shape, see, out)], **options)[0]


@documented
def add(
    x: ArrayLike, z: ArrayLike, *, scale: tuple[float, float] = (1.0, 1.0), activation: str | Activation | None = None,
    out: ArrayLike | None = None, **options: Unpack[LayoutOptions],
) -> Array:  # fmt: skip
    """y = activation(scale[0] * x + scale[1] * z); each axis of z is x's, or 1 and repeated.

    <arrays>

    Parameters:
        x: any shape of at most five axes.
        z: as many axes as x, each of x's extent or 1.
        scale: a pair of numbers, the factors of x and z (of integers too); default (1.0, 1.0).
        <activation>
        out: an array of the shape and dtype of x to write to; x itself, or a z of x's shape for example; default None: a new
            one.
        <blend, any layout, run>

    Returns:
        y: like x, <beside x>

    Raises:
        <errors, before>

    Source: cudnnAddTensor, cudnnOpTensor.
    """
    x, z = as_array("x", x), as_array("z", z)
    dtype = computed(x.dtype, z.dtype)
    if any(a.dtype != numpy_dtype(dtype) and integer_name(a.dtype) is None for a in (x, z)):
        raise DtypeError(f"add: z is {z.dtype} but x is {x.dtype}; convert one of them")
    if len(z.shape) != len(x.shape) or any(b not in (1, a) for a, b in zip(x.shape, z.shape, strict=True)) or len(x.shape) > 5:
        raise ShapeError(f"add: z of shape {z.shape} does not broadcast to x of shape {x.shape} (at most 5 axes)")
    view, other = as_spatial(x), as_spatial(z)
    n, k, *extent = view.shape
    letters = ("n", "k", *IN[len(extent)])
    mask = "".join(d for d, a, b in zip(letters, view.shape, other.shape, strict=True) if a == b) or "1"
    act, coef = act_of(activation)
    options.pop("layout", None)  # the same for every layout
    if not isinstance(scale, (tuple, list)) or len(scale) != 2:
        raise ArgumentError(f"add: scale: expected two numbers, got {scale!r}")
    one, other_one = (as_float("scale", s) for s in scale)
    op = Pointwise(n, k, tuple(extent), False, act, coef, one, other_one, mask, dtype=dtype)
    return compute(op, {"x": view, "z": other}, [Output("y", x.shape, as_spatial, out)], **options)[0]


@documented
def scale(x: ArrayLike, factor: float, *, out: ArrayLike | None = None, **options: Unpack[LayoutOptions]) -> Array:
    """y = factor * x.

    <arrays>

    Parameters:
        x: any shape; more than five axes must be contiguous enough to be seen as five.
        factor: a number.
        out: an array of the shape and dtype of x to write to; x itself for example; default None: a new one.
        <blend, any layout, run>

    Returns:
        y: like x, <beside x>

    Raises:
        <errors, before>

    Source: cudnnScaleTensor.
    """
    return _scaled("scale", x, as_float("factor", factor), "", out, options)


def _scaled(what: str, x: Array, factor: float, dtype: str, out: Array | None, options: Mapping[str, Any]) -> Array:
    """factor * x in a dtype, or that of x."""
    x = as_array("x", x)
    x, see, sizes = along(what, x, min(1, x.ndim - 1))
    left = {name: value for name, value in options.items() if name != "layout"}  # the same for every layout
    op = Pointwise(sizes["n"], sizes["k"], sizes["extent"], alpha=factor, dtype=dtype or sizes["dtype"])
    return compute(op, {"x": see(x)}, [Output("y", x.shape, see, out)], **left)[0]


@documented
def concat(
    arrays: Sequence[ArrayLike], axis: int = 1, *, out: ArrayLike | None = None, **options: Unpack[LayoutOptions]
) -> Array:
    """y = arrays joined along an axis: each is streamed into its part of the result, one after the other.

    To save the copy, give the producing calls slices of the result as their out.

    <arrays>

    Parameters:
        arrays: a sequence of at least one, of the same shape but for this axis, none empty. Integers pass through the floating
            dtype, int32 through float32 exactly up to 2**24.
        axis: an int, negative ones from the end; default 1, the channels of channels_first.
        <out, blend, any layout, run>
            Bar, callbacks and trace begin anew with each array; the trace that stays is that of the last one.

    Returns:
        y: the joined array, <beside the first>

    Raises:
        <errors>
        What the arguments cause is raised before anything is written.

    Source: not in cuDNN; each part is cudnnTransformTensor.
    """
    if not isinstance(arrays, (list, tuple)):
        raise ArgumentError(f"arrays: expected a list of arrays, got {type(arrays).__name__}")
    parts = [as_array(f"arrays[{i}]", a) for i, a in enumerate(arrays)]
    if not parts or not -parts[0].ndim <= as_int("axis", axis) < parts[0].ndim:
        raise ShapeError(f"concat: arrays: expected at least one array, and one of its axes; got {len(parts)} and axis {axis}")
    first, axis = parts[0], axis % parts[0].ndim
    if len({a.dtype for a in parts if integer_name(a.dtype) is None}) > 1:
        raise DtypeError(f"concat: dtypes differ: {', '.join(str(a.dtype) for a in parts)}; convert them to one")
    if len({(a.ndim, a.shape[:axis], a.shape[axis + 1 :]) for a in parts}) > 1 or not all(a.size for a in parts):
        raise ShapeError(f"concat: shapes {[a.shape for a in parts]} differ beyond axis {axis}, or one is empty")
    shape = (*first.shape[:axis], sum(a.shape[axis] for a in parts), *first.shape[axis + 1 :])
    if out is None and as_float("beta", options.get("beta", 0.0)):
        raise ArgumentError("concat: beta adds to an existing output; pass it as out=")
    dtype = computed(*(a.dtype for a in parts))
    joined = empty_beside(first, shape, numpy_dtype(dtype)) if out is None else out
    result = check_out(joined, shape, numpy_dtype(dtype))
    if any(overlap(result, part) for part in parts):
        raise ArgumentError("concat: out overlaps one of the arrays; pass an output of its own")
    at = 0
    for part in parts:
        index = (*(slice(None),) * axis, slice(at, at + part.shape[axis]))
        _scaled("concat", part, 1.0, dtype, result[index], options)
        at += part.shape[axis]
    return joined


@documented
def upsample(
    x: ArrayLike, size: PerAxis, mode: str = "nearest", *, align_corners: bool = False, layout: str = "channels_first",
    out: ArrayLike | None = None, **options: Unpack[ImageOptions],
) -> Array:  # fmt: skip
    """y = x with its spatial axes resized, larger or smaller.

    nearest: result i is x[floor(i * w / size)]. linear: interpolated between the two nearest, the centres of pixels matched.

    <arrays>

    Parameters:
        x: n x k x spatial.
        size: extents of the result's spatial axes; an int, or one per axis; at least 1.
        mode: "nearest" (default) or "linear" (along each spatial axis in turn: bilinear, trilinear).
        align_corners: True matches the centres of the corners instead, with "linear" only; default False.
        <layout, conversion, out, blend, run>

    Returns:
        y: n x k x size, <beside x>

    Raises:
        <errors, before>

    Source: not in cuDNN; ooc/ops/resample.py.
    """
    check_layout(layout)
    view = channels_first(as_array("x", x), layout, "x")
    n, k, *extent = view.shape
    sizes = per_axis("size", size, len(extent))
    op = Upsample(_resizing(mode, align_corners), n, k, tuple(extent), sizes, computed(view.dtype), layout)
    return compute(op, {"x": view}, [spatial_result(op.outputs[0], layout, out)], image="x", **options)[0]


@documented
def upsample_backward(
    dy: ArrayLike, extent: PerAxis, mode: str = "nearest", *, align_corners: bool = False, layout: str = "channels_first",
    out: ArrayLike | None = None, **options: Unpack[BlendOptions],
) -> Array:  # fmt: skip
    """dx = the gradient of `ooc.upsample`'s x: each dy goes to the positions its result was made of, by their weights.

    <arrays>

    Parameters:
        dy: n x k x size, the gradient of the result.
        extent: extents of the forward call's x; an int, or one per spatial axis; at least 1.
        mode: as in the forward call: "nearest" (default) or "linear".
        align_corners: as in the forward call; default False.
        <layout, out, blend, run>

    Returns:
        dx: n x k x extent, <beside dy>

    Raises:
        <errors, before>

    Source: not in cuDNN; ooc/ops/resample.py.
    """
    check_layout(layout)
    view = channels_first(as_array("dy", dy), layout, "dy")
    n, k, *sizes = view.shape
    extents = per_axis("extent", extent, len(sizes))
    op = UpsampleBackward(_resizing(mode, align_corners), n, k, extents, tuple(sizes), computed(view.dtype), layout)
    return compute(op, {"dy": view}, [spatial_result(op.outputs[0], layout, out)], **options)[0]


def _resizing(mode: str, align_corners: bool) -> str:
    flag("align_corners", align_corners)
    if not isinstance(mode, str) or mode not in ("nearest", "linear") or (align_corners and mode != "linear"):
        raise ArgumentError(f"upsample: mode: expected nearest or linear (align_corners with linear only); got {mode!r}")
    assert set(RESIZINGS) == {"nearest", "linear", "aligned"}
    return "aligned" if align_corners else mode

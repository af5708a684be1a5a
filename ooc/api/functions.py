"""Local normalisation, softmax and loss, sums, dropout, joining, resizing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ooc.api.arguments import (
    Array,
    PerAxis,
    as_array,
    as_float,
    as_int,
    as_spatial,
    channels_first,
    check_layout,
    check_out,
    on_host,
    per_axis,
)
from ooc.api.dispatch import Result, compute, plain_result, spatial_result
from ooc.api.foreign import empty_beside, known
from ooc.api.layers import Activation, act_of
from ooc.api.options import documented
from ooc.errors import DtypeError, ShapeError
from ooc.ir.bounds import Node
from ooc.ir.fused import Fused
from ooc.ir.op import Operand, dtype_name, numpy_dtype
from ooc.ops import (
    CrossEntropy,
    CrossEntropyBackward,
    Dropout,
    LrnBackward,
    LrnForward,
    Pointwise,
    SoftmaxApply,
    SoftmaxDot,
    SoftmaxPull,
    SoftmaxSum,
    Upsample,
    UpsampleBackward,
)  # fmt: skip
from ooc.ops.registry import IN
from ooc.ops.resample import KINDS as RESIZINGS
from ooc.runtime.aliasing import overlap


@documented
def softmax(x: Array, axis: int = 1, *, log: bool = False, out: Array | None = None, **options: Any) -> Array:
    """y = exp(x) / (sum of exp(x) along an axis), or its logarithm; never overflows.

    An axis that does not fit the budget is folded: x is then read twice.

    <arrays>

    Parameters:
        x: any shape; more than five axes must be contiguous enough to be seen as five.
        axis: the axis that is summed over, an int, negative ones from the end; default 1.
        log: True gives x - log(sum of exp(x)); default False.
        out: an array of the shape and dtype of x to write to; x itself for example; default None: a new one.
        <blend, run>

    Returns:
        y: like x, <beside x>

    Raises:
        <errors, before>

    Source: cudnnSoftmaxForward; the fold is that of Milakov, Gimelshein, "Online normalizer calculation for softmax", 2018.
    """
    x, see, sizes = _along("softmax", x, axis)
    how = "log" if log else "plain"
    nodes = (Node(SoftmaxSum(**sizes), ("x",), ("lse",)), Node(SoftmaxApply(how, **sizes), ("x", "lse"), ("y",)))
    return _in_halves(nodes, {"x": see(x)}, Result("y", x.shape, see, out), options)


@documented
def softmax_backward(y: Array, dy: Array, axis: int = 1, *, log: bool = False, out: Array | None = None, **options: Any) -> Array:
    """dx = y * (dy - sum of y * dy along an axis), of the logarithm dy - exp(y) * (sum of dy): the gradient of `ooc.softmax`'s x.

    <arrays>

    Parameters:
        y: the result of `ooc.softmax`, any shape; more than five axes must be contiguous enough to be seen as five.
        dy: like y, the gradient of the result.
        axis: as in the forward call; default 1.
        log: as in the forward call; default False.
        out: an array of the shape and dtype of y to write to, y or dy itself for example; default None: a new one.
        <blend, run>

    Returns:
        dx: like y, <beside dy>

    Raises:
        <errors, before>

    Source: cudnnSoftmaxBackward.
    """
    y, see, sizes = _along("softmax_backward", y, axis)
    dot = SoftmaxDot("sum" if log else "dot", **sizes)
    pull = SoftmaxPull("log" if log else "plain", **sizes)
    nodes = (Node(dot, tuple(o.name for o in dot.inputs), ("s",)), Node(pull, ("y", "dy", "s"), ("dx",)))
    inputs = {"y": see(y), "dy": see(as_array("dy", dy))}
    return _in_halves(nodes, inputs, Result("dx", y.shape, see, out), options)


def _in_halves(nodes: tuple[Node, Node], inputs: dict[str, Array], result: Result, options: dict[str, Any]) -> Array:
    """The two halves of a softmax, fused; one after the other where the result is to overwrite what both read."""
    first, second = (node.op for node in nodes)
    if result.out is None or not _overwritten(second.outputs[0], result, inputs.values()):
        return compute(Fused(nodes, (result.tensor,)), inputs, [result], **options)[0]
    (summary,) = first.outputs
    how = {name: value for name, value in options.items() if name not in ("alpha", "beta")}
    sums = np.empty(summary.shape, numpy_dtype(summary.dtype))
    compute(first, inputs, [plain_result(summary, sums)], **how)
    read = dict(zip(nodes[1].reads, (o.name for o in second.inputs), strict=True))
    given = {read[name]: array for name, array in {**inputs, nodes[0].makes[0]: sums}.items()}
    return compute(second, given, [result], **options)[0]


def _overwritten(operand: Operand, result: Result, inputs: Iterable[Array]) -> bool:
    """Whether the result is to lie where one of the inputs does. Raises ShapeError, DtypeError for an unfit out."""
    seen = result.see(check_out(result.out, result.shape, numpy_dtype(operand.dtype)))
    return any(overlap(array, seen) for array in inputs)


def _along(what: str, x: Array, axis: int) -> tuple[Array, Any, dict[str, Any]]:
    """An array, how it is seen with an axis as its channels, and the sizes of ops on it."""
    x = as_array("x", x)
    if not x.ndim and axis == -1:
        return x, as_spatial, {"n": 1, "k": 1, "extent": (1,), "dtype": dtype_name(x.dtype)}
    axis = as_int("axis", axis)
    if not -x.ndim <= axis < x.ndim or not x.size:
        raise ShapeError(f"{what}: axis {axis} of an array of shape {x.shape}: expected an axis of a non-empty array")
    see = partial(as_spatial, axis=axis % x.ndim)
    n, k, *extent = see(x).shape
    return x, see, {"n": n, "k": k, "extent": tuple(extent), "dtype": dtype_name(x.dtype)}


@documented
def cross_entropy(x: Array, labels: Array, *, reduction: str = "mean", **options: Any) -> Any:
    """loss = log(sum over k of exp(x)) - x[label] at each position, reduced: the cross-entropy of logits and integer labels.

    <arrays>

    Parameters:
        x: n x k, or n x k x spatial (channels first): logits.
        labels: n, or n x spatial: integers of any width, less than k; a negative one leaves its position out. Read whole.
        reduction: "mean" (default: over the positions with a label), "sum", or "none".
        <run>

    Returns:
        loss: a float (nan for a mean over no position); with "none" a NumPy array like labels of float32 (float64 for
            float64), 0 where the label is negative.

    Raises:
        <errors>
        ShapeError: also for alpha or beta, which it does not take.

    Source: not in cuDNN; log(sum of exp) is the fold of `ooc.softmax`.
    """
    x = as_array("x", x)
    if {"alpha", "beta"} & set(options):
        raise ShapeError("cross_entropy: takes no alpha and beta; scale the loss it returns")
    count = _counted(reduction, labels)
    op, inputs, seen = _labelled(CrossEntropy, x, labels)
    loss = np.empty(seen, np.float64 if x.dtype == np.float64 else np.float32)
    compute(op, inputs, [Result("loss", loss.shape, as_spatial, loss)], **options)
    if reduction == "none":
        return loss.reshape(np.shape(labels))
    return float(loss.sum(dtype=np.float64) / count) if count else float("nan")


@documented
def cross_entropy_backward(
    x: Array, labels: Array, dloss: Any = 1.0, *, reduction: str = "mean", out: Array | None = None, **options: Any
) -> Array:
    """dx = (softmax(x) - onehot(label)) * dloss, 0 where the label is negative: the gradient of `ooc.cross_entropy`'s x.

    <arrays>

    Parameters:
        x: n x k, or n x k x spatial (channels first): logits.
        labels: n, or n x spatial: integers of any width, less than k; a negative one leaves its position out. Read whole.
        dloss: the gradient of the loss: a number, or an array like labels; default 1.0. Read whole.
        reduction: as in the forward call: "mean" (default) divides dloss by the number of positions with a label, "sum" and
            "none" do not.
        <out, blend, run>

    Returns:
        dx: like x, <beside x>

    Raises:
        <errors, before>

    Source: not in cuDNN; with the sums of `ooc.softmax`.
    """
    x = as_array("x", x)
    op, inputs, seen = _labelled(CrossEntropyBackward, x, labels)
    wide = np.float64 if x.dtype == np.float64 else np.float32
    try:
        each: Any = np.asarray(on_host(known("dloss", dloss)), wide)
    except (TypeError, ValueError):
        raise ShapeError(f"cross_entropy_backward: dloss: expected numbers, got {dloss!r}") from None
    if each.ndim and each.shape != np.shape(labels):
        raise ShapeError(f"cross_entropy_backward: dloss must be a number or of the shape of labels, got shape {each.shape}")
    each = (each.reshape(seen) if each.ndim else each) / (1 if reduction == "none" else max(1, _counted(reduction, labels)))
    inputs["dloss"] = np.ascontiguousarray(np.broadcast_to(each, seen), wide)
    return compute(op, inputs, [Result("dx", x.shape, as_spatial, out)], **options)[0]


def _counted(reduction: str, labels: Array) -> int:
    if reduction not in ("mean", "sum", "none"):
        raise ShapeError(f"cross_entropy: reduction: expected mean, sum or none; got {reduction!r}")
    return int(np.count_nonzero(on_host(known("labels", labels)) >= 0)) if reduction == "mean" else 1


def _labelled(kind: Any, x: Array, labels: Array) -> tuple[Fused, dict[str, Array], tuple[int, ...]]:
    x, labels = as_array("x", x), on_host(known("labels", labels))
    if x.ndim not in (2, 3, 4, 5) or labels.shape != (x.shape[0], *x.shape[2:]):
        raise ShapeError(f"cross_entropy: labels of shape {labels.shape} do not fit x of shape {x.shape}")
    if labels.dtype.kind not in "iu":
        raise DtypeError(f"cross_entropy: labels must be integers, got {labels.dtype}")
    if labels.size and int(labels.max()) >= x.shape[1]:
        raise ShapeError(f"cross_entropy: label {int(labels.max())}: expected less than {x.shape[1]}, or negative to ignore")
    seen = as_spatial(x)
    n, k, *extent = seen.shape
    sizes = {"n": n, "k": k, "extent": tuple(extent), "dtype": dtype_name(x.dtype)}
    op = kind(**sizes)
    nodes = (Node(SoftmaxSum(**sizes), ("x",), ("lse",)), Node(op, tuple(o.name for o in op.inputs), (op.outputs[0].name,)))
    shape = (n, 1, *extent)
    wide = labels if labels.dtype == np.int64 else labels.astype(np.int64)
    return Fused(nodes, (op.outputs[0].name,)), {"x": seen, "labels": wide.reshape(shape)}, shape


@documented
def lrn(
    x: Array, size: int = 5, alpha: float = 1e-4, beta: float = 0.75, base: float = 2.0, *, before: int | None = None,
    layout: str = "channels_first", out: Array | None = None, blend: tuple[float, float] = (1.0, 0.0), **options: Any,
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
        <layout, out>
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
    x: Array, dy: Array, size: int = 5, alpha: float = 1e-4, beta: float = 0.75, base: float = 2.0, *,
    before: int | None = None, layout: str = "channels_first", out: Array | None = None,
    blend: tuple[float, float] = (1.0, 0.0), **options: Any,
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
    out: Array | None, blend: tuple[float, float], options: dict[str, Any],
) -> Array:  # fmt: skip
    check_layout(layout)
    seen = {name: channels_first(as_array(name, a), layout) for name, a in inputs.items()}
    n, k, *extent = seen["x"].shape
    start = (as_int("size", size) - 1) // 2 if before is None else as_int("before", before)
    numbers = (as_float("alpha", alpha), as_float("beta", beta), as_float("base", base))
    op = kind(n, k, tuple(extent), size, start, *numbers, dtype_name(seen["x"].dtype), layout)
    return compute(op, seen, [spatial_result(op.outputs[0], layout, out)], *blend, **options)[0]


@documented
def dropout(x: Array, rate: float = 0.5, seed: int = 0, *, out: Array | None = None, **options: Any) -> Array:
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
    x, see, sizes = _along("dropout", x, min(1, np.ndim(x) - 1))
    options.pop("layout", None)  # the same for every layout
    op = Dropout(**{k: v for k, v in sizes.items() if k != "dtype"}, rate=as_float("rate", rate), seed=as_int("seed", seed),
                 dtype=sizes["dtype"])  # fmt: skip
    return compute(op, {"x": see(x)}, [Result("y", x.shape, see, out)], **options)[0]


@documented
def add(
    x: Array, z: Array, *, scale: tuple[float, float] = (1.0, 1.0), activation: str | Activation | None = None,
    out: Array | None = None, **options: Any,
) -> Array:  # fmt: skip
    """y = activation(scale[0] * x + scale[1] * z); each axis of z is x's, or 1 and repeated.

    <arrays>

    Parameters:
        x: any shape of at most five axes.
        z: as many axes as x, each of x's extent or 1.
        scale: a pair of numbers, the factors of x and z; default (1.0, 1.0).
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
    if z.dtype != x.dtype:
        raise DtypeError(f"add: z is {z.dtype} but x is {x.dtype}; convert one of them")
    if z.ndim != x.ndim or any(b not in (1, a) for a, b in zip(x.shape, z.shape, strict=True)) or x.ndim > 5:
        raise ShapeError(f"add: z of shape {z.shape} does not broadcast to x of shape {x.shape} (at most 5 axes)")
    seen, other = as_spatial(x), as_spatial(z)
    n, k, *extent = seen.shape
    letters = ("n", "k", *IN[len(extent)])
    mask = "".join(d for d, a, b in zip(letters, seen.shape, other.shape, strict=True) if a == b) or "1"
    act, coef = act_of(activation)
    options.pop("layout", None)  # the same for every layout
    if not isinstance(scale, (tuple, list)) or len(scale) != 2:
        raise ShapeError(f"add: scale: expected two numbers, got {scale!r}")
    one, other_one = (as_float("scale", s) for s in scale)
    op = Pointwise(n, k, tuple(extent), False, act, coef, one, other_one, mask, dtype=dtype_name(x.dtype))
    return compute(op, {"x": seen, "z": other}, [Result("y", x.shape, as_spatial, out)], **options)[0]


@documented
def scale(x: Array, factor: float, *, out: Array | None = None, **options: Any) -> Array:
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
    x, see, sizes = _along("scale", x, min(1, np.ndim(x) - 1))
    options.pop("layout", None)  # the same for every layout
    op = Pointwise(sizes["n"], sizes["k"], sizes["extent"], alpha=as_float("factor", factor), dtype=sizes["dtype"])
    return compute(op, {"x": see(x)}, [Result("y", x.shape, see, out)], **options)[0]


@documented
def concat(arrays: Sequence[Array], axis: int = 1, *, out: Array | None = None, **options: Any) -> Array:
    """y = arrays joined along an axis: each is streamed into its part of the result, one after the other.

    To save the copy, give the producing calls slices of the result as their out.

    <arrays>

    Parameters:
        arrays: a sequence of at least one, of the same shape but for this axis, none empty.
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
    parts = [as_array(f"arrays[{i}]", a) for i, a in enumerate(arrays)]
    if not parts or not -parts[0].ndim <= as_int("axis", axis) < parts[0].ndim:
        raise ShapeError(f"concat: expected at least one array, and one of its axes; got {len(parts)} and axis {axis}")
    first, axis = parts[0], axis % parts[0].ndim
    if len({a.dtype for a in parts}) > 1:
        raise DtypeError(f"concat: dtypes differ: {', '.join(str(a.dtype) for a in parts)}; convert them to one")
    if len({(a.ndim, a.shape[:axis], a.shape[axis + 1 :]) for a in parts}) > 1 or not all(a.size for a in parts):
        raise ShapeError(f"concat: shapes {[a.shape for a in parts]} differ beyond axis {axis}, or one is empty")
    shape = (*first.shape[:axis], sum(a.shape[axis] for a in parts), *first.shape[axis + 1 :])
    if out is None and options.get("beta"):
        raise ShapeError("concat: beta adds to an existing output; pass it as out=")
    given = empty_beside(first, shape, first.dtype) if out is None else out
    result = check_out(given, shape, first.dtype)
    if any(overlap(result, part) for part in parts):
        raise ShapeError("concat: out overlaps one of the arrays; pass an output of its own")
    at = 0
    for part in parts:
        index = (*(slice(None),) * axis, slice(at, at + part.shape[axis]))
        scale(part, 1.0, out=result[index], **options)
        at += part.shape[axis]
    return given


@documented
def upsample(
    x: Array, size: PerAxis, mode: str = "nearest", *, align_corners: bool = False, layout: str = "channels_first",
    out: Array | None = None, **options: Any,
) -> Array:  # fmt: skip
    """y = x with its spatial axes resized, larger or smaller.

    nearest: result i is x[floor(i * w / size)]. linear: interpolated between the two nearest, the centres of pixels matched.

    <arrays>

    Parameters:
        x: n x k x spatial.
        size: extents of the result's spatial axes; an int, or one per axis; at least 1.
        mode: "nearest" (default) or "linear" (along each spatial axis in turn: bilinear, trilinear).
        align_corners: True matches the centres of the corners instead, with "linear" only; default False.
        <layout, out, blend, run>

    Returns:
        y: n x k x size, <beside x>

    Raises:
        <errors, before>

    Source: not in cuDNN; ooc/ops/resample.py.
    """
    check_layout(layout)
    seen = channels_first(as_array("x", x), layout)
    n, k, *extent = seen.shape
    sizes = per_axis("size", size, len(extent))
    op = Upsample(_resizing(mode, align_corners), n, k, tuple(extent), sizes, dtype_name(seen.dtype), layout)
    return compute(op, {"x": seen}, [spatial_result(op.outputs[0], layout, out)], **options)[0]


@documented
def upsample_backward(
    dy: Array, extent: PerAxis, mode: str = "nearest", *, align_corners: bool = False, layout: str = "channels_first",
    out: Array | None = None, **options: Any,
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
    seen = channels_first(as_array("dy", dy), layout)
    n, k, *sizes = seen.shape
    own = per_axis("extent", extent, len(sizes))
    op = UpsampleBackward(_resizing(mode, align_corners), n, k, own, tuple(sizes), dtype_name(seen.dtype), layout)
    return compute(op, {"dy": seen}, [spatial_result(op.outputs[0], layout, out)], **options)[0]


def _resizing(mode: str, align_corners: bool) -> str:
    if mode not in ("nearest", "linear") or (align_corners and mode != "linear"):
        raise ShapeError(f"upsample: mode: expected nearest or linear (align_corners with linear only); got {mode!r}")
    assert set(RESIZINGS) == {"nearest", "linear", "aligned"}
    return "aligned" if align_corners else mode

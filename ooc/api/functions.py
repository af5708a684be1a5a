"""Normalisation, softmax and loss, sums, dropout, resizing. Arrays, layouts, options and errors are as in `ooc.api`."""

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


def softmax(x: Array, axis: int = 1, *, log: bool = False, out: Array | None = None, **options: Any) -> Array:
    """Softmax along an axis of an array of any rank, or its logarithm; never overflows.

    An axis that does not fit the budget is folded: x is then read twice. out may be x. Source: cudnnSoftmaxForward.
    """
    x, see, sizes = _along("softmax", x, axis)
    how = "log" if log else "plain"
    nodes = (Node(SoftmaxSum(**sizes), ("x",), ("lse",)), Node(SoftmaxApply(how, **sizes), ("x", "lse"), ("y",)))
    return _in_halves(nodes, {"x": see(x)}, Result("y", x.shape, see, out), options)


def softmax_backward(y: Array, dy: Array, axis: int = 1, *, log: bool = False, out: Array | None = None, **options: Any) -> Array:
    """The gradient of `softmax`'s x from its result y and the gradient dy of that; out may be either of them.

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


def cross_entropy(x: Array, labels: Array, *, reduction: str = "mean", **options: Any) -> Any:
    """Cross-entropy of logits x (n x k, or n x k x spatial) and integer labels (n, or n x spatial).

    A negative label leaves its position out. reduction: `mean` over the positions with a label, `sum`, or `none` (an array
    like labels, in the type x is computed in).
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


def cross_entropy_backward(
    x: Array, labels: Array, dloss: Any = 1.0, *, reduction: str = "mean", out: Array | None = None, **options: Any
) -> Array:
    """The gradient of `cross_entropy`'s x; dloss: the gradient of its result, a number or (reduction none) like labels."""
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


def lrn(
    x: Array, size: int = 5, alpha: float = 1e-4, beta: float = 0.75, base: float = 2.0, *, before: int | None = None,
    layout: str = "channels_first", out: Array | None = None, blend: tuple[float, float] = (1.0, 0.0), **options: Any,
) -> Array:  # fmt: skip
    """Local response normalisation across channels: x / (base + alpha/size * sum of squares in a window)**beta.

    The window of a channel begins `before` channels before it (cuDNN's (size - 1) // 2 unless said). blend: the options
    alpha and beta of other calls. Source: cudnnLRNCrossChannelForward.
    """
    return _lrn(LrnForward, {"x": x}, size, alpha, beta, base, before, layout, out, blend, options)


def lrn_backward(
    x: Array, dy: Array, size: int = 5, alpha: float = 1e-4, beta: float = 0.75, base: float = 2.0, *,
    before: int | None = None, layout: str = "channels_first", out: Array | None = None,
    blend: tuple[float, float] = (1.0, 0.0), **options: Any,
) -> Array:  # fmt: skip
    """The gradient of `lrn`'s x. Source: cudnnLRNCrossChannelBackward."""
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


def dropout(x: Array, rate: float = 0.5, seed: int = 0, *, out: Array | None = None, **options: Any) -> Array:
    """x / (1 - rate) where an element is kept, 0 where it is dropped; any shape; out may be x.

    What is dropped depends on the seed and the element's row-major index alone, never on the tiling. Applied to dy with
    the same seed, it is its own gradient. Source: cudnnDropoutForward, -Backward.
    """
    x, see, sizes = _along("dropout", x, min(1, np.ndim(x) - 1))
    options.pop("layout", None)  # the same for every layout
    op = Dropout(**{k: v for k, v in sizes.items() if k != "dtype"}, rate=as_float("rate", rate), seed=as_int("seed", seed),
                 dtype=sizes["dtype"])  # fmt: skip
    return compute(op, {"x": see(x)}, [Result("y", x.shape, see, out)], **options)[0]


def add(
    x: Array, z: Array, *, scale: tuple[float, float] = (1.0, 1.0), activation: str | Activation | None = None,
    out: Array | None = None, **options: Any,
) -> Array:  # fmt: skip
    """activation(scale[0] * x + scale[1] * z); each axis of z is x's or 1 and repeated. out may be x or a full z.

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


def scale(x: Array, factor: float, *, out: Array | None = None, **options: Any) -> Array:
    """factor * x, any shape; out may be x. Source: cudnnScaleTensor."""
    x, see, sizes = _along("scale", x, min(1, np.ndim(x) - 1))
    options.pop("layout", None)  # the same for every layout
    op = Pointwise(sizes["n"], sizes["k"], sizes["extent"], alpha=as_float("factor", factor), dtype=sizes["dtype"])
    return compute(op, {"x": see(x)}, [Result("y", x.shape, see, out)], **options)[0]


def concat(arrays: Sequence[Array], axis: int = 1, *, out: Array | None = None, **options: Any) -> Array:
    """Arrays joined along an axis (the channels unless said): each is streamed into its part of the result.

    To save the copy, give the producing calls slices of the result as their out=.
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


def upsample(
    x: Array, size: PerAxis, mode: str = "nearest", *, align_corners: bool = False, layout: str = "channels_first",
    out: Array | None = None, **options: Any,
) -> Array:  # fmt: skip
    """x with its spatial axes resized to `size` (larger or smaller): nearest neighbour, or linear interpolation.

    align_corners (linear only): whether the centres of the corners stay where they are.
    """
    check_layout(layout)
    seen = channels_first(as_array("x", x), layout)
    n, k, *extent = seen.shape
    sizes = per_axis("size", size, len(extent))
    op = Upsample(_resizing(mode, align_corners), n, k, tuple(extent), sizes, dtype_name(seen.dtype), layout)
    return compute(op, {"x": seen}, [spatial_result(op.outputs[0], layout, out)], **options)[0]


def upsample_backward(
    dy: Array, extent: PerAxis, mode: str = "nearest", *, align_corners: bool = False, layout: str = "channels_first",
    out: Array | None = None, **options: Any,
) -> Array:  # fmt: skip
    """The gradient of `upsample`'s x, whose spatial extents are `extent`."""
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

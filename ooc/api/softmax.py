"""Softmax and cross-entropy, forward and backward: an axis that does not fit is folded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Unpack

import numpy as np

from ooc.api.arguments import (
    Array,
    along,
    as_array,
    as_spatial,
    check_out,
    computed,
    on_host,
)
from ooc.api.dispatch import Output, compute, plain_result
from ooc.api.foreign import known
from ooc.api.options import ArrayLike, BlendOptions, ImageOptions, RunOptions, documented
from ooc.errors import ArgumentError, DtypeError, ShapeError
from ooc.ir.bounds import Node
from ooc.ir.fused import Fused
from ooc.ir.op import Operand, numpy_dtype
from ooc.ops import (
    CrossEntropy,
    CrossEntropyBackward,
    SoftmaxApply,
    SoftmaxDot,
    SoftmaxPull,
    SoftmaxSum,
)  # fmt: skip
from ooc.runtime.aliasing import overlap
from ooc.runtime.call_options import flag


@documented
def softmax(
    x: ArrayLike, axis: int = 1, *, log: bool = False, out: ArrayLike | None = None, **options: Unpack[ImageOptions]
) -> Array:
    """y = exp(x) / (sum of exp(x) along an axis), or its logarithm; never overflows.

    An axis that does not fit the budget is folded: x is then read twice.

    <arrays>

    Parameters:
        x: any shape; more than five axes must be contiguous enough to be seen as five.
        axis: the axis that is summed over, an int, negative ones from the end; default 1.
        log: True gives x - log(sum of exp(x)); default False.
        <conversion along axis>
        out: an array of the shape and dtype of x to write to; x itself for example; default None: a new one.
        <blend, run>

    Returns:
        y: like x, <beside x>

    Raises:
        <errors, before>

    Source: cudnnSoftmaxForward; the fold is that of Milakov, Gimelshein, "Online normalizer calculation for softmax", 2018.
    """
    x, see, sizes = along("softmax", x, axis)
    how = "log" if flag("log", log) else "plain"
    nodes = (Node(SoftmaxSum(**sizes), ("x",), ("sums",)), Node(SoftmaxApply(how, **sizes), ("x", "sums"), ("y",)))
    return _in_halves(nodes, {"x": see(x)}, Output("y", x.shape, see, out), options, "x")


@documented
def softmax_backward(
    y: ArrayLike,
    dy: ArrayLike,
    axis: int = 1,
    *,
    log: bool = False,
    out: ArrayLike | None = None,
    **options: Unpack[BlendOptions],
) -> Array:
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
    y, see, sizes = along("softmax_backward", y, axis)
    dy = as_array("dy", dy)
    sizes["dtype"] = computed(y.dtype, dy.dtype)
    dot = SoftmaxDot("sum" if flag("log", log) else "dot", **sizes)
    pull = SoftmaxPull("log" if log else "plain", **sizes)
    nodes = (Node(dot, tuple(o.name for o in dot.inputs), ("s",)), Node(pull, ("y", "dy", "s"), ("dx",)))
    inputs = {"y": see(y), "dy": see(dy)}
    return _in_halves(nodes, inputs, Output("dx", y.shape, see, out), options)


def _in_halves(
    nodes: tuple[Node, Node], inputs: dict[str, Array], result: Output, options: Mapping[str, Any], image: str = ""
) -> Array:
    """The two halves of a softmax, fused; one after the other where the result is to overwrite what both read."""
    first, second = (node.op for node in nodes)
    if result.out is None or not _overwritten(second.outputs[0], result, inputs.values()):
        return compute(Fused(nodes, (result.tensor,)), inputs, [result], image=image, **options)[0]
    (summary,) = first.outputs
    how = {name: value for name, value in options.items() if name not in ("alpha", "beta")}
    sums = np.empty(summary.shape, numpy_dtype(summary.dtype))
    compute(first, inputs, [plain_result(summary, sums)], image=image, **how)
    read = dict(zip(nodes[1].reads, (o.name for o in second.inputs), strict=True))
    operands = {read[name]: array for name, array in {**inputs, nodes[0].makes[0]: sums}.items()}
    return compute(second, operands, [result], image=image, **options)[0]


def _overwritten(operand: Operand, result: Output, inputs: Iterable[Array]) -> bool:
    """Whether the result is to lie where one of the inputs does. Raises ShapeError, DtypeError for an unfit out."""
    target = result.see(check_out(result.out, result.shape, numpy_dtype(operand.dtype)))
    return any(overlap(array, target) for array in inputs)


@documented
def cross_entropy(x: ArrayLike, labels: ArrayLike, *, reduction: str = "mean", **options: Unpack[RunOptions]) -> Any:
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
        ArgumentError: also for alpha or beta, which it does not take.

    Source: not in cuDNN; log(sum of exp) is the fold of `ooc.softmax`.
    """
    x = as_array("x", x)
    if {"alpha", "beta"} & set(options):
        raise ArgumentError("cross_entropy: takes no alpha and beta; scale the loss it returns")
    _check_reduction(reduction)
    op, inputs, shape = _labelled(CrossEntropy, x, labels)
    count = _counted(reduction, inputs["labels"])
    loss = np.empty(shape, np.float64 if x.dtype == np.float64 else np.float32)
    compute(op, inputs, [Output("loss", loss.shape, as_spatial, loss)], **options)
    if reduction == "none":
        return loss.reshape(np.shape(labels))
    return float(loss.sum(dtype=np.float64) / count) if count else float("nan")


@documented
def cross_entropy_backward(
    x: ArrayLike,
    labels: ArrayLike,
    dloss: Any = 1.0,
    *,
    reduction: str = "mean",
    out: ArrayLike | None = None,
    **options: Unpack[BlendOptions],
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
    _check_reduction(reduction)
    op, inputs, shape = _labelled(CrossEntropyBackward, x, labels)
    wide = np.float64 if x.dtype == np.float64 else np.float32
    try:
        each: Any = np.asarray(on_host(known("dloss", dloss)), wide)
    except (TypeError, ValueError):
        raise ArgumentError(f"cross_entropy_backward: dloss: expected numbers, got {dloss!r}") from None
    if each.ndim and each.shape != np.shape(labels):
        raise ShapeError(f"cross_entropy_backward: dloss must be a number or of the shape of labels, got shape {each.shape}")
    each = (each.reshape(shape) if each.ndim else each) / max(1, _counted(reduction, inputs["labels"]))
    inputs["dloss"] = np.ascontiguousarray(np.broadcast_to(each, shape), wide)
    return compute(op, inputs, [Output("dx", x.shape, as_spatial, out)], **options)[0]


def _check_reduction(reduction: str) -> None:
    if not isinstance(reduction, str) or reduction not in ("mean", "sum", "none"):
        raise ArgumentError(f"cross_entropy: reduction: expected mean, sum or none; got {reduction!r}")


def _counted(reduction: str, labels: Array) -> int:
    """What the sum is divided by: the number of positions with a label, for a mean."""
    return int(np.count_nonzero(labels >= 0)) if reduction == "mean" else 1


def _labelled(kind: Any, x: Array, labels: Array) -> tuple[Fused, dict[str, Array], tuple[int, ...]]:
    x, labels = as_array("x", x), on_host(known("labels", labels))
    if x.ndim not in (2, 3, 4, 5) or labels.shape != (x.shape[0], *x.shape[2:]):
        raise ShapeError(f"cross_entropy: labels of shape {labels.shape} do not fit x of shape {x.shape}")
    if labels.dtype.kind not in "iu":
        raise DtypeError(f"cross_entropy: labels must be integers, got {labels.dtype}")
    if labels.size and int(labels.max()) >= x.shape[1]:
        raise ArgumentError(f"cross_entropy: label {int(labels.max())}: expected less than {x.shape[1]}, or negative to ignore")
    view = as_spatial(x)
    n, k, *extent = view.shape
    sizes = {"n": n, "k": k, "extent": tuple(extent), "dtype": computed(x.dtype)}
    op = kind(**sizes)
    nodes = (Node(SoftmaxSum(**sizes), ("x",), ("sums",)), Node(op, tuple(o.name for o in op.inputs), (op.outputs[0].name,)))
    shape = (n, 1, *extent)
    wide = labels if labels.dtype == np.int64 else labels.astype(np.int64)
    return Fused(nodes, (op.outputs[0].name,)), {"x": view, "labels": wide.reshape(shape)}, shape

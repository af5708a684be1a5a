"""From an op and the user's arrays to results: outputs made or checked, alpha and beta blended in, the engine called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ooc.api.arguments import Array, as_float, channels_first, check_out, like, on_host, put
from ooc.api.foreign import empty_beside
from ooc.errors import ShapeError
from ooc.ir.bounds import Node
from ooc.ir.fused import Fused
from ooc.ir.op import Op, Operand, numpy_dtype
from ooc.ir.region import Grouped
from ooc.ops import Pointwise
from ooc.ops.registry import IN
from ooc.runtime import engine
from ooc.runtime.aliasing import overlap


class Result(NamedTuple):
    """An output as the user sees it: shape, and a function that sees such an array as the op's operand; where to write;
    whether alpha and beta have to do with it."""

    tensor: str
    shape: tuple[int, ...]
    see: Callable[[Array], Array]
    out: Array | None = None
    blends: bool = True


def spatial_result(operand: Operand, layout: str, out: Array | None = None) -> Result:
    """A result with n, channels and spatial axes, in a layout."""
    n, k, *extent = operand.shape
    shape = (n, *extent, k) if layout == "channels_last" else operand.shape
    return Result(operand.name, shape, partial(channels_first, layout=layout), out)


def plain_result(operand: Operand, out: Array | None = None) -> Result:
    """A result that the user sees as the op does."""
    return Result(operand.name, operand.shape, lambda array: array, out)


def nodes_of(op: Op) -> tuple[Node, ...]:
    """The stages of an op with the tensors they read and make."""
    own = Node(op, tuple(o.name for o in op.inputs), tuple(o.name for o in op.outputs))
    return op.nodes if isinstance(op, Fused) else (own,)


def compute(
    op: Op, inputs: Mapping[str, Array], results: Sequence[Result], alpha: Any = 1.0, beta: Any = 0.0, **options: Any
) -> list[Array]:
    """Compute an op into its results: each is alpha * op + beta * what is there. options: those of `engine.execute`.

    With alpha or beta, several results are computed one after the other, each with what it needs of the op.
    """
    alpha, beta = as_float("alpha", alpha), as_float("beta", beta)
    for o in op.inputs:
        if inputs[o.name].dtype != numpy_dtype(o.dtype) or inputs[o.name].shape != o.shape:
            like(f"{op}: {o.name}", inputs[o.name], numpy_dtype(o.dtype), o.shape)
    operands = {o.name: o for o in op.outputs}
    main = inputs[op.inputs[0].name] if op.inputs else None
    given = [_array(r, operands[r.tensor], beta, main) for r in results]
    made = [check_out(array, r.shape, numpy_dtype(operands[r.tensor].dtype)) for r, array in zip(results, given, strict=True)]
    if (alpha, beta) == (1.0, 0.0):
        targets = {r.tensor: r.see(array) for r, array in zip(results, made, strict=True)}
        engine.execute(op, inputs, targets, **options)
        return given
    _check_apart(op, inputs, results, made)
    plain = {r.tensor: r.see(array) for r, array in zip(results, made, strict=True) if not r.blends}
    if plain:
        part = op.only(list(plain)) if isinstance(op, Fused) else op
        engine.execute(part, {o.name: inputs[o.name] for o in part.inputs}, plain, **options)
    for result, array in zip(results, made, strict=True):
        if not result.blends:
            continue
        part = op.only([result.tensor]) if isinstance(op, Fused) and len(results) > 1 else op
        own = {o.name: inputs[o.name] for o in part.inputs}
        _blended(part, own, operands[result.tensor], result.see(array), alpha, beta, options)
    return given


def _check_apart(op: Op, inputs: Mapping[str, Array], results: Sequence[Result], made: Sequence[Array]) -> None:
    """Results computed one after the other must not touch each other, nor what a later one reads."""
    if len(results) < 2:
        return
    for i, (result, array) in enumerate(zip(results, made, strict=True)):
        others = {r.tensor: a for r, a in zip(results[:i], made, strict=False)} | dict(inputs)
        for name, other in others.items():
            if overlap(array, other):
                raise ShapeError(f"{op}: the output {result.tensor} overlaps {name}; pass an array of its own")


def _array(result: Result, operand: Operand, beta: float, main: Array) -> Array:
    """The user's output, or a new one beside the op's main input."""
    if result.out is not None:
        return result.out
    if beta and result.blends:
        raise ShapeError(f"beta={beta:g} adds to an existing output; pass it as out=")
    return empty_beside(main, result.shape, numpy_dtype(operand.dtype))


def _blended(
    op: Op, inputs: Mapping[str, Array], made: Operand, target: Array, alpha: float, beta: float, options: Mapping[str, Any]
) -> None:
    if len(made.shape) < 3:  # a value per channel: blended in memory
        own = np.empty(made.shape, numpy_dtype(made.dtype))
        engine.execute(op, inputs, {made.name: own}, **options)
        put(target, alpha * own + (beta * on_host(target) if beta else 0))
        return
    n, k, *extent = made.shape
    add = "nk" + IN[len(extent)] if beta else ""
    node = next(node for node in nodes_of(op) if made.name in node.makes)
    maker: Any = node.op
    channels = maker.outputs[node.makes.index(made.name)].axes[1]
    groups = maker.groups if isinstance(channels, Grouped) else 1
    blend = Pointwise(
        n, k, tuple(extent), alpha=alpha, beta=beta, add=add, groups=groups, dtype=made.dtype,
        layout=maker.layout,
    )  # fmt: skip
    last = Node(blend, (made.name, "before") if beta else (made.name,), ("after",))
    whole = Fused((*nodes_of(op), last), ("after",))
    engine.execute(whole, {**inputs, "before": target} if beta else inputs, {"after": target}, **options)

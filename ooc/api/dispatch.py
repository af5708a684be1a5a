"""From an op and the user's arrays to results: outputs made or checked, alpha and beta blended in, the engine called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ooc.api.arguments import Array, as_float, channels_first, check_out, like, on_host, put
from ooc.api.foreign import empty_beside
from ooc.api.options import KNOWN
from ooc.errors import ShapeError
from ooc.ir.bounds import Node
from ooc.ir.fused import Fused
from ooc.ir.op import Op, Operand, numpy_dtype
from ooc.ir.region import Grouped
from ooc.ops import Pointwise
from ooc.ops.registry import IN
from ooc.runtime import engine
from ooc.runtime.aliasing import overlap
from ooc.runtime.asked import read


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
    """Compute an op into its results: each is alpha * op + beta * what is there. options: as `ooc.runtime.asked` has them.

    With alpha or beta, several results are computed one after the other, each with what it needs of the op.
    """
    asked = read(options, KNOWN) if options else engine.PLAIN
    alpha, beta = as_float("alpha", alpha), as_float("beta", beta)
    for o in op.inputs:
        if inputs[o.name].dtype != numpy_dtype(o.dtype) or inputs[o.name].shape != o.shape:
            like(f"{op}: {o.name}", inputs[o.name], numpy_dtype(o.dtype), o.shape)
    operands = {o.name: o for o in op.outputs}
    main = inputs[op.inputs[0].name] if op.inputs else None
    given = [_array(r, operands[r.tensor], beta, main) for r in results]
    made = [check_out(array, r.shape, numpy_dtype(operands[r.tensor].dtype)) for r, array in zip(results, given, strict=True)]
    targets = {r.tensor: r.see(array) for r, array in zip(results, made, strict=True)}
    if (alpha, beta) == (1.0, 0.0):
        engine.execute(op, inputs, targets, asked)
        return given
    _check_apart(op, inputs, results, made)
    jobs = _in_turn(op, inputs, results, targets, alpha, beta)
    for job in jobs:  # none is begun that a later one would be refused after
        engine.planned(job.op, job.inputs, job.targets, asked)
    for job in jobs:
        engine.execute(job.op, job.inputs, job.targets, asked)
        job.finish()
    return given


class _Job(NamedTuple):
    """One of several ops computed in turn, and what is left to do when it is done."""

    op: Op
    inputs: Mapping[str, Array]
    targets: Mapping[str, Array]
    finish: Callable[[], None] = lambda: None


def _in_turn(
    op: Op, inputs: Mapping[str, Array], results: Sequence[Result], targets: Mapping[str, Array], alpha: float, beta: float
) -> list[_Job]:
    """With alpha or beta, each result that they have to do with, and all the others at once."""

    def part(names: list[str]) -> tuple[Op, dict[str, Array]]:
        own = op.only(names) if isinstance(op, Fused) and len(names) < len(op.outputs) else op
        return own, {o.name: inputs[o.name] for o in own.inputs}

    operands = {o.name: o for o in op.outputs}
    plain = {r.tensor: targets[r.tensor] for r in results if not r.blends}
    jobs = [_Job(*part(list(plain)), plain)] if plain else []
    blended = [r.tensor for r in results if r.blends]
    return jobs + [_blended(*part([name]), operands[name], targets[name], alpha, beta) for name in blended]


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


def _blended(op: Op, inputs: Mapping[str, Array], made: Operand, target: Array, alpha: float, beta: float) -> _Job:
    if len(made.shape) < 3:  # a value per channel: blended in memory
        own = np.empty(made.shape, numpy_dtype(made.dtype))
        return _Job(
            op, inputs, {made.name: own}, lambda: put(target, alpha * own + (beta * on_host(target) if beta else 0))
        )  # fmt: skip
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
    return _Job(whole, {**inputs, "before": target} if beta else inputs, {"after": target})

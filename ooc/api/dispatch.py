"""From an op and the user's arrays to results: outputs made or checked, alpha and beta blended in, the engine called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ooc.api.arguments import Array, as_float, channels_first, check_out, like, on_host, put
from ooc.api.conversions import check_scalable, converted, reading, writing
from ooc.api.deferred import deferrable, deferred, renamed
from ooc.api.foreign import empty_beside, labels_of
from ooc.api.labelled import labelled
from ooc.api.options import KNOWN
from ooc.errors import ArgumentError, DtypeError, OptionError
from ooc.ir.bounds import Node
from ooc.ir.fused import Fused
from ooc.ir.op import Op, Operand, integer_name, numpy_dtype
from ooc.ir.region import Grouped
from ooc.ops import Pointwise
from ooc.ops.convert import saturated
from ooc.ops.registry import IN
from ooc.runtime import engine
from ooc.runtime.aliasing import overlap
from ooc.runtime.call_options import read


class Output(NamedTuple):
    """An output as the user sees it: shape, and a function that sees such an array as the op's operand; where to write;
    whether alpha and beta have to do with it; what the caller calls it."""

    tensor: str
    shape: tuple[int, ...]
    see: Callable[[Array], Array]
    out: Array | None = None
    blends: bool = True
    word: str = "out"


def spatial_result(operand: Operand, layout: str, out: Array | None = None, word: str = "out") -> Output:
    """A result with n, channels and spatial axes, in a layout."""
    n, k, *extent = operand.shape
    shape = (n, *extent, k) if layout == "channels_last" else operand.shape
    return Output(operand.name, shape, partial(channels_first, layout=layout), out, word=word)


def plain_result(operand: Operand, out: Array | None = None, word: str = "out") -> Output:
    """A result that the user sees as the op does."""
    return Output(operand.name, operand.shape, lambda array: array, out, word=word)


def nodes_of(op: Op) -> tuple[Node, ...]:
    """The stages of an op with the tensors they read and make."""
    node = Node(op, tuple(o.name for o in op.inputs), tuple(o.name for o in op.outputs))
    return op.nodes if isinstance(op, Fused) else (node,)


def compute(
    op: Op, inputs: Mapping[str, Array], results: Sequence[Output], alpha: Any = 1.0, beta: Any = 0.0, scale: Any = None,
    offset: Any = None, image: str = "", **options: Any,
) -> list[Array]:  # fmt: skip
    """Compute an op into its results: each is alpha * op + beta * what is there. options: as `ooc.runtime.call_options` has them.

    Inputs of integers are converted in front of the stages that read them, results are rounded to outputs of integers. image:
    the input that scale and offset belong to, where a function takes these, and beside which results lie. With alpha or beta, and
    for outputs of integers, several results are computed one after the other, each with what it needs of the op.
    """
    settings = read(options, KNOWN) if options else engine.PLAIN
    blend = as_float("alpha", alpha), as_float("beta", beta)
    if (scale is not None or offset is not None) and not image:
        raise OptionError(f"{op.kind}: takes no scale= and offset= to convert integers by; multiply beforehand")
    raw = False
    for o in op.inputs:
        if inputs[o.name].dtype != numpy_dtype(o.dtype) or inputs[o.name].shape != o.shape:
            like(f"{op}: {o.name}", inputs[o.name], numpy_dtype(o.dtype), o.shape)
            raw = True
    operands = {o.name: o for o in op.outputs}
    main = _main(op, inputs, image) if op.inputs else None
    if image in inputs and (scale is not None or offset is not None):
        check_scalable(inputs[image], scale, offset)
    if deferrable((r.out for r in results), blend, settings):
        ops, held = (op, inputs) if not raw else converted(nodes_of(op), list(operands), inputs, {image: (scale, offset)})
        later = deferred(ops, held, [(r.tensor, r.shape, r.see) for r in results], settings)
        if later is not None:
            return later
    outs = [_array(r, operands[r.tensor], blend[1], main, op) for r in results]
    arrays = [check_out(a, r.shape, numpy_dtype(operands[r.tensor].dtype), r.word) for r, a in zip(results, outs, strict=True)]
    if raw:
        op, inputs = converted(nodes_of(op), [o.name for o in op.outputs], inputs, {image: (scale, offset)})
    targets = {r.tensor: r.see(array) for r, array in zip(results, arrays, strict=True)}
    apart = [r.tensor for r in results if _is_apart(r, operands[r.tensor], targets, blend)]
    if not apart:
        engine.execute(op, inputs, targets, settings)
        return outs
    if settings.resume is not None:
        raise OptionError("resume: with alpha or beta, or integers to write, results are made in several passes; leave them out")
    _check_apart(op, inputs, results, arrays)
    jobs = _in_turn(op, inputs, operands, targets, apart, blend)
    for job in jobs:  # none is begun that a later one would be refused after
        engine.check(job.op, job.inputs, job.targets, settings)
    for job in jobs:
        engine.execute(job.op, job.inputs, job.targets, settings)
        job.finish()
    return outs


def _main(op: Op, inputs: Mapping[str, Array], image: str) -> Array:
    """The input beside which new results lie: the image, where that is not read the gradient, where there is none the first that
    has labels, or the first."""
    named = [name for name in (image, "dy") if image and name in inputs]
    told = [o.name for o in op.inputs if labels_of(inputs[o.name]) is not None and o.name not in op.parameters]
    return inputs[(named or told or [op.inputs[0].name])[0]]


def _is_apart(result: Output, operand: Operand, targets: Mapping[str, Array], blend: tuple[float, float]) -> bool:
    """Whether a result is blended with what its output holds, or rounded to integers, and so has a pass of its own."""
    return (result.blends and blend != (1.0, 0.0)) or bool(targets[result.tensor].dtype != numpy_dtype(operand.dtype))


class _Job(NamedTuple):
    """One of several ops computed in turn, and what is left to do when it is done."""

    op: Op
    inputs: Mapping[str, Array]
    targets: Mapping[str, Array]
    finish: Callable[[], None] = lambda: None


def _in_turn(
    op: Op, inputs: Mapping[str, Array], operands: Mapping[str, Operand], targets: Mapping[str, Array], apart: list[str],
    blend: tuple[float, float],
) -> list[_Job]:  # fmt: skip
    """Each of the results that have a pass of their own, and before them all others at once."""

    def part(names: list[str]) -> tuple[Op, dict[str, Array]]:
        sub_op = op.only(names) if isinstance(op, Fused) and len(names) < len(op.outputs) else op
        return sub_op, {o.name: inputs[o.name] for o in sub_op.inputs}

    plain = {name: array for name, array in targets.items() if name not in apart}
    jobs = [_Job(*part(list(plain)), plain)] if plain else []
    return jobs + [_finished(*part([name]), operands[name], targets[name], *blend) for name in apart]


def _check_apart(op: Op, inputs: Mapping[str, Array], results: Sequence[Output], arrays: Sequence[Array]) -> None:
    """Results computed one after the other must not touch each other, nor what a later one reads."""
    if len(results) < 2:
        return
    for i, (result, array) in enumerate(zip(results, arrays, strict=True)):
        others = {r.tensor: a for r, a in zip(results[:i], arrays, strict=False)} | dict(inputs)
        for name, other in others.items():
            if overlap(array, other):
                raise ArgumentError(f"{op}: the output {result.tensor} overlaps {name}; pass an array of its own")


def _array(result: Output, operand: Operand, beta: float, main: Array, op: Op) -> Array:
    """The user's output, or a new one beside the op's main input, labelled as that is."""
    if result.out is not None:
        return result.out
    if beta and result.blends:
        raise ArgumentError(f"beta={beta:g} adds to an existing output; pass it as out=")
    y, labels = empty_beside(main, result.shape, numpy_dtype(operand.dtype)), labels_of(main)
    return y if labels is None else labelled(labels, y, renamed(op, operand, len(result.shape)))


def _check_holds(y: Operand, store: str) -> None:
    """Raise DtypeError where the integers that an output holds have no place in the type that they are blended in."""
    if y.dtype in ("f16", "bf16") and store not in ("u8", "b8"):
        raise DtypeError(f"out: beta adds its integers in {y.dtype}, which has not all of them; use float32 or float64 arrays")


def _finished(op: Op, inputs: Mapping[str, Array], operand: Operand, target: Array, alpha: float, beta: float) -> _Job:
    """One result of an op, blended with what its output holds, and rounded where that holds integers."""
    store = integer_name(target.dtype)
    if len(operand.shape) < 3:  # a value per channel: finished in memory
        unblended = np.empty(operand.shape, numpy_dtype(operand.dtype))

        def finish() -> None:
            values = alpha * unblended + (beta * on_host(target) if beta else 0)
            put(target, saturated(values, store) if store else values)

        return _Job(op, inputs, {operand.name: unblended}, finish)
    nodes = list(nodes_of(op))
    maker: Any = next(node for node in nodes if operand.name in node.makes)
    channels = maker.op.outputs[maker.makes.index(operand.name)].axes[1]
    groups = maker.op.groups if isinstance(channels, Grouped) else 1
    tensor = operand.name
    if (alpha, beta) != (1.0, 0.0):
        n, k, *extent = operand.shape
        add = "nk" + IN[len(extent)] if beta else ""
        blend = Pointwise(
            n, k, tuple(extent), alpha=alpha, beta=beta, add=add, groups=groups, dtype=operand.dtype,
            layout=maker.op.layout,
        )  # fmt: skip
        held = "before"
        if beta and store:
            _check_holds(operand, store)
            held = "held"
            nodes.insert(0, Node(reading(blend.inputs[1], store), ("before",), (held,)))
        nodes.append(Node(blend, (tensor, held) if beta else (tensor,), ("blended" if store else "after",)))
        tensor = "blended"
    if store:
        nodes.append(Node(writing(operand, store, groups), (tensor,), ("after",)))
    return _Job(Fused(nodes, ("after",)), {**inputs, "before": target} if beta else inputs, {"after": target})

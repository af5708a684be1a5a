"""The end of a training step: gradients are gathered and weighed, then every parameter moves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ooc.ir.op import compute_dtype
from ooc.networks.calls import CONTROLS, GATHER, RATES, Updating
from ooc.networks.tensors import Role
from ooc.networks.writer import Writer
from ooc.ops import Accrue, Pace, Squares
from ooc.ops import pacing as numbers
from ooc.ops.optimizer import RATES as COUNT

PACE, SHARES, STATE = "optimizer/pace", "optimizer/shares", "optimizer/state"
HALF = ("f16", "bf16")  # dtypes of parameters that are rounded from ones of f32


def master_of(parameter: str) -> str:
    """What a half parameter is rounded from."""
    return f"{parameter}/master"


def average_of(parameter: str) -> str:
    """The mean of a parameter that runs."""
    return f"{parameter}/ema"


def write_moves(writer: Writer, mover: Updating, parameters: Sequence[str]) -> None:
    """Write the calls by which an optimizer moves parameters with gradients."""
    rates = writer.given(RATES, (COUNT,), "f64", Role.INPUT)
    gradients = {name: writer.sink(name) for name in parameters}
    if mover.accumulate > 1:
        gradients = {name: _gathered(writer, name, gradient) for name, gradient in gradients.items()}
    if mover.paced:
        rates = _paced(writer, mover, gradients, rates)
    for name, gradient in gradients.items():
        _move(writer, mover, name, gradient, rates)
    if mover.ema is not None:
        for name in parameters:
            _average(writer, name)


def _move(writer: Writer, mover: Updating, name: str, gradient: str, rates: str) -> None:
    """One parameter, or what it is rounded from."""
    p = writer.tensors[name]
    half = p.dtype in HALF
    masters = {"master": True, "summed": mover.accumulate > 1} if half else {}
    op = mover.update(n=1, k=1, extent=(math.prod(p.shape),), dtype=p.dtype, **masters)
    tensors = {"p": name, "g": gradient, "rates": rates}
    if half:
        tensors["p"] = writer.given(master_of(name), p.shape, op.computed, Role.STATE, begins=name)
    for operand in op.inputs:
        if operand.name not in tensors:
            tensors[operand.name] = writer.given(f"{name}/{operand.name}", p.shape, operand.dtype, Role.STATE)
    makes = (name if o.name == "h" else tensors[op.follows[o.name]] for o in op.outputs)
    writer.update(op, [tensors[o.name] for o in op.inputs], tuple(makes))


def _gathered(writer: Writer, name: str, gradient: str) -> str:
    """The sum of a parameter's gradients since it moved."""
    g = writer.tensors[gradient]
    total = writer.given(f"{name}/gradients", g.shape, compute_dtype(g.dtype), Role.STATE)
    shares = writer.given(GATHER, (numbers.SHARES,), "f64", Role.INPUT)
    writer.update(Accrue(1, 1, (math.prod(g.shape),), g.dtype), (gradient, total, shares), (total,))
    return total


def _paced(writer: Writer, mover: Updating, gradients: Mapping[str, str], rates: str) -> str:
    """The rates of a step that heeds the gradients of all parameters, and those before it."""
    sums: tuple[str, ...] = ()
    for i, gradient in enumerate(gradients.values() if mover.weighs else ()):
        g = writer.tensors[gradient]
        op = Squares(1, 1, (math.prod(g.shape),), bool(sums), g.dtype)
        writer.update(op, (gradient, *sums), (f"optimizer/squares{i}",))
        sums = (f"optimizer/squares{i}",)
    controls = writer.given(CONTROLS, (numbers.CONTROLS,), "f64", Role.INPUT)
    state = writer.given(STATE, (numbers.STATE,), "f64", Role.STATE, begins=(mover.first_scale, 0, 0, 0))
    pace = Pace(summed=bool(sums), count=mover.counted)
    writer.update(pace, (rates, controls, state, *sums), (PACE, SHARES, state))
    return PACE


def _average(writer: Writer, name: str) -> None:
    """The mean of a parameter goes on."""
    moved = writer.tensors.get(master_of(name), writer.tensors[name])
    mean = writer.given(average_of(name), moved.shape, moved.dtype, Role.STATE, begins=name)
    writer.update(Accrue(1, 1, (math.prod(moved.shape),), moved.dtype), (moved.name, mean, SHARES), (mean,))

"""What problems would take on a machine as calibrated: a row each, beside what is physically possible; nothing is run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ooc.errors import BudgetError, OocError, ShapeError, UnsupportedError
from ooc.ir.op import Op
from ooc.planner.basis import PlannedOp, change, enough_of_disk, rests_on
from ooc.planner.question import Bound
from ooc.runtime.context import changed
from ooc.runtime.device import Device
from ooc.schedule.budget import show_bytes
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan
from ooc.schedule.steps import LANES, lane_totals
from perfmodel.report.table import show_seconds, table, three

SHARE = 0.9  # of the memory that a described device has, where no budget is given


@dataclass(frozen=True)
class Prediction:
    """One problem: its plans in a row and its bound, or the error that says why there is none."""

    op: Op
    plans: tuple[Plan, ...] = ()
    bound: Bound | None = None
    error: OocError | None = None
    places: Mapping[str, Place] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Predicted seconds."""
        return sum(p.predicted_seconds for p in self.plans)

    @property
    def lane_seconds(self) -> dict[str, float]:
        """Busy seconds of every lane."""
        return lane_totals(p.lane_seconds for p in self.plans)

    @property
    def lane_bytes(self) -> dict[str, int]:
        """Bytes over every copy lane."""
        return {lane: int(n) for lane, n in lane_totals(p.lane_bytes for p in self.plans).items()}

    @property
    def binds(self) -> str:
        """The busiest lane."""
        busy = self.lane_seconds
        return max(busy, key=busy.__getitem__)


def budgeted(device: Device, budget: str | None) -> Device:
    """The device under a budget; None: a null one has 90 % of the memory of what it stands for.

    Raises BudgetError, ShapeError.
    """
    if budget is None and device.backend.name == "null" and device.device_bytes is None and device.model.memory_bytes:
        return replace(device, device_bytes=int(SHARE * device.model.memory_bytes))
    return changed(device, budget, None)


def predict(ops: Sequence[Op], device: Device, places: Mapping[str, Place]) -> list[Prediction]:
    """Plan every problem. places: of operands by name, those without in host memory.

    Of several problems, one that does not fit or cannot be computed is an entry with its error; a single one raises it.
    """
    names = {o.name for op in ops for o in op.operands}
    if unknown := sorted(set(places) - names):
        raise ShapeError(f"--place: no operand {', '.join(unknown)}; expected {', '.join(sorted(names))}")
    rows = []
    for op in ops:
        where = {o.name: places.get(o.name, Place.HOST) for o in op.operands}
        try:
            rows.append(Prediction(op, tuple(device.planner.plans(op, where)), device.planner.bound(op, where), places=where))
        except (BudgetError, UnsupportedError) as error:
            if len(ops) == 1:
                raise
            rows.append(Prediction(op, error=error))
    return rows


# ---- text


def show(rows: Sequence[Prediction], device: Device) -> str:
    """A row per problem and totals."""
    planned = [p for p in rows if p.plans]
    lanes = [lane for lane in LANES if any(lane in p.lane_bytes for p in planned)]
    head = ["problem", "predicted", "GFLOP/s", "binds", "bound", "by", "reached", "tiles", "peak", *(f"{x} x" for x in lanes)]
    lines = table([head, *(_row(p, lanes) for p in planned)]) if planned else []
    lines += [f"{label(p.op)}  {_refusal(p.error)}" for p in rows if p.error is not None]
    return "\n".join([*lines, "", *_footer(rows, device)])


def _row(p: Prediction, lanes: Sequence[str]) -> list[str]:
    assert p.bound is not None
    flops, least = p.op.flops(p.op.dims), p.bound.lane_bytes
    ratios = (f"{p.lane_bytes[x] / least[x]:.2f}" if least.get(x) and x in p.lane_bytes else "-" for x in lanes)
    parts = f" in {len(p.plans)} plans" if len(p.plans) > 1 else ""
    return [
        label(p.op), show_seconds(p.seconds), three(flops / p.seconds / 1e9), p.binds, show_seconds(p.bound.seconds), p.bound.by,
        f"{p.bound.seconds / p.seconds:.0%}", f"{sum(q.tiles for q in p.plans)}{parts}",
        show_bytes(max(q.peak_bytes for q in p.plans)), *ratios,
    ]  # fmt: skip


def _refusal(error: OocError) -> str:
    needed = getattr(error, "smallest_bytes", None)
    return f"does not fit: needs {show_bytes(needed)} ({needed} bytes)" if needed else str(error)


def label(op: Op) -> str:
    """An op in a few words: the kinds of its stages and the sizes of the one with the most arithmetic."""
    largest = max(op.stages, key=lambda stage: float(stage.flops(stage.dims)))
    kinds = " | ".join(stage.kind for stage in op.stages)
    return " ".join([kinds, *(w for w in str(largest).split()[1:] if w != "dtype=f32")])


def _footer(rows: Sequence[Prediction], device: Device) -> list[str]:
    total = totals(rows)
    refused = f", {total['refused']} more not planned" if total["refused"] else ""
    limit = device.device_bytes
    backend = device.backend
    free = f"none given; streams through {show_bytes(backend.streaming_bytes)}"
    budget = free if limit is None else f"{show_bytes(limit)} of {show_bytes(backend.total_bytes)}"
    source = device.model.source.partition(":")[0] or "source unknown"
    seconds = f"{show_seconds(total['predicted_seconds'])}, bound {show_seconds(total['bound_seconds'])}"
    problems = f"{total['problems']} problem{'s' * (total['problems'] != 1)}"
    return [
        f"total        {problems}{refused}: {seconds} ({total['share_of_bound']:.0%} reached), {three(total['gflops'])} GFLOP/s",
        f"budget       {budget}",
        f"calibration  {device.model.name}; {source}",
        *(f"{name:<12} {text}" for name, text in remarks(rows, device).items()),
        "columns      bound: everything computed once by the best kernel, or moved once at its lane's best rate; "
        "x: bytes moved over the least",
    ]


def remarks(rows: Sequence[Prediction], device: Device) -> dict[str, str]:
    """What all of it rests on, and what would change it: planned, not guessed."""
    cases = [PlannedOp(p.op, p.places, p.plans) for p in rows if p.plans]
    other = change(cases, device.planner.plans)
    told = {
        "rests on": rests_on([plan for case in cases for plan in case.plans], device.model),
        "with": f"{other}: {show_seconds(other.seconds)}" if other else "",
        "disk": enough_of_disk(cases, device.planner.plans),
    }
    return {name: text for name, text in told.items() if text}


# ---- JSON


def to_json(rows: Sequence[Prediction], device: Device) -> str:
    """A line of JSON per problem, and one of totals. Seconds and bytes."""
    about = {"calibration": device.model.name, "source": device.model.source, "budget_bytes": device.device_bytes}
    return "\n".join(json.dumps(row) for row in (*map(_object, rows), {**totals(rows), **about, **_grounds(rows, device)}))


def _grounds(rows: Sequence[Prediction], device: Device) -> dict[str, str]:
    return {name.replace(" ", "_"): text for name, text in remarks(rows, device).items()}


def _object(p: Prediction) -> dict[str, Any]:
    if p.bound is None:
        return {"problem": str(p.op), "error": str(p.error), "smallest_bytes": getattr(p.error, "smallest_bytes", None)}
    return {
        "problem": str(p.op), "predicted_seconds": p.seconds, "gflops": p.op.flops(p.op.dims) / p.seconds / 1e9,
        "binds": p.binds, "bound_seconds": p.bound.seconds, "bound_by": p.bound.by,
        "share_of_bound": p.bound.seconds / p.seconds, "tiles": sum(q.tiles for q in p.plans),
        "peak_bytes": max(q.peak_bytes for q in p.plans), "lane_seconds": p.lane_seconds, "lane_bytes": p.lane_bytes,
        "compulsory_bytes": p.bound.lane_bytes, "plans": [json.loads(q.to_json()) for q in p.plans],
    }  # fmt: skip


def totals(rows: Sequence[Prediction]) -> dict[str, Any]:
    """Sums over the problems that could be planned."""
    planned = [p for p in rows if p.bound is not None]
    seconds = sum(p.seconds for p in planned)
    bound = sum(p.bound.seconds for p in planned if p.bound is not None)
    flops = sum(int(p.op.flops(p.op.dims)) for p in planned)
    return {
        "problems": len(planned), "refused": len(rows) - len(planned), "predicted_seconds": seconds, "bound_seconds": bound,
        "share_of_bound": bound / seconds if seconds else 0.0, "gflops": flops / seconds / 1e9 if seconds else 0.0,
    }  # fmt: skip

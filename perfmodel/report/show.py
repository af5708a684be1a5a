"""A calibration as text: where it is from, how fast its lanes and kernels are, how well the fits hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ooc.errors import ShapeError
from ooc.model.calibration import read_calibration, read_errors, read_model
from ooc.model.cost import AGAIN, CACHED, FETCH, Copy, Model
from ooc.schedule.budget import show_bytes
from ooc.schedule.steps import LANES
from perfmodel.report.table import show_seconds, table, three

KIB, MIB = 1 << 10, 1 << 20
SIZES = (4 * KIB, 64 * KIB, MIB, 64 * MIB)
ROW = 4 * KIB
ENDLESS = 1e13  # bytes per second from which a fit has found no cost
ENDLESS_FLOPS = 1e16


class Calibration(NamedTuple):
    """A model with what its file says beside it. facts: name, source, date and the system, as text; errors: of the fits."""

    model: Model
    path: str
    facts: dict[str, str]
    errors: dict[str, float]


def read(name: str | Path) -> Calibration:
    """A shipped calibration or a file. Raises ShapeError with one line naming the file and the field, FileNotFoundError."""
    try:
        raw, path = read_calibration(name)
        model = read_model(raw, path)
        facts = {"name": model.name, "source": model.source, **_facts(raw, path)}
        return Calibration(model, path, facts, read_errors(raw, path))
    except ValueError as error:
        raise ShapeError(str(error)) from None


def _facts(raw: Mapping[str, Any], path: str) -> dict[str, str]:
    """The date and the system, as far as it is plain values."""
    system = raw.get("system", {})
    if not isinstance(system, dict):
        raise ValueError(f"{path}: system: expected an object")
    plain = {k: v for k, v in system.items() if v not in ("", None) and not isinstance(v, (list, dict))}
    texts = [f"{_text(k, f'{path}: system')} {_text(v, f'{path}: system.{k}')}" for k, v in plain.items()]
    return {"date": _text(raw.get("date", "unknown"), f"{path}: date"), "system": ", ".join(texts) or "unknown"}


def _text(value: Any, where: str) -> str:
    """A word or a number as text, without what would steer a terminal."""
    text = str(value) if isinstance(value, (str, int, float)) else ""
    if not text.isprintable() or not 0 < len(text) <= 500:
        raise ValueError(f"{where}: expected one line of text or a number")
    return text


# ---- text


def show(machine: Calibration) -> str:
    """The calibration as tables for a terminal."""
    model = machine.model
    facts = {**machine.facts, "memory": show_bytes(model.memory_bytes) if model.memory_bytes else "unknown", "file": machine.path}
    blocks = [[f"{k:12}{v}" for k, v in facts.items()], _copies(machine)]
    if model.contention:
        blocks.append(_contention(model))
    if model.handoff_seconds is not None:
        blocks.append([f"threads     wake {show_seconds(model.handoff_seconds)} after what they wait for"])
    return "\n\n".join("\n".join(lines) for lines in (*blocks, _kernels(machine)))


def _copies(machine: Calibration) -> list[str]:
    lanes = {lane: machine.model.copies[lane] for lane in (*LANES, CACHED, AGAIN) if lane in machine.model.copies}
    if machine.model.register is not None:
        lanes["pinning"] = machine.model.register
    sizes = [show_bytes(n) for n in SIZES]
    head = ["lane", "latency", "a piece", *sizes, *(f"{s} *" for s in sizes), "from", "fit error"]
    rows = [[lane, *_curve(copy), _origin(machine.model, lane), _error(machine.errors, lane)] for lane, copy in lanes.items()]
    return ["copies      GB/s of contiguous blocks; *: of blocks in rows of 4 KiB", *table([head, *rows])]


def _origin(model: Model, lane: str) -> str:
    """Where the numbers of a lane, or of pinning, are from."""
    return model.origin("register", "") if lane == "pinning" else model.origin("copies", lane)


def _curve(copy: Copy) -> list[str]:
    """Latency, cost per contiguous piece, and gigabytes per second at every size."""
    contiguous = [gigabytes(copy, n, n) for n in SIZES]
    in_rows = [gigabytes(copy, n, ROW) for n in SIZES]
    return [show_seconds(copy.latency_seconds), show_seconds(copy.run_seconds), *map(three, (*contiguous, *in_rows))]


def gigabytes(copy: Copy, nbytes: float, row: float) -> float:
    """Gigabytes per second of one copy in rows of this many bytes."""
    return float(nbytes / copy.seconds(nbytes, max(1.0, nbytes / row)) / 1e9)


def _contention(model: Model) -> list[str]:
    beside = [lane for lane in (*LANES, FETCH) if any(lane in lost for lost in model.contention.values())]
    rows = [
        [lane, *(f"{model.contention[lane][b]:.0%}" if b in model.contention[lane] else "-" for b in beside)]
        for lane in LANES if lane in model.contention
    ]  # fmt: skip
    origin = f" ({source})" if (source := model.origin("contention", "")) != "measured" else ""
    return [f"contention  share of its speed that a lane loses while another is busy{origin}", *table([["lane", *beside], *rows])]


def _kernels(machine: Calibration) -> list[str]:
    rows = [["kind/dtype/kernel", "latency", "GFLOP/s", "GB/s", "from", "fit error"]]
    for key, entry in machine.model.computes.items():
        flops = three(entry.flops_per_second / 1e9) if entry.flops_per_second < ENDLESS_FLOPS else "-"
        nbytes = three(entry.bytes_per_second / 1e9) if entry.bytes_per_second < ENDLESS else "-"
        origin = machine.model.origin("computes", key)
        rows.append([key, show_seconds(entry.latency_seconds), flops, nbytes, origin, _error(machine.errors, key)])
    return [
        "kernels     a call takes latency + FLOP / GFLOP/s + bytes walked / GB/s; -: no such cost, or not known",
        *table(rows),
    ]


def _error(errors: Mapping[str, float], key: str) -> str:
    """The fit error of an entry; an entry for any dtype and kernel has that of the one which was measured."""
    if key not in errors and key.endswith("/*/*") and not key.startswith("*"):
        key = next((k for k in errors if k.startswith(key[:-3])), key)
    return f"{errors[key]:.1%}" if key in errors and math.isfinite(errors[key]) else "-"

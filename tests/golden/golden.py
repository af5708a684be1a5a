"""What plans and errors are, kept as files: a change that merges mechanisms shows here what else it changed.

    python tests/golden/golden.py            how the files differ from what this checkout makes
    python tests/golden/golden.py --write    makes them anew

plans.jsonl: 400 problems, each with its budget and places, planned for a CPU and two GPUs: tiles, order, depth, kernels,
workspace, peak and predicted seconds, or the error. networks.jsonl: plans of whole networks likewise. errors.jsonl: calls that
are refused, and in which words ("not refused" is an answer, too). Problems are read from the files themselves: a line that has
nothing but its problem is filled in. Whoever changes a line says why in the commit. Bits of results are compared by bits.py.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent / "helpers")]

import numpy as np  # noqa: E402
from networks import random_graph  # noqa: E402

import ooc  # noqa: E402
from ooc.backends.cpu.backend import CpuBackend  # noqa: E402
from ooc.backends.null import GPU_KERNELS, NullBackend  # noqa: E402
from ooc.model.calibration import load_device  # noqa: E402
from ooc.networks import SGD  # noqa: E402
from ooc.networks.models import named  # noqa: E402
from ooc.ops.descriptor import parse  # noqa: E402
from ooc.runtime.device import Device  # noqa: E402
from ooc.schedule.place import Place  # noqa: E402

Row = dict[str, Any]
DEVICES = ("cpu", "p100", "h200")
DIGITS = 6  # of predicted seconds: more than a sum in another order changes


def device(name: str, budget: int | None) -> Device:
    """The device of a shipped calibration: what this machine has measured of itself is left out."""
    model = load_device(name)
    if name == "cpu":
        return Device(CpuBackend(threads=2), model, budget)
    assert model.memory_bytes
    return Device(NullBackend(model.memory_bytes, GPU_KERNELS), model, budget)


def refused(call: Callable[[], Any]) -> Any:
    """What a call returns, or its error as a row."""
    try:
        return call()
    except Exception as error:
        return {"error": type(error).__name__, "says": str(error)}


# ---- single calls


def plans_of(row: Row, where: str) -> Any:
    """The plans of a problem: {"op": a descriptor, "budget": bytes, "places": by operand, "exact": deterministic}."""
    op = parse(row["op"])
    places = {o.name: Place(row["places"].get(o.name, "disk")) for o in op.operands}

    def made() -> list[Row]:
        return [
            {
                "op": str(plan.op) if plan.op != op else "",
                "tile": " ".join(f"{d}={n}" for d, n in plan.sizes.items() if n < plan.op.dims[d]),
                "order": "".join(plan.order),
                "depth": plan.depth,
                "kernel": plan.kernel,
                "workspace": plan.workspace_bytes,
                "in_turn": plan.in_turn,
                "peak": plan.peak_bytes,
                "seconds": float(f"{plan.predicted_seconds:.{DIGITS}g}"),
            }
            for plan in device(where, row["budget"]).planner.plans(op, places, row["exact"])
        ]

    return refused(made)


# ---- networks


def network_of(row: Row, where: str) -> Any:
    """The plan of a network: {"graph": a name or a seed, "side", "batch", "budget", "policy", "train", "exact"}."""

    def made() -> Row:
        graph = random_graph(row["graph"]) if isinstance(row["graph"], int) else named(row["graph"], **row["sizes"])
        plan = graph.plan(
            batch=row["batch"], budget=row["budget"], policy=row["policy"], train=row["train"], device=device(where, None),
            optimizer=SGD(0.1, 0.9) if row["train"] is True else None, deterministic=row["exact"],
        )  # fmt: skip
        told = json.loads(plan.to_json())
        return {
            "peaks": plan.peaks,
            "smallest": plan.smallest_bytes,
            "seconds": float(f"{plan.predicted_seconds:.{DIGITS}g}"),
            "moves": plan.lane_bytes,
            "proposal": told["proposal"],
            "kernels": {name: count for name, (count, _) in plan.kernels.items()},
        }

    return refused(made)


# ---- errors


def names() -> dict[str, Any]:
    """What the calls of errors.jsonl may name."""
    x, w, b = np.ones((2, 4, 9, 8), "f4"), np.ones((6, 4, 3, 3), "f4"), np.ones(6, "f4")
    return {
        "ooc": ooc, "np": np, "x": x, "w": w, "b": b, "y": np.ones((2, 6, 9, 8), "f4"), "flat": x.reshape(2, -1),
        "w2": np.ones((5, 288), "f4"), "graph": lambda: random_graph(3),
    }  # fmt: skip


def error_of(row: Row, _: str) -> Any:
    """How a call is refused: {"call": an expression}. Some are not, and write a file where they are."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), ooc.device("cpu", threads=2):
        found = refused(lambda: eval(row["call"], names()))  # the expressions are those of the file beside this one
    return found if isinstance(found, dict) and "error" in found else "not refused"


FILES: dict[str, tuple[Callable[[Row, str], Any], tuple[str, ...]]] = {
    "plans.jsonl": (plans_of, DEVICES), "networks.jsonl": (network_of, DEVICES), "errors.jsonl": (error_of, ("found",)),
}  # fmt: skip


def rows_of(name: str) -> list[Row]:
    """The lines of a file."""
    return [json.loads(line) for line in (HERE / name).read_text().splitlines()]


def now(name: str, row: Row, where: str) -> Any:
    """What this checkout makes of a line, as JSON has it."""
    return json.loads(json.dumps(FILES[name][0](row, where)))


def changes(name: str, rows: Iterable[Row]) -> Iterable[tuple[Row, str, Any]]:
    """Lines that this checkout makes otherwise, with the device and what it makes."""
    for row in rows:
        for where in FILES[name][1]:
            found = now(name, row, where)
            if found != row.get(where):
                yield row, where, found


def main() -> int:
    """Tell what differs, or write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("files", nargs="*", default=[*FILES])
    args = parser.parse_args()
    count = 0
    for name in args.files:
        rows = rows_of(name)
        for row, where, found in changes(name, rows):
            count += 1
            if not args.write:
                print(
                    json.dumps({k: v for k, v in row.items() if k not in DEVICES}), where, row.get(where), "->", found, sep="\n  "
                )
            row[where] = found
        if args.write:
            (HERE / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(f"{count} differ")
    return int(bool(count) and not args.write)


if __name__ == "__main__":
    sys.exit(main())

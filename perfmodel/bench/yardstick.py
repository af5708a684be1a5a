"""How far `auto` is from an optimum: each tensor kept, moved or made again as a whole, chosen by an integer program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ooc
from ooc.networks.auto.assigned import AssignmentProgram
from ooc.networks.auto.prices import Prices
from ooc.networks.judge import Judge
from ooc.networks.models import named

Row = dict[str, Any]
NETWORKS: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("resnet18", 32, {"side": 64}), ("unet3d", 1, {"side": 64}), ("vgg16", 32, {"side": 64, "width": 0.5, "dropout": 0}),
    ("wrn16-2", 64, {}),
)  # fmt: skip
GAP = 1e-3  # by which an optimum may be off
SHARES = (1 / 2, 1 / 3, 1 / 4, 1 / 6)


def measure(device: str) -> Iterator[Row]:
    """Rows: of networks under budgets what auto is predicted to take, and the optimum; None where no assignment fits."""
    where = ooc.device("null", calibration=device)
    for name, batch, sizes in NETWORKS:
        keep = named(name, **sizes).plan(batch=batch, policy="keep", device=where)
        for share in SHARES:
            plan = named(name, **sizes).plan(batch=batch, budget=int(keep.peaks["device"] * share), device=where)
            program = AssignmentProgram(Prices(Judge(plan.network, plan.scene, plan.budget)))
            best = program.optimum(plan.budget or 0, GAP)
            yield {
                "network": name, "batch": batch, **sizes, "device": device, "share": share, "budget": plan.budget,
                "keep_seconds": keep.predicted_seconds, "seconds": plan.predicted_seconds, "bound_seconds": plan.bound_seconds,
                "optimum_seconds": best and best.seconds, "gap": best and best.gap, "why": plan.why,
            }  # fmt: skip


def line(row: Row) -> str:
    """A row as a line of text."""
    over = [row[name] / row["keep_seconds"] if row[name] else None for name in ("bound_seconds", "optimum_seconds", "seconds")]
    bound, best, auto = ("none" if x is None else f"{x:.3f}" for x in over)
    far = f"{row['seconds'] / row['optimum_seconds'] - 1:+.1%}" if row["optimum_seconds"] else ""
    told = f"bound {bound}, optimum {best}, auto {auto} of keep {far}"
    return f"{row['network']:9} 1/{1 / row['share']:.0f}: {told}; {row['why'].partition(';')[0]}"

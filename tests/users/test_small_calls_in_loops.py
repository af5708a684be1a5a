"""Loops of small calls: planning must not be what they do."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ooc
from ooc.planner import planner, search


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often plans were searched for, and how often with a grid of tilings."""
    counted: Counter[str] = Counter()
    one, grid = planner.search, search.ladder

    def searching(*given: Any) -> Any:
        counted["plans"] += 1
        return one(*given)

    def costing(op: Any) -> Any:
        counted["grids"] += 1
        return grid(op)

    monkeypatch.setattr(planner, "search", searching)
    monkeypatch.setattr(search, "ladder", costing)
    return counted


def test_a_device_made_anew_in_every_turn_plans_once(searches: Counter[str]) -> None:
    x, w = np.ones((1, 4, 61, 67), "f"), np.ones((8, 4, 3, 3), "f")
    for _ in range(5):
        with ooc.device("cpu", budget="7777 B"):
            ooc.conv(x, w)
    assert searches["plans"] == 1
    with ooc.device("cpu", budget="7778 B"):
        ooc.conv(x, w)
    assert searches["plans"] == 2


def test_equal_devices_are_equal() -> None:
    assert ooc.device("cpu", budget="1 MiB") == ooc.device("cpu", budget=1 << 20)
    assert ooc.device("cpu", budget="1 MiB") != ooc.device("cpu", budget="2 MiB")
    assert ooc.device("cpu", threads=1) != ooc.device("cpu", threads=3)
    assert ooc.device("null") == ooc.device("null")


@pytest.mark.parametrize("budget", [None, "1 MiB"])
def test_tiny_shapes_are_not_searched(searches: Counter[str], budget: str | None) -> None:
    w = np.ones((8, 4, 3, 3), "f")
    with ooc.device("cpu", budget=budget):
        for n in range(5, 12):
            y = ooc.conv(np.ones((1, 4, n, 9), "f"), w, padding=1, activation="relu")
            ooc.conv_backward(np.ones((1, 4, n, 9), "f"), w, y, y=y, padding=1, activation="relu")
            ooc.softmax(y, 1)
    assert searches["plans"] >= 21
    assert not searches["grids"]


def test_what_is_not_tiny_is_searched(searches: Counter[str]) -> None:
    with ooc.device("cpu", budget="64 MiB"):
        plan = ooc.plan("conv.fprop n=8 c=64 h=112 w=112 k=64 r=3 s=3 pad=1")
    assert searches["grids"] == 1
    assert "greedy" in plan.why


@pytest.mark.parametrize("calls", [600, pytest.param(100_000, marks=pytest.mark.slow)])
def test_memory_stays_over_many_shapes(calls: int) -> None:
    """In a process of its own: after the first round, in which plans and kernels are remembered, nothing grows."""
    shapes = calls // 6 if calls < 10_000 else 2000
    ended = subprocess.run(
        [sys.executable, "-m", "perfmodel", "loop", "--calls", str(calls), "--shapes", str(shapes)],
        capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    rows = [line.split() for line in ended.stdout.splitlines()]
    resident = {int(row[0]): float(row[2]) for row in rows}
    assert max(resident) >= calls * 0.97
    settled = [at for made, at in resident.items() if made > max(2 * shapes, 2 * calls // 6)]
    assert settled and max(settled) - min(settled) < 16

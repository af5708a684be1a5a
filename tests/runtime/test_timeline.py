"""The picture of a timeline: measured lanes beside predicted ones, however many steps."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pictures import is_picture

import ooc
from ooc.runtime.machine import Measured
from ooc.runtime.report import Part
from ooc.schedule.lowering import lower

pytest.importorskip("matplotlib", reason="the picture is matplotlib's")
from ooc.runtime import timeline


def a_part(tiles: int) -> Part:
    """A run of a cut convolution with made-up times, never run."""
    side = 64 if tiles < 100 else 2048
    budget = "48 KiB" if tiles < 100 else "200 KiB"
    plan = ooc.plan(f"conv.fprop n=4 c=8 h={side} w={side} k=8 r=3 s=3 pad=1 dtype=f32", budget, device="null")
    todo = lower(plan)
    starts = [0.001 * i for i in range(len(todo.steps))]
    return Part(todo, Measured(starts, [s + 0.002 for s in starts]))


def test_a_part_without_prediction_is_predicted(tmp_path: Path) -> None:
    timeline.draw([a_part(10), a_part(10)], tmp_path / "t.png")
    assert is_picture(tmp_path / "t.png")


def test_tens_of_thousands_of_steps_are_quick(tmp_path: Path) -> None:
    part = a_part(10_000)
    assert len(part.schedule.steps) > 10_000
    begin = time.perf_counter()
    timeline.draw([part], tmp_path / "t.png")
    assert time.perf_counter() - begin < 10
    assert is_picture(tmp_path / "t.png")


def test_an_empty_run_is_drawn(tmp_path: Path) -> None:
    timeline.draw([], tmp_path / "t.png")
    assert (tmp_path / "t.png").stat().st_size > 0

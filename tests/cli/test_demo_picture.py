"""The picture of the demo: measured lanes beside predicted ones, however many steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pictures import is_picture

import ooc
from ooc.model.simulate import Timeline
from ooc.runtime.machine import Measured
from ooc.runtime.report import Part
from ooc.schedule.lowering import lower

pytest.importorskip("matplotlib", reason="the picture is matplotlib's")
from matplotlib.figure import Figure

from ooc.cli.demo.picture import draw


def a_part(tiles: int) -> Part:
    """A run of a cut convolution with made-up times, never run."""
    side = 64 if tiles < 100 else 2048
    budget = "48 KiB" if tiles < 100 else "200 KiB"
    plan = ooc.plan(f"conv.fprop n=4 c=8 h={side} w={side} k=8 r=3 s=3 pad=1 dtype=f32", budget, device="null")
    todo = lower(plan)
    starts = [0.001 * i for i in range(len(todo.steps))]
    return Part(todo, Measured(starts, [s + 0.002 for s in starts]), Timeline(starts, [s + 0.001 for s in starts], {}))


def test_parts_are_one_picture(tmp_path: Path) -> None:
    draw([a_part(10), a_part(10)], tmp_path / "t.png", "two parts")
    assert is_picture(tmp_path / "t.png")


def test_tens_of_thousands_of_steps_are_few_artists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What matplotlib draws is as much as for ten steps: collections, none for a step of its own."""
    counts: list[int] = []
    save = Figure.savefig

    def saving(self: Figure, *where: Any, **how: Any) -> None:
        counts.append(max(len(axis.get_children()) for axis in self.axes))
        save(self, *where, **how)

    monkeypatch.setattr(Figure, "savefig", saving)
    for tiles in (10, 10_000):
        draw([a_part(tiles)], tmp_path / "t.png", "one part")
        assert is_picture(tmp_path / "t.png")
    assert len(a_part(10_000).schedule.steps) > 10_000 and counts[1] <= counts[0]


def test_an_empty_run_is_drawn(tmp_path: Path) -> None:
    draw([], tmp_path / "t.png", "nothing")
    assert (tmp_path / "t.png").stat().st_size > 0

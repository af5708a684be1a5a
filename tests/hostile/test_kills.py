"""Runs that are killed at every kind of moment, and resumed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile import kills

pytest.importorskip("onnx")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and is killed")


@pytest.mark.parametrize(
    ("count", "kinds"), [(7, "zarr"), pytest.param(210, ",".join(kills.FORMATS), marks=pytest.mark.slow)], ids=["7", "210"]
)
def test_nothing_is_lost_wrong_or_stuck(count: int, kinds: str, tmp_path: Path) -> None:
    """In a process of its own, which forks."""
    rows = tmp_path / "rows.jsonl"
    how = ["--kills", str(count), "--kinds", kinds, "--rows", str(rows)]
    ended = subprocess.run([sys.executable, kills.__file__, *how], capture_output=True, text=True)
    assert not ended.returncode, ended.stdout + ended.stderr
    *each, last = map(json.loads, rows.read_text().splitlines())
    assert len(each) == count and last["wrong"] == 0
    assert set(last["phases"]) == set(kills.PHASES) and min(last["phases"].values()) >= count // len(kills.PHASES)


def test_phases_are_told_apart() -> None:
    """By what a step touches, and where it stands in the run."""
    touched = [
        "os.mkdir y.npy.work.part00000000", "os.rename y.npy.work.part00000000/y.npy.work/work.json.part1 work.json",
        "open y.npy.work/between/0-1.abcd", *[f"os.rename part y.npy.work/done/0-0-{i}" for i in range(4)],
        "open y.npy.work/result.abcd/y.npy", "os.link y.npy.work/result.abcd/y.npy /room/y.npy", "os.rmdir y.npy.work/sums",
    ]  # fmt: skip
    found = [moment.phase for moment in kills.moments(touched, kills.Case("npy", "resume"))]
    wanted = ["before the mark"] * 2 + ["computing"] + ["journal"] * 4 + ["last task", "rename", "tidying"]
    assert found == wanted

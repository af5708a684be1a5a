"""Flipped bits, full disks and hostile arrays, a few of each; kills are in test_kills.py. See faults.py for more of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile import faults

pytest.importorskip("onnx")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="mounts and forks")


@pytest.mark.parametrize(
    ("flips", "disks", "arrays"), [(4, 2, 60), pytest.param(160, 24, 4000, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_nothing_is_lost_or_wrong(flips: int, disks: int, arrays: int, tmp_path: Path) -> None:
    """In a process of its own, which forks."""
    rows = tmp_path / "rows.jsonl"
    how = ["--kills", "0", "--flips", str(flips), "--disks", str(disks), "--arrays", str(arrays), "--rows", str(rows)]
    ended = subprocess.run([sys.executable, faults.__file__, *how], capture_output=True, text=True)
    assert not ended.returncode, ended.stdout + ended.stderr
    each = [json.loads(line) for line in rows.read_text().splitlines()]
    assert len(each) == flips + disks + arrays and not any(row["wrong"] for row in each)
    assert {row["kind"] for row in each} == {"flips", "disks", "arrays"}


def test_a_wrong_result_would_show() -> None:
    """The comparison itself: another result, an error that is none of ours."""
    assert faults.gone_on(lambda: None, lambda: None, lambda: False)["wrong"] == "wrong bits"
    assert faults.outcome(lambda: 1 / 0, [], {}, None) == ("ZeroDivisionError", "untyped: ZeroDivisionError('division by zero')")

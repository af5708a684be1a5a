"""Damaged and hostile files are refused in one line, within bounds; nothing outside is touched. See fuzz.py for more of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import bombs
import fuzz
import subjects

pytest.importorskip("onnx")
pytest.importorskip("zarr")
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak of resident memory comes from /proc")


def others(rows: list[fuzz.Row]) -> list[tuple[str, str, str]]:
    """What is wrong, but for what takes long: this machine may be busy."""
    found = []
    for row in rows:
        faults = [f for f in row["wrong"].split("; ") if f and not f.endswith(" s")]
        if faults:
            found.append((row.get("bomb") or f"{row['subject']} {row['number']}", "; ".join(faults), row["message"]))
    return found


@pytest.mark.parametrize("subject", subjects.SUBJECTS)
def test_files_are_read_as_they_are(subject: str, tmp_path: Path) -> None:
    """What mutants are made of is right: without that, all would be refused for another reason."""
    subjects.SUBJECTS[subject].make(tmp_path)
    subjects.SUBJECTS[subject].read(tmp_path)


@linux
@pytest.mark.parametrize("mutants", [120, pytest.param(220, marks=pytest.mark.slow), pytest.param(2000, marks=pytest.mark.slow)])
def test_damaged_files(mutants: int) -> None:
    rows = list(fuzz.fuzz(mutants, list(subjects.SUBJECTS), seed=mutants))
    assert others(rows) == []
    assert {row["subject"] for row in rows} == set(subjects.SUBJECTS)
    assert mutants // 10 < sum(row["came"] == "read" for row in rows) < mutants // 2  # some changes do no harm


@linux
def test_bombs() -> None:
    rows = list(fuzz.explode())
    assert others(rows) == []
    assert [row["bomb"] for row in rows] == list(bombs.BOMBS)

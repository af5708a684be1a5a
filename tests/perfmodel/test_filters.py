"""`python -m perfmodel filters`: our convolutions beside SciPy's, in memory and from files, with errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfmodel.__main__ import main
from perfmodel.bench import filters

ONLY = "64x64, 15x15"


@pytest.mark.parametrize("share", [0, 4])
def test_rows(share: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rows.jsonl"
    words = ["filters", "--side", "64", "--rounds", "1", "--only", f"1 -> 1, {ONLY}", "--share", str(share), "--out", str(out)]
    assert main([*words, "--dir", str(tmp_path)]) == 0
    head, row = map(json.loads, out.read_text().splitlines())
    assert head["system"] and row["problem"] == f"1 -> 1, {ONLY}" and row["share"] == share
    assert row["seconds"].keys() >= {"ooc", "fftconvolve", "oaconvolve"} and row["ratio"] > 0
    assert all(error < 1e-5 for error in row["errors"].values())
    assert not share or row["peak_bytes"] <= 2 * 4 * 64 * 64 // share
    assert "1 problems" in capsys.readouterr().out and [*tmp_path.iterdir()] == [out]


def test_slow_peers_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, and with more taps, where they are not called again."""
    calls: list[str] = []
    plain = filters._scipy
    monkeypatch.setattr(filters, "MOST_SECONDS", 0.0)
    monkeypatch.setattr(filters, "_scipy", lambda name, *args: lambda: (calls.append(name), plain(name, *args)())[1])
    row, *others = filters.filters(64, 1, only="1 -> 1, 64x64, 1")  # 11 x 11, 15 x 15 and more
    assert row["seconds"].keys() == row["errors"].keys() == {"ooc"} and row["ratio"] is None
    assert len(others) == 3 and sorted(calls) == ["fftconvolve", "oaconvolve"]
    assert "alone" in filters.line(row) and filters.summary([row]) == "nothing to compare with"

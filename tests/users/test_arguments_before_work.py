"""What a call is asked is looked at before it begins: no result is lost to a bad path."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ooc
from ooc.runtime.executor import Run

X, W = np.ones((1, 2, 6, 6), "f"), np.ones((3, 2, 3, 3), "f")


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any) -> None:
        raise AssertionError("something was computed")

    monkeypatch.setattr(Run, "go", run)


BAD = {
    "trace in no folder": ({"trace": "/no/such/folder/trace.json"}, ooc.StoreError, "trace: .*its folder does not exist"),
    "trace a folder": ({"trace": "."}, ooc.StoreError, "trace: .*is a folder"),
    "trace empty": ({"trace": ""}, ooc.OptionError, "trace: expected the path of a file"),
    "trace a number": ({"trace": 3}, ooc.OptionError, "trace: expected the path of a file"),
    "trace with NUL": ({"trace": "a\0b"}, ooc.StoreError, "trace: "),
    "trace that no file can have": ({"trace": "/tmp/\ud800.json"}, ooc.StoreError, "trace: "),
    "callbacks a number": ({"callbacks": 3}, ooc.OptionError, "callbacks: expected a function"),
    "callbacks of numbers": ({"callbacks": [3]}, ooc.OptionError, "callbacks: expected a function"),
    "deterministic a list": ({"deterministic": []}, ooc.OptionError, "deterministic: expected True or False, got"),
    "deterministic a text": ({"deterministic": "no"}, ooc.OptionError, "deterministic: expected True or False, got 'no'"),
    "progress an array": ({"progress": np.ones(5000)}, ooc.OptionError, "progress: expected True or False"),
    "misspelt": ({"pading": 1}, ooc.OptionError, "no option pading= here; did you mean padding="),
    "misspelt run option": ({"determinstic": True}, ooc.OptionError, "did you mean deterministic="),
    "unknown": ({"zzzzzz": 1}, ooc.OptionError, "no option zzzzzz= here$"),
}
CALLS = {
    "conv": lambda **o: ooc.conv(X, W, **o),
    "conv_backward": lambda **o: ooc.conv_backward(X, W, np.ones((1, 3, 4, 4), "f"), alpha=2.0, **o),
    "concat": lambda **o: ooc.concat([X, X], **o),
    "batch_norm": lambda **o: ooc.batch_norm(X, training=True, **o),
    "cross_entropy": lambda **o: ooc.cross_entropy(X, np.zeros((1, 6, 6), int), **o),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("call", CALLS)
def test_bad_options_are_refused_before_anything_is_computed(call: str, name: str, nothing_runs: None) -> None:
    options, kind, message = BAD[name]
    with pytest.raises(kind, match=message) as caught:
        CALLS[call](**options)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_trace_that_may_not_be_written(tmp_path: Path, nothing_runs: None) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ooc.StoreError, match="permission denied"):
        ooc.conv(X, W, trace=tmp_path / "trace.json")


def test_a_trace_that_fails_in_the_end_loses_no_result(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    with pytest.warns(RuntimeWarning, match="trace: .* was not written"):
        y = ooc.conv(X, W, trace=folder / "trace.json", callbacks=lambda *_: folder.exists() and folder.rmdir())
    np.testing.assert_array_equal(y, np.full((1, 3, 4, 4), 18.0))


def test_numbers_that_no_type_has() -> None:
    for options in ({"alpha": 10**400}, {"alpha": 10**5000}, {"stride": 10**5000}, {"padding": -(10**5000)}):
        with pytest.raises(ooc.ShapeError, match=f"{next(iter(options))}: expected a") as caught:
            ooc.conv(X, W, **options)
        assert len(str(caught.value)) < 300


def test_files_of_all_results_are_looked_at_first(tmp_path: Path) -> None:
    """With alpha each result has a pass of its own; a file that is too short is told of before any."""
    z = np.lib.format.open_memmap(tmp_path / "z.npy", "w+", "f", (1, 3, 2, 2))
    os.truncate(tmp_path / "z.npy", 16)
    y = np.full((1, 3, 4, 4), 7, "f")
    with pytest.raises(ooc.StoreError, match="truncated"):
        ooc.conv(X, W, pool=2, with_unpooled=True, out=(y, z), alpha=2.0)
    assert (y == 7).all()


def test_a_bare_function_is_a_callback() -> None:
    seen: list[tuple[int, int]] = []
    ooc.conv(X, W, callbacks=lambda done, tiles: seen.append((done, tiles)))
    assert seen == [(1, 1)]


def test_several_results_are_refused_together() -> None:
    """With alpha each gradient has a plan of its own; one that does not fit is told of before another is written."""
    x, dy = np.ones((1, 64, 8, 8), "f"), np.ones((1, 2, 8, 8), "f")
    w = np.ones((2, 64, 1, 1), "f")
    outs = {"dx": np.full_like(x, 7), "dw": np.full_like(w, 7), "db": np.full(2, 7, "f")}
    least = 0
    for name in outs:
        with pytest.raises(ooc.BudgetError) as caught, ooc.device("cpu", budget=1):
            ooc.conv_backward(x, w, dy, want=name, alpha=2.0, deterministic=True)
        least = max(least, caught.value.smallest_bytes or 0)
    with pytest.raises(ooc.BudgetError), ooc.device("cpu", budget=least - 1):
        ooc.conv_backward(x, w, dy, alpha=2.0, deterministic=True, **outs)
    assert all((out == 7).all() for out in outs.values())

"""A process that makes calls for a long time, by several threads, holds no more than at first."""

from __future__ import annotations

import gc
import json
import re
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ooc
from tests.hostile import soak

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads what a process holds from /proc")
SHORT = ["--calls", "300", "--every", "20", "--variants", "1"]


def ran(*how: str) -> subprocess.CompletedProcess[str]:
    """The script, in a process of its own: what this one holds changes for other reasons."""
    return subprocess.run([sys.executable, soak.__file__, *how], capture_output=True, text=True)


@linux
@pytest.mark.parametrize(
    "how", [pytest.param(SHORT, id="300"), pytest.param(["--calls", "20000"], id="20000", marks=pytest.mark.slow)]
)
def test_many_calls(how: list[str], tmp_path: Path) -> None:
    rows, picture = tmp_path / "rows.jsonl", tmp_path / "memory.png"
    ended = ran(*how, "--threads", "4", "--rows", str(rows), "--plot", str(picture))
    assert not ended.returncode, ended.stdout + ended.stderr
    head, *noted, last = map(json.loads, rows.read_text().splitlines())
    assert head["calls"] == int(how[1]) == sum(last["kinds"].values()) == noted[-1]["calls"]
    assert len([row for row in noted if "quarter" in row]) == soak.QUARTERS
    assert last["checked"] == head["calls"] // soak.CHECKED and not last["wrong"]
    assert set(last["kinds"]) >= {"conv", "refused", "stopped", "npy"}
    assert picture.read_bytes().startswith(b"\x89PNG")


@linux
def test_some_kinds_alone(tmp_path: Path) -> None:
    """What is found to grow is looked for with --only."""
    rows = tmp_path / "rows.jsonl"
    ended = ran("--calls", "64", "--every", "4", "--variants", "1", "--only", "pool,refused", "--rows", str(rows))
    assert ended.stdout.endswith("soak: nothing grew\n"), ended.stdout + ended.stderr
    assert set(json.loads(rows.read_text().splitlines()[-1])["kinds"]) == {"pool", "refused"}
    with pytest.raises(SystemExit):
        soak.main(["--only", "nothing"])


def held(**now: Any) -> tuple[list[soak.Row], list[soak.Row]]:
    """Rows and rests of 8000 calls, of which the last quarter is different."""
    rows = [{"calls": calls, "resident_MiB": 100.0} for calls in range(100, 8001, 100)]
    rests: list[soak.Row] = [{"fds": 10, "threads": 5} for _ in range(soak.QUARTERS)]
    for row in rows[60:]:
        row["resident_MiB"] = now.get("resident_MiB", 100.0)
    return rows, [*rests[:-1], {**rests[-1], **now}]


@pytest.mark.parametrize(
    ("now", "told"),
    [
        ({}, ""), ({"resident_MiB": 129.0, "fds": 9, "threads": 4}, ""), ({"resident_MiB": 131.0}, "from 100.0 MiB .* to 131.0"),
        ({"fds": 11}, "open files grew from 10 .* to 11"), ({"threads": 6}, "threads grew from 5"),
    ],
)  # fmt: skip
def test_what_grows_is_told(now: dict[str, Any], told: str) -> None:
    found = soak.verdict(*held(**now), 8000, [], [])
    assert re.fullmatch(f".*{told}.*" if told else "", found)


def test_what_else_is_told() -> None:
    rows, rests = held()
    assert "1 unexpected errors; the first: call 7, conv: KeyError: 3" in soak.verdict(
        rows, rests, 8000, ["call 7, conv: T\nKeyError: 3"], []
    )
    assert "2 of 4 quarters" in soak.verdict(rows, rests[:2], 8000, [], [])
    assert "left: .ooc-a" in soak.verdict(rows, rests, 8000, [], [".ooc-a"])


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Nothing goes but what nobody refers to any more."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


W = np.ones((4, 4, 3, 3), np.float32)
CALLS: dict[str, Callable[[Any], Any]] = {
    "conv": lambda x: ooc.conv(x, W, padding=1), "pool": lambda x: ooc.max_pool(x, 2), "softmax": ooc.softmax,
    "chain": lambda x: ooc.chain(x, ooc.Conv(W), ooc.Conv(W)), "norm": lambda x: ooc.batch_norm(x, training=True).y,
    "backward": lambda x: ooc.conv_backward(x, W, x, padding=1).dx,
}  # fmt: skip


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("budget", [None, "16 KiB"])
@pytest.mark.parametrize("name", CALLS)
def test_arrays_go_with_their_last_user(name: str, budget: str | None) -> None:
    """What a call was given and what it made, and the memory of its device: no circle of references keeps them. In a loop of
    large calls there is nothing else that would make Python look for such."""
    x = np.ones((2, 4, 32, 32), np.float32)
    with ooc.device("cpu", budget=budget) as device:
        y = CALLS[name](x)
    gone = [weakref.ref(value) for value in (x, y, device.backend)]
    del x, y, device
    assert [ref() for ref in gone] == [None] * 3

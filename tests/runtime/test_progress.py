"""`progress=True`: a bar in a terminal, whole lines and few of them in a log, with tqdm and without."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest

import ooc
from ooc.runtime import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(params=["tqdm", "no tqdm"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "tqdm":
        pytest.importorskip("tqdm")
    else:
        monkeypatch.setitem(sys.modules, "tqdm", None)
    return str(request.param)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that have passed, to be set."""
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    return now


def run(total: int, seconds: float, stream: io.StringIO, clock: list[float], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is told of so many tiles that take as long each."""
    monkeypatch.setattr(sys, "stderr", stream)
    with progress.telling(total, True, ()) as on_tile:
        for i in range(total):
            clock[0] += seconds
            on_tile(i)
    return stream.getvalue().splitlines()


@pytest.mark.parametrize(("total", "seconds"), [(10_000, 0.01), (10_000, 0.001), (40, 100.0), (7, 2.0), (100_000, 1.0)])
def test_a_log_has_few_lines(
    total: int, seconds: float, library: str, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = run(total, seconds, io.StringIO(), clock, monkeypatch)
    assert 2 <= len(lines) <= 10 and lines[-1] == f"{total}/{total} tiles in {total * seconds:.1f} s"
    told = [(int(line.split("/")[0]), float(line.split()[3])) for line in lines]
    for (done, at), (more, later) in zip([(0, 0.0), *told], told[:-1], strict=False):
        assert more - done >= total / 10 and later - at > 2.8


@pytest.mark.parametrize("later", [0.1, 1.0, 5.0])
def test_what_is_left_goes_by_what_the_machine_does_now(later: float, clock: list[float]) -> None:
    """A quarter at one pace, the rest at another: from twice that time on the second counts alone."""
    remaining, total = progress.TimeLeft(), 400
    assert remaining.seconds(0.0) is None
    for done in range(1, total + 1):
        clock[0] += 1.0 if done <= total / 4 else later
        left = remaining.seconds(done / total)
        if done <= total / 4:
            assert left == pytest.approx(total - done)
        elif clock[0] >= total / 2 + later:
            assert left == pytest.approx((total - done) * later, abs=1e-6)


def test_a_log_says_what_is_left(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    *lines, last = run(40, 1.0, io.StringIO(), clock, monkeypatch)
    assert lines and all(line.endswith(f" s, {40 - int(line.split('/')[0])} s left") for line in lines)
    assert last == "40/40 tiles in 40.0 s"


def test_of_a_quick_call_a_log_has_one_line(library: str, clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(5000, 1e-4, io.StringIO(), clock, monkeypatch) == ["5000/5000 tiles in 0.5 s"]


def test_what_was_done_until_an_error(library: str, clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", log := io.StringIO())
    with pytest.raises(KeyboardInterrupt), progress.telling(9, True, ()) as on_tile:
        on_tile(0)
        raise KeyboardInterrupt
    assert log.getvalue() == "1/9 tiles in 0.0 s\n"


def test_a_terminal_has_one_line_that_is_rewritten(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with progress.telling(500, True, ()) as on_tile:
        for i in range(500):
            on_tile(i)
    told = terminal.getvalue()
    assert told.count("\n") == 1 and told.endswith("\n") and told.startswith("\r") and "500/500" in told
    assert ("%" in told) == (library == "tqdm") and len(told) < 4000


def test_a_call_tells(library: str, capsys: pytest.CaptureFixture[str]) -> None:
    x, seen = np.ones((1, 4, 64, 64), np.float32), []
    with ooc.device("cpu", "16 KiB"):
        ooc.softmax(x, progress=True, callbacks=[lambda done, total: seen.append((done, total))])
    total = len(seen)
    assert total > 1 and seen == [(i + 1, total) for i in range(total)]
    out, err = capsys.readouterr()
    assert not out and err.startswith(f"{total}/{total} tiles in ") and err.count("\n") == 1

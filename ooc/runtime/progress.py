"""Telling the caller how far a call is: a bar in a terminal, a few lines in a log, and the caller's own functions."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

Callback = Callable[[int, int], None]

# A log has a line when this share more is done, and never sooner than so many seconds after the one before.
SHARE, PAUSE_SECONDS = 0.1, 3.0
REDRAWN = 20  # times that a line in a terminal is written anew
LOOKS = 200  # times that the pace of a call is looked at


class TimeLeft:
    """How long the rest will take, at the pace of the later half of the time since the first look: what the machine does now
    counts, not what it did when it was busier, or less busy; nor what was done before."""

    def __init__(self) -> None:
        self._begun = 0.0
        self._looks = deque[tuple[float, float]]()  # times, and the share that was done; the first at half of the time, or before

    def seconds(self, share: float) -> float | None:
        """Seconds that are left when this share is done; None before there is a pace."""
        now = time.perf_counter()
        if not self._looks:
            self._begun = now
        self._looks.append((now, share))
        while len(self._looks) > 2 and self._looks[1][0] <= (self._begun + now) / 2:
            self._looks.popleft()
        then, before = self._looks[0]
        return (now - then) * (1 - share) / (share - before) if share > before else None

    def words(self, share: float) -> str:
        """The same in words."""
        seconds = self.seconds(share)
        return "" if seconds is None else f"{seconds:.0f} s left"


@contextmanager
def telling(total: int, show: bool, callbacks: Sequence[Callback]) -> Iterator[Callable[[int], None]]:
    """A function to call after every tile, driving a bar and the caller's callbacks."""
    bar = _bar(total, sys.stderr) if show and sys.stderr is not None else None  # a program without a console has none
    done = 0

    def on_tile(_: int) -> None:
        nonlocal done
        done += 1
        if bar is not None:
            bar.update()
        for callback in callbacks:
            callback(done, total)

    try:
        yield on_tile
    finally:
        if bar is not None:
            bar.close()


def _bar(total: int, stream: TextIO) -> Any:
    """What has `update`, for each tile, and `close`: tqdm where it is installed and there is a terminal to draw in, else text."""
    if not stream.isatty():
        return _Log(total, stream)
    try:
        from tqdm import tqdm
    except ImportError:
        return _Line(total, stream)
    return tqdm(total=total, unit="tile", file=stream)


class _Line:
    """A line in a terminal, written anew as tiles are done."""

    def __init__(self, total: int, stream: TextIO) -> None:
        self.total, self.stream, self.done, self.remaining = total, stream, 0, TimeLeft()

    def update(self) -> None:
        self.done += 1
        if self.done * REDRAWN // self.total != (self.done - 1) * REDRAWN // self.total:
            self._write(self.remaining.words(self.done / self.total), "")

    def close(self) -> None:
        self._write("", "\n")

    def _write(self, left: str, end: str) -> None:
        print(f"\r{self.done}/{self.total} tiles {left:12}", end=end, file=self.stream, flush=True)


class _Log:
    """Whole lines, few of them: of a quick call the last alone."""

    def __init__(self, total: int, stream: TextIO) -> None:
        self.total, self.stream, self.done = total, stream, 0
        self.begun = self.last = time.perf_counter()
        self.told, self.remaining = 0, TimeLeft()

    def update(self) -> None:
        self.done += 1
        if self.done * LOOKS // self.total == (self.done - 1) * LOOKS // self.total:
            return
        left = self.remaining.words(self.done / self.total)
        enough = self.done - self.told >= SHARE * self.total and self.done < self.total
        if enough and time.perf_counter() - self.last >= PAUSE_SECONDS:
            self._write(left)

    def close(self) -> None:
        self._write("")

    def _write(self, left: str) -> None:
        self.told, self.last = self.done, time.perf_counter()
        seconds = self.last - self.begun
        print(f"{self.done}/{self.total} tiles in {seconds:.1f} s{', ' * bool(left)}{left}", file=self.stream, flush=True)

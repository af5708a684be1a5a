"""How far a long measurement is: a bar in a terminal, plain lines in a log."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, TextIO


class CalibrationProgress:
    """Announces the steps of a known number: `with Progress(12) as progress: progress.step("copies")`.

    total: steps to come; None, or more steps than that: it counts without one. In a terminal tqdm draws a bar where it is
    installed, else one line is rewritten; elsewhere every step is a line of its own with the seconds so far.
    """

    def __init__(self, total: int | None = None, stream: TextIO | None = None) -> None:
        self.total, self.stream, self.begun = total, stream or sys.stderr, 0
        self.start, self.width = time.perf_counter(), 0
        self.terminal = self.stream.isatty()
        self.bar: Any = _bar(total, self.stream) if self.terminal else None

    def step(self, text: str) -> None:
        """A step begins; the one before is done."""
        self.begun += 1
        if self.total is not None and self.begun > self.total:
            self.total = self.begun
        if self.bar is not None:
            self.bar.total = self.total
            self.bar.set_description_str(text, refresh=False)
            self.bar.n = self.begun - 1
            self.bar.refresh()
        else:
            self._line(text)

    def __enter__(self) -> CalibrationProgress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.bar is not None:
            if kind is None:
                self.bar.n = self.bar.total = self.begun
                self.bar.set_description_str("done")
            self.bar.close()
        elif self.terminal and self.begun:
            print(file=self.stream, flush=True)

    def _line(self, text: str) -> None:
        of = f"/{self.total}" if self.total is not None else ""
        line = f"[{self.begun}{of}] {time.perf_counter() - self.start:.0f} s  {text}"
        if self.terminal:
            print(f"\r{line:<{self.width}}", end="", file=self.stream, flush=True)
            self.width = len(line)
        else:
            print(line, file=self.stream, flush=True)


def _bar(total: int | None, stream: TextIO) -> Any:
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(total=total, file=stream, unit="step", dynamic_ncols=True, leave=True)

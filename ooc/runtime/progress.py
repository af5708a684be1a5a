"""How far something is, told in one way: a bar in a notebook or a terminal, a few lines in a log, the caller's own functions."""

from __future__ import annotations

import importlib
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol, TextIO

Callback = Callable[[int, int], None]

TENTHS = 10  # a log has a line when a tenth more is done
PAUSE_SECONDS = 3.0  # between two lines in a log of a call, at least
REDRAWN = 0.1  # seconds before a line in a terminal is written anew
LOOKS = 200  # times that a pace is looked at


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


class Progress:
    """How far something is, while a block lasts: a bar of tqdm in a notebook or a terminal, where that is not installed in a
    terminal a line that is written anew; in a log a line for every tenth.

    Parameters:
        total: what there is to do.
        unit: of which it is counted; "": shares are told.
        stream: where it is told; None: nowhere, as in a program without a console.
        label: what lines begin with.
        pause: seconds between two lines of a log, at least; then its last line says how far it came.
    """

    def __init__(self, total: float, unit: str, stream: TextIO | None, *, label: str = "", pause: float = 0.0) -> None:
        self.total, self.unit, self.label, self.done = total, unit, label, 0.0
        self._begun, self._look, self._remaining, self._left = time.perf_counter(), -1, TimeLeft(), ""
        self._shown = _shown(self, stream, pause)

    def to(self, done: float, about: str = "") -> None:
        """So much is done. about: what else there is to say."""
        self.done, look = done, int(done * LOOKS / self.total)
        if look != self._look or about:
            self._look, self._left = look, self._remaining.words(done / self.total) if done < self.total else ""
            self._shown.to(about)

    def say(self, text: str) -> None:
        """A line of its own."""
        self._shown.say(text)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._shown.close()

    def words(self, about: str = "") -> str:
        """How far it is."""
        more = ", ".join(filter(None, (about, self._left)))
        if not self.unit:
            return f"{self.label}{self.done / self.total:4.0%} {more}".rstrip()
        counted = f"{self.done:.0f}/{self.total:.0f} {self.unit}s in {time.perf_counter() - self._begun:.1f} s"
        return f"{self.label}{counted}{', ' * bool(more)}{more}"


@contextmanager
def telling(total: int, show: bool, callbacks: Sequence[Callback]) -> Iterator[Callable[[int], None]]:
    """A function to call after every tile, driving a bar and the caller's callbacks."""
    done = 0
    with Progress(total, "tile", sys.stderr if show else None, pause=PAUSE_SECONDS) as progress:

        def on_tile(_: int) -> None:
            nonlocal done
            done += 1
            progress.to(done)
            for callback in callbacks:
                callback(done, total)

        yield on_tile


class _Shown(Protocol):
    """What is seen of a progress."""

    def to(self, about: str) -> None: ...

    def say(self, text: str) -> None: ...

    def close(self) -> None: ...


def _shown(progress: Progress, stream: TextIO | None, pause: float) -> _Shown:
    """A bar of tqdm where it is installed and something shows it, a line in a terminal, else lines of a log."""
    if stream is None:
        return _Nothing()
    notebook = "ipykernel" in sys.modules and not stream.isatty()
    if notebook or stream.isatty():
        try:
            return _Bar(progress, stream, notebook)
        except ImportError:
            pass
    return _Line(progress, stream) if stream.isatty() else _Log(progress, stream, pause)


class _Nothing:
    """Nobody looks."""

    def to(self, about: str) -> None:
        pass

    say = to

    def close(self) -> None:
        pass


class _Bar:
    """One of tqdm."""

    def __init__(self, progress: Progress, stream: TextIO, notebook: bool) -> None:
        with warnings.catch_warnings():  # a notebook without widgets has a bar of text
            warnings.simplefilter("ignore")
            tqdm: Any = importlib.import_module("tqdm.auto" if notebook else "tqdm").tqdm
            more: dict[str, Any] = {} if progress.unit else {"bar_format": "{l_bar}{bar}| {elapsed}<{remaining}{postfix}"}
            self.bar = tqdm(
                total=progress.total, unit=progress.unit or "it", file=stream, desc=progress.label.strip() or None, **more
            )
        self.progress, self.stream = progress, stream

    def to(self, about: str) -> None:
        if about:
            self.bar.set_postfix_str(about, refresh=False)
        self.bar.update(self.progress.done - self.bar.n)

    def say(self, text: str) -> None:
        self.bar.write(text, file=self.stream)

    def close(self) -> None:
        self.bar.close()


class _Line:
    """A line in a terminal, written anew."""

    def __init__(self, progress: Progress, stream: TextIO) -> None:
        self.progress, self.stream, self.last, self.width, self.about = progress, stream, 0.0, 0, ""

    def to(self, about: str) -> None:
        self.about, now = about, time.perf_counter()
        if not self.width or now - self.last >= REDRAWN:
            self.last = now
            self._write("")

    def say(self, text: str) -> None:
        print(f"\r{'':{self.width}}\r{text}", file=self.stream, flush=True)
        self.width = 0

    def close(self) -> None:
        if self.width:
            self._write("\n")

    def _write(self, end: str) -> None:
        text = self.progress.words(self.about)
        print(f"\r{text:{self.width}}", end=end, file=self.stream, flush=True)
        self.width = max(self.width, len(text))


class _Log:
    """Whole lines, few of them: of what is quick the last alone, where there is a pause between them."""

    def __init__(self, progress: Progress, stream: TextIO, pause: float) -> None:
        self.progress, self.stream, self.pause = progress, stream, pause
        self.told, self.last = -1.0, time.perf_counter()

    def to(self, about: str) -> None:
        done, total, now = self.progress.done, self.progress.total, time.perf_counter()
        if self.told < 0:  # what was done before is not told
            self.told = total / TENTHS * int(done * TENTHS / total * (1 - 1e-9))
        if done - self.told >= total / TENTHS * (1 - 1e-9) and now - self.last >= self.pause and (done < total or not self.pause):
            self._write(about)

    def say(self, text: str) -> None:
        print(text, file=self.stream, flush=True)

    def close(self) -> None:
        if self.pause:
            self._write("")

    def _write(self, about: str) -> None:
        self.told, self.last = self.progress.done, time.perf_counter()
        print(self.progress.words(about), file=self.stream, flush=True)

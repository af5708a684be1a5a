"""Waiting in tests: for a condition, not for a time. The one limit is for what hangs, and no slow or busy machine reaches it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

HANGS = 1200.0  # seconds after which what a test waits for is taken to hang


def until(holds: Callable[[], object]) -> None:
    """Wait until something holds. Raises TimeoutError where it never does."""
    end = time.monotonic() + HANGS
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"what is waited for did not come in {HANGS:.0f} s")
        time.sleep(0.001)


def until_files(process: Popen[Any], folder: Path, pattern: str = "*", more_than: int = 0) -> None:
    """Wait until a folder, which need not exist yet, holds more than so many files of a pattern, or the process has ended."""
    until(lambda: process.poll() is not None or len([*folder.glob(pattern)]) > more_than)


@contextmanager
def no_hang() -> Iterator[None]:
    """What waits for ever within, such as for whoever writes to a pipe, is interrupted by a TimeoutError."""

    def interrupt(*_: Any) -> None:
        raise TimeoutError(f"this took more than {HANGS:.0f} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, HANGS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

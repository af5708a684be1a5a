"""How much resident memory a piece of work takes, as the operating system sees it."""

from __future__ import annotations

import threading
from pathlib import Path


class ResidentMemory:
    """Growth of this process's resident memory inside a `with`: the kernel's high-water mark, else samples of it."""

    INTERVAL_SECONDS = 0.02

    def __init__(self) -> None:
        self.grown_bytes = 0
        self._highest = self._before = 0
        self._done = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> ResidentMemory:
        try:
            Path("/proc/self/clear_refs").write_text("5")  # the mark starts anew
            self._mark = "VmHWM"
        except OSError:
            self._mark = "VmRSS"
        self._before = _status("VmRSS")
        self._sampler.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._sampler.join()
        self.grown_bytes = max(0, max(self._highest, _status(self._mark)) - self._before)

    def _sample(self) -> None:
        while not self._done.wait(self.INTERVAL_SECONDS):
            self._highest = max(self._highest, _status("VmRSS"))


def most_resident() -> int:
    """The most bytes that were resident since this process's program began: `getrusage` would tell of what forked it too."""
    return _status("VmHWM")


def _status(field: str) -> int:
    """A size from /proc/self/status in bytes; 0 where there is none."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0

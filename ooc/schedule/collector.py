"""Python's garbage collector, at rest while there is nothing for it to find."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ooc.cache import lock_across_forks

LONGEST = 1.0  # seconds that the collector rests where threads plan one after the other without a break


class Rest:
    """Planning makes millions of tuples, of which none is rubbish before it ends; that the collector looks at them again and
    again takes a third of the time. It rests while any thread plans, if it was on at all."""

    def __init__(self) -> None:
        self._lock, self._planning, self._was, self._since = lock_across_forks(), 0, False, 0.0
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """While it lasts, cycles are not looked for."""
        with self._lock:
            if not self._planning:
                self._was, self._since = gc.isenabled(), time.monotonic()
                gc.disable()
            self._planning += 1
        try:
            yield
        finally:
            with self._lock:
                self._planning -= 1
                if not self._planning and self._was:
                    gc.enable()
                overdue = self._planning > 0 and self._was and time.monotonic() - self._since > LONGEST
                if overdue:
                    self._since = time.monotonic()
            if overdue:  # others plan: without this, while some thread always does, no circle would ever go
                gc.collect()

    def _forked(self) -> None:
        """Threads that plan are not in a child."""
        if self._planning and self._was:
            gc.enable()
        self._planning = 0


rest = Rest()

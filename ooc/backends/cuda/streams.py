"""Lanes that run behind the host: a stream each, events for the order between them, and when steps were complete."""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager

from ooc.backends.cuda.driver import Driver

DEVICE_LANES = ("h2d", "compute", "d2h")
ASKED, AT_ONCE = 4, 1e-4  # times that the clock is asked at most, and seconds within which it answers
AGAIN = 1.0  # seconds for which clocks agree: asking takes as long as a small call
IN_FLIGHT = 64  # steps of a lane that may be issued and not complete: bounds events, and how far the host runs ahead


class Token:
    """A point on a lane. `end`: when it was reached, once somebody has seen that."""

    __slots__ = ("end", "event", "waiting")

    def __init__(self, event: int) -> None:
        self.event, self.waiting = event, 0
        self.end: float | None = None


class LaneStreams:
    """The streams of a device. Lanes without one (`read`, `write`) are the host's: their steps are complete at once.

    Several runs may share them: that adds order, and never takes any away.
    """

    behind = frozenset(DEVICE_LANES)

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.streams = {lane: driver.stream() for lane in DEVICE_LANES}
        self._flying: dict[str, deque[Token]] = defaultdict(deque)
        self._landing = {lane: threading.Lock() for lane in DEVICE_LANES}
        self._spare: list[int] = []
        self._lock = threading.Lock()
        self._base, self._clock = driver.event(), -math.inf

    def begin(self) -> None:
        """What follows on any lane comes after the calling thread's own work; clocks are compared anew."""
        with self.driver.current():
            self._compare_clocks()
            for stream in self.driver.caller_streams():
                event = self._event()
                self.driver.record(event, stream)
                for lane_stream in self.streams.values():
                    self.driver.wait(lane_stream, event)
                with self._lock:
                    self._spare.append(event)

    def _compare_clocks(self) -> None:
        """When the device's clock is which time of ours; asked anew once in a while, for it counts in f32, and while nothing
        runs. Once more where the answer took long: this thread may have had to wait for a processor."""
        with self._lock:
            late = time.perf_counter() - self._clock > AGAIN
            for _ in range(ASKED if late and not any(self._flying.values()) else 0):
                begin = time.perf_counter()
                self.driver.record(self._base, self.streams["h2d"])
                self.driver.finish(self._base)
                self._clock = time.perf_counter()
                if self._clock - begin < AT_ONCE:
                    break

    @contextmanager
    def lane(self, name: str) -> Iterator[None]:
        """The device is the calling thread's; when this ends, what it issued on the lane is complete."""
        with self.driver.current():
            try:
                yield
            finally:
                last = self.record(name)
                while last is not None and last.end is None:
                    self._land(name)

    def record(self, lane: str) -> Token | None:
        """A token for what was issued on a lane so far."""
        stream = self.streams.get(lane)
        if stream is None:
            return None
        token = Token(self._event())
        self.driver.record(token.event, stream)
        flying = self._flying[lane]
        flying.append(token)
        if len(flying) > IN_FLIGHT:
            self._land(lane)
        return token

    def wait(self, lane: str, token: Token) -> None:
        """Make a lane wait for a token; a host lane waits here and now."""
        with self._lock:
            if token.end is not None:
                return
            if lane in self.streams:
                self.driver.wait(self.streams[lane], token.event)
                return
            token.waiting += 1  # its event must not be used again meanwhile
        self.driver.finish(token.event)
        with self._lock:
            token.waiting -= 1
            if token.end is not None and not token.waiting:
                self._spare.append(token.event)

    def ended(self, token: Token) -> float:
        assert token.end is not None, "its lane has ended"
        return token.end

    def _land(self, lane: str) -> None:
        """Wait for the oldest step of a lane, note when it was complete, and use its event again."""
        with self._landing[lane]:
            if not self._flying[lane]:
                return  # another run was faster
            token = self._flying[lane][0]
            self.driver.finish(token.event)
            end = self._clock + self.driver.seconds(self._base, token.event)
            with self._lock:
                token.end = end
                self._flying[lane].popleft()
                if not token.waiting:
                    self._spare.append(token.event)

    def _event(self) -> int:
        with self._lock:
            if self._spare:
                return self._spare.pop()
        return self.driver.event()

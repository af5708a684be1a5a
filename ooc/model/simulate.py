"""The time of a schedule: every lane runs its steps in order, each as soon as what it waits for is done; lanes that are
busy at the same time slow each other down, and threads that sleep take time to wake."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ooc.model.cost import Model
from ooc.schedule.readahead import Lookahead
from ooc.schedule.steps import Step


@dataclass(frozen=True)
class Timeline:
    """When every step of a schedule runs, as predicted.

    Fields:
        starts: of every step, in seconds from the start of the schedule.
        ends: of every step, in the same seconds.
        lane_seconds: what each lane's steps take alone.
    """

    starts: list[float]
    ends: list[float]
    lane_seconds: dict[str, float]

    def __repr__(self) -> str:
        """One line: steps and seconds."""
        return f"<Timeline {len(self.ends)} steps in {self.seconds:.3g} s>"

    @property
    def seconds(self) -> float:
        """When the last step ends."""
        return max(self.ends, default=0.0)


def pace(ends: Sequence[float]) -> float:
    """Seconds from one tile to the next once a schedule has come into its stride; ends: when its first tiles end."""
    half = len(ends) // 2
    return (ends[-1] - ends[half]) / max(1, len(ends) - 1 - half)


def simulate(steps: Sequence[Step], model: Model, in_turn: bool = False) -> Timeline:
    """Walk linked steps with a model, from one step's end to the next; between two ends every lane's speed is constant.

    Never below the busiest lane nor below the critical path. in_turn: one step after the other; all that overlaps is what
    the system fetches of files ahead of their reads, so many bytes at most.
    """
    return _in_turn(steps, model) if in_turn else _Walk(steps, model).timeline()


def _in_turn(steps: Sequence[Step], model: Model) -> Timeline:
    busy: dict[str, float] = {}
    ends, fetching = [0.0], _Fetching(steps, model)
    for step in steps:
        now = ends[-1]
        seconds = fetching.read(step, now) if step.lane == "read" else fetching.beside(step.lane, model.seconds(step), now)
        busy[step.lane] = busy.get(step.lane, 0.0) + seconds
        ends.append(now + seconds)
    return Timeline(ends[:-1], ends[1:], busy)


class _Fetching:
    """The system at work on the files that will be read: it is told of some bytes ahead, and fetches in this order."""

    def __init__(self, steps: Sequence[Step], model: Model) -> None:
        self.model, self.ahead = model, Lookahead(steps)
        self.told: deque[float] = deque()  # when each read that it was told of is fetched
        self.idle = 0.0  # when the disk has nothing more to do

    def read(self, step: Step, now: float) -> float:
        """Seconds of the next read: a copy out of the page cache, and what is left to wait for."""
        self._tell(self.ahead.before(), now)
        seconds = max(self.model.cached(step), self.told.popleft() - now)
        self._tell(self.ahead.after(step), now + seconds)
        return seconds

    def beside(self, lane: str, seconds: float, now: float) -> float:
        """Seconds of a step that takes so long alone; it loses some of its speed until the disk has nothing more to do."""
        speed, busy = self.model.beside_fetch(lane), max(0.0, self.idle - now)
        return seconds / speed if seconds <= busy * speed else seconds + busy * (1 - speed)

    def _tell(self, steps: Iterable[Step], now: float) -> None:
        for step in steps:
            self.idle = max(self.idle, now) + self.model.fetching(step)
            self.told.append(self.idle)


class _Walk:
    """The state between two ends: what each lane works on, until when, and how fast."""

    def __init__(self, steps: Sequence[Step], model: Model) -> None:
        self.model, count = model, len(steps)
        self.handoff = model.handoff_seconds or 0.0
        self.seconds = [model.seconds(step) for step in steps]
        self.lane_of = [step.lane for step in steps]
        self.starts, self.ends = [0.0] * count, [0.0] * count
        self.waiting = [0] * count  # steps that each one still waits for, the one before it on its lane included
        self.followers: list[list[int]] = [[] for _ in steps]
        last: dict[str, int] = {}
        for i, step in enumerate(steps):
            before = set(step.after)
            if step.lane in last:
                before.add(last[step.lane])
            last[step.lane] = i
            self.waiting[i] = len(before)
            for j in before:
                self.followers[j].append(i)
        self.running: dict[str, int] = {}
        self.until: dict[str, float] = {}
        self.speed: dict[str, float] = {}

    def timeline(self) -> Timeline:
        busy: dict[str, float] = {}
        for lane, seconds in zip(self.lane_of, self.seconds, strict=True):
            busy[lane] = busy.get(lane, 0.0) + seconds
        self._begin([i for i, n in enumerate(self.waiting) if not n], 0.0)
        until, waiting, running = self.until, self.waiting, self.running
        while until:
            lane = min(until, key=until.__getitem__)
            done, now = running[lane], until.pop(lane)
            self.ends[done] = now
            ready = []
            for i in self.followers[done]:
                waiting[i] -= 1
                if not waiting[i]:
                    ready.append(i)
            self._begin(ready, now, lane)
        return Timeline(self.starts, self.ends, busy)

    def _begin(self, ready: list[int], now: float, by: str = "") -> None:
        """Start what is ready, late where another lane (`by`) had to wake its own; whoever's company has changed goes on at
        another speed."""
        until = self.until
        for i in ready:
            lane = self.lane_of[i]
            start = now + self.handoff if by and lane != by else now
            self.running[lane], self.starts[i] = i, start
            until[lane] = start + self.seconds[i] / self.speed.get(lane, 1.0)
        if until.keys() != self.speed.keys():
            speeds = self.model.speeds(frozenset(until))
            for lane, end in until.items():
                was = self.speed.get(lane, 1.0)
                if speeds[lane] != was:
                    until[lane] = now + (end - now) * was / speeds[lane]
            self.speed = speeds

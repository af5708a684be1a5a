"""Calls that are cut into tiles, since something that they touch lives at home: how they are cut, where their tiles lie, and
their steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ooc.cache import cached_property
from ooc.networks.calls import Call
from ooc.networks.scene import Scene, place_of
from ooc.schedule.arena import Buffer, Layout, pack_in_sequence
from ooc.schedule.emit import Held, emit
from ooc.schedule.lowering import Job, Outside, job_of
from ooc.schedule.place import FILE, PAGE, Place
from ooc.schedule.plan import Plan
from ooc.schedule.steps import Ref, Step

PREFIX = "tiles "  # of the names of buffers that calls use in turn
Gap = tuple[int, int | None]  # free bytes of the device; None: up to its end

LONG, RUNS = 1 << 8, 4  # steps of a call that a plan holds at least, and tiles computed in them; of a short call all


def places_of(call: Call, outside: Mapping[str, Outside], scene: Scene) -> tuple[tuple[str, Place], ...]:
    """Where the operands of a call live: outside, or on the device."""
    places = []
    backend = scene.costs.device.backend
    direct = backend.shared and not backend.staged  # else pageable memory would pass the ring
    for operand in call.op.operands:
        place = Place.DEVICE
        if operand.name in outside:
            home = outside[operand.name].home
            place = place_of(home.space if home is not None else FILE)
        places.append((operand.name, Place.HOST if direct and place is Place.PINNED else place))
    return tuple(sorted(places))


@dataclass(frozen=True)
class Tiles:
    """A call as it is cut: the steps of a plan, made once for all calls that are planned alike, in the same bytes.

    Fields:
        plan: how the call is cut.
        name: of its buffers, among those of other plans.
        shared: whether all of them lie on the device, as memory is one.
        held: operands that are there as a whole.
    """

    plan: Plan
    name: str
    shared: bool
    held: Mapping[str, Held]

    def _own(self, buffer: Buffer) -> Buffer:
        """A buffer of the plan, among those of other plans."""
        space = "device" if self.shared else buffer.space
        return Buffer(space, f"{PREFIX}{self.name}:{buffer.space}:{buffer.name}", buffer.slot, buffer.nbytes)

    def layout(self, bases: Mapping[str, int]) -> Layout:
        """Where the tiles lie, from some byte of each space on."""
        packed = pack_in_sequence(map(self._own, (*self.plan.buffers, *self.plan.spill_buffers)))
        offsets = {b: at + bases.get(b.space, 0) for b, at in packed.offsets.items()}
        return Layout(offsets, {space: peak + bases.get(space, 0) for space, peak in packed.peaks.items()})

    @cached_property
    def job(self) -> Job:
        """What the steps have in common."""
        job = job_of(self.plan)
        return job._replace(workspace=job.workspace and self._own(job.workspace))

    @cached_property
    def first(self) -> tuple[Step, ...]:
        """The first of the steps that `emitted` makes, all of a short call."""
        steps, runs = list[Step](), 0
        for step in self.emitted():
            if len(steps) >= LONG and runs >= RUNS and step.kind != "store":
                break
            steps.append(step)
            runs += step.kind == "run"
        return tuple(steps)

    @cached_property
    def tail(self) -> int:
        """Tiles that come after the first steps; 0: none, those are all."""
        return self.plan.tiles - sum(step.kind == "run" for step in self.first)

    def emitted(self) -> Iterator[Step]:
        """The steps, with buffers of their own but for operands that are held: a tensor of the network may have the name of
        another operand, and as many bytes."""
        known: dict[Buffer, Buffer] = {}

        def own(ref: Ref) -> Ref:
            if ref.buffer is None or ref.operand in self.held:
                return ref
            if ref.buffer not in known:
                known[ref.buffer] = self._own(ref.buffer)
            return ref._replace(buffer=known[ref.buffer])

        for step in emit(self.plan, self.held):
            yield step._replace(reads=tuple(map(own, step.reads)), writes=tuple(map(own, step.writes)))

    def steps(self, job: int, what: str, outside: Mapping[str, Outside], cached: bool, every: bool) -> Iterator[Step]:
        """The steps of a call, which loads from the homes of its tensors and stores there. cached: whether the page cache is
        taken to hold what is at home. every: not the first ones alone."""
        for step in self.emitted() if every and self.tail else self.first:
            streamed = outside.get(step.what) if step.lane != "compute" else None
            if streamed is None or streamed.home is None:
                yield step._replace(job=job, what=what if step.lane == "compute" else step.what)
                continue
            reads, writes = step.reads, step.writes
            far = (Ref(step.what, streamed.home, step.region, 0, streamed.operand.whole),)
            if step.kind == "load" and not reads:
                reads = far
            elif step.kind == "store" and all(r.operand == "bounce" for r in writes):
                writes = (*far, *writes)
            warm = step.nbytes if cached and step.lane == "read" else step.again
            yield step._replace(reads=reads, writes=writes, job=job, again=warm)


class Gaps:
    """What is free of the device at each item of a program: over what lasts, beside what lives then.

    lives: from which to which item buffers are in use. layout: where they lie. floor: bytes of what lasts.
    """

    def __init__(self, lives: Mapping[Buffer, tuple[int, int]], layout: Layout, floor: int) -> None:
        on_device = [(b, life) for b, life in lives.items() if b.space == "device"]
        self.spans = sorted((*life, layout.offsets[b], layout.end(b)) for b, life in on_device)
        self.floor = floor

    def at(self, item: int) -> list[Gap]:
        """The gaps at an item, the last of which has no end."""
        taken = sorted((lo, hi) for first, last, lo, hi in self.spans if first <= item <= last)
        gaps: list[Gap] = []
        free = self.floor
        for lo, hi in taken:
            if lo > free:
                gaps.append((free, lo))
            free = max(free, hi)
        return [(-(-lo // PAGE) * PAGE if lo else 0, hi) for lo, hi in (*gaps, (free, None))]

    def lowest(self, item: int, nbytes: int) -> int:
        """Where the first gap begins that holds so many bytes."""
        return next(lo for lo, hi in self.at(item) if hi is None or hi - lo >= nbytes)

    def largest(self, item: int, limit: int | None) -> tuple[int, int | None]:
        """Where the largest gap below a limit begins, and its bytes; None: no end."""
        if limit is None:
            return self.at(item)[-1][0], None
        sizes = [(min(limit, hi if hi is not None else limit) - lo, lo) for lo, hi in self.at(item)]
        nbytes, at = max(sizes, key=lambda one: (one[0], -one[1]))
        return at, max(0, nbytes)

"""A schedule bound to memory, stores and a kernel: performs one step at a time, on whatever thread calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ooc.backends.base import Backend, Kernel
from ooc.ir.op import Block
from ooc.ir.region import Region, extents
from ooc.runtime.store import Store
from ooc.schedule.arena import Buffer
from ooc.schedule.lowering import Schedule
from ooc.schedule.place import PAGE
from ooc.schedule.readahead import Lookahead
from ooc.schedule.steps import FIRST, LAST, Ref, Step


@dataclass
class Measured:
    """What a run took.

    Fields:
        starts: of every step, in seconds from the start of the run.
        ends: of every step, in the same seconds.
        space_bytes: bytes held in each space (device, staging, spill).
    """

    starts: list[float]
    ends: list[float]
    space_bytes: dict[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        """One line: steps and seconds."""
        return f"<Measured {len(self.ends)} steps in {self.seconds:.3g} s>"

    @property
    def seconds(self) -> float:
        """When the last step ended."""
        return max(self.ends, default=0.0)


class CallerError(Exception):
    """An error of the caller's own function, which is passed on as it is; `__cause__` is that error."""


class Machine:
    """What a run is made of: memory, views of it, a kernel, and of every step whether it is done, its token and its times.

    on_tile: called as f(i) on the calling thread after each computed tile i.
    """

    def __init__(
        self, todo: Schedule, stores: Mapping[str, Store], backend: Backend, on_tile: Callable[[int], None] | None = None
    ) -> None:
        plan = todo.plan
        self.layout, self.backend, self.stores = todo.layout, backend, stores
        self.operands, self.paged, self.on_tile = todo.operands, todo.paged, on_tile
        self.memory = {space: backend.allocate(space, peak) for space, peak in todo.layout.peaks.items()}
        self.bounce_bytes = plan.bounce_bytes
        room = None if todo.workspace is None else self._bytes(todo.workspace)
        self.kernel: Kernel = backend.kernel(plan.op, plan.kernel, plan.sizes, room)
        self.origin = 0.0
        self.turn_to(todo)

    def turn_to(self, todo: Schedule) -> None:
        """The steps to perform from now on: the first of the plan, or the next when all those before are done."""
        count = len(todo.steps)
        self.steps, self.ahead = todo.steps, Lookahead(todo.steps)
        self.views: dict[tuple[Buffer, tuple[int, ...], int], Any] = {}
        self.latest: dict[Buffer, tuple[Ref, Any]] = {}  # the view of each buffer that was asked for last
        self.done, self.tokens = bytearray(count), [None] * count
        self.starts, self.ends = [0.0] * count, [0.0] * count

    def begin(self) -> None:
        """The run begins: what the backend does comes after what the caller has asked of it, and the clock starts."""
        self.backend.begin()
        self.origin = time.perf_counter()

    def issue(self, i: int) -> None:
        """Do step i on its lane now, after what it waits for: steps that are done, perhaps in the background."""
        step, tokens = self.steps[i], self.tokens
        for j in step.after:
            if tokens[j] is not None:
                self.backend.wait(step.lane, tokens[j])
        self.starts[i] = time.perf_counter() - self.origin
        self.perform(step)
        tokens[i] = self.backend.record(step.lane)
        self.ends[i] = time.perf_counter() - self.origin
        self.done[i] = 1

    def tell(self, i: int) -> None:
        """Tell the caller of a computed tile. Raises CallerError."""
        if self.on_tile is not None and self.steps[i].lane == "compute":
            try:
                self.on_tile(i)
            except Exception as error:
                raise CallerError from error

    def _bytes(self, buffer: Buffer) -> Any:
        return self.backend.view(self.memory[buffer.space], self.layout.offsets[buffer], (buffer.nbytes,), "bytes", (0,))

    def array(self, ref: Ref) -> Any:
        """The memory of a reference, as an array with the operand's axes."""
        if ref.buffer is None:
            return self.stores[ref.operand].view(ref.region)
        latest = self.latest.get(ref.buffer)
        if latest is not None and latest[0] is ref:
            return latest[1]
        key = (ref.buffer, extents(ref.region), self._shift(ref) if self.paged else 0)
        view = self.views.get(key)
        if view is None:
            buffer, shape, shift = key
            operand, memory = self.operands[ref.operand], self.memory[buffer.space]
            at = self.layout.offsets[buffer] + shift
            view = self.views[key] = self.backend.view(memory, at, shape, operand.dtype, operand.memory_order)
        self.latest[ref.buffer] = (ref, view)
        return view

    def _shift(self, ref: Ref) -> int:
        """Bytes by which a file's region is moved inside its buffer, to lie in memory as it lies in the file's pages."""
        if ref.operand not in self.paged or ref.buffer is None or ref.buffer.space != "device":
            return 0
        return (self.stores[ref.operand].file_offset(ref.region) - self.layout.offsets[ref.buffer]) % PAGE

    def perform(self, step: Step) -> None:
        """Do one step now."""
        if step.kind == "run":
            blocks = {r.operand: Block(self.array(r), r.region, r.stamp) for r in (*step.reads, *step.writes) if r.region}
            self.kernel(dict(step.tile), blocks, bool(step.phase & FIRST), bool(step.phase & LAST))
        elif step.kind == "load":
            self._load(step)
        else:
            self._store(step)

    def _load(self, step: Step) -> None:
        target = self.array(step.writes[0])
        if step.reads:
            self.backend.copy(step.lane, target, self.array(step.reads[0]))
        elif step.lane == "read":
            self._fetch(self.ahead.before())
            self.stores[step.what].read(step.region, target, self._bounce(step))
            self._fetch(self.ahead.after(step))
        else:
            self.backend.copy(step.lane, target, self.stores[step.what].view(step.region))

    def _fetch(self, steps: Iterable[Step]) -> None:
        """Tell the system of reads to come, so that the disk works while this thread does other things."""
        told: dict[str, list[Region]] = {}
        for step in steps:
            told.setdefault(step.what, []).append(step.region)
        for name, regions in told.items():
            self.stores[name].fetch(regions, self.bounce_bytes)

    def _store(self, step: Step) -> None:
        source = self.array(step.reads[0])
        if step.writes and step.writes[0].operand == step.what:
            self.backend.copy(step.lane, self.array(step.writes[0]), source)
        elif step.lane == "write":
            self.stores[step.what].write(step.region, source, self._bounce(step))
        else:
            self.backend.copy(step.lane, self.stores[step.what].view(step.region), source)

    def _bounce(self, step: Step) -> Any | None:
        for ref in step.writes:
            if ref.operand == "bounce" and ref.buffer:
                return self._bytes(ref.buffer)
        return None

    def release(self) -> None:
        """Give the memory back, when every lane has stopped."""
        for space, memory in self.memory.items():
            self.backend.release(space, memory)

    def measured(self) -> Measured:
        """The times of a run that has ended; of steps that were only issued by their lane, as the backend has seen them:
        each began after the lane's step before, and after all it waited for."""
        latest: dict[str, float] = {}
        for i, step in enumerate(self.steps):
            if self.tokens[i] is not None:
                self.ends[i] = self.backend.ended(self.tokens[i]) - self.origin
                before = [latest.get(step.lane, 0.0), *(self.ends[j] for j in step.after)]
                self.starts[i] = min(max(self.starts[i], *before), self.ends[i])
            latest[step.lane] = self.ends[i]
        return Measured(self.starts, self.ends, {space: self.layout.peaks[space] for space in self.memory})

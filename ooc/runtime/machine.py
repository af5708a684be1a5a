"""A schedule bound to memory, stores and a kernel: performs one step at a time, on whatever thread calls."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ooc.backends.base import Backend, Kernel, algorithms_of
from ooc.ir.op import Block, Operand
from ooc.ir.region import Region, extents
from ooc.runtime.moves import Moves
from ooc.runtime.store import Store
from ooc.schedule.arena import Buffer, Layout
from ooc.schedule.lowering import Job, Schedule
from ooc.schedule.place import OUTSIDE, PAGE
from ooc.schedule.readahead import Lookahead
from ooc.schedule.steps import FIRST, LAST, Ref, Step


@dataclass
class Measured:
    """What a run took.

    Fields:
        starts: of every step, in seconds from the start of the run.
        ends: of every step, in the same seconds.
        space_bytes: bytes held in each space (device, staging, spill).
        algorithms: how many tiles each algorithm of a library computed, where kernels choose among some: "cudnn 1" and so on, and
            "cuda", kernels of ooc's own that stepped in.
    """

    starts: list[float]
    ends: list[float]
    space_bytes: dict[str, int] = field(default_factory=dict)
    algorithms: dict[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        """One line: steps and seconds."""
        return f"<Measured {len(self.ends)} steps in {self.seconds:.3g} s>"

    @property
    def seconds(self) -> float:
        """When the last step ended."""
        return max(self.ends, default=0.0)


class CallerError(Exception):
    """An error of the caller's own function, which is passed on as it is; `__cause__` is that error."""


SALT = 32  # bits of a job's own stamps: jobs may share steps and kernels, and have other contents
EPOCH = 64  # bits of stamps below those that count runs


class Arena:
    """The memory that a layout's buffers lie in, by space."""

    def __init__(self, layout: Layout, backend: Backend, memory: dict[str, Any]) -> None:
        self.layout, self.backend, self.memory = layout, backend, memory

    def bytes_of(self, buffer: Buffer) -> Any:
        """The memory of a buffer, as bytes."""
        return self.backend.view(self.memory[buffer.space], self.layout.offsets[buffer], (buffer.nbytes,), "bytes", (0,))

    def view(self, buffer: Buffer, shift: int, shape: tuple[int, ...], operand: Operand) -> Any:
        """The memory of a buffer from some byte on, as an array with the axes of an operand."""
        at = self.layout.offsets[buffer] + shift
        return self.backend.view(self.memory[buffer.space], at, shape, operand.dtype, operand.memory_order)


class Desk:
    """What the steps of one job work with: the stores of its operands, views of its buffers, its kernel."""

    def __init__(self, job: Job, number: int, arena: Arena, kernel: Kernel | None) -> None:
        self.operands, self.paged = job.operands, job.paged
        self.stores: Mapping[str, Store] = {}  # of the run that is going on
        self.arena, self.bounce_bytes, self.kernel = arena, job.bounce_bytes, kernel
        self.salt = number << SALT
        self.views: dict[tuple[Buffer, str, tuple[int, ...], int], Any] = {}
        self.latest: dict[Buffer, tuple[Ref, Any]] = {}  # the view of each buffer that was asked for last

    def array(self, ref: Ref) -> Any:
        """The memory of a reference, as an array with the operand's axes."""
        if ref.buffer is None:
            return self.stores[ref.operand].view(ref.region)
        latest = self.latest.get(ref.buffer)
        if latest is not None and latest[0] is ref:
            return latest[1]
        home = ref.home or ref.region
        key = (ref.buffer, ref.operand, extents(home), self._shift(ref) if self.paged else 0)
        view = self.views.get(key)
        if view is None:
            view = self.views[key] = self.arena.view(ref.buffer, key[3], key[2], self.operands[ref.operand])
        if home != ref.region and view is not None:
            view = view[tuple([slice(r.lo - h.lo, r.hi - h.lo) for r, h in zip(ref.region, home, strict=True)])]
        self.latest[ref.buffer] = (ref, view)
        return view

    def _shift(self, ref: Ref) -> int:
        """Bytes by which a file's region is moved inside its buffer, to lie in memory as it lies in the file's pages."""
        if ref.operand not in self.paged or ref.buffer is None or ref.buffer.space != "device":
            return 0
        return (self.stores[ref.operand].file_offset(ref.region) - self.arena.layout.offsets[ref.buffer]) % PAGE

    def run(self, step: Step, epoch: int) -> None:
        """Compute a tile."""
        assert self.kernel is not None
        refs = [r for r in (*step.reads, *step.writes) if r.region]
        blocks = {r.operand: Block(self.array(r), r.region, r.stamp and r.stamp + self.salt + epoch) for r in refs}
        self.kernel(dict(step.tile), blocks, bool(step.phase & FIRST), bool(step.phase & LAST))

    def load(self, step: Step, moves: Moves | None) -> None:
        """Bring a region nearer to the device by one hop. moves: see `Machine`."""
        target = self.array(step.writes[0])
        if step.lane == "read":
            self._move(step, target, moves)
        else:
            source = self.array(step.reads[0]) if step.reads else self.stores[step.what].view(step.region)
            self.arena.backend.copy(step.lane, target, source)

    def store(self, step: Step, moves: Moves | None) -> None:
        """Take a region away from the device by one hop. moves: see `Machine`."""
        source = self.array(step.reads[0])
        if step.lane == "write":
            self._move(step, source, moves)
            return
        inside = bool(step.writes) and step.writes[0].operand == step.what
        target = self.array(step.writes[0]) if inside else self.stores[step.what].view(step.region)
        self.arena.backend.copy(step.lane, target, source)

    def _move(self, step: Step, array: Any, moves: Moves | None) -> None:
        """Read or write a region of a store, now or with the others that are gathered."""
        store, bounce = self.stores[step.what], self._bounce(step)
        if moves is not None and moves.take(store):
            moves.add(store, step.lane == "write", step.region, array, bounce)
        elif step.lane == "write":
            store.write(step.region, array, bounce)
        else:
            store.read(step.region, array, bounce)

    def _bounce(self, step: Step) -> Any | None:
        for ref in step.writes:
            if ref.operand == "bounce" and ref.buffer:
                return self.arena.bytes_of(ref.buffer)
        return None


class Machine:
    """What a run is made of: memory, what each job works with, and of every step whether it is done, its token and its times.

    todo: the first steps that it will perform; all have their layout, and their jobs. memory: of each space, where another
    machine has it already; default: its own.
    """

    def __init__(self, todo: Schedule, backend: Backend, memory: Mapping[str, Any] | None = None) -> None:
        self.layout, self.backend = todo.layout, backend
        self.memory: dict[str, Any] = dict(memory or {})
        self.arena = Arena(self.layout, backend, self.memory)
        self.owned: list[str] = []
        self.kernels: dict[Any, Kernel] = {}
        self.counted = Counter[str]()
        self.on_tile: Callable[[int], None] | None = None
        self.meanwhile: Callable[[], None] | None = None
        self.moves: Moves | None = None  # where reads and writes of plain files are gathered, instead of being done
        self.runs = 0
        try:
            for space, peak in todo.layout.peaks.items():
                if space not in OUTSIDE and space not in self.memory:
                    self.memory[space] = backend.allocate(space, peak)
                    self.owned.append(space)
            self.desks = [Desk(job, i, self.arena, self._kernel(job)) for i, job in enumerate(todo.jobs)]
        except BaseException:
            self.release()
            raise
        self.space_bytes = {space: peak for space, peak in self.layout.peaks.items() if space in self.memory}
        self.origin = 0.0
        self.turn_to(todo)

    def turn_to(self, todo: Schedule) -> None:
        """The steps to perform from now on: the first of the plan, or the next when all those before are done."""
        count = len(todo.steps)
        self.steps, self.ahead = todo.steps, Lookahead(todo.steps)
        self.done, self.tokens = bytearray(count), [None] * count
        self.starts, self.ends = [0.0] * count, [0.0] * count

    def _kernel(self, job: Job) -> Kernel | None:
        """The kernel of a job's plan in its workspace; equal ones are one."""
        plan, workspace = job.plan, job.workspace
        if plan is None:
            return None
        key = (plan.op, plan.kernel, plan.tile, plan.in_place, workspace and (self.layout.offsets[workspace], workspace.nbytes))
        if key not in self.kernels:
            room = None if workspace is None else self.arena.bytes_of(workspace)
            self.kernels[key] = self.backend.kernel(plan.op, plan.kernel, plan.sizes, room, plan.in_place)
        return self.kernels[key]

    def begin(
        self,
        stores: Sequence[Mapping[str, Store]],
        on_tile: Callable[[int], None] | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """A run begins: what the backend does comes after what the caller has asked of it, and the clock starts.

        stores: where whole operands lie, by name, for each job. on_tile: called as f(i) on the calling thread after each
        computed tile i. meanwhile: what that thread has to do besides, after each tile.
        """
        for desk, job_stores in zip(self.desks, stores, strict=True):
            desk.stores = job_stores
        self.on_tile, self.meanwhile = on_tile, meanwhile
        self.runs += 1  # failed ones too: each has contents of its own, and so stamps
        self.epoch = self.runs << EPOCH
        self.backend.begin()
        self.origin = time.perf_counter()

    def end(self) -> None:
        """A run ends: what is the caller's is forgotten."""
        for desk in self.desks:
            desk.stores = {}
        self.on_tile = self.meanwhile = None

    def issue(self, i: int) -> None:
        """Do step i on its lane now, after what it waits for: steps that are done, perhaps in the background."""
        step = self.steps[i]
        self._wait(step)
        self.starts[i] = time.perf_counter() - self.origin
        self.perform(step)
        self.tokens[i] = self.backend.record(step.lane)
        self.ends[i] = time.perf_counter() - self.origin
        self.done[i] = 1

    def _wait(self, step: Step) -> None:
        """Have a lane wait for what it needs of others that is done in the background."""
        for j in step.after:
            if self.tokens[j] is not None:
                self.backend.wait(step.lane, self.tokens[j])

    def gather(self, step: Step) -> None:
        """Have a read or write of a plain file done with those in `moves`, when these are run."""
        self._wait(step)
        self.perform(step)

    def done_at_once(self, gathered: Sequence[int], begin: float, spent: Sequence[float]) -> None:
        """Steps were done at once since `begin`; spent: the threads' seconds of each, by which they share the time."""
        now = begin - self.origin
        share = (time.perf_counter() - begin) / (sum(spent) or 1.0)
        for i, seconds in zip(gathered, spent, strict=True):
            self.starts[i], now = now, now + seconds * share
            self.ends[i] = now
            self.done[i] = 1

    def tell(self, i: int) -> None:
        """Tell the caller of a computed tile, and see to the rest. Raises CallerError."""
        if self.steps[i].lane != "compute":
            return
        if self.meanwhile is not None:
            self.meanwhile()
        if self.on_tile is not None:
            try:
                self.on_tile(i)
            except Exception as error:
                raise CallerError from error

    def perform(self, step: Step) -> None:
        """Do one step now."""
        desk = self.desks[step.job]
        if step.kind == "run":
            desk.run(step, self.epoch)
        elif step.kind == "load":
            self._load(step, desk)
        elif step.kind == "store":
            desk.store(step, self.moves)

    def _load(self, step: Step, desk: Desk) -> None:
        if step.lane != "read":
            desk.load(step, None)
            return
        self._fetch(self.ahead.before(), None)
        desk.load(step, self.moves)
        self._fetch(self.ahead.after(step), self.moves)

    def _fetch(self, steps: Iterable[Step], moves: Moves | None) -> None:
        """Tell the system of reads to come, now or with `moves`, so that the disk works while this thread does other things."""
        told: dict[tuple[int, str], list[Region]] = {}
        for step in steps:
            told.setdefault((step.job, step.what), []).append(step.region)
        for (job, name), regions in told.items():
            desk = self.desks[job]
            store = desk.stores[name]
            if moves is not None and moves.take(store):
                moves.fetch(store, regions, desk.bounce_bytes)
            else:
                store.fetch(regions, desk.bounce_bytes)

    def release(self) -> None:
        """Give the memory back, when every lane has stopped."""
        for space in self.owned:
            self.backend.release(space, self.memory[space])
        self.owned = []
        self.memory.clear()
        self.desks = []

    def measured(self) -> Measured:
        """The times of a run that has ended; of steps that were only issued by their lane, as the backend has seen them:
        each began after the lane's step before, and ended after all it waited for, though clocks agree only roughly."""
        latest: dict[str, float] = {}
        behind = any(token is not None for token in self.tokens)
        for i, step in enumerate(self.steps if behind else ()):
            token, before = self.tokens[i], max((self.ends[j] for j in step.after), default=0.0)
            end = self.ends[i] if token is None else self.backend.ended(token) - self.origin
            self.ends[i] = max(end, before)
            if token is not None:
                self.starts[i] = min(max(self.starts[i], before, latest.get(step.lane, 0.0)), self.ends[i])
            latest[step.lane] = self.ends[i]
        return Measured(self.starts, self.ends, self.space_bytes, self._algorithms())

    def _algorithms(self) -> dict[str, int]:
        """The tiles by algorithm since this was asked last."""
        ran = [some for kernel in self.kernels.values() if (some := algorithms_of(kernel))]
        if not ran:
            return {}
        total, before = Counter[str](), self.counted
        for some in ran:
            total.update(some)
        self.counted = total
        return dict(total - before)

"""Executing steps: one thread per lane, each step as soon as what it waits for is done.

The executor knows steps, buffers, stores and a backend. It decides nothing: tiles come from the plan, order from
`link`, memory from `pack`. `adversarial` runs the same steps on one thread in any order that the waits allow.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ooc.backends.base import Backend, Kernel
from ooc.errors import BackendError, OocError
from ooc.ir.op import Block, Operand
from ooc.ir.region import Region, extents
from ooc.runtime.store import Store
from ooc.schedule.arena import Buffer, Layout, pack_in_sequence
from ooc.schedule.plan import PAGE, Plan
from ooc.schedule.readahead import Lookahead
from ooc.schedule.steps import FIRST, LAST, Ref, Step, emit, link


@dataclass(frozen=True)
class Schedule:
    """The linked steps of a plan and where their buffers lie."""

    plan: Plan
    steps: tuple[Step, ...]
    layout: Layout

    @cached_property
    def operands(self) -> dict[str, Operand]:
        """Everything that has buffers, by name; an output that is its own partial sum counts as the output."""
        op = self.plan.op
        return {o.name: o for f in op.folds for o in f.state} | {o.name: o for o in op.operands}

    @cached_property
    def alone(self) -> bool:
        """Whether the steps run one after the other on the calling thread: as planned, or as one tile overlaps with nothing."""
        return self.plan.tiles == 1 or self.plan.in_turn

    @cached_property
    def lanes(self) -> tuple[str, ...]:
        """The lanes that the steps use."""
        return tuple(dict.fromkeys(step.lane for step in self.steps))

    @cached_property
    def workspace(self) -> Buffer | None:
        """The buffer that kernels work in, if any."""
        return next((b for b in self.layout.offsets if b.name == "workspace"), None)

    @cached_property
    def paged(self) -> set[str]:
        """Operands whose buffers have room to lie as their file's pages do."""
        plan = self.plan
        return {o.name for o in plan.op.operands if plan.slot_bytes(o) > int(o.block_bytes(plan.sizes))}


def schedule(plan: Plan) -> Schedule:
    """Lower a plan: emit its steps, lay out its buffers, derive every wait."""
    layout = pack_in_sequence((*plan.buffers, *plan.spill_buffers))
    return Schedule(plan, link(emit(plan), layout), layout)


@dataclass
class Measured:
    """What a run took: start and end of every step in seconds from the start, and the bytes held in each space."""

    starts: list[float]
    ends: list[float]
    space_bytes: dict[str, int] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return max(self.ends, default=0.0)


class Machine:
    """A schedule bound to memory, stores and a kernel: performs one step at a time, on whatever thread calls."""

    def __init__(self, todo: Schedule, stores: Mapping[str, Store], backend: Backend) -> None:
        plan = todo.plan
        self.steps, self.layout, self.backend, self.stores = todo.steps, todo.layout, backend, stores
        self.operands, self.paged = todo.operands, todo.paged
        self.memory = {space: backend.allocate(space, peak) for space, peak in todo.layout.peaks.items()}
        self.views: dict[tuple[Buffer, tuple[int, ...], int], Any] = {}
        self.latest: dict[Buffer, tuple[Ref, Any]] = {}  # the view of each buffer that was asked for last
        self.ahead = Lookahead(todo.steps)
        self.bounce_bytes = plan.bounce_bytes
        room = None if todo.workspace is None else self._bytes(todo.workspace)
        self.kernel: Kernel = backend.kernel(plan.op, plan.kernel, plan.sizes, room)

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

    def space_bytes(self) -> dict[str, int]:
        """Bytes held in each space."""
        return {space: self.layout.peaks[space] for space in self.memory}


class _Stopped(Exception):
    """Another lane failed."""


class _Lanes:
    """The threads of one run: one per lane, the calling thread computes."""

    def __init__(self, machine: Machine, on_step: Callable[[int], None] | None) -> None:
        self.machine, self.on_step = machine, on_step
        count = len(machine.steps)
        self.done, self.tokens = bytearray(count), [None] * count
        self.starts, self.ends = [0.0] * count, [0.0] * count
        machine.backend.begin()
        # Each lane sleeps on a gate of its own and is woken only by the step that it awaits.
        self.gates: dict[str, threading.Lock] = {}
        self.awaited: dict[str, int] = {}
        self.error: BaseException | None = None
        self.origin = time.perf_counter()

    def run(self) -> Measured:
        queues: dict[str, list[int]] = {}
        for i, step in enumerate(self.machine.steps):
            queues.setdefault(step.lane, []).append(i)
        for lane in {**queues, "compute": ()}:
            self.gates[lane], self.awaited[lane] = threading.Lock(), -1
            self.gates[lane].acquire()
        threads = [
            threading.Thread(target=self._guarded, args=(lane, queue), name=f"ooc-{lane}", daemon=True)
            for lane, queue in queues.items()
            if lane != "compute"
        ]
        try:
            for thread in threads:
                thread.start()
            self._guarded("compute", queues.get("compute", []))
        except BaseException as error:  # an interrupt, or no thread to be had
            self._fail(error)
        self._join(threads)
        if self.error is not None:
            raise self.error
        _settle(self.machine, self.tokens, self.starts, self.ends, self.origin)
        return Measured(self.starts, self.ends, self.machine.space_bytes())

    def _join(self, threads: Sequence[threading.Thread]) -> None:
        """Join even when the user interrupts: the lanes stop at their next step. Nobody touches the memory afterwards."""
        while True:
            try:
                for thread in threads:
                    if thread.ident is not None:
                        thread.join()
                return
            except BaseException as error:  # KeyboardInterrupt
                self._fail(error)

    def _guarded(self, lane: str, queue: Sequence[int]) -> None:
        try:
            with self.machine.backend.lane(lane):
                self._walk(lane, queue)
        except _Stopped:
            pass
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self.error = self.error or error
        for lane in self.gates:
            self._open(lane)

    def _walk(self, lane: str, queue: Sequence[int]) -> None:
        machine, steps, clock = self.machine, self.machine.steps, time.perf_counter
        compute = lane == "compute"
        for i in queue:
            step = steps[i]
            for j in step.after:
                if not self.done[j]:
                    self._await(lane, j)
                if self.tokens[j] is not None:
                    machine.backend.wait(lane, self.tokens[j])
            if self.error is not None:
                raise _Stopped
            self.starts[i] = clock() - self.origin
            machine.perform(step)
            self.tokens[i] = machine.backend.record(lane)
            self.ends[i] = clock() - self.origin
            self.done[i] = 1
            for other, j in self.awaited.items():
                if j == i:
                    self._open(other)
            if compute and self.on_step:
                self.on_step(i)

    def _await(self, lane: str, j: int) -> None:
        """Sleep until step j is done. The lane says what it awaits before it looks again, and a step is marked done before
        its lane looks who awaits it: one of the two always sees the other."""
        self.awaited[lane] = j
        while not self.done[j]:
            if self.error is not None:
                raise _Stopped
            self.gates[lane].acquire()
        self.awaited[lane] = -1

    def _open(self, lane: str) -> None:
        """Wake a lane; waking one that does not sleep only makes it look once more."""
        with contextlib.suppress(RuntimeError):  # already open
            self.gates[lane].release()


def _in_turn(machine: Machine, lanes: Iterable[str], on_step: Callable[[int], None] | None) -> Measured:
    """The steps run here, one after the other, without any thread."""
    backend, steps, clock = machine.backend, machine.steps, time.perf_counter
    tokens: list[Any] = []
    starts: list[float] = []
    ends: list[float] = []
    backend.begin()
    origin = clock()
    with contextlib.ExitStack() as stack:
        for lane in lanes:
            stack.enter_context(backend.lane(lane))
        for i, step in enumerate(steps):
            for j in step.after:
                if tokens[j] is not None:
                    backend.wait(step.lane, tokens[j])
            starts.append(clock() - origin)
            machine.perform(step)
            tokens.append(backend.record(step.lane))
            ends.append(clock() - origin)
            if on_step and step.lane == "compute":
                on_step(i)
    _settle(machine, tokens, starts, ends, origin)
    return Measured(starts, ends, machine.space_bytes())


def _settle(machine: Machine, tokens: Sequence[Any], starts: list[float], ends: list[float], origin: float) -> None:
    """When steps ran that were only issued by their lane: after the lane's step before, and after all they waited for."""
    latest: dict[str, float] = {}
    for i, step in enumerate(machine.steps):
        if tokens[i] is not None:
            ends[i] = machine.backend.ended(tokens[i]) - origin
            before = [latest.get(step.lane, 0.0), *(ends[j] for j in step.after)]
            starts[i] = min(max(starts[i], *before), ends[i])
        latest[step.lane] = ends[i]


def run(todo: Schedule, stores: Mapping[str, Store], backend: Backend, on_step: Callable[[int], None] | None = None) -> Measured:
    """Execute a schedule. `on_step(i)` is called on the calling thread after each computed tile.

    A failing step stops every lane; all threads are joined before the error is raised. Errors that are not ooc's own
    become BackendError with the step that failed.
    """
    machine = Machine(todo, stores, backend)
    try:
        return _in_turn(machine, todo.lanes, on_step) if todo.alone else _Lanes(machine, on_step).run()
    except (OocError, KeyboardInterrupt, MemoryError):
        raise
    except Exception as error:
        if on_step is not None and error.__traceback__ is not None and _came_from(error, on_step):
            raise
        raise BackendError(f"{todo.plan.op}: {type(error).__name__}: {error}") from error
    finally:
        machine.release()


def _came_from(error: BaseException, function: Callable[..., Any]) -> bool:
    """Whether an error was raised inside a caller's function (its errors are the caller's own)."""
    code = getattr(function, "__code__", None)
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code is code:
            return True
        trace = trace.tb_next
    return False


def adversarial(todo: Schedule, stores: Mapping[str, Store], backend: Backend, pick: Callable[[Sequence[str]], str]) -> list[int]:
    """Issue every step on one thread, `pick` choosing the next lane among those whose waits are met; returns the order."""
    machine = Machine(todo, stores, backend)
    queues: dict[str, list[int]] = {}
    for i, step in enumerate(todo.steps):
        queues.setdefault(step.lane, []).append(i)
    heads = dict.fromkeys(queues, 0)
    done = bytearray(len(todo.steps))
    tokens: list[Any] = [None] * len(todo.steps)
    order: list[int] = []
    backend.begin()
    with contextlib.ExitStack() as lanes:
        for lane in queues:
            lanes.enter_context(backend.lane(lane))
        while len(order) < len(todo.steps):
            ready = [
                lane for lane, queue in queues.items()
                if heads[lane] < len(queue) and all(done[j] for j in todo.steps[queue[heads[lane]]].after)
            ]  # fmt: skip
            lane = pick(ready)
            i = queues[lane][heads[lane]]
            heads[lane] += 1
            for j in todo.steps[i].after:
                if tokens[j] is not None:
                    backend.wait(lane, tokens[j])
            machine.perform(todo.steps[i])
            tokens[i] = backend.record(lane)
            done[i] = 1
            order.append(i)
    machine.release()
    return order

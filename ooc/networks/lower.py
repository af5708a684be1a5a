"""A program as the engine's own steps: where every instance lies, how it moves, what computes it, and every wait."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ooc.cache import cached_property
from ooc.ir.op import ITEM_BYTES, Operand, aligned
from ooc.ir.region import Region, Span, Whole, elements
from ooc.networks.calls import Call, Network
from ooc.networks.costs import Costs
from ooc.networks.program import Instance, Item, Program
from ooc.networks.proposal import Proposal
from ooc.networks.spaces import arrange
from ooc.networks.tensors import Role
from ooc.schedule.arena import Buffer, Layout, pack_in_sequence
from ooc.schedule.emit import Held, emit
from ooc.schedule.link import link
from ooc.schedule.lowering import Job, job_of
from ooc.schedule.place import FILE, KEPT, PAGEABLE, Place, load_route, store_route
from ooc.schedule.plan import Plan
from ooc.schedule.steps import Ref, Step

PIECE = 32 << 20  # bytes of a copy: one that is ahead in its queue keeps others waiting for no longer
SPILL = "spill"  # the space of homes in pinned memory, of a processor in any


def place_of(space: str) -> Place:
    """Where a tensor lives whose home is in a space; the caller's arrays are reached as files are, which serves memory too."""
    return {SPILL: Place.PINNED, PAGEABLE: Place.HOST}.get(space, Place.DISK)


class Outside(NamedTuple):
    """Where a job reaches beyond the device: the operand of a tensor, as it is seen there, and its home; None: the caller's."""

    tensor: str
    operand: Operand
    home: Buffer | None


@dataclass(frozen=True)
class NetworkSchedule:
    """The linked steps of a network's step, and where everything lies. What executors need of a schedule, see
    `ooc.schedule.lowering.Todo`.

    Fields:
        steps: in the order in which they are issued.
        layout: the byte offset of every buffer, and the peak of every space.
        jobs: what the steps belong to.
        outside: for each job, where it reaches beyond the device, by the name that its steps use.
        resident: where tensors that last lie when a step is done, on the device or at home.
        alone: whether the steps run one after the other on the calling thread.
        packing: buffers that what moves is packed in, for "store" and "load"; empty: it moves as it is.
    """

    steps: tuple[Step, ...]
    layout: Layout
    jobs: tuple[Job, ...]
    outside: tuple[Mapping[str, Outside], ...]
    resident: Mapping[str, Buffer]
    alone: bool
    packing: Mapping[str, Buffer] = field(default_factory=dict)

    @cached_property
    def lanes(self) -> tuple[str, ...]:
        """The lanes that the steps use."""
        return tuple(dict.fromkeys(step.lane for step in self.steps))


class Scene(NamedTuple):
    """Where a network runs: how its calls are computed, and the space that homes are in."""

    costs: Costs
    home: str  # a space: FILE, SPILL or PAGEABLE

    @property
    def staged(self) -> bool:
        """Whether the device reaches pinned memory alone."""
        return self.costs.device.backend.staged


class Lowering:
    """A program while it becomes steps.

    resident: the buffers of what lasts, the same for programs that share memory; default: of the network's own.
    """

    def __init__(
        self, net: Network, proposal: Proposal, made: Program, scene: Scene, resident: Sequence[Buffer] | None = None
    ) -> None:
        self.net, self.proposal, self.made, self.scene = net, proposal, made, scene
        self.resident = list(resident) if resident is not None else [Buffer("device", t.name, 0, t.nbytes) for t in net.lasting]
        self.plans = {i: self._plan(item) for i, item in enumerate(made.items) if item.what == "run"}
        self.stamps = itertools.count(1)
        self.templates: dict[int, Step] = {}
        self.jobs: list[Job] = [Job({})]
        self.outside: list[Mapping[str, Outside]] = [{}]
        self.operands: dict[int, Mapping[str, Operand]] = {}
        self.moved: dict[str, Operand] = {}
        self.reached: dict[str, Outside] = {}

    def layout(self, extend: Mapping[Instance, int] | None = None) -> Layout:
        """Where every buffer lies. extend: items until which the bytes of some instances are left alone."""
        return self._ringed(arrange(self.lives(extend or {}), self.resident, self.proposal.space, self._staying()))

    def load(self) -> Any:
        """Bytes of the device that are in use at every item, as if layouts had no gaps."""
        change = np.zeros(len(self.made.items) + 1, np.int64)
        for buffer, (first, last) in self.lives({}).items():
            if buffer.space == "device":
                change[first] += aligned(buffer.nbytes)
                change[last + 1] -= aligned(buffer.nbytes)
        return np.cumsum(change)[:-1] + sum(int(aligned(b.nbytes)) for b in self.resident)

    def apart(self) -> Layout:
        """Every buffer in a place of its own, as if memory had no end."""
        return self._ringed(pack_in_sequence((*self.resident, *self.lives({}))))

    @cached_property
    def unlinked(self) -> tuple[tuple[int, Step], ...]:
        """The steps without waits, each with its item."""
        return tuple((i, step) for i, item in enumerate(self.made.items) for step in self._steps(i, item))

    def schedule(self, layout: Layout) -> NetworkSchedule:
        """The linked steps, in this layout."""
        steps = link((step for _, step in self.unlinked), layout)
        self.jobs[0], self.outside[0] = Job(self.moved), self.reached
        alone = self.scene.costs.device.backend.shared
        where = {b.name: b for b in self.resident}
        return NetworkSchedule(steps, layout, tuple(self.jobs), tuple(self.outside), where, alone, self.packing)

    # ---- buffers

    def _plan(self, item: Item) -> Plan:
        call, proposal = self.net.calls[item.call], self.proposal
        samples = proposal.chunk if item.chunk >= 0 else proposal.samples_of.get(call.index, 0)
        return self.scene.costs.plan(call, samples, *self._kernel(call))

    def _kernel(self, call: Call) -> tuple[str, int | None, str]:
        rule, _, room = self.proposal.kernels.partition(":")
        return rule, int(room) if room else None, self.proposal.kernel_of.get(call.index, "")

    def _samples(self, chunk: int) -> Span:
        """The samples of a part of the batch."""
        if chunk < 0:
            return Span(0, self.net.batch)
        size = self.proposal.chunk
        return Span(chunk * size, min(self.net.batch, (chunk + 1) * size))

    def _nbytes(self, instance: Instance) -> int:
        tensor = self.net.tensors[instance.tensor]
        return tensor.nbytes // self.net.batch * self._samples(instance.chunk).extent if instance.chunk >= 0 else tensor.nbytes

    def buffer(self, instance: Instance) -> Buffer:
        """What holds an instance on the device."""
        own = self.made.holder(instance)
        return Buffer("device", str(own), 0, self._nbytes(own))

    def _home(self, instance: Instance) -> Buffer | None:
        """What holds a tensor beyond the device; None: the caller does."""
        tensor = self.net.tensors[instance.tensor]
        if tensor.role is Role.INPUT or instance.tensor in self.net.outputs:
            return None
        space = self.scene.home
        if self.proposal.codec and self.scene.staged and space == SPILL:
            space = PAGEABLE  # what is packed by the processor does not come from the device by itself
        return Buffer(space, f"home of {instance._replace(generation=0)}", 0, self._nbytes(instance))

    def _staying(self) -> set[Buffer]:
        """Buffers of what is kept from the forward to the backward pass."""
        kept = {t for t in self.net.kept if self.proposal.fate(t).value == "keep"}
        return {self.buffer(i) for i in self.made.lives if i.tensor in kept}

    def lives(self, extend: Mapping[Instance, int]) -> dict[Buffer, tuple[int, int]]:
        """From which to which item every buffer is in use, some of them for longer."""
        if not extend:
            return self._lives
        longer = {self.buffer(i): until for i, until in extend.items()}
        return {b: (first, max(last, longer.get(b, last))) for b, (first, last) in self._lives.items()}

    @cached_property
    def _lives(self) -> dict[Buffer, tuple[int, int]]:
        found: dict[Buffer, tuple[int, int]] = {}
        lasting = {t.name for t in self.net.lasting}
        for instance, life in self.made.lives.items():
            if instance.tensor in self.net.tensors and instance.tensor not in lasting:
                found[self.buffer(instance)] = life
        for i, item in enumerate(self.made.items):
            if item.what == "run":
                for buffer in self._sums(i, item).values():
                    found[buffer] = (min(i, found.get(buffer, (i, i))[0]), i)
                if room := self._room(i):
                    found[room] = (i, i)
            for instance in (*item.reads, *item.makes) if item.what in ("load", "store") else ():
                home = self._home(instance)
                if home is not None:
                    found[home] = (found.get(home, (i, i))[0], i)
        return found

    def _room(self, i: int) -> Buffer | None:
        nbytes = self.plans[i].workspace_bytes
        return Buffer("device", f"workspace of {i}", 0, nbytes) if nbytes else None

    def _sums(self, i: int, item: Item) -> dict[str, Buffer]:
        """The buffers of partial sums that a run goes on with, by the operand's name."""
        found, plan = {}, self.plans[i]
        by_name = {o.name: o for f in plan.op.folds for o in f.state}
        for instance in item.sums:
            operand = by_name[instance.tensor.partition(":")[2]]
            found[operand.name] = Buffer("device", str(instance), 0, operand.nbytes)
        return found

    def _ringed(self, layout: Layout) -> Layout:
        """With the staging rings, where the device needs them, and room to pack in."""
        offsets, peaks = dict(layout.offsets), dict(layout.peaks)
        rings = [Buffer("staging", way, slot, nbytes) for way, nbytes in self.rings.items() for slot in range(2)]
        for buffer in (*rings, *self.packing.values()):
            offsets[buffer] = peaks.get("staging", 0)
            peaks["staging"] = aligned(offsets[buffer] + buffer.nbytes)
        return Layout(offsets, peaks)

    @cached_property
    def packing(self) -> dict[str, Buffer]:
        """The buffers that what leaves is packed in, and what comes back unpacked from; none where nothing is."""
        pieces = [
            elements(region)
            for item in self.made.items
            if item.what == "store" and self.proposal.codec
            for instance in item.reads
            if (home := self._home(instance)) is not None and home.space != SPILL
            for region in _pieces(*self._moving(instance, home))
        ]
        return {way: Buffer("staging", f"packing {way}", 0, max(pieces)) for way in ("load", "store") if pieces}

    @cached_property
    def rings(self) -> dict[str, int]:
        """Bytes of a slot of each staging ring: of the largest piece that passes it."""
        found: dict[str, int] = {}
        for item in self.made.items if self.scene.staged else ():
            for instance in (*item.reads, *item.makes) if item.what in ("load", "store") else ():
                home = self._home(instance)
                if home is None or home.space != SPILL:
                    operand, held = self._moving(instance, home)
                    most = max(elements(region) for region in _pieces(operand, held)) * ITEM_BYTES[operand.dtype]
                    found[item.what] = max(found.get(item.what, 0), most)
        return found

    # ---- steps

    def _steps(self, i: int, item: Item) -> Iterator[Step]:
        if item.what == "run":
            yield from self._run(i, item)
        elif item.what == "fence":
            refs = tuple(Ref(str(m), self.buffer(m), ()) for m in item.makes)
            yield Step("compute", "fence", self.proposal.label, (), refs)
        else:
            yield from self._move(item)

    def _run(self, i: int, item: Item) -> Iterator[Step]:
        call, plan = self.net.calls[item.call], self.plans[i]
        held = {}
        for operand, instance in zip(plan.op.operands, (*item.reads, *item.makes), strict=True):
            held[operand.name] = Held(self.buffer(instance), self._held(call, operand, instance.chunk))
        for name, buffer in self._sums(i, item).items():
            operand = next(o for f in plan.op.folds for o in f.state if o.name == name)
            held[name] = Held(buffer, operand.whole)
        room = self._room(i)
        if room is not None:
            held["workspace"] = Held(room, ())
        job, what = self._job(plan, room), call.layer or call.op.kind
        if item.chunk < 0 and plan.tiles == 1:
            yield self._in_one(plan, held, job, what)
            return
        for step in emit(plan, held, item.chunk if item.chunk >= 0 else None, self.stamps):
            yield step._replace(job=job, what=what)

    def _in_one(self, plan: Plan, held: Mapping[str, Held], job: int, what: str) -> Step:
        """The one step of a call that is computed whole: as another call's of the same plan, in other buffers."""
        if id(plan) not in self.templates:
            (self.templates[id(plan)],) = emit(plan, held)
        step = self.templates[id(plan)]

        def here(ref: Ref) -> Ref:
            return ref._replace(buffer=held[ref.operand].buffer, stamp=next(self.stamps))

        return step._replace(reads=tuple(map(here, step.reads)), writes=tuple(map(here, step.writes)), job=job, what=what)

    def _held(self, call: Call, operand: Operand, chunk: int) -> Region:
        """The region of an operand that an instance is: all of it but along the batch."""
        if chunk < 0 or call.along is None:
            return operand.whole
        dim, each = call.along
        samples = self._samples(chunk)
        tile = {d: Span(0, e) for d, e in call.op.dims.items()} | {dim: Span(samples.lo * each, samples.hi * each)}
        axes = zip(operand.axes, operand.shape, strict=True)
        return tuple(a.span(tile).clip(e) if dim in a.dims else Span(0, e) for a, e in axes)

    def _job(self, plan: Plan, room: Buffer | None) -> int:
        if id(plan) not in self.operands:
            self.operands[id(plan)] = job_of(plan).operands
        self.jobs.append(Job(self.operands[id(plan)], frozenset(), 0, plan, room))
        self.outside.append({})
        return len(self.jobs) - 1

    def _move(self, item: Item) -> Iterator[Step]:
        """A load or a store, piece by piece."""
        (instance,) = item.makes or item.reads
        home, buffer = self._home(instance), self.buffer(instance)
        operand, held = self._moving(instance, home)
        for n, region in enumerate(_pieces(operand, held)):
            near = Ref(operand.name, buffer, region, 0, held)
            far = () if home is None else (Ref(operand.name, home, region, 0, held),)
            yield from self._hop(item.what, operand, region, near, far, n % 2, home)

    def _hop(
        self, what: str, operand: Operand, region: Region, near: Ref, far: tuple[Ref, ...], slot: int, home: Buffer | None
    ) -> Iterator[Step]:
        nbytes, place = elements(region) * ITEM_BYTES[operand.dtype], place_of(home.space if home is not None else FILE)
        lanes = (load_route if what == "load" else store_route)(place, self.scene.staged)
        ring = () if len(lanes) == 1 else (Ref(operand.name, Buffer("staging", what, slot, self.rings[what]), region),)
        stops = [far, *([ring] if ring else []), (near,)]
        if what == "store":
            stops.reverse()
        for lane, reads, writes in zip(lanes, stops[:-1], stops[1:], strict=True):
            again = nbytes if lane == "read" and self._cached else 0
            yield Step(lane, what, operand.name, reads, writes, region, nbytes=nbytes, runs=1, again=again)

    @cached_property
    def _cached(self) -> bool:
        """Whether the page cache is taken to hold what was stored."""
        homes = {h: h.nbytes for item in self.made.items if item.what == "store" for i in item.reads if (h := self._home(i))}
        return sum(homes.values()) <= KEPT

    def _moving(self, instance: Instance, home: Buffer | None) -> tuple[Operand, Region]:
        """How a tensor is seen while it moves, and the region of it that an instance is: bytes, or the caller's own array."""
        tensor = self.net.tensors[instance.tensor]
        if home is None:
            operand = Operand(tensor.name, tensor.shape, tensor.dtype, tuple(map(Whole, tensor.shape)))
            first = self._samples(instance.chunk) if instance.chunk >= 0 else Span(0, tensor.shape[0])
            held: Region = (first, *(Span(0, e) for e in tensor.shape[1:]))
        else:
            nbytes = self._nbytes(instance)
            operand = Operand(str(instance._replace(generation=0)), (nbytes,), "u8", (Whole(nbytes),))
            held = (Span(0, nbytes),)
        if operand.name not in self.moved:
            self.moved[operand.name] = operand
            if home is None or home.space != SPILL:
                self.reached[operand.name] = Outside(tensor.name, operand, home)
        return self.moved[operand.name], held


def _pieces(operand: Operand, held: Region) -> Iterator[Region]:
    """A region in pieces along its first axis."""
    first, *rest = held
    each = elements(tuple(rest)) * ITEM_BYTES[operand.dtype] if rest else ITEM_BYTES[operand.dtype]
    step = max(1, PIECE // max(1, each))
    for lo in range(first.lo, first.hi, step):
        yield (Span(lo, min(first.hi, lo + step)), *rest)

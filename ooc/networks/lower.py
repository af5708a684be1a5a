"""A program as the engine's own steps: where every instance lies, how it moves, what computes it, and every wait."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ooc.cache import cached_property
from ooc.ir.op import Operand, aligned
from ooc.ir.region import Region, Span
from ooc.networks.calls import Call, Network
from ooc.networks.chains import operand_region, sees_as_channels
from ooc.networks.items import Instance, Item
from ooc.networks.moves import TensorMoves, nbytes_of
from ooc.networks.program import Program
from ooc.networks.proposal import CLOSE, Fate, Proposal
from ooc.networks.scene import SPILL, NetworkSchedule, Scene, counted
from ooc.networks.spaces import arrange
from ooc.networks.tiles import Gaps, Tiles, places_of
from ooc.schedule.arena import Buffer, Layout, Longer, load, pack_in_sequence
from ooc.schedule.emit import Held, emit
from ooc.schedule.link import link
from ooc.schedule.lowering import Job, Outside, Tail, job_of
from ooc.schedule.place import FILE, KEPT
from ooc.schedule.plan import Plan
from ooc.schedule.steps import PAUSE, Ref, Step, moved_bytes


class Lowering:
    """A program while it becomes steps.

    resident: the buffers of what lasts, by tensor, the same for programs that share memory; default: of the network's own.
    """

    def __init__(
        self, net: Network, proposal: Proposal, program: Program, scene: Scene, resident: Mapping[str, Buffer] | None = None
    ) -> None:
        self.net, self.proposal, self.made, self.scene = net, proposal, program, scene
        self.resident = self._residents() if resident is None else dict(resident)
        self.moves = TensorMoves(net, proposal, program, scene, self.resident)
        streaming = proposal.others is Fate.STREAM or Fate.STREAM in proposal.fates.values()
        self.outside_of = {c.index: outside for c in net.calls if (outside := self._outside(c))} if streaming else {}
        runs = [(i, item) for i, item in enumerate(program.items) if item.what == "run"]
        self.tiled = [i for i, item in runs if self.outside(item)]
        self.plans = {i: self._plan(item) for i, item in runs if not self.outside(item)}
        self.partial: dict[int, tuple[Mapping[str, Operand], Sequence[str]]] = {}  # by the plan
        self.tiles: dict[int, Tiles] = {}
        self.stamps = itertools.count(1)
        self.jobs: list[Job] = [Job({})]
        self.job_of: dict[int, int] = {}  # numbers of jobs, by the item
        self.operands: dict[int, Mapping[str, Operand]] = {}

    def layout(self, close: bool = False, alone: Mapping[Instance, int] | None = None, limit: int = 0) -> Layout:
        """Where every buffer lies. close: with as few gaps as several tries leave. alone: items until which the bytes of some
        instances are left alone, where they lie below a limit."""
        longer = Longer({self.buffer(i): until for i, until in (alone or {}).items()}, limit)
        lasting = list(self.resident.values())
        layout = arrange(self.lives, lasting, self.proposal.space, self.under(self.proposal.space), close, longer)
        return self.moves.ringed(self._viewed(layout))

    def layout_within(self, budget: int | None) -> Layout:
        """Where every buffer lies, closely where less is not enough for a budget."""
        layout = self.layout()
        fits = budget is None or self.proposal.space != CLOSE or self.needs(layout) <= budget
        return layout if fits else self.layout(close=True)

    def needs(self, layout: Layout) -> int:
        """Bytes that count against the budget, in a layout without tiles: with the least tiles."""
        gaps, peak, costs = self._gaps(layout), layout.peaks.get("device", 0), self.scene.costs
        for i in self.tiled:
            call = self.net.calls[self.made.items[i].call]
            least = costs.least(call.op, places_of(call, self.outside_of[call.index], self.scene))
            peak = max(peak, gaps.lowest(i, least) + least)
        return counted(Layout({}, {**layout.peaks, "device": peak}), self.scene)

    def settle(self, layout: Layout, budget: int | None) -> Layout:
        """A layout with tiles, each as large as what is free there allows. Raises BudgetError."""
        gaps, known = self._gaps(layout), {}  # type: Gaps, dict[Any, Tiles]
        others = counted(layout, self.scene) - layout.peaks.get("device", 0)
        offsets, peaks = dict(layout.offsets), dict(layout.peaks)
        for i in self.tiled:
            item = self.made.items[i]
            call = self.net.calls[item.call]
            at, limit = gaps.largest(i, None if budget is None else budget - others)
            plan = self.scene.costs.tiled(call.op, places_of(call, self.outside_of[call.index], self.scene), limit)
            held = self._held(item, self.outside_of[call.index])
            key = (id(plan), at, tuple(sorted(held.items())))
            if key not in known:
                known[key] = Tiles(plan, str(len(known)), self.scene.costs.device.backend.shared, held)
                tile_layout = known[key].layout({"device": at, SPILL: layout.peaks.get(SPILL, 0)})
                offsets |= tile_layout.offsets
                peaks |= {space: max(peaks.get(space, 0), peak) for space, peak in tile_layout.peaks.items()}
            self.tiles[i] = known[key]
        return Layout(offsets, peaks)

    def _gaps(self, layout: Layout) -> Gaps:
        """What is free beside a layout."""
        ends = (layout.end(b) for b in self.resident.values() if b.space == "device")
        return Gaps(self.lives if self.tiled else {}, layout, int(aligned(max(ends, default=0))))

    def load(self, workspace: bool = True) -> Any:
        """Bytes of the device that are in use at every item, as if layouts had no gaps. workspace: that of kernels, too."""
        rooms = set() if workspace else {self._room(i) for i in self.plans}
        lives = self.lives
        passing = load((b for b in lives if b.space == "device" and b not in rooms), lives, len(self.made.items))
        return passing + sum(int(aligned(b.nbytes)) for b in self.resident.values() if b.space == "device")

    def apart(self) -> Layout:
        """Every buffer in a place of its own, as if memory had no end."""
        return self.moves.ringed(self._viewed(pack_in_sequence((*self.resident.values(), *self.lives))))

    def _viewed(self, layout: Layout) -> Layout:
        """A layout with the samples that are used of what is there as a whole."""
        offsets = dict(layout.offsets)
        for view, whole in self.made.views.items():
            assert view.part is not None
            held = self.buffer(whole)
            offsets[self.buffer(view)] = offsets[held] + held.nbytes // self.net.batch * view.part[0].lo
        return Layout(offsets, layout.peaks)

    @cached_property
    def unlinked(self) -> tuple[tuple[int, Step], ...]:
        """The steps without waits, each with its item; of a call in many tiles the first ones."""
        return tuple((i, step) for i, item in enumerate(self.made.items) for step in self._steps(i, item))

    def every(self) -> Iterator[Step]:
        """All steps, without waits."""
        return (step for i, item in enumerate(self.made.items) for step in self._steps(i, item, every=True))

    def schedule(self, layout: Layout) -> NetworkSchedule:
        """The linked steps, in this layout."""
        steps = link((step for _, step in self.unlinked), layout)
        self.jobs[0], tails = Job(self.moves.moved, outside=self.moves.reached), tuple(self._tails())
        every = self.every if tails or self.net.pause is not None else None
        return NetworkSchedule(
            steps, layout, tuple(self.jobs), self.scene.costs.device.backend.shared, every, tails,
            resident=self.resident, program=self.made, items=tuple(i for i, _ in self.unlinked), packing=self.moves.packing,
        )  # fmt: skip

    def _tails(self) -> Iterator[Tail]:
        """What the held steps lack."""
        ends = {i: at + 1 for at, (i, _) in enumerate(self.unlinked)}
        for i, tiles in sorted(self.tiles.items()):
            if tiles.tail:
                held = moved_bytes(tiles.first)
                left = {lane: max(0, nbytes - held.get(lane, 0)) for lane, nbytes in tiles.plan.lane_bytes.items()}
                yield Tail(ends[i], self.job_of[i], tiles.tail, left)

    # ---- buffers

    def _residents(self) -> dict[str, Buffer]:
        """Where what lasts lives; what the caller lends does, unless it is kept on the device."""
        residents = {}
        for t in self.net.lasting:
            kept = self.proposal.resident(t.name)
            if kept or t.name not in self.net.in_place:
                space, called = ("device", t.name) if kept else (self.scene.home, f"home of {t.name}")
                residents[t.name] = Buffer(space, called, 0, t.nbytes)
        return residents

    def _outside(self, call: Call) -> dict[str, Outside]:
        """Operands of a call that never are on the device as a whole, by name."""
        named = zip(call.op.operands, (*call.reads, *call.makes), strict=True)
        streamed = ((o, t) for o, t in named if self.proposal.fate(t) is Fate.STREAM)
        return {o.name: Outside(t, o, self.moves.home_of(t)) for o, t in streamed}

    def outside(self, item: Item) -> Mapping[str, Outside]:
        """Operands of a run that never are on the device as a whole; parts of a chain are loaded and stored by themselves."""
        return {} if item.tile else self.outside_of.get(item.call, {})

    def _plan(self, item: Item) -> Plan:
        call = self.net.calls[item.call]
        cut = call.cut(item.chunk or self.proposal.samples_of.get(call.index, 0))
        if item.tile:
            cut = tuple((dim, span.extent) for dim, span in item.tile)
        return self.scene.costs.plan(call.op, cut, *self._kernel(call))

    def _kernel(self, call: Call) -> tuple[str, int | None, str]:
        rule, _, room = self.proposal.kernels.partition(":")
        return rule, int(room) if room else None, self.proposal.kernel_of.get(call.index, "")

    def buffer(self, instance: Instance) -> Buffer:
        """What holds an instance on the device."""
        holder = self.made.holder(instance)
        if instance in self.made.views:
            holder = holder._replace(part=instance.part)
        return Buffer("device", str(holder), 0, nbytes_of(self.net, holder))

    def under(self, space: str) -> set[Buffer]:
        """Buffers that lie under others, see `arrange`."""
        net = self.net
        if space == "ends":
            names = {t for t in net.kept if self.proposal.fate(t) is Fate.KEEP}
        elif space == "rotate":
            names = {net.resolve(node.made) for node in net.graph.nodes if not node.layer.is_loss}
        else:
            return set()
        return {self.buffer(i) for i in self.made.lives if i.tensor in names}

    @cached_property
    def lives(self) -> dict[Buffer, tuple[int, int]]:
        """From which to which item every buffer is in use."""
        lives: dict[Buffer, tuple[int, int]] = {}
        there = {name for name, b in self.resident.items() if b.space == "device"}
        kept = set(self.resident.values())
        for instance, life in self.made.lives.items():
            name = instance.tensor
            streamed = instance.part is None and self.proposal.fate(name) is Fate.STREAM
            if name in self.net.tensors and name not in there and not streamed:
                lives[self.buffer(instance)] = life
        for i, item in enumerate(self.made.items):
            if i in self.plans:  # nothing of it is at home
                for buffer in self._sums(i, item).values():
                    lives[buffer] = (min(i, lives.get(buffer, (i, i))[0]), i)
                if room := self._room(i):
                    lives[room] = (i, i)
                continue
            for home in self._homes_at(item):
                if home not in kept:
                    lives[home] = (lives.get(home, (i, i))[0], i)
        return lives

    @cached_property
    def _cached(self) -> bool:
        """Whether the page cache is taken to hold what is at home."""
        homes = {b for b in (*self.resident.values(), *self.lives) if b.space == FILE}
        return sum(b.nbytes for b in homes) <= KEPT

    def _homes_at(self, item: Item) -> Iterator[Buffer]:
        """The homes that an item reads or writes."""
        names = [i.tensor for i in (*item.reads, *item.makes)] if item.what in ("load", "store") else ()
        names = names or [o.tensor for o in self.outside(item).values()]
        yield from (home for name in names if (home := self.moves.home_of(name)) is not None)

    def _room(self, i: int) -> Buffer | None:
        nbytes = self.plans[i].workspace_bytes
        return Buffer("device", f"workspace of {i}", 0, nbytes) if nbytes else None

    def _sums(self, i: int, item: Item) -> dict[str, Buffer]:
        """The buffers of partial sums that a run goes on with, by the operand's name; where its parts are its plan's own, too."""
        by_name, split = self._partial(self.plans[i])
        sums = {name: str(s) for s in item.sums if (name := s.tensor.partition(":")[2]) in by_name}
        if split and item.samples is None and not item.tile:
            sums |= {name: f"{item.call}:{name} of {i}" for name in split if name not in sums}
        return {name: Buffer("device", called, 0, by_name[name].nbytes) for name, called in sums.items()}

    def _partial(self, plan: Plan) -> tuple[Mapping[str, Operand], Sequence[str]]:
        """What a plan sums, by name, and the names of sums that its parts are its own of."""
        key = id(plan)
        if key not in self.partial:
            outputs, folds = {o.name for o in plan.op.outputs}, plan.op.folds
            split = [o.name for f in folds if plan.splits(f) for o in f.state if o.name not in outputs]
            self.partial[key] = {o.name: o for f in folds for o in f.state}, split
        return self.partial[key]

    # ---- steps

    def _steps(self, i: int, item: Item, every: bool = False) -> Iterator[Step]:
        """The steps of an item. every: of a call in many tiles not the first ones alone."""
        if item.what == "run" and i in self.tiles:
            yield from self._cut(i, item, every)
        elif item.what == "run":
            yield from self._run(i, item)
        elif item.what == "fence":
            refs = tuple(Ref(str(m), self.buffer(m), ()) for m in item.makes)
            yield Step("compute", "fence", self.proposal.label, (), refs)
        elif item.what == "pause":
            yield Step("compute", PAUSE, self.net.graph.name)
        else:
            (instance,) = item.makes or item.reads
            yield from self.moves.steps(item.what, instance, self.buffer(instance), self._cached)

    def _run(self, i: int, item: Item) -> Iterator[Step]:
        call, plan = self.net.calls[item.call], self.plans[i]
        held = self._held(item, {})
        for name, buffer in self._sums(i, item).items():
            operand = next(o for f in plan.op.folds for o in f.state if o.name == name)
            held[name] = Held(buffer, operand.whole)
        room = self._room(i)
        if room is not None:
            held["workspace"] = Held(room, ())
        job, what = self._number(i, Job(self._operands(plan), frozenset(), 0, plan, room)), call.layer or call.op.kind
        if item.tile or item.samples is not None or plan.tiles == 1:
            yield self._tile(item, plan, held)._replace(job=job, what=what)
        else:
            for step in emit(plan, held, (), self.stamps):
                yield step._replace(job=job, what=what)

    def _tile(self, item: Item, plan: Plan, held: Mapping[str, Held]) -> Step:
        """The one step of a part, of the batch or of a chain, or of a call that is computed whole."""
        tile = dict(item.tile)
        if item.samples is not None:
            dim, each = self.net.calls[item.call].along or ("", 0)
            tile = {dim: Span(item.samples.lo * each, item.samples.hi * each)}
        return self.scene.costs.single(plan).step(tile, held, self.stamps)

    def _cut(self, i: int, item: Item, every: bool) -> Iterator[Step]:
        """The steps of a call that is cut into tiles."""
        tiles, call = self.tiles[i], self.net.calls[item.call]
        outside = self.outside_of[call.index]
        reached = {n: o for n, o in outside.items() if o.home is None or o.home.space != SPILL}
        job = self._number(i, tiles.job._replace(outside=reached))
        yield from tiles.steps(job, call.layer or call.op.kind, outside, self._cached, every)

    def _held(self, item: Item, outside: Mapping[str, Outside]) -> dict[str, Held]:
        """Where the operands of a run lie on the device, but those outside."""
        call = self.net.calls[item.call]
        named = zip(call.op.operands, (*item.reads, *item.makes), strict=True)
        return {o.name: Held(self.buffer(n), self._region(call, o, n)) for o, n in named if o.name not in outside}

    def _region(self, call: Call, operand: Operand, instance: Instance) -> Region:
        """The region of an operand that an instance is; where the operand has other axes than its tensor, what follows the batch
        is cut."""
        if instance.part is None:
            return operand.whole
        shape = self.net.tensors[instance.tensor].shape
        if operand.shape == shape or sees_as_channels(operand, shape):
            return operand_region(operand, shape, instance.part)
        return self.net.cut(operand, call, instance.part[0])

    def _operands(self, plan: Plan) -> Mapping[str, Operand]:
        if id(plan) not in self.operands:
            self.operands[id(plan)] = job_of(plan).operands
        return self.operands[id(plan)]

    def _number(self, i: int, job: Job) -> int:
        """The number of an item's job, the same whenever its steps are made."""
        if i not in self.job_of:
            self.job_of[i] = len(self.jobs)
            self.jobs.append(job)
        return self.job_of[i]

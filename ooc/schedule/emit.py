"""A plan as steps: each operand moves only when its region changes, so the loop order is the reuse policy."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from ooc.cache import Cache
from ooc.ir.op import ITEM_BYTES, Fold, Operand
from ooc.ir.region import AxisMap, Region, Sizes, Span, elements, spans
from ooc.schedule.arena import Buffer
from ooc.schedule.page_cache import Visited
from ooc.schedule.place import KEPT, Place, load_route, store_route
from ooc.schedule.plan import Plan
from ooc.schedule.steps import FIRST, LAST, Ref, Step
from ooc.schedule.work import Work, stage_keys

REMEMBERED = 4096  # regions of an operand, spans of an axis


class Held(NamedTuple):
    """Where an operand lies in a larger schedule: the buffer, and the region of the operand that it holds."""

    buffer: Buffer
    region: Region


NOTHING: Mapping[str, Held] = MappingProxyType({})


class _Ring:
    """The buffers of one operand in one space, used in turn."""

    def __init__(self, space: str, name: str, nbytes: int, depth: int) -> None:
        self.nbytes = nbytes
        self._buffers = itertools.cycle([Buffer(space, name, i, nbytes) for i in range(depth)])

    def turn(self) -> Buffer:
        return next(self._buffers)


class _Moving:
    """One operand while its tiles go by: its region now, its buffer now, and how it gets there and back."""

    def __init__(
        self, operand: Operand, plan: Plan, tiles: Mapping[str, Sequence[Span]], stamps: Iterator[int], held: Held | None
    ) -> None:
        self.operand, self.stamps, self.held = operand, stamps, held
        place = plan.place(operand.name) if held is None else Place.DEVICE
        self.loads, self.stores = load_route(place, plan.staged), store_route(place, plan.staged)
        self.in_place = place is Place.DEVICE
        self.bounce = plan.bounce(place)
        self.nbytes = plan.slot_bytes(operand)
        self.ring = _Ring("device", operand.name, self.nbytes, plan.slots(operand))
        self.staging = _Ring("staging", operand.name, plan.staging_bytes(operand), plan.staging_slots(operand))
        self.dims = [d for d in plan.order if d in operand.dims]
        self.tiles = tiles
        self.axes: list[Span | tuple[AxisMap, int, list[str], Cache[Span]]] = [
            (axis, extent, list(axis.dims), Cache(REMEMBERED))
            if any(len(tiles[d]) != 1 for d in axis.dims)
            else axis.span({d: tiles[d][0] for d in axis.dims}).clip(extent)  # the same in all tiles
            for axis, extent in zip(operand.axes, operand.shape, strict=True)
        ]
        self.regions: Cache[Region] = Cache(REMEMBERED)
        self.visited = Visited(operand) if "read" in self.loads and operand.nbytes <= KEPT else None
        self.ref: Ref | None = None

    def region(self, at: dict[str, int]) -> Region:
        """The region of a tile, remembered by the tile indices that it depends on."""
        key = tuple([at[d] for d in self.dims])
        region = self.regions.get(key)
        if region is None:
            spans = [axis if isinstance(axis, Span) else self._span(at, *axis) for axis in self.axes]
            region = self.regions.keep(key, tuple(spans))
        return region

    def _span(self, at: dict[str, int], axis: AxisMap, extent: int, dims: list[str], known: Cache[Span]) -> Span:
        """The clipped span of one axis; long schedules share these objects."""
        key = tuple([at[d] for d in dims])
        span = known.get(key)
        return span if span is not None else known.keep(key, axis.span({d: self.tiles[d][at[d]] for d in dims}).clip(extent))

    def take(self, region: Region) -> Ref:
        """Take the next buffer for a region, or the one that holds it already."""
        if self.held is not None:
            self.ref = Ref(self.operand.name, self.held.buffer, region, next(self.stamps), self.held.region)
        else:
            buffer = None if self.in_place else self.ring.turn()
            self.ref = Ref(self.operand.name, buffer, region, next(self.stamps))
        return self.ref

    def load(self, region: Region) -> Iterator[Step]:
        """Bring a region in, hop by hop, in pieces where it passes the staging ring."""
        ref = self.take(region)
        for piece in self._pieces(ref, self.loads):
            source: Ref | None = None
            for lane in self.loads:
                target = piece if lane == self.loads[-1] else Ref(self.operand.name, self.staging.turn(), piece.region)
                yield self._copy("load", lane, source, target, self.bounce if lane == "read" else None)
                source = target

    def store(self) -> Iterator[Step]:
        """Take the region out, hop by hop, in pieces where it passes the staging ring."""
        assert self.ref is not None
        for piece in self._pieces(self.ref, self.stores):
            source = piece
            for lane in self.stores:
                final = lane == self.stores[-1]
                target = None if final else Ref(self.operand.name, self.staging.turn(), source.region)
                yield self._copy("store", lane, source, target, self.bounce if lane == "write" else None)
                source = target or source

    def _pieces(self, ref: Ref, route: Sequence[str]) -> Iterable[Ref]:
        """A reference as such of what passes the staging ring at once."""
        if len(route) < 2 or self.staging.nbytes >= self.nbytes:
            return (ref,)
        return [ref._replace(region=r, home=ref.region) for r in pieces(self.operand, ref.region, self.staging.nbytes)]

    def _copy(self, kind: str, lane: str, source: Ref | None, target: Ref | None, bounce: Buffer | None) -> Step:
        region = (target or source).region  # type: ignore[union-attr]
        scratch = (Ref("bounce", bounce._replace(name=f"bounce.{lane}"), ()),) if bounce else ()
        nbytes = elements(region) * ITEM_BYTES[self.operand.dtype]
        direct = source is None or target is None  # touches the user's strided tensor; other hops are flat
        runs = contiguous_runs(self.operand, region) if direct else 1
        reads = (source,) if source else ()
        writes = ((target,) if target else ()) + scratch
        cached = self.visited.bytes(region) if self.visited and lane == "read" else 0
        return Step(lane, kind, self.operand.name, reads, writes, region, nbytes=nbytes, runs=runs, again=cached)


def pieces(operand: Operand, region: Region, most_bytes: int) -> Iterator[Region]:
    """A region cut into such of at most so many bytes, in the order of memory, along its slowest axes."""
    nbytes = elements(region) * ITEM_BYTES[operand.dtype]
    axis = next((a for a in operand.memory_order if region[a].extent > 1), None)
    if nbytes <= most_bytes or axis is None:
        yield region
        return
    span = region[axis]
    step = max(1, most_bytes // (nbytes // span.extent))
    for lo in range(span.lo, span.hi, step):
        yield from pieces(operand, (*region[:axis], Span(lo, min(lo + step, span.hi)), *region[axis + 1 :]), most_bytes)


def contiguous_runs(operand: Operand, region: Region) -> int:
    """Number of contiguous pieces of the tensor that make up a region."""
    runs, whole_so_far = 1, True
    for axis in reversed(operand.memory_order):
        if not whole_so_far:
            runs *= region[axis].extent
        whole_so_far = whole_so_far and region[axis].extent == operand.shape[axis]
    return max(runs, 1)


def emit(
    plan: Plan, held: Mapping[str, Held] = NOTHING, chapter: Sequence[int] = (), stamps: Iterator[int] | None = None
) -> Iterator[Step]:
    """The steps of a plan, in program order, without waits.

    One movement rule for every operand: it moves only when its region changes, so the loop order is the reuse policy.
    A partial sum that is left before it is complete is spilled to memory of its own and comes back later.

    held: operands and partial sums that lie in buffers of a larger schedule and never move. chapter: the steps of these indices
    of the outermost loops alone, so that several plans may take turns; what those sum must then be held. stamps: numbers that
    tell contents of blocks apart; default: 1, 2, ...
    """
    op = plan.op
    tiles = {d: spans(e, plan.sizes[d]) for d, e in op.dims.items()}
    stamps = stamps or itertools.count(1)
    inputs = [_Moving(o, plan, tiles, stamps, held.get(o.name)) for o in op.inputs]
    outputs = {o.name: _Moving(o, plan, tiles, stamps, held.get(o.name)) for o in op.outputs}
    folds = [_Folding(f, plan, tiles, outputs, stamps, held) for f in op.folds]
    work: tuple[Ref, ...] = ()
    if plan.workspace_bytes:
        room = held.get("workspace")
        work = (Ref("workspace", room.buffer if room else Buffer("device", "workspace", 0, plan.workspace_bytes), ()),)
    works = _Works(plan)
    counts = [len(tiles[d]) for d in plan.order]
    for index in ((*chapter, *inner) for inner in _nested(counts[len(chapter) :])):
        at = dict(zip(plan.order, index, strict=True))
        tile = tuple([(d, tiles[d][at[d]]) for d in op.dims])
        fresh = 0
        for moving in inputs:
            region = moving.region(at)
            if moving.ref is None or moving.ref.region != region:
                yield from moving.load(region)
                if moving.operand.name in op.fixed:
                    fresh += elements(region) * ITEM_BYTES[moving.operand.dtype]
        active = [f for f in folds if f.begin(at)]
        for fold in active:
            yield from fold.enter(at)
        sums = tuple([r for f in active for r in f.refs])
        back = tuple([r for f in active if not f.first for r in f.refs])
        completed = tuple([m.take(m.region(at)) for f in active for m in f.completing()])
        reads = (*(m.ref for m in inputs if m.ref), *back)
        phase = FIRST * folds[0].first + LAST * folds[0].last
        done = works.of(at, tile, folds[0].last, fresh)
        yield Step("compute", "run", op.kind, reads, (*sums, *completed, *work), (), tile, phase, work=done)
        for fold in active:
            yield from fold.leave()


class Single:
    """Single tiles of a plan whose operands lie in buffers of a larger schedule."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.op, self.works = plan, plan.op, _Works(plan)
        self.fixed = {o.name for o in self.op.inputs} & {*self.op.fixed}
        outputs = {o.name: o for o in self.op.outputs}
        self.folds = []
        for fold in self.op.folds:
            states = fold.state if plan.splits(fold) else ()
            self.folds.append((fold, states, [outputs[name] for name in fold.makes if outputs[name] not in states]))

    def step(self, tile: Mapping[str, Span], held: Mapping[str, Held], stamps: Iterator[int]) -> Step:
        """The step of one tile, of which loops that it does not name are whole; sums go on where a tile before it left them."""
        op = self.op
        spans = {d: tile.get(d) or Span(0, e) for d, e in op.dims.items()}
        at = {d: span.lo for d, span in spans.items()}

        def ref(operand: Operand) -> Ref:
            there = held[operand.name]
            return Ref(operand.name, there.buffer, operand.region(spans), next(stamps), there.region)

        reads, writes = [ref(o) for o in op.inputs], list[Ref]()
        fresh = sum(elements(r.region) * ITEM_BYTES[o.dtype] for o, r in zip(op.inputs, reads) if o.name in self.fixed)
        phases = []
        for fold, states, makes in self.folds:
            first = not any(at[d] for d in fold.reduce)
            last = all(spans[d].hi == op.dims[d] for d in fold.reduce)
            phases.append(FIRST * first + LAST * last)
            if any(at[d] for d in fold.idle):
                continue
            sums = [ref(o) for o in states]
            reads += [] if first else sums
            writes += [*sums, *(map(ref, makes) if last else ())]
        if self.plan.workspace_bytes:
            writes.append(Ref("workspace", held["workspace"].buffer, ()))
        cut = tuple(spans.items())
        work = self.works.of(at, cut, bool(phases[0] & LAST), fresh)
        return Step("compute", "run", op.kind, tuple(reads), tuple(writes), (), cut, phases[0], work=work)


def _nested(counts: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The indices of nested loops; unlike itertools.product it keeps none of their ranges in memory."""
    if not counts:
        yield ()
        return
    inner = range(counts[-1])
    for outer in _nested(counts[:-1]):
        for i in inner:
            yield (*outer, i)


class _Works:
    """What a tile computes, per stage, remembered by the shape of the tile."""

    def __init__(self, plan: Plan) -> None:
        self.op, self.kernels = plan.op, plan.kernels
        self.keys = stage_keys(plan.op, plan.kernels)
        self.idle = [self.op.stage_idle(i) for i in range(len(self.op.stages))]
        self.gates = sorted({d for idle in self.idle for d in idle})
        self.known: dict[Any, tuple[Work, ...]] = {}

    def of(self, at: dict[str, int], tile: tuple[tuple[str, Span], ...], complete: bool, fresh: int) -> tuple[Work, ...]:
        """Work of a tile; `fresh` bytes of filters are new to the kernel. `complete`: the first fold's reduction is."""
        waiting = tuple([at[d] > 0 for d in self.gates])
        key = (tuple([hi - lo for _, (lo, hi) in tile]), waiting, complete, fresh)
        works = self.known.get(key)
        if works is None:
            sizes = self.op.stage_sizes({d: s.extent for d, s in tile})
            works = self.known[key] = tuple(
                self._work(i, z, fresh * (i == self.op.preparing))
                for i, z in enumerate(sizes)
                if self.op.runs(i, complete) and not any(at[d] for d in self.idle[i])
            )
        return works

    def _work(self, i: int, sizes: Sizes, fresh: int) -> Work:
        """Of a stage in a tile of these sizes."""
        stage, kernel = self.op.stages[i], self.kernels[i]
        effort = float(stage.effort(sizes, kernel)) + fresh * stage.preparation(kernel)
        return Work(self.keys[i], effort, int(stage.touched_bytes(sizes)) + fresh, float(stage.width(sizes)))


class _Folding:
    """A fold while its tiles go by. Its partial results are resident for one output tile at a time; unfinished ones wait
    in the spill space, one slot per tile."""

    def __init__(
        self, fold: Fold, plan: Plan, tiles: Mapping[str, Sequence[Span]], outputs: dict[str, _Moving], stamps: Iterator[int],
        held: Mapping[str, Held],
    ) -> None:  # fmt: skip
        self.fold = fold
        states = fold.state if plan.splits(fold) else ()
        self.states = [outputs.get(o.name) or _Moving(o, plan, tiles, stamps, held.get(o.name)) for o in states]
        self.leaving = [m for m in self.states if not m.in_place]
        self.makes = [outputs[name] for name in fold.makes]
        names = {m.operand.name for m in self.states}
        self.unheld = [m for m in self.makes if m.operand.name not in names]
        self.dims = [d for d in plan.order if d not in fold.reduce and d not in fold.idle]
        self.ends = [(d, len(tiles[d]) - 1) for d in fold.reduce]
        self.first = self.last = True
        self.resident: tuple[int, ...] | None = None
        self.slots: dict[tuple[int, ...], int] = {}

    @property
    def refs(self) -> tuple[Ref, ...]:
        """The partial results, resident."""
        return tuple([m.ref for m in self.states if m.ref])

    def begin(self, at: dict[str, int]) -> bool:
        """Whether a tile has to do with this fold; notes where it stands in the reduction."""
        for d in self.fold.idle:
            if at[d]:
                return False
        self.first = not any(at[d] for d in self.fold.reduce)
        self.last = all(at[d] == end for d, end in self.ends)
        return True

    def enter(self, at: dict[str, int]) -> Iterator[Step]:
        """Make the partial results of a tile resident."""
        if not self.states:
            return
        key = tuple([at[d] for d in self.dims])
        if key == self.resident:
            return
        if self.resident is not None:
            slot = self.slots.setdefault(self.resident, len(self.slots))
            for moving in self.leaving:
                yield self._spill("store", "d2h", moving, slot)
        self.resident = key
        for moving in self.states:
            moving.take(moving.region(at))
            if not self.first and not moving.in_place:
                yield self._spill("load", "h2d", moving, self.slots[key])

    def completing(self) -> list[_Moving]:
        """Outputs that this tile makes and that are not there yet."""
        return self.unheld if self.last else []

    def leave(self) -> Iterator[Step]:
        """After the tile was computed: store what is complete."""
        if self.last:
            for moving in self.makes:
                yield from moving.store()
            self.resident = None

    def _spill(self, kind: str, lane: str, moving: _Moving, slot: int) -> Step:
        ref = moving.ref
        assert ref is not None
        nbytes = elements(ref.region) * ITEM_BYTES[moving.operand.dtype]
        kept = Ref(moving.operand.name, Buffer("spill", moving.operand.name, slot, moving.nbytes), ref.region)
        reads, writes = ((ref,), (kept,)) if kind == "store" else ((kept,), (ref,))
        return Step(lane, kind, moving.operand.name, reads, writes, ref.region, nbytes=nbytes, runs=1)

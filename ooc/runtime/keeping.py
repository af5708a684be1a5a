"""What of the units of a call's sources is kept, and which part of the budget that takes."""

from __future__ import annotations

import itertools
import math
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from ooc.errors import BudgetError
from ooc.ir.op import Op, Operand
from ooc.ir.region import Region, Span, clip, spans
from ooc.planner.planner import Planner
from ooc.runtime.device import Device
from ooc.runtime.store import UnitStore
from ooc.runtime.tensors import Tensor, folder_beside, places_of
from ooc.runtime.units import Keeping, Units, edges_of, ranges_of, unit_of
from ooc.schedule.budget import show_bytes
from ooc.schedule.plan import Plan
from ooc.sources.beside import folder_of_file
from ooc.sources.protocol import Source

RUN = 4 << 20  # bytes of units that are decoded at once, where there is room
ROOM = 64 << 20  # bytes for units beside a device whose memory is not the host's, or without a limit
SHARE = 4  # units take at most one part of so many of a budget, or one unit


def planned_beside(op: Op, tensors: Mapping[str, Tensor], device: Device, deterministic: bool) -> tuple[list[Plan], int]:
    """The plans of an op, and the bytes of memory that the units of its sources have beside them.

    Raises BudgetError where one unit and the smallest tile do not fit, UnsupportedError.
    """
    sources = {id(t.stored.source): t.stored.source for t in tensors.values() if t.stored is not None}
    units = [unit for source in sources.values() if (unit := largest(source)) is not None]
    if not units:
        return device.planner.plans(op, places_of(tensors), deterministic), 0
    limit, least = device.device_bytes, max(unit for unit, _ in units)
    if limit is None or not device.backend.shared:
        return device.planner.plans(op, places_of(tensors), deterministic), max(ROOM, least)
    taken = sum(source.buffer_bytes for source in sources.values())
    left = limit - taken if taken <= limit // 2 else limit  # decoders' buffers count, unless that leaves next to nothing
    rooms = [max(least, min(left // SHARE, sum(nbytes + unit for unit, nbytes in units))), least]
    for room in dict.fromkeys(rooms):
        try:
            return _planner(op, device, left - room).plans(op, places_of(tensors), deterministic), room
        except BudgetError as error:
            refusal = error
    raised = BudgetError(f"{refusal} Of the budget, {show_bytes(limit - left + least)} are for units that files are decoded in.")
    if refusal.smallest_bytes is not None:
        raised.smallest_bytes = refusal.smallest_bytes + limit - left + least
    raise raised from None


def _planner(op: Op, device: Device, nbytes: int) -> Planner:
    if nbytes < 1:
        raise BudgetError(f"{op}: a unit of a file (chunk, shard, tile or strip) takes more than the budget.")
    return replace(device, device_bytes=nbytes).planner


def largest(source: Source) -> tuple[int, int] | None:
    """Bytes of the largest unit of a source, and of all; None: it has no units."""
    item, unit = source.dtype.itemsize, math.prod(unit_of(source))
    return None if unit == 1 else (unit * item, math.prod(source.shape) * item)


class SourceUnits:
    """The units of the sources of a call or of a network's run, the same for all tensors of a source.

    keep: what is kept of a source's units.
    """

    def __init__(self, keep: Callable[[Source], Keeping]) -> None:
        self.keep, self.turn = keep, threading.RLock()
        self.units: dict[int, Units] = {}
        self.written: dict[int, Units] = {}

    def store(self, tensor: Tensor, writable: bool) -> UnitStore:
        """How a tensor of a source is read and written, by region."""
        assert tensor.stored is not None
        source, key = tensor.stored.source, id(tensor.stored.source)
        if key not in self.units:
            self.units[key] = Units(source, self.keep(source), self.turn)
        if writable:
            self.written[key] = self.units[key]
        return UnitStore(self.units[key], tensor.stored, tuple(tensor.array.shape))

    def finish(self) -> None:
        """All that was written is in its file."""
        for units in self.written.values():
            units.finish()

    def close(self) -> None:
        """Give the room back; what waits to be written is lost."""
        for units in self.units.values():
            units.close()

    @property
    def held_bytes(self) -> int:
        """Of units in memory, with what is decoded at once."""
        held = [nbytes for units in self.units.values() if (nbytes := units.held_bytes) is not None]
        return sum(held) + max((units.keeping.run_bytes for units in self.units.values()), default=0) if held else 0


def units_of_call(plans: Sequence[Plan], tensors: Mapping[str, Tensor], outputs: Collection[str], room: int) -> SourceUnits:
    """The units of a call's sources. tensors: its arrays, by name. outputs: which of them are written. room: bytes of memory that
    units have."""
    parts: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if tensor.stored is not None:
            parts.setdefault(id(tensor.stored.source), {})[name] = tensor
    sources = [tensor.stored.source for tensor in tensors.values() if tensor.stored is not None]
    least = max((unit[0] for source in sources if (unit := largest(source)) is not None), default=0)
    run_bytes, folder = max(least, min(RUN, room // 2)), folder_beside(tensors, outputs)
    memory = max(0, room - run_bytes) // max(1, len(parts))

    def keep(source: Source) -> Keeping:
        keeping = keeping_of(source, plans, parts[id(source)])
        return replace(keeping, memory_bytes=memory, run_bytes=run_bytes, folder=folder)

    return SourceUnits(keep)


def keeping_of(source: Source, plans: Sequence[Plan], tensors: Mapping[str, Tensor]) -> Keeping:
    """What of a source's units is kept, so that each is decoded, and encoded, about once.

    The positions that neighbours share, and two of the outermost loop's steps at a time: the halo of the next one lies in them,
    and, where that loop reads the same again, so does all of it.
    """
    near, repeats, most, uses = [0] * len(source.shape), False, 0, 0
    edges = [edges_of(source, axis) for axis in range(len(source.shape))]
    for plan in plans:
        for name, tensor in tensors.items():
            operand = next((o for o in plan.op.operands if o.name == name), None)
            if operand is None or tensor.stored is None:
                continue
            uses += 1
            steps = list(_steps(plan, operand))
            if not steps:
                continue
            repeats = repeats or _repeats(steps)
            for run, first, second in (
                (r, a, b) for one, two in steps for r, a, b in zip(tensor.stored.runs, one, two, strict=True)
            ):
                for axis in run:
                    shared = max(0, first.hi - second.lo) if second.lo > first.lo else 0
                    near[axis] = max(near[axis], shared if len(run) == 1 else source.shape[axis])
            most = max(most, 2 * _units_of_step(plan, operand, tensor, edges))
    if uses > 1:
        repeats, most = True, math.prod(len(some) - 1 for some in edges)
    return Keeping(tuple(near), repeats, most)


def keeping_of_moves(source: Source, moves: Sequence[Sequence[Region]]) -> Keeping:
    """The same from the regions of the source that are read or written, one after the other."""
    if largest(source) is None:
        return Keeping((0,) * len(source.shape))
    edges = [edges_of(source, axis) for axis in range(len(source.shape))]
    near = []
    for axis in range(len(source.shape)):
        shared, end = 0, 0
        for span in sorted({region[axis] for move in moves for region in move}):
            shared, end = max(shared, end - span.lo), max(end, span.hi)
        near.append(shared)
    met = [[index for region in move for index in itertools.product(*ranges_of(region, edges))] for move in moves]
    last = {index: i for i, some in enumerate(met) for index in some}
    most, alive = 0, set[tuple[int, ...]]()
    for i, some in enumerate(met):
        alive.update(some)
        alive.difference_update([index for index in some if last[index] == i])
        most = max(most, len(alive) + len(some))
    repeats, uses = len({tuple(move) for move in moves}) < len(moves), Counter(itertools.chain(*met))
    reused = {index: count for index, count in uses.items() if count > 1}
    return Keeping(tuple(near), repeats, most, folder=folder_of_file(source), uses=reused)


def merged(one: Keeping, other: Keeping) -> Keeping:
    """What serves two readers of a source; how often they read a unit is not known."""
    near = tuple(map(max, one.near, other.near))
    return replace(one, near=near, repeats=True, most=max(one.most, other.most), uses={})


def _steps(plan: Plan, operand: Operand) -> Iterator[tuple[Region, Region]]:
    """Regions of an operand that each loop of a plan goes over one after the other, from the outermost loop on: in the middle,
    since those at the ends may lie in the padding."""
    cut = {dim: spans(extent, plan.sizes[dim]) for dim, extent in plan.op.dims.items()}
    middle = {dim: some[(len(some) - 1) // 2] for dim, some in cut.items()}
    for dim in plan.order:
        if len(cut[dim]) > 1:
            at = (len(cut[dim]) - 1) // 2
            one, two = (clip(operand.region({**middle, dim: cut[dim][i]}), operand.shape) for i in (at, at + 1))
            yield one, two


def _repeats(steps: Sequence[tuple[Region, Region]]) -> bool:
    """Whether a loop reads again what loops within it went over."""
    still = [one == two for one, two in steps]
    return any(same and not all(still[i + 1 :]) for i, same in enumerate(still))


def _units_of_step(plan: Plan, operand: Operand, tensor: Tensor, edges: Sequence[Sequence[int]]) -> int:
    """How many units one step of the outermost loop meets, at most."""
    assert tensor.stored is not None
    dim = next(d for d in plan.order if plan.sizes[d] < plan.op.dims[d])
    most = 0
    some = spans(plan.op.dims[dim], plan.sizes[dim])
    for span in (some[i] for i in {0, 1, (len(some) - 1) // 2, len(some) // 2, len(some) - 1}):
        tile = {d: Span(0, e) for d, e in plan.op.dims.items()} | {dim: span}
        region = clip(operand.region(tile), operand.shape)
        met = (ranges_of(piece, edges) for piece in tensor.stored.regions(region))
        most = max(most, sum(math.prod(map(len, some)) for some in met))
    return most

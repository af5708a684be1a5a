"""What a unit of a level does: some tiles of a chain, calls that one worker makes, sums over tiles, their sum, the last copy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any

import numpy as np

from ooc.cache import cached_property
from ooc.errors import BudgetError
from ooc.files.records import understood
from ooc.ir.region import Region, whole
from ooc.networks.calls import Network
from ooc.networks.chains import share
from ooc.networks.costs import CallCosts
from ooc.networks.judge import Judge
from ooc.networks.plan import NetworkPlan
from ooc.networks.proposal import Fate, Proposal
from ooc.networks.scene import Scene
from ooc.networks.segments import Border
from ooc.runtime.device import Device
from ooc.runtime.journal import boot, store
from ooc.schedule.budget import show_bytes
from ooc.schedule.place import FILE
from ooc.sources import Source
from ooc.sources.view import View
from ooc.workers.believed import checksum, sums_of
from ooc.workers.levels import AT_THE_END, Kind
from ooc.workers.noted import Noted
from ooc.workers.sums import Sums, tree
from ooc.workers.tiles import fitted
from ooc.workers.where import settled
from ooc.workers.work import ABOUT, WorkFolder

TRIES = 5  # budgets, each half of the one before, when memory is refused


class Unit:
    """A unit while it is computed.

    Parameters:
        work: that it belongs to.
        level, piece, number: which one it is.
        device: that computes.
    """

    def __init__(self, work: WorkFolder, level: int, piece: int, number: int, device: Device) -> None:
        self.work, self.piece, self.number, self.device = work, piece, number, device
        self.at, self.level = level, work.levels(piece)[level]
        self.budget = work.about.budget
        self.notes: list[str] = []
        self.wrote: dict[str, Sequence[Region]] = {}  # by tensor; sums by their call

    def summed(self) -> dict[str, Any]:
        """What it wrote, with a checksum of what is in the files now, for the journal. Raises OocError."""
        return {
            name: {
                "regions": [[[span.lo, span.hi] for span in region] for region in regions],
                "sum": checksum(self.work, self.at, self.piece, self.number, name, regions),
            }
            for name, regions in self.wrote.items()
        }  # fmt: skip

    def run(self) -> None:
        """Compute it. Raises OocError."""
        KINDS[self.level.kind](self)

    def _level(self) -> AbstractContextManager[None]:
        """Around what a level says: it is read from a file, and may be anything. What fails while it is computed is no damage."""
        return understood(self.work.folder / ABOUT, f"damaged; begin anew: level {self.at} is not of its network")

    @cached_property
    def settles(self) -> bool:
        """Whether it makes what is wanted, which is on the disk then. What passes between levels is on its way there, and is made
        again where the machine went down."""
        net = self.work.network(self.piece)
        makes = {t for call in net.calls[self.level.begin : self.level.end] for t in call.makes}
        final = self.level.kind in AT_THE_END or (self.work.about.result.direct and not makes.isdisjoint(net.outputs))
        return final or not boot()

    # ---- kinds

    def chain(self) -> None:
        """Some tiles of a chain, or of calls that one worker makes; and sums over what they made."""
        self._made()
        for call in self.level.sums:
            self._take(call)

    def _made(self) -> None:
        with self._level():
            net = self.work.segment(self.at, self.piece)
        for _ in range(TRIES):
            try:
                return self._forward(self._plan(net), net)
            except MemoryError as error:
                if isinstance(error, BudgetError):
                    raise
                self._shrink(error)
        self._forward(self._plan(net), net)

    def flush(self) -> None:
        """A part of the result goes into its file."""
        self.work.flush(self.number)
        (name,) = self.work.network(0).outputs
        self.wrote = {name: [self.work.flushes[self.number]]}

    def put(self) -> None:
        """The result, which is whole, takes its place."""
        self.work.place()

    def moments(self) -> None:
        """Sums over some tiles."""
        self._take(self.level.begin)

    def _take(self, number: int) -> None:
        """The sums of a call, over the tiles of this unit."""
        with self._level():
            net = self.work.single(number, self.piece)
            (call,) = net.calls
            regions = [share(net.tensors[call.reads[0]].shape, self.level.grid, cell) for cell in self.level.cells(self.number)]
            plans = [self._plan_of_sums(net, region) for region in regions]
        with ExitStack() as stack:
            source = self.work.open(stack, call.reads[0], net, self.piece)
            sums = [self._sums_of(plan, source, region) for plan, region in zip(plans, regions, strict=True)]
        store(self.work.sums_file(number, self.piece, self.number), np.stack(sums).astype("<f8").tobytes())
        self.wrote[sums_of(number)] = []

    def merge(self) -> None:
        """The statistics of all tiles, from the sums of each: always in the same order."""
        number = self.level.begin
        with self._level():
            net = self.work.single(number, self.piece)
            (call,) = net.calls
            rows = math.prod(net.tensors[call.makes[0]].shape)
            levels = self.work.levels(self.piece)
            takers = [x for x in levels if number in x.sums or (x.kind is Kind.MOMENTS and x.begin == number)]
            units = range(takers[0].units)
        raw = [self.work.sums_file(number, self.piece, unit).read_bytes() for unit in units]
        count, mean, squares = tree([s for one in raw for s in np.frombuffer(one, "<f8").reshape(-1, 3, rows)])
        with ExitStack() as stack:
            for name, values in zip(call.makes, (mean, squares / count), strict=True):
                sink = self.work.open(stack, name, net, self.piece, writing=True)
                sink.write(whole(sink.shape), values.reshape(sink.shape))
                self.wrote[name] = [whole(sink.shape)]

    # ---- parts

    def _plan_of_sums(self, net: Network, region: Region) -> NetworkPlan:
        """The plan of the sums over a tile."""
        moments = moments_of(net, tuple(s.extent for s in region[2:]))
        return NetworkPlan.of(self._judge(moments), "tasks", {}, self._streamed(moments), 0)

    def _sums_of(self, plan: NetworkPlan, source: Source, region: Region) -> Sums:
        """Count, mean and sum of squares of a tile, by channel."""
        tile = View("a tile", source, region, tuple(range(len(region))))
        with plan.session() as session:
            outputs = session.forward(tile)
        mean, var = (outputs[t].reshape(-1) for t in plan.network.calls[0].makes)
        count = np.full(mean.shape, float(math.prod(s.extent for s in region[2:])))
        return np.stack([count, mean, var * count])

    def _judge(self, net: Network) -> Judge:
        return Judge(net, Scene(CallCosts(self.device, self.work.about.deterministic), FILE), self.budget)

    def _plan(self, net: Network) -> NetworkPlan:
        """The plan of its tiles, in ever smaller ones until they fit. Raises BudgetError."""
        proposal = self.level.proposal
        assert proposal is not None
        if self.level.kind == Kind.CHAIN:
            proposal = replace(proposal, cells=self.level.cells(self.number))
        with self._level():
            return fitted(self._judge(net), proposal, net)

    def _streamed(self, net: Network) -> Proposal:
        whole = Proposal("at once")
        return whole if self._judge(net).fits(whole) else replace(whole, others=Fate.STREAM)

    def _forward(self, plan: NetworkPlan, net: Network) -> None:
        with ExitStack() as stack:
            sources = {name: self.work.open(stack, name, net, self.piece) for name in net.graph.inputs}
            sinks = {name: self.work.open(stack, name, net, self.piece, writing=True) for name in net.outputs}
            session = stack.enter_context(plan.session(self.work.parameters(net)))
            if self.level.kind == Kind.CHAIN:
                noted = {name: Noted(sink) for name, sink in sinks.items()}
                session.forward(dict(sources), out=dict(noted))
                self.wrote = {name: sink.regions for name, sink in noted.items()}
            else:
                session.forward(dict(sources), out=dict(sinks))
                self.wrote = {name: [whole(sink.shape)] for name, sink in sinks.items()}
            if self.settles:
                for sink in sinks.values():
                    settled(sink)

    def _shrink(self, error: BaseException) -> None:
        """Another process took the memory: from now on half as much."""
        total = self.device.backend.total_bytes
        self.budget = max(1, min(self.budget or total, total) // 2)
        self.notes.append(f"memory was refused ({error}); went on with a budget of {show_bytes(self.budget)}")


KINDS: dict[Kind, Callable[[Unit], None]] = {
    Kind.CHAIN: Unit.chain, Kind.ALONE: Unit.chain, Kind.MOMENTS: Unit.moments, Kind.MERGE: Unit.merge, Kind.FLUSH: Unit.flush,
    Kind.PUT: Unit.put,
}  # fmt: skip


def moments_of(net: Network, extent: tuple[int, ...]) -> Network:
    """The one call of a segment of moments, over a tile of so many positions."""
    (call,) = net.calls
    op = replace(call.op, extent=extent)  # type: ignore[type-var]
    (x,) = call.reads
    tensors = {**net.tensors, x: replace(net.tensors[x], shape=op.inputs[0].shape)}
    shapes = {t: tensors[t].shape[1:] for t in tensors}
    border = Border("sums", {x: shapes[x]}, call.makes, shapes, {t: tensors[t].dtype for t in tensors}, {})
    return replace(net, graph=border, tensors=tensors, calls=(replace(call, op=op),))

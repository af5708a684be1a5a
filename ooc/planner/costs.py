"""What tilings cost: memory, traffic and time of thousands of candidates at once, from the operands' axis maps alone."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ooc.backends.base import Offer
from ooc.ir.op import ALIGN, ITEM_BYTES, Fold, Op, Operand
from ooc.ir.region import Along, AxisMap, PartWindow, Sizes
from ooc.model.cost import CACHED
from ooc.planner.question import Question, offer_keys
from ooc.planner.tilings import Grid, in_order
from ooc.schedule.movement import loads, made, memory, visits
from ooc.schedule.place import KEPT, Place, load_route, slack_bytes, store_route

TINY = 1e-30  # seconds that nothing takes
MOST_SPILLED = 1 << 18  # partial results, each with a place of its own; orders that spill none take no more of the device


@dataclass
class Flow:
    """What moves under one loop order: loads per operand, spilled tiles, seconds and bytes per copy lane. Of the reads:
    seconds if the system has fetched all of them, the seconds in which it fetches them, and how much longer the first ones take,
    for which nothing is done meanwhile."""

    order: tuple[str, ...]
    loads: dict[str, Any]
    spills: list[tuple[Any, Any]]  # per fold: partial results that leave, and times that they come back
    seconds: dict[str, Any]
    nbytes: dict[str, Any]
    fresh_bytes: Any = 0
    cached: Any = 0.0
    fetching: Any = 0.0
    waiting: Any = 0.0


@dataclass
class Traffic:
    """One operand under one set of tilings: bytes and contiguous pieces of an average load, bytes of a buffer; seconds of such
    a load on a lane, strided or not, once they were asked for."""

    operand: Operand
    mean_bytes: Any
    runs: Any
    slot_bytes: Any
    seconds: dict[tuple[str, bool], Any] = field(default_factory=dict)


class TilingCosts:
    """What a set of tilings costs. The constructor works out what does not depend on loop order or depth."""

    def __init__(self, question: Question, sizes: Grid) -> None:
        op, self.asked, self.sizes = question.op, question, sizes
        self.means: dict[tuple[AxisMap, int], Any] = {}
        self.counts = {d: -(-op.dims[d] // v) for d, v in sizes.items()}
        self.tiles: Any = np.ones(len(next(iter(sizes.values()))), np.int64)
        for c in self.counts.values():
            self.tiles = self.tiles * c
        self.made = [self._times(made(op, f, self.counts)) for f in op.folds]
        self.outer: Any = np.maximum.reduce(self.made)
        states = [o for f in op.folds for o in f.state]
        self.traffic = {o.name: self._traffic(o) for o in (*op.operands, *states)}
        self.workspace = [self._times(np.asarray(o.workspace(sizes), np.int64)) for o in question.usable]
        walked = [self._walked(i) for i in range(len(op.stages))]
        self.compute = [self._compute(o, walked) for o in question.usable]
        self.allowed = in_order(op, sizes) if question.budget.deterministic else True

    def _product(self, dims: Iterable[str]) -> Any:
        """Number of tiles along some dims."""
        return math.prod((self.counts[d] for d in dims), start=np.ones_like(self.tiles))

    def _mean(self, axis: AxisMap, bound: int) -> Any:
        """Mean clipped extent of an axis over the tiles."""
        mean = self.means.get((axis, bound))
        if mean is None:
            mean = self.means[axis, bound] = self._new_mean(axis, bound)
        return mean

    def _new_mean(self, axis: AxisMap, bound: int) -> Any:
        op = self.asked.op
        sizes = {d: self.sizes[d] for d in axis.dims}
        count: Any = math.prod((self.counts[d] for d in axis.dims), start=np.int64(1))
        one = np.minimum(axis.extent(sizes), bound)
        if isinstance(axis, Along):
            return op.dims[axis.dim] / count
        if isinstance(axis, PartWindow):  # what the tiles of a part have, those of all others have, too
            return np.minimum(axis.extent({d: op.dims[d] / self.counts[d] for d in axis.dims}), bound)
        full = min(axis.extent({d: op.dims[d] for d in axis.dims}), bound)
        if len(axis.dims) != 1:
            return np.minimum(one, np.maximum(full / count, 1))
        halo = np.maximum(2 * axis.extent(sizes) - axis.extent({d: 2 * v for d, v in sizes.items()}), 0)
        return np.minimum(one, (full + (count - 1) * halo) / count)

    def _traffic(self, operand: Operand) -> Traffic:
        item = ITEM_BYTES[operand.dtype]
        means = [self._mean(a, s) for a, s in zip(operand.axes, operand.shape, strict=True)]
        runs: Any = np.ones(self.tiles.shape)
        entire: Any = np.ones(self.tiles.shape, bool)
        for axis in reversed(operand.memory_order):
            extent = np.minimum(operand.axes[axis].extent(self.sizes), operand.shape[axis])
            runs = runs * np.where(entire, 1, means[axis])
            entire = entire & (extent >= operand.shape[axis])
        slot = self._times(np.asarray(operand.block_bytes(self.sizes), np.int64))
        slot = slot + slack_bytes(slot, self.asked.budget.place(operand.name), self.asked.budget.staged)
        return Traffic(operand, math.prod(means, start=1.0) * item, runs, -(-slot // ALIGN) * ALIGN)

    def _walked(self, i: int) -> tuple[Sizes, Any, Any, Any]:
        """Of a stage, whatever kernel: sizes of a mean tile, bytes walked through in all, calls, output channels of a tile."""
        op, stage = self.asked.op, self.asked.op.stages[i]
        calls = self.tiles // self._product(op.stage_idle(i)) if op.runs(i, False) else self.outer
        mean: Sizes = {d: self._mean(m, e) for d, (m, e) in op.stage_maps[i].items()}
        return mean, calls * stage.touched_bytes(mean), calls, stage.width(mean)

    def _compute(self, offer: Offer, walked: Iterable[tuple[Sizes, Any, Any, Any]]) -> Any:
        """Seconds of all tiles on the compute lane."""
        op, total = self.asked.op, np.float64(0)
        ways = zip(op.stages, offer_keys(op, offer), offer.kernels(op), walked, strict=True)
        for stage, key, kernel, (mean, nbytes, calls, width) in ways:
            effort = calls * stage.effort(mean, kernel)
            total = total + self.asked.model.compute(key).seconds(effort, nbytes, calls, width)
        return total

    def computing(self, flow: Flow) -> list[Any]:
        """Seconds on the compute lane under one loop order, per offer: fresh filters are packed again."""
        seconds = []
        for offer, base in zip(self.asked.usable, self.compute, strict=True):
            op, i = self.asked.op, self.asked.op.preparing
            costs = self.asked.model.compute(offer_keys(op, offer)[i])
            effort = flow.fresh_bytes * op.stages[i].preparation(offer.kernels(op)[i])
            seconds.append(self._times(base + costs.at_best(effort, flow.fresh_bytes)))
        return seconds

    def flow(self, order: tuple[str, ...]) -> Flow:
        """What moves on each copy lane under one loop order."""
        op, budget = self.asked.op, self.asked.budget
        turns = {name: self._times(loads(t.operand.dims, order, self.counts)) for name, t in self.traffic.items()}
        flow = Flow(order, turns, [self._spills(f, order) for f in op.folds], {}, {})
        for operand in op.inputs:
            route = load_route(budget.place(operand.name), budget.staged)
            self._move(flow, self.traffic[operand.name], turns[operand.name], route, route[:1])
        for fold, tiles in zip(op.folds, self.made, strict=True):
            for operand in (o for o in op.outputs if o.name in fold.makes):
                route = store_route(budget.place(operand.name), budget.staged)
                self._move(flow, self.traffic[operand.name], tiles, route, route[-1:])
        filters = [o for o in op.inputs if o.name in op.fixed]
        flow.fresh_bytes = sum((self.traffic[o.name].mean_bytes * turns[o.name] for o in filters), np.float64(0))
        for fold, (_, trips) in zip(op.folds, flow.spills, strict=True):
            if np.any(trips):
                for operand in fold.state:
                    self._move(flow, self.traffic[operand.name], trips, ("d2h", "h2d"), ())
        return flow

    def _times(self, number: Any) -> Any:
        """A number for every tiling."""
        if isinstance(number, np.ndarray) and number.shape == self.tiles.shape:
            return number
        return np.broadcast_to(number, self.tiles.shape)

    def _move(self, flow: Flow, traffic: Traffic, times: Any, route: tuple[str, ...], outside: tuple[str, ...]) -> None:
        """Add an operand's copies to the lanes of its route; only the lanes `outside` touch the strided tensor."""
        for lane in route:
            seconds = self._copy(traffic, lane, lane in outside) * times
            if lane == "read":
                seconds = self._read(flow, traffic, times, seconds)
            flow.seconds[lane] = flow.seconds.get(lane, 0.0) + seconds
            flow.nbytes[lane] = flow.nbytes.get(lane, 0.0) + traffic.mean_bytes * times

    def _read(self, flow: Flow, traffic: Traffic, times: Any, seconds: Any) -> Any:
        """Seconds of an operand's reads, which take so many if all come from the disk."""
        first: Any = 1.0
        cached = seconds
        if CACHED in self.asked.model.copies:
            first, once = self.first(traffic, times), self._copy(traffic, CACHED, True)
            cached = once * times
            flow.waiting = flow.waiting + np.maximum(0.0, self._copy(traffic, "read", True) - once)
        flow.cached, flow.fetching = flow.cached + cached, flow.fetching + first * seconds
        return cached + first * (seconds - cached)

    def first(self, traffic: Traffic, times: Any) -> Any:
        """The share of reads that the disk has to deliver: what is read again is in the page cache, if the tensor is small."""
        if traffic.operand.nbytes > KEPT:
            return 1.0
        return np.minimum(1.0, traffic.operand.nbytes / (traffic.mean_bytes * times))

    def _copy(self, traffic: Traffic, lane: str, strided: bool) -> Any:
        """Seconds of one copy of an operand."""
        if (lane, strided) not in traffic.seconds:
            runs = np.maximum(traffic.runs, 1) if strided else 1
            traffic.seconds[lane, strided] = self.asked.model.copy(lane).seconds(traffic.mean_bytes, runs)
        return traffic.seconds[lane, strided]

    def in_turn(self, flow: Flow, compute: Any) -> dict[str, Any]:
        """Seconds per lane when the steps take turns: while others run, the system reads ahead, which slows tiles down."""
        lanes = {**flow.seconds, "compute": compute}
        rest = sum((seconds for lane, seconds in lanes.items() if lane != "read"), np.zeros(self.tiles.shape))
        if "read" in lanes:
            speed = self.asked.model.beside_fetch("compute")
            beside = np.minimum(compute / speed, flow.fetching * compute / np.maximum(rest + flow.cached, TINY))
            lanes["compute"], rest = compute + beside * (1 - speed), rest + beside * (1 - speed)
            lanes["read"] = np.maximum(flow.cached + flow.waiting, flow.fetching - rest * (1 - 1 / self.tiles))
        return lanes

    def _spills(self, fold: Fold, order: tuple[str, ...]) -> tuple[Any, Any]:
        """Of a fold's partial results: how many leave the device, and how often they come back in all."""
        tiles, nothing = self.made[self.asked.op.folds.index(fold)], np.zeros(self.tiles.shape, np.int64)
        if not fold.reduce or all(self.asked.budget.place(o.name) is Place.DEVICE for o in fold.state):
            return nothing, nothing
        times = visits(fold, order, self.counts)
        return np.where(times > 1, tiles, 0), tiles * (times - 1)

    def memory(self, flow: Flow, depth: int) -> tuple[Any, Any]:
        """Bytes of all device buffers but the workspace, and of the staging ring."""
        need = memory(_Cut(self, flow, depth))
        staging, shared = need["staging"], self.asked.budget.shared
        device = need["device"] + staging + need["spill"] if shared else need["device"]
        spilled = sum((spills for spills, _ in flow.spills), np.int64(0))
        return np.where(spilled > MOST_SPILLED, math.inf, self._times(device)), self._times(staging)


@dataclass(frozen=True)
class _Cut:
    """Many tilings with a loop order and a depth, as `memory` asks about them."""

    costs: TilingCosts
    flow: Flow
    depth: int

    @property
    def op(self) -> Op:
        return self.costs.asked.op

    @property
    def staged(self) -> bool:
        return self.costs.asked.budget.staged

    @property
    def bounce_bytes(self) -> int:
        return self.costs.asked.bounce_bytes

    def place(self, name: str) -> Place:
        return self.costs.asked.budget.place(name)

    def loads(self, operand: Operand) -> Any:
        return self.flow.loads[operand.name]

    def slot_bytes(self, operand: Operand) -> Any:
        return self.costs.traffic[operand.name].slot_bytes

    def splits(self, fold: Fold) -> Any:
        return math.prod(self.costs.counts[d] for d in fold.reduce) > 1

    def spills(self, fold: Fold) -> Any:
        return self.flow.spills[self.op.folds.index(fold)][0]

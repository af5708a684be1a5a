"""How single calls are computed with all they touch on the device: tiles, kernel, workspace."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

from ooc.backends.base import Offer, bin_bytes
from ooc.cache import Cache, cached_property
from ooc.errors import UnsupportedError
from ooc.ir.fused import Fused
from ooc.ir.op import Op
from ooc.planner.explain import smallest_bytes
from ooc.planner.question import Question, paying, usable_offers
from ooc.runtime.device import Device
from ooc.schedule.budget import Budget
from ooc.schedule.emit import Single
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan

Places = tuple[tuple[str, Place], ...]  # of operands, by name
Sizes = tuple[tuple[str, int], ...]  # of loop dims, by name
MOST_WORKSPACE = 1 << 50  # bytes: what asks for more says that it cannot
CUT = ("n", "o", "p", "q", "d", "h", "w")  # loop dims along which a call may be computed in parts, the outermost first
COPIED, SHARE = 1 << 30, 32  # bytes of workspace to which parts of one sample keep, or a share of the device's memory
SLICE = 32 << 20  # bytes of intermediates of a fused op beyond which it is computed slice by slice
REMEMBERED = 1 << 13  # answers about one device
HOPELESS = 30  # times the seconds of the fastest: no workspace that is saved is worth them


_known: Cache[Cache[Any]] = Cache(8)  # by the device that they are about


class Way(NamedTuple):
    """A kernel for a call: predicted seconds of all of it, whether it sums in order, its workspace in bytes, its name. The least
    is the best: of equally fast ones the one that nobody asked to sum in order is not slower, then the smaller. serving: of its
    stages, as a plan has it."""

    seconds: float
    ordered: bool
    workspace: int
    kernel: str
    serving: tuple[str, ...] = ()


@dataclass(frozen=True)
class CallCosts:
    """Plans of resident calls on a device, remembered: equal layers share theirs."""

    device: Device
    deterministic: bool

    @cached_property
    def known(self) -> Cache[Any]:
        """Plans, seconds and least bytes by what was asked; equal devices share them, as they come and go."""
        bare = self.device.backend.bare()
        if bare is None:
            return Cache(REMEMBERED)
        return _known.made((bare, self.device.model, self.deterministic), lambda: Cache(REMEMBERED))

    def offers(self, op: Op) -> tuple[Offer, ...]:
        """The ways to compute an op. Raises UnsupportedError where there is none."""
        return cast(tuple[Offer, ...], self.known.made(op, lambda: self._offers(op)))

    def _offers(self, op: Op) -> tuple[Offer, ...]:
        offers = usable_offers(op, self.device.backend, self.deterministic, frozenset(o.name for o in op.operands))
        return paying(op, offers, lambda offer: self._seconds(op, offer))

    def seconds(self, op: Op, kernel: str) -> float:
        """Predicted seconds of all of an op as one tile."""
        return self._seconds(op, next(offer for offer in self.offers(op) if offer.name == kernel))

    def _seconds(self, op: Op, offer: Offer) -> float:
        return Question(op, Budget(), (), self.device.model).in_one_piece(offer)

    def plan(self, op: Op, cut: Sizes = (), rule: str = "fastest", room: int | None = None, kernel: str = "") -> Plan:
        """The plan of a call.

        cut: loop dims and how much of each is computed at a time, the outermost first; nothing: all of it, or where its fastest
        kernel refuses so many elements, as much as that takes. rule: "fastest", "lean" (least workspace)
        or "fitting" (fastest whose workspace is at most `room` bytes). kernel: the one to take, whatever the rule.
        """
        key = (op, cut, rule, room if rule == "fitting" else None, kernel)
        return cast(Plan, self.known.made(key, lambda: self._plan(op, cut, rule, room, kernel)))

    def single(self, plan: Plan) -> Single:
        """How single tiles of a plan are computed."""
        return cast(Single, self.known.made((plan, "single"), lambda: Single(plan)))

    def tiled(self, op: Op, places: Places, limit: int | None) -> Plan:
        """How an op is cut whose operands live in these places, within so many bytes of the device. Raises BudgetError."""
        planner = replace(self.device, device_bytes=limit).planner
        return planner.plan(op, dict(places), self.deterministic, greedy=False)  # of hundreds nobody is told of

    def least(self, op: Op, places: Places) -> int:
        """The bytes within which an op can be cut at all."""
        return cast(int, self.known.made((op, places), lambda: int(smallest_bytes(self.asked(op, places)))))

    def asked(self, op: Op, places: Places) -> Question:
        """What is asked of the planner of an op whose operands live in these places, under the tightest budget."""
        backend = self.device.backend
        budget = Budget(1, places=places, staged=backend.staged, shared=backend.shared, deterministic=self.deterministic)
        return Question(op, budget, self.offers(op), self.device.model)

    def _parts(self, op: Op, kernel: str) -> Sizes:
        """Nothing, or how much of the batch, or of one sample's outermost axis, the fastest kernel takes that refuses all of
        it."""
        offers = [offer for offer in self.offers(op) if kernel in ("", offer.name)]
        if not offers:
            return ()
        best, sizes = min(offers, key=lambda offer: self._seconds(op, offer)), dict(op.dims)
        most = max(COPIED, self.device.backend.total_bytes // SHARE)
        for dim in (d for d in CUT if op.dims.get(d, 1) > 1):
            while best.workspace(sizes) >= MOST_WORKSPACE and sizes[dim] > 1:
                sizes[dim] = -(-sizes[dim] // 2)
            # Rows of a tensor that is that large are copied: few at a time, so that the copies are small beside it.
            while dim != "n" and 1 < sizes[dim] < op.dims[dim] and best.workspace(sizes) > most:
                sizes[dim] = -(-sizes[dim] // 2)
        if best.workspace(sizes) >= MOST_WORKSPACE:
            return ()
        return tuple((dim, size) for dim, size in sizes.items() if size < op.dims[dim])

    def ways(self, op: Op, sizes: Mapping[str, int], kernel: str = "") -> list[Way]:
        """The ways to compute an op in tiles of these sizes, without those that are hopelessly slow; kernel: by this one
        alone."""
        every = [
            Way(self._seconds(op, offer), offer.ordered, int(offer.workspace(sizes)), offer.name, offer.serving)
            for offer in self.offers(op)
        ]
        able = [way for way in every if way.workspace < MOST_WORKSPACE and kernel in ("", way.kernel)]
        most = HOPELESS * min((way.seconds for way in able), default=0.0)
        return [way for way in able if way.seconds <= most]

    def _plan(self, op: Op, cut: Sizes, rule: str, room: int | None, kernel: str) -> Plan:
        sizes = dict(op.dims)
        for dim, size in cut or self._parts(op, kernel):
            sizes[dim] = min(sizes[dim], size)
        if isinstance(op, Fused):
            _slice(op, sizes)
        order = list(dict.fromkeys((*(dim for dim, size in sizes.items() if size < op.dims[dim]), *op.dims)))
        ways = self.ways(op, sizes, kernel)
        if not ways:
            raise UnsupportedError(f"{op}: no kernel {kernel} serves {sizes}")
        least = min(ways, key=lambda way: (way.workspace, way))
        fitting = [way for way in ways if rule != "fitting" or room is None or way.workspace <= room]
        _, _, workspace, name, serving = least if rule == "lean" else min(fitting, default=least)
        backend = self.device.backend
        places = tuple((o.name, Place.DEVICE) for o in op.operands)
        return Plan(
            op, tuple(sizes.items()), tuple(order), 1, places, backend.staged, backend.shared, kernel=name,
            workspace_bytes=workspace, in_turn=backend.shared, calibration=self.device.model.name, serving=serving,
        )  # fmt: skip


def _slice(op: Fused, sizes: dict[str, int]) -> None:
    """Cut sizes of a fused op whose intermediates would take much workspace, where that computes nothing twice."""
    before = dict(sizes)
    for dim in (d for d in CUT if d in sizes and d not in op.reduce and d not in op.whole):
        while sizes[dim] > 1 and sum(bin_bytes(op, sizes)) > SLICE:
            sizes[dim] = -(-sizes[dim] // 2)
    tiles = math.prod(-(-before[dim] // size) for dim, size in sizes.items())
    if op.flops(sizes) * tiles > op.flops(before) * 1.1:
        sizes.update(before)

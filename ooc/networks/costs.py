"""How single calls are computed with all they touch on the device: tiles, kernel, workspace."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ooc.backends.base import Offer
from ooc.cache import Cache
from ooc.errors import UnsupportedError
from ooc.ir.op import Op
from ooc.planner.explain import smallest_bytes
from ooc.planner.question import Question, usable_offers
from ooc.runtime.device import Device
from ooc.schedule.budget import Budget
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan

Places = tuple[tuple[str, Place], ...]  # of operands, by name
Sizes = tuple[tuple[str, int], ...]  # of loop dims, by name
MOST_WORKSPACE = 1 << 50  # bytes: what asks for more says that it cannot


@dataclass(frozen=True)
class Costs:
    """Plans of resident calls on a device, remembered: equal layers share theirs."""

    device: Device
    deterministic: bool
    known: Cache[Plan] = field(default_factory=lambda: Cache(1 << 16), compare=False)
    leasts: Cache[int] = field(default_factory=lambda: Cache(1 << 16), compare=False)

    def offers(self, op: Op) -> tuple[Offer, ...]:
        """The ways to compute an op. Raises UnsupportedError where there is none."""
        return usable_offers(op, self.device.backend, self.deterministic, frozenset(o.name for o in op.operands))

    def seconds(self, op: Op, kernel: str) -> float:
        """Predicted seconds of all of an op as one tile."""
        return Question(op, Budget(), (), self.device.model).in_one_piece(kernel)

    def plan(self, op: Op, cut: Sizes = (), rule: str = "fastest", room: int | None = None, kernel: str = "") -> Plan:
        """The plan of a call.

        cut: loop dims and how much of each is computed at a time, the outermost first. rule: "fastest", "lean" (least workspace)
        or "fitting" (fastest whose workspace is at most `room` bytes). kernel: the one to take, whatever the rule.
        """
        key = (op, cut, rule, room if rule == "fitting" else None, kernel)
        return self.known.get(key) or self.known.keep(key, self._plan(op, cut, rule, room, kernel))

    def tiled(self, op: Op, places: Places, limit: int | None) -> Plan:
        """How an op is cut whose operands live in these places, within so many bytes of the device. Raises BudgetError."""
        planner = replace(self.device, device_bytes=limit).planner
        return planner.plan(op, dict(places), self.deterministic)

    def least(self, op: Op, places: Places) -> int:
        """The bytes within which an op can be cut at all."""
        key = (op, places)
        found = self.leasts.get(key)
        if found is not None:
            return found
        return self.leasts.keep(key, int(smallest_bytes(self.asked(op, places))))

    def asked(self, op: Op, places: Places) -> Question:
        """What is asked of the planner of an op whose operands live in these places, under the tightest budget."""
        backend = self.device.backend
        budget = Budget(1, places=places, staged=backend.staged, shared=backend.shared, deterministic=self.deterministic)
        return Question(op, budget, self.offers(op), self.device.model)

    def _plan(self, op: Op, cut: Sizes, rule: str, room: int | None, kernel: str) -> Plan:
        sizes = dict(op.dims)
        for dim, size in cut:
            sizes[dim] = min(sizes[dim], size)
        order = list(dict.fromkeys((*(dim for dim, _ in cut), *op.dims)))
        found = []
        for offer in self.offers(op):
            workspace = int(offer.workspace(sizes))
            if workspace < MOST_WORKSPACE and kernel in ("", offer.name):
                found.append((self.seconds(op, offer.name), workspace, offer.name))
        if not found:
            raise UnsupportedError(f"{op}: no kernel {kernel} serves {sizes}")
        if rule == "lean":
            _, workspace, name = min(found, key=lambda f: (f[1], f[0]))
        else:
            fitting = [f for f in found if rule != "fitting" or room is None or f[1] <= room]
            _, workspace, name = min(fitting or [min(found, key=lambda f: f[1])])
        backend = self.device.backend
        places = tuple((o.name, Place.DEVICE) for o in op.operands)
        return Plan(
            op, tuple(sizes.items()), tuple(order), 1, places, backend.staged, backend.shared, kernel=name,
            workspace_bytes=workspace, in_turn=backend.shared, calibration=self.device.model.name,
        )  # fmt: skip

"""A training step in bands: between the sums over the batch, tiles of the batch and of space pass all calls, in both passes. What
crosses bands is kept, moved or made again: each band takes as long as the slowest of its lanes, and all of them together the
least."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ooc.ir.op import aligned
from ooc.networks.auto.prices import Prices
from ooc.networks.calls import FORWARD, LOSS, Call
from ooc.networks.chains import Grid, passable
from ooc.networks.proposal import Fate, Proposal
from ooc.networks.stages import Stage, stages
from ooc.networks.tensors import Role

ROUNDS = 10  # looks at every tensor while bytes have prices
OTHERS = 0.02  # of the seconds of lanes that are not the slowest: they may be, as neither waits nor latencies are counted
COMPUTE, LEAVE, BACK = range(3)  # lanes of a band


class Crossing(NamedTuple):
    """What becomes of a tensor that crosses bands. stays: see `Proposal.staying`."""

    how: Fate
    stays: bool = False


KEEP, OFFLOAD, REMAKE, STAY = (
    Crossing(Fate.KEEP), Crossing(Fate.OFFLOAD), Crossing(Fate.RECOMPUTE), Crossing(Fate.OFFLOAD, True),
)  # fmt: skip


class Bands:
    """A step in bands, and what becomes of the tensors that cross them, while that is chosen.

    Parameters:
        prices: of calls and copies.
        grids: of the bands.
        lasting: fates of what lasts, but what stays.
    """

    def __init__(self, prices: Prices, grids: tuple[tuple[int, Grid], ...], lasting: Mapping[str, Fate]) -> None:
        self.prices, self.net, self.grids, self.lasting = prices, prices.net, grids, lasting
        self.stages = stages(self.net, Proposal("", lasting, grids=grids))
        self.makers = {t: call for call in self.net.calls for t in call.makes}
        self.maker = {t: s for s, stage in enumerate(self.stages) for call in stage.calls for t in call.makes}
        backward = (s for s, stage in enumerate(self.stages) if stage.calls[-1].phase not in (FORWARD, LOSS))
        self.turn = next(backward, len(self.stages))  # the first band of the backward pass
        self.reads = [self._reads(stage) for stage in self.stages]
        self.ways = dict.fromkeys(self._crossing(), OFFLOAD)
        self.places = {t: self._places(t) for t in self.ways}
        self.heirs = {t: [h for h, places in self.places.items() if t in places] for t in self.ways}
        self.remakable = {t for t in self.ways if self._remakable(t)}
        self.users: dict[str, set[int]] = {t: set() for t in self.net.tensors}
        self.needs: list[dict[str, None]] = [{} for _ in self.stages]
        self.lanes = np.zeros((len(self.stages), 3))
        self.load = np.zeros(len(self.stages))  # bytes of what is there as a whole
        self.shares: dict[str, list[tuple[Any, Any]]] = {}  # of lanes and load, by tensor
        self.own = [sum(self._seconds(call, stage) for call in stage.calls) for stage in self.stages]
        for s in range(len(self.stages)):
            self._look(s)
        for t in self.ways:
            self._count(t)

    def _reads(self, stage: Stage) -> list[str]:
        """What a band reads of the batch and does not make."""
        makes = {t for call in stage.calls for t in call.makes}
        names = dict.fromkeys(t for call in stage.calls for t in call.reads if t not in makes)
        return [t for t in names if self.net.tensors[t].per_sample]

    def _crossing(self) -> list[str]:
        names = {t for reads in self.reads for t in reads}
        return [t for t in self.net.tensors if t in names and t not in self.net.outputs]

    def _places(self, name: str) -> list[str]:
        """What crosses bands whose place a tensor can take, by way of what does not."""
        names = [name]
        for t in names:
            if (t == name or t not in self.ways) and t in self.makers:
                names += [r for r, m in self.makers[t].over if m == t and r not in names]
        return [t for t in names[1:] if t in self.ways]

    def _remakable(self, name: str) -> bool:
        """Whether tiles of all that read a tensor can make it again."""
        maker, readers = self.net.makers.get(name), (self.stages[s] for s, names in enumerate(self.reads) if name in names)
        return maker is not None and passable(self.net, maker) and all(stage.grid for stage in readers)

    # ---- seconds and bytes

    def _seconds(self, call: Call, stage: Stage) -> float:
        """Seconds of a call in the parts of a band."""
        return self.prices.calls[call.index] + self.prices.launch(call) * (math.prod(stage.grid) - 1)

    def _moving(self, name: str) -> tuple[float, float]:
        return self.prices.judge.moving_seconds(self.net.tensors[name].nbytes)

    def _look(self, s: int) -> set[str]:
        """Note what a band needs and makes again; returns what it has begun or ceased to need."""
        needs: dict[str, None] = {}
        compute, todo = self.own[s], list(self.reads[s])
        while todo:
            t = todo.pop()
            if t in needs or self.maker.get(t) == s:
                continue
            needs[t] = None
            if self.ways.get(t, REMAKE) is REMAKE and t in self.net.makers:
                maker = self.net.makers[t]
                compute += self._seconds(maker, self.stages[s])
                todo += [r for r in maker.reads if self.net.tensors[r].per_sample]
        changed = self.needs[s].keys() ^ needs.keys()
        for t in changed:
            (self.users[t].add if t in needs else self.users[t].discard)(s)
        self.needs[s], self.lanes[s, COMPUTE] = needs, compute
        return changed

    def _count(self, name: str) -> None:
        """Note what a tensor has of lanes and load."""
        for at, share in self.shares.pop(name, ()):
            (self.lanes if isinstance(at, tuple) else self.load)[at] -= share
        way, users = self.ways.get(name, REMAKE), sorted(self.users[name])
        if way is REMAKE or not users:
            return
        (leave, back), nbytes = self._moving(name), aligned(self.net.tensors[name].nbytes)
        maker = self.maker.get(name)
        shares: list[tuple[Any, Any]] = []
        if way is OFFLOAD:
            shares += [((s, BACK), back) for s in users] + ([((maker, LEAVE), leave)] if maker is not None else [])
        else:
            for first, last, comes in self._spans(name):
                shares.append((slice(first, last + 1), nbytes))
                if comes:
                    shares.append(((slice(first, min(first + 2, last + 1)), BACK), back / min(2, last + 1 - first)))
                elif way is STAY:
                    shares.append(((slice(first, last + 1), LEAVE), leave / (last + 1 - first)))
            first = self._spans(name)[0][0]
            if way is KEEP and any(self.ways[r] is KEEP and max(self.users[r], default=-1) == first for r in self.places[name]):
                shares.append((slice(first, first + 1), -nbytes))
        for at, share in shares:
            (self.lanes if isinstance(at, tuple) else self.load)[at] += share
        self.shares[name] = shares

    def _spans(self, name: str) -> list[tuple[int, int, bool]]:
        """The bands in which a tensor is there as a whole, and whether it comes there, in the first two; of what comes back one
        more than need it."""
        users = sorted({*self.users[name], *([self.maker[name]] if name in self.maker else [])})
        forward, backward = [s for s in users if s < self.turn], [s for s in users if s >= self.turn]
        if self.ways[name] is KEEP or not forward or not backward:
            return [(users[0], users[-1], name not in self.maker)]
        return [(forward[0], forward[-1], name not in self.maker), (max(backward[0] - 1, forward[-1] + 1), backward[-1], True)]

    def seconds(self) -> float:
        """Of all bands, each as its slowest lane, and a little of the others."""
        if self.prices.judge.device.backend.shared:
            return float(self.lanes.sum())
        return float((1 - OTHERS) * self.lanes.max(axis=1).sum() + OTHERS * self.lanes.sum())

    def change(self, name: str, way: Crossing) -> None:
        """Let something else become of a tensor."""
        before, self.ways[name] = self.ways[name], way
        changed = {name}
        if (before is REMAKE) != (way is REMAKE):
            for s in tuple(self.users[name]):
                changed |= self._look(s)
        for t in (*changed, *self.heirs[name]):
            if t in self.ways:
                self._count(t)

    # ---- choice

    def settle(self, room: Any) -> None:
        """Choose what becomes of every tensor, within so many bytes for what is there as a whole at every band: bytes have
        prices, which rise where they are too many, until each tensor is as cheap as it can be; then what is too much leaves, and
        what there is room for stays."""
        room = np.maximum(room, 1.0)
        price = np.full(len(self.stages), 0.3 * self.seconds() / room.sum())
        for i in range(ROUNDS):
            self._choose(price)
            price *= np.exp(np.clip(self.load / room - 1, -1, 1) * (1.0 if i < ROUNDS // 2 else 0.5))
        self._evict(room)
        self._fill(room)

    def able(self, name: str) -> list[Crossing]:
        """What may become of a tensor."""
        ways = [KEEP, OFFLOAD]
        users = {*self.users[name], *([self.maker[name]] if name in self.maker else [])}
        if min(users) < self.turn <= max(users):
            ways.append(STAY)
        return [*ways, REMAKE] if name in self.remakable else ways

    def _choose(self, price: Any) -> None:
        """The cheapest way of each tensor, one after the other, at prices of bytes at every band."""
        for t in self.ways:
            best, least = self.ways[t], self.seconds() + float(price @ self.load)
            for way in self.able(t):
                if way is not best:
                    self.change(t, way)
                    now = self.seconds() + float(price @ self.load)
                    if now < least * (1 - 1e-9):
                        best, least = way, now
            self.change(t, best)

    def _evict(self, room: Any) -> None:
        """Let leave what costs least for its bytes, where they are too many."""
        while (self.load > room).any():
            over, now, ranking = self.load > room, self.seconds(), []
            for t in [t for t, way in self.ways.items() if way in (KEEP, STAY)]:
                way, before = self.ways[t], float(self.load[over].sum())
                for other in [w for w in self.able(t) if w in (OFFLOAD, REMAKE)]:
                    self.change(t, other)
                    less = before - float(self.load[over].sum())
                    if less > 0:
                        ranking.append(((self.seconds() - now) / less, t, other))
                self.change(t, way)
            if not ranking:
                return
            _, t, way = min(ranking)
            self.change(t, way)

    def _fill(self, room: Any) -> None:
        """Change what saves time within the room."""
        for _ in range(2):
            for t in self.ways:
                best, least = self.ways[t], self.seconds()
                for way in self.able(t):
                    self.change(t, way)
                    now = self.seconds()
                    if now < least * (1 - 1e-9) and (self.load <= room).all():
                        best, least = way, now
                self.change(t, best)

    def proposal(self, label: str) -> Proposal:
        """It as a proposal."""
        fates = dict(self.lasting)
        for t, tensor in self.net.tensors.items():
            if t in self.ways:
                fates[t] = self.ways[t].how
            elif tensor.per_sample and tensor.role is Role.ACTIVATION and t not in self.net.outputs and t in self.net.makers:
                fates[t] = Fate.RECOMPUTE
        staying = frozenset(t for t, way in self.ways.items() if way is STAY)
        return Proposal(label, {t: how for t, how in fates.items() if how is not Fate.KEEP}, grids=self.grids, staying=staying)

"""A training step in bands: between the sums over the batch, tiles of the batch and of space pass all calls, in both passes. What
crosses bands is kept, moved or made again: each band takes as long as the slowest of its lanes, and all of them together the
least."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ooc.ir.op import aligned
from ooc.native import address, kernels
from ooc.networks.auto.prices import Prices
from ooc.networks.calls import FORWARD, LOSS, Call
from ooc.networks.chains import Grid, passable
from ooc.networks.proposal import Fate, Proposal
from ooc.networks.stages import Stage, stages
from ooc.networks.tensors import Role

ROUNDS = 6  # looks at every tensor while bytes have prices
CARRIED = 0.6  # of that room: layouts have gaps
NEAR = 12  # bands from where a tensor is made, in which it has just left
TINY = 1e-9  # seconds: sums that are taken apart again end near zero
OTHERS = 0.02  # of the seconds of the link: of plans that wait alike, the one that moves less
COMPUTE, LEAVE, BACK, DRAINED = range(4)  # lanes of a band; of what comes back, what has just left: no store is late there


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
        computing: seconds of each band, if they are known; default: of its calls by their fastest kernels.
    """

    def __init__(
        self, prices: Prices, grids: tuple[tuple[int, Grid], ...], lasting: Mapping[str, Fate], computing: Sequence[float] = ()
    ) -> None:
        self.prices, self.net, self.grids, self.lasting = prices, prices.net, grids, lasting
        self.stages = stages(self.net, Proposal("", lasting, grids=grids))
        self.makers = {t: call for call in self.net.calls for t in call.makes}
        self.maker = {t: s for s, stage in enumerate(self.stages) for call in stage.calls for t in call.makes}
        backward = (s for s, stage in enumerate(self.stages) if stage.calls[-1].phase not in (FORWARD, LOSS))
        self.turn = next(backward, len(self.stages))  # the first band of the backward pass
        self.rate = 1e8 / prices.judge.moving_seconds(10**8)[1]  # bytes a second
        self.reads = [self._reads(stage) for stage in self.stages]
        self.ways = dict.fromkeys(self._crossing(), OFFLOAD)
        self.places = {t: self._places(t) for t in self.ways}
        self.heirs = {t: [h for h, places in self.places.items() if t in places] for t in self.ways}
        self.remakable = {t for t in self.ways if self._remakable(t)}
        self.users: dict[str, set[int]] = {t: set() for t in self.net.tensors}
        self.needs: list[dict[str, None]] = [{} for _ in self.stages]
        self.lanes = np.zeros((len(self.stages), 4))
        self.load = np.zeros(len(self.stages))  # bytes of what is there as a whole
        self.room = np.zeros(len(self.stages))  # for that, and for what comes early or leaves late
        self.shares: dict[str, list[tuple[Any, Any]]] = {}  # of lanes and load, by tensor
        self.computing = computing or [sum(self._seconds(call, stage) for call in stage.calls) for stage in self.stages]
        for s, stage in enumerate(self.stages):
            self.lanes[s, LEAVE : BACK + 1] = self._at_home(stage)
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

    def _at_home(self, stage: Stage) -> tuple[float, float]:
        """Seconds in which what lasts and is at home leaves and comes, for a band."""
        makes = {t for call in stage.calls for t in call.makes if t in self.lasting}
        reads = {t for call in stage.calls for t in call.reads if t in self.lasting}
        return sum(self._moving(t)[0] for t in makes), sum(self._moving(t)[1] for t in reads)

    def _look(self, s: int) -> set[str]:
        """Note what a band needs and makes again; returns what it has begun or ceased to need."""
        needs: dict[str, None] = {}
        compute, todo = self.computing[s], list(self.reads[s])
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
            shares += [((s, DRAINED), back) for s in users if maker is not None and s - maker < NEAR]
        else:
            for first, last, comes in self._spans(name):
                shares.append((slice(first, last + 1), nbytes))
                if comes:
                    shares.append(((first, BACK), back))
                elif way is STAY:
                    shares.append(((first, LEAVE), leave))
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
        return [(forward[0], forward[-1], name not in self.maker), (backward[0], backward[-1], True)]

    def seconds(self) -> float:
        """Of all bands: of computing, of waiting for what comes and leaves, and a little of the lanes."""
        if self.prices.judge.device.backend.shared:
            return float(self.lanes[:, :DRAINED].sum())
        if kernels is None:
            return self._waiting()
        lanes, load, room = map(address, (self.lanes, self.load, self.room))
        return float(kernels.band_seconds(lanes, load, room, len(self.load), self.turn, CARRIED / self.rate, TINY, OTHERS))

    def _waiting(self) -> float:
        """The same without the extension, where copies run beside kernels."""
        compute, leave, back, drained = self.lanes.T.tolist()
        early = (np.maximum(self.room - self.load, 0) * (CARRIED / self.rate)).tolist()
        late = [0.0 if left > TINY else room for left, room in zip(drained, early, strict=True)]
        turned = [*reversed(early[self.turn :]), *(0.0 for _ in early[: self.turn])]  # early in the backward pass alone
        come = reversed(waits(compute[::-1], back[::-1], turned))
        moving = sum(map(sum, zip(leave, back, strict=True)))
        return sum(compute) + sum(map(max, come, waits(compute, leave, late))) + OTHERS * moving

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
        room = self.room = np.maximum(room, 1.0)
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


def waits(compute: Sequence[float], moving: Sequence[float], room: Sequence[float]) -> list[float]:
    """Seconds that every band waits for a lane, where what is not moved by its end is moved in the next one as far as there is
    room for it. compute, moving: seconds of every band. room: in seconds of the lane.

    >>> waits([2.0, 2.0, 2.0], [5.0, 0.0, 0.0], [0.0, 1.0, 1.0])
    [2.0, 0.0, 0.0]
    """
    late, left = list[float](), 0.0
    for busy, more, after in zip(compute, moving, (*room[1:], 0.0), strict=True):
        left += more - busy
        if left <= 0.0:
            left = 0.0
            late.append(0.0)
        elif left <= after:
            late.append(0.0)
        else:
            late.append(left - after)
            left = after
    return late

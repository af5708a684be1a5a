"""The items of stages: visit by visit, part by part of the batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from ooc.errors import UnsupportedError
from ooc.ir.region import Region, Span
from ooc.networks.calls import FORWARD, LOSS, Call, Network
from ooc.networks.items import Instance, Item
from ooc.networks.loads import place_loads
from ooc.networks.proposal import Fate, Proposal
from ooc.networks.stages import Stage, stages
from ooc.networks.tensors import Role
from ooc.ops.binary import BINARIES
from ooc.ops.distance import DISTANCES

# Kinds of ops that may write where they read.
ELEMENTWISE = (
    "pointwise", "activation_backward", "bn.apply", "bn.pull", "dropout", "cross_entropy_backward", "multiply",
    "dice_backward.pull", *(f"binary.{how}" for how in BINARIES), *(f"distance_backward.{how}" for how in DISTANCES),
)  # fmt: skip


class StageItems:
    """A step while it is written, stage by stage, part by part, visit by visit: a visit is what a part of the batch has of the
    forward or of the backward pass in a stage. What a visit leaves behind is kept, stored, or forgotten."""

    def __init__(self, net: Network, proposal: Proposal, brief: bool) -> None:
        self.net, self.proposal, self.brief = net, proposal, brief
        self.stages = stages(net, proposal)
        self.outside = {t for t in net.tensors if proposal.fate(t) is Fate.STREAM}
        self.present = self.outside | {t.name for t in net.lasting if proposal.resident(t.name)}
        self.generation: dict[tuple[str, Region | None], int] = {}
        self.stored: set[str] = set()
        self.made: set[str] = set()  # of what lasts, and was made since it was stored
        self.moving: list[Instance] = []  # since the last fence
        self.written: list[Item] = []
        self.part: Span | None = None
        self.count_of_runs = 0
        self.runs: list[int] = []  # before each stage
        self.begins: list[int] = []  # runs before each part of a chain, and before each that is of none
        self.regions: dict[tuple[str, int], Region] = {}  # of parts, by tensor and first sample
        self.lasting = {t.name for t in net.lasting}
        self.over: dict[str, list[str]] = {}  # whose bytes a proposal lets each tensor take
        for read, gradient in proposal.over:
            self.over.setdefault(gradient, []).append(read)
        self._look_ahead()

    def _look_ahead(self) -> None:
        """Who is touched in which stages, and read in which visit last."""
        touched: dict[str, list[int]] = {}
        self.last_read: dict[str, int] = {}
        self.last_forward: dict[str, int] = {}  # of those in the forward pass
        self.turn = 0  # visits of the forward pass
        number = 0
        for n, stage in enumerate(self.stages):
            for call in stage.calls:
                for t in call.tensors:
                    touched.setdefault(t, []).append(n)
            for calls in stage.visits():
                self.last_read |= {t: number for call in calls for t in call.reads}
                number += 1
                if calls[-1].phase in (FORWARD, LOSS):
                    self.last_forward, self.turn = dict(self.last_read), number
        kept = (t for t in touched if self.proposal.fate(t) is Fate.KEEP)
        whole = {t for t in kept if touched[t][0] != touched[t][-1]} | self.proposal.staying
        tensors = self.net.tensors
        # Of which there is one instance for all parts; what lasts, and does not stay on the device.
        self.shared = whole | self.outside | {t for t in tensors if not tensors[t].per_sample}
        self.visiting = {t.name for t in self.net.lasting if self.proposal.fate(t.name) is Fate.OFFLOAD}

    # ---- stages, parts, visits

    def step(self) -> list[Item]:
        """All items."""
        number = 0
        for stage in self.stages:
            self._pause(stage)
            self.runs.append(self.count_of_runs)
            if stage.grid:
                self._chain(stage, number)
            else:
                self._in_parts(stage, number)
                self.begins += range(self.runs[-1], self.count_of_runs)
            for name in sorted(self.present & self.visiting):
                self._put_away(name)
            number += len(stage.visits())
        self._pause(None)
        return self.written

    def _pause(self, stage: Stage | None) -> None:
        """Let the caller see to outputs before the first stage of the backward pass, None: at the end, if there is to be a
        pause."""
        pause = self.net.pause
        if pause is None or any(item.what == "pause" for item in self.written):
            return
        if stage is None or stage.calls[-1].index >= pause:
            self._emit(Item("pause", makes=tuple(Instance(name) for name in self.net.later)))

    def _chain(self, stage: Stage, number: int) -> None:
        """The calls of a chain, tile by tile."""
        raise NotImplementedError

    def _in_parts(self, stage: Stage, number: int) -> None:
        """The visits of a stage, part by part of the batch."""
        visits = stage.visits()
        for part in stage.parts(self.net.batch, self.brief):
            self.part = part
            for i, calls in enumerate(visits):
                self._visit(stage, number + i, calls)
            if self.part is not None:  # of another part nothing is there, but what all parts share
                self.present &= self.shared
        self.part = None

    def _put_away(self, name: str) -> None:
        """What lasts goes home, where there is no newer one."""
        if name in self.made:
            self._emit(Item("store", reads=(self._now(name),)))
            self.made.discard(name)
        self.present.discard(name)

    def _visit(self, stage: Stage, number: int, calls: Sequence[Call]) -> None:
        """The calls of a visit, what each needs before it, and what it leaves behind."""
        needs = {call.index: list(self._missing(call)) for call in calls}
        forward = calls[0].phase in (FORWARD, LOSS)
        issued = {} if forward else place_loads(self.net, self.proposal, calls, needs)
        last = {t: call.index for call in calls for t in call.tensors}
        ready: set[str] = set()
        for i, call in enumerate(calls):
            self._provide(needs[call.index], issued.get(call.index, ()), ready, stage.chunk)
            done = [t for t in call.tensors if last[t] == call.index]
            self._leave([t for t in done if t not in call.makes], number)
            self._run(call, stage.chunk)
            self._leave([t for t in done if t in call.makes], number)
            for name in done:
                self._forget(name, number, stage.chunk)
            for name in (t for t in call.makes if t in self.net.outputs and t not in self.outside and self._complete(t)):
                self._emit(Item("store", reads=(self._now(name),)))
            if i + 1 == len(calls) or calls[i + 1].layer != call.layer:
                self._fence()

    def _provide(self, missing: Sequence[str | Call], early: Sequence[str], ready: set[str], chunk: int) -> None:
        """What a call misses: loads that are issued before it, its own and those of later calls (`ready` from then on), and what
        is made again."""
        for name in early:
            self._load(name)
            ready.add(name)
        for what in missing:
            if isinstance(what, Call):
                self._run(what, chunk, recompute=True)
            elif what not in ready:
                self._load(what)
            else:
                ready.discard(what)

    def _complete(self, name: str) -> bool:
        """Whether no other part has to do with what is on the device of a tensor."""
        return name not in self.shared or self.part is None or self.part.hi == self.net.batch

    def _leave(self, names: Iterable[str], number: int) -> None:
        """Store what comes back in a later visit."""
        for name in names:
            role, later = self.net.tensors[name].role, self.last_read.get(name, -1) > number
            leaves = role in (Role.ACTIVATION, Role.GRADIENT) and self.proposal.fate(name) is Fate.OFFLOAD
            if later and leaves and name not in self.stored:
                self._emit(Item("store", reads=(self._now(name),)))
                self.stored.add(name)

    def _forget(self, name: str, number: int, chunk: int) -> None:
        """What later visits do not find on the device."""
        role = self.net.tensors[name].role
        if role.lasting:
            if name in self.visiting and not chunk:
                self._put_away(name)
            return
        gone = self.last_read.get(name, -1) <= number or not self._stays(name, number)
        if gone and self._complete(name) and name not in self.outside and self.net.tensors[name].per_sample:
            self.present.discard(name)

    def _stays(self, name: str, number: int) -> bool:
        """Whether a tensor is left on the device after a visit, if later ones need it."""
        if name in self.proposal.staying:
            return number >= self.turn or number < self.last_forward.get(name, -1)
        return self.proposal.fate(name) is Fate.KEEP

    def _missing(self, call: Call) -> Iterator[str | Call]:
        """What has to be loaded or computed again before a call, in order; from then on it is there, unless it is made again for
        every use."""
        stack: list[str | Call] = [*reversed(call.reads)]
        brief: list[str] = []
        while stack:
            what = stack.pop()
            if isinstance(what, Call):
                if not set(what.makes) <= self.present:
                    self.present |= set(what.makes)
                    brief += [t for t in what.makes if t in self.proposal.again]
                    yield what
                continue
            if what in self.present:
                continue
            role = self.net.tensors[what].role
            if role is Role.INPUT or role.lasting or what in self.stored:
                self.present.add(what)
                yield what
            elif role is Role.ACTIVATION:
                maker = self.net.makers[what]
                stack += [maker, *reversed(maker.reads)]
            else:
                raise UnsupportedError(f"{self.proposal.label}: {call.layer} needs {what}, which nobody has kept or stored")
        self.present -= set(brief)
        self.present |= set(call.makes)

    # ---- items

    def _part_of(self, name: str) -> Region | None:
        """The region of a tensor that the part of the batch is; None: all of it."""
        if self.part is None or name in self.shared:
            return None
        key = name, self.part.lo
        if key not in self.regions:
            self.regions[key] = (self.part, *map(partial(Span, 0), self.net.tensors[name].shape[1:]))
        return self.regions[key]

    def _now(self, name: str) -> Instance:
        part = self._part_of(name)
        return Instance(name, self.generation.get((name, part), 0), part)

    def _next(self, name: str) -> Instance:
        """Another instance; of what parts share, another one in their first part alone."""
        part = self._part_of(name)
        if part is not None or self.part is None or not self.part.lo:
            self.generation[name, part] = self.generation.get((name, part), -1) + 1
        return self._now(name)

    def _run(self, call: Call, chunk: int, recompute: bool = False) -> None:
        reads = tuple([self._now(name) for name in call.reads])
        fixed = [t for t in call.makes if t in self.lasting or t in self.outside]
        makes = tuple([self._now(name) if name in fixed else self._next(name) for name in call.makes])
        if not recompute:
            self.present.update(call.makes)
            self.stored.difference_update(call.makes)
        self._last(fixed)
        pairs = [(r, m) for r, m in call.over if m not in fixed and r not in self.outside]
        pairs += [(r, m) for m in call.makes for r in self.over.get(m, ()) if self._lays_over(call, r)]
        at = dict(zip((*call.reads, *call.makes), (*reads, *makes))) if pairs else {}
        over = tuple([(at[r] if r in call.reads else self._now(r), at[m]) for r, m in pairs])
        parted = chunk > 0 and call.along is not None
        whole = not parted and call.index not in self.proposal.samples_of
        sums = () if whole else tuple(Instance(f"{call.index}:{o.name}") for o in call.sums)
        part = self.part if parted else None
        self._emit(Item("run", call.index, reads, makes, part, chunk if parted else 0, over=over, sums=sums))

    def _last(self, names: Iterable[str]) -> None:
        """Note that what lasts, and lives at home, is made."""
        for t in names:
            if t in self.visiting:
                self.made.add(t)
                self.generation.setdefault((t, None), 0)

    def _lays_over(self, call: Call, read: str) -> bool:
        """Whether there is what a proposal lets a call take the bytes of; what it reads itself only if it works by elements."""
        there = (read, self._part_of(read)) in self.generation
        return there and (read not in call.reads or call.op.kind in ELEMENTWISE)

    def _load(self, name: str) -> None:
        instance = self._next(name)
        self.present.add(name)
        self._emit(Item("load", makes=(instance,)))

    def _emit(self, item: Item) -> None:
        self.written.append(item)
        self.count_of_runs += item.what == "run"
        if item.what in ("load", "store"):
            self.moving += [*item.reads, *item.makes]

    def _fence(self) -> None:
        """The end of a layer, where compute waits for all that moves."""
        if self.proposal.barrier and self.moving:
            self.written.append(Item("fence", makes=tuple(dict.fromkeys(self.moving))))
        self.moving = []

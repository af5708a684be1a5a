"""A proposal as a flat program: run, load, store, fence, on instances of tensors. Liveness only: no bytes, no times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ooc.cache import cached_property
from ooc.ir.op import Operand
from ooc.networks.calls import UPDATE, Call, Network
from ooc.networks.proposal import How, Proposal
from ooc.networks.tensors import Role

# Kinds of ops that may write where they read.
ELEMENTWISE = ("pointwise", "activation_backward", "bn.apply", "bn.pull", "dropout", "cross_entropy_backward", "multiply")


class Instance(NamedTuple):
    """What the device holds of a tensor at a time: made again, it is another. chunk: the number of the part of the batch; -1:
    all of it."""

    tensor: str
    generation: int = 0
    chunk: int = -1

    def __str__(self) -> str:
        generation = f"'{self.generation}" if self.generation else ""
        return f"{self.tensor}{generation}" + (f"[{self.chunk}]" if self.chunk >= 0 else "")


class Item(NamedTuple):
    """One instruction of a program.

    Fields:
        what: "run" (a call, or one chunk of it), "load" (from where the tensor lives), "store" (to there), "fence" (compute waits
            for all that moves what it touches).
        call: index of the call of a run; -1.
        reads, makes: instances, of a run in the order of the op's operands.
        chunk: the part of the batch that a run computes; -1: all of it.
        over: pairs of an instance and one that is made and may take its bytes, where nobody reads the first one later.
        sums: partial sums, in the order of the op's folds, of a call that is computed in parts.
    """

    what: str
    call: int = -1
    reads: tuple[Instance, ...] = ()
    makes: tuple[Instance, ...] = ()
    chunk: int = -1
    over: tuple[tuple[Instance, Instance], ...] = ()
    sums: tuple[Instance, ...] = ()

    def __str__(self) -> str:
        reads, makes = (" ".join(map(str, part)) for part in (self.reads, self.makes))
        return f"{self.what} {self.call if self.call >= 0 else ''} {reads} > {makes}"


@dataclass(frozen=True)
class Program:
    """The items of a step, in the order of issue.

    Fields:
        items: all of them.
        storage: the instance whose bytes another one takes over, by the other one.
    """

    items: tuple[Item, ...]
    storage: Mapping[Instance, Instance]

    def holder(self, instance: Instance) -> Instance:
        """The first of those that share an instance's bytes."""
        while instance in self.storage:
            instance = self.storage[instance]
        return instance

    @cached_property
    def lives(self) -> dict[Instance, tuple[int, int]]:
        """The first and the last item that touch what holds an instance."""
        found: dict[Instance, tuple[int, int]] = {}
        for i, item in enumerate(self.items):
            for instance in (*item.reads, *item.makes, *item.sums):
                own = self.holder(instance)
                found[own] = (found[own][0], i) if own in found else (i, i)
        return found


def program(net: Network, proposal: Proposal) -> Program:
    """The program of a proposal."""
    chunks = -(-net.batch // proposal.chunk) if proposal.chunk else 0
    items: list[Item] = []
    for chunk in range(chunks) if chunks else (-1,):
        items += _Pass(net, proposal, chunk).step()
    if chunks:
        items += _Pass(net, proposal, -1).updates()
    return Program(tuple(items), _shared(net, items))


class _Pass:
    """A step, or what one chunk has of it, while it is written."""

    def __init__(self, net: Network, proposal: Proposal, chunk: int) -> None:
        self.net, self.proposal, self.chunk = net, proposal, chunk
        self.generation: dict[str, int] = {}
        self.present = {t.name for t in net.lasting}
        self.stored: set[str] = set()
        self.moving: list[Instance] = []  # since the last fence
        self.written: list[Item] = []

    def step(self) -> list[Item]:
        """Forward, backward, and where there are no chunks the updates."""
        self._forward()
        self._backward([c for c in self.net.backward if self.chunk < 0 or c.phase != UPDATE])
        return self.written

    def updates(self) -> list[Item]:
        """What is left to do when all chunks are done."""
        self._backward([c for c in self.net.backward if c.phase == UPDATE])
        return self.written

    # ---- the two passes

    def _forward(self) -> None:
        last = self.net.forward_reader
        for i, call in enumerate(self.net.forward):
            for name in dict.fromkeys(call.reads):
                if name not in self.present:
                    self._load(name)
            done = [t for t in call.tensors if last[t] == call.index]
            for name in done:
                if name not in call.makes:
                    self._leave(name)
            self._run(call)
            for name in done:
                if name in call.makes:
                    self._leave(name)
            for name in done:
                self._forget(name)
            for name in (t for t in call.makes if t in self.net.outputs):
                self._emit(Item("store", reads=(self._now(name),)))
            if i + 1 == len(self.net.forward) or self.net.forward[i + 1].layer != call.layer:
                self._fence()

    def _leave(self, name: str) -> None:
        """Store what comes back later."""
        if self._fate(name) is How.OFFLOAD and self.net.tensors[name].role is Role.ACTIVATION:
            self._emit(Item("store", reads=(self._now(name),)))
            self.stored.add(name)

    def _forget(self, name: str) -> None:
        """What the backward pass does not find on the device."""
        tensor = self.net.tensors[name]
        gone = name not in self.net.backward_readers or self._fate(name) is not How.KEEP
        if gone and tensor.role in (Role.ACTIVATION, Role.INPUT):
            self.present.discard(name)

    def _fate(self, name: str) -> How:
        return self.proposal.fate(name) if name in self.net.backward_readers else How.KEEP

    def _backward(self, calls: Sequence[Call]) -> None:
        needs = {call.index: list(self._missing(call)) for call in calls}
        issued = place_loads(self.net, self.proposal, calls, needs)
        early = {name for names in issued.values() for name in names}
        ready: set[str] = set()
        for i, call in enumerate(calls):
            for name in issued.get(call.index, ()):
                self._load(name)
                ready.add(name)
            for what in needs[call.index]:
                if isinstance(what, Call):
                    self._run(what, again=True)
                elif what not in ready:
                    self._load(what)
                else:
                    ready.discard(what)
            self._run(call)
            if i + 1 == len(calls) or calls[i + 1].layer != call.layer:
                self._fence()
        assert not early - {t.tensor for item in self.written for t in item.makes}

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
            tensor = self.net.tensors[what]
            if tensor.role is Role.INPUT or what in self.stored:
                self.present.add(what)
                yield what
            elif tensor.role is Role.ACTIVATION:
                maker = self.net.makers[what]
                stack += [maker, *reversed(maker.reads)]
        self.present -= set(brief)
        self.present |= set(call.makes)

    # ---- items

    def _chunk_of(self, name: str) -> int:
        return self.chunk if self.net.tensors[name].per_sample else -1

    def _now(self, name: str) -> Instance:
        return Instance(name, self.generation.get(name, 0), self._chunk_of(name))

    def _next(self, name: str) -> Instance:
        self.generation[name] = self.generation.get(name, -1) + 1
        return self._now(name)

    def _run(self, call: Call, again: bool = False) -> None:
        reads = tuple(self._now(name) for name in call.reads)
        lasting = {t for t in call.makes if self.net.tensors[t].role.lasting}
        makes = tuple(self._now(name) if name in lasting else self._next(name) for name in call.makes)
        self.present |= set(call.makes) if not again else set()
        at = dict(zip((*call.reads, *call.makes), (*reads, *makes)))
        pairs = [(r, m) for r, m in call.over if m not in lasting]
        for r, m in self.proposal.over:  # of what the call itself reads, where it works element by element
            if m in call.makes and r in self.generation and (r not in call.reads or call.op.kind in ELEMENTWISE):
                pairs.append((r, m))
        over = tuple((at[r] if r in call.reads else self._now(r), at[m]) for r, m in pairs)
        whole = self.chunk < 0 and call.index not in self.proposal.samples_of
        sums = () if whole else tuple(Instance(f"{call.index}:{o.name}") for o in partial_sums(call))
        self._emit(Item("run", call.index, reads, makes, self.chunk if call.along else -1, over, sums))

    def _load(self, name: str) -> None:
        made = self._next(name)
        self.present.add(name)
        self._emit(Item("load", makes=(made,)))

    def _emit(self, item: Item) -> None:
        self.written.append(item)
        if item.what in ("load", "store"):
            self.moving += [*item.reads, *item.makes]

    def _fence(self) -> None:
        """The end of a layer, where compute waits for all that moves."""
        if self.proposal.barrier and self.moving:
            self.written.append(Item("fence", makes=tuple(dict.fromkeys(self.moving))))
        self.moving = []


def partial_sums(call: Call) -> tuple[Operand, ...]:
    """What a call that goes on summing from one part of the batch to the next keeps beside its outputs."""
    made = {o.name for o in call.op.outputs}
    folds = [f for f in call.op.folds if call.along is not None and call.along[0] in f.reduce]
    return tuple(o for f in folds for o in f.state if o.name not in made)


def place_loads(
    net: Network, proposal: Proposal, calls: Sequence[Call], needs: Mapping[int, Sequence[str | Call]]
) -> dict[int, list[str]]:
    """Before which call each load is issued: not after the one that needs it."""
    demand = {what: index for index, missing in needs.items() for what in missing if isinstance(what, str)}
    start = {c.layer: c.index for c in reversed(calls)}
    layers = list(dict.fromkeys(c.layer for c in calls))  # in the order of the backward pass
    layer_of = {c.index: c.layer for c in calls}
    at: dict[str, int] = {}
    if proposal.window == "layer":
        place = {layer: i for i, layer in enumerate(layers)}
        for name, index in demand.items():
            own = place[layer_of[index]]
            at[name] = start[layers[max(0, own - proposal.ahead)]]
    elif proposal.window == "vdnn":
        at = vdnn_window(net, layers, start, demand, layer_of)
    elif proposal.window == "at":
        at = {name: index for name, index in proposal.issue if name in demand and index in layer_of}
    found: dict[int, list[str]] = {}
    for name, index in demand.items():
        found.setdefault(min(index, at.get(name, index)), []).append(name)
    return found


def vdnn_window(
    net: Network, layers: Sequence[str], start: Mapping[str, int], demand: Mapping[str, int], layer_of: Mapping[int, str]
) -> dict[str, int]:
    """vDNN's search: at the start of each layer's backward pass the layers before it are looked at, the nearest first: one that
    waits for its input gets it, and a convolution that does not ends the search.

    Source: vDNN, findPrefetchLayer as vDNN++'s authors have it.
    """
    waiting: dict[str, list[str]] = {}
    for name, index in demand.items():
        waiting.setdefault(layer_of[index], []).append(name)
    kinds = {node.name: node.layer.kind for node in net.graph.nodes}
    found: dict[str, int] = {}
    for i, layer in enumerate(layers):
        for before in layers[i + 1 :]:
            names = waiting.pop(before, None)
            if names:
                found |= dict.fromkeys(names, start[layer])
                break
            if kinds.get(before) in ("conv", "conv_transpose"):
                break
    return found


def _shared(net: Network, items: Iterable[Item]) -> dict[Instance, Instance]:
    """Which instances take over the bytes of one that nobody touches later."""
    last: dict[Instance, int] = {}
    moved: set[Instance] = set()
    listed = list(items)
    for i, item in enumerate(listed):
        for instance in (*item.reads, *item.makes):
            last[instance] = i
        if item.what == "store":
            moved |= set(item.reads)
    storage: dict[Instance, Instance] = {}
    taken: set[Instance] = set()
    for i, item in enumerate(listed):
        for read, made in item.over:
            tensor = net.tensors[read.tensor]
            free = last.get(read, i + 1) <= i and read not in moved and not tensor.role.lasting and tensor.role is not Role.INPUT
            if free and read not in taken and made not in storage and tensor.nbytes == net.tensors[made.tensor].nbytes:
                storage[made] = read
                taken.add(read)
    return storage

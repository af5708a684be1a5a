"""A graph at a batch size as calls: operations on named tensors, forward, loss, backward and update, in the order in which
they are issued."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from ooc.cache import Cache, cached_property
from ooc.ir.op import Op, Operand
from ooc.ir.region import Region, Span
from ooc.networks.tensors import Mode, Role, Slot, Weights

FORWARD, LOSS, BACKWARD, UPDATE = "forward", "loss", "backward", "update"
STEP, RATES = "draw", "rates"  # inputs: what dropout draws by in this step, and the optimizer's numbers
CONTROLS, GATHER = "optimizer/controls", "optimizer/gather"  # what it takes of gradients, and of those of steps before
TILINGS = 1 << 10  # chains whose parts are remembered
Along = tuple[str, int]  # a loop dim that follows the batch, and how many of its items are one sample


class LayerLike(Protocol):
    """What a node needs of its layer, see `ooc.networks.layers`."""

    kind: ClassVar[str]
    is_loss: ClassVar[bool]

    @property
    def passes(self) -> bool: ...

    def fields(self) -> dict[str, Any]: ...

    def forward(self, writer: Any, node: LayerNode) -> None: ...

    def backward(self, writer: Any, node: LayerNode, dy: str) -> tuple[str | None, ...]: ...


class Updating(Protocol):
    """What a network needs of an optimizer, see `ooc.networks.optimizers`."""

    counted: ClassVar[int]

    @property
    def accumulate(self) -> int: ...

    @property
    def ema(self) -> float | None: ...

    @property
    def scales(self) -> bool: ...

    @property
    def weighs(self) -> bool: ...

    @property
    def paced(self) -> bool: ...

    @property
    def first_scale(self) -> float: ...

    def update(self, **sizes: Any) -> Any: ...

    def scale(self, state: Any) -> float: ...

    def of(self, graph: Wired) -> Updating: ...

    def moves(self, parameter: str) -> bool: ...

    def write(self, writer: Any, parameters: Sequence[str]) -> None: ...

    def inputs(self, step: int) -> dict[str, Any]: ...

    def fields(self) -> dict[str, Any]: ...


class Wired(Protocol):
    """What a network needs of a graph, see `ooc.networks.build`."""

    name: str
    nodes: list[LayerNode]
    inputs: dict[str, tuple[int, ...]]
    outputs: tuple[str, ...]
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]
    values: dict[str, Any]
    fixed: set[str]

    @property
    def parameters(self) -> dict[str, Weights]: ...

    def to_json(self) -> str: ...


@dataclass(frozen=True)
class LayerNode:
    """A layer in a graph.

    Fields:
        name: of the layer, and of the tensor that it makes.
        layer: what is computed.
        reads: tensors that it reads.
        shape: of what it makes, per sample.
        parameters: what it has of its own, by the full name.
    """

    name: str
    layer: LayerLike
    reads: tuple[str, ...]
    shape: tuple[int, ...]
    parameters: Mapping[str, Weights]

    @property
    def made(self) -> str:
        """The tensor that it makes."""
        return self.name

    def __str__(self) -> str:
        return f"layer {self.name} ({self.layer.kind})"


@dataclass(frozen=True)
class Call:
    """One operation on tensors of the network.

    Fields:
        index: its place in the order of issue.
        phase: "forward", "loss", "backward" or "update".
        layer: the layer that it belongs to.
        kind: the kind of that layer.
        op: what is computed; equal layers share one object.
        reads, makes: the tensor behind each of the op's inputs and outputs.
        along: the loop dim that follows the batch, and how many of its items are one sample; None: it has to do with all of them.
        over: pairs (read, made): what is made may take the place of what is read, where nobody reads that later.
    """

    index: int
    phase: str
    layer: str
    kind: str
    op: Op
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    along: Along | None
    over: tuple[tuple[str, str], ...] = ()

    def cut(self, samples: int) -> tuple[tuple[str, int], ...]:
        """The loop dims that so many samples cut, and to which sizes; of all samples, or of what is not parted, none."""
        return ((self.along[0], samples * self.along[1]),) if samples and self.along is not None else ()

    @cached_property
    def sums(self) -> tuple[Operand, ...]:
        """What it keeps beside its outputs where it goes on summing from one part of the batch to the next."""
        return self._sums([self.along[0]] if self.along is not None else [])

    def sums_over(self, tile: Mapping[str, Span]) -> tuple[Operand, ...]:
        """The same where its loops are cut to a tile."""
        return self._sums([dim for dim, span in tile.items() if span.extent < self.op.dims[dim]])

    def _sums(self, dims: Sequence[str]) -> tuple[Operand, ...]:
        outputs = {o.name for o in self.op.outputs}
        folds = [f for f in self.op.folds if not set(dims).isdisjoint(f.reduce)]
        return tuple(o for f in folds for o in f.state if o.name not in outputs)

    @cached_property
    def over_batch(self) -> bool:
        """Whether it has to do with all samples, or sums over them: none of what it makes is of a sample."""
        return self.along is None or any(self.along[0] in fold.reduce for fold in self.op.folds)

    @cached_property
    def tensors(self) -> tuple[str, ...]:
        """All that it touches."""
        return tuple(dict.fromkeys((*self.reads, *self.makes)))


@dataclass(frozen=True)
class Network:
    """A graph at a batch size: its tensors and calls.

    Fields:
        graph: what was built.
        batch: samples of a step.
        mode: what is computed.
        tensors: by name.
        calls: in the order of issue.
        aliases: names of the graph that are another name of a tensor.
        outputs: tensors that leave: of the graph, in modes BACKWARD and BOTH gradients of inputs.
        optimizer: what updates the parameters; None: nothing does.
        gradients: in those modes, the tensor that is each input's gradient, of those that the outputs depend on.
        wanted: in those modes, whose gradients are.
        lent: whether parameters and statistics are the caller's, given with the inputs.
    """

    graph: Wired
    batch: int
    mode: Mode
    tensors: Mapping[str, Slot]
    calls: tuple[Call, ...]
    aliases: Mapping[str, str]
    outputs: tuple[str, ...]
    optimizer: Updating | None = None
    gradients: Mapping[str, str] = field(default_factory=dict)
    wanted: tuple[str, ...] = ()
    lent: bool = False

    def resolve(self, name: str) -> str:
        """The tensor behind a name."""
        return resolved(self.aliases, name)

    def size_of(self, name: str) -> tuple[tuple[int, ...], str]:
        """Shape and dtype of an input, with the batch, or of a parameter or statistic, as the caller has it."""
        if name in self.graph.inputs:
            return (self.batch, *self.graph.shapes[name]), self.graph.dtypes[name]
        weights = self.graph.parameters[name]
        return weights.shape, weights.dtype

    @cached_property
    def _cuts(self) -> dict[tuple[int, Along, Span], Region]:
        return {}

    def cut(self, operand: Operand, call: Call, samples: Span) -> Region:
        """The region of a call's operand that some samples are, remembered: what follows the batch is cut."""
        if call.along is None:
            return operand.whole
        key = id(operand), call.along, samples
        if key not in self._cuts:
            dim, each = call.along
            tile = {d: Span(0, e) for d, e in call.op.dims.items()} | {dim: Span(samples.lo * each, samples.hi * each)}
            axes = zip(operand.axes, operand.shape, strict=True)
            self._cuts[key] = tuple(a.span(tile).clip(e) if dim in a.dims else Span(0, e) for a, e in axes)
        return self._cuts[key]

    @cached_property
    def forward(self) -> tuple[Call, ...]:
        """The calls up to the loss."""
        return tuple(c for c in self.calls if c.phase in (FORWARD, LOSS))

    @cached_property
    def backward(self) -> tuple[Call, ...]:
        """The calls from the gradient of the loss on."""
        return tuple(c for c in self.calls if c.phase in (BACKWARD, UPDATE))

    @cached_property
    def pause(self) -> int | None:
        """The index of the call before which the caller sees the outputs; None: of none."""
        return len(self.forward) if self.mode is Mode.BOTH else None

    @cached_property
    def later(self) -> tuple[str, ...]:
        """Tensors that the caller has to do with after the pause alone."""
        if self.pause is None:
            return ()
        dy = (given_gradient(name) for name in self.graph.outputs)
        return (*(name for name in dy if name in self.tensors), *self.gradients.values())

    @cached_property
    def tilings(self) -> Cache[list[Any]]:
        """Parts of chains that were cut before, see `ooc.networks.chain_items`."""
        return Cache(TILINGS)

    @cached_property
    def makers(self) -> dict[str, Call]:
        """The call that makes each tensor of the forward pass."""
        return {t: call for call in self.forward for t in call.makes}

    @cached_property
    def backward_readers(self) -> dict[str, tuple[int, ...]]:
        """The calls from the loss on that read what the forward pass made or was given, by the tensor."""
        readers: dict[str, list[int]] = {}
        for call in self.backward:
            for t in dict.fromkeys(call.reads):
                if self.tensors[t].role in (Role.ACTIVATION, Role.INPUT):
                    readers.setdefault(t, []).append(call.index)
        return {t: tuple(calls) for t, calls in readers.items()}

    @cached_property
    def kept(self) -> tuple[str, ...]:
        """Activations of the batch that the backward pass reads, in the order in which they are made: what there is to decide."""
        return tuple(
            t for call in self.forward for t in call.makes
            if t in self.backward_readers and self.tensors[t].per_sample and self.tensors[t].role is Role.ACTIVATION
        )  # fmt: skip

    @cached_property
    def lasting(self) -> tuple[Slot, ...]:
        """Tensors that there is one of from step to step."""
        return tuple(t for t in self.tensors.values() if t.role.lasting)

    @cached_property
    def borrowed(self) -> frozenset[str]:
        """Of those the ones that the caller gives, by name."""
        return frozenset(t.name for t in self.lasting if self.lent and t.role in (Role.PARAMETER, Role.STATISTIC))

    @cached_property
    def in_place(self) -> frozenset[str]:
        """Of those the ones that are read where the caller has them, unless they are kept on the device: no call moves them."""
        return self.borrowed - {t for call in self.calls for t in call.makes}


def given_gradient(output: str) -> str:
    """The input that an output's gradient is given in."""
    return f"given d.{output}"


def resolved(aliases: Mapping[str, str], name: str) -> str:
    """The tensor behind a name."""
    while name in aliases:
        name = aliases[name]
    return name

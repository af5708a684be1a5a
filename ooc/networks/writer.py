"""The calls of a graph: layers write their forward and backward pass, gradients meet, updates come last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from ooc.errors import ArgumentError, ShapeError
from ooc.ir.bounds import Node
from ooc.ir.fused import joined
from ooc.ir.op import DTYPES, Op, Operand
from ooc.networks.calls import (
    BACKWARD,
    FORWARD,
    LOSS,
    UPDATE,
    Along,
    Call,
    LayerNode,
    Network,
    Updating,
    Wired,
    given_gradient,
    resolved,
)
from ooc.networks.tensors import Mode, Role, Slot
from ooc.ops import Pointwise
from ooc.ops.registry import IN


def network(
    graph: Wired, batch: int, mode: Mode, optimizer: Updating | None = None, deterministic: bool = False,
    variables: Sequence[str] | None = None, lent: bool = False,
) -> Network:  # fmt: skip
    """The calls of a graph at a batch size.

    variables: in modes BACKWARD and BOTH, inputs and parameters whose gradients are wanted; None: all. lent: see `Network`.
    Raises UnsupportedError for a layer without a gradient.
    """
    names = tuple(differentiable(graph)) if variables is None else tuple(variables)
    if optimizer is not None:
        optimizer = optimizer.of(graph)
    moving = [name for name in graph.parameters if name not in graph.fixed and (optimizer is None or optimizer.moves(name))]
    writer = Writer(graph, batch, mode, deterministic, names if mode.pulls else moving)
    for node in graph.nodes:
        writer.forward(node)
    if mode is Mode.BOTH:
        writer.finish()
    turn = len(writer.calls)
    if mode.has_gradients:
        writer.backward()
    gradients = writer.gradients() if mode.pulls else {}
    if optimizer is not None and mode is Mode.STEP:
        parameters = [t.name for t in writer.tensors.values() if t.role is Role.PARAMETER and t.name in writer.asked]
        optimizer.write(writer, [name for name in parameters if writer.sink(name) in writer.tensors])  # the loss depends on them
    if mode in (Mode.STEP, Mode.FORWARD):
        writer.finish()
    writer.updates.clear()  # they know the writer
    if mode.returns:
        writer.leave(graph.outputs, turn)
    leaving = tuple(writer.resolve(o) for o in graph.outputs) if mode.returns else ()
    outputs = tuple(dict.fromkeys((*leaving, *gradients.values())))
    lasting = [t.name for t in writer.tensors.values() if t.role.lasting]
    if mode.pulls:
        moved = [name for name in lasting if mode is Mode.BOTH and writer.tensors[name].role is Role.STATISTIC]
        lasting = [*moved, *(writer.sink(name) for name in names if writer.sink(name) in lasting)]
    calls = tuple(replace(call, index=i) for i, call in enumerate(needed(writer.calls, (*outputs, *lasting))))
    kept = {t for call in calls for t in call.tensors} | set(() if mode.pulls else lasting)
    tensors = {name: t for name, t in writer.tensors.items() if name in kept}
    differentiated = names if mode.pulls else ()
    return Network(graph, batch, mode, tensors, calls, writer.aliases, outputs, optimizer, gradients, differentiated, lent)


def differentiable(graph: Wired) -> list[str]:
    """Inputs and parameters of a graph that have gradients."""
    inputs = [name for name in graph.inputs if graph.dtypes[name] in DTYPES]
    moving = [name for name, weights in graph.parameters.items() if weights.role is Role.PARAMETER and name not in graph.fixed]
    return inputs + moving


def dependent(graph: Wired, variables: Collection[str]) -> set[str]:
    """Tensors of a graph that have gradients by these inputs and parameters."""
    tensors = {name for name in graph.inputs if name in variables}
    for node in graph.nodes:
        moving = any(weights.role is Role.PARAMETER and name in variables for name, weights in node.parameters.items())
        if moving or (node.layer.passes and not tensors.isdisjoint(node.reads)):
            tensors.add(node.made)
    return tensors


class Writer:
    """What layers write their calls with. Names of tensors are those of the graph, `d.` before that of a gradient."""

    def __init__(self, graph: Wired, batch: int, mode: Mode, deterministic: bool, variables: Iterable[str]) -> None:
        self.graph, self.batch, self.mode, self.deterministic = graph, batch, mode, deterministic
        self.tensors: dict[str, Slot] = {}
        self.calls: list[Call] = []
        self.aliases: dict[str, str] = {}
        self.phase, self.node = FORWARD, None  # type: tuple[str, Any]
        self.updates: list[Any] = []  # what is written at the end of a step
        self.parts: dict[str, list[str]] = {}  # of gradients, by the tensor that they are of
        outputs = graph.outputs if mode.pulls else ()  # whoever reads them gives a gradient, too
        self.readers = Counter((*(x for n in graph.nodes for x in n.reads), *outputs))
        self.asked = dict.fromkeys(variables)  # inputs and parameters whose gradients are wanted
        self.wanted = dependent(graph, self.asked)
        for name, shape in graph.inputs.items():
            self.given(name, (batch, *shape), graph.dtypes[name], Role.INPUT, per_sample=True)

    def resolve(self, name: str) -> str:
        """The tensor behind a name."""
        return resolved(self.aliases, name)

    def given(
        self, name: str, shape: tuple[int, ...], dtype: str, role: Role, per_sample: bool = False,
        begins: str | tuple[float, ...] = (0.0,),
    ) -> str:  # fmt: skip
        """A tensor that no call makes; begins: see `Slot`."""
        self.tensors.setdefault(name, Slot(name, shape, dtype, role, per_sample, begins))
        return name

    def call(
        self, op: Op, reads: Sequence[str], makes: Sequence[str], along: Along | None = ("n", 1), role: Role | None = None,
        over: Sequence[tuple[str, str]] = (), cut: bool = True, shape: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        """Write one call. role: of what it makes; default: of the pass. over: see `Call`. cut: whether what it makes of samples
        is cut into those; else there is one of it for all. shape: of that with the batch; default: as the op has it."""
        reads = [self.resolve(r) for r in reads]
        usual = Role.ACTIVATION if self.phase in (FORWARD, LOSS) else Role.GRADIENT
        if along is not None and along[0] not in op.dims:
            raise ArgumentError(f"{op}: no loop dim {along[0]}")
        for operand, name in zip(op.outputs, makes, strict=True):
            per_sample = cut and along is not None and along[0] in operand.dims
            if name not in self.tensors:
                becomes = usual if role is None or self._passes(name, role) else role
                sizes = shape if shape and per_sample else _shape(operand, per_sample, self.batch)
                self.tensors[name] = Slot(name, sizes, operand.dtype, becomes, per_sample)
        for operand, name in zip((*op.inputs, *op.outputs), (*reads, *makes), strict=True):
            if operand.nbytes != self.tensors[name].nbytes:
                raise ShapeError(f"{self.node}: {op} takes {operand.shape}, but {name} is {self.tensors[name].shape}")
        layer, kind = (self.node.name, self.node.layer.kind) if self.node is not None else ("", "")
        known = tuple((self.resolve(r), m) for r, m in over)
        self.calls.append(Call(len(self.calls), self.phase, layer, kind, op, tuple(reads), tuple(makes), along, known))

    def _passes(self, name: str, role: Role) -> bool:
        """Whether it is the gradient of a frozen parameter: nobody wants it when the step is done."""
        return role is Role.GRADIENT_SUM and self.mode is Mode.STEP and name.removeprefix("d.") not in self.asked

    def update(self, op: Op, reads: Sequence[str], makes: Sequence[str]) -> None:
        """Write a call at the end of the step, whose results take the place of what it reads."""
        self.phase, self.node = FORWARD if self.mode is Mode.BOTH else UPDATE, None
        self.call(op, reads, makes, None, over=tuple((m, m) for m in makes if m in reads))

    # ---- forward

    def forward(self, node: LayerNode) -> None:
        """Write a layer's forward pass."""
        self.phase, self.node = LOSS if node.layer.is_loss else FORWARD, node
        if node.layer.is_loss and self.mode is not Mode.STEP:
            return
        for name, weights in node.parameters.items():
            self.given(name, weights.shape, weights.dtype, weights.role)
        node.layer.forward(self, node)

    def finish(self) -> None:
        """Write what layers put off to the end of the step, or in mode BOTH to that of the forward pass."""
        for finish in self.updates:
            finish()

    def leave(self, names: Sequence[str], turn: int) -> None:
        """Write the copies by which tensors become outputs that are no tensors of their own: an input under another name, and
        what the backward pass reads, as the caller may change its arrays before that. turn: calls before the backward pass."""
        backward, self.calls = self.calls[turn:], self.calls[:turn]
        pulled = {t for call in backward for t in call.reads}
        self.phase, self.node = FORWARD, None
        for name in names:
            source = self.resolve(name)
            if source in pulled:
                self._copy(source, f"{name} of its own", name)
                self.aliases[name] = f"{name} of its own"
            elif name in self.aliases and self.tensors[source].role is Role.INPUT:
                del self.aliases[name]
                self._copy(source, name, name)
        self.calls += backward

    def _copy(self, source: str, target: str, like: str) -> None:
        self.call(Pointwise(self.batch, *self.shape(like), dtype=self.dtype(like)), (source,), (target,))

    # ---- backward

    def backward(self) -> None:
        """Write the backward pass of all layers, from the losses, or the gradients that are given, on. Where gradients meet they
        are added in the order in which the graph's layers read, whatever the plan."""
        self.phase = BACKWARD
        parts = self.parts = self._given_gradients() if self.mode.pulls else {}
        if not parts and not any(n.layer.is_loss for n in self.graph.nodes):
            what = "the graph has no loss; add g.loss(...)" if self.mode is Mode.STEP else "no output depends on what is wanted"
            raise ArgumentError(f"train={self.mode.given!r}: {what}, or plan with train=False")
        for node in reversed(self.graph.nodes):
            self.node = node
            if node.layer.is_loss:
                gradient: str | None = "" if self.mode is Mode.STEP else None
            else:
                gradient = self._meet(node.made, parts.pop(node.made, []))
            if gradient is None or node.made not in self.wanted:
                continue
            gradients = node.layer.backward(self, node, gradient)
            for name, part in zip(node.reads, gradients, strict=True):
                if part is not None and name in self.wanted:
                    parts.setdefault(name, []).append(part)
        self.node = None

    def _given_gradients(self) -> dict[str, list[str]]:
        """The gradients of the outputs that depend on what is wanted: inputs."""
        gradients = {}
        for name in self.graph.outputs:
            if name in self.wanted:
                shape = (self.batch, *self.graph.shapes[name])
                gradients[name] = [self.given(given_gradient(name), shape, self.dtype(name), Role.INPUT, per_sample=True)]
        return gradients

    def gradients(self) -> dict[str, str]:
        """Write what makes the gradients of inputs outputs, each a tensor of its own, and name them."""
        gradients: dict[str, str] = {}
        for name in (n for n in self.graph.inputs if n in self.asked):
            gradient = self._meet(name, self.parts.pop(name, []))
            if gradient is None:
                continue
            if gradient in gradients.values() or self.tensors[gradient].role is Role.INPUT:
                self._copy(gradient, f"d.{name} of its own", name)
                gradient = f"d.{name} of its own"
            gradients[name] = gradient
        return gradients

    def _meet(self, tensor: str, parts: list[str]) -> str | None:
        """The gradient of a tensor, from those of its readers: the last reader's comes first."""
        if not parts:
            return None
        total = parts[0]
        for i, part in enumerate(parts[1:], 1):
            shape = self.shape(tensor)
            op = Pointwise(self.batch, *shape, add=full(shape), dtype=self.dtype(tensor))
            name = f"d.{tensor}" if i == len(parts) - 1 else f"d.{tensor}+{i}"
            if not self._summed_by_its_maker(op, total, part, name):
                self.call(op, (total, part), (name,), over=((total, name), (part, name)))
            total = name
        return total

    def _summed_by_its_maker(self, op: Op, total: str, part: str, name: str) -> bool:
        """Let the call that makes a gradient add it to those before it, in place, if none but the sum reads it: it never is there
        as a whole. op: the sum."""
        at = next((i for i, call in enumerate(self.calls) if part in call.makes), -1)
        before = next((i for i, call in enumerate(self.calls) if total in call.makes), -1)  # -1: it is given
        if at < 0:  # it is given
            return False
        maker = self.calls[at]
        shared = part == total or any(part in some for some in self.parts.values()) or any(part in c.reads for c in self.calls)
        if shared or not before < at or maker.makes != (part,) or maker.phase != BACKWARD or maker.along != ("n", 1):
            return False
        try:
            nodes = Node(maker.op, maker.reads, maker.makes), Node(op, (part, total), (name,))  # a chain: its sum may be split
            both, reads, makes = joined(nodes, (name,))
        except ShapeError:  # the sum sees other axes
            return False
        self.tensors[name] = replace(self.tensors.pop(part), name=name)
        self.calls[at] = replace(maker, op=both, reads=reads, makes=makes, over=((total, name),))
        return True

    def gradient_name(self, name: str) -> str:
        """A new name for a gradient of a tensor that several layers, or the caller, may read."""
        base = f"d.{name}" if self.readers[name] < 2 else f"d.{name}/{self.node.name}"
        return base if base not in self.tensors else f"{base}'"

    def sink(self, parameter: str) -> str:
        """The gradient of a parameter."""
        return f"d.{parameter}"

    # ---- sizes

    def shape(self, name: str) -> tuple[int, tuple[int, ...]]:
        """Channels and extents of a tensor of the graph; a vector has one position."""
        k, *extent = self.graph.shapes[name] or (1,)
        return k, tuple(extent) or (1,)

    def dtype(self, name: str) -> str:
        """Dtype of a tensor of the graph."""
        return self.graph.dtypes[name]


def full(shape: tuple[int, tuple[int, ...]]) -> str:
    """The letters of all axes of an n x k x extent tensor."""
    return "nk" + IN[len(shape[1])]


def _shape(operand: Operand, per_sample: bool, batch: int) -> tuple[int, ...]:
    """The shape of a tensor as its maker sees it, with the batch in front."""
    if not per_sample or operand.shape[0] == batch:
        return operand.shape
    count = 1
    for extent in operand.shape:
        count *= extent
    return batch, count // batch


def needed(calls: Iterable[Call], tensors: Iterable[str]) -> list[Call]:
    """The calls that some tensors need, in order."""
    sought, makers = set(tensors), []
    for call in reversed(list(calls)):
        if sought & set(call.makes):
            sought |= set(call.reads)
            makers.append(call)
    return makers[::-1]

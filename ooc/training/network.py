"""The network of a run: a graph with its losses, and what it takes and learns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from ooc.errors import ArgumentError, OocError, ShapeError, UnsupportedError
from ooc.ir.op import numpy_dtype
from ooc.networks import Graph, models
from ooc.networks.layers.base import Layer
from ooc.networks.layers.loss import losses_of
from ooc.onnx import load
from ooc.training.config import LossTable, TrainingConfig
from ooc.training.samples import Pairing, Shape

CLASSES = "i64"  # dtype of labels; what values are compared with has that of the network


class TrainedNetwork(NamedTuple):
    """A network to train.

    Fields:
        graph: with its losses.
        output: the tensor that metrics are of.
        patch: extents of space that it takes.
        pairing: what it takes and learns.
    """

    graph: Graph
    output: str
    patch: Shape
    pairing: Pairing

    @classmethod
    def of(cls, config: TrainingConfig, graph: Graph | None) -> TrainedNetwork:
        """The network of a run. Raises ArgumentError, UnsupportedError."""
        output = config.model.output if config.model else ""
        whole, output = learning(_graph(config) if graph is None else graph, config.losses, output)
        if len(whole.inputs) != 1:
            raise UnsupportedError(f"[model] {whole.name}: expected a network with one input, it has {', '.join(whole.inputs)}")
        ((channels, *patch),) = whole.inputs.values()
        if config.data.patch not in ((), tuple(patch)):
            raise ArgumentError(f"[data] patch: the network takes {patch}, got {list(config.data.patch)}")
        labels, store = compared(whole)
        if not patch or {tuple(shape[-len(patch) :]) for shape in (labels, whole.shapes[output])} != {tuple(patch)}:
            raise UnsupportedError(
                f"[model] {whole.name}: its labels have {list(labels)}, the patches {patch}: files give a label for every "
                "position; use Graph.plan and a loop of your own"
            )
        (dtype,) = (numpy_dtype(whole.dtypes[name]) for name in whole.inputs)
        targets = 0 if store == CLASSES else labels[0]
        read = [(layer, whole.shapes[x][0]) for layer, x, _ in losses_of(whole).values()]
        known = min(columns(whole.shapes[output][0]), *(layer.classes(k) for layer, k in read))
        pairing = Pairing(channels, len(patch), targets, known, dtype, numpy_dtype(store))
        return cls(whole, output, tuple(patch), pairing)

    @property
    def classes(self) -> int:
        """How many classes the output tells apart."""
        return columns(self.graph.shapes[self.output][0])


def columns(channels: int) -> int:
    """Classes of logits: one channel tells two apart, by its sigmoid."""
    return max(2, channels)


def compared(graph: Graph) -> tuple[Shape, str]:
    """What all losses of a graph compare: its shape per sample, and its dtype, CLASSES of labels. Raises ArgumentError where they
    do not compare the same."""
    losses = losses_of(graph).items()
    each = {name: layer.target(graph.shapes[x], graph.dtypes[x]) for name, (layer, x, _) in losses}
    if len({*each.values()}) > 1:
        kinds = {name: "labels" if store == CLASSES else f"{store} values" for name, (_, store) in each.items()}
        told = ", ".join(f"{name} {kinds[name]} of {list(shape)}" for name, (shape, _) in each.items())
        raise ArgumentError(f"[[loss]]: expected losses of the same labels or values, which files give; got {told}")
    return next(iter(each.values()))


def _graph(config: TrainingConfig) -> Graph:
    """The graph of [model]. Raises OocError."""
    model, patch = config.model, config.data.patch
    assert model is not None
    try:
        if model.name:
            return models.named(model.name, **model.sizes)
        if model.graph:
            return Graph.from_json(config.base / model.graph)
        shape = (config.data.batch, model.channels or 1, *patch) if patch else None
        return load(config.base / model.onnx, shape)
    except TypeError as error:  # a size that this network has not
        raise ArgumentError(f"[model] {model.name}: {error}") from None
    except (ShapeError, UnsupportedError) as error:
        raise type(error)(f"[model] {error}") from None


def learning(graph: Graph, losses: Sequence[LossTable], output: str) -> tuple[Graph, str]:
    """A graph with the losses that are told, in place of its own, or else its own; without any, cross-entropy. Also the tensor
    that metrics are of, which is one of its outputs. Raises ArgumentError."""
    present = [node for node in graph.nodes if not node.shape]
    output = output or (present[0].reads[0] if present else graph.outputs[0] if len(graph.outputs) == 1 else "")
    if output not in graph.shapes:
        told = f"no tensor {output!r}" if output else f"{len(graph.outputs)} outputs; name one of them"
        raise ArgumentError(f"[model] output: {graph.name} has {told}")
    if present and not losses and output in graph.outputs:
        return graph, output
    graph = copied(graph, without_losses=bool(losses))
    for i, loss in enumerate(losses or (() if present else (LossTable("cross_entropy"),)), 1):
        try:
            graph.loss(loss.kind, loss.output or output, **loss.keywords)
        except TypeError as error:
            raise ArgumentError(f"[[loss {i}]]: {error}") from None
        except OocError as error:
            raise type(error)(f"[[loss {i}]]: {error}") from None
    graph.output(output)
    return graph, output


def copied(graph: Graph, without_losses: bool) -> Graph:
    """The same graph, which takes more layers."""
    copy = Graph(graph.name)
    for name, shape in graph.inputs.items():
        copy.input(name, shape, graph.dtypes[name])
    for node in graph.nodes:
        if node.shape or not without_losses:
            copy.add_layer(cast(Layer, node.layer), node.reads, node.name)
    copy.output(*graph.outputs)
    copy.begin_with(graph.values)
    return copy

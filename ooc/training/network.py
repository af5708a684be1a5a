"""The network of a run: a graph with its losses, and what it takes and learns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from ooc.errors import ArgumentError, OocError, ShapeError, UnsupportedError
from ooc.ir.op import numpy_dtype
from ooc.networks import Graph, models
from ooc.networks.layers.base import Layer
from ooc.networks.layers.loss import LABELS
from ooc.networks.tensors import Mode
from ooc.networks.writer import network
from ooc.onnx import load
from ooc.training.config import LossTable, TrainingConfig
from ooc.training.samples import Pairing, Shape


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
        labels = network(whole, 1, Mode.STEP).tensors[LABELS].shape[1:]
        targets = labels[0] if len(labels) > len(patch) else 0
        if not patch or {tuple(shape[-len(patch) :]) for shape in (labels, whole.shapes[output])} != {tuple(patch)}:
            raise UnsupportedError(
                f"[model] {whole.name}: its labels have {list(labels)}, the patches {patch}: files give a label for every "
                "position; use Graph.plan and a loop of your own"
            )
        (dtype,) = (numpy_dtype(whole.dtypes[name]) for name in whole.inputs)
        return cls(whole, output, tuple(patch), Pairing(channels, len(patch), targets, whole.shapes[output][0], dtype))


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

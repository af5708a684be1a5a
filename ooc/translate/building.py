"""Tensors of a graph as other libraries have them, and what one operator of theirs is built with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from ooc.errors import UnsupportedError
from ooc.networks import Graph
from ooc.networks.layer_graph import RESERVED
from ooc.networks.layers.base import Layer

Shape = tuple[int, ...]


class GraphTensor(NamedTuple):
    """A tensor of the graph.

    Fields:
        name: in the graph.
        shape: with the batch, as the other library has it.
        dtype: as the graph has it.
    """

    name: str
    shape: Shape
    dtype: str


Translating = TypeVar("Translating", bound=Callable[..., Any])


def registering(table: dict[str, Any]) -> Callable[..., Callable[[Translating], Translating]]:
    """A decorator with arguments: the function translates operators of these names."""

    def operator(*names: str) -> Callable[[Translating], Translating]:
        def add(function: Translating) -> Translating:
            table.update(dict.fromkeys(names, function))
            return function

        return add

    return operator


class Site:
    """A graph in the making.

    Fields:
        graph: to which layers are added.
        batch: samples; 0: no input is known yet.
        orders: of what was permuted: from what, and how.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph, self.batch = graph, 0
        self.orders: dict[str, tuple[GraphTensor, Shape]] = {}

    def free(self, name: str) -> bool:
        """Whether a tensor of the graph may have this name."""
        return bool(name) and name not in self.graph.shapes and name not in RESERVED and not name.startswith("d.")

    def of(self, name: str) -> GraphTensor:
        """A tensor of the graph as one of the other library's."""
        return GraphTensor(name, (self.batch, *self.graph.shapes[name]), self.graph.dtypes[name])


class Building:
    """One operator while it is translated.

    Parameters:
        site: the graph in the making.
        label: the operator as errors name it.
        output: the name of what its last layer makes.
        remedy: what a user may do where it cannot be translated.
    """

    def __init__(self, site: Site, label: str, output: str, remedy: str) -> None:
        self.site, self.graph, self.label, self.made, self.remedy = site, site.graph, label, output, remedy

    def refuse(self, why: str, remedy: str = "") -> UnsupportedError:
        """The error for what ooc has not."""
        return UnsupportedError(f"{self.label}: {why}; {remedy or self.remedy}")

    def add(self, x: GraphTensor | Sequence[GraphTensor], layer: Layer, last: bool = True) -> GraphTensor:
        """A layer more. last: it makes what the operator makes, and is named so."""
        reads = [x] if isinstance(x, GraphTensor) else list(x)
        name = self.made if last and self.site.free(self.made) else None
        return self.site.of(self.graph.add_layer(layer, [r.name for r in reads], name))


def spatial(building: Building, x: GraphTensor) -> Shape:
    """The spatial extents of a tensor that must have some."""
    if len(x.shape) < 3:
        raise building.refuse(f"a tensor of shape {x.shape} has no spatial axes")
    return x.shape[2:]

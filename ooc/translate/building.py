"""Tensors of a graph as other libraries have them, and what one operator of theirs is built with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ooc.errors import UnsupportedError
from ooc.networks import Graph
from ooc.networks.layer_graph import RESERVED
from ooc.networks.layers.base import Layer
from ooc.translate.tensors import MOST_AXES, AxisView
from ooc.translate.tensors import GraphTensor as GraphTensor
from ooc.translate.tensors import Shape as Shape


class Constant(NamedTuple):
    """A value that does not depend on the network's inputs: of a file, or of parameters and buffers.

    Fields:
        value: computes it of what the other library has computed; a file's does not look at that.
        shape: of it.
        number: the one value that it is, where that is known; else None.
        alike: whether all along the first axis is the same, as where something is repeated for each sample.
        fixed: whether the translation has computed it, so that no step moves it.
    """

    value: Callable[[Any], Any]
    shape: Shape
    number: float | None = None
    alike: bool = False
    fixed: bool = False

    def through(self, change: Callable[[Any], Any], shape: Shape | None = None) -> Constant:
        """What a function of its values makes; shape: of that, default the same."""
        return Constant(lambda values: change(self.value(values)), self.shape if shape is None else shape, fixed=self.fixed)

    def reshaped(self, shape: Shape) -> Constant:
        """The same values with other extents."""
        still_alike = self.alike and shape[:1] == self.shape[:1]
        return self.through(lambda values: values.reshape(shape), shape)._replace(number=self.number, alike=still_alike)


Operand = GraphTensor | Constant


class Bias(NamedTuple):
    """What is added to scores.

    Fields:
        added: broadcast as NumPy does.
        rows: what was multiplied from the left, as it was seen then.
    """

    added: Operand
    rows: GraphTensor


class Scores(NamedTuple):
    """A product of two tensors that waits for its reader, which may make attention of it.

    Fields:
        x, z: what is multiplied.
        alpha: by what the product is multiplied.
        biases: what is added to that, one after the other.
        soft: whether it is the softmax over the last axis.
    """

    x: GraphTensor
    z: GraphTensor
    alpha: float
    biases: tuple[Bias, ...] = ()
    soft: bool = False


def exact(values: Any) -> Any:
    """An array or a tensor of PyTorch in f64."""
    return values.astype(np.float64) if isinstance(values, np.ndarray) else values.double()


def floating(values: Any) -> Any:
    """An array or a tensor of PyTorch as it is, where it is of floating numbers; else in f64."""
    plain = values.dtype.kind == "f" if isinstance(values, np.ndarray) else values.is_floating_point()
    return values if plain else exact(values)


class FrozenNorm(NamedTuple):
    """A batch normalisation by running statistics: (x - mean) / sqrt(var + eps) * scale + shift, each one per channel; None: no
    scale, no shift."""

    scale: Constant | None
    shift: Constant | None
    mean: Constant
    var: Constant
    eps: float


Behind = TypeVar("Behind")
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
        displacement: how far positions of sampling lie from those of an even grid at most, see `ooc.Graph.grid_sample`; a number,
            or one for each spatial axis; (): anywhere.
        views: tensors that are only seen, by name.
        settled: those of them that are tensors of the graph, too.
        scores: products that wait, by name.
        multiplied: those of them that are tensors, too.
        shared: tensors of constants that several layers read, by what they are made of.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph, self.batch = graph, 0
        self.displacement: Shape = ()
        self.views: dict[str, AxisView] = {}
        self.settled: dict[str, GraphTensor] = {}
        self.scores: dict[str, Scores] = {}
        self.multiplied: dict[str, GraphTensor] = {}
        self.shared: dict[Any, GraphTensor] = {}
        self._names: dict[AxisView, str] = {}

    def free(self, name: str) -> bool:
        """Whether a tensor may have this name."""
        return self.unused(name) and name not in self.views and name not in self.scores

    def unused(self, name: str) -> bool:
        """Whether a tensor of the graph may have this name."""
        return bool(name) and name not in self.graph.shapes and name not in RESERVED and not name.startswith("d.")

    def view(self, x: GraphTensor) -> AxisView:
        """How a tensor is seen."""
        return self.views.get(x.name) or AxisView.of(x)

    def viewed(self, view: AxisView, name: str) -> GraphTensor:
        """A tensor that is only seen, under this name where it is free."""
        if view not in self._names:
            self._names[view] = name if self.free(name) else f"{view.source.name} seen as {len(self.views)}"
            self.views[self._names[view]] = view
        return GraphTensor(self._names[view], view.shape, view.source.dtype)

    def of(self, name: str) -> GraphTensor:
        """A tensor of the graph as one of the other library's."""
        return GraphTensor(name, (self.batch, *self.graph.shapes[name]), self.graph.dtypes[name])

    def parameter(self, name: str, value: Constant) -> None:
        """A parameter or statistic of the graph has this value."""
        raise NotImplementedError

    def full(self, value: float, shape: Shape = (1,)) -> Constant:
        """A number, so many times."""
        raise NotImplementedError

    def array(self, values: Any) -> Constant:
        """Numbers that the translation has computed, of NumPy."""
        raise NotImplementedError


class Building:
    """One operator while it is translated.

    Parameters:
        site: the graph in the making.
        label: the operator as errors name it.
        output: the name of what its last layer makes.
        remedy: what a user may do where it cannot be translated.

    Fields:
        folds: a batch normalisation behind a convolution becomes part of its filters.
    """

    folds = True

    def __init__(self, site: Site, label: str, output: str, remedy: str) -> None:
        self.site, self.graph, self.label, self.made, self.remedy = site, site.graph, label, output, remedy
        self.ended = False  # its last layer is there, with what is behind it taken in

    def refuse(self, why: str, remedy: str = "") -> UnsupportedError:
        """The error for what ooc has not."""
        return UnsupportedError(f"{self.label}: {why}; {remedy or self.remedy}")

    def add(
        self, x: GraphTensor | Sequence[GraphTensor], layer: Layer, last: bool = True, named: bool = True, name: str = ""
    ) -> GraphTensor:
        """A layer more. last: it makes what the operator makes, and is named so, unless that is seen with other axes (named).
        name: of another one."""
        reads = [self.settled(r) for r in ([x] if isinstance(x, GraphTensor) else x)]
        assert not self.ended, f"{self.label}: a {layer.kind} behind its last layer"
        self.ended = last
        return self._added(reads, layer, self.made if last and named else name)

    def _added(self, reads: Sequence[GraphTensor], layer: Layer, name: str) -> GraphTensor:
        known = [r.name for r in reads]
        return self.site.of(self.graph.add_layer(layer, known, name if self.site.unused(name) else None))

    def settled(self, x: GraphTensor) -> GraphTensor:
        """A tensor as one of the graph: what is only seen of another one is moved, once."""
        view = self.site.views.get(x.name)
        if view is None:
            return x
        if x.name not in self.site.settled:
            if not view.in_front or not 2 <= len(x.shape) <= MOST_AXES:
                raise self.refuse(f"a tensor of shape {x.shape}", "ooc computes on 2 to 5 axes, the batch in front")
            at, moves = view.source, view.moves()
            for i, layer in enumerate(moves):
                at = self._added([at], layer, x.name if i == len(moves) - 1 else "")
            self.site.settled[x.name] = at
        return self.site.settled[x.name]

    def layer(
        self, x: GraphTensor | Sequence[GraphTensor], layer: Layer, parameters: Mapping[str, Constant | None], last: bool = True,
        named: bool = True,
    ) -> GraphTensor:  # fmt: skip
        """A layer more, with values of its parameters and statistics."""
        y = self.add(x, layer, last, named)
        for key, value in parameters.items():
            if value is not None:
                self.site.parameter(f"{y.name}.{key}", value)
                if value.fixed:
                    self.site.graph.fix(f"{y.name}.{key}")
        return y

    def beside(self, x: GraphTensor, values: Constant) -> Operand:
        """Values as they lie beside each sample of a tensor; a tensor where they differ from sample to sample."""
        rank = len(x.shape)
        wide = (1,) * (rank - len(values.shape)) + values.shape
        if len(wide) > rank and set(wide[:-rank]) == {1}:
            wide = wide[-rank:]
        if len(wide) > rank:
            raise self.refuse(f"a constant of shape {values.shape} beside a tensor of shape {x.shape}")
        return values.reshaped(wide[1:]) if wide[0] == 1 else self.for_each_sample(x, values.reshaped(wide))

    def differs(self, x: GraphTensor, values: Constant) -> bool:
        """Whether values beside a tensor may differ from sample to sample."""
        return len(values.shape) == len(x.shape) and values.shape[0] > 1 and self.site.view(x).in_front

    def for_each_sample(self, x: GraphTensor, values: Constant) -> Operand:
        """Values that may differ from sample to sample."""
        raise self.refuse(f"a constant of shape {values.shape} beside a tensor of shape {x.shape}")

    # ---- what is behind: the operator that alone reads what this one makes

    def activation(self) -> tuple[str, float]:
        """The activation behind and its coefficient, from now on part of this operator; identity where there is none."""
        return self._taken(self.activation_behind(), lambda behind: behind.as_activation()) or ("identity", 0.0)

    def norm(self) -> FrozenNorm | None:
        """The batch normalisation behind, from now on part of this operator."""
        return self._taken(self.norm_behind(), lambda behind: behind.as_norm()) if self.folds else None

    def _taken(self, behind: Building | None, reading: Callable[[Building], Behind | None]) -> Behind | None:
        if behind is None or (is_one := reading(behind)) is None:
            return None
        self.take_in(behind)
        return is_one

    def activation_behind(self) -> Building | None:
        """The operator behind, if it may be an activation."""
        return None

    def norm_behind(self) -> Building | None:
        """The operator behind, if it may be a batch normalisation."""
        return None

    def as_activation(self) -> tuple[str, float] | None:
        """The activation that this operator is, and its coefficient."""
        return None

    def as_norm(self) -> FrozenNorm | None:
        """The batch normalisation by running statistics that this operator is."""
        return None

    def take_in(self, behind: Any) -> None:
        """That operator is part of this one from now on."""
        raise NotImplementedError


def spatial(building: Building, x: GraphTensor) -> Shape:
    """The spatial extents of a tensor that must have some."""
    if len(x.shape) < 3:
        raise building.refuse(f"a tensor of shape {x.shape} has no spatial axes")
    return x.shape[2:]

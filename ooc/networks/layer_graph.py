"""A graph's layers on named tensors: what is checked when one is added, and what there is to see."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from ooc.api.arguments import as_int
from ooc.errors import ArgumentError, ShapeError, shown
from ooc.files.records import content, record, short, understood
from ooc.ir.op import DTYPES, INTEGERS, ITEM_BYTES, numpy_dtype
from ooc.networks import layers
from ooc.networks.calls import LayerNode
from ooc.networks.layers.base import Layer
from ooc.networks.tensors import Mode, Role, Weights
from ooc.networks.writer import network
from ooc.schedule.budget import show_bytes
from ooc.schedule.notebook import page

RESERVED = ("labels", "share", "draw", "rates")  # inputs that steps have of their own
MOST_LAYERS, MOST_VALUES = 1 << 17, 1 << 56  # of a graph, and of a tensor of one sample: more is no network
MOST_TEXT = 1 << 25  # characters of a graph as JSON


class LayerGraph:
    """Layers on named tensors, whoever adds them."""

    def __init__(self, name: str = "network") -> None:
        self.name = str(name)
        self.nodes: list[LayerNode] = []
        self.inputs: dict[str, tuple[int, ...]] = {}
        self.outputs: tuple[str, ...] = ()
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, str] = {}
        self.values: dict[str, Any] = {}  # of parameters and statistics, that sessions begin with
        self.fixed: set[str] = set()  # parameters that no step moves
        self._counts: dict[str, int] = {}  # layers of each kind
        self._kept: set[str] = set()  # names that layers without one do not get
        self._planned = False

    def keep(self, names: Iterable[str]) -> None:
        """Layers that are added without a name get none of these names."""
        self._kept.update(names)

    def input(self, name: str, shape: Sequence[int], dtype: str = "f32") -> str:
        """A tensor that is given in each step.

        Parameters:
            name: of the tensor.
            shape: per sample: (channels, spatial...), 1 to 3 spatial axes, or (channels,).
            dtype: "f32" (default), "f64", "f16" or "bf16"; "u8", "u16", "i16", "i32" or "b8", which
                `convert` alone reads.

        Returns:
            name: of the tensor.

        Raises:
            ShapeError: a shape with other than 1 to 4 positive extents, a name that is taken.
        """
        if dtype not in (*DTYPES, *INTEGERS):
            raise ArgumentError(f"input {name}: dtype: expected one of {', '.join((*DTYPES, *INTEGERS))}; got {dtype!r}")
        try:
            extents = tuple(as_int("shape", e) for e in shape)
        except TypeError:
            raise ShapeError(f"input {name}: expected a shape, got {shown(shape)}") from None
        if not 1 <= len(extents) <= 4 or min(extents) < 1:
            raise ShapeError(f"input {name}: expected (channels, spatial...) of 1 to 4 positive extents, got {extents}")
        self._take(name)
        self.inputs[name] = self.shapes[name] = extents
        self.dtypes[name] = dtype
        return name

    def begin_with(self, values: Mapping[str, Any]) -> None:
        """Values that sessions begin with, by the name of the parameter or statistic; `session(parameters=)` overrides them.

        Parameters:
            values: arrays of the shapes in `parameters`; kept, not copied, if they have the dtype.

        Raises:
            ShapeError: a name that is no parameter, another shape.
        """
        parameters = self.parameters
        for name, initial in values.items():
            if name not in parameters:
                raise ArgumentError(f"begin_with: no parameter {shown(name)}")
            array = np.asarray(initial)
            if array.shape != parameters[name].shape:
                raise ShapeError(f"begin_with: {name}: expected shape {parameters[name].shape}, got {array.shape}")
            self.values[name] = array.astype(numpy_dtype(parameters[name].dtype), copy=False)

    def fix(self, *names: str) -> None:
        """Parameters that no step moves, whatever the optimizer, and that have no gradients: constants of the network's, as
        buffers are in PyTorch. Raises ArgumentError for a name that is no parameter."""
        for name in names:
            if name not in self.parameters:
                raise ArgumentError(f"fix: no parameter {shown(name)}")
        self.fixed.update(names)

    def output(self, *xs: str) -> None:
        """Tensors that `session.forward` returns."""
        for x in xs:
            self._known(x, "output")
            if x in self.inputs:
                raise ArgumentError(f"output: {x} is an input; an output is what a layer makes, such as g.reshape({x!r}, ...)")
        self._open()
        self.outputs = tuple(dict.fromkeys((*self.outputs, *xs)))

    def add_layer(self, layer: Layer, reads: Sequence[str], name: str | None = None) -> str:
        """A layer of any kind of `ooc.networks.layers`. Raises ShapeError where it does not fit what it reads."""
        for x in reads:
            self._known(x, layer.kind)
            if not self.shapes[x] and not layer.without_channels:
                raise ShapeError(f"{layer.kind}: {x} is one number, without channels; it reads (1,) and more")
        if layer.takes not in (None, len(reads)):
            raise ArgumentError(f"{layer.kind}: reads {layer.takes} tensors, got {', '.join(reads) or 'none'}")
        y = name if name is not None else self._fresh(layer.kind)
        shape = layer.shape([self.shapes[x] for x in reads])
        if math.prod(shape) > MOST_VALUES or len(self.nodes) >= MOST_LAYERS:
            raise ShapeError(f"{layer.kind}: shape {_x(shape)} in layer {len(self.nodes)}: beyond what networks are made of")
        dtypes = {self.dtypes[x] for x in reads}
        if len(dtypes) > 1:
            raise ShapeError(f"{layer.kind}: reads {', '.join(sorted(dtypes))}; expected one dtype")
        made_dtype = layer.made_dtype(*dtypes)
        parameters = layer.parameters([self.shapes[x] for x in reads], made_dtype)
        self._take(y)
        node = LayerNode(y, layer, tuple(reads), shape, {f"{y}.{key}": weights for key, weights in parameters.items()})
        self.nodes.append(node)
        self._counts[layer.kind] = self._counts.get(layer.kind, 0) + 1
        self.shapes[y], self.dtypes[y] = shape, made_dtype
        return y

    def _open(self) -> None:
        if self._planned:
            raise ArgumentError(f"graph {self.name} was planned and takes no more layers; build another one")

    def _known(self, x: Any, what: str) -> None:
        if not isinstance(x, str) or x not in self.shapes:
            raise ArgumentError(f"{what}: {shown(x)} is no tensor of the graph {self.name}")

    def _take(self, name: Any) -> None:
        self._open()
        if not isinstance(name, str) or not name or name in self.shapes or name in RESERVED or name.startswith("d."):
            raise ArgumentError(
                f"name={shown(name)}: expected a text that no tensor of the graph has yet; gradients begin with 'd.', and "
                f"{', '.join(RESERVED)} are taken"
            )

    def _fresh(self, kind: str) -> str:
        number = 1 + self._counts.get(kind, 0)
        while f"{kind}{number}" in self.shapes or f"{kind}{number}" in self._kept:
            number += 1
        return f"{kind}{number}"

    def _rank(self, x: str, what: str) -> int:
        self._known(x, what)
        rank = len(self.shapes[x]) - 1
        if not rank:
            raise ShapeError(f"{what}: {x} has no spatial axes, its shape is {self.shapes[x]}")
        return rank

    # ---- what there is to see

    @property
    def parameters(self) -> dict[str, Weights]:
        """What the layers have of their own, by name."""
        return {name: weights for node in self.nodes for name, weights in node.parameters.items()}

    def table(self) -> str:
        """A line per layer: its name, kind, shape, bytes, parameters and operations per sample, and the sums."""
        each = self.flops
        rows = [("layer", "kind", "shape", "bytes", "parameters", "flops")]
        total = [0, 0, 0.0]
        for name, shape in self.inputs.items():
            rows.append((name, "input", _x(shape), show_bytes(self._bytes(name)), "", ""))
        for node in self.nodes:
            count = sum(math.prod(w.shape) for w in node.parameters.values() if w.role is Role.PARAMETER)
            flops = each[node.name]
            nbytes = 0 if node.layer.kind == "flatten" else self._bytes(node.name)
            total = [total[0] + nbytes, total[1] + count, total[2] + flops]
            rows.append((node.name, node.layer.kind, _x(node.shape), show_bytes(nbytes), f"{count:,}", f"{flops:.3g}"))
        rows.append(("total", "", "", show_bytes(total[0]), f"{total[1]:,}", f"{total[2]:.3g}"))
        widths = [max(len(row[i]) for row in rows) for i in range(6)]
        lines = ["  ".join(t.ljust(w) if i < 3 else t.rjust(w) for i, (t, w) in enumerate(zip(row, widths))) for row in rows]
        return "\n".join(line.rstrip() for line in lines)

    @property
    def flops(self) -> dict[str, float]:
        """Operations of each layer's forward pass, per sample."""
        flops = dict.fromkeys((n.name for n in self.nodes), 0.0)
        has_loss = any(n.layer.is_loss for n in self.nodes)
        for call in network(self, 1, Mode(has_loss)).forward:
            flops[call.layer] += float(call.op.flops(call.op.dims))
        return flops

    def _bytes(self, name: str) -> int:
        return math.prod(self.shapes[name]) * ITEM_BYTES[self.dtypes[name]]

    def __str__(self) -> str:
        """What `print` shows: the table."""
        return f"{self.name}\n{self.table()}"

    def __repr__(self) -> str:
        """One line: the name, how many layers, inputs and outputs."""
        return f"<Graph {self.name}: {len(self.nodes)} layers, {len(self.inputs)} inputs, {len(self.outputs)} outputs>"

    def _repr_html_(self) -> str:
        """What a notebook shows: what goes in and out, layers by kind, parameters."""
        kinds = Counter(node.layer.kind for node in self.nodes)
        sizes = sum(math.prod(w.shape) for w in self.parameters.values())
        tensors = {"in": list(self.inputs), "out": list(self.outputs)}
        facts = [(what, ", ".join(f"{t} {self.shapes[t]} {self.dtypes[t]}" for t in names)) for what, names in tensors.items()]
        layers = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        return page([("graph", self.name), *facts, ("layers", layers or "none"), ("parameters", f"{sizes:,}")])

    def to_json(self) -> str:
        """The graph as JSON text; `Graph.from_json` reads it back."""
        nodes = [{"name": n.name, "kind": n.layer.kind, "reads": n.reads, **n.layer.fields()} for n in self.nodes]
        inputs = [{"name": name, "shape": shape, "dtype": self.dtypes[name]} for name, shape in self.inputs.items()]
        fixed = {"fixed": sorted(self.fixed)} if self.fixed else {}
        return json.dumps({"name": self.name, "inputs": inputs, "layers": nodes, "outputs": self.outputs, **fixed})

    @classmethod
    def from_json(cls, text: str | Path) -> Self:
        """The graph that `to_json` wrote, as text or in a file. Raises ShapeError for any other, StoreError for no file."""
        with understood(f"graph: {text}" if isinstance(text, Path) else "graph", "not a graph written by to_json"):
            raw = json.loads(content(text, MOST_TEXT) if isinstance(text, Path) else short(text, MOST_TEXT))
            graph = cls(raw["name"])
            for one in raw["inputs"]:
                graph.input(one["name"], one["shape"], one["dtype"])
            for one in raw["layers"]:
                name, reads, layer = one.pop("name"), one.pop("reads"), layers.KINDS[one.pop("kind")]
                graph.add_layer(record(layer, one), reads, name)
            graph.output(*raw["outputs"])
            graph.fix(*raw.get("fixed", ()))
        return graph


def _x(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))

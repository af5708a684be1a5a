"""A network as its user builds it: layers on named tensors, shapes per sample."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from ooc.api.arguments import Padding, PerAxis, as_float, as_int, as_pads, per_axis
from ooc.api.layers import Activation, act_of
from ooc.errors import ArgumentError, ShapeError, shown
from ooc.files.records import content, record, short, understood
from ooc.ir.op import DTYPES, INTEGERS, ITEM_BYTES, numpy_dtype
from ooc.networks import layers
from ooc.networks.calls import LayerNode, network
from ooc.networks.layers.base import Layer
from ooc.networks.tensors import Mode, Role, Weights
from ooc.runtime.call_options import flag
from ooc.schedule.budget import show_bytes

RESERVED = ("labels", "share", "draw", "rates")  # inputs that steps have of their own
MOST_LAYERS, MOST_VALUES = 1 << 17, 1 << 56  # of a graph, and of a tensor of one sample: more is no network
MOST_TEXT = 1 << 25  # characters of a graph as JSON


class Built:
    """Layers on named tensors: what `ooc.Graph` is before it is planned."""

    def __init__(self, name: str = "network") -> None:
        self.name = str(name)
        self.nodes: list[LayerNode] = []
        self.inputs: dict[str, tuple[int, ...]] = {}
        self.outputs: tuple[str, ...] = ()
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, str] = {}
        self.values: dict[str, Any] = {}  # of parameters and statistics, that sessions begin with
        self._counts: dict[str, int] = {}  # layers of each kind
        self._planned = False

    # ---- building

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

    def conv(
        self, x: str, k: int, taps: PerAxis, *, stride: PerAxis = 1, padding: Padding = 0, dilation: PerAxis = 1,
        groups: int = 1, bias: bool = False, activation: str | Activation | None = None, name: str | None = None,
    ) -> str:  # fmt: skip
        """y = activation(conv(x, w) + b), as `ooc.conv`; w: k x c/groups x taps.

        Parameters:
            x: c x spatial.
            k: channels of the result.
            taps: extents of the filters; an int, or one per spatial axis.
            stride, padding, dilation, groups, activation: as `ooc.conv` takes them.
            bias: whether there is a b, k values; default False.
            name: of the layer and of the result; default None: one of its kind.

        Returns:
            name: of the result, k x spatial.
        """
        rank = self._rank(x, "conv")
        act, coef = act_of(activation)
        layer = layers.ConvLayer(
            as_int("k", k), per_axis("taps", taps, rank), per_axis("stride", stride, rank), as_pads("padding", padding, rank),
            per_axis("dilation", dilation, rank), as_int("groups", groups), flag("bias", bias), act, coef,
        )  # fmt: skip
        return self.add_layer(layer, (x,), name)

    def conv_transpose(
        self, x: str, k: int, taps: PerAxis, *, stride: PerAxis = 1, padding: Padding = 0, output_padding: PerAxis = 0,
        dilation: PerAxis = 1, groups: int = 1, bias: bool = False, activation: str | Activation | None = None,
        name: str | None = None,
    ) -> str:  # fmt: skip
        """y = activation(transposed conv(x, w) + b), as `ooc.conv_transpose`; w: channels of x, k/groups, taps.

        Parameters:
            x: c x spatial.
            k: channels of the result.
            taps, stride, padding, output_padding, dilation, groups, bias, activation: as `ooc.conv_transpose` takes them.
            name: of the layer and of the result; default None: one of its kind.

        Returns:
            name: of the result, k x spatial.
        """
        rank = self._rank(x, "conv_transpose")
        act, coef = act_of(activation)
        layer = layers.ConvTranspose(
            as_int("k", k), per_axis("taps", taps, rank), per_axis("stride", stride, rank), as_pads("padding", padding, rank),
            per_axis("output_padding", output_padding, rank), per_axis("dilation", dilation, rank), as_int("groups", groups),
            flag("bias", bias), act, coef,
        )  # fmt: skip
        return self.add_layer(layer, (x,), name)

    def linear(
        self, x: str, k: int, *, bias: bool = False, activation: str | Activation | None = None, name: str | None = None
    ) -> str:
        """y = activation(w @ x + b), as `ooc.linear`; w: k x c.

        Parameters:
            x: c values; flatten what has positions.
            k: values of the result.
            bias: whether there is a b, k values; default False.
            activation: as `ooc.linear` takes it.
            name: of the layer and of the result; default None: one of its kind.

        Returns:
            name: of the result, k values.
        """
        act, coef = act_of(activation)
        return self.add_layer(layers.Linear(as_int("k", k), flag("bias", bias), act, coef), (x,), name)

    def pool(
        self, x: str, window: PerAxis = 2, *, stride: PerAxis | None = None, padding: Padding = 0, how: str = "max",
        name: str | None = None,
    ) -> str:  # fmt: skip
        """Maximum or mean over windows, as `ooc.max_pool` and `ooc.avg_pool`.

        Parameters:
            x: c x spatial.
            window, stride, padding: as `ooc.max_pool` takes them; padding may be pairs (before, after).
            how: "max" (default), "average" (padding counts as zeros) or "average_valid".
            name: of the layer and of the result; default None: one of its kind.

        Returns:
            name: of the result, c x spatial.
        """
        rank = self._rank(x, "pool")
        windows = per_axis("window", window, rank)
        strides = windows if stride is None else per_axis("stride", stride, rank)
        return self.add_layer(layers.PoolLayer(how, windows, strides, as_pads("padding", padding, rank)), (x,), name)

    def global_pool(self, x: str, *, how: str = "average", name: str | None = None) -> str:
        """Mean (how="average", default) or maximum (how="max") over all positions of x: one value per channel."""
        return self.add_layer(layers.GlobalPool(how), (x,), name)

    def lrn(
        self, x: str, size: int = 5, *, alpha: float = 1e-4, beta: float = 0.75, base: float = 2.0, name: str | None = None
    ) -> str:
        """Local response normalisation across channels, as `ooc.lrn`.

        Parameters:
            x: c x spatial.
            size, alpha, beta, base: as `ooc.lrn` takes them.
            name: of the layer and of the result; default None: one of its kind.

        Returns:
            name: of the result, of the shape of x.
        """
        layer = layers.LrnLayer(as_int("size", size), as_float("alpha", alpha), as_float("beta", beta), as_float("base", base))
        return self.add_layer(layer, (x,), name)

    def batch_norm(
        self, x: str, *, eps: float = 1e-5, momentum: float = 0.1, activation: str | Activation | None = None,
        name: str | None = None,
    ) -> str:  # fmt: skip
        """y = activation((x - mean) / sqrt(var + eps) * scale + b), statistics over the batch and positions, in inference those
        that have run with the training steps: running = (1 - momentum) * running + momentum * batch's, as `ooc.batch_norm`.

        Parameters:
            x: c x spatial, or c values.
            eps, momentum, activation: as `ooc.batch_norm` takes them.
            name: of the layer and of the result; default None: one of its kind.

        Returns:
            name: of the result, of the shape of x.
        """
        act, coef = act_of(activation)
        return self.add_layer(layers.BatchNormLayer(as_float("eps", eps), as_float("momentum", momentum), act, coef), (x,), name)

    def instance_norm(
        self, x: str, *, eps: float = 1e-5, activation: str | Activation | None = None, name: str | None = None
    ) -> str:
        """As `batch_norm`, with statistics over the positions of each channel of each sample; none run."""
        act, coef = act_of(activation)
        return self.add_layer(layers.GroupNorm(0, as_float("eps", eps), act, coef), (x,), name)

    def group_norm(
        self, x: str, groups: int, *, eps: float = 1e-5, activation: str | Activation | None = None, name: str | None = None
    ) -> str:
        """As `instance_norm`, with statistics over the positions of `groups` groups of channels."""
        act, coef = act_of(activation)
        return self.add_layer(layers.GroupNorm(as_int("groups", groups), as_float("eps", eps), act, coef), (x,), name)

    def add(
        self, x: str, z: str, *, beta: float = 1.0, activation: str | Activation | None = None, name: str | None = None
    ) -> str:
        """y = activation(x + beta * z), extents of 1 repeated; gradients where both have one shape and beta is 1."""
        return self.add_layer(layers.Add(*act_of(activation), as_float("beta", beta)), (x, z), name)

    def multiply(self, x: str, z: str, *, activation: str | Activation | None = None, name: str | None = None) -> str:
        """y = activation(x * z); z has the shape of x, or 1 where its values are repeated; or one value per channel alone."""
        return self.add_layer(layers.MultiplyLayer(*act_of(activation)), (x, z), name)

    def concat(self, *xs: str, name: str | None = None) -> str:
        """Tensors one after the other along the channels."""
        return self.add_layer(layers.ConcatLayer(), xs, name)

    def crop(self, x: str, cut: Padding, *, name: str | None = None) -> str:
        """x without `cut` positions at the ends of each spatial axis: an int, one per axis, or a pair (before, after) each."""
        pads = as_pads("cut", cut, self._rank(x, "crop"))
        return self.add_layer(layers.Pad(tuple((-a, -b) for a, b in pads)), (x,), name)

    def pad(self, x: str, padding: Padding, *, name: str | None = None) -> str:
        """x with zeros around: an int, one per spatial axis, or a pair (before, after) per axis."""
        return self.add_layer(layers.Pad(as_pads("padding", padding, self._rank(x, "pad"))), (x,), name)

    def dropout(self, x: str, rate: float = 0.5, *, name: str | None = None) -> str:
        """x with each value dropped with probability `rate`, others divided by 1 - rate; x itself in inference. What is dropped
        follows from the session's seed, the step, the layer's name and the index alone."""
        return self.add_layer(layers.DropoutLayer(as_float("rate", rate)), (x,), name)

    def upsample(
        self, x: str, size: PerAxis | None = None, *, factor: PerAxis | None = None, how: str = "nearest", name: str | None = None
    ) -> str:
        """x resized, as `ooc.upsample`: to extents `size`, or by whole factors; how: "nearest" (default), "linear", "aligned"."""
        rank = self._rank(x, "upsample")
        if (size is None) == (factor is None):
            raise ArgumentError("upsample: expected size= or factor=, one of them")
        if size is not None:
            extents = per_axis("size", size, rank)
        else:
            factors = per_axis("factor", factor, rank)  # type: ignore[arg-type]
            extents = tuple(e * f for e, f in zip(self.shapes[x][1:], factors, strict=True))
        return self.add_layer(layers.UpsampleLayer(how, extents), (x,), name)

    def activation(self, x: str, how: str | Activation, coef: float | None = None, *, name: str | None = None) -> str:
        """activation(x): one of `ooc.activation`'s, with its coef."""
        return self.add_layer(layers.Act(*act_of(how, "how", coef)), (x,), name)

    def function(self, x: str, how: str, a: float = 0.0, b: float = 0.0, *, name: str | None = None) -> str:
        """y = f(x): clip (to a..b), hard_sigmoid (a * x + b), hard_swish, silu, gelu, gelu_tanh, erf,
        reciprocal, softplus, above (1 where x > a, else 0); see `ooc.ops.function`."""
        return self.add_layer(layers.FunctionLayer(how, as_float("a", a), as_float("b", b)), (x,), name)

    def affine(
        self, x: str, how: str, values: Any, *, alpha: float = 1.0, activation: str | Activation | None = None,
        name: str | None = None,
    ) -> str:  # fmt: skip
        """y = activation(alpha * x + values) or activation(x * values); the values are a parameter, that training moves.

        Parameters:
            x: c x spatial, or c values.
            how: "shift" or "scale".
            values: an array of the shape of x, or with 1 where a value is repeated.
            alpha: of a shift; default 1.
            activation: as `ooc.conv` takes it.
            name: of the layer and of the result; default None: one of its kind.

        Returns:
            name: of the result, of the shape of x.
        """
        array = np.asarray(values, np.float64)
        layer = layers.Affine(how, array.shape, as_float("alpha", alpha), *act_of(activation))
        y = self.add_layer(layer, (x,), name)
        self.begin_with({f"{y}.value": array})
        return y

    def convert(self, x: str, *, scale: float = 1.0, offset: float = 0.0, dtype: str = "f32", name: str | None = None) -> str:
        """x, an input of integers, as floating numbers: x * scale + offset, in `dtype`; without a gradient."""
        return self.add_layer(layers.Convert(as_float("scale", scale), as_float("offset", offset), dtype), (x,), name)

    def round(self, x: str, to: str, *, name: str | None = None) -> str:
        """x as integers of a type (u8, u16, i16, i32, b8): the nearest, within its range; without a gradient."""
        return self.add_layer(layers.Round(to), (x,), name)

    def argmax(self, x: str, to: str = "u8", *, name: str | None = None) -> str:
        """Which channel of x is the largest at every position, one channel of integers of a type; without a gradient."""
        return self.add_layer(layers.ArgMaxLayer(to), (x,), name)

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

    def softmax(self, x: str, *, log: bool = False, name: str | None = None) -> str:
        """Softmax over the channels, or its logarithm."""
        return self.add_layer(layers.Softmax("log" if flag("log", log) else "plain"), (x,), name)

    def reshape(self, x: str, size: Sequence[int], *, name: str | None = None) -> str:
        """The values of a sample with other extents, channels first: another name for the same bytes."""
        return self.add_layer(layers.Reshape(tuple(as_int("size", e) for e in size)), (x,), name)

    def permute(self, x: str, order: Sequence[int], *, name: str | None = None) -> str:
        """Channels and spatial axes in another order: axis i of the result is axis order[i] of x."""
        return self.add_layer(layers.PermuteLayer(tuple(as_int("order", e) for e in order)), (x,), name)

    def depth_to_space(self, x: str, block: int, *, how: str = "crd", name: str | None = None) -> str:
        """Channels spread over blocks of `block` positions per spatial axis: how="crd" (default) as PyTorch's pixel_shuffle,
        "dcr" as TensorFlow."""
        return self.add_layer(layers.DepthToSpace(as_int("block", block), how), (x,), name)

    def flatten(self, x: str, *, name: str | None = None) -> str:
        """All values of a sample as one axis: another name for the same bytes."""
        return self.add_layer(layers.Flatten(), (x,), name)

    def loss(self, how: str, logits: str, *, name: str | None = None) -> str:
        """The loss: "cross_entropy" of the channels of the logits and a label per position, the mean over positions with a label.

        Parameters:
            how: "cross_entropy".
            logits: c x spatial, or c values.
            name: of the loss; default None: "loss".

        Returns:
            name: of the loss; its labels are the input "labels".
        """
        if how != "cross_entropy":
            raise ArgumentError(f"loss: expected 'cross_entropy', got {shown(how)}")
        if any(n.layer.kind == "cross_entropy" for n in self.nodes):
            raise ArgumentError(f"loss: the graph {self.name} has a loss already")
        return self.add_layer(layers.CrossEntropyLoss(), (logits,), name or "loss")

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
        while f"{kind}{number}" in self.shapes:
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
        has_loss = any(n.layer.kind == "cross_entropy" for n in self.nodes)
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

    def to_json(self) -> str:
        """The graph as JSON text; `Graph.from_json` reads it back."""
        nodes = [{"name": n.name, "kind": n.layer.kind, "reads": n.reads, **n.layer.fields()} for n in self.nodes]
        inputs = [{"name": name, "shape": shape, "dtype": self.dtypes[name]} for name, shape in self.inputs.items()]
        return json.dumps({"name": self.name, "inputs": inputs, "layers": nodes, "outputs": self.outputs})

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
        return graph


def _x(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))

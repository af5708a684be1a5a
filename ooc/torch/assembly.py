"""A module of PyTorch in the making: calls in a torch.fx graph, and the modules that hold parameters."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.fx import GraphModule, Node

from ooc.errors import UnsupportedError
from ooc.ir.op import compute_dtype, numpy_dtype
from ooc.networks.calls import LayerNode
from ooc.networks.layer_graph import LayerGraph
from ooc.torch.translator import DTYPES
from ooc.translate.building import Shape, registering
from ooc.translate.leaving import Leaving, refusal, wide

INTEGERS = {"u8": torch.uint8, "u16": torch.uint16, "i16": torch.int16, "i32": torch.int32, "b8": torch.bool}
GLOBALS = ("torch", "operator", "math", "inf", "nan", "device", "NoneType", "fx_pytree", "pytree")  # of that code
TYPES = {name: dtype for dtype, name in DTYPES.items()} | INTEGERS


def word(text: str) -> str:
    """A name as Python code may have it: torch.fx makes code of names, and these may be a stranger's."""
    plain = re.sub(r"\W", "_", text, flags=re.ASCII) or "_"
    return f"{plain}_" if keyword.iskeyword(plain) or plain == "self" else plain


def variable(text: str) -> str:
    """A name as an argument may have it, beside all that the code of torch.fx reads."""
    plain = word(text) if word(text).isidentifier() else f"x_{word(text)}"
    return f"{plain}_" if hasattr(builtins, plain) or plain in GLOBALS else plain


def tensor_of(values: Any, dtype: str) -> torch.Tensor:
    """A copy of an array, in a dtype."""
    array = np.array(values, numpy_dtype(dtype))
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16) if dtype == "bf16" else torch.from_numpy(array)


class Assembly:
    """The module of a graph.

    Parameters:
        graph: that is exported.
        leaving: what of it.
    """

    def __init__(self, graph: LayerGraph, leaving: Leaving) -> None:
        self.graph, self.leaving = graph, leaving
        self.root, self.calls = GraphModule(torch.nn.Module(), torch.fx.Graph()), torch.fx.Graph()
        self.values: dict[str, Node] = {}
        for x in leaving.inputs:
            name = variable(x)
            while any(name == node.target for node in self.values.values()):
                name = f"{name}_"
            self.values[x] = self.calls.placeholder(name)

    def module(self) -> GraphModule:
        """The module, in evaluation."""
        results = {x: self.values[x] for x in self.leaving.outputs}
        self.calls.output(results if len(results) > 1 else next(iter(results.values())))
        self.calls.lint()
        return GraphModule(self.root, self.calls, variable(self.graph.name)).eval()

    def place(self, name: str, module: torch.nn.Module) -> str:
        """Put a module under the name of a layer, whose dots lead into modules; where it is, which is another name where that one
        means something else."""
        *path, last = map(word, name.split("."))
        parent, steps = self.root, list[str]()
        for step in path:
            while hasattr(parent, step) and not isinstance(getattr(parent, step), torch.nn.Module):
                step += "_"
            if not hasattr(parent, step):
                parent.add_module(step, torch.nn.Module())
            parent = getattr(parent, step)
            steps.append(step)
        while hasattr(parent, last):
            last += "_"
        parent.add_module(last, module)
        return ".".join([*steps, last])


class TorchLayer:
    """A layer while it becomes calls.

    Parameters:
        assembly: the module in the making.
        node: the layer.

    Fields:
        layer: what it computes.
        x: the first tensor that it reads.
        dtype: of what it reads.
        rank: how many axes a sample of its result has.
    """

    def __init__(self, assembly: Assembly, node: LayerNode) -> None:
        self.assembly, self.node = assembly, node
        self.layer: Any = node.layer
        self.rank = len(node.shape)
        self.dtype = assembly.graph.dtypes[next(iter(node.reads), node.name)]

    @property
    def x(self) -> Node:
        """The first tensor that it reads."""
        return self.assembly.values[self.node.reads[0]]

    def refuse(self, why: str) -> UnsupportedError:
        """The error for what PyTorch has not."""
        return refusal(self.node, "PyTorch", why)

    def shape(self, i: int = 0) -> Shape:
        """Of a tensor that it reads, per sample."""
        return self.assembly.graph.shapes[self.node.reads[i]]

    @property
    def extent(self) -> Shape:
        """The spatial extents of what it reads."""
        return self.shape()[1:]

    def call(self, function: Callable[..., Any], *args: Any, **keywords: Any) -> Node:
        """A call more."""
        return self._node("call_function", function, args, keywords)

    def to(self, x: Node, dtype: str) -> Node:
        """A tensor in another dtype."""
        return self._node("call_method", "to", (x, TYPES[dtype]), {})

    def expanded(self, x: Node, *size: Any) -> Node:
        """A tensor with extents of 1 repeated; -1: as it is."""
        return self._node("call_method", "expand", (x, *size), {})

    def samples(self, x: Node) -> Node:
        """How many samples a tensor has."""
        return self._node("call_method", "size", (x, 0), {})

    def run(self, module: torch.nn.Module, x: Node) -> Node:
        """A module more, under the layer's name, and what it makes."""
        return self._node("call_module", self.assembly.place(self.node.name, module), (x,), {})

    def hold(self, module: torch.nn.Module, *keys: str) -> list[Node]:
        """A module more that is not called: parameters and buffers of it."""
        target = self.assembly.place(self.node.name, module)
        return [self._node("get_attr", f"{target}.{key}", (), {}) for key in keys]

    def table(self, values: Any) -> Node:
        """An array that is no part of the state: integers, or numbers in the layer's dtype."""
        array = np.asarray(values)
        holder = torch.nn.Module()
        tensor = torch.from_numpy(array.astype(np.int64)) if array.dtype.kind == "i" else tensor_of(array, self.dtype)
        holder.register_buffer("table", tensor, persistent=False)
        return self.hold(holder, "table")[0]

    def _node(self, kind: str, target: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Node:
        return self.assembly.calls.create_node(kind, target, args, keywords, word(self.node.name))

    def has(self, key: str) -> bool:
        """Whether the layer has a parameter of this short name."""
        return f"{self.node.name}.{key}" in self.assembly.leaving.values

    def weight(self, key: str, wide_type: bool = False) -> torch.Tensor:
        """A parameter or statistic. wide_type: it keeps f32 beside half types."""
        values = self.assembly.leaving.values[f"{self.node.name}.{key}"]
        return tensor_of(values, compute_dtype(self.dtype) if wide_type else self.dtype)

    def filled(self, module: torch.nn.Module, *, wide_type: bool = False, **keys: str) -> torch.nn.Module:
        """A module with the layer's parameters. keys: by the names that they have there."""
        for name, key in keys.items():
            if self.has(key):
                values = self.weight(key, wide_type)
                parameter = isinstance(getattr(module, name), torch.nn.Parameter)
                setattr(module, name, self.parameter(key, values) if parameter else values)
        return module

    def parameter(self, key: str, values: torch.Tensor) -> torch.nn.Parameter:
        """One of the layer's, which wants gradients unless it is fixed."""
        return torch.nn.Parameter(values, requires_grad=f"{self.node.name}.{key}" not in self.assembly.leaving.fixed)

    def beside(self, i: int) -> Node:
        """A tensor that it reads, with as many axes as its result."""
        x, shape = self.assembly.values[self.node.reads[i]], self.shape(i)
        return x if len(shape) == self.rank else self.reshaped(x, wide(shape, self.rank))

    def reshaped(self, x: Node, shape: Sequence[int]) -> Node:
        """A tensor with other extents, per sample."""
        return self.call(torch.reshape, x, (-1, *shape))


EXPORTS: dict[str, Callable[[TorchLayer], Node]] = {}  # by the kind of layer: writes its calls
exporter = registering(EXPORTS)  # function decorator: it exports layers of these kinds


def padded(context: TorchLayer, x: Node, pads: Sequence[tuple[int, int]], value: float = 0.0) -> Node:
    """Values around the last axes, or less of them."""
    flat = [p for pair in reversed(pads) for p in pair]
    return context.call(F.pad, x, flat, value=value) if any(flat) else x

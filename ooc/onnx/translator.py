"""Translating node by node: what each of the file's tensors is, constant or tensor of the graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ooc.errors import ArgumentError, DtypeError, OocError, ShapeError, StoreError, UnsupportedError
from ooc.files.records import understood
from ooc.networks import Graph
from ooc.onnx.folding import Folder
from ooc.onnx.layout import front
from ooc.translate.building import Building, GraphTensor, Shape, Site, registering
from ooc.translate.parts import permuted

Value = GraphTensor | np.ndarray[Any, Any] | None  # None: left out
Operator = Callable[["OnnxNode"], "Sequence[Value] | Value"]
OPERATORS: dict[str, Operator] = {}
operator = registering(OPERATORS)  # function decorator: it translates these operators


class OnnxTranslator(Site):
    """A graph in the making."""

    def __init__(self, graph: Graph, folder: Folder) -> None:
        super().__init__(graph)
        self.folder = folder
        self.values: dict[str, Value] = {"": None}
        self.uses: Counter[str] = Counter()
        self.next: dict[str, Any] = {}  # the one node that reads a tensor
        self.passed: set[str] = set()  # nodes that others have taken in, by what they make

    def constant(self, name: str, tensor: Any, folder: Path) -> None:
        """A constant of the file, perhaps kept outside it."""
        from onnx import numpy_helper

        if any("\0" in entry.value for entry in tensor.external_data):  # its end, to the library
            raise StoreError(f"constant {name}: cannot be read: it lies in a file with a zero byte in its name")
        try:
            self.values[name] = np.asarray(numpy_helper.to_array(tensor, str(folder)))
        except Exception as error:  # a damaged or hostile file: whatever the library says
            raise StoreError(f"constant {name}: cannot be read: {type(error).__name__}: {error}") from None

    def input(self, name: str, shape: Shape, dtype: str, begin: Callable[[Graph, str, Shape, str], str], last: bool) -> None:
        """An input, with the batch; begin: makes it, channels first. last: the file has them last."""
        if not 2 <= len(shape) <= 5:
            raise ShapeError(f"input {name}: expected batch, channels and up to 3 spatial axes, got {shape}")
        if self.batch not in (0, shape[0]):
            raise ShapeError(f"input {name}: a batch of {shape[0]} beside one of {self.batch}")
        self.batch = shape[0]
        taken = front(shape) if last else shape
        tensor = GraphTensor(begin(self.graph, name, taken[1:], dtype), taken, dtype)
        self.values[name] = permuted(self._turning(name), tensor, (*range(1, len(shape) - 1), 0)) if last else tensor

    def _turning(self, name: str) -> Building:
        """The exchange of axes that a file expects of a tensor, or makes."""
        return Building(self, f"tensor {name}", f"{name} turned", "export the network with channels first")

    def readers(self, nodes: Iterable[Any], outputs: Sequence[str]) -> None:
        """Note who reads what."""
        for node in nodes:
            for name in dict.fromkeys(node.input):
                self.uses[name] += 1
                self.next[name] = node
        self.uses.update(outputs)

    def only(self, name: str, *kinds: str) -> Any | None:
        """The node that alone reads a tensor, if it is of one of these operators and all else that it reads is known."""
        node = self.next.get(name)
        if node is None or self.uses[name] != 1 or node.op_type not in kinds:
            return None
        return node if all(i in self.values for i in node.input if i != name) else None

    def node(self, node: Any) -> None:
        """Translate a node, or compute it where all it reads is constant."""
        context = OnnxNode(self, node)
        if node.output[0] in self.passed:
            return
        missing = [i for i in node.input if i not in self.values]
        if missing:
            raise ArgumentError(f"{context.label}: reads {missing[0]}, which nothing before it makes: a cycle, or a damaged file")
        reads = {i: v for i in node.input if (v := self.values[i]) is not None}
        if not any(isinstance(v, GraphTensor) for v in reads.values()):
            self.values.update(self.folder.fold(node, reads, context.label))
            return
        translate = OPERATORS.get(node.op_type)
        if translate is None:
            raise context.refuse(f"ooc has no ONNX operator {node.op_type}")
        try:
            with understood(context.label):
                translation = translate(context)
        except (ShapeError, DtypeError) as error:
            raise _placed(error, context.label) from None
        outputs = (
            translation if isinstance(translation, (list, tuple)) and not isinstance(translation, GraphTensor) else [translation]
        )
        for name, value in zip(node.output, outputs, strict=False):
            self.values[name] = value
        for name in node.output[len(outputs) :]:
            if name and self.uses[name]:
                raise UnsupportedError(f"{context.label}: its output {name} is used, which ooc does not make")

    def output(self, name: str, last: bool = False) -> None:
        """A tensor that is wanted, under its name in the file. last: it has its channels last there, and they come in front."""
        value = self.values.get(name)
        if not isinstance(value, GraphTensor):
            raise UnsupportedError(f"output {name}: it is a constant at this size; nothing is left to compute")
        if last:
            rank = len(value.shape) - 1
            value = permuted(self._turning(name), value, (rank - 1, *range(rank - 1)))
        if value.name != name and self.free(name):
            from ooc.networks.layers import Reshape

            value = value._replace(name=self.graph.add_layer(Reshape(value.shape[1:]), (value.name,), name))
        self.graph.output(value.name)


def _placed(error: OocError, label: str) -> OocError:
    told = f"{error}"
    return error if told.startswith(label) else type(error)(f"{label}: {told}")


class OnnxNode(Building):
    """A node while it is translated: its inputs, its attributes, the graph."""

    def __init__(self, translator: OnnxTranslator, node: Any) -> None:
        from onnx import helper

        super().__init__(translator, label(node), node.output[0], "pass outputs= of a tensor before it")
        self.translator, self.op = translator, node
        self.attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        self.version = translator.folder.version

    # ---- what the node says

    def attribute(self, name: str, default: Any = None) -> Any:
        value = self.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else list(value) if isinstance(value, (tuple, list)) else value

    def value(self, i: int) -> Value:
        """An input; None where it was left out."""
        return self.translator.values[self.op.input[i]] if i < len(self.op.input) else None

    def tensor(self, i: int = 0) -> GraphTensor:
        """An input that is a tensor of the graph."""
        value = self.value(i)
        if not isinstance(value, GraphTensor):
            raise self.refuse(f"its input {i} is a constant", "swap its inputs")
        return value

    def constant(self, i: int, what: str) -> Any:
        """An input that is constant; None where it was left out."""
        value = self.value(i)
        if isinstance(value, GraphTensor):
            raise self.refuse(f"its {what} is computed by the network", "it must be a constant of the file")
        return value

    # ---- what it becomes

    def own(self, tensor: GraphTensor, **values: Any) -> None:
        """Values of the layer that makes a tensor."""
        self.graph.begin_with({f"{tensor.name}.{key}": array for key, array in values.items() if array is not None})

    def takes_in(self, *kinds: str) -> OnnxNode | None:
        """The node behind this one, if it alone reads what this makes: whoever asks makes what that would make."""
        node = self.translator.only(self.made, *kinds)
        return None if node is None else OnnxNode(self.translator, node)

    def take_in(self, behind: OnnxNode) -> None:
        """That node is part of this one from now on."""
        self.translator.passed.add(behind.made)
        self.made = behind.made

    def finish(self, tensor: GraphTensor) -> GraphTensor:
        """What the node makes, also under the name of those that it has taken in."""
        self.translator.values[self.made] = tensor
        return tensor


def label(node: Any) -> str:
    """A node as errors name it."""
    return f"node {node.name or (node.output[0] if node.output else '?')} ({node.op_type})"

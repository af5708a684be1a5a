"""Translating node by node: what each of the file's tensors is, constant or tensor of the graph."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ooc.errors import ArgumentError, DtypeError, OocError, ShapeError, StoreError, UnsupportedError
from ooc.files.records import understood
from ooc.ir.op import DTYPES
from ooc.networks import Graph
from ooc.networks.layers import Reshape, Round
from ooc.onnx.folding import Folder
from ooc.onnx.layout import front
from ooc.translate.attention import multiplied, returned
from ooc.translate.building import Building, Constant, FrozenNorm, GraphTensor, Operand, Shape, Site, registering
from ooc.translate.elementwise import clamping
from ooc.translate.parts import MaximaPlaces
from ooc.translate.views import permuted

Value = GraphTensor | MaximaPlaces | np.ndarray[Any, Any] | None  # None: left out
Operator = Callable[["OnnxNode"], Any]  # to a Value, or a list of them
OPERATORS: dict[str, Operator] = {}
OWN: dict[str, Operator] = {}  # those of files that ooc wrote which become the very layers that they were
operator = registering(OPERATORS)  # function decorator: it translates these operators
INTEGERS = {2: "u8", 4: "u16", 5: "i16", 6: "i32", 9: "b8"}  # of TensorProto
BOOLEAN, NARROW, WHOLE = 9, (2, 4, 5), (6, 7)  # of these, and i64
CONDITIONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
ACTIVATIONS = ("Relu", "LeakyRelu", "Elu", "Sigmoid", "Tanh", "Clip")


class OnnxTranslator(Site):
    """A graph in the making.

    Parameters:
        graph: to fill.
        folder: of the file's opset.
        exact: the file is one of ooc's own: each layer of its graph becomes that layer again.
        stored: as which integers outputs are stored that are no floating numbers, by name.
    """

    def __init__(self, graph: Graph, folder: Folder, exact: bool, stored: Mapping[str, str] | None = None) -> None:
        super().__init__(graph)
        self.folder, self.exact, self.stored = folder, exact, stored or {}
        self.whole = set[str]()  # tensors of integers in the file, which are floating numbers here
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
        self.values[name] = permuted(self._turning(name), tensor, (0, *range(2, len(shape)), 1)) if last else tensor

    def parameter(self, name: str, value: Constant) -> None:
        self.graph.begin_with({name: value.value(None)})

    def full(self, value: float, shape: Shape = (1,)) -> Constant:
        return constant(np.full(shape, float(value)))

    def array(self, values: Any) -> Constant:
        return constant(values)._replace(fixed=True)

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
        if not any(isinstance(v, (GraphTensor, MaximaPlaces)) for v in reads.values()):
            self.values.update(self.folder.fold(node, reads, context.label))
            return
        if node.op_type != "MaxUnpool" and any(isinstance(v, MaximaPlaces) for v in reads.values()):
            raise context.refuse("it reads places of maxima, which MaxUnpool alone may")
        translate = (self.exact and OWN.get(node.op_type)) or OPERATORS.get(node.op_type)
        if translate is None:
            raise context.refuse(f"ooc has no ONNX operator {node.op_type}")
        try:
            with understood(context.label):
                translation = translate(context)
        except (ShapeError, DtypeError) as error:
            raise _placed(error, context.label) from None
        if self._makes_whole(context):
            self.whole.update(node.output)
        outputs: list[Value] = translation if isinstance(translation, list) else [translation]
        for name, value in zip(node.output, outputs, strict=False):
            self.values[name] = value
        for name in context.taken:
            self.values[name] = outputs[0]
        for name in node.output[len(outputs) :]:
            if name and self.uses[name]:
                raise UnsupportedError(f"{context.label}: its output {name} is used, which ooc does not make")

    def _makes_whole(self, context: OnnxNode) -> bool:
        """Whether what a node makes is of integers in the file."""
        if context.op.op_type == "Gather":
            return context.op.input[0] in self.whole
        if context.op.op_type in ("ArgMax", "ArgMin", "Cast"):
            return context.attribute("to", WHOLE[0]) in (*NARROW, *WHOLE)
        return context.op.op_type not in CONDITIONS and not self.whole.isdisjoint(context.op.input)

    def output(self, name: str, last: bool = False) -> None:
        """A tensor that is wanted, under its name in the file. last: it has its channels last there, and they come in front."""
        value = self.values.get(name)
        if not isinstance(value, GraphTensor):
            places = isinstance(value, MaximaPlaces)
            what = "places of maxima" if places else "a constant at this size; nothing is left to compute"
            raise UnsupportedError(f"output {name}: it is {what}")
        if last:
            rank = len(value.shape)
            value = permuted(self._turning(name), value, (0, rank - 1, *range(1, rank - 1)))
        extent = value.shape[1:]
        value = returned(Building(self, f"output {name}", name, ""), value)
        rounds = name in self.stored and value.dtype in DTYPES
        if value.shape[1:] != extent or (value.name != name and self.unused(name) and not rounds):
            value = Building(self, f"output {name}", "" if rounds else name, "").add(value, Reshape(extent))
        if rounds:
            value = Building(self, f"output {name}", name, "").add(value, Round(self.stored[name]))
        self.graph.output(value.name)


def _placed(error: OocError, label: str) -> OocError:
    told = f"{error}"
    return error if told.startswith(label) else type(error)(f"{label}: {told}")


class OnnxNode(Building):
    """A node while it is translated: its inputs, its attributes, the graph."""

    def __init__(self, translator: OnnxTranslator, node: Any) -> None:
        from onnx import helper

        name = f"{node.output[0]} as a number" if node.output[0] in translator.stored else node.output[0]
        super().__init__(translator, label(node), name, "pass outputs= of a tensor before it")
        self.translator, self.op, self.taken = translator, node, list[str]()
        self.attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        self.version = translator.folder.version

    # ---- what the node says

    def attribute(self, name: str, default: Any = None) -> Any:
        value = self.attributes.get(name, default)
        if self.translator.exact and isinstance(value, float):
            return shortest(value)
        return value.decode() if isinstance(value, bytes) else list(value) if isinstance(value, (tuple, list)) else value

    def value(self, i: int) -> Value:
        """An input; None where it was left out."""
        value = self.translator.values[self.op.input[i]] if i < len(self.op.input) else None
        return multiplied(self, value) if isinstance(value, GraphTensor) else value

    def waiting(self, i: int) -> Operand:
        """An input as `operand` has it, a product that waits as it is."""
        value = self.translator.values[self.op.input[i]] if i < len(self.op.input) else None
        return value if isinstance(value, GraphTensor) else self.operand(i)

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

    def weight(self, i: int, what: str) -> Constant | None:
        """A constant input, as values of a layer."""
        value = self.constant(i, what)
        return None if value is None else constant(value)

    def operand(self, i: int) -> Operand:
        """An input, a tensor or constant."""
        value = self.value(i)
        if value is None:
            raise self.refuse(f"its input {i} is left out", "give it one")
        return value if isinstance(value, GraphTensor) else constant(value)

    def for_each_sample(self, x: GraphTensor, values: Constant) -> Operand:
        array = values.value(None)
        if (array != array[:1]).any():
            raise self.refuse("a constant that differs from sample to sample")
        return constant(array[0])

    # ---- what is behind

    def activation_behind(self) -> OnnxNode | None:
        return self.behind(*ACTIVATIONS)

    def norm_behind(self) -> OnnxNode | None:
        return self.behind("BatchNormalization")

    def behind(self, *kinds: str) -> OnnxNode | None:
        """The node of one of these operators that alone reads what this one makes; in a file of ooc's own, of the same layer."""
        node = self.translator.only(self.made, *kinds)
        if node is None or (self.translator.exact and not self.made.startswith(f"{node.output[0]}/")):
            return None
        return OnnxNode(self.translator, node)

    def take_in(self, behind: OnnxNode) -> None:
        self.translator.passed.add(behind.made)
        self.taken.append(behind.made)
        self.made = behind.made

    def as_activation(self) -> tuple[str, float] | None:
        kind = self.op.op_type
        if kind in ("Relu", "Sigmoid", "Tanh"):
            return kind.lower(), 0.0
        if kind == "LeakyRelu":
            return "leaky_relu", float(self.attribute("alpha", 0.01))
        return ("elu", float(self.attribute("alpha", 1.0))) if kind == "Elu" else clamping(*self.limits())

    def limits(self) -> tuple[float, float]:
        """Of Clip: inputs from opset 11 on, attributes before."""
        bounds = []
        for i, (name, default) in enumerate((("min", -math.inf), ("max", math.inf)), 1):
            limit = self.constant(i, name)
            bounds.append(float(self.attribute(name, default)) if limit is None else float(np.asarray(limit).reshape(())))
        return bounds[0], bounds[1]

    def as_norm(self) -> FrozenNorm | None:
        values = [self.value(i) for i in range(1, 5)]
        if any(v is None or isinstance(v, GraphTensor) for v in values):
            return None
        scale, shift, mean, var = map(constant, values)
        return FrozenNorm(scale, shift, mean, var, self.attribute("epsilon", 1e-5))


def constant(array: Any) -> Constant:
    """An array of the file."""
    values = np.asarray(array)
    return Constant(lambda _: values, values.shape, float(values.reshape(())) if values.size == 1 else None)


def shortest(value: Any) -> float:
    """The shortest number that rounds to this one in f32, as which a file holds it."""
    return float(str(np.float32(value)))


def label(node: Any) -> str:
    """A node as errors name it."""
    return f"node {node.name or (node.output[0] if node.output else '?')} ({node.op_type})"

"""From an exported program to a graph: nodes that depend on the inputs become layers, what depends on parameters alone stays
PyTorch's to compute, with its gradients."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

from ooc.errors import DtypeError, ShapeError, UnsupportedError
from ooc.networks import Graph
from ooc.networks.layers.base import Layer
from ooc.torch.values import ComputedValues
from ooc.translate.attention import multiplied, returned
from ooc.translate.building import Building, Constant, FrozenNorm, GraphTensor, Operand, Shape, Site, registering
from ooc.translate.elementwise import clamping
from ooc.translate.parts import MaximaPlaces, places

DTYPES = {torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16"}
STORED = {  # as which integers a graph returns what is no floating number
    torch.bool: "b8", torch.uint8: "u8", torch.uint16: "u16", torch.int16: "i16", torch.int32: "i32", torch.int64: "i32",
}  # fmt: skip
REMEDY = "ooc.torch.convert_model leaves such a module to PyTorch and takes its neighbours"

Computed = Callable[[ComputedValues], torch.Tensor]  # of what PyTorch computes, by node


class MovedStatistic(NamedTuple):
    """A running statistic after a forward pass: of a layer, by the name of the statistic."""

    name: str


Operator = Callable[["TorchCall"], Any]
Begin = Callable[[Graph, str, Shape, str], str]  # makes an input of a name, shape per sample and dtype
OPERATORS: dict[str, Operator] = {}
operator = registering(OPERATORS)  # function decorator: it translates these operators
ACTIVATIONS = ("relu", "leaky_relu", "elu", "sigmoid", "tanh", "hardtanh", "clamp", "clamp_min", "clamp_max", "relu6")
FROZEN_NORMS = ("batch_norm", "_native_batch_norm_legit_no_training")


class TorchTranslator(Site):
    """A graph in the making, from an exported program.

    Parameters:
        graph: to fill.
        follows: the graph stands for the module's forward function: batch norms that were exported in evaluation go by their
            running statistics in training, too.
        fold: such batch norms become part of the filters in front of them; gradients then come less exactly.
    """

    def __init__(self, graph: Graph, follows: bool, fold: bool) -> None:
        super().__init__(graph)
        self.follows, self.fold, self.trains = follows, fold, False
        self.values: dict[Node, Any] = {}
        self.owned: dict[str, Computed] = {}  # parameters and statistics of the graph
        self.fed: dict[str, Computed] = {}  # inputs of the graph besides the program's
        self.computed: list[Node] = []  # what PyTorch computes, in order
        self.passed: set[Node] = set()  # nodes that others have taken in
        self.literals: dict[Node, torch.Tensor] = {}  # constants of the code
        self.layers: dict[Node, str] = {}  # names that layers may have, by the placeholder of their filters

    def input(self, node: Node, value: torch.Tensor, begin: Begin) -> str:
        """An input of the program; its name. begin: makes it."""
        shape = tuple(value.shape)
        if value.dtype not in DTYPES or not 2 <= len(shape) <= 5 or 0 in shape:
            raise UnsupportedError(
                f"input {node.name}: expected a floating tensor of batch, channels and up to 3 spatial axes, none empty, got "
                f"{value.dtype} {shape}; {REMEDY}"
            )
        if self.batch not in (0, shape[0]):
            raise ShapeError(f"input {node.name}: a batch of {shape[0]} beside one of {self.batch}")
        self.batch = shape[0]
        name = node.name if self.free(node.name) else f"{node.name} of model"
        tensor_name = begin(self.graph, name, shape[1:], DTYPES[value.dtype])
        self.values[node] = GraphTensor(tensor_name, shape, DTYPES[value.dtype])
        return name

    def parameter(self, name: str, value: Constant) -> None:
        self.owned[name] = value.value

    def full(self, value: float, shape: Shape = (1,)) -> Constant:
        number = float(value) if math.prod(shape) == 1 else None
        return Constant(lambda _: torch.full(shape, float(value), dtype=torch.float64), shape, number, alike=True)

    def array(self, values: Any) -> Constant:
        return Constant(lambda _: torch.from_numpy(values), values.shape, fixed=True)

    def feed(self, parameter: Constant, dtype: str) -> GraphTensor:
        """A value for each sample that does not depend on the inputs, as an input."""
        name = f"given{len(self.fed) + 1}"
        self.graph.input(name, parameter.shape[1:], dtype)
        self.fed[name] = parameter.value
        return self.of(name)

    def output(self, value: GraphTensor, dtype: torch.dtype) -> str:
        """A tensor that is returned; its name as an output. dtype: PyTorch's."""
        returning = Building(self, "what it returns", value.name, REMEDY)
        name = returned(returning, value).name
        if name in self.graph.inputs or self.graph.shapes[name] != value.shape[1:]:
            name = self.graph.reshape(name, value.shape[1:])
        if dtype in STORED and not self.follows:  # else PyTorch converts it
            name = self.graph.round(name, STORED[dtype])
        self.graph.output(name)
        return name

    def known(self, node: Node, layer: str = "") -> None:
        """A parameter, buffer or constant; layer: the module that it is of."""
        self.values[node] = Constant(lambda values: values[node], shape_of(node))
        if layer:
            self.layers[node] = layer

    def node(self, node: Node) -> None:
        """Translate a call, or leave it to PyTorch where all that it reads does not depend on the inputs."""
        if node in self.passed:
            return
        read = [self.values.get(n) for n in node.all_input_nodes]
        if not any(_depends(v) for v in read) and not (self.follows and name_of(node) == "own_backward"):
            self.computed.append(node)
            self.values[node] = self._constant(node)
            return
        context = TorchCall(self, node)
        if name_of(node) == "getitem":
            results, place = self.values[node.args[0]], node.args[1]  # type: ignore[index]
            if len(results) <= place:  # type: ignore[operator]
                raise context.refuse(f"its result {place} is used, which ooc does not make")
            self.values[node] = results[place]
            return
        if not name_of(node).startswith("max_unpool") and any(isinstance(v, MaximaPlaces) for v in read):
            raise context.refuse("it reads places of maxima, which max_unpool alone may")
        translate = OPERATORS.get(name_of(node))
        if translate is None:
            raise context.refuse(f"ooc has no {name_of(node)}")
        try:
            self.values[node] = translate(context)
            if isinstance(self.values[node], Constant):  # of a tensor's size alone: others may compute with it
                self.computed.append(node)
        except UnsupportedError:
            raise
        except (ShapeError, DtypeError) as error:
            raise type(error)(f"{context.label}: {error}") from None
        outputs = self.values[node]
        first = outputs[0] if isinstance(outputs, list) else outputs
        self.values.update({n: first if shape_of(n) else [first] for n in context.taken})

    def _constant(self, node: Node) -> Constant:
        """What PyTorch computes; an expansion, or one number everywhere, is the same for each sample."""
        shape, alike, number = shape_of(node), False, None
        if name_of(node) == "expand":
            source = shape_of(node.args[0])  # type: ignore[arg-type]
            alike = len(source) < len(shape) or source[0] == 1
        elif name_of(node) == "full":
            alike, number = True, float(node.args[1]) if math.prod(shape) == 1 else None  # type: ignore[arg-type]
        return Constant(lambda values: values[node], shape, number, alike)

    def only(self, node: Node) -> Node | None:
        """The one call that reads what a node makes, if there is one."""
        users = list(node.users)
        return users[0] if len(users) == 1 and users[0].op == "call_function" else None


def _depends(value: Any) -> bool:
    if isinstance(value, (GraphTensor, MaximaPlaces, MovedStatistic)):
        return True
    return isinstance(value, (tuple, list)) and any(map(_depends, value))


def shape_of(node: Node) -> Shape:
    """The shape of what a node makes; (): it is no tensor."""
    return tuple(getattr(node.meta.get("val"), "shape", ()))


class TorchCall(Building):
    """A call while it is translated: its arguments in order, the graph."""

    def __init__(self, translator: TorchTranslator, node: Node) -> None:
        schema = getattr(node.target, "_schema", None)
        super().__init__(translator, f"{node.name} ({node.target})", node.name, REMEDY)
        self.translator, self.node = translator, node
        self.end, self.taken, self.folds = node, list[Node](), translator.fold
        self.arguments = dict(zip((a.name for a in schema.arguments), node.args, strict=False)) if schema else {}
        self.arguments |= node.kwargs
        self.defaults = {a.name: a.default_value for a in schema.arguments if a.has_default_value()} if schema else {}

    def argument(self, name: str, default: Any = None) -> Any:
        """An argument by the name that its schema has: a GraphTensor, an Constant, a list of them, or what it is."""
        raw = self.arguments.get(name, self.defaults.get(name, default))
        return self._value(raw)

    def _value(self, raw: Any) -> Any:
        if isinstance(raw, Node):
            value = self.translator.values[raw]
            return multiplied(self, value) if isinstance(value, GraphTensor) else value
        return [self._value(one) for one in raw] if isinstance(raw, (list, tuple)) else raw

    def waiting(self, name: str) -> Operand:
        """An argument as `operand` has it, a product that waits as it is."""
        raw = self.arguments.get(name)
        value = self.translator.values[raw] if isinstance(raw, Node) else None
        return value if isinstance(value, GraphTensor) else self.operand(name)

    def tensor(self, name: str = "self") -> GraphTensor:
        """An argument that is a tensor of the graph."""
        value = self.argument(name)
        if not isinstance(value, GraphTensor):
            raise self.refuse(f"its {name} does not depend on the inputs")
        return value

    def image(self, name: str = "self") -> GraphTensor:
        """An argument that is a tensor of the graph with batch, channels, and as many axes as the operator's name says; two where
        it says nothing."""
        x, said = self.tensor(name), re.search(r"(\d)d(_|$)", name_of(self.node))
        rank = int(said[1]) if said else 2
        if len(x.shape) != rank + 2:
            raise self.refuse(f"a tensor of shape {x.shape}, without a batch or of other axes", "put a batch in front")
        return x

    def parameter(self, name: str) -> Constant | None:
        """An argument that depends on parameters alone; None: it was left out."""
        value = self.argument(name)
        if isinstance(value, GraphTensor):
            raise self.refuse(f"its {name} depends on the inputs")
        return value if isinstance(value, Constant) else None

    def places(self, raw: Any, count: int) -> list[int]:
        """Places along an axis of so many that an argument names, which must follow from the code alone."""
        held = self._literal(raw) if isinstance(raw, Node) else None
        if held is None or held.dtype is torch.bool:
            raise self.refuse("places that are no list in the code")
        return places(self, held.flatten().tolist(), count)

    def _literal(self, node: Node) -> torch.Tensor | None:
        """What a call makes of constants of the code alone; None: of something else, too."""
        if node in self.translator.literals:
            return self.translator.literals[node]
        operands = {n: self._literal(n) for n in node.all_input_nodes}
        if node.op != "call_function" or any(v is None for v in operands.values()):
            return None
        args, keywords = pytree.tree_map_only(Node, operands.__getitem__, (node.args, node.kwargs))
        return node.target(*args, **keywords)  # type: ignore[operator,no-any-return]

    @property
    def shape(self) -> Shape:
        """Of what the call makes."""
        return shape_of(self.node)

    def uses(self, i: int) -> bool:
        """Whether one of several results is used."""
        return any(name_of(user) == "getitem" and user.args[1] == i for user in self.node.users)

    def per_axis(self, name: str, rank: int, default: Any = None) -> Shape:
        """A number for each spatial axis, of one or several."""
        argument = self.argument(name, default)
        numbers = tuple(argument) if isinstance(argument, (list, tuple)) else (argument,)
        return numbers * rank if len(numbers) == 1 else numbers

    def operand(self, name: str) -> Operand:
        """An argument that is a tensor of the graph or does not depend on the inputs, as a number."""
        value = self.argument(name)
        return value if isinstance(value, (GraphTensor, Constant)) else self.site.full(value)

    # ---- what it becomes

    def layer(
        self, x: GraphTensor | Sequence[GraphTensor], layer: Layer, parameters: Mapping[str, Constant | None], last: bool = True,
        named: bool = True,
    ) -> GraphTensor:  # fmt: skip
        """A layer with values of its parameters, named after the module whose filters it has."""
        weight = self.arguments.get("weight")
        module = self.translator.layers.get(weight, "") if isinstance(weight, Node) else ""
        if module and self.site.free(module) and last:
            self.made = module
        return super().layer(x, layer, parameters, last, named)

    def for_each_sample(self, x: GraphTensor, values: Constant) -> Operand:
        if values.shape[0] != x.shape[0]:
            return super().for_each_sample(x, values)
        if values.alike:
            return values.through(lambda held: held[0], values.shape[1:])
        return self.translator.feed(values, x.dtype)

    # ---- what is behind

    def activation_behind(self) -> TorchCall | None:
        return self._call_behind(ACTIVATIONS)

    def norm_behind(self) -> TorchCall | None:
        return self._call_behind(FROZEN_NORMS)

    def _call_behind(self, names: Sequence[str]) -> TorchCall | None:
        """The call of one of these operators that alone reads what this one makes."""
        node, choices = self._behind()
        if node is None or name_of(node) not in names:
            return None
        others = (n for n in node.all_input_nodes if n not in (self.end, *choices))
        return TorchCall(self.translator, node) if all(n in self.translator.values for n in others) else None

    def take_in(self, behind: TorchCall) -> None:
        _, choices = self._behind()
        self.end = behind.node
        self.taken += [*choices, self.end]
        self.translator.passed.update(self.taken)

    def _behind(self) -> tuple[Node | None, list[Node]]:
        """The one call that reads what is made so far, and the choice of the first of several results before it."""
        node = self.translator.only(self.end)
        if node is None or name_of(node) != "getitem" or node.args[1] != 0:
            return node, []
        return self.translator.only(node), [node]

    def as_activation(self) -> tuple[str, float] | None:
        name = name_of(self.node)
        if name in ("relu", "sigmoid", "tanh"):
            return name, 0.0
        if name == "leaky_relu":
            return name, float(self.argument("negative_slope"))
        if name == "elu":
            plain = self.argument("scale") == 1 and self.argument("input_scale") == 1
            return ("elu", float(self.argument("alpha"))) if plain else None
        limits = self.limits()
        return None if limits is None else clamping(*limits)

    def limits(self) -> tuple[float, float] | None:
        """Of clamp, hardtanh and relu6, where they are numbers."""
        if "relu6" in name_of(self.node):
            return 0.0, 6.0
        names = ("min_val", "max_val") if "hardtanh" in name_of(self.node) else ("min", "max")
        raw = [self.arguments.get(name, self.defaults.get(name)) for name in names]
        if any(isinstance(limit, Node) for limit in raw):
            return None
        low, high = (
            default if limit is None else float(limit) for limit, default in zip(raw, (-math.inf, math.inf), strict=True)
        )
        return low, high

    def as_norm(self) -> FrozenNorm | None:
        if self.argument("training", False):
            return None
        scale, shift, mean, var = map(self.parameter, ("weight", "bias", "running_mean", "running_var"))
        return None if mean is None or var is None else FrozenNorm(scale, shift, mean, var, self.argument("eps"))


def name_of(node: Node) -> str:
    """The operator that a node calls, without its overload."""
    return str(getattr(node.target, "__name__", node.target)).split(".")[0]

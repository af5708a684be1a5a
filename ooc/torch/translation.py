"""What a module computes at a size as a graph, and what belongs to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from ooc.api.arguments import PerAxis
from ooc.api.foreign import known
from ooc.errors import UnsupportedError
from ooc.networks import Graph
from ooc.networks.tensors import Role
from ooc.torch import attention, elementwise, filters, moving, reductions, sampling, windows  # noqa: F401  they register what they translate
from ooc.torch.tracing import Trace, place_of, tensors_of, traced
from ooc.torch.translator import REMEDY, Begin, Computed, MovedStatistic, TorchTranslator, name_of
from ooc.torch.values import ComputedValues
from ooc.translate.building import Constant, GraphTensor, Shape
from ooc.translate.parts import MaximaPlaces
from ooc.translate.sampling import as_displacement


@dataclass(frozen=True)
class Translated:
    """A module at a size as a graph.

    Fields:
        graph: its inputs are the module's in order, its outputs what the module returns, in order, each once.
        inputs: names of the inputs.
        fed: inputs of the graph besides, values for each sample that do not depend on the module's inputs, by what computes them.
        made: for each tensor that is returned, the output or the number of the input that it is, or what computes it from
            parameters alone.
        given: what PyTorch gives, by the node that stands for it: the name of a parameter or buffer, or a constant.
        computed: what PyTorch computes of that, in order.
        owned: parameters and statistics of the graph, each by what computes it.
        moved: buffers that change, by name, each by the statistic that it becomes, or what computes it.
        whole: PyTorch's types of outputs that are no floating numbers, by name.
        trains: whether training is different: statistics of the batch, or dropout.
        spec: how what is returned is nested.
    """

    graph: Graph
    inputs: tuple[str, ...]
    fed: Mapping[str, Computed]
    made: tuple[str | int | Computed, ...]
    given: Mapping[Node, str | torch.Tensor]
    computed: tuple[Node, ...]
    owned: Mapping[str, Computed]
    moved: Mapping[str, MovedStatistic | Computed]
    whole: Mapping[str, torch.dtype]
    trains: bool
    spec: Any

    def values(self, tensors: Callable[[str], torch.Tensor], device: torch.device) -> ComputedValues:
        """What PyTorch computes, from parameters and buffers by name, on a device what it makes anew."""
        known = {node: tensors(value) if isinstance(value, str) else value for node, value in self.given.items()}
        return ComputedValues(known, self.computed, device)


def plain_input(graph: Graph, name: str, shape: tuple[int, ...], dtype: str) -> str:
    """An input as the program has it."""
    return graph.input(name, shape, dtype)


def translated(
    trace: Trace, name: str, follows: bool, fold: bool, begin: Begin = plain_input, displacement: Shape = ()
) -> Translated:
    """A trace as a graph; follows, fold: see `TorchTranslator`; begin: makes its inputs; displacement: see `Site`. Raises
    UnsupportedError, ShapeError; where it follows also for what a forward function alone can do: change its inputs, return views
    of them."""
    translator = TorchTranslator(Graph(name), follows, fold)
    translator.displacement = displacement
    sources: dict[Node, str | torch.Tensor] = {}
    inputs = []
    for node in trace.graph.nodes:
        if node in trace.inputs:
            inputs.append(translator.input(node, node.meta["val"], begin))
        elif node.op == "placeholder":
            sources[node] = trace.names[node] if node in trace.names else trace.constants[node]
            if node in trace.constants:
                translator.literals[node] = trace.constants[node]
            elif node in trace.tables and not follows:
                translator.literals[node] = trace.tables[node]
            translator.known(node, trace.names[node].rpartition(".")[0] if node in trace.parameters else "")
        elif node.op == "call_function":
            translator.node(node)
    return _finished(trace, translator, sources, inputs)


def _finished(
    trace: Trace, translator: TorchTranslator, sources: dict[Node, str | torch.Tensor], inputs: list[str]
) -> Translated:  # fmt: skip
    name = translator.graph.name
    if trace.changed and translator.follows:
        raise UnsupportedError(f"{name}: it changes its input {trace.changed[0].name} in place; {REMEDY}")
    moved = dict[str, MovedStatistic | Computed]()
    for buffer, node in trace.moved.items():
        becomes = translator.values[node]
        if not isinstance(becomes, (Constant, MovedStatistic)):
            raise UnsupportedError(f"{name}: its buffer {buffer} becomes what it computes of its inputs; {REMEDY}")
        moved[buffer] = becomes.value if isinstance(becomes, Constant) else becomes
    leaves: list[str | int | Computed] = []
    whole = dict[str, torch.dtype]()
    for result in trace.results:
        value = translator.values[result] if isinstance(result, Node) else result
        origin = viewed(result) if isinstance(result, Node) and translator.follows else None
        if origin is not None and isinstance(translator.values[origin], GraphTensor):
            if origin is not result:
                raise UnsupportedError(f"{name}: it returns a view of its input {origin.name}; {REMEDY}")
            leaves.append(inputs.index(translator.values[origin].name))
        elif isinstance(value, GraphTensor):
            dtype = result.meta["val"].dtype
            leaves.append(output := translator.output(value, dtype))
            if not dtype.is_floating_point:
                whole[output] = dtype
        elif isinstance(value, Constant):
            leaves.append(value.value)
        elif isinstance(value, MaximaPlaces):
            raise UnsupportedError(f"{name}: it returns places of maxima; {REMEDY}")
        else:
            raise UnsupportedError(f"{name}: it returns {value!r}, which is no tensor; {REMEDY}")
    if not any(isinstance(leaf, str) for leaf in leaves):
        raise UnsupportedError(f"{name}: what it returns does not depend on its inputs; {REMEDY}")
    return Translated(
        translator.graph, tuple(inputs), translator.fed, tuple(leaves), sources, tuple(translator.computed), translator.owned,
        moved, whole, translator.trains, trace.spec,
    )  # fmt: skip


def viewed(node: Node) -> Node | None:
    """The placeholder whose memory a node's result is, or may be: where PyTorch hands on what it is given, as dropout does in
    evaluation, a program has a copy."""
    while node.op == "call_function":
        schema = getattr(node.target, "_schema", None)
        shares = schema is not None and any(r.alias_info is not None for r in schema.returns)
        if not shares and name_of(node) not in ("clone", "getitem", "dropout"):
            return None
        node = node.args[0]  # type: ignore[assignment]
    return node if node.op == "placeholder" else None


def graph(
    model: torch.nn.Module, shape: Sequence[int] | Sequence[Sequence[int]], displacement: PerAxis | None = None
) -> Graph:  # fmt: skip
    """The graph of a module at a size, which it needs no memory to be made for.

    Layers are named after their modules; sessions of its plans begin with the module's values. A module in training gives a
    graph with dropout; batch normalisations are by the batch when a plan trains, and by running statistics else.

    Parameters:
        model: a `torch.nn.Module` whose forward takes tensors.
        shape: of its input, batch included, as (n, c, h, w); several for several inputs. Inputs have the dtype of the module's
            first parameter, float32 where it has none.
        displacement: how far, in pixels, positions that are sampled (grid_sample) lie from those of an even grid at most, as
            `ooc.Graph.grid_sample` takes it; default None: anywhere.

    Returns:
        graph: an `ooc.Graph`.

    Raises:
        UnsupportedError: the module's code cannot be followed, or ooc has not an operator, which is named.
        ShapeError: sizes that do not fit.

    Source: make_fx of torch.fx.
    """
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    shapes = [shape] if shape and isinstance(shape[0], int) else list(shape)
    args = [torch.empty(tuple(s), dtype=dtype, device="meta") for s in shapes]  # type: ignore[arg-type]
    network = translated(
        traced(model, args, {}), type(model).__name__, follows=False, fold=False, displacement=as_displacement(displacement)
    )
    if network.fed:
        raise UnsupportedError(f"{network.graph.name}: it draws numbers for each sample; put it in evaluation with model.eval()")
    begin_with(network, model)
    return network.graph


def begin_with(network: Translated, module: torch.nn.Module) -> None:
    """Sessions of a graph begin with a module's parameters and buffers. What does not depend on parameters that want gradients is
    fixed."""
    tensors, graph = tensors_of(module), network.graph
    with torch.enable_grad():
        values = network.values(tensors.__getitem__, place_of(module))
        owned = {name: compute(values) for name, compute in network.owned.items()}
    graph.begin_with({name: known(name, value.detach()) for name, value in owned.items()})
    graph.fix(
        *(name for name, value in owned.items() if not value.requires_grad and graph.parameters[name].role is Role.PARAMETER)
    )

"""Exporting modules at a size, without their memory, and translating what comes out."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node
from torch.utils import _pytree as pytree

from ooc.api.foreign import known
from ooc.errors import OocError, UnsupportedError
from ooc.networks import Graph
from ooc.networks.tensors import Role
from ooc.torch import attention, elementwise, filters, moving, reductions, windows  # noqa: F401  they register what they translate
from ooc.torch.state import FORWARD, State
from ooc.torch.translator import REMEDY, Begin, Computed, MovedStatistic, TorchTranslator, Values, name_of
from ooc.translate.building import Constant, GraphTensor
from ooc.translate.parts import MaximaPlaces

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


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

    def values(self, tensors: Callable[[str], torch.Tensor], device: torch.device) -> Values:
        """What PyTorch computes, from parameters and buffers by name, on a device what it makes anew."""
        values: dict[Node, Any] = {n: tensors(w) if isinstance(w, str) else w for n, w in self.given.items()}
        for node in self.computed:
            operands = node.args, {k: device if k == "device" and v is not None else v for k, v in node.kwargs.items()}
            args, keywords = pytree.tree_map_only(Node, lambda n: values[n] if n in values else _empty(n, device), operands)
            values[node] = node.target(*args, **keywords)  # type: ignore[operator]
        return values


def _empty(node: Node, device: torch.device) -> torch.Tensor:
    """What stands for a tensor of the graph of which the size alone is looked at; it takes no memory."""
    like = node.meta["val"]
    return torch.zeros((), dtype=like.dtype, device=device).expand(like.shape)


def exported(
    module: torch.nn.Module, args: Sequence[Any], keywords: Mapping[str, Any], dtype: torch.dtype | None = None,
    steady: bool = False,
) -> ExportedProgram:  # fmt: skip
    """A module at the size of its arguments, without in-place operations. Nothing is computed, and no memory is taken. Arguments
    on the device meta are taken to be where the module is.

    dtype: that floating tensors are taken to have; default None: their own. steady: a forward function that changes attributes
    is refused. Raises UnsupportedError where torch.export cannot.
    """
    name, place = type(module).__name__, place_of(module)
    changed = False
    try:
        with quiet(), torch.autocast("cpu", enabled=False), saved_tensors_hooks(_same, _same):
            mode = FakeTensorMode(allow_non_fake_inputs=True)
            fakes = pytree.tree_map_only(torch.Tensor, lambda t: _fake(mode, t, dtype, place), (tuple(args), dict(keywords)))
            replica = shadow(module, mode, dtype)
            before = State(replica, tensors=False).key if steady else ()

            def compare(*_: Any) -> None:  # here: torch.export puts back what it sees change
                nonlocal changed
                changed |= steady and State(replica, tensors=False).key != before

            replica.register_forward_hook(compare)
            program: ExportedProgram = torch.export.export(replica, *fakes, strict=False).run_decompositions({})
    except Exception as error:  # of whatever the module's code does
        first = str(error).strip().split("\n")[0]
        raise UnsupportedError(f"{name}: torch.export: {type(error).__name__}: {first}; {REMEDY}") from None
    if changed:
        raise UnsupportedError(f"{name}: its forward function changes attributes; {REMEDY}")
    return program


def _same(tensor: Any) -> Any:
    return tensor


class _Others(io.TextIOBase):
    """A stream that passes on what other threads write."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.thread = stream, threading.get_ident()

    def write(self, text: str) -> int:
        return len(text) if threading.get_ident() == self.thread else self.stream.write(text)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """While it lasts, PyTorch says nothing on stderr about what this thread does: an error that it reports is an answer here."""
    thread = threading.get_ident()

    def other(_: logging.LogRecord) -> bool:
        return threading.get_ident() != thread

    loggers = [logging.getLogger(name) for name in list(logging.root.manager.loggerDict) if name.split(".")[0] == "torch"]
    handlers = {handler for logger in loggers for handler in logger.handlers}
    for handler in handlers:
        handler.addFilter(other)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(_Others(sys.stderr)):  # type: ignore[type-var]
            warnings.simplefilter("ignore")
            yield
    finally:
        for handler in handlers:
            handler.removeFilter(other)


def _fake(mode: FakeTensorMode, tensor: torch.Tensor, dtype: torch.dtype | None, place: torch.device) -> torch.Tensor:
    """A tensor that says what it would be, and on which device, and has no memory. place: of one on the device meta."""
    target = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
    with mode:
        return torch.empty(tensor.shape, dtype=target, device=place if tensor.device.type == "meta" else tensor.device)


def shadow(module: torch.nn.Module, mode: FakeTensorMode, dtype: torch.dtype | None = None) -> torch.nn.Module:
    """The module with parameters and buffers that have no memory, but for tables of integers, and the forward functions of its
    classes. dtype: see `exported`."""
    memo: dict[int, Any] = {}
    for p in module.parameters():
        memo[id(p)] = torch.nn.Parameter(_fake(mode, p, dtype, p.device), p.requires_grad)
    for b in module.buffers():
        if not _table(b):
            memo[id(b)] = _fake(mode, b, dtype, b.device)
    with unconverted(module):
        replica = copy.deepcopy(module, memo)
    for hooks in HOOKS:  # of the module itself PyTorch calls them; here they would be called once more
        getattr(replica, hooks).clear()
    return replica


def _table(buffer: torch.Tensor) -> bool:
    """Whether it may say which places are taken: a graph takes those that there are when it is made."""
    return buffer.dim() > 0 and buffer.dtype in (torch.int32, torch.int64)


@contextlib.contextmanager
def unconverted(module: torch.nn.Module) -> Iterator[None]:
    """While it lasts, the modules inside run as PyTorch has them."""
    forwards = [(m, m.__dict__.pop(FORWARD)) for m in module.modules() if hasattr(m.__dict__.get(FORWARD), "undo")]
    try:
        yield
    finally:
        for m, forward in forwards:
            m.__dict__[FORWARD] = forward


def plain_input(graph: Graph, name: str, shape: tuple[int, ...], dtype: str) -> str:
    """An input as the program has it."""
    return graph.input(name, shape, dtype)


def translated(
    program: ExportedProgram, name: str, follows: bool, fold: bool, begin: Begin = plain_input
) -> Translated:  # fmt: skip
    """A program as a graph; follows, fold: see `TorchTranslator`; begin: makes its inputs. Raises UnsupportedError, ShapeError;
    where it follows also for what a forward function alone can do: change its inputs, return views of them."""
    translator = TorchTranslator(Graph(name), follows, fold)
    refs: dict[Node, str | torch.Tensor] = {}
    inputs = []
    kinds = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    for node in program.graph.nodes:
        if node.op == "placeholder":
            spec = kinds[node.name]
            value = node.meta.get("val")
            if spec.kind is InputKind.USER_INPUT:
                if isinstance(value, torch.Tensor):
                    inputs.append(translator.input(node, value, begin))
                continue
            if spec.kind is InputKind.CONSTANT_TENSOR:
                refs[node] = translator.literals[node] = program.constants[str(spec.target)]
            else:
                refs[node] = str(spec.target)
            if spec.kind is InputKind.BUFFER and not follows:
                buffer = (program.state_dict if spec.persistent else program.constants)[str(spec.target)]
                if _table(buffer):
                    translator.literals[node] = buffer
            translator.known(node, str(spec.target).rpartition(".")[0] if spec.kind is InputKind.PARAMETER else "")
        elif node.op == "call_function":
            translator.node(node)
        elif node.op == "output":
            return _finished(program, translator, refs, inputs, node)
    raise OocError(f"{name}: a program without an output")


def _finished(
    program: ExportedProgram, translator: TorchTranslator, refs: dict[Node, str | torch.Tensor], inputs: list[str], node: Node
) -> Translated:
    leaves: list[str | int | Computed] = []
    moved, whole = dict[str, MovedStatistic | Computed](), dict[str, torch.dtype]()
    for spec, result in zip(program.graph_signature.output_specs, node.args[0], strict=True):  # type: ignore[arg-type]
        value = translator.values[result] if isinstance(result, Node) else result
        origin = viewed(result) if isinstance(result, Node) and translator.follows else None
        if spec.kind is OutputKind.BUFFER_MUTATION:
            moved[str(spec.target)] = value.value if isinstance(value, Constant) else value
        elif spec.kind is OutputKind.USER_INPUT_MUTATION:
            if translator.follows:
                raise UnsupportedError(f"{translator.graph.name}: it changes its input {spec.target} in place; {REMEDY}")
        elif origin is not None and isinstance(translator.values[origin], GraphTensor):
            if origin is not result:
                raise UnsupportedError(f"{translator.graph.name}: it returns a view of its input {origin.name}; {REMEDY}")
            leaves.append(inputs.index(translator.values[origin].name))
        elif isinstance(value, GraphTensor):
            dtype = result.meta["val"].dtype
            leaves.append(name := translator.output(value, dtype))
            if not dtype.is_floating_point:
                whole[name] = dtype
        elif isinstance(value, Constant):
            leaves.append(value.value)
        elif isinstance(value, MaximaPlaces):
            raise UnsupportedError(f"{translator.graph.name}: it returns places of maxima; {REMEDY}")
        else:
            raise UnsupportedError(f"{translator.graph.name}: it returns {value!r}, which is no tensor; {REMEDY}")
    if not any(isinstance(m, str) for m in leaves):
        raise UnsupportedError(f"{translator.graph.name}: what it returns does not depend on its inputs; {REMEDY}")
    spec_of = program.call_spec.out_spec
    return Translated(
        translator.graph, tuple(inputs), translator.fed, tuple(leaves), refs, tuple(translator.computed), translator.owned, moved,
        whole, translator.trains, spec_of,
    )  # fmt: skip


def viewed(node: Node) -> Node | None:
    """The placeholder whose memory a node's result is, or may be: where PyTorch hands on what it is given, as dropout does in
    evaluation, a program has a copy."""
    while node.op == "call_function":
        schema = getattr(node.target, "_schema", None)
        shares = schema is not None and any(r.alias_info is not None for r in schema.returns)
        if not shares and name_of(node) not in ("clone", "getitem"):
            return None
        node = node.args[0]  # type: ignore[assignment]
    return node if node.op == "placeholder" else None


def graph(model: torch.nn.Module, shape: Sequence[int] | Sequence[Sequence[int]]) -> Graph:
    """The graph of a module at a size, which it needs no memory to be made for.

    Layers are named after their modules; sessions of its plans begin with the module's values. A module in training gives a
    graph with dropout; batch normalisations are by the batch when a plan trains, and by running statistics else.

    Parameters:
        model: a `torch.nn.Module` whose forward takes tensors.
        shape: of its input, batch included, as (n, c, h, w); several for several inputs. Inputs have the dtype of the module's
            first parameter, float32 where it has none.

    Returns:
        graph: an `ooc.Graph`.

    Raises:
        UnsupportedError: torch.export cannot follow the module's code, or ooc has not an operator, which is named.
        ShapeError: sizes that do not fit.

    Source: torch.export.
    """
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    shapes = [shape] if shape and isinstance(shape[0], int) else list(shape)
    args = [torch.empty(tuple(s), dtype=dtype, device="meta") for s in shapes]  # type: ignore[arg-type]
    network = translated(exported(model, args, {}), type(model).__name__, follows=False, fold=False)
    if network.fed:
        raise UnsupportedError(f"{network.graph.name}: it draws numbers for each sample; put it in evaluation with model.eval()")
    begin_with(network, model)
    return network.graph


def tensors_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by name, those under several names under each."""
    return dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))


def place_of(module: torch.nn.Module) -> torch.device:
    """Where a module's first parameter or buffer lies; the processor's memory where it has none."""
    return next((tensor.device for tensor in tensors_of(module).values()), torch.device("cpu"))


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

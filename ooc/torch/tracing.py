"""What a module computes at a size, as a graph of PyTorch's own functional operators: nothing is computed, no memory is taken."""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import logging
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from ooc.errors import UnsupportedError
from ooc.torch.decomposing import Decomposing
from ooc.torch.recording import Recorder, Recurrences
from ooc.torch.state import FORWARD, State
from ooc.torch.translator import REMEDY

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True)
class Trace:
    """A module at a size.

    Fields:
        graph: calls of operators that change nothing in place; its placeholders are parameters, buffers, constants and inputs.
        inputs: placeholders of the tensors that the module is called with, in order.
        names: of parameters and buffers, by placeholder.
        parameters: placeholders of parameters.
        constants: of the code, by placeholder.
        tables: buffers of integers, by placeholder.
        results: what the module returns, leaf by leaf: a node, or what is no tensor.
        moved: buffers that change, by name: what they become.
        changed: inputs that change in place.
        spec: how what is returned is nested.
    """

    graph: Graph
    inputs: tuple[Node, ...]
    names: Mapping[Node, str]
    parameters: frozenset[Node]
    constants: Mapping[Node, torch.Tensor]
    tables: Mapping[Node, torch.Tensor]
    results: tuple[Any, ...]
    moved: Mapping[str, Node]
    changed: tuple[Node, ...]
    spec: Any


def traced(
    module: torch.nn.Module, args: Sequence[Any], keywords: Mapping[str, Any], dtype: torch.dtype | None = None,
    steady: bool = False, gradients: bool = True,
) -> Trace:  # fmt: skip
    """A module at the size of its arguments. Arguments on the device meta are taken to be where the module is.

    dtype: that floating tensors are taken to have; default None: their own. steady: a forward function that changes attributes
    is refused. gradients: whether it is marked where they stop, or take a way of their own. Raises UnsupportedError where the
    module's code cannot be followed.
    """
    name = type(module).__name__
    try:
        with quiet(), torch.autocast("cpu", enabled=False), saved_tensors_hooks(_same, _same):
            return Tracing(module, args, keywords, dtype, steady, gradients).trace()
    except UnsupportedError as error:
        raise UnsupportedError(f"{name}: {error}; {REMEDY}") from None
    except Exception as error:  # of whatever the module's code does
        first = str(error).strip().split("\n")[0]
        raise UnsupportedError(f"{name}: it cannot be traced: {type(error).__name__}: {first}; {REMEDY}") from None


def _same(tensor: Any) -> Any:
    return tensor


class Tracing:
    """A module while it is traced, see `traced`."""

    def __init__(
        self, module: torch.nn.Module, args: Sequence[Any], keywords: Mapping[str, Any], dtype: torch.dtype | None, steady: bool,
        gradients: bool,
    ) -> None:  # fmt: skip
        mode, place = FakeTensorMode(allow_non_fake_inputs=True), place_of(module)
        self.steady, self.gradients = steady, gradients
        self.replica = shadow(module, mode, dtype)
        leaves, self.nesting = pytree.tree_flatten((tuple(args), dict(keywords)))
        self.leaves = [_fake(mode, t, dtype, place) if isinstance(t, torch.Tensor) else t for t in leaves]
        self.labels = _labels(self.replica, args, keywords)
        self.parameters = dict(self.replica.named_parameters())
        self.tables = {name: b for name, b in self.replica.named_buffers() if table(b)}
        with mode:
            buffers = {name: b if name not in self.tables else torch.empty_like(b) for name, b in self.replica.named_buffers()}
        self.state: dict[str, torch.Tensor] = self.parameters | buffers
        self.results: list[Any] = []  # leaves of what is returned
        self.moved: list[str] = []
        self.changed: list[int] = []
        self.spec: Any = None

    def trace(self) -> Trace:
        """Run the module's forward function with tensors that record what is done with them."""
        tensors = [t for t in self.leaves if isinstance(t, torch.Tensor)]
        tracer = make_fx(self._run, pre_dispatch=True, tracing_mode="real", _allow_non_fake_inputs=True)
        return self._trace(tracer(*self.state.values(), *tensors))

    def _run(self, *flat: torch.Tensor) -> list[torch.Tensor]:
        """What the trace sees: of parameters, buffers and inputs, what the module returns, buffers that changed, inputs."""
        before = State(self.replica, tensors=False).key if self.steady else ()
        with FunctionalTensorMode(pre_dispatch=True, export=True):
            live = [FunctionalTensor.to_functional(t) for t in flat]
            state = dict(zip(self.state, live, strict=False))
            inputs = live[len(state) :]
            fed = iter(inputs)
            leaves = [next(fed) if isinstance(t, torch.Tensor) else t for t in self.leaves]
            args, keywords = pytree.tree_unflatten(leaves, self.nesting)
            with _holding(self.replica, self.state, state) as held, self._watching(state, inputs):
                returned = self.replica(*args, **keywords)
                after = held()
            if self.steady and State(self.replica, tensors=False).key != before:
                raise UnsupportedError("its forward function changes attributes")
            self.results, self.spec = pytree.tree_flatten(returned)
            moved = {name: after[name] for name, one in state.items() if after[name] is not one or _changed(one)}
            if any(name in self.parameters for name in moved):
                raise UnsupportedError("its forward function changes parameters")
            self.moved, self.changed = list(moved), [i for i, one in enumerate(inputs) if _changed(one)]
            tensors = [r for r in self.results if isinstance(r, torch.Tensor)]
            return [_plain(t) for t in (*tensors, *moved.values())]

    @contextlib.contextmanager
    def _watching(self, state: Mapping[str, torch.Tensor], inputs: Sequence[torch.Tensor]) -> Iterator[None]:
        """What marks where gradients stop, and stops at recurrences, while the module runs."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(Recurrences())
            if self.gradients:
                parameters = ((state[name], p.requires_grad) for name, p in self.parameters.items())
                buffers = (t for name, t in state.items() if name not in self.parameters)
                stack.enter_context(Recorder(parameters, buffers, inputs))
            yield

    def _trace(self, program: GraphModule) -> Trace:
        """The graph of a trace without what nobody reads, with names that people know."""
        program.graph.eliminate_dead_code()
        graph, copies, state = Graph(), dict[Node, Any](), [*self.state]
        names, constants = dict[Node, str](), dict[Node, torch.Tensor]()
        calls = Decomposing(graph, constants)
        labels = [*(name.replace(".", "_") for name in state), *self.labels]
        inputs: list[Node] = []
        leaving: tuple[Any, ...] = ()
        for node in program.graph.nodes:
            if node.op == "placeholder":
                at = len(names) + len(inputs)
                copies[node] = graph.placeholder(labels[at])
                if at < len(state):
                    names[copies[node]] = state[at]
                else:
                    inputs.append(copies[node])
                    calls.moving.add(copies[node])
            elif node.op == "get_attr":
                copies[node] = calls.constant(str(node.target).lstrip("_"), _constant(program, node))
            elif node.op == "output":
                leaving = tuple(copies.get(n, n) if isinstance(n, Node) else n for n in node.args[0])
            elif not _switches(node):
                args, keywords = pytree.tree_map_only(Node, copies.__getitem__, (node.args, node.kwargs))
                copies[node] = calls.write(node, args, keywords)
            if node.op == "placeholder" and "val" in node.meta:
                copies[node].meta["val"] = node.meta["val"]
        returned = iter(leaving)
        results = tuple(next(returned) if isinstance(r, torch.Tensor) else r for r in self.results)
        parameters = frozenset(node for node, name in names.items() if name in self.parameters)
        tables = {node: self.tables[name] for node, name in names.items() if name in self.tables}
        moved = dict(zip(self.moved, returned, strict=True))
        changed = tuple(inputs[i] for i in self.changed)
        graph.output(leaving)
        return Trace(graph, tuple(inputs), names, parameters, constants, tables, results, moved, changed, self.spec)


def _changed(tensor: FunctionalTensor) -> bool:
    """Whether its values have changed in place."""
    return bool(torch._functionalize_has_data_mutation(tensor.elem))


def _plain(tensor: torch.Tensor) -> Any:
    return FunctionalTensor.from_functional(tensor) if isinstance(tensor, FunctionalTensor) else tensor


def _constant(program: GraphModule, node: Node) -> torch.Tensor:
    """A tensor of the code. Raises UnsupportedError for one of a module's that it does not say is its own."""
    value = getattr(program, str(node.target))
    if not isinstance(value, torch.Tensor) or isinstance(value, torch._subclasses.FakeTensor):
        raise UnsupportedError("it computes with tensors that are not among its parameters and buffers")
    return value


def _switches(node: Node) -> bool:
    """Whether a call only says that gradients are on or off, or that autocast is: the latter is refused where it is on."""
    name = getattr(node.target, "__name__", "")
    if name == "_enter_autocast" and len(node.args) > 2 and node.args[2]:
        raise UnsupportedError("it switches autocast on inside")
    return name in ("_set_grad_enabled", "_enter_autocast", "_exit_autocast")


def _labels(module: torch.nn.Module, args: Sequence[Any], keywords: Mapping[str, Any]) -> list[str]:
    """Names of the tensors that a module is called with: those of its forward function's arguments, and what leads there."""
    try:
        bound = inspect.signature(module.forward).bind(*args, **keywords).arguments
    except (TypeError, ValueError):  # it says so itself
        bound = {"args": tuple(args), **keywords}
    labels = []
    for path, leaf in pytree.tree_flatten_with_path(dict(bound))[0]:
        if isinstance(leaf, torch.Tensor):
            steps = [str(getattr(step, "key", getattr(step, "idx", getattr(step, "name", "")))) for step in path]
            labels.append("_".join(steps))
    return labels


@contextlib.contextmanager
def _holding(module: torch.nn.Module, held: Mapping[str, torch.Tensor], live: Mapping[str, torch.Tensor]) -> Iterator[Any]:
    """While it lasts, a module computes with other tensors in the places of its parameters and buffers; it gives what says which
    ones these are by then."""
    names = {id(tensor): name for name, tensor in held.items()} | {id(b): name for name, b in module.named_buffers()}
    entries = [
        (kind, key, names[id(tensor)], tensor)
        for m in module.modules() for kind in (m._parameters, m._buffers) for key, tensor in kind.items() if tensor is not None
    ]  # fmt: skip
    try:
        for kind, key, name, _ in entries:
            kind[key] = live[name]  # type: ignore[assignment]
        yield lambda: {name: kind.get(key) for kind, key, name, _ in reversed(entries)}
    finally:
        for kind, key, _, tensor in entries:
            kind[key] = tensor


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
    classes. dtype: see `traced`."""
    memo: dict[int, Any] = {}
    for p in module.parameters():
        memo[id(p)] = torch.nn.Parameter(_fake(mode, p, dtype, p.device), p.requires_grad)
    for b in module.buffers():
        if not table(b):
            memo[id(b)] = _fake(mode, b, dtype, b.device)
    with unconverted(module):
        replica = copy.deepcopy(module, memo)
    for hooks in HOOKS:  # of the module itself PyTorch calls them; here they would be called once more
        getattr(replica, hooks).clear()
    return replica


def table(buffer: torch.Tensor) -> bool:
    """Whether a buffer may say which places are taken: a graph takes those that there are when it is made."""
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


def tensors_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by name, those under several names under each."""
    return dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))


def place_of(module: torch.nn.Module) -> torch.device:
    """Where a module's first parameter or buffer lies; the processor's memory where it has none."""
    return next((tensor.device for tensor in tensors_of(module).values()), torch.device("cpu"))

"""Modules whose forward and backward passes run through ooc, in place: the same classes, parameters and state."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ooc.errors import DtypeError, OocError, OptionError, ShapeError, UnsupportedError
from ooc.runtime.device import Device
from ooc.torch.holding import HeldPass
from ooc.torch.segment import Segment, Terms
from ooc.torch.state import FORWARD, State
from ooc.torch.tracing import HOOKS, traced
from ooc.torch.translation import translated
from ooc.torch.translator import REMEDY

KEPT = 8  # sizes and states of which a module keeps its plans
CHANGES = 3  # after so many calls in a row that find other attributes, none is planned until one finds the same


class Forward:
    """Stands for the forward function of a module: it runs through ooc where all inside can and nobody watches the inside;
    else as PyTorch has it, and the modules inside each for themselves.

    Parameters:
        module: whose forward it is.
        terms: how it runs.
    """

    def __init__(self, module: torch.nn.Module, terms: Terms) -> None:
        self._module, self.terms = weakref.ref(module), terms  # the module has it: in a circle its memory would come back late
        self.segments: dict[Any, Segment | OocError] = {}
        self.idle: list[HeldPass] = []
        self.state: tuple[Any, ...] = ()  # of the module, at the last call
        self.changes = 0  # calls in a row that found it changed

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """As the module's forward function."""
        segment = None if self._watched() else self.segment(args, keywords)
        if not isinstance(segment, Segment):
            return type(self.module).forward(self.module, *args, **keywords)
        return segment.run(_tensors(args, keywords), self.module)

    @property
    def held(self) -> torch.nn.Module | None:
        """The module, if it is there still."""
        return self._module()

    @property
    def module(self) -> torch.nn.Module:
        """Whose forward it is."""
        module = self._module()
        if module is None:
            raise OocError("forward: its module is gone; keep the module, not its forward function alone")
        return module

    def segment(self, args: Sequence[Any], keywords: Mapping[str, Any]) -> Segment | OocError:
        """What runs at the size of these arguments, with the module as it is; the error that says why nothing does."""
        with self.terms.sessions.planning:  # to export a model its parts are PyTorch's for a while
            return self._segment(args, keywords)

    def _segment(self, args: Sequence[Any], keywords: Mapping[str, Any]) -> Segment | OocError:
        fold = not torch.is_grad_enabled()
        leaves, spec = pytree.tree_flatten((tuple(args), dict(keywords)))
        low, state = _low(leaves), State(self.module)
        if state.key == self.state:
            self.changes = 0
        else:
            self.state, self.changes = state.key, self.changes + 1
        key = (tuple(map(_key, leaves)), str(spec), self.state, fold, low)
        if key not in self.segments:
            if self.changes > CHANGES:
                return UnsupportedError(f"{type(self.module).__name__}: its attributes change in every call; {REMEDY}")
            while len(self.segments) >= KEPT:
                del self.segments[next(iter(self.segments))]
            self.segments[key] = self._made(args, keywords, fold, low, state)
        entry = self.segments[key]
        return entry if fold or not isinstance(entry, Segment) else entry.refusal(_tensors(args, keywords), self.module) or entry

    def _made(
        self, args: Sequence[Any], keywords: Mapping[str, Any], fold: bool, low: torch.dtype | None, state: State
    ) -> Segment | OocError:  # fmt: skip
        name = type(self.module).__name__
        try:
            if state.foreign(self.module):
                raise UnsupportedError(
                    f"{name}: it computes with tensors that are not among its parameters and buffers; {REMEDY}"
                )
            trace = traced(self.module, args, keywords, low, steady=True, gradients=not fold)
            network = translated(trace, name, follows=True, fold=fold)
            return Segment(network, self.terms, len(_tensors(args, keywords)[0]), low, idle=self.idle)
        except (UnsupportedError, ShapeError, DtypeError) as error:
            return error

    def _watched(self) -> bool:
        """Whether hooks wait for what happens inside."""
        inside = (m for m in self.module.modules() if m is not self.module)
        return any(getattr(m, hooks, None) for m in inside for hooks in HOOKS)

    def undo(self) -> None:
        """The module has its own forward function again."""
        module = self.held
        if module is not None and module.__dict__.get(FORWARD) is self:
            del module.__dict__[FORWARD]
        while self.idle:
            self.idle.pop().release()

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled and copied: plans are made again."""
        return {"module": self.module, "terms": self.terms}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


class Forwards:
    """The forward functions that stand for those of a module and of all modules inside: for good, or while a block runs.

    Parameters:
        model: the module.
        terms: how it runs.
    """

    def __init__(self, model: torch.nn.Module, terms: Terms) -> None:
        inside = replace(terms, inside=True)
        modules = (m for m in model.modules() if not isinstance(m, torch.nn.Identity))
        self.forwards = [Forward(m, terms if m is model else inside) for m in modules]  # which do not keep the modules
        self.users, self._lock = 0, threading.RLock()

    def is_of(self, model: torch.nn.Module) -> bool:
        """Whether the module has the modules inside that it had."""
        modules = [m for m in model.modules() if not isinstance(m, torch.nn.Identity)]
        held = [forward.held for forward in self.forwards]
        return len(held) == len(modules) and all(one is other for one, other in zip(held, modules, strict=True))

    def put(self) -> None:
        """From now on they are the modules', but of those that have a forward function of their own."""
        for forward in self.forwards:
            if (module := forward.held) is not None:
                module.__dict__.setdefault(FORWARD, forward)

    def __enter__(self) -> None:
        with self._lock:
            self.users += 1  # threads may share a network: the last one that leaves takes them away
            self.put()

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self.users -= 1
            for forward in self.forwards if not self.users else ():
                forward.undo()


def _tensors(args: Sequence[Any], keywords: Mapping[str, Any]) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves((tuple(args), dict(keywords))) if isinstance(t, torch.Tensor)]


def _low(leaves: Sequence[Any]) -> torch.dtype | None:
    """The type that autocast asks for, where it is on and is narrower."""
    first = next((t for t in leaves if isinstance(t, torch.Tensor)), None)
    if first is None or not torch.is_autocast_enabled(first.device.type) or first.dtype is torch.float64:
        return None
    return torch.get_autocast_dtype(first.device.type)


def _key(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return tuple(leaf.shape), leaf.dtype, leaf.device
    return repr(leaf)


def convert_model(
    model: torch.nn.Module, budget: int | float | str | None = None, example: Any = None, *, device: Device | str | None = None,
    policy: str = "auto",
) -> torch.nn.Module:  # fmt: skip
    """Let a module run through ooc, forward and backward, under a memory budget.

    The module itself changes: it is of the same class, its parameters, buffers and state_dict are the same, it can be pickled
    and copied, moved, and trained under autocast. What ooc can compute as a whole runs as one network, tiled and planned;
    modules that it cannot run as in PyTorch, their parts each for themselves. Between forward and backward the budget holds what
    it has room for; the rest is computed again from the inputs, which must not change in place meanwhile. Attributes that change
    are noticed, and the module is planned anew; one whose forward function changes them runs as in PyTorch. Hooks of modules
    inside are called: their neighbours then run apart. Dropout draws by ooc's generator, from a seed of PyTorch's.

    Parameters:
        model: a `torch.nn.Module`; it is returned.
        budget: of the device's memory, for all parts of the model together, as `ooc.device` takes it; default None: the device's.
        example: a tensor, or a tuple of them, as the module is called with, also on the "meta" device: what cannot run is then
            said at once. Default None: it is found out in the first call.
        device: an `ooc.Device` or a name that `ooc.device` takes; default None: the current one.
        policy: as `Graph.plan` takes it; default "auto".

    Returns:
        model: the module that was given.

    Raises:
        ArgumentError: a budget that is none.
        BudgetError: no plan fits the example, or a later call; its smallest_bytes would do.
        UnsupportedError: with an example: no part of the module can run through ooc.
    """
    if not isinstance(model, torch.nn.Module):
        raise OptionError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    revert_model(model)
    Forwards(model, Terms(budget, device, policy)).put()
    if example is not None:
        args = example if isinstance(example, tuple) else (example,)
        _try(model, args)
    return model


def _try(model: torch.nn.Module, args: Sequence[Any]) -> None:
    """Plan a call. Raises what speaks against it where no part of the module runs."""
    forward: Forward = model.__dict__[FORWARD]
    segment = forward.segment(args, {})
    if isinstance(segment, Segment):
        segment.of_pass(segment.variables(_tensors(args, {}), model) if torch.is_grad_enabled() else ())
    elif not any(True for _ in model.children()):
        revert_model(model)
        raise segment


def revert_model(model: torch.nn.Module) -> torch.nn.Module:
    """Let a converted module run as PyTorch has it again; returns it."""
    for module in model.modules():
        forward = module.__dict__.get(FORWARD)
        if isinstance(forward, Forward):
            forward.undo()
    return model

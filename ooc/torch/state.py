"""What the trace of a module depends on besides its arguments: attributes of all modules inside, and how their tensors look."""

from __future__ import annotations

import functools
import weakref
from collections import deque
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

FORWARD = "forward"  # what a converted module has of its own, see `ooc.torch.convert`
TENSORS = ("_parameters", "_buffers")
SKIPPED = frozenset(vars(torch.nn.Module())) - {"training", "_modules", *TENSORS}  # hooks, and how state is saved
PLAIN = frozenset((bool, int, str, bytes, type(None), torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format))
FIXED = (type, FunctionType, BuiltinFunctionType, MethodType, ModuleType)
AGAIN = object()  # in front of the number of what was seen before
DEEPEST = 3  # objects in objects that are looked into


class Same:
    """Equal to what stands for the same object alone; it keeps no tensor alive."""

    __slots__ = ("it",)

    def __init__(self, it: Any) -> None:
        try:
            self.it = weakref.ref(it)  # the same one for all while the object lives, and no other object's later
        except TypeError:
            self.it = it

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.it is other.it

    def __hash__(self) -> int:
        return id(self.it)


class State:
    """A module as its forward function sees it at this moment.

    Parameters:
        module: to look at.
        tensors: False: parameters and buffers are not looked at; default True.

    Fields:
        key: equal to that of another moment where nothing has changed but values of parameters and buffers.
        held: parameters and buffers of the modules inside, and of modules in attributes.
        loose: other tensors in attributes.
    """

    def __init__(self, module: torch.nn.Module, tensors: bool = True) -> None:
        self._skipped = SKIPPED if tensors else SKIPPED | set(TENSORS)
        self.held: list[torch.Tensor] = []
        self.loose: list[torch.Tensor] = []
        self._seen: dict[int, int] = {}  # numbers of modules, tensors and objects that may be met again, by identity
        self._found: list[Any] = []  # of what has a hash
        self._module(module, 0)
        self.key = tuple(self._found)

    def foreign(self, module: torch.nn.Module) -> bool:
        """Whether there are tensors to be trained, or modules with tensors, that are not the module's by name."""
        ids = {id(t) for t in (*module.parameters(), *module.buffers())}
        return any(id(t) not in ids for t in (*self.held, *(t for t in self.loose if t.requires_grad)))

    def _again(self, it: Any) -> bool:
        """Whether it was seen before; then the key says which one it is."""
        number = self._seen.get(id(it))
        if number is None:
            self._seen[id(it)] = len(self._seen)
            return False
        self._found += (AGAIN, number)
        return True

    def _module(self, module: torch.nn.Module, depth: int) -> None:
        entries = self._found
        if self._again(module):
            return
        entries.append(type(module))
        for name, value in vars(module).items():
            if name in self._skipped or (name == FORWARD and hasattr(value, "undo")):
                continue
            entries.append(name)
            if name in TENSORS:
                for key, tensor in value.items():
                    entries.append(key)
                    self._look(tensor)
            elif name == "_modules":
                for key, inside in value.items():
                    entries.append(key)
                    self._value(inside, depth)
            else:
                self._value(value, depth)
        entries.append(None)  # the end of it

    def _look(self, tensor: torch.Tensor | None) -> None:
        """A parameter or buffer, whose values an export does not hold."""
        if tensor is None:
            self._found.append(None)
        elif self._again(tensor):
            return
        elif torch.nn.parameter.is_lazy(tensor):
            self._found.append(Same(tensor))
        else:
            self.held.append(tensor)
            self._found += (tensor.shape, tensor.dtype, tensor.requires_grad)

    def _value(self, value: Any, depth: int) -> None:
        kind, entries = type(value), self._found
        if kind in PLAIN:
            entries += (kind, value)
        elif isinstance(value, (float, complex, np.generic)):
            entries += (kind, repr(value))  # tells 0.0 from -0.0, and nan equals itself
        elif isinstance(value, torch.nn.Module):
            self._module(value, depth)
        elif isinstance(value, torch.Tensor):
            if not self._again(value):
                self.loose.append(value)
                entries += (Same(value), 0 if value.is_inference() else value._version)
        elif isinstance(value, FIXED):
            entries.append(Same(value))
        elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
            entries += (kind, value.shape, value.dtype.str, value.tobytes())
        elif isinstance(value, (set, frozenset)):
            entries += (kind, frozenset((type(one), one) for one in value))
        elif kind is tuple or not self._again(value):
            self._several(value, depth)

    def _several(self, value: Any, depth: int) -> None:
        """What holds others."""
        entries = self._found
        entries.append(type(value))
        if isinstance(value, functools.partial):
            value = (value.func, value.args, value.keywords)
        if isinstance(value, (list, tuple, deque)):
            entries.append(len(value))
            for one in value:
                self._value(one, depth)
        elif isinstance(value, dict):
            entries.append(len(value))
            for key, one in value.items():
                self._value(key, depth)
                self._value(one, depth)
        else:
            entries.append(Same(value))
            inside = getattr(value, "__dict__", None)
            if depth < DEEPEST and isinstance(inside, dict):
                entries.append(len(inside))
                for name, one in inside.items():
                    entries.append(name)
                    self._value(one, depth + 1)

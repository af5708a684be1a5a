"""Where gradients do not go as the operators of a forward pass say: off inside, by a backward function of its own, by hooks."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.autograd import Function
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointFunction

from ooc.errors import UnsupportedError

TURNING = threading.RLock()  # one trace at a time has `Function.apply` say what runs


@torch.library.custom_op("ooc::own_backward", mutates_args=())  # type: ignore[untyped-decorator]
def own_backward(x: torch.Tensor) -> torch.Tensor:
    """x, whose gradient is not that of the operators that it comes from."""
    return x.clone()


@own_backward.register_fake  # type: ignore[untyped-decorator]
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


WATCHING = {
    torch.Tensor.register_hook: "hooks of tensors",
    torch.Tensor.register_post_accumulate_grad_hook: "hooks of tensors",
    torch.Tensor.retain_grad: "gradients of tensors inside that are kept",
    torch.Tensor.requires_grad_: "tensors inside that say whether they want gradients",
    torch.Tensor.requires_grad.__set__: "tensors inside that say whether they want gradients",  # type: ignore[attr-defined]
    torch.Tensor.grad_fn.__get__: "a look at where gradients go",  # type: ignore[attr-defined]
}
WANTS = torch.Tensor.requires_grad.__get__  # type: ignore[attr-defined]
IN_PLACE = ("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__")
VALUES = torch.Tensor.data.__get__  # type: ignore[attr-defined]


class Recorder(TorchFunctionMode):
    """While a module runs with gradients on: what it computes where they are off is cut off from them, what functions with a
    backward pass of their own return is marked by `own_backward`.

    Parameters:
        wanted: by the identity of a parameter's tensor, whether it wants a gradient.
        buffers: tensors that change in place as they like.

    Raises UnsupportedError, in the module's code, for what no graph can say.
    """

    def __init__(self, wanted: Mapping[int, bool], buffers: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.wanted = wanted
        self._free = list(buffers)  # and what is cut off; they live as long as the trace, so that none takes another's identity
        self._ids = {id(t) for t in self._free}
        self._own = 0  # functions with a backward pass of their own that run
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Recorder:
        self._stack.enter_context(self._marking())
        return super().__enter__()  # type: ignore[no-any-return]

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._stack.__exit__(*error)  # type: ignore[arg-type]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in WATCHING:
            raise UnsupportedError(WATCHING[func])
        if func == WANTS:
            return self._wants(args[0])
        if func == VALUES:
            return self._cut(args[0])
        off = self._own == 0 and (not torch.is_grad_enabled() or torch.is_inference_mode_enabled())
        if off and _in_place(func) and args[0].is_floating_point() and id(args[0]) not in self._ids:
            raise UnsupportedError("values that change in place where gradients are off")
        result = func(*args, **(kwargs or {}))
        if not off:
            return result
        taken = {id(t) for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        return pytree.tree_map_only(torch.Tensor, lambda t: t if id(t) in taken else self._cut(t), result)

    @contextlib.contextmanager
    def _marking(self) -> Iterator[None]:
        """While it lasts, what this thread's functions of autograd return is marked; but that of checkpoints, whose gradients are
        those of what they run."""
        thread, plain = threading.get_ident(), vars(Function)["apply"]

        def apply(cls: Any, *args: Any, **keywords: Any) -> Any:
            if threading.get_ident() != thread:
                return plain.__get__(None, cls)(*args, **keywords)
            if issubclass(cls, CheckpointFunction):
                return args[0](*args[2:])
            self._own += 1
            try:
                result = plain.__get__(None, cls)(*args, **keywords)
            finally:
                self._own -= 1
            return pytree.tree_map_only(torch.Tensor, lambda t: own_backward(t) if t.is_floating_point() else t, result)

        with TURNING:
            Function.apply = classmethod(apply)
            try:
                yield
            finally:
                Function.apply = plain

    def _cut(self, tensor: torch.Tensor) -> torch.Tensor:
        result = tensor.detach() if tensor.is_floating_point() else tensor
        self._free.append(result)
        self._ids.add(id(result))
        return result

    def _wants(self, tensor: torch.Tensor) -> bool:
        """As PyTorch says it where inputs want gradients."""
        return self.wanted.get(id(tensor), torch.is_grad_enabled() and tensor.is_floating_point())


def _in_place(func: Any) -> bool:
    """Whether a function changes its first argument."""
    name = str(getattr(func, "__name__", ""))
    return name in IN_PLACE or (name.endswith("_") and not name.endswith("__"))

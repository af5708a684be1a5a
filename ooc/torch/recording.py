"""Where gradients do not go as the operators of a forward pass say: off inside, by a backward function of its own, by hooks."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
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


REFUSED = {
    torch.Tensor.register_hook: "hooks of tensors",
    torch.Tensor.register_post_accumulate_grad_hook: "hooks of tensors",
    torch.Tensor.retain_grad: "gradients of tensors inside that are kept",
    torch.Tensor.requires_grad_: "tensors inside that say whether they want gradients",
    torch.Tensor.requires_grad.__set__: "tensors inside that say whether they want gradients",  # type: ignore[attr-defined]
    torch.Tensor.detach_: "tensors inside that are cut off from gradients in place",
    torch.Tensor.data.__set__: "tensors inside that get other values",  # type: ignore[attr-defined]
    torch.Tensor.grad_fn.__get__: "a look at where gradients go",  # type: ignore[attr-defined]
}
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
SAYS = (torch.Tensor.requires_grad_, torch.Tensor.requires_grad.__set__)  # type: ignore[attr-defined]
LEARNS = torch.Tensor.requires_grad.__get__  # type: ignore[attr-defined]
VALUES = torch.Tensor.data.__get__  # type: ignore[attr-defined]
CUTS = (torch.Tensor.detach, torch.detach)
IN_PLACE = ("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__")


class Recurrences(TorchFunctionMode):
    """Ends a trace where it meets a recurrent layer, which ooc has not: PyTorch would go through all its steps to say what it
    makes, again for each module around it. Raises UnsupportedError, in the module's code."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (name := getattr(func, "__name__", "")) in RECURRENT:
            raise UnsupportedError(f"ooc has no {name}")
        return func(*args, **(kwargs or {}))


class Recorder(TorchFunctionMode):
    """While a module runs with gradients on: what it computes where they are off is cut off from them, what functions with a
    backward pass of their own return is marked by `own_backward`.

    Parameters:
        parameters: tensors, each with whether it wants a gradient.
        buffers: tensors that change in place as they like.
        inputs: tensors that the module is called with.

    Raises UnsupportedError, in the module's code, for what no graph can say.
    """

    def __init__(
        self, parameters: Iterable[tuple[torch.Tensor, bool]], buffers: Iterable[torch.Tensor], inputs: Iterable[torch.Tensor]
    ) -> None:  # fmt: skip
        super().__init__()
        self._inputs = set(map(id, inputs))
        self._learning = {id(tensor): learns for tensor, learns in parameters}
        self._kept: list[Any] = []  # what is known by identity lives as long as the trace, so that nothing else takes its place
        self._free = {self._storage(tensor) for tensor in buffers}  # memory that no gradient comes from
        self._cut = set[int]()  # tensors that are cut off, by identity
        self._own = 0  # functions with a backward pass of their own that run
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Recorder:
        self._stack.enter_context(self._marking())
        return super().__enter__()  # type: ignore[no-any-return]

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._stack.__exit__(*error)  # type: ignore[arg-type]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in SAYS and self._is_plain(*args, **kwargs):
            return args[0]
        if func in REFUSED:
            raise UnsupportedError(REFUSED[func])
        if func == LEARNS:
            return self._learning.get(id(args[0]), torch.is_grad_enabled() and args[0].is_floating_point())
        off = self._own == 0 and (not torch.is_grad_enabled() or torch.is_inference_mode_enabled())
        changes = _changed_by(func, args, kwargs)
        if changes is not None and (off or id(changes) in self._cut) and self._storage(changes) not in self._free:
            raise UnsupportedError("values that change in place where no gradient sees it")
        result = args[0].detach() if func == VALUES else func(*args, **kwargs)
        taken = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        return pytree.tree_map_only(torch.Tensor, lambda t: self._followed(t, taken, off, func == VALUES or func in CUTS), result)

    def _is_plain(self, tensor: torch.Tensor, requires_grad: bool = True) -> bool:
        """Whether a tensor that is said to want no gradient, or to want one, comes from the code, where it has none anyway."""
        return not requires_grad and id(tensor) not in self._inputs and id(tensor) not in self._learning

    def _followed(self, tensor: torch.Tensor, taken: Sequence[torch.Tensor], off: bool, cuts: bool) -> torch.Tensor:
        """What a function made of other tensors, cut off where gradients are off."""
        if not tensor.is_floating_point() or any(tensor is t for t in taken):
            return tensor
        storage, floating = self._storage(tensor), [t for t in taken if t.is_floating_point()]
        shared = [t for t in floating if self._storage(t) == storage]
        if not shared and (off or all(self._storage(t) in self._free for t in floating)):
            self._free.add(storage)
        result = tensor.detach() if off else tensor
        if off or cuts or any(id(t) in self._cut for t in shared):
            self._cut.add(id(result))
            self._kept.append(result)
        return result

    def _storage(self, tensor: Any) -> int:
        """Which memory a tensor is a view of."""
        storage = getattr(tensor, "elem", tensor).untyped_storage()
        self._kept.append(storage)
        return int(storage._cdata)

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


def _changed_by(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """The floating tensor that a function changes in place, if it does."""
    name = str(getattr(func, "__name__", ""))
    in_place = name in IN_PLACE or kwargs.get("inplace") or (name.endswith("_") and not name.endswith("__"))
    tensor = kwargs.get("out", args[0] if in_place and args else None)
    return tensor if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() else None

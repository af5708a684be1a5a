"""Functions as autograd sees them: ooc's, forward and backward, and PyTorch's own where a gradient is differentiated again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function


class Pass(NamedTuple):
    """One function, forward and backward.

    Fields:
        forth: y of the tensors.
        back: gradients of the tensors, of them, y, dy, and which are wanted.
        plain: the same by PyTorch, for gradients of gradients.
    """

    forth: Callable[..., Tensor]
    back: Callable[[Sequence[Tensor], Tensor, Tensor, Sequence[bool]], Sequence[Tensor | None]]
    plain: Callable[..., Tensor]


class PassFunction(Function):
    """A pass as autograd sees it."""

    @staticmethod
    def forward(ctx: Any, how: Pass, *tensors: Tensor) -> Tensor:
        y = how.forth(*tensors)
        ctx.how = how
        ctx.save_for_backward(*tensors, y)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, y = ctx.saved_tensors
        wanted = ctx.needs_input_grad[1:]
        if not torch.is_grad_enabled():
            return (None, *ctx.how.back(tensors, y, dy, wanted))
        asked = [t for t, w in zip(tensors, wanted, strict=True) if w]
        found = iter(torch.autograd.grad(ctx.how.plain(*tensors), asked, dy, create_graph=True))
        return (None, *(next(found) if w else None for w in wanted))


def through(how: Pass, *tensors: Tensor) -> Any:
    """The function of these tensors, the first of which may be empty: there is nothing to compute then."""
    return PassFunction.apply(how, *tensors) if tensors[0].numel() else how.plain(*tensors)

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
        needs = ctx.needs_input_grad[1:]
        if not torch.is_grad_enabled():
            return (None, *ctx.how.back(tensors, y, dy, needs))
        inputs = [t for t, w in zip(tensors, needs, strict=True) if w]
        gradients = iter(torch.autograd.grad(ctx.how.plain(*tensors), inputs, dy, create_graph=True))
        return (None, *(next(gradients) if w else None for w in needs))


def through(how: Pass, *tensors: Tensor) -> Any:
    """The function of these tensors, the first of which may be empty: there is nothing to compute then."""
    return PassFunction.apply(how, *tensors) if tensors[0].numel() else how.plain(*tensors)

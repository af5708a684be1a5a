"""What a module makes of an input, to compare one with another."""

from __future__ import annotations

from typing import Any

import torch


def results(module: Any, given: Any) -> dict[str, Any]:
    """What comes out, the gradients of the input and of all parameters that have one, and the buffers afterwards."""
    x = given.detach().clone().requires_grad_()
    module.zero_grad()
    y = module(x)
    torch.manual_seed(1)
    y.backward(torch.randn(y.shape, dtype=y.dtype))
    found = {"y": y, "d x": x.grad} | {f"d {n}": p.grad for n, p in module.named_parameters() if p.grad is not None}
    return {n: t.detach().clone() for n, t in (found | dict(module.named_buffers())).items() if t is not None}

"""How far what ooc computes is from what PyTorch does."""

from __future__ import annotations

from typing import Any

import torch


def outputs(result: Any) -> list[Any]:
    """The tensors of what a module or a session returns."""
    each = result.values() if isinstance(result, dict) else result if isinstance(result, (list, tuple)) else [result]
    return [torch.as_tensor(one) for one in each]


def distance(ours: Any, theirs: Any) -> float:
    """The largest difference, of the largest value."""
    pairs = zip(outputs(ours), outputs(theirs), strict=True)
    return max(float((a.reshape(b.shape).double() - b.double()).abs().max() / b.abs().max()) for a, b in pairs)

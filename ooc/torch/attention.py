"""Products of what the network computes, and attention."""

from __future__ import annotations

import math

import torch

from ooc.torch.translator import TorchCall, operator
from ooc.translate import attention, elementwise
from ooc.translate.building import Bias, Constant, GraphTensor


@operator("mm", "bmm", "matmul")
def matmul(context: TorchCall) -> GraphTensor:
    other = next(name for name in ("mat2", "other") if name in context.arguments)
    return attention.matmul(context, context.waiting("self"), context.waiting(other))


@operator("baddbmm")
def add_products(context: TorchCall) -> GraphTensor:
    """beta * x + alpha * a b."""
    factors, beta = (context.operand("batch1"), context.operand("batch2")), float(context.argument("beta"))
    y = attention.matmul(context, *factors, float(context.argument("alpha")), last=False)
    if beta == 0:
        return y
    added = context.operand("self")
    waiting = attention.biased(context, y, added) if beta == 1 else None
    return waiting or elementwise.add(context, attention.multiplied(context, y), added, beta)


@operator("einsum")
def einsum(context: TorchCall) -> GraphTensor:
    operands = [context.translator.values[raw] for raw in context.arguments["tensors"]]
    return attention.einsum(context, context.argument("equation"), operands)


@operator("scaled_dot_product_attention")
def attend(context: TorchCall) -> GraphTensor:
    q, k, v = (context.tensor(name) for name in ("query", "key", "value"))
    if context.argument("dropout_p") or context.argument("enable_gqa"):
        raise context.refuse("dropout of scores, or fewer heads of keys than of queries")
    mask = context.argument("attn_mask")
    if context.argument("is_causal"):
        mask = Constant(lambda _: torch.full((q.shape[-2], k.shape[-2]), -math.inf).triu(1), (q.shape[-2], k.shape[-2]))
    elif mask is not None and context.arguments["attn_mask"].meta["val"].dtype is torch.bool:  # where it holds, keys count
        if isinstance(mask, Constant):
            mask = mask.through(lambda held: torch.where(held, 0.0, -math.inf))
        else:  # a condition is 1 or 0, the logarithms of which are these
            mask = elementwise.function(context, mask, "log", last=False)
    biases = () if mask is None else (Bias(mask, q),)
    return attention.attended(context, q, k, v, biases, context.argument("scale"))

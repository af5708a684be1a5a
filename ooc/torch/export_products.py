"""From a graph to a module of PyTorch: products of matrices, attention, sampling by a grid."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.fx import Node

from ooc.torch.assembly import TorchLayer, exporter


@exporter("matmul")
def matmul(context: TorchLayer) -> Node:
    how, factors = context.layer.how, [context.beside(i) for i in (0, 1)]
    turned = [context.call(torch.transpose, f, 2, 3) if h == "t" else f for f, h in zip(factors, how, strict=True)]
    y = context.call(torch.matmul, *turned)
    return y if context.layer.alpha == 1 else context.call(torch.mul, y, context.layer.alpha)


@exporter("attention")
def attention(context: TorchLayer) -> Node:
    q, k, v, *biases = (context.beside(i) for i in range(len(context.node.reads)))
    layer, shapes = context.layer, [context.shape(i) for i in range(len(context.node.reads))]
    if layer.groups > 1:
        heads = (layer.groups, shapes[0][0] // layer.groups)
        apart = [context.reshaped(bias, shape) for bias, shape in zip(biases, layer.apart(shapes), strict=True)]
        full = [context.expanded(one, -1, *heads, -1, -1) for one in apart]
        biases = [context.reshaped(f, (shapes[0][0], *bias[1:])) for f, bias in zip(full, shapes[3:], strict=True)]
    if len(biases) < 2:
        return context.call(F.scaled_dot_product_attention, q, k, v, *biases, scale=layer.scale)
    scores = context.call(torch.mul, context.call(torch.matmul, q, context.call(torch.transpose, k, -1, -2)), layer.scale)
    for bias in biases:
        scores = context.call(torch.add, scores, bias)
    return context.call(torch.matmul, context.call(torch.softmax, scores, -1), v)


@exporter("grid_sample")
def grid_sample(context: TorchLayer) -> Node:
    """Positions are the last axis there; how far they lie at most is not said. PyTorch has no lines, which become pictures."""
    layer, x, grid = context.layer, context.x, context.beside(1)
    rank = context.rank - 1
    if layer.how == "cubic" and rank != 2:
        raise context.refuse("it samples pictures alone by cubics")
    if rank == 1:
        middle = context.call(torch.zeros_like, grid)
        x, grid = (
            context.call(torch.unsqueeze, x, 2),
            context.call(torch.unsqueeze, context.call(torch.cat, [grid, middle], 1), 2),
        )
    positions = context.call(torch.movedim, grid, 1, -1)
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(layer.how, layer.how)
    y = context.call(F.grid_sample, x, positions, mode, layer.padding, layer.aligned)
    return context.call(torch.squeeze, y, 2) if rank == 1 else y

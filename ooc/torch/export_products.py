"""From a graph to a module of PyTorch: products of matrices, and attention."""

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

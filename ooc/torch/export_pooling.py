"""Pooling, from a graph to a module of PyTorch."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.fx import Node

from ooc.torch.assembly import TorchLayer, exporter, padded
from ooc.translate.parts import ceiled

MAX: Sequence[Any] = (None, F.max_pool1d, F.max_pool2d, F.max_pool3d)
MEAN: Sequence[Any] = (None, F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)
GLOBAL: Mapping[str, Sequence[Any]] = {
    "max": (None, F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d),
    "average": (None, F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d),
}


@exporter("pool")
def pool(context: TorchLayer) -> Node:
    """What PyTorch pads no window with, more on one side or more than half of it, is put around before."""
    layer, x, rank = context.layer, context.x, len(context.layer.window)
    common: dict[str, Any] = {} if layer.how == "max" else {"count_include_pad": layer.how == "average"}
    kernel = (MAX if layer.how == "max" else MEAN)[rank]
    padding = tuple(min(a, w // 2) for (a, _), w in zip(layer.pad, layer.window, strict=True))
    pads = tuple((p, p) for p in padding)
    if layer.pad == pads:
        return context.call(kernel, x, layer.window, layer.stride, padding, **common)
    if layer.how != "average" and layer.pad == ceiled(context.extent, layer.window, layer.stride, pads):
        return context.call(kernel, x, layer.window, layer.stride, padding, ceil_mode=True, **common)
    around = padded(context, x, layer.pad, -math.inf if layer.how == "max" else 0.0)
    y = context.call(kernel, around, layer.window, layer.stride)
    return context.call(torch.div, y, context.table(_inside(context))) if layer.how == "average_valid" else y


def _inside(context: TorchLayer) -> Any:
    """Which share of each window lies inside."""
    layer, rank, share = context.layer, len(context.extent), np.ones(())
    axes = zip(context.node.shape[1:], context.extent, layer.window, layer.stride, layer.pad, strict=True)
    for i, (size, extent, window, stride, (before, _)) in enumerate(axes):
        begin = np.arange(size) * stride - before
        inside = (np.minimum(begin + window, extent) - np.maximum(begin, 0)) / window
        share = share * inside.reshape(-1, *(1,) * (rank - 1 - i))
    return share


UNPOOL: Sequence[Any] = (None, None, F.max_unpool2d, F.max_unpool3d)


@exporter("max_unpool")
def max_unpool(context: TorchLayer) -> Node:
    """By places in what is padded, since PyTorch pads no window with more than half of it; a line as a picture of one column."""
    layer, line = context.layer, len(context.layer.window) == 1
    x, values = padded(context, context.x, layer.pad, -math.inf), context.beside(1)
    extent = tuple(e + a + b for e, (a, b) in zip(context.extent, layer.pad, strict=True))
    window, stride = layer.window, layer.stride
    if line:
        x, values = (context.call(torch.unsqueeze, one, -1) for one in (x, values))
        window, stride, extent = (*window, 1), (*stride, 1), (*extent, 1)
    pooled = context.call(MAX[len(window)], x, window, stride, return_indices=True)
    places = context.call(operator.getitem, pooled, 1)
    y = context.call(UNPOOL[len(window)], values, places, window, stride, output_size=extent)
    y = context.call(torch.squeeze, y, -1) if line else y
    return padded(context, y, [(-a, -b) for a, b in layer.pad])


@exporter("global_pool")
def global_pool(context: TorchLayer) -> Node:
    rank = len(context.extent)
    return context.call(torch.flatten, context.call(GLOBAL[context.layer.how][rank], context.x, 1), 1)

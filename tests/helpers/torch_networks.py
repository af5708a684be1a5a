"""A graph as PyTorch computes it: layer by layer, whatever the graph, on a session's parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from ooc import Graph
from ooc.networks.calls import LayerNode
from ooc.networks.layers.loss import losses_of
from ooc.networks.tensors import Role

ACTIVATIONS: dict[str, Callable[[Any, float], Any]] = {
    "identity": lambda x, coef: x,
    "relu": lambda x, coef: F.relu(x),
    "clipped_relu": lambda x, coef: torch.clamp(x, 0, coef),
    "elu": lambda x, coef: F.elu(x, coef),
    "leaky_relu": lambda x, coef: F.leaky_relu(x, coef),
    "sigmoid": lambda x, coef: torch.sigmoid(x),
    "tanh": lambda x, coef: torch.tanh(x),
}
CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
MAX = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
MEAN = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


def _weights(layer: Any, x: Any, *shape: int) -> Any:
    """Those of classes, or of channels beside x."""
    return torch.tensor(layer.weights).to(x.dtype).reshape(-1, *shape) if layer.weights else None


def _cross_entropy(layer: Any, x: Any, labels: Any) -> Any:
    return F.cross_entropy(x, labels, _weights(layer, x), ignore_index=-1, label_smoothing=layer.smoothing)


def _bce(layer: Any, x: Any, t: Any) -> Any:
    return F.binary_cross_entropy_with_logits(x, t.to(x.dtype), pos_weight=_weights(layer, x, *(1,) * (x.ndim - 2)))


def dice(layer: Any, x: Any, labels: Any) -> Any:
    """Soft Dice of one-hot labels, as libraries of segmentation write it."""
    if x.shape[1] == 1:
        p, t = torch.sigmoid(x), (labels == 1)[:, None].to(x.dtype)
    else:
        p, t = torch.softmax(x, 1), F.one_hot(labels.clamp(min=0), x.shape[1]).movedim(-1, 1).to(x.dtype)
    p, t = ((labels >= 0)[:, None] * z for z in (p, t))
    over = (*((0,) if layer.batch else ()), *range(2, x.ndim))
    score = (2 * (p * t).sum(over) + layer.smooth) / ((p + t).sum(over) + layer.smooth)
    return 1 - score[..., (0 if layer.background else 1) :].mean()


LOSSES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "cross_entropy": _cross_entropy,
    "mse": lambda layer, x, t: F.mse_loss(x, t.to(x.dtype)),
    "l1": lambda layer, x, t: F.l1_loss(x, t.to(x.dtype)),
    "bce": _bce,
    "dice": dice,
}


class TorchNetwork:
    """A graph with parameters and statistics (arrays by name) as leaves, in a dtype of torch's.

    values: every tensor of the graph, of the last call.
    """

    def __init__(self, graph: Graph, arrays: Mapping[str, Any], dtype: Any = torch.float32) -> None:
        self.graph, self.dtype = graph, dtype
        roles = {name: w.role for name, w in graph.parameters.items()}
        made = {name: torch.tensor(np.asarray(array)).to(dtype) for name, array in arrays.items()}
        self.parameters = {n: t.requires_grad_() for n, t in made.items() if roles[n] is Role.PARAMETER}
        self.statistics = {n: t for n, t in made.items() if roles[n] is Role.STATISTIC}
        self.values: dict[str, Any] = {}

    def __call__(self, given: Any, labels: Any = None) -> Any:
        """The loss of a training step with these labels; without: the outputs of an inference, by name."""
        if not isinstance(given, Mapping):
            given = {next(iter(self.graph.inputs)): given}
        self.values = {name: torch.tensor(array).to(self.dtype) for name, array in given.items()}
        train = labels is not None
        for node in self.graph.nodes:
            if not node.layer.is_loss:
                self.values[node.name] = self._layer(node, train)
        if not train:
            return {name: self.values[name].detach().numpy() for name in self.graph.outputs}
        total: Any = 0
        for name, (layer, x, _) in losses_of(self.graph).items():
            target = torch.tensor(labels[name] if isinstance(labels, Mapping) else labels)
            total = total + layer.weight * LOSSES[layer.kind](layer, self.values[x], target)
        return total

    def gradients(self, given: Any, labels: Any) -> tuple[float, dict[str, Any]]:
        """The loss, and its gradient by every parameter."""
        for p in self.parameters.values():
            p.grad = None
        loss = self(given, labels)
        loss.backward()
        return loss.item(), {n: (torch.zeros_like(p) if p.grad is None else p.grad).numpy() for n, p in self.parameters.items()}

    def _own(self, node: LayerNode, key: str) -> Any:
        return self.parameters.get(f"{node.name}.{key}", self.statistics.get(f"{node.name}.{key}"))

    def _layer(self, node: LayerNode, train: bool) -> Any:
        made = getattr(self, f"_{node.layer.kind}")(node, node.layer, *(self.values[r] for r in node.reads), train=train)
        fields = node.layer.fields()
        act = ACTIVATIONS[fields["act"]](made, fields["coef"]) if "act" in fields else made
        assert tuple(act.shape[1:]) == node.shape, node
        return act

    def _bias(self, node: LayerNode, y: Any) -> Any:
        b = self._own(node, "b")
        return y if b is None else y + b.reshape(1, -1, *(1,) * (y.ndim - 2))

    # ---- one method for each kind

    def _conv(self, node: LayerNode, layer: Any, x: Any, train: bool) -> Any:
        w = self._own(node, "w")
        y = CONV[w.ndim - 2](_padded(x, layer.pad), w, None, layer.stride, 0, layer.dilation, layer.groups)
        return self._bias(node, y)

    def _conv_transpose(self, node: LayerNode, layer: Any, x: Any, train: bool) -> Any:
        w = self._own(node, "w")
        y = TRANSPOSED[w.ndim - 2](x, w, None, layer.stride, 0, 0, layer.groups, layer.dilation)
        around = [(-a, o - b) for (a, b), o in zip(layer.pad, layer.output_padding, strict=True)]
        return self._bias(node, _padded(y, around))

    def _linear(self, node: LayerNode, layer: Any, x: Any, train: bool) -> Any:
        return F.linear(x, self._own(node, "w"), self._own(node, "b"))

    def _pool(self, node: LayerNode, layer: Any, x: Any, train: bool) -> Any:
        rank = len(layer.window)
        if layer.how == "max":
            return MAX[rank](_padded(x, layer.pad, -math.inf), layer.window, layer.stride)
        mean = MEAN[rank](_padded(x, layer.pad), layer.window, layer.stride)
        counted = MEAN[rank](_padded(torch.ones_like(x), layer.pad), layer.window, layer.stride)
        return mean if layer.how == "average" else mean / counted

    def _global_pool(self, node: LayerNode, layer: Any, x: Any, train: bool) -> Any:
        flat = x.flatten(2)
        return flat.max(2).values if layer.how == "max" else flat.mean(2)

    def _lrn(self, node: LayerNode, layer: Any, x: Any, train: bool) -> Any:
        before = (layer.size - 1) // 2
        squares = F.pad(x.square().transpose(1, -1), (before, layer.size - 1 - before)).transpose(1, -1)
        sums = sum(squares[:, i : i + x.shape[1]] for i in range(layer.size))
        return x / (layer.base + layer.alpha / layer.size * sums) ** layer.beta

    def _batch_norm(self, node: LayerNode, layer: Any, x: Any, train: bool) -> Any:
        own = [self._own(node, key) for key in ("mean", "var", "scale", "b")]
        return F.batch_norm(x, *own, train, layer.momentum, layer.eps)

    def _group_norm(self, node: LayerNode, layer: Any, x: Any, train: bool) -> Any:
        return F.group_norm(x, layer.groups or x.shape[1], self._own(node, "scale"), self._own(node, "b"), layer.eps)

    def _add(self, node: LayerNode, layer: Any, x: Any, z: Any, train: bool) -> Any:
        return x + z

    def _multiply(self, node: LayerNode, layer: Any, x: Any, z: Any, train: bool) -> Any:
        return x * (z if z.shape == x.shape else z.reshape(*x.shape[:2], *(1,) * (x.ndim - 2)))

    def _concat(self, node: LayerNode, layer: Any, *xs: Any, train: bool) -> Any:
        return torch.cat(xs, 1)

    def _pad(self, node: LayerNode, layer: Any, x: Any, train: bool) -> Any:
        return _padded(x, layer.around)

    def _dropout(self, node: LayerNode, layer: Any, x: Any, train: bool) -> Any:
        assert not (train and layer.rate), "torch drops other values"
        return x

    def _upsample(self, node: LayerNode, layer: Any, x: Any, train: bool) -> Any:
        if layer.how == "nearest":
            return F.interpolate(x, layer.size)
        return F.interpolate(x, layer.size, mode=LINEAR[x.ndim - 2], align_corners=layer.how == "aligned")

    def _activation(self, node: LayerNode, layer: Any, x: Any, train: bool) -> Any:
        return x

    def _softmax(self, node: LayerNode, layer: Any, x: Any, train: bool) -> Any:
        return F.log_softmax(x, 1) if layer.how == "log" else F.softmax(x, 1)

    def _flatten(self, node: LayerNode, layer: Any, x: Any, train: bool) -> Any:
        return x.flatten(1)


def _padded(x: Any, pads: Any, value: float = 0.0) -> Any:
    """x with (before, after) positions more along each spatial axis, or less."""
    flat = [p for pair in reversed(list(pads)) for p in pair]
    return F.pad(x, flat, value=value) if any(flat) else x

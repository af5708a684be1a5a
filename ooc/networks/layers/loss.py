"""Losses that are means over positions: cross-entropy, and distances from a target of the same shape."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from ooc.api.arguments import as_int
from ooc.errors import ArgumentError, shown
from ooc.files.records import plain
from ooc.ir.op import compute_dtype, numpy_dtype
from ooc.networks.calls import LayerNode, Network, Wired
from ooc.networks.layers.base import Layer, Shape
from ooc.networks.tensors import Role
from ooc.networks.writer import Writer
from ooc.ops import CrossEntropy, CrossEntropyBackward, Distance, DistanceBackward, Reduce, SoftmaxSum

LABELS, SHARE = "labels", "share"  # inputs of a graph's first loss: its labels, and what each position counts for


class LossInputs(NamedTuple):
    """The inputs of a loss, by name: what it is compared with, the factor of its gradients, weights of classes or channels."""

    target: str
    share: str
    weights: str


@dataclass(frozen=True)
class Loss(Layer):
    """Base of losses: sums, which a session divides by what counts in the batch. A step returns `weight` times that; the gradient
    has both factors in its share."""

    weight: float = 1.0

    is_loss = True

    def fields(self) -> dict[str, Any]:
        """What is not as usual: a graph is the same text as before there were options."""
        return plain(self, [f.name for f in fields(self)])

    def shape(self, reads: Sequence[Shape]) -> Shape:
        if not math.isfinite(self.weight):
            raise ArgumentError(f"loss: weight: expected a finite number, got {self.weight}")
        return ()

    def target(self, shape: Shape, dtype: str) -> tuple[Shape, str]:
        """Shape per sample and dtype of what an x of this shape and dtype is compared with; "i64": of labels."""
        return shape[1:], "i64"

    def classes(self, channels: int) -> int:
        """How many labels there are."""
        return channels

    def counted(self, target: Any, channels: int) -> float:
        """What the sums of a batch are divided by, from what is compared with so many channels."""
        raise NotImplementedError

    def table(self) -> tuple[float, ...]:
        """The weights that its operations read; none: nothing."""
        return ()

    def given(self, net: Network, names: LossInputs, target: Any, divisor: float) -> dict[str, Any]:
        """Its inputs in a step."""
        arrays = {names.target: target, names.weights: np.array(self.table(), np.float64)}
        if names.share in net.tensors:
            share = net.tensors[names.share]
            arrays[names.share] = np.broadcast_to(numpy_dtype(share.dtype).type(self.weight / divisor), share.shape)
        return {name: array for name, array in arrays.items() if name in net.tensors}

    def compared(self, writer: Writer, node: LayerNode) -> LossInputs:
        """Declare its inputs but the share."""
        (x,), names = node.reads, losses_of(writer.graph)[node.name].inputs
        shape, dtype = self.target(writer.graph.shapes[x], writer.dtype(x))
        writer.given(names.target, (writer.batch, *shape), dtype, Role.INPUT, per_sample=True)
        if self.table():
            writer.given(names.weights, (len(self.table()),), "f64", Role.INPUT)
        return names

    def factor(self, writer: Writer, node: LayerNode) -> str:
        """Declare its share, one number."""
        return writer.given(losses_of(writer.graph)[node.name].inputs.share, (1,), "f64", Role.INPUT)

    def read(self, names: LossInputs) -> tuple[str, ...]:
        """The weights, where there are any."""
        return (names.weights,) if self.table() else ()

    def averaged(self, writer: Writer, node: LayerNode, each: str) -> None:
        """Write the sum over samples and positions of what there is at each."""
        (x,) = node.reads
        op = Reduce("bias", writer.batch, 1, writer.shape(x)[1], dtype=compute_dtype(writer.dtype(x)))
        writer.call(op, (each,), (node.made,), role=Role.LOSS)


class PlacedLoss(NamedTuple):
    """A loss in a graph: the layer, what it reads, and its inputs."""

    layer: Loss
    x: str
    inputs: LossInputs


def losses_of(graph: Wired) -> dict[str, PlacedLoss]:
    """The losses of a graph, by name."""
    losses: dict[str, PlacedLoss] = {}
    for node in graph.nodes:
        if isinstance(node.layer, Loss):
            target, share = (f"{node.name}.{LABELS}", f"{node.name}.{SHARE}") if losses else (LABELS, SHARE)
            losses[node.name] = PlacedLoss(node.layer, node.reads[0], LossInputs(target, share, f"{node.name}.weights"))
    return losses


def divisors(net: Network, targets: Mapping[str, Any]) -> dict[str, float]:
    """What each loss is divided by, by its name."""
    shapes = net.graph.shapes
    return {name: layer.counted(targets[name], shapes[x][0]) for name, (layer, x, _) in losses_of(net.graph).items()}


def divided_by(net: Network, counted: Any) -> dict[str, float]:
    """What the caller says of that: a number for one loss, or a dict by name. Raises ArgumentError."""
    losses = losses_of(net.graph)
    numbers = counted if isinstance(counted, Mapping) else dict.fromkeys(losses, counted) if len(losses) == 1 else {}
    if set(numbers) != set(losses):
        raise ArgumentError(f"counted: expected a dict by the name of the loss: {', '.join(losses)}; got {shown(counted)}")
    values = {name: n if isinstance(n, float) else as_int("counted", n) for name, n in numbers.items()}
    for value in values.values():
        if not 0 < value < math.inf:
            raise ArgumentError(f"counted={value}: expected at least 1, or a sum of weights that is positive")
    return values


def check_weights(weights: Sequence[float], channels: int) -> None:
    """Raise ArgumentError for weights that are not one for each of the channels."""
    if not weights:
        return
    if len(weights) != channels:
        raise ArgumentError(f"loss: weights: expected one for each of {channels} channels, got {len(weights)}")
    if not all(math.isfinite(w) and w >= 0 for w in weights):
        raise ArgumentError("loss: weights: expected finite numbers that are not negative")


@dataclass(frozen=True)
class CrossEntropyLoss(Loss):
    """Cross-entropy of the channels and a label per position, the mean over positions with a label; by the weights of their
    classes, where there are any."""

    weights: tuple[float, ...] = ()
    smoothing: float = 0.0

    kind = "cross_entropy"

    def shape(self, reads: Sequence[Shape]) -> Shape:
        if not 0 <= self.smoothing <= 1:
            raise ArgumentError(f"loss: smoothing: expected a number from 0 to 1, got {self.smoothing:g}")
        check_weights(self.weights, reads[0][0])
        return super().shape(reads)

    def counted(self, target: Any, channels: int) -> float:
        if not self.weights:
            return max(1, int(np.count_nonzero(target >= 0)))
        weights: Any = np.asarray(self.weights)
        return float(weights[target[target >= 0]].sum()) or 1.0

    def table(self) -> tuple[float, ...]:
        return (*self.weights, sum(self.weights)) if self.weights else ()

    def _op(self, passing: Any, writer: Writer, x: str) -> Any:
        how = {"smoothing": self.smoothing, "weighted": bool(self.weights)}
        return passing(writer.batch, *writer.shape(x), **how, dtype=writer.dtype(x))

    def forward(self, writer: Writer, node: LayerNode) -> None:
        (x,) = node.reads
        (k, extent), dtype, n = writer.shape(x), writer.dtype(x), writer.batch
        sums, each, names = f"{node.name}.sums", f"{node.name}.each", self.compared(writer, node)
        positions = (n, *writer.graph.shapes[x][1:])
        writer.given(names.share, positions, compute_dtype(dtype), Role.INPUT, per_sample=True)
        writer.call(SoftmaxSum(n, k, extent, dtype=dtype), (x,), (sums,))
        writer.call(self._op(CrossEntropy, writer, x), (x, names.target, sums, *self.read(names)), (each,))
        self.averaged(writer, node, each)

    def backward(self, writer: Writer, node: LayerNode, dy: str) -> tuple[str | None, ...]:
        (x,), names = node.reads, losses_of(writer.graph)[node.name].inputs
        dx = writer.gradient_name(x)
        reads = (x, names.target, f"{node.name}.sums", names.share, *self.read(names))
        writer.call(self._op(CrossEntropyBackward, writer, x), reads, (dx,))
        return (dx,)


@dataclass(frozen=True)
class DistanceLoss(Loss):
    """Base: how far x is from a target of its shape and dtype, the mean over all elements."""

    def target(self, shape: Shape, dtype: str) -> tuple[Shape, str]:
        return shape, dtype

    def counted(self, target: Any, channels: int) -> float:
        return int(math.prod(target.shape))

    def _op(self, passing: Any, writer: Writer, x: str) -> Any:
        return passing(self.kind, writer.batch, *writer.shape(x), weighted=bool(self.table()), dtype=writer.dtype(x))

    def forward(self, writer: Writer, node: LayerNode) -> None:
        (x,), names, each = node.reads, self.compared(writer, node), f"{node.name}.each"
        writer.call(self._op(Distance, writer, x), (x, names.target, *self.read(names)), (each,))
        self.averaged(writer, node, each)

    def backward(self, writer: Writer, node: LayerNode, dy: str) -> tuple[str | None, ...]:
        (x,), names = node.reads, losses_of(writer.graph)[node.name].inputs
        share, dx = self.factor(writer, node), writer.gradient_name(x)
        writer.call(self._op(DistanceBackward, writer, x), (x, names.target, share, *self.read(names)), (dx,))
        return (dx,)


@dataclass(frozen=True)
class SquaredLoss(DistanceLoss):
    """The mean of (x - target)^2."""

    kind = "mse"


@dataclass(frozen=True)
class AbsoluteLoss(DistanceLoss):
    """The mean of |x - target|."""

    kind = "l1"


@dataclass(frozen=True)
class BinaryLoss(DistanceLoss):
    """The mean of the binary cross-entropy of logits; weights: of targets that are 1, a number per channel."""

    weights: tuple[float, ...] = ()

    kind = "bce"

    def table(self) -> tuple[float, ...]:
        return self.weights

    def shape(self, reads: Sequence[Shape]) -> Shape:
        check_weights(self.weights, reads[0][0])
        return super().shape(reads)

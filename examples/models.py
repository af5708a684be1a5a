"""Networks as plain data: what every layer is, and from that the shape of every tensor. No arrays, no device.

>>> layers_of("vgg16", side=224, batch=1)[-1].y
(1, 1000)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Conv:
    """A square convolution, its activation, and perhaps max pooling (window = stride) behind it."""

    name: str
    k: int
    taps: int = 3
    padding: int = 1
    stride: int = 1
    activation: str = "relu"
    pool: int | None = None


@dataclass(frozen=True)
class Linear:
    """A fully connected layer, its activation, and perhaps dropout behind it. k None: the number of classes."""

    name: str
    k: int | None
    activation: str | None = "relu"
    dropout: float = 0.0


@dataclass(frozen=True)
class Network:
    """Layers in the order that they compute in: convolutions, then fully connected layers. smallest: side of a picture."""

    name: str
    layers: tuple[Conv | Linear, ...]
    channels: int = 3
    smallest: int = 32


@dataclass(frozen=True)
class Shapes:
    """The tensors of a layer: input x, filters w, bias b, the activation's result y, and what the next layer gets, z.

    Without pooling and dropout, z is y. The gradient of a tensor has its shape.
    """

    layer: Conv | Linear
    x: Shape
    w: Shape
    b: Shape
    y: Shape
    z: Shape

    @property
    def parameters(self) -> int:
        """How many numbers the layer learns."""
        return math.prod(self.w) + math.prod(self.b)

    @property
    def macs(self) -> int:
        """Multiplications of the forward pass; the backward pass has twice as many."""
        return math.prod(self.y) * math.prod(self.w[1:])

    @property
    def kept(self) -> int:
        """How many numbers the forward pass leaves for the backward pass, x not counted."""
        return math.prod(self.y) + (math.prod(self.z) if self.apart else 0)

    @property
    def apart(self) -> bool:
        """Whether z is a tensor of its own."""
        return bool(self.layer.pool if isinstance(self.layer, Conv) else self.layer.dropout)


def layers_of(network: Network | str, side: int, batch: int, classes: int = 1000) -> tuple[Shapes, ...]:
    """The shapes of every layer for square pictures. Raises ValueError where a size is too small for the network."""
    net = NETWORKS[network] if isinstance(network, str) else network
    for what, size, least in (("side", side, net.smallest), ("batch", batch, 1), ("classes", classes, 1)):
        if size < least:
            raise ValueError(f"{what} {size}: expected at least {least}")
    found: list[Shapes] = []
    x: Shape = (batch, net.channels, side, side)
    for layer in net.layers:
        found.append(_conv(layer, x) if isinstance(layer, Conv) else _linear(layer, x, classes))
        x = found[-1].z
    return tuple(found)


def _conv(layer: Conv, x: Shape) -> Shapes:
    n, c, height, width = x
    made = [(e + 2 * layer.padding - layer.taps) // layer.stride + 1 for e in (height, width)]
    pooled = [e // (layer.pool or 1) for e in made]
    return Shapes(layer, x, (layer.k, c, layer.taps, layer.taps), (layer.k,), (n, layer.k, *made), (n, layer.k, *pooled))


def _linear(layer: Linear, x: Shape, classes: int) -> Shapes:
    """Reads the result of a convolution as one row for each picture."""
    rows = (x[0], math.prod(x[1:]))
    k = classes if layer.k is None else layer.k
    return Shapes(layer, rows, (k, rows[1]), (k,), (rows[0], k), (rows[0], k))


def _vgg(name: str, blocks: Sequence[Sequence[int]]) -> Network:
    """Blocks of 3x3 convolutions, each block ended by pooling, and three fully connected layers (Simonyan, Zisserman 2014)."""
    convs = [
        Conv(f"conv{i}_{j}", k, pool=2 if j == len(block) else None)
        for i, block in enumerate(blocks, 1)
        for j, k in enumerate(block, 1)
    ]
    first = len(blocks) + 1
    hidden = [Linear(f"fc{first + i}", 4096, dropout=0.5) for i in range(2)]
    return Network(name, (*convs, *hidden, Linear(f"fc{first + 2}", None, activation=None)))


VGG11 = _vgg("vgg11", ([64], [128], [256] * 2, [512] * 2, [512] * 2))
VGG16 = _vgg("vgg16", ([64] * 2, [128] * 2, [256] * 3, [512] * 3, [512] * 3))
VGG19 = _vgg("vgg19", ([64] * 2, [128] * 2, [256] * 4, [512] * 4, [512] * 4))

NETWORKS = {net.name: net for net in (VGG11, VGG16, VGG19)}

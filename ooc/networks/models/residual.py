"""Residual networks: ResNet and Wide ResNet."""

from __future__ import annotations

from ooc.api.arguments import as_int
from ooc.errors import ArgumentError, shown
from ooc.networks.graph import Graph
from ooc.networks.models.common import dropped, finished, scaling, started

BASIC = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}


def blocks_of(depth: int) -> tuple[int, ...]:
    """How many bottlenecks each stage of a ResNet has: depth = 3 * sum(blocks) + 2, with 3, 4, m, 3 blocks from depth 50 (m = 6)
    on, with 3, 8, m, 3 from depth 152 (m = 36) on. Raises ArgumentError for depths that this does not make."""
    if isinstance(depth, bool) or not isinstance(depth, int) or depth < 50 or depth % 3 != 2:
        raise ArgumentError(f"resnet: depth={shown(depth)}: expected 18, 34, or 3 * blocks + 2 from 50 on: 50, 53, ... 1517, ...")
    second = 8 if depth >= 152 else 4
    return (3, second, (depth - 2) // 3 - second - 6, 3)


def resnet(depth: int = 50, *, side: int = 224, classes: int = 1000, width: float = 1, dropout: float = 0) -> Graph:
    """ResNet: blocks of convolutions with batch normalisation, and a shortcut beside each. Blocks that halve the side do so in
    their first 3x3 convolution, as torchvision's. Any side will do.

    Parameters:
        depth: layers with weights: 18 and 34 (two 3x3 convolutions a block); from 50 (default) on 3 * blocks + 2 (bottlenecks),
            with 3, 4, m, 3 blocks in the four stages, from 152 on 3, 8, m, 3: 50, 101, 152 are the paper's, 1517 has m = 491.
        side: of the pictures; default 224.
        classes: default 1000.
        width: factor on all numbers of channels; default 1.
        dropout: rate in front of the linear layer; default 0: none, as in the paper.

    Returns:
        graph: an `ooc.Graph`.

    Raises:
        ShapeError: a depth that cannot be made, sizes that make no network.

    Source: He, Zhang, Ren, Sun, "Deep residual learning for image recognition", CVPR 2016; more depth by a longer
    third stage: Jin et al., "Layer-centric memory reuse and data migration for extreme-scale deep learning", TACO 2018 (Layrub).
    """
    k = scaling(width)
    basic = isinstance(depth, int) and depth in BASIC
    stages = BASIC[depth] if basic else blocks_of(depth)
    g, x = started(f"resnet{depth}", side)
    h = g.batch_norm(g.conv(x, k(64), 7, stride=2, padding=3, name="conv1"), activation="relu", name="bn1")
    h = g.pool(h, 3, stride=2, padding=1, name="maxpool")
    for stage, count in enumerate(stages, 1):
        inner = k(32 << stage)
        for i in range(count):
            stride = 2 if stage > 1 and i == 0 else 1
            rows = [(3, inner, stride), (3, inner, 1)] if basic else [(1, inner, 1), (3, inner, stride), (1, 4 * inner, 1)]
            h = _block(g, h, rows, stride, f"layer{stage}.{i}")
    h = dropped(g, g.global_pool(h, name="avgpool"), dropout, "drop")
    return finished(g, g.linear(h, classes, bias=True, name="fc"))


def _block(g: Graph, x: str, rows: list[tuple[int, int, int]], stride: int, name: str) -> str:
    """Convolutions (taps, channels, stride) with batch normalisation, and the shortcut."""
    h, last = x, len(rows)
    for i, (taps, k, step) in enumerate(rows, 1):
        h = g.conv(h, k, taps, stride=step, padding=taps // 2, name=f"{name}.conv{i}")
        h = g.batch_norm(h, activation="relu" if i < last else None, name=f"{name}.bn{i}")
    if g.shapes[x][0] != rows[-1][1] or stride > 1:
        x = g.batch_norm(g.conv(x, rows[-1][1], 1, stride=stride, name=f"{name}.downsample.0"), name=f"{name}.downsample.1")
    return g.add(h, x, activation="relu", name=name)


def wrn(depth: int = 28, widen: int = 10, *, side: int = 32, classes: int = 10, width: float = 1, dropout: float = 0) -> Graph:
    """Wide ResNet: three groups of blocks whose batch normalisation and activation come in front of their convolutions.

    Parameters:
        depth: layers with weights, 6 * blocks of a group + 4; default 28.
        widen: factor on the channels behind the first convolution; default 10.
        side: of the pictures; default 32, any will do.
        classes: default 10.
        width: factor on all numbers of channels; default 1.
        dropout: rate between the two convolutions of a block; default 0: none, the paper also has 0.3.

    Returns:
        graph: an `ooc.Graph`.

    Raises:
        ArgumentError: a depth that cannot be made, sizes that make no network.

    Source: Zagoruyko, Komodakis, "Wide residual networks", BMVC 2016.
    """
    if isinstance(depth, bool) or not isinstance(depth, int) or depth < 10 or depth % 6 != 4:
        raise ArgumentError(f"wrn: depth={shown(depth)}: expected 6 * blocks + 4 of at least 10: 10, 16, 22, 28, ...")
    k, widen = scaling(width), as_int("widen", widen)
    g, x = started(f"wrn{depth}_{widen}", side)
    h = g.conv(x, k(16), 3, padding=1, name="conv1")
    for group in (1, 2, 3):
        for i in range((depth - 4) // 6):
            h = _wide(g, h, k((8 << group) * widen), 2 if group > 1 and i == 0 else 1, dropout, f"block{group}.{i}")
    h = g.global_pool(g.batch_norm(h, activation="relu", name="bn"), name="avgpool")
    return finished(g, g.linear(h, classes, bias=True, name="fc"))


def _wide(g: Graph, x: str, k: int, stride: int, dropout: float, name: str) -> str:
    """Two convolutions behind normalisations; where the shapes differ the shortcut is a convolution behind the first one."""
    front = g.batch_norm(x, activation="relu", name=f"{name}.bn1")
    h = g.conv(front, k, 3, stride=stride, padding=1, name=f"{name}.conv1")
    h = g.batch_norm(h, activation="relu", name=f"{name}.bn2")
    h = g.conv(dropped(g, h, dropout, f"{name}.drop"), k, 3, padding=1, name=f"{name}.conv2")
    if g.shapes[x][0] != k or stride > 1:
        x = g.conv(front, k, 1, stride=stride, name=f"{name}.shortcut")
    return g.add(h, x, name=name)

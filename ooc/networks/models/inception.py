"""GoogLeNet."""

from __future__ import annotations

from collections.abc import Callable

from ooc.networks.graph import Graph
from ooc.networks.models.common import dropped, finished, scaling, started

# Channels of 1x1; in front of 3x3, of 3x3; in front of 5x5, of 5x5; behind the pool. Source: Szegedy et al., table 1.
MODULES = {
    "3a": (64, 96, 128, 16, 32, 32), "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64), "4b": (160, 112, 224, 24, 64, 64), "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64), "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128), "5b": (384, 192, 384, 48, 128, 128),
}  # fmt: skip


def googlenet(*, side: int = 224, classes: int = 1000, width: float = 1, dropout: float = 0.4) -> Graph:
    """GoogLeNet, the network of inception modules, without its auxiliary classifiers; response normalisation as in Caffe's.

    The last window of a pool may reach over the end, which is padded where it does; so any side will do.

    Parameters:
        side: of the pictures; default 224.
        classes: default 1000.
        width: factor on all numbers of channels; default 1.
        dropout: rate in front of the linear layer; default 0.4, 0: none.

    Returns:
        graph: an `ooc.Graph`.

    Raises:
        ShapeError: sizes that make no network.

    Source: Szegedy et al., "Going deeper with convolutions", CVPR 2015.
    """
    k = scaling(width)
    g, x = started("googlenet", side)
    h = g.conv(x, k(64), 7, stride=2, padding=3, bias=True, activation="relu", name="conv1")
    h = g.lrn(_pool(g, h, "pool1"), 5, base=1.0, name="norm1")
    h = g.conv(h, k(64), 1, bias=True, activation="relu", name="conv2_reduce")
    h = g.conv(h, k(192), 3, padding=1, bias=True, activation="relu", name="conv2")
    h = _pool(g, g.lrn(h, 5, base=1.0, name="norm2"), "pool2")
    for name, channels in MODULES.items():
        h = _module(g, h, k, channels, f"inception_{name}")
        if name in ("3b", "4e"):
            h = _pool(g, h, f"pool{name[0]}")
    h = dropped(g, g.global_pool(h, name="pool5"), dropout, "drop")
    return finished(g, g.linear(h, classes, bias=True, name="fc"))


def _pool(g: Graph, x: str, name: str) -> str:
    """Windows of 3 every 2, as many as begin inside."""
    _, *extent = g.shapes[x]
    pads = tuple((0, 2 * -(-max(0, e - 3) // 2) + 3 - e) for e in extent)
    return g.pool(x, 3, stride=2, padding=pads, name=name)


def _module(g: Graph, x: str, k: Callable[..., int], channels: tuple[int, ...], name: str) -> str:
    """Four ways side by side."""
    one, reduce3, three, reduce5, five, behind = map(k, channels)

    def conv(x: str, k: int, taps: int, what: str) -> str:
        return g.conv(x, k, taps, padding=taps // 2, bias=True, activation="relu", name=f"{name}.{what}")

    return g.concat(
        conv(x, one, 1, "1x1"),
        conv(conv(x, reduce3, 1, "3x3_reduce"), three, 3, "3x3"),
        conv(conv(x, reduce5, 1, "5x5_reduce"), five, 5, "5x5"),
        conv(g.pool(x, 3, stride=1, padding=1, name=f"{name}.pool"), behind, 1, "pool_proj"),
        name=name,
    )

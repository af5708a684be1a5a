"""Networks that are a row of layers: AlexNet, OverFeat, VGG."""

from __future__ import annotations

from ooc.errors import ArgumentError, shown
from ooc.networks.graph import Graph
from ooc.networks.models.common import dropped, finished, scaling, started

# Convolutions of 3x3 in each of VGG's five blocks. Source: Simonyan and Zisserman, table 1, columns A, B, D, E.
VGG = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
# Sides from which the strided stem leaves something for the last pool.
ALEXNET_STRIDED, OVERFEAT_STRIDED = 67, 71


def alexnet(*, side: int = 227, classes: int = 1000, width: float = 1, dropout: float = 0.5) -> Graph:
    """AlexNet: five convolutions, response normalisation behind two of them, overlapping pools, three linear layers.

    One row of layers as wide as the paper's two GPUs together, whose halves are groups=2 of conv2, conv4 and conv5: channels of
    convolutions are even. At sides below 67 the first convolution keeps the side (stride 1, padding 5); the least side is 15.

    Parameters:
        side: of the pictures; default 227.
        classes: default 1000.
        width: factor on all numbers of channels; default 1.
        dropout: rate behind fc6 and fc7; default 0.5, 0: none.

    Returns:
        graph: an `ooc.Graph`.

    Raises:
        ShapeError: sizes that make no network.

    Source: Krizhevsky, Sutskever, Hinton, "ImageNet classification with deep convolutional neural networks", NIPS 2012.
    """
    k = scaling(width)
    g, x = started("alexnet", side)
    stem = {"stride": 4} if side >= ALEXNET_STRIDED else {"padding": 5}
    h = g.conv(x, k(96, 2), 11, **stem, bias=True, activation="relu", name="conv1")
    h = g.pool(g.lrn(h, 5, alpha=5e-4, name="norm1"), 3, stride=2, name="pool1")
    h = g.conv(h, k(256, 2), 5, padding=2, groups=2, bias=True, activation="relu", name="conv2")
    h = g.pool(g.lrn(h, 5, alpha=5e-4, name="norm2"), 3, stride=2, name="pool2")
    for name, channels, groups in (("conv3", 384, 1), ("conv4", 384, 2), ("conv5", 256, 2)):
        h = g.conv(h, k(channels, 2), 3, padding=1, groups=groups, bias=True, activation="relu", name=name)
    h = g.pool(h, 3, stride=2, name="pool5")
    return _classified(g, h, k(4096), k(4096), classes, dropout)


def overfeat(*, side: int = 231, classes: int = 1000, width: float = 1, dropout: float = 0.5) -> Graph:
    """OverFeat, the fast model: five convolutions, pools that do not overlap, three linear layers.

    At sides below 71 the first convolution keeps the side (stride 1, padding 5); the least side is 16.

    Parameters:
        side: of the pictures; default 231.
        classes: default 1000.
        width: factor on all numbers of channels; default 1.
        dropout: rate behind fc6 and fc7; default 0.5, 0: none.

    Returns:
        graph: an `ooc.Graph`.

    Raises:
        ShapeError: sizes that make no network.

    Source: Sermanet, Eigen, Zhang, Mathieu, Fergus, LeCun, "OverFeat: integrated recognition, localization and detection using
    convolutional networks", ICLR 2014, table 1.
    """
    k = scaling(width)
    g, x = started("overfeat", side)
    stem = {"stride": 4} if side >= OVERFEAT_STRIDED else {"padding": 5}
    h = g.pool(g.conv(x, k(96), 11, **stem, bias=True, activation="relu", name="conv1"), 2, name="pool1")
    h = g.pool(g.conv(h, k(256), 5, bias=True, activation="relu", name="conv2"), 2, name="pool2")
    for name, channels in (("conv3", 512), ("conv4", 1024), ("conv5", 1024)):
        h = g.conv(h, k(channels), 3, padding=1, bias=True, activation="relu", name=name)
    h = g.pool(h, 2, name="pool5")
    return _classified(g, h, k(3072), k(4096), classes, dropout)


def vgg(depth: int = 16, *, side: int = 224, classes: int = 1000, width: float = 1, dropout: float = 0.5) -> Graph:
    """VGG: blocks of 3x3 convolutions with a pool behind each, three linear layers.

    At side 32, the least, one position is left in front of fc6.

    Parameters:
        depth: layers with weights: 16 (default), 19, 11 or 13.
        side: of the pictures; default 224.
        classes: default 1000.
        width: factor on all numbers of channels; default 1.
        dropout: rate behind fc6 and fc7; default 0.5, 0: none.

    Returns:
        graph: an `ooc.Graph`.

    Raises:
        ArgumentError: another depth, sizes that make no network.

    Source: Simonyan, Zisserman, "Very deep convolutional networks for large-scale image recognition", ICLR 2015.
    """
    if not isinstance(depth, int) or depth not in VGG:
        raise ArgumentError(f"vgg: depth={shown(depth)}: expected one of {', '.join(map(str, VGG))}")
    k = scaling(width)
    g, h = started(f"vgg{depth}", side)
    for block, count in enumerate(VGG[depth], 1):
        for i in range(1, count + 1):
            channels = k(min(512, 32 << block))
            h = g.conv(h, channels, 3, padding=1, bias=True, activation="relu", name=f"conv{block}_{i}")
        h = g.pool(h, 2, name=f"pool{block}")
    return _classified(g, h, k(4096), k(4096), classes, dropout)


def _classified(g: Graph, h: str, k6: int, k7: int, classes: int, dropout: float) -> Graph:
    """Three linear layers, with dropout behind the first two."""
    h = g.flatten(h, name="flat")
    for name, k in (("fc6", k6), ("fc7", k7)):
        h = dropped(g, g.linear(h, k, bias=True, activation="relu", name=name), dropout, f"drop{name[2]}")
    return finished(g, g.linear(h, classes, bias=True, name="fc8"))

"""3-D U-Net."""

from __future__ import annotations

from ooc.networks.graph import Graph
from ooc.networks.models.common import dropped, finished, scaling, started

DEPTH = 3  # times that the side is halved


def unet3d(*, side: int = 64, classes: int = 3, width: float = 1, dropout: float = 0) -> Graph:
    """3-D U-Net: two convolutions with batch normalisation a level, down and up again, and a class for every voxel.

    As in the paper, but one channel comes in, convolutions are padded, so nothing is cropped, and have no bias beside their
    normalisation's. Labels are batch x side x side x side.

    Parameters:
        side: of the volumes, a multiple of 8; default 64.
        classes: default 3.
        width: factor on all numbers of channels; default 1.
        dropout: rate behind the deepest level; default 0: none, as in the paper.

    Returns:
        graph: an `ooc.Graph`.

    Raises:
        ShapeError: sizes that make no network.

    Source: Cicek, Abdulkadir, Lienkamp, Brox, Ronneberger, "3D U-Net: learning dense volumetric segmentation from sparse
    annotation", MICCAI 2016.
    """
    k = scaling(width)
    g, h = started("unet3d", side, channels=1, rank=3)
    skips = []
    for level in range(1, DEPTH + 1):
        skips.append(_level(g, h, (k(16 << level), k(32 << level)), f"down{level}"))
        h = g.pool(skips[-1], 2, name=f"pool{level}")
    h = _level(g, h, (k(16 << DEPTH + 1), k(32 << DEPTH + 1)), "bottom")
    h = dropped(g, h, dropout, "drop")
    for level in range(DEPTH, 0, -1):
        up = g.conv_transpose(h, g.shapes[h][0], 2, stride=2, name=f"up{level}")
        joined = g.concat(skips[level - 1], up, name=f"up{level}.concat")
        h = _level(g, joined, (k(32 << level), k(32 << level)), f"up{level}")
    return finished(g, g.conv(h, classes, 1, bias=True, name="logits"))


def _level(g: Graph, x: str, channels: tuple[int, ...], name: str) -> str:
    """Convolutions of 3x3x3 that keep the side."""
    for i, k in enumerate(channels, 1):
        x = g.batch_norm(g.conv(x, k, 3, padding=1, name=f"{name}.conv{i}"), activation="relu", name=f"{name}.bn{i}")
    return x

"""U-Nets: a class for every voxel or pixel."""

from __future__ import annotations

from collections.abc import Callable

from ooc.errors import ArgumentError, shown
from ooc.networks.graph import Graph
from ooc.networks.models.common import dropped, finished, scaling, started

DEPTH, FLAT_DEPTH = 3, 4  # times that the side is halved, of volumes and of pictures


def unet3d(
    *, side: int = 64, classes: int = 3, width: float = 1, dropout: float = 0, channels: int = 1, norm: str = "batch"
) -> Graph:  # fmt: skip
    """3-D U-Net: two convolutions with batch normalisation a level, down and up again, and a class for every voxel.

    As in the paper, but one channel comes in, convolutions are padded, so nothing is cropped, and have no bias beside their
    normalisation's. Labels are batch x side x side x side.

    Parameters:
        side: of the volumes, a multiple of 8; default 64.
        classes: default 3.
        width: factor on all numbers of channels; default 1.
        dropout: rate behind the deepest level; default 0: none, as in the paper.
        channels: of the volumes; default 1.
        norm: "batch" (default), or "instance": statistics of each volume by itself, as nnU-Net has it.

    Returns:
        graph: an `ooc.Graph`.

    Raises:
        ShapeError: sizes that make no network.

    Source: Cicek, Abdulkadir, Lienkamp, Brox, Ronneberger, "3D U-Net: learning dense volumetric segmentation from sparse
    annotation", MICCAI 2016.
    """
    k = scaling(width)
    g, h = started("unet3d", side, channels, rank=3)
    skips = []
    for level in range(1, DEPTH + 1):
        skips.append(_level(g, h, (k(16 << level), k(32 << level)), f"down{level}", norm))
        h = g.pool(skips[-1], 2, name=f"pool{level}")
    h = _level(g, h, (k(16 << DEPTH + 1), k(32 << DEPTH + 1)), "bottom", norm)
    h = dropped(g, h, dropout, "drop")
    for level in range(DEPTH, 0, -1):
        h = _up(g, h, g.shapes[h][0], skips[level - 1], k(32 << level), level, norm)
    return finished(g, g.conv(h, classes, 1, bias=True, name="logits"))


def unet(
    *, side: int = 256, classes: int = 2, width: float = 1, dropout: float = 0, channels: int = 1, norm: str = "batch"
) -> Graph:  # fmt: skip
    """U-Net: two convolutions with batch normalisation a level, down and up again, and a class for every pixel.

    As in the paper, but convolutions are padded, so nothing is cropped, and have a batch normalisation in place of their bias.
    Labels are batch x side x side.

    Parameters:
        side: of the pictures, a multiple of 16; default 256.
        classes: default 2.
        width: factor on all numbers of channels; default 1.
        dropout: rate behind the deepest level; default 0: none.
        channels: of the pictures; default 1.
        norm: "batch" (default), or "instance": statistics of each picture by itself.

    Returns:
        graph: an `ooc.Graph`.

    Raises:
        ShapeError: sizes that make no network.

    Source: Ronneberger, Fischer, Brox, "U-Net: convolutional networks for biomedical image segmentation", MICCAI 2015.
    """
    k = scaling(width)
    g, h = started("unet", side, channels)
    skips = []
    for level in range(1, FLAT_DEPTH + 1):
        skips.append(_level(g, h, (k(32 << level),) * 2, f"down{level}", norm))
        h = g.pool(skips[-1], 2, name=f"pool{level}")
    h = _level(g, h, (k(32 << FLAT_DEPTH + 1),) * 2, "bottom", norm)
    h = dropped(g, h, dropout, "drop")
    for level in range(FLAT_DEPTH, 0, -1):
        h = _up(g, h, k(32 << level), skips[level - 1], k(32 << level), level, norm)
    return finished(g, g.conv(h, classes, 1, bias=True, name="logits"))


def _level(g: Graph, x: str, channels: tuple[int, ...], name: str, norm: str) -> str:
    """Convolutions of three taps along each axis that keep the side."""
    norms: dict[str, tuple[Callable[..., str], str]] = {"batch": (g.batch_norm, "bn"), "instance": (g.instance_norm, "in")}
    if norm not in norms:
        raise ArgumentError(f"norm={shown(norm)}: expected {' or '.join(map(repr, norms))}")
    normal, short = norms[norm]
    for i, k in enumerate(channels, 1):
        x = normal(g.conv(x, k, 3, padding=1, name=f"{name}.conv{i}"), activation="relu", name=f"{name}.{short}{i}")
    return x


def _up(g: Graph, x: str, wide: int, skip: str, k: int, level: int, norm: str) -> str:
    """x at twice its side, in so many channels, beside what was there on the way down; k channels of both."""
    up = g.conv_transpose(x, wide, 2, stride=2, name=f"up{level}")
    return _level(g, g.concat(skip, up, name=f"up{level}.concat"), (k, k), f"up{level}", norm)

"""The networks of the papers, as graphs with a cross-entropy loss and the logits as output, a family a file.

All take `side`, `classes`, `width` and `dropout`: pictures of other sides, other numbers of classes, a factor on all numbers of
channels, and the rate of the dropout layers, 0 for none. U-Nets take `channels` of their input too.
"""

from __future__ import annotations

import re
from typing import Any

from ooc.errors import ArgumentError, shown
from ooc.networks.graph import Graph
from ooc.networks.models.inception import googlenet
from ooc.networks.models.plain import alexnet, overfeat, vgg
from ooc.networks.models.residual import resnet, wrn
from ooc.networks.models.volumes import unet, unet3d

NAMES = {
    r"(alexnet|overfeat|googlenet|unet|unet3d)": "alexnet, overfeat, googlenet, unet, unet3d",
    r"(vgg)(\d+)": "vgg16, vgg19",
    r"(resnet)(\d+)": "resnet50 or another depth",
    r"(wrn)(\d+)-(\d+)": "wrn28-10 or another depth and width",
}
FAMILIES = {f.__name__: f for f in (alexnet, googlenet, overfeat, resnet, unet, unet3d, vgg, wrn)}


def named(name: str, **sizes: Any) -> Graph:
    """The network of a name with its numbers in it, such as vgg16, resnet50 or wrn28-10.

    Parameters:
        name: of the network, in capitals or not.
        sizes: side=, classes=, width= and dropout=, of U-Nets channels= too; default: the network's own.

    Returns:
        graph: an `ooc.Graph`.

    Raises:
        ArgumentError: another name, sizes that make no network.

    Source: the functions of this package, each with its paper.
    """
    match = next((m for pattern in NAMES if (m := re.fullmatch(pattern, str(name).lower()))), None)
    if match is None:
        raise ArgumentError(f"network {shown(name)}: expected {'; '.join(NAMES.values())}")
    word, *numbers = match.groups()
    graph: Graph = FAMILIES[word](*map(int, numbers), **sizes)
    return graph


__all__ = ["alexnet", "googlenet", "named", "overfeat", "resnet", "unet", "unet3d", "vgg", "wrn"]

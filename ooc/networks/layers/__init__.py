"""The layers of a network, a family a file: shapes, parameters, and the calls of both passes."""

from __future__ import annotations

from ooc.networks.layers.base import Layer, Weights
from ooc.networks.layers.conv import Conv, ConvTranspose, Linear
from ooc.networks.layers.elementwise import Act, Add, Affine, ArgMax, Convert, Dropout, Function, Multiply, Round, Softmax
from ooc.networks.layers.loss import CrossEntropyLoss
from ooc.networks.layers.norm import BatchNorm, GroupNorm, Lrn
from ooc.networks.layers.pool import GlobalPool, Pool
from ooc.networks.layers.shapes import Concat, DepthToSpace, Flatten, Laid, Pad, Permute, Reshape, Resize, Upsample

KINDS: dict[str, type[Layer]] = {
    layer.kind: layer
    for layer in (
        Act, Add, Affine, ArgMax, BatchNorm, Concat, Conv, ConvTranspose, Convert, CrossEntropyLoss, DepthToSpace, Dropout,
        Flatten, Function, GlobalPool, GroupNorm, Laid, Linear, Lrn, Multiply, Pad, Permute, Pool, Reshape, Resize, Round,
        Softmax, Upsample,
    )
}  # fmt: skip

__all__ = [
    "KINDS", "Act", "Add", "Affine", "ArgMax", "BatchNorm", "Concat", "Conv", "ConvTranspose", "Convert", "CrossEntropyLoss",
    "DepthToSpace", "Dropout", "Flatten", "Function", "GlobalPool", "GroupNorm", "Laid", "Layer", "Linear", "Lrn", "Multiply",
    "Pad", "Permute", "Pool", "Reshape", "Resize", "Round", "Softmax", "Upsample", "Weights",
]  # fmt: skip

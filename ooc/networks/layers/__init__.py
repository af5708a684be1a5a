"""The layers of a network, a family a file: shapes, parameters, and the calls of both passes."""

from __future__ import annotations

from ooc.networks.layers.attention import AttentionLayer
from ooc.networks.layers.base import Layer, Weights
from ooc.networks.layers.broadcast import BinaryLayer, ExpandLayer, ParameterLayer
from ooc.networks.layers.conv import ConvLayer, ConvTranspose, Linear
from ooc.networks.layers.dice import DiceLoss
from ooc.networks.layers.elementwise import (
    Act,
    Add,
    Affine,
    ArgMaxLayer,
    Convert,
    DropoutLayer,
    FunctionLayer,
    MultiplyLayer,
    Round,
    Softmax,
)
from ooc.networks.layers.loss import AbsoluteLoss, BinaryLoss, CrossEntropyLoss, Loss, SquaredLoss
from ooc.networks.layers.matmul import MatMulLayer
from ooc.networks.layers.norm import BatchNormLayer, GroupNorm, LrnLayer
from ooc.networks.layers.pool import GlobalPool, MaxUnpool, PoolLayer
from ooc.networks.layers.sampling import GridSampleLayer
from ooc.networks.layers.shapes import (
    ConcatLayer,
    DepthToSpace,
    Flatten,
    Laid,
    Pad,
    PermuteLayer,
    Reshape,
    ResizeLayer,
    Stop,
    UpsampleLayer,
)

OF_LOSSES: tuple[type[Loss], ...] = (CrossEntropyLoss, SquaredLoss, AbsoluteLoss, BinaryLoss, DiceLoss)
LOSSES: dict[str, type[Loss]] = {loss.kind: loss for loss in OF_LOSSES}
LAYERS: tuple[type[Layer], ...] = (
    Act, Add, Affine, ArgMaxLayer, AttentionLayer, BatchNormLayer, BinaryLayer, ConcatLayer, ConvLayer, ConvTranspose, Convert,
    DepthToSpace, DropoutLayer, ExpandLayer, Flatten, FunctionLayer, GlobalPool, GridSampleLayer, GroupNorm, Laid, Linear,
    LrnLayer, MatMulLayer, MaxUnpool, MultiplyLayer, Pad, ParameterLayer, PermuteLayer, PoolLayer, Reshape, ResizeLayer, Round,
    Softmax, Stop, UpsampleLayer,
)  # fmt: skip
KINDS: dict[str, type[Layer]] = {layer.kind: layer for layer in LAYERS} | LOSSES

__all__ = [
    "KINDS", "LOSSES", "Act", "Add", "Affine", "ArgMaxLayer", "AttentionLayer", "BatchNormLayer", "BinaryLayer", "ConcatLayer",
    "ConvLayer", "ConvTranspose", "Convert", "DepthToSpace", "DropoutLayer", "ExpandLayer", "Flatten", "FunctionLayer",
    "GlobalPool", "GridSampleLayer", "GroupNorm", "Laid", "Layer", "Linear", "Loss", "LrnLayer", "MatMulLayer", "MaxUnpool",
    "MultiplyLayer", "Pad", "ParameterLayer", "PermuteLayer", "PoolLayer", "Reshape", "ResizeLayer", "Round", "Softmax", "Stop",
    "UpsampleLayer", "Weights",
]  # fmt: skip

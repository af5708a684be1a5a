"""Sampling at positions of a grid in exported programs, and the positions of affine maps."""

from __future__ import annotations

from ooc.ops.grid_sample import PADDINGS
from ooc.torch.translator import TorchCall, operator
from ooc.translate import sampling
from ooc.translate.building import GraphTensor

HOWS = ("linear", "nearest", "cubic")  # by PyTorch's number


@operator("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def grid_sample(context: TorchCall) -> GraphTensor:
    how, padding = HOWS[context.argument("interpolation_mode")], PADDINGS[context.argument("padding_mode")]
    aligned = bool(context.argument("align_corners"))
    return sampling.grid_sample(context, context.operand("input"), context.operand("grid"), how, padding, aligned)


@operator("affine_grid_generator")
def affine_grid(context: TorchCall) -> GraphTensor:
    size = tuple(context.argument("size"))[2:]
    return sampling.affine_grid(context, context.tensor("theta"), size, bool(context.argument("align_corners")))

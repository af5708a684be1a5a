"""GridSample and AffineGrid."""

from __future__ import annotations

from ooc.onnx.translator import OnnxNode, operator
from ooc.translate import sampling
from ooc.translate.building import GraphTensor

HOWS = {"linear": "linear", "bilinear": "linear", "nearest": "nearest", "cubic": "cubic", "bicubic": "cubic"}  # of all opsets


@operator("GridSample")
def grid_sample(context: OnnxNode) -> GraphTensor:
    how, padding = context.attribute("mode", "linear"), context.attribute("padding_mode", "zeros")
    if how not in HOWS or padding not in ("zeros", "border", "reflection"):
        raise context.refuse(f"mode {how!r} with padding_mode {padding!r}")
    aligned = bool(context.attribute("align_corners", 0))
    return sampling.grid_sample(context, context.operand(0), context.operand(1), HOWS[how], padding, aligned)


@operator("AffineGrid")
def affine_grid(context: OnnxNode) -> GraphTensor:
    size = context.constant(1, "size")
    return sampling.affine_grid(
        context, context.tensor(), tuple(int(e) for e in size[2:]), bool(context.attribute("align_corners", 0))
    )

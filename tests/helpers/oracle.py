"""Naive float64 references for whole problems: what every tiling, kernel and backend is compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from oracle_backward import activation_backward, conv_dgrad, conv_wgrad, pool_backward, resize_backward, upsample_backward
from oracle_forward import (
    Array,
    Arrays,
    Results,
    argmax,
    attention,
    binary,
    concat,
    conv_fprop,
    convert_in,
    convert_out,
    dropout,
    function,
    matmul,
    multiply,
    permute,
    place,
    pointwise,
    pool_fprop,
    reduce,
    resize,
    spread,
    upsample,
)
from oracle_losses import (
    cross_entropy,
    cross_entropy_backward,
    dice_dot,
    dice_pull,
    dice_score,
    dice_sums,
    distance,
    distance_backward,
)
from oracle_norm import (
    bn_apply,
    bn_moments,
    bn_pull,
    bn_sums,
    lrn,
    lrn_backward,
    softmax,
    softmax_backward,
    softmax_sum,
    softmax_summed,
)
from oracle_sampling import grid_sample
from oracle_updates import accrue, adam, pace, rmsprop, sgd, squares

from ooc.ir.op import numpy_dtype
from ooc.ops.binary import BINARIES
from ooc.ops.distance import DISTANCES
from ooc.ops.function import FUNCTIONS
from ooc.ops.resize import HOWS

ORACLE: dict[str, Callable[[Any, Arrays], Results]] = {
    "conv.fprop": conv_fprop,
    "conv.dgrad": conv_dgrad,
    "conv.wgrad": conv_wgrad,
    **dict.fromkeys(("pool.max", "pool.average", "pool.average_valid"), pool_fprop),
    **dict.fromkeys(("pool_backward.max", "pool_backward.average", "pool_backward.average_valid"), pool_backward),
    "pointwise": pointwise,
    "multiply": multiply,
    **{f"binary.{how}": binary for how in BINARIES},
    **dict.fromkeys(("matmul.nn", "matmul.nt", "matmul.tn"), matmul),
    "attention.forward": attention,
    **dict.fromkeys((f"attention_backward.{how}" for how in ("q", "k", "v", "scores", "dots")), attention),
    "concat": concat,
    "place": place,
    "argmax": argmax,
    "permute": permute,
    **dict.fromkeys(("spread.crd", "spread.dcr"), spread),
    **dict.fromkeys((f"function.{how}" for how in FUNCTIONS), function),
    **dict.fromkeys((f"resize.{how}" for how in HOWS), resize),
    **dict.fromkeys((f"resize_backward.{how}" for how in HOWS), resize_backward),
    "convert.in": convert_in,
    "convert.out": convert_out,
    "activation_backward": activation_backward,
    "reduce.bias": reduce,
    "reduce.positions": reduce,
    "bn.moments": bn_moments,
    "bn.apply": bn_apply,
    "bn.sums": bn_sums,
    "bn.pull": bn_pull,
    "softmax.sum": softmax_sum,
    "softmax.plain": softmax,
    "softmax.log": softmax,
    "softmax_backward.dot": softmax_summed,
    "softmax_backward.sum": softmax_summed,
    "softmax_backward.plain": softmax_backward,
    "softmax_backward.log": softmax_backward,
    "cross_entropy": cross_entropy,
    "cross_entropy_backward": cross_entropy_backward,
    **dict.fromkeys((f"distance.{how}" for how in DISTANCES), distance),
    **dict.fromkeys((f"distance_backward.{how}" for how in DISTANCES), distance_backward),
    "dice.sums": dice_sums,
    "dice.score": dice_score,
    "dice_backward.dot": dice_dot,
    "dice_backward.pull": dice_pull,
    **dict.fromkeys(("grid_sample", "grid_sample_backward.x", "grid_sample_backward.grid"), grid_sample),
    "lrn": lrn,
    "lrn_backward": lrn_backward,
    "dropout": dropout,
    "sgd": sgd,
    "adam": adam,
    "adam.rmsprop": rmsprop,
    "pointwise.accrue": accrue,
    "reduce.squares": squares,
    "sgd.pace": pace,
    **dict.fromkeys(("upsample.nearest", "upsample.linear", "upsample.aligned"), upsample),
    **dict.fromkeys((f"upsample_backward.{how}" for how in ("nearest", "linear", "aligned")), upsample_backward),
}


def stored(z: Array, dtype: str) -> Array:
    """Values as they are after being stored in a dtype; float64 again."""
    return z.astype(numpy_dtype(dtype)).astype(np.float64)


def tensors(op: Any, arrays: Mapping[str, Any]) -> Results:
    """Every tensor that an op makes, in float64; of a fused op the inner ones too.

    What one stage hands to the next is stored in the tensor's dtype; what is returned is not rounded.
    """
    known = {o.name: stored(np.asarray(arrays[o.name]), o.dtype) for o in op.inputs}
    if op.kind != "fused":
        return _made(op, known)
    found: Results = {}
    for node in op.nodes:
        made = _made(node.op, {o.name: known[t] for o, t in zip(node.op.inputs, node.reads, strict=True)})
        for operand, tensor in zip(node.op.outputs, node.makes, strict=True):
            found[tensor] = made[operand.name]
            with np.errstate(over="ignore"):
                known[tensor] = stored(made[operand.name], operand.dtype)
    return found


def _made(op: Any, given: Arrays) -> Results:
    with np.errstate(invalid="ignore", over="ignore"):
        made = ORACLE[op.kind](op, given)
    for o in op.outputs:
        assert made[o.name].shape == o.shape, f"{op}: {o.name} is {o.shape}, the reference gives {made[o.name].shape}"
    return made


def evaluate(op: Any, arrays: Mapping[str, Any]) -> Results:
    """The outputs of an op, plain or fused, in float64."""
    found = tensors(op, arrays)
    return {o.name: found[o.name] for o in op.outputs}


def chain(op: Any, arrays: Mapping[str, Any]) -> Array:
    """The only output of an op or a chain."""
    (y,) = evaluate(op, arrays).values()
    return y

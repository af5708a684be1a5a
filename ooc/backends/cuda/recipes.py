"""How each op is told to its kernel of kernels/device/: the kernel's name, the operands in its slots, and its numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ooc import ops
from ooc.backends.cuda.divisor import divisor
from ooc.backends.views import lift_spatial
from ooc.ir.op import INTEGERS, Op
from ooc.ops import grid_sample
from ooc.ops.dice import Scored
from ooc.ops.grid_sample import GridSampling
from ooc.ops.lrn import Lrn
from ooc.ops.optimizer import Update
from ooc.ops.pool import Pooling
from ooc.ops.resample import Resampling
from ooc.ops.statistics import Normal

Numbers = tuple[tuple[int, ...], tuple[float, ...]]


class LaunchRecipe(NamedTuple):
    """How an op is computed: the kernel, the operands in its slots (an op may lack some), and its numbers."""

    kernel: str
    slots: str
    numbers: Callable[[Any], Numbers]


def _convolution(op: ops.Convolution) -> Numbers:
    stride, dilation = lift_spatial(op.stride, 1), lift_spatial(op.dilation, 1)
    pad = lift_spatial(tuple(before for before, _ in op.pad), 0)
    per_group = (op.c // op.groups, op.k // op.groups)
    return (*stride, *dilation, *pad, *per_group, ops.ACTIVATIONS.index(op.act)), (op.coef,)


def _pooling(op: Pooling) -> Numbers:
    pad = lift_spatial(tuple(before for before, _ in op.pad), 0)
    sizes = (*lift_spatial(op.window, 1), *lift_spatial(op.stride, 1), *pad, *lift_spatial(op.extent, 1))
    strides = (divisor(s) for s in lift_spatial(op.stride, 1))
    return (*sizes, ops.pool.KINDS.index(op.how), *(by | shift << 32 for by, shift in strides)), ()


def _pointwise(op: ops.Pointwise) -> Numbers:
    return (ops.ACTIVATIONS.index(op.act), bool(op.add and op.beta)), (op.coef, op.alpha, op.beta)


def _activation(op: ops.ActivationBackward | ops.Multiply) -> Numbers:
    return (ops.ACTIVATIONS.index(op.act),), (op.coef,)


def _convert_in(op: ops.ConvertIn) -> Numbers:
    return (INTEGERS.index(op.store),), (op.scale, op.offset)


def _convert_out(op: ops.ConvertOut) -> Numbers:
    return (INTEGERS.index(op.store),), ops.convert.RANGES[op.store]


def _dropout(op: ops.Dropout) -> Numbers:
    seed = op.seed - (op.seed >> 63 << 64)  # the same 64 bits, with a sign
    return (op.k, *lift_spatial(op.extent, 1), seed, round(op.rate * 2**32)), (1 / (1 - op.rate),)


def _summed(*axes: int) -> int:
    return sum(1 << axis for axis in axes)


def _reduce(op: ops.Reduce) -> Numbers:
    bias = op.how == "bias"
    return (_summed(0, 2, 3, 4) if bias else _summed(2, 3, 4), bias), (op.alpha,)


def _averaged(op: Normal) -> tuple[int, ...]:
    return (_summed(0, 2, 3, 4) if op.per == "channel" else _summed(0),)


def _moments(op: ops.BnMoments) -> Numbers:
    return _averaged(op), (op.count,)


def _bn_sums(op: ops.BnSums) -> Numbers:
    return _averaged(op), (op.eps,)


def _bn_apply(op: ops.BnApply) -> Numbers:
    return (ops.ACTIVATIONS.index(op.act),), (op.coef, op.eps)


def _bn_pull(op: ops.BnPull) -> Numbers:
    return (), (op.eps, op.count)


def _logarithm(op: ops.SoftmaxApply | ops.SoftmaxPull) -> Numbers:
    return (op.how == "log",), ()


def _cross_entropy(op: ops.CrossEntropy | ops.CrossEntropyBackward) -> Numbers:
    return (op.k,), (1 - op.smoothing, op.smoothing / op.k, op.k)


def _distance(op: ops.Distance | ops.DistanceBackward) -> Numbers:
    return (tuple(ops.distance.DISTANCES).index(op.how),), ()


def _dice_sums(op: ops.DiceSums) -> Numbers:
    return (op.logistic, 0, _summed(2, 3, 4) | op.batch * _summed(0)), ()


def _dice(op: Scored) -> Numbers:
    return (op.logistic, op.first), (op.smooth,)


def _lrn(op: Lrn) -> Numbers:
    return (op.size, op.before), (op.alpha, op.beta, op.base)


def _resampling(op: Resampling) -> Numbers:
    return (*lift_spatial(op.extent, 1), *lift_spatial(op.size, 1), ops.resample.KINDS.index(op.how)), ()


def _resize(op: ops.Resize) -> Numbers:
    lines = (0.0, 1.0, 1.0, 0.0) * (3 - op.rank) + op.lines
    return (*lift_spatial(op.extent, 1), *lift_spatial(op.size, 1), ops.resize.HOWS.index(op.how)), lines


def _grid_sample(op: GridSampling) -> Numbers:
    sizes = (*lift_spatial(op.extent, 1), *lift_spatial(op.size, 1), 2 if op.aligned else 1)
    words = (tuple(grid_sample.MODES).index(op.mode), grid_sample.PADDINGS.index(op.padding))
    return (*sizes, *words, op.rank, *lift_spatial(op.margins or (-1,) * op.rank, -1)), ()


def _place(op: ops.Embed) -> Numbers:
    return (op.lead[0], *lift_spatial(op.lead[1:], 0)), (op.value,)


def _argmax(op: ops.ArgMax) -> Numbers:
    return (op.c, INTEGERS.index(op.store)), ()


def _function(op: ops.Function) -> Numbers:
    return (tuple(ops.function.FUNCTIONS).index(op.how),), (op.a, op.b)


def _binary(op: ops.Binary) -> Numbers:
    return (tuple(ops.binary.BINARIES).index(op.how),), ()


def _matmul(op: ops.MatMul) -> Numbers:
    return (op.how == "tn", op.how == "nt", op.run), (op.alpha,)


def _attention(op: ops.Attention) -> Numbers:
    heads = heads_of_biases(op, op.groups, op.k // op.groups)
    return (tuple(ops.attention.PARTS).index(op.how), *heads), (op.scale,)


def heads_of_biases(op: ops.Attention, groups: int, heads: int) -> tuple[int, int, int, int]:
    """By what heads of so many groups are divided, and modulo what, for those of either bias."""
    return *_heads_of(op.by, groups, heads), *_heads_of(op.mask, groups, heads)


def _heads_of(letters: str, groups: int, heads: int) -> tuple[int, int]:
    if groups == 1 or {"g", "k"} <= set(letters):
        return 1, groups * heads
    return (heads, groups) if "g" in letters else (1, heads)


def _update(op: Update) -> Numbers:
    return (op.master, op.summed), ()


def _pace(op: ops.Pace) -> Numbers:
    return (op.count, ops.pacing.GOOD), (ops.pacing.LEAST,)


def _none(op: Op) -> Numbers:
    return (), ()


RECIPES: dict[type[Op], LaunchRecipe] = {
    ops.ConvFprop: LaunchRecipe("conv_fprop", "x w y b", _convolution),
    ops.ConvDgrad: LaunchRecipe("conv_dgrad", "dy w dx b", _convolution),
    ops.ConvWgrad: LaunchRecipe("conv_wgrad", "x dy dw", _convolution),
    ops.PoolForward: LaunchRecipe("pool", "x y", _pooling),
    ops.PoolBackward: LaunchRecipe("pool_backward", "x dy dx", _pooling),
    ops.Pointwise: LaunchRecipe("pointwise", "x z b y", _pointwise),
    ops.ActivationBackward: LaunchRecipe("activation_backward", "y dy dx", _activation),
    ops.Multiply: LaunchRecipe("multiply", "x z b y", _activation),
    ops.Binary: LaunchRecipe("binary", "x z y", _binary),
    ops.MatMul: LaunchRecipe("matmul", "a b y", _matmul),
    ops.Attention: LaunchRecipe("attention", "q k v bias sums dots - - dy y dx mask", _attention),
    ops.ConvertIn: LaunchRecipe("convert_in", "x scale offset y", _convert_in),
    ops.ConvertOut: LaunchRecipe("convert_out", "x y", _convert_out),
    ops.Concat: LaunchRecipe("copy_block", "", _none),
    ops.Permute: LaunchRecipe("copy_block", "", _none),
    ops.Spread: LaunchRecipe("copy_block", "", _none),
    ops.Embed: LaunchRecipe("place", "x y", _place),
    ops.ArgMax: LaunchRecipe("argmax", "x y", _argmax),
    ops.Function: LaunchRecipe("function", "x y", _function),
    ops.Dropout: LaunchRecipe("dropout", "x y draw", _dropout),
    ops.Sgd: LaunchRecipe("sgd", "g p v rates q u h", _update),
    ops.AdamUpdate: LaunchRecipe("adam", "g p m v rates q r s h", _update),
    ops.RmsPropUpdate: LaunchRecipe("rmsprop", "g p v b a rates q s u c h", _update),
    ops.Accrue: LaunchRecipe("accrue", "x a shares r", _none),
    ops.Squares: LaunchRecipe("squares", "x before y", _none),
    ops.Pace: LaunchRecipe("pace", "rates controls state sums pace shares left", _pace),
    ops.Reduce: LaunchRecipe("reduce", "x y", _reduce),
    ops.BnMoments: LaunchRecipe("bn_moments", "x mean var", _moments),
    ops.BnSums: LaunchRecipe("bn_sums", "x dy mean var dscale db", _bn_sums),
    ops.BnApply: LaunchRecipe("bn_apply", "x mean var scale b y", _bn_apply),
    ops.BnPull: LaunchRecipe("bn_pull", "x dy mean var scale dscale db dx", _bn_pull),
    ops.SoftmaxSum: LaunchRecipe("softmax_sum", "x sums", _none),
    ops.SoftmaxApply: LaunchRecipe("softmax", "x sums y", _logarithm),
    ops.SoftmaxDot: LaunchRecipe("softmax_dot", "dy y s", _none),
    ops.SoftmaxPull: LaunchRecipe("softmax_pull", "y dy s dx", _logarithm),
    ops.CrossEntropy: LaunchRecipe("cross_entropy", "x labels sums loss weights", _cross_entropy),
    ops.CrossEntropyBackward: LaunchRecipe("cross_entropy_backward", "x labels sums dloss dx weights", _cross_entropy),
    ops.Distance: LaunchRecipe("distance", "x target loss weights", _distance),
    ops.DistanceBackward: LaunchRecipe("distance_backward", "x target share dx weights", _distance),
    ops.DiceSums: LaunchRecipe("dice_sums", "x labels sums totals", _dice_sums),
    ops.DiceScore: LaunchRecipe("dice_score", "totals loss", _dice),
    ops.DiceDot: LaunchRecipe("dice_dot", "x labels sums totals share s", _dice),
    ops.DicePull: LaunchRecipe("dice_pull", "x labels sums totals share s dx", _dice),
    ops.LrnForward: LaunchRecipe("lrn", "x y", _lrn),
    ops.LrnBackward: LaunchRecipe("lrn_backward", "x dy dx", _lrn),
    ops.GridSample: LaunchRecipe("grid_sample", "x grid y", _grid_sample),
    ops.GridSampleDx: LaunchRecipe("grid_sample_dx", "grid dy dx", _grid_sample),
    ops.GridSampleDgrid: LaunchRecipe("grid_sample_dgrid", "x grid dy dgrid", _grid_sample),
    ops.Upsample: LaunchRecipe("upsample", "x y", _resampling),
    ops.Resize: LaunchRecipe("resize", "x y", _resize),
    ops.ResizeBackward: LaunchRecipe("resize_backward", "dy dx", _resize),
    ops.UpsampleBackward: LaunchRecipe("upsample_backward", "dy dx", _resampling),
}

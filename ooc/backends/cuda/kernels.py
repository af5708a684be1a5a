"""Our own CUDA kernels (kernels/device/) for every op: what each is given, and how many threads it takes."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np

from ooc import ops
from ooc.backends.base import Kernel
from ooc.backends.device_array import at
from ooc.backends.gpu_workspace import GOOD, MOST, SHARED
from ooc.backends.views import dense_strides, lift_spatial
from ooc.ir.op import INTEGERS, Block, Op, Operand, crop
from ooc.ir.region import Region, Tile, extents
from ooc.ops.lrn import Lrn
from ooc.ops.pool import Pooling
from ooc.ops.resample import Resampling
from ooc.ops.statistics import Normal

SLOTS, REALS, WHOLES = 8, 12, 32  # as in kernels/device/common.cu
ACC, SCRATCH, PARTS = 6, 7, 31  # the slots and the number that every sum has
TENSOR = np.dtype([("data", "u8"), ("stride", "i8", 5), ("lo", "i8", 5), ("extent", "i8", 5)])
ARGS = np.dtype([("t", TENSOR, SLOTS), ("real", "f8", REALS), ("whole", "i8", WHOLES), ("first", "i8"), ("last", "i8")])
LAID, PHASE = struct.Struct("=Q15q"), struct.Struct("=2q")  # a TENSOR, the end of an ARGS
COUNT = 24  # the first of the three numbers of a dense form
# Kernels with a dense form, and which of their operands have a value for each channel; all others must be alike.
DENSE = {"pointwise": ("b",), "multiply": ("b",), "activation_backward": (), "bn_apply": ("mean", "var", "scale", "b")}
Numbers = tuple[tuple[int, ...], tuple[float, ...]]


class Launcher(Protocol):
    """What starts a kernel: `threads` threads of `name` for an element type, with the ARGS record as its one argument."""

    def launch(self, name: str, dtype: str, threads: int, args: Any) -> None: ...


class Recipe(NamedTuple):
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
    return (*sizes, ops.pool.KINDS.index(op.how)), ()


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


def _lrn(op: Lrn) -> Numbers:
    return (op.size, op.before), (op.alpha, op.beta, op.base)


def _resampling(op: Resampling) -> Numbers:
    return (*lift_spatial(op.extent, 1), *lift_spatial(op.size, 1), ops.resample.KINDS.index(op.how)), ()


def _resize(op: ops.Resize) -> Numbers:
    lines = (0.0, 1.0, 1.0, 0.0) * (3 - op.rank) + op.lines
    return (*lift_spatial(op.extent, 1), *lift_spatial(op.size, 1), ops.resize.HOWS.index(op.how)), lines


def _place(op: ops.Place) -> Numbers:
    return (op.lead[0], *lift_spatial(op.lead[1:], 0)), (op.value,)


def _argmax(op: ops.ArgMax) -> Numbers:
    return (op.c, INTEGERS.index(op.store)), ()


def _function(op: ops.Function) -> Numbers:
    return (tuple(ops.function.FUNCTIONS).index(op.how),), (op.a, op.b)


def _none(op: Op) -> Numbers:
    return (), ()


RECIPES: dict[type[Op], Recipe] = {
    ops.ConvFprop: Recipe("conv_fprop", "x w y b", _convolution),
    ops.ConvDgrad: Recipe("conv_dgrad", "dy w dx b", _convolution),
    ops.ConvWgrad: Recipe("conv_wgrad", "x dy dw", _convolution),
    ops.Pool: Recipe("pool", "x y", _pooling),
    ops.PoolBackward: Recipe("pool_backward", "x dy dx", _pooling),
    ops.Pointwise: Recipe("pointwise", "x z b y", _pointwise),
    ops.ActivationBackward: Recipe("activation_backward", "y dy dx", _activation),
    ops.Multiply: Recipe("multiply", "x z b y", _activation),
    ops.ConvertIn: Recipe("convert_in", "x scale offset y", _convert_in),
    ops.ConvertOut: Recipe("convert_out", "x y", _convert_out),
    ops.Concat: Recipe("copy_block", "", _none),
    ops.Permute: Recipe("copy_block", "", _none),
    ops.Spread: Recipe("copy_block", "", _none),
    ops.Place: Recipe("place", "x y", _place),
    ops.ArgMax: Recipe("argmax", "x y", _argmax),
    ops.Function: Recipe("function", "x y", _function),
    ops.Dropout: Recipe("dropout", "x y draw", _dropout),
    ops.Sgd: Recipe("sgd", "p g v rates q u", _none),
    ops.Adam: Recipe("adam", "p g m v rates q r s", _none),
    ops.Reduce: Recipe("reduce", "x y", _reduce),
    ops.BnMoments: Recipe("bn_moments", "x mean var", _moments),
    ops.BnSums: Recipe("bn_sums", "x dy mean var dscale db", _bn_sums),
    ops.BnApply: Recipe("bn_apply", "x mean var scale b y", _bn_apply),
    ops.BnPull: Recipe("bn_pull", "x dy mean var scale dscale db dx", _bn_pull),
    ops.SoftmaxSum: Recipe("softmax_sum", "x sums", _none),
    ops.SoftmaxApply: Recipe("softmax", "x sums y", _logarithm),
    ops.SoftmaxDot: Recipe("softmax_dot", "dy y s", _none),
    ops.SoftmaxPull: Recipe("softmax_pull", "y dy s dx", _logarithm),
    ops.CrossEntropy: Recipe("cross_entropy", "x labels sums loss", _none),
    ops.CrossEntropyBackward: Recipe("cross_entropy_backward", "x labels sums dloss dx", _none),
    ops.LrnForward: Recipe("lrn", "x y", _lrn),
    ops.LrnBackward: Recipe("lrn_backward", "x dy dx", _lrn),
    ops.Upsample: Recipe("upsample", "x y", _resampling),
    ops.Resize: Recipe("resize", "x y", _resize),
    ops.UpsampleBackward: Recipe("upsample_backward", "dy dx", _resampling),
}


class Arguments:
    """An ARGS record that is filled as bytes: as fields of NumPy's it would take ten times as long."""

    def __init__(self, blank: Any) -> None:
        self.bytes = bytearray(blank.tobytes())
        self.record = np.frombuffer(self.bytes, ARGS).reshape(())

    def fill(self, slot: int, shape: tuple[int, ...], region: Region, array: Any | None) -> int:
        """Describe the block of a region of a tensor, its axes as (n, channel, d, h, w), and return its address. No array: a
        tensor that is not resident, of which only the extents count."""
        # An axis of extent 1 is broadcast: kernels may come with any coordinate.
        lo = [0 if extent == 1 else s.lo for s, extent in zip(region, shape, strict=True)]
        extent = [s.hi - s.lo for s in region]
        if array is None:
            LAID.pack_into(self.bytes, slot * TENSOR.itemsize, 0, *[0] * 5, *_five(lo, 0), *_five(extent, 1))
            return 0
        item = array.itemsize
        stride = [0 if whole == 1 else step // item for step, whole in zip(array.strides, shape, strict=True)]
        address = at(array)
        LAID.pack_into(self.bytes, slot * TENSOR.itemsize, address, *_five(stride, 0), *_five(lo, 0), *_five(extent, 1))
        return address

    def scratch(self, array: Any) -> None:
        """Where the parts of a sum are."""
        struct.pack_into("=Q", self.bytes, SCRATCH * TENSOR.itemsize, at(array))

    def dense(self, form: Form) -> None:
        """What a dense form of a kernel wants to know."""
        struct.pack_into("=3q", self.bytes, ARGS.fields["whole"][1] + 8 * COUNT, *form)  # type: ignore[index]

    def phase(self, first: bool, last: bool) -> None:
        """Where the tile stands in its reduction."""
        PHASE.pack_into(self.bytes, ARGS.fields["first"][1], first, last)  # type: ignore[index]


Form = tuple[int, int, int]  # elements, those of a channel that follow each other, channels


def dense_form(order: tuple[int, ...], arrays: Sequence[Any], by_channel: bool, addresses: int) -> Form | None:
    """How arrays of one shape lie, if they do so in this order of axes, all alike and without gaps; by_channel: whether other
    operands have a value for each channel; addresses: theirs, by `or`."""
    first = arrays[0]
    if addresses % GOOD or any(a.strides != first.strides or a.shape != first.shape for a in arrays[1:]):
        return None
    return _form(first.shape, first.strides, first.itemsize, order, by_channel)


@lru_cache(1 << 12)
def _form(shape: tuple[int, ...], strides: tuple[int, ...], item: int, order: tuple[int, ...], by_channel: bool) -> Form | None:
    wanted, count, lanes = dense_strides(shape, item, order), math.prod(shape), GOOD // item
    if count >= MOST or any(e > 1 and have != want for e, have, want in zip(shape, strides, wanted, strict=True)):
        return None
    inner = math.prod(shape[2:]) if by_channel else count
    if inner % lanes or (by_channel and order != tuple(range(len(shape)))):
        return None
    return count, inner, shape[1] if by_channel else 1


def _by_channel(shape: tuple[int, ...]) -> bool:
    """Whether an operand has a value for each channel."""
    return len(shape) == 1 or (shape[1] > 1 and math.prod(shape) == shape[1])


def _five(values: list[int], missing: int) -> list[int]:
    """Values of the axes of a tensor, or of a vector of channels, as those of (n, channel, d, h, w)."""
    if len(values) == 1:
        return [missing, values[0], missing, missing, missing]
    return [*values[:2], *[missing] * (5 - len(values)), *values[2:]]


def blank_of(op: Op) -> Any:
    """An ARGS record with an op's numbers, of no tile yet."""
    blank = np.zeros((), ARGS)
    wholes, reals = RECIPES[type(op)].numbers(op)
    blank["whole"][: len(wholes)], blank["real"][: len(reals)] = wholes, reals
    return blank


def own_kernel(op: Op, launcher: Launcher, parts: int = 1, scratch: Any | None = None) -> Kernel:
    """A kernel of kernels/device/ for a plain op. parts: how many threads share a result of an op that sums many terms into
    few results; its `shared_bytes` are then in `scratch`, an array. With one part, no result's bits depend on the tiling."""
    if isinstance(op, COPYING):
        return _copying(op, launcher)
    recipe = RECIPES[type(op)]
    made = op.outputs[0]
    slots: list[tuple[int, Operand]] = [(ACC, acc) for acc in op.state]
    for operand in op.operands:
        slots.append((recipe.slots.split().index(operand.name), operand))
    blank = blank_of(op)
    parts = parts if type(op) in SHARED else 1
    blank["whole"][PARTS] = parts
    for_channels = DENSE.get(recipe.kernel)

    def kernel(tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        args = Arguments(blank)
        args.phase(first, last)
        results, alike, by_channel, addresses = 0, list[Any](), False, 0
        for slot, operand in slots:
            region = operand.region(tile)
            if operand is made:
                results = math.prod(extents(region))
            if operand.name in blocks:
                part = crop(blocks[operand.name], region)
                address = args.fill(slot, operand.shape, part.region, part.array)
                if for_channels is None:
                    continue
                if operand.name in for_channels and _by_channel(operand.shape):
                    by_channel = True
                else:
                    alike.append(part.array)
                    addresses |= address
            elif operand is made:
                args.fill(slot, operand.shape, region, None)
        if not results:
            return
        if parts > 1:
            args.scratch(scratch)
            launcher.launch(f"{recipe.kernel}_parts", op.dtype, results * parts, args.record)
        name, count = recipe.kernel, results
        if for_channels is not None and (form := dense_form(made.memory_order, alike, by_channel, addresses)) is not None:
            args.dense(form)
            name, count = f"{name}_dense", results // (GOOD // alike[0].itemsize)
        launcher.launch(name, op.dtype, count, args.record)

    return kernel


COPYING = (ops.Concat, ops.Permute, ops.Spread)  # made of copies of blocks, any number of them


def _copying(op: ops.Concat | ops.Permute | ops.Spread, launcher: Launcher) -> Kernel:
    def kernel(tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        for target, source in op.copies(blocks):
            if target.size:
                move(launcher, "copy_block", op.dtype, target, source, target.itemsize)

    return kernel


def move(launcher: Launcher, kernel: str, dtype: str, target: Any, source: Any, whole: int = 0) -> None:
    """Run a kernel that moves blocks (copy_block, widen_block, narrow_block, blend_block) on arrays of one shape, of at most
    five axes; whole: its one number."""
    args = np.zeros((), ARGS)
    args["whole"][0] = whole
    shape = (1,) * (5 - target.ndim) + target.shape
    for slot, array in enumerate((target, source)):
        record = args["t"][slot]
        record["data"], record["extent"] = at(array), shape
        record["stride"][5 - array.ndim :] = [s // array.itemsize for s in array.strides]
    launcher.launch(kernel, dtype, math.prod(shape), args)

"""Our own CUDA kernels (kernels/device.cu) for every op: what each is given, and how many threads it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from ooc.backends.base import Kernel
from ooc.backends.blocks import lift, lift_spatial
from ooc.backends.device_array import at
from ooc.op import ITEM_BYTES, Block, Op, Operand, crop
from ooc.ops import ACTIVATIONS, ConvFprop, Convolution
from ooc.region import Tile

SLOTS, REALS, WHOLES = 8, 8, 32  # as in kernels/device.cu
TENSOR = np.dtype([("data", "u8"), ("stride", "i8", 5), ("lo", "i8", 5), ("extent", "i8", 5)])
ARGS = np.dtype([("t", TENSOR, SLOTS), ("real", "f8", REALS), ("whole", "i8", WHOLES), ("first", "i8"), ("last", "i8")])


class Launcher(Protocol):
    """What starts a kernel: `threads` threads of `name` for an element type, with the ARGS record as its one argument."""

    def launch(self, name: str, dtype: str, threads: int, args: Any) -> None: ...


class Recipe(NamedTuple):
    """How an op is computed: the kernel, the operands in its slots (an op may lack some; `made` is its first output and
    `acc` its partial sum, whatever their names), its numbers, and the slot whose elements are the results."""

    kernel: str
    slots: str
    numbers: Callable[[Any], tuple[tuple[int, ...], tuple[float, ...]]]
    results: int


def _convolution(op: Convolution) -> tuple[tuple[int, ...], tuple[float, ...]]:
    stride, dilation = lift_spatial(op.stride, 1), lift_spatial(op.dilation, 1)
    pad = lift_spatial(tuple(before for before, _ in op.pad), 0)
    per_group = (op.c // op.groups, op.k // op.groups)
    return (*stride, *dilation, *pad, *per_group, ACTIVATIONS.index(op.act)), (op.coef,)


RECIPES: dict[type[Op], Recipe] = {
    ConvFprop: Recipe("conv_fprop", "x w y b acc", _convolution, 2),
}


def fill(record: Any, operand: Operand, block: Block) -> None:
    """Describe a block in a TENSOR record, its axes as (n, channel, d, h, w)."""
    shape, item = operand.shape, ITEM_BYTES[operand.dtype]
    # An axis of extent 1 is broadcast: kernels may come with any coordinate.
    strides = tuple(0 if extent == 1 else s // item for s, extent in zip(block.array.strides, shape, strict=True))
    lows = tuple(0 if extent == 1 else s.lo for s, extent in zip(block.region, shape, strict=True))
    extents = tuple(s.extent for s in block.region)
    record["data"] = at(block.array)
    record["stride"], record["lo"], record["extent"] = _five(strides, 0), _five(lows, 0), _five(extents, 1)


def _five(values: tuple[int, ...], missing: int) -> tuple[int, ...]:
    """Values of the axes of a tensor, or of a vector of channels, as those of (n, channel, d, h, w)."""
    if len(values) == 1:
        return (missing, values[0], missing, missing, missing)
    return lift(values, len(values) - 2, missing)


def own_kernel(op: Op, launcher: Launcher) -> Kernel:
    """A kernel of kernels/device.cu for a plain op."""
    recipe = RECIPES[type(op)]
    operands: dict[str, Operand] = {o.name: o for o in op.operands}
    acc = op.state[0] if op.state else None
    wholes, reals = recipe.numbers(op)

    def kernel(tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        args = np.zeros((), ARGS)
        args["whole"][: len(wholes)], args["real"][: len(reals)] = wholes, reals
        args["first"], args["last"] = first, last
        threads = 1
        for slot, name in enumerate(recipe.slots.split()):
            operand = acc if name == "acc" else op.outputs[0] if name == "made" else operands.get(name)
            if operand is None or operand.name not in blocks:
                continue
            block = crop(blocks[operand.name], operand.region(tile))
            fill(args["t"][slot], operand, block)
            if slot == recipe.results or (name == "acc" and slot > recipe.results):
                threads = max(threads, int(np.prod(args["t"][slot]["extent"])))
        launcher.launch(recipe.kernel, op.dtype, threads, args)

    return kernel

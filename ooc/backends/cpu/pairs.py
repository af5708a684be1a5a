"""Convolution of bf16 by the processor's dot products of pairs of numbers, summed in f32 (kernels/direct/pairs.hpp)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ooc import native
from ooc.backends.base import Kernel
from ooc.backends.conv_call import HalfConv, half_bytes, widened
from ooc.backends.cpu.conv import NATIVE, NativeConv
from ooc.backends.cpu.loops import pointwise, why_not_native
from ooc.backends.families import Family
from ooc.ir.op import Block, Op, aligned
from ooc.ir.region import Sizes, Tile
from ooc.ops import Convolution

LEAST_SUMMED = 8  # channels of a group: of fewer, tiles are copied in more time than they are multiplied


class Paired(NativeConv):
    """What computes from operands of bf16 to sums of f32. Keeps packed filters while their block is unchanged."""

    def multiplied(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool, rounded: bool) -> bool:
        """Whether it has, to sums of f32 or to rounded results; not where padding meets what is not finite, or without room."""
        assert native.kernels is not None
        args = self.arguments(tile, blocks)
        if self.padded and not self._all_finite(args[0][1], args[3]):
            self.packed = None
            return False
        geometry = self._geometry(args)
        stamp = (args[3], geometry[2], args[2])
        reuse = bool(stamp[0]) and stamp == self.packed
        served, packed = self._run(
            native.kernels.paired_conv, geometry, args, (tile, blocks, first, last), reuse, self.threads, rounded
        )
        self.packed = stamp if packed else None
        return bool(served)

    def _packs(self, x: Any, w: Any, y: Any, groups: int) -> bool:
        """The kernel says what it has packed."""
        return False


class PairedConv(HalfConv):
    """By pairs, in the room that wider operands have otherwise; and by those where pairs do not serve."""

    def __init__(self, op: Convolution, sizes: Sizes, workspace: Any, threads: int) -> None:
        super().__init__(op, NATIVE, sizes, workspace, threads, lambda y, x: pointwise(y, x, threads))
        room = half_bytes(op, NATIVE, sizes, threads) - aligned(widened(self.wide)[-1].block_bytes(sizes))
        self.pairs = Paired(op, workspace[: int(room)], threads)

    def __call__(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        result, whole = self.op.outputs[0].name, first and last
        sums = blocks[result] if whole else self.sums(tile, blocks)
        operands = {**{name: blocks[name] for name in blocks if name != "acc"}, result: sums}
        if not self.pairs.multiplied(tile, operands, first, last, whole):
            super().__call__(tile, blocks, first, last)
            return
        self.held.clear()  # pairs are where it was
        if last and not whole:
            self.convert(blocks[result].array, sums.array)


def _why_not(op: Op) -> str | None:
    if not isinstance(op, Convolution) or op.dtype != "bf16":
        return f"native_bf16: serves convolutions of bf16, not {op.kind}, {op.dtype}"
    if op.kind == "conv.wgrad" or (op.kind == "conv.dgrad" and max(op.stride) > 1):
        return "native_bf16: sums over channels, at stride 1 in dgrad"
    if (op.c if op.kind == "conv.fprop" else op.k) // op.groups < LEAST_SUMMED:
        return f"native_bf16: pairs pay from {LEAST_SUMMED} channels of a group on"
    if native.kernels is not None and not native.kernels.has_paired_conv():
        return "native_bf16: the processor has no dot products of bf16"
    return why_not_native(op)


def _workspace(op: Op, sizes: Sizes, threads: int) -> Any:
    assert isinstance(op, Convolution)
    return half_bytes(op, NATIVE, sizes, threads)


def _prepare(op: Op, sizes: Sizes, workspace: Any, threads: int) -> Kernel:
    assert isinstance(op, Convolution)
    return PairedConv(op, sizes, workspace, threads)


PAIRS = Family(_why_not, _workspace, _prepare)

"""What the convolution kernels of every backend share: geometry of a tile, and half types by way of f32."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ooc.backends.base import algorithms_of
from ooc.backends.families import Family
from ooc.backends.views import Pieces, dense, lift_spatial
from ooc.ir.op import Block, Operand, aligned, crop
from ooc.ir.region import Region, Sizes, Tile, extents
from ooc.ops import ACTIVATIONS, Convolution
from ooc.ops.conv_base import PART

ROLES = {  # the operands of each pass that play x, w and y
    "conv.fprop": ("x", "w", "y"),
    "conv.dgrad": ("dx", "w", "dy"),
    "conv.wgrad": ("x", "dw", "dy"),
}


class ConvCall:
    """What every convolution kernel of this backend shares: geometry in, pointers in, and the epilogue's timing."""

    def __init__(self, op: Convolution) -> None:
        self.op, facts = op, _facts(op)
        self.direction, self.roles, self.operands, self.made, self.acc, self.stride, self.dilation, self.act, self.padded = facts
        self.known: dict[Any, Any] = {}

    def arguments(self, tile: Tile, blocks: Mapping[str, Block]) -> tuple[list[Any], tuple[int, ...], int, int]:
        """x, w and y cut to what the tile needs, the local pad, the groups of the tile, and the stamp of w if it is whole."""
        arrays, regions = [], []
        for operand in self.operands:
            block = blocks.get(self.acc) or blocks[self.made] if operand.name == self.made else blocks[operand.name]
            part = crop(block, operand.region(tile))
            arrays.append(part.array)
            regions.append(part.region)
        pads = zip(regions[0][2:], regions[2][2:], self.op.stride, self.op.pad, strict=True)
        # Where the tile's x begins, seen from its first window; a tile without positions has no pad to speak of.
        pad = tuple([max(0, x + before - y * stride) for (x, _), (y, _), stride, (before, _) in pads])
        if self.op.parted:
            pad = (max(0, self._first_pad(regions, tile)), *pad[1:])
        stamp = blocks[self.roles[1]].stamp if arrays[1].shape == blocks[self.roles[1]].array.shape else 0
        return arrays, lift_spatial(pad, 0), tile["g"].extent if "g" in tile else 1, stamp

    def _first_pad(self, regions: list[Region], tile: Tile) -> int:
        """The local pad along the first axis, of windows that begin at the tile's first tap."""
        op = self.op
        begin = regions[2][2].lo * op.stride[0] - op.pad[0][0] + tile[PART].lo * op.dilation[0]
        return regions[0][2].lo - begin if regions[0][2].extent else 0


class _Facts(NamedTuple):
    """What a kernel asks of a convolution in every tile."""

    direction: str
    roles: tuple[str, str, str]
    operands: tuple[Operand, ...]  # in those roles
    made: str
    acc: str
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    act: int
    padded: bool  # whether a window may end beyond x, or in dgrad beyond dy


@lru_cache(1024)
def _facts(op: Convolution) -> _Facts:
    roles = ROLES[op.kind]
    padded = op.parted or any(map(any, op.pad)) or (op.kind == "conv.dgrad" and max(*op.taps, *op.stride) > 1)
    operands = {o.name: o for o in op.operands}
    return _Facts(
        op.kind.removeprefix("conv."), roles, tuple(operands[role] for role in roles), op.outputs[0].name, op.state[0].name,
        lift_spatial(op.stride, 1), lift_spatial(op.dilation, 1), ACTIVATIONS.index(op.act), padded,
    )  # fmt: skip


class HalfConv:
    """Half types: operands are widened to f32 in the workspace, summed in f32, and rounded once at the end.

    convert(target, source): copies between the two types.
    """

    def __init__(
        self, op: Convolution, family: Family, sizes: Sizes, workspace: Any, means: Any, convert: Callable[[Any, Any], None]
    ) -> None:
        self.op, self.wide, self.convert = op, replace(op, dtype="f32"), convert
        pool = Pieces(workspace)
        # Else it shares its workspace with other stages: nothing in it lasts from tile to tile.
        self.keeps = bool(op.fixed) and family.keeps
        self.inner = family.prepare(self.wide, sizes, pool.take(int(aligned(family.workspace(self.wide, sizes, means)))), means)
        self.rooms = {o.name: pool.take(int(aligned(o.block_bytes(sizes)))) for o in widened(self.wide)}
        self.held: dict[str, tuple[Any, int]] = {}
        self.fresh = itertools.count(1)

    @property
    def ran(self) -> Mapping[str, int]:
        """Of the f32 convolution: see `algorithms_of`."""
        return algorithms_of(self.inner)

    def __call__(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        output, sums = self.wide.outputs[0], self.sums(tile, blocks)
        wide_blocks = {o.name: self._widen(o, crop(blocks[o.name], o.region(tile))) for o in self.wide.inputs[:2]}
        if "b" in blocks:
            wide_blocks["b"] = blocks["b"]
        wide_blocks[output.name] = sums
        self.inner(tile, wide_blocks, first, last)
        if last:
            self.convert(blocks[output.name].array, sums.array)

    def sums(self, tile: Tile, blocks: Mapping[str, Block]) -> Block:
        """Where a tile is summed in f32: what accumulates, or room of its own."""
        output = self.wide.outputs[0]
        region = output.region(tile)
        return blocks.get("acc") or Block(self._array(output, extents(region)), region)

    def _widen(self, operand: Operand, block: Block) -> Block:
        wide = self._array(operand, block.array.shape)
        key = (block.stamp, block.region)
        have, stamp = self.held.get(operand.name, (None, 0))
        if not block.stamp or have != key or not self.keeps:
            self.convert(wide, block.array)
            stamp = next(self.fresh)  # of its own: other crops of the same block come to the same place
        self.held[operand.name] = key, stamp
        return Block(wide, block.region, stamp)

    def _array(self, operand: Operand, shape: tuple[int, ...]) -> Any:
        return dense(self.rooms[operand.name], 0, shape, np.dtype(np.float32), operand.memory_order)


def widened(op: Convolution) -> tuple[Operand, ...]:
    """The operands of a half-precision convolution that exist in f32 while a tile is computed."""
    return (*op.inputs[:2], op.outputs[0])


def half_bytes(op: Convolution, family: Family, sizes: Sizes, means: Any) -> Any:
    """Workspace of a convolution of a half type that goes by way of f32."""
    wide = replace(op, dtype="f32")
    return aligned(family.workspace(wide, sizes, means)) + sum(aligned(o.block_bytes(sizes)) for o in widened(wide))

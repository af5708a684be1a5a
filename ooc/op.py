"""What an operation is: index maps and a fold. Also chains of operations.

An `Op` never loops over tiles and never copies: it says which region of each operand a tile touches and how to
compute one tile. Planning, copying, ordering and overlap are derived from that by the rest of the package.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ooc.errors import DtypeError, ShapeError
from ooc.region import Along, AxisMap, Composed, Grouped, Region, Sizes, Span, Tile, Whole, clip, least

DTYPES = ("f64", "f32", "f16", "bf16")  # order = codes in kernels/common.hpp
ITEM_BYTES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2}
LAYOUTS = ("channels_first", "channels_last")


def numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy dtype of a dtype name; bf16 comes from ml_dtypes."""
    if name == "bf16":
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return found
    return np.dtype({"f64": np.float64, "f32": np.float32, "f16": np.float16}[name])


def dtype_name(dtype: Any) -> str:
    """Dtype name of a NumPy dtype. Raises DtypeError for one that ooc does not compute with."""
    dtype = np.dtype(dtype)
    name = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}.get(dtype.name)
    if name is None or not dtype.isnative:
        order = "" if dtype.isnative else " in foreign byte order"
        raise DtypeError(f"dtype {dtype.name}{order} is not supported; expected float64, float32, float16 or bfloat16")
    return name


def compute_dtype(dtype: str) -> str:
    """Half types are computed and accumulated in f32."""
    return "f64" if dtype == "f64" else "f32"


class Block(NamedTuple):
    """A region of a tensor, resident: what a kernel is given.

    `array` has the axes of the tensor. `stamp` changes whenever new data is loaded, so a kernel may keep what it
    derived from the block (packed weights) while the stamp stays the same; 0 says nothing about the contents.
    """

    array: Any
    region: Region
    stamp: int = 0


def crop(block: Block, region: Region) -> Block:
    """The part of a block that lies in a region; empty when none does."""
    index, kept = [], []
    for have, need in zip(block.region, region, strict=True):
        lo = max(have.lo, need.lo)
        hi = max(lo, min(have.hi, need.hi))
        index.append(slice(lo - have.lo, hi - have.lo))
        kept.append(Span(lo, hi))
    return Block(block.array[tuple(index)], tuple(kept), block.stamp)


def fit(block: Block, region: Region) -> tuple[Any, tuple[int, ...]]:
    """The part of a block that a region needs, and how far inside the region it starts on each axis (the local pad).

    What the region needs beyond the block is padding.
    """
    part = crop(block, region)
    pad = tuple(k.lo - need.lo if k.hi > k.lo else 0 for k, need in zip(part.region, region, strict=True))
    return part.array, pad


@dataclass(frozen=True)
class Operand:
    """One tensor of an op: its shape, its dtype and how its axes follow the loop dims.

    `order` lists the axes from slowest to fastest in memory (channels-last tensors keep their channels fastest), and
    `fill` is what lies outside the tensor.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    axes: tuple[AxisMap, ...]
    order: tuple[int, ...] = ()
    fill: float = 0.0

    def region(self, tile: Tile) -> Region:
        """The region that a tile touches, clipped to the tensor."""
        return clip(self.reach(tile), self.shape)

    def reach(self, tile: Tile) -> Region:
        """The region that a tile touches, padding included."""
        return tuple(axis.span(tile) for axis in self.axes)

    def count(self, sizes: Sizes) -> Any:
        """Upper bound of the elements of one tile's region."""
        return math.prod(least(a.extent(sizes), s) for a, s in zip(self.axes, self.shape, strict=True))

    def block_bytes(self, sizes: Sizes) -> Any:
        """Upper bound of the bytes of one tile's region."""
        return self.count(sizes) * ITEM_BYTES[self.dtype]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    @cached_property
    def dims(self) -> frozenset[str]:
        """The loop dims that move the operand's region."""
        return frozenset(d for axis in self.axes for d in axis.dims)

    @property
    def memory_order(self) -> tuple[int, ...]:
        return self.order or tuple(range(len(self.shape)))


StageMaps = dict[str, tuple[AxisMap, int]]


class Op:
    """Base of every operation: a frozen dataclass of sizes with the members below.

    `dims`     loop dims and their extents, in natural order
    `inputs`   operands read; `outputs` operands written
    `reduce`   dims that are summed over: splitting one makes partial sums
    `whole`    dims that cannot be split
    `state`    operands holding a partial sum; an output of the same name is its own partial sum
    """

    kind: ClassVar[str]
    dtype: str
    dims: dict[str, int]
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    reduce: tuple[str, ...] = ()
    whole: frozenset[str] = frozenset()

    @property
    def state(self) -> tuple[Operand, ...]:
        return ()

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (*self.inputs, *self.outputs)

    @property
    def stages(self) -> tuple[Op, ...]:
        """The ops of a chain; a plain op is its own only stage."""
        return (self,)

    @property
    def stage_maps(self) -> tuple[StageMaps, ...]:
        """For each stage, each of its dims as a map over this op's dims, with the dim's extent."""
        return ({d: (Along(d), e) for d, e in self.dims.items()},)

    def flops(self, sizes: Sizes) -> Any:
        """Floating-point operations of a tile of these sizes."""
        raise NotImplementedError

    def effort(self, sizes: Sizes) -> Any:
        """Floating-point operations that a kernel spends on such a tile, wasted ones included."""
        return self.flops(sizes)

    def touched_bytes(self, sizes: Sizes) -> Any:
        """Bytes that any kernel must walk through for a tile: the main input, and the outputs once, or twice where a
        partial sum comes back."""
        partial: Any = 0
        for d in self.reduce:
            partial = partial | (sizes[d] < self.dims[d])
        return self.inputs[0].block_bytes(sizes) + (1 + partial) * sum(o.block_bytes(sizes) for o in self.outputs)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        """Compute one tile with NumPy, readably: the last resort of every backend and the meaning of the op."""
        raise NotImplementedError

    def describe(self) -> str:
        """The op as one line that `parse` reads back."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self.describe()

    def legal(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """The nearest legal tile sizes: within the extents, unsplittable dims whole, several groups with all channels."""
        fixed = {d: e if d in self.whole else min(max(1, sizes.get(d, e)), e) for d, e in self.dims.items()}
        if fixed.get("g", 1) > 1:
            fixed.update({d: self.dims[d] for d in ("k", "c") if d in self.dims})
        return fixed

    def stage_sizes(self, sizes: Sizes) -> list[Sizes]:
        """Tile sizes of every stage; one stage for a plain op."""
        return [sizes]


class Chain(Op):
    """Several ops in a row, fused: a consumer's input region is its producer's tile.

    Only the first op's reduction may be split; the others happen whole inside a tile. Intermediates live in the
    workspace of the tile, clipped to their own extent and padded by their consumer (halo is recomputed).
    Fusion by composition of index maps: Halide's bounds inference; cubed's `primitive/DESIGN.md`.
    """

    kind = "chain"

    def __init__(self, *stages: Op) -> None:
        if not stages:
            raise ShapeError("a chain needs at least one op")
        self._stages = stages
        for producer, consumer in pairwise(stages):
            made, wanted = producer.outputs[0], consumer.inputs[0]
            if made.shape != wanted.shape or made.dtype != wanted.dtype:
                raise ShapeError(
                    f"chain: {producer} gives {made.shape} {made.dtype} but {consumer} takes {wanted.shape} {wanted.dtype}"
                )
        self.dtype = stages[0].dtype

    @property
    def stages(self) -> tuple[Op, ...]:
        return self._stages

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Chain) and self._stages == other._stages

    def __hash__(self) -> int:
        return hash(self._stages)

    @cached_property
    def reduce(self) -> tuple[str, ...]:  # type: ignore[override]
        return self._stages[0].reduce

    @cached_property
    def whole(self) -> frozenset[str]:  # type: ignore[override]
        # The groups of the first op may follow other dims than its channels: keep its reduction whole then.
        grouped = "g" in self._stages[0].dims
        return self._stages[-1].whole | (frozenset(self.reduce) if grouped else frozenset())

    @cached_property
    def dims(self) -> dict[str, int]:  # type: ignore[override]
        first, last = self._stages[0], self._stages[-1]
        outer = {d: e for d, e in last.dims.items() if d not in last.reduce}
        return {**outer, **{d: first.dims[d] for d in first.reduce}}

    @cached_property
    def stage_maps(self) -> tuple[StageMaps, ...]:  # type: ignore[override]
        last = self._stages[-1]
        maps: list[StageMaps] = [{d: (Whole(e) if d in last.reduce else Along(d), e) for d, e in last.dims.items()}]
        for producer, consumer in zip(self._stages[-2::-1], self._stages[:0:-1]):
            inner = tuple((d, m, e) for d, (m, e) in maps[0].items())
            found: dict[str, AxisMap] = {d: Whole(e) for d, e in producer.dims.items()}
            for made, wanted in zip(producer.outputs[0].axes, consumer.inputs[0].axes, strict=True):
                found |= _follow(made, wanted, inner, producer)
            maps.insert(0, {d: (m, producer.dims[d]) for d, m in found.items()})
        for d in self.reduce:
            maps[0][d] = (Along(d), self.dims[d])
        return tuple(maps)

    @cached_property
    def stage_operands(self) -> tuple[dict[str, Operand], ...]:
        """For each stage, its operands by their name in the stage, as operands of the chain."""
        return tuple({o.name: self._seen(o, i) for o in (*s.inputs, *s.outputs, *s.state)} for i, s in enumerate(self._stages))

    def _seen(self, operand: Operand, stage: int) -> Operand:
        inner = tuple((d, m, e) for d, (m, e) in self.stage_maps[stage].items())
        name = operand.name if stage == 0 else f"{operand.name}.{stage}"
        return replace(operand, name=name, axes=tuple(Composed(a, inner) for a in operand.axes))

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return tuple(self.stage_operands[i][o.name] for i, s in enumerate(self._stages) for o in s.inputs[1 if i else 0 :])

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return tuple(replace(o, name=o.name) for o in self._stages[-1].outputs)

    @cached_property
    def state(self) -> tuple[Operand, ...]:  # type: ignore[override]
        # Neighbouring tiles share halo in the first op's output, so it can never be the chain's own output.
        return tuple(replace(self._seen(o, 0), name="acc") for o in self._stages[0].state)

    def stage_tiles(self, tile: Tile) -> list[dict[str, Span]]:
        """The tile of every stage, first to last."""
        return [{d: m.span(tile).clip(e) for d, (m, e) in maps.items()} for maps in self.stage_maps]

    def stage_sizes(self, sizes: Sizes) -> list[Sizes]:
        return [{d: least(m.extent(sizes), e) for d, (m, e) in maps.items()} for maps in self.stage_maps]

    def flops(self, sizes: Sizes) -> Any:
        return sum(s.flops(z) for s, z in zip(self._stages, self.stage_sizes(sizes), strict=True))

    def describe(self) -> str:
        return " | ".join(s.describe() for s in self._stages)


def _follow(made: AxisMap, wanted: AxisMap, inner: tuple[Any, ...], producer: Op) -> dict[str, AxisMap]:
    """The producer's dims along one axis, as maps over the chain's dims."""
    if isinstance(made, Along):
        return {made.dim: Composed(wanted, inner)}
    if isinstance(made, Grouped) and isinstance(wanted, Grouped) and made.per == wanted.per:
        own = {d: (m, e) for d, m, e in inner}
        if own[wanted.group][1] == producer.dims[made.group]:
            return {made.group: own[wanted.group][0], made.dim: own[wanted.dim][0]}
    return {}  # stays whole


def fuse(*stages: Op) -> Op:
    """A chain of ops; a chain inside is flattened, and one op alone stays itself."""
    flat = tuple(s for stage in stages for s in stage.stages)
    return flat[0] if len(flat) == 1 else Chain(*flat)

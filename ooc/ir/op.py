"""What an operation is: index maps and folds.

An `Op` never loops over tiles and never copies: it says which region of each operand a tile touches and how to
compute one tile. Planning, copying, ordering and overlap are derived from that by the rest of the package.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ooc.cache import Cache, cached_property
from ooc.errors import DtypeError
from ooc.ir.coverage import covered
from ooc.ir.once import Once
from ooc.ir.region import FEW, Along, AxisMap, Region, Sizes, Span, Tile, clip, least

DTYPES = ("f64", "f32", "f16", "bf16")  # order = codes in kernels/common.hpp
INTEGERS = ("u8", "u16", "i16", "i32", "b8")  # stored, and converted before they are computed with; order = codes in kernels
ITEM_BYTES = {
    "f64": 8, "f32": 4, "f16": 2, "bf16": 2, "u8": 1, "u16": 2, "i16": 2, "i32": 4, "b8": 1,
    "i64": 8,  # labels, read but never computed with
}  # fmt: skip
LAYOUTS = ("channels_first", "channels_last")
FEW_WORKS = 16  # choices of kernels whose work is remembered
ALIGN = 64  # bytes of a cache line; every buffer starts on one


@cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy dtype of a dtype name; bf16 comes from ml_dtypes."""
    if name == "bf16":
        import ml_dtypes

        bf16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bf16
    return np.dtype(_TYPES[name])


_TYPES = {
    "f64": np.float64, "f32": np.float32, "f16": np.float16, "u8": np.uint8, "u16": np.uint16, "i16": np.int16, "i32": np.int32,
    "b8": np.bool_, "i64": np.int64,
}  # fmt: skip
_NAMES = {np.dtype(t).newbyteorder("="): name for name, t in _TYPES.items()}
_PLAIN = {dtype: name for dtype, name in _NAMES.items() if name in DTYPES}
_INTEGERS = {dtype: name for dtype, name in _NAMES.items() if name in INTEGERS}


def integer_name(dtype: Any) -> str | None:
    """Dtype name of a NumPy dtype of integers that are converted where they are read or written; None for any other."""
    return _INTEGERS.get(dtype)


def dtype_name(dtype: Any, stored: bool = False) -> str:
    """Dtype name of a NumPy dtype. Raises DtypeError for one that ooc does not compute with; stored: integers are meant too."""
    dtype = np.dtype(dtype)
    if dtype in _PLAIN:
        return _PLAIN[dtype]
    if stored and dtype in _NAMES:
        return _NAMES[dtype]
    name = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}.get(dtype.name)
    if name is None or not dtype.isnative:
        order = "" if dtype.isnative else " in foreign byte order"
        raise DtypeError(f"dtype {dtype.name}{order} is not supported; expected float64, float32, float16 or bfloat16")
    return name


def remedy(name: str, dtype: Any) -> str:
    """How an array of a dtype that ooc does not take becomes one that it takes, without losing what it holds."""
    dtype = np.dtype(dtype)
    if dtype.kind == "c":
        return f"compute with {name}.real and {name}.imag, one after the other"
    if dtype.kind not in "biuf":
        return "it must hold numbers"
    if not dtype.isnative:
        return f'convert it: {name}.astype({name}.dtype.newbyteorder("="))'
    exact = ", which holds integers up to 2^53" if dtype.kind in "iu" and dtype.itemsize > 4 else ""
    wide = "float64" if dtype.itemsize > 2 else "int16" if dtype == np.int8 else "float32"
    return f'convert it: {name}.astype("{wide}"){exact}'


def aligned(nbytes: Any) -> Any:
    """Bytes rounded up to a multiple of the alignment (an int or an array)."""
    return -(-nbytes // ALIGN) * ALIGN


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
    if block.region == region:
        return block
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
        reach = self.reach(tile)
        region = self._clipped.get(reach)
        return region if region is not None else self._clipped.keep(reach, clip(reach, self.shape))

    def reach(self, tile: Tile) -> Region:
        """The region that a tile touches, padding included."""
        key = tuple([tile[d] for d in self._moving])
        region = self._reaches.get(key)
        return region if region is not None else self._reaches.keep(key, tuple([axis.span(tile) for axis in self.axes]))

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

    @cached_property
    def _moving(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(d for axis in self.axes for d in axis.dims))

    @cached_property
    def _reaches(self) -> Cache[Region]:
        return Cache(FEW)

    @cached_property
    def _clipped(self) -> Cache[Region]:
        return Cache(FEW)

    @property
    def memory_order(self) -> tuple[int, ...]:
        return self.order or tuple(range(len(self.shape)))

    @cached_property
    def whole(self) -> Region:
        """All of the tensor, as a region."""
        return tuple(Span(0, e) for e in self.shape)


CHANNELS = frozenset("gkc")  # loop dims of channels, and of groups of them
StageMaps = dict[str, tuple[AxisMap, int]]


@dataclass(frozen=True)
class Fold:
    """How some outputs come about: accumulated over the loop dims `reduce`, untouched but at the first index of `idle`.

    `state` holds the partial results between tiles; an output of the same name is its own. `makes` are the outputs
    complete after the last tile of the reduction.
    """

    state: tuple[Operand, ...]
    reduce: tuple[str, ...]
    idle: tuple[str, ...]
    makes: tuple[str, ...]


class Op(metaclass=Once):
    """Base of every operation: a frozen dataclass of sizes.

    `dims`     loop dims and their extents, in natural order; `reduce` those summed over: splitting one makes partial sums
    `inputs`   operands read; `outputs` operands written
    `ordered`  those that may be split without changing the order of summation, first to last; `whole` dims that cannot be split
    `fixed`    inputs that kernels prepare anew whenever they change (filters)
    `state`    operands holding a partial sum; an output of the same name is its own partial sum
    `in_parts` the same with one more loop dim that is summed over, for tiles of less where there is little room; None: none
    `inward`   only makes what is stored ready for the stages behind it: a chain may begin with it and be split as without it
    """

    kind: ClassVar[str]
    dtype: str
    dims: dict[str, int]
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    reduce: tuple[str, ...] = ()
    ordered: tuple[str, ...] = ()
    whole: frozenset[str] = frozenset()
    fixed: tuple[str, ...] = ()
    in_parts: Op | None = None
    inward: ClassVar[bool] = False

    @property
    def state(self) -> tuple[Operand, ...]:
        return ()

    @cached_property
    def folds(self) -> tuple[Fold, ...]:
        """How the outputs come about; a plain op makes all of them in one fold."""
        return (Fold(self.state, self.reduce, (), tuple(o.name for o in self.outputs)),)

    @property
    def ordered_folds(self) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
        """For each fold, its reduced loop dims and those that may be split without changing the order of summation."""
        return ((self.reduce, self.ordered),)

    @property
    def ordered_steps(self) -> dict[str, int]:
        """Loop dims that may be split without changing the order of summation at multiples of a number alone."""
        return {}

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (*self.inputs, *self.outputs)

    @cached_property
    def parameters(self) -> frozenset[str]:
        """Operands of which there is one for all of the batch and all positions, such as filters and their gradients: channels
        alone tell one tile's part from another's."""
        return frozenset(o.name for o in self.operands if o.dims <= CHANNELS)

    @property
    def stages(self) -> tuple[Op, ...]:
        """The ops of a chain; a plain op is its own only stage."""
        return (self,)

    @property
    def stage_maps(self) -> tuple[StageMaps, ...]:
        """For each stage, each of its dims as a map over this op's dims, with the dim's extent."""
        return ({d: (Along(d), e) for d, e in self.dims.items()},)

    def stage_idle(self, stage: int) -> tuple[str, ...]:
        """Loop dims at whose first index alone a stage runs."""
        return ()

    @property
    def preparing(self) -> int:
        """The stage that has most to do with the fixed inputs."""
        return 0

    def runs(self, stage: int, complete: bool) -> bool:
        """Whether a stage runs in a tile; `complete`: the tile is the last of the first stage's reduction."""
        return True

    def reads_before_writing(self, read: str, output: str) -> bool:
        """Whether a region of an output is written once, when all of the tile that reads the input's has been read."""
        fold = next(f for f in self.folds if output in f.makes)
        return not fold.idle and not fold.reduce

    def flops(self, sizes: Sizes) -> Any:
        """Floating-point operations of a tile of these sizes."""
        raise NotImplementedError

    def effort(self, sizes: Sizes, kernel: str = "") -> Any:
        """Floating-point operations that a kernel spends on such a tile, wasted ones included; "": any but Fourier transforms."""
        return self.flops(sizes)

    def preparation(self, kernel: str) -> float:
        """Operations that a kernel spends on each byte of fixed inputs when they come anew."""
        return 0.0

    def width(self, sizes: Sizes) -> Any:
        """Output channels of a tile, of which kernels compute many at a time; inf: it does not matter."""
        return math.inf

    def touched_bytes(self, sizes: Sizes) -> Any:
        """Bytes that any kernel must walk through for a tile: the main input, and the outputs once, or twice where a
        partial sum comes back."""
        partial: Any = 0
        for d in self.reduce:
            partial = partial | (sizes[d] < self.dims[d])
        return self.inputs[0].block_bytes(sizes) + (1 + partial) * sum(o.block_bytes(sizes) for o in self.outputs)

    @cached_property
    def _works(self) -> Cache[Any]:
        return Cache(FEW_WORKS)

    def whole_work(self, kernels: tuple[str, ...]) -> list[tuple[float, float, float]]:
        """For each stage, in one piece by its kernel: the effort, bytes that must be walked through, output channels."""
        return self._works.made(kernels, lambda: list(map(_whole_work, self.stages, kernels)))  # type: ignore[no-any-return]

    @cached_property
    def least_bytes(self) -> dict[str, int]:
        """Bytes of each operand that any tiling moves: those that some tile reaches."""
        return {o.name: _least(o, self.dims) for o in self.operands}

    def least_work(self, kernels: tuple[str, ...]) -> list[tuple[float, float, float]]:
        """For each stage by its kernel: effort and bytes that no tiling goes below, output channels that none goes above."""
        return [_least_work(s, m, self.dims, kernel) for s, m, kernel in zip(self.stages, self.stage_maps, kernels, strict=True)]

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        """Compute one tile with NumPy, readably: the last resort of every backend and the meaning of the op."""
        raise NotImplementedError

    def describe(self) -> str:
        """The op as one line that `parse` reads back."""
        raise NotImplementedError

    def __init_subclass__(cls) -> None:
        if "__hash__" not in vars(cls):  # dataclasses would bring one that looks at every field each time
            cls.__hash__ = Op.__hash__  # type: ignore[method-assign]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self.__reduce__())

    def __reduce__(self) -> tuple[Any, ...]:
        """What makes the op again, elsewhere too: nothing that is remembered travels."""
        return type(self), tuple([getattr(self, f.name) for f in fields(self)])  # type: ignore[arg-type]

    @cached_property
    def _text(self) -> str:
        return self.describe()

    def __str__(self) -> str:
        return self._text

    def legal(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """The nearest legal tile sizes: within the extents, unsplittable dims whole, several groups with all channels."""
        fixed = {d: e if d in self.whole else min(max(1, sizes.get(d, e)), e) for d, e in self.dims.items()}
        if fixed.get("g", 1) > 1:
            fixed.update({d: self.dims[d] for d in ("k", "c") if d in self.dims})
        return fixed

    def stage_sizes(self, sizes: Sizes) -> list[Sizes]:
        """Tile sizes of every stage; one stage for a plain op."""
        return [sizes]

    def empty(self, tile: Tile) -> bool:
        """Whether a tile holds nothing to compute (a window may lie wholly in padding)."""
        return any(hi <= lo for lo, hi in tile.values())


def _least(operand: Operand, dims: Sizes) -> int:
    """Bytes of an operand that the tiles of an op of these dims reach."""
    reached = [covered(a, dims, size) for a, size in zip(operand.axes, operand.shape, strict=True)]
    return math.prod(reached) * ITEM_BYTES[operand.dtype]


def _whole_work(stage: Op, kernel: str) -> tuple[float, float, float]:
    prepared = sum(o.nbytes for o in stage.inputs if o.name in stage.fixed) * stage.preparation(kernel)
    return float(stage.effort(stage.dims, kernel) + prepared), stage.touched_bytes(stage.dims), stage.width(stage.dims)


def _least_work(stage: Op, maps: StageMaps, dims: Sizes, kernel: str) -> tuple[float, float, float]:
    """Of a stage, whose dims follow these loop dims."""
    sizes = {d: covered(m, dims, e) for d, (m, e) in maps.items()}
    walked = sum(_least(o, sizes) for o in (stage.inputs[0], *stage.outputs))
    effort = float(stage.effort(sizes, kernel)) if all(sizes.values()) else 0.0  # a stage behind it may leave all of it out
    return effort, float(walked), stage.width(stage.dims)

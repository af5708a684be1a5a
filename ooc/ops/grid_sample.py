"""Sampling where a second tensor says: each result lies at a position of x that the network may compute; and both gradients.

Positions are PyTorch's: along every axis -1 and 1 are the ends of x, the first component is that of the last axis. Where
positions are declared to lie near those of an even grid, a tile of results reads no more of x than is near it.
Sources: Jaderberg et al., "Spatial transformer networks", NIPS 2015; torch.nn.functional.grid_sample; ONNX's GridSample.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ooc.cache import cached_property
from ooc.errors import ShapeError
from ooc.ir.op import Block, Operand, compute_dtype, crop, numpy_dtype
from ooc.ir.region import Along, AxisMap, Region, Sizes, Span, Tile, Whole
from ooc.ops.reduce import in_chain
from ooc.ops.registry import register
from ooc.ops.resample import Sampled
from ooc.ops.spatial import IN, OUT, SpatialOp, check_positive

MODES = {"nearest": 1, "linear": 2, "cubic": 4}  # positions that count along an axis; order = codes in kernels/grid_sample.cpp
PADDINGS = ("zeros", "border", "reflection")  # order = codes there
FAR = 2.0**30  # positions farther out lie there
SLOPE = -0.75  # of the cubic, see ooc.translate.resampling.kernel_of


class Taps(NamedTuple):
    """Of results, along an axis: the places that each is made of (-1: none), what they count for, and how that changes with the
    position; each as taps x results."""

    places: Any
    weights: Any
    slopes: Any


class Corner(NamedTuple):
    """One of the places that each result is made of: along each axis, and its weights along each."""

    places: tuple[Any, ...]
    weights: tuple[Any, ...]
    slopes: tuple[Any, ...]

    def weight(self, along: int | None = None) -> Any:
        """What it counts for; along: how that changes with the position along an axis."""
        total = np.ones((), self.weights[0].dtype)
        for axis, (weight, slope) in enumerate(zip(self.weights, self.slopes, strict=True)):
            total = total * (slope if axis == along else weight)
        return total


@dataclass(frozen=True)
class GridSampling(SpatialOp):
    """The sizes of all passes: x is n x k x extent, grid n x rank x size, y n x k x size.

    mode: what lies between the values of x. padding: what lies beyond them. aligned: -1 and 1 are the centres of the outer
    values, not their outer edges. reach: how far, in values of x along each axis, the positions lie from those of an even grid
    at most; results that lie farther are NaN. None named: anywhere.
    """

    n: int
    k: int
    extent: tuple[int, ...]
    size: tuple[int, ...]
    mode: str = "linear"
    padding: str = "zeros"
    aligned: bool = False
    reach: tuple[int, ...] = ()
    dtype: str = "f32"
    layout: str = "channels_first"

    free: ClassVar[frozenset[str]] = frozenset({"reach"})
    words: ClassVar[dict[str, tuple[str, ...]]] = {**SpatialOp.words, "mode": tuple(MODES), "padding": PADDINGS}

    def __post_init__(self) -> None:
        check_positive(self.kind, n=self.n, k=self.k, extent=self.extent, size=self.size)
        self.check_words()
        if len(self.size) != self.rank or len(self.reach) not in (0, self.rank) or min(self.reach, default=0) < 0:
            raise ShapeError(f"{self.kind}: expected size= and reach= of {self.rank} axes, got {self.size}, {self.reach}")

    @property
    def margins(self) -> tuple[int, ...]:
        """How many values beside those of an even grid may be read along each axis: one more, as positions are rounded."""
        return tuple(r + 1 + (self.mode == "cubic") for r in self.reach)

    def near(self, letters: str, backward: bool = False) -> tuple[AxisMap, ...]:
        """How the spatial axes of x follow those of the results, or the other way round."""
        if not self.reach:
            return tuple(map(Whole, self.size if backward else self.extent))
        even = "aligned" if self.aligned else "linear"
        axes = zip(letters, self.extent, self.size, self.margins, strict=True)
        return tuple([Sampled(d, even, extent, size, backward, margin) for d, extent, size, margin in axes])

    @cached_property
    def bounds(self) -> tuple[tuple[Any, Any], ...]:
        """For each axis, from where to where each result may read."""
        near = self.near(OUT[self.rank])
        ends = [axis.ends for axis in near if isinstance(axis, Sampled)]
        if ends:
            return tuple([(first, last + 1) for first, last in ends])
        return tuple([(np.zeros(s, np.int64), np.full(s, e)) for e, s in zip(self.extent, self.size, strict=True)])

    def limits(self, axis: int, span: Span) -> tuple[Any, Any]:
        """From where to where results of a span along an axis may read."""
        lo, hi = self.bounds[axis]
        return lo[span.lo : span.hi], hi[span.lo : span.hi]

    def tensor(self, name: str, channels: int, axis: AxisMap, spatial: tuple[AxisMap, ...], of_x: bool) -> Operand:
        """One of the tensors, with the extents of x or of the results."""
        shape = (self.n, channels, *(self.extent if of_x else self.size))
        return Operand(name, shape, self.dtype, (Along("n"), axis, *spatial), self.memory_order)

    @cached_property
    def results(self) -> dict[str, int]:
        """Loop dims over the results."""
        return dict(zip(OUT[self.rank], self.size, strict=True))

    def flops(self, sizes: Sizes) -> Any:
        return 4 * MODES[self.mode] ** self.rank * self.outputs[0].count(sizes)

    def parts(self, grid: Any, region: Region) -> tuple[list[Corner], Any]:
        """What results of a region are made of, place by place, and which of them lie too far away. grid: of them."""
        every, far = list[Taps](), np.zeros((len(grid), *grid.shape[2:]), bool)
        for axis, (extent, span) in enumerate(zip(self.extent, region[2:], strict=True)):
            at = grid[:, self.rank - 1 - axis]
            if self.mode != "nearest":  # there PyTorch's roundings tell which is nearest
                at = at.astype(np.float64)
            taps = taps_of(self.mode, self.padding, self.aligned, extent, at)
            taps = Taps(taps.places, taps.weights.astype(grid.dtype), taps.slopes.astype(grid.dtype))
            lo, hi = (v.reshape(-1, *(1,) * (self.rank - 1 - axis)) for v in self.limits(axis, span))
            far |= ((taps.places >= 0) & ((taps.places < lo) | (taps.places >= hi))).any(axis=0)
            every.append(taps)
        return list(_crossed(every)), far


def _crossed(every: list[Taps]) -> Iterator[Corner]:
    for at in itertools.product(*(range(len(taps.places)) for taps in every)):
        yield Corner(*(tuple(field[i] for field, i in zip(fields, at, strict=True)) for fields in zip(*every, strict=True)))


def taps_of(mode: str, padding: str, aligned: bool, extent: int, at: Any) -> Taps:
    """What results at positions from -1 to 1 along an axis are made of; NaN counts as -1."""
    at = np.clip(np.where(np.isnan(at), -1, at).astype(at.dtype), -FAR, FAR)
    at = (at + 1) / 2 * (extent - 1) if aligned else ((at + 1) * extent - 1) / 2
    pace = np.full(at.shape, (extent - 1) / 2 if aligned else extent / 2, at.dtype)
    if mode == "cubic":
        first = np.floor(at)
        share = at - first
        places = np.stack([brought(padding, aligned, extent, first + i)[0] for i in range(-1, 3)])
        weights, slopes = map(np.stack, _cubic(share))
        return Taps(_within(places, extent), weights, slopes * pace)
    at, turn = brought(padding, aligned, extent, at)
    if mode == "nearest":
        return Taps(_within(np.rint(at)[None], extent), np.ones_like(at)[None], np.zeros_like(at)[None])
    first = np.floor(at)
    share = at - first
    pace = pace * turn
    return Taps(_within(np.stack([first, first + 1]), extent), np.stack([1 - share, share]), np.stack([-pace, pace]))


def _within(places: Any, extent: int) -> Any:
    return np.where((places >= 0) & (places < extent), places, -1).astype(np.int64)


def brought(padding: str, aligned: bool, extent: int, at: Any) -> tuple[Any, Any]:
    """Positions beyond the ends of an axis, brought back, and how these change with the positions."""
    turn = np.ones_like(at)
    if padding == "zeros":
        return at, turn
    if padding == "reflection":
        low, span = (0.0, extent - 1) if aligned else (-0.5, extent)
        if not span:
            return np.zeros_like(at), np.zeros_like(at)
        turn = np.where(at < low, -1, 1).astype(at.dtype)
        beyond = np.abs(at - low)
        rest, odd = np.fmod(beyond, span), np.floor(beyond / span) % 2 == 1
        at, turn = np.where(odd, span - rest, rest) + np.asarray(low, at.dtype), np.where(odd, -turn, turn)
    return np.clip(at, 0, extent - 1), np.where((at > 0) & (at < extent - 1), turn, 0).astype(at.dtype)


def _cubic(t: Any) -> tuple[list[Any], list[Any]]:
    """The weights of four neighbours, and their slopes. Source: Keys, "Cubic convolution interpolation", 1981."""
    a = SLOPE
    u, v, w = t + 1, 1 - t, 2 - t
    weights = [
        ((a * u - 5 * a) * u + 8 * a) * u - 4 * a, ((a + 2) * t - (a + 3)) * t * t + 1,
        ((a + 2) * v - (a + 3)) * v * v + 1, ((a * w - 5 * a) * w + 8 * a) * w - 4 * a,
    ]  # fmt: skip
    slopes = [
        (3 * a * u - 10 * a) * u + 8 * a, (3 * (a + 2) * t - 2 * (a + 3)) * t,
        (2 * (a + 3) - 3 * (a + 2) * v) * v, (10 * a - 3 * a * w) * w - 8 * a,
    ]  # fmt: skip
    return weights, slopes


@register("grid_sample")
@dataclass(frozen=True)
class GridSample(GridSampling):
    """y from x and grid. Descriptor: `grid_sample n= k= [[d=] h=] w= size= [mode=] [padding=] [aligned=1] [reach=4x4]`."""

    kind = "grid_sample"

    @cached_property
    def dims(self) -> dict[str, int]:  # type: ignore[override]
        return {"n": self.n, "k": self.k, **self.results}

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        near = self.near(OUT[self.rank])
        along = tuple(map(Along, self.results))
        return (
            self.tensor("x", self.k, Along("k"), near, True), self.tensor("grid", self.rank, Whole(self.rank), along, False)
        )  # fmt: skip

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("y", self.k, Along("k"), tuple(map(Along, self.results)), False),)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        x, grid = (_computed(self, blocks, o, tile) for o in self.inputs)
        parts, far = self.parts(grid.array, grid.region)
        total = sum(_values(x, p.places) * p.weight()[..., None] for p in parts)
        blocks["y"].array[...] = np.moveaxis(np.where(far[..., None], np.nan, total), -1, 1)


@register("grid_sample_backward.x")
@dataclass(frozen=True)
class GridSampleDx(GridSampling):
    """dx (n x k x extent) from grid and dy: each result gives what its places count for, one after the other. Descriptor as of
    `grid_sample`."""

    kind = "grid_sample_backward.x"

    @cached_property
    def dims(self) -> dict[str, int]:  # type: ignore[override]
        return {"n": self.n, "k": self.k, **dict(zip(IN[self.rank], self.extent, strict=True))}

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        near = self.near(IN[self.rank], True)
        return (
            self.tensor("grid", self.rank, Whole(self.rank), near, False), self.tensor("dy", self.k, Along("k"), near, False)
        )  # fmt: skip

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("dx", self.k, Along("k"), tuple(map(Along, IN[self.rank])), True),)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        grid, dy = (_computed(self, blocks, o, tile) for o in self.inputs)
        parts, far = self.parts(grid.array, grid.region)
        spans, values = self.outputs[0].region(tile)[2:], np.moveaxis(dy.array, 1, -1)
        total = np.zeros((*(s.extent for s in spans), len(grid.array), values.shape[-1]), values.dtype)
        places = [np.stack([p.places[axis] for p in parts], -1) for axis in range(self.rank)]
        terms = np.stack([p.weight() for p in parts], -1)[..., None] * values[..., None, :]
        some = ~np.broadcast_to(far[..., None], terms.shape[:-1])
        for at, span in zip(places, spans, strict=True):
            some = some & (at >= span.lo) & (at < span.hi)
        sample = np.broadcast_to(np.arange(len(grid.array)).reshape(-1, *(1,) * (some.ndim - 1)), some.shape)
        np.add.at(total, (*(at[some] - s.lo for at, s in zip(places, spans, strict=True)), sample[some]), terms[some])
        blocks["dx"].array[...] = np.moveaxis(total, (-2, -1), (0, 1))


@register("grid_sample_backward.grid")
@dataclass(frozen=True)
class GridSampleDgrid(GridSampling):
    """dgrid (n x rank x size) from x, grid and dy: a sum over channels. Descriptor as of `grid_sample`."""

    kind = "grid_sample_backward.grid"
    reduce = ("c",)
    ordered = ("c",)

    @cached_property
    def dims(self) -> dict[str, int]:  # type: ignore[override]
        return {"n": self.n, "c": self.k, **self.results}

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        near = self.near(OUT[self.rank])
        along = tuple(map(Along, self.results))
        return (
            self.tensor("x", self.k, Along("c"), near, True), self.tensor("grid", self.rank, Whole(self.rank), along, False),
            self.tensor("dy", self.k, Along("c"), along, False),
        )  # fmt: skip

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("dgrid", self.rank, Whole(self.rank), tuple(map(Along, self.results)), False),)

    @cached_property
    def state(self) -> tuple[Operand, ...]:  # type: ignore[override]
        dgrid, compute = self.outputs[0], compute_dtype(self.dtype)
        return (dgrid if dgrid.dtype == compute else Operand("acc", dgrid.shape, compute, dgrid.axes, dgrid.order),)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        x, grid, dy = (_computed(self, blocks, o, tile) for o in self.inputs)
        parts, far = self.parts(grid.array, grid.region)
        acc, dgrid = blocks.get(self.state[0].name), blocks.get("dgrid")
        for axis in range(self.rank):
            slopes = sum(_values(x, p.places) * p.weight(axis)[..., None] for p in parts)
            terms = np.where(far[..., None], np.nan, slopes) * np.moveaxis(dy.array, 1, -1)
            component = slice(self.rank - 1 - axis, self.rank - axis)
            before = None if first or acc is None else np.moveaxis(acc.array[:, component], 1, -1)
            total = np.moveaxis(in_chain(terms, before, -1), -1, 1)
            if acc is not None:
                acc.array[:, component] = total
            if last and dgrid is not None:
                dgrid.array[:, component] = total


def _computed(op: GridSampling, blocks: Mapping[str, Block], operand: Operand, tile: Tile) -> Block:
    """What a tile reads of an operand, in the type that is computed with."""
    part = crop(blocks[operand.name], operand.region(tile))
    return Block(part.array.astype(numpy_dtype(compute_dtype(op.dtype)), copy=False), part.region)


def _values(x: Block, places: tuple[Any, ...]) -> Any:
    """Values of x at places, channels last; any where there is none, or too far away."""
    held = [np.clip(at - s.lo, 0, s.extent - 1) for at, s in zip(places, x.region[2:], strict=True)]
    samples = np.arange(len(x.array)).reshape(-1, *(1,) * len(held))
    values = np.moveaxis(x.array, 1, -1)[(samples, *held)]
    there = np.all([(at >= s.lo) & (at < s.hi) for at, s in zip(places, x.region[2:], strict=True)], axis=0)
    return np.where(there[..., None], values, 0)

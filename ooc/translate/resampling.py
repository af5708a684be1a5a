"""Resizing by sums of sources along each axis, by where a result lies between them: cubic, smoothed where it shrinks, and means
over windows of several extents.

Where results repeat in relation to their sources (twice the size, or 14 for 15), they are a convolution with a filter for each of
them, which streams; else the axis is as channels, and a matrix multiplies it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ooc.networks import layers
from ooc.translate.building import Building, GraphTensor, Shape
from ooc.translate.views import permuted, reshaped

MOST_TAPS, MOST_FILTERS = 256, 64  # of a convolution in place of a matrix
MOST_MATRIX = 1 << 24  # numbers of one


class Sources(NamedTuple):
    """Of the results along an axis where their sources begin, and what each source counts for (results x sources). Those before
    the axis and behind it stand for its border."""

    begins: Any
    weights: Any
    extent: int

    @property
    def size(self) -> int:
        return len(self.begins)


def kernel_of(how: str, a: float) -> tuple[int, Callable[[Any], Any]]:
    """How far a source counts, and for how much by its distance: "linear", or "cubic" (Keys, "Cubic convolution interpolation for
    digital image processing", 1981) with its slope a."""
    if how == "linear":
        return 1, lambda d: np.maximum(0.0, 1.0 - d)

    def cubic(d: Any) -> Any:
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        return np.where(d <= 1, near, np.where(d < 2, ((a * d - 5 * a) * d + 8 * a) * d - 4 * a, 0.0))

    return 2, cubic


def interpolated(
    positions: Any, extent: int, how: str, a: float = -0.75, wide: float = 1.0, inside: bool = False
) -> Sources:  # fmt: skip
    """Results at positions between the sources. wide: sources of which one is as near as one alone would be, where it shrinks;
    inside: those beyond the axis count for nothing."""
    reach, weight = kernel_of(how, a)
    reach = math.ceil(reach * wide)
    begins = np.floor(positions).astype(np.int64) - (reach - 1)
    places = begins[:, None] + np.arange(2 * reach)
    weights = weight(np.abs(places - positions[:, None]) / wide)
    if inside:
        weights = weights * ((places >= 0) & (places < extent))
    return Sources(begins, weights / weights.sum(1, keepdims=True) if inside or wide > 1 else weights, extent)


def smoothed(extent: int, size: int, scale: float, how: str) -> Sources:
    """As pictures are made smaller: sources count by their distance in results, those beyond the axis for nothing. scale: sources
    for a result. Source: Pillow, `Image.resize`; torch.nn.functional.interpolate, antialias=True."""
    reach, weight = kernel_of(how, -0.5)
    wide = max(scale, 1.0)
    centres = (np.arange(size) + 0.5) * scale
    begins = np.maximum((centres - reach * wide + 0.5).astype(np.int64), 0)
    ends = np.minimum((centres + reach * wide + 0.5).astype(np.int64), extent)
    places = begins[:, None] + np.arange(int((ends - begins).max()))
    weights = weight(np.abs((places - centres[:, None] + 0.5) / wide)) * (places < ends[:, None])
    return Sources(begins, weights / weights.sum(1, keepdims=True), extent)


def averaged(extent: int, size: int) -> Sources:
    """Means over as many windows as results, of the extents that are left."""
    i = np.arange(size)
    begins, ends = i * extent // size, -(-(i + 1) * extent // size)
    counts = ends - begins
    inside = np.arange(int(counts.max())) < counts[:, None]
    return Sources(begins, inside / counts[:, None], extent)


def resampled(building: Building, x: GraphTensor, axes: Sequence[Sources]) -> GraphTensor:
    """A tensor with other extents along its spatial axes."""
    todo = [(axis, sources) for axis, sources in enumerate(axes, 2) if not _same(sources)]
    for axis, sources in todo:
        final = axis == todo[-1][0]
        repeated = _period(sources)
        if repeated is None:
            x = _by_matrix(building, x, axis, sources, final)
        else:
            x = _by_windows(building, x, axis, sources, *repeated, final)
    return x


def _same(sources: Sources) -> bool:
    """Whether each result is its source."""
    places = sources.begins[:, None] + np.arange(sources.weights.shape[1])
    itself = places == np.arange(sources.size)[:, None]
    return sources.size == sources.extent and np.array_equal(sources.weights, itself)


def _period(sources: Sources) -> tuple[int, int] | None:
    """After how many results, and sources, all is as before; None where a convolution would not repay it."""
    common = math.gcd(sources.size, sources.extent)
    results, step = sources.size // common, sources.extent // common
    taps = sources.weights.shape[1] + step
    if common == 1 or results > MOST_FILTERS or taps > MOST_TAPS:
        return None
    same = np.array_equal(sources.begins[results:] - sources.begins[:-results], np.full(sources.size - results, step))
    alike = same and np.allclose(sources.weights[results:], sources.weights[:-results], rtol=0, atol=1e-9)
    return (results, step) if alike else None


def _by_windows(
    building: Building, x: GraphTensor, axis: int, sources: Sources, results: int, step: int, final: bool
) -> GraphTensor:  # fmt: skip
    """Filters for so many results, so many sources apart, over what is continued beyond its ends."""
    n, c, *extent = x.shape
    rank, at, windows = len(extent), axis - 2, sources.size // results
    first = int(sources.begins[:results].min())
    taps = int(sources.begins[:results].max()) + sources.weights.shape[1] - first
    rows = np.zeros((results, taps))
    for row, begin, weights in zip(rows, sources.begins, sources.weights, strict=False):
        row[begin - first : begin - first + len(weights)] = weights
    size, lines = list(extent), [(0.0, 1.0, 1.0, 0.0)] * rank
    size[at], lines[at] = step * (windows - 1) + taps, (float(first), 1.0, 1.0, 0.0)
    if (first, size[at]) != (0, extent[at]):
        x = building.add(x, layers.ResizeLayer("edge", tuple(size), tuple(v for line in lines for v in line)), last=False)
    ones = (1,) * rank

    def along(value: int) -> Shape:
        return tuple(value if i == at else 1 for i in range(rank))

    filters = np.tile(rows, (c, 1)).reshape(c * results, 1, *along(taps))
    layer = layers.ConvLayer(c * results, along(taps), along(step), ((0, 0),) * rank, ones, c)
    y = building.layer(x, layer, {"w": building.site.array(filters)}, last=results == 1 and final)
    if results == 1:
        return y
    extent[at] = windows
    apart = reshaped(building, y, (n, c, results, *extent), last=False)
    order = [0, 1, *(i + 3 for i in range(at + 1)), 2, *(i + 3 for i in range(at + 1, rank))]
    extent[at] = sources.size
    return reshaped(building, permuted(building, apart, order, last=False), (n, c, *extent), last=final)


def _by_matrix(building: Building, x: GraphTensor, axis: int, sources: Sources, final: bool) -> GraphTensor:
    """The axis as channels, which a matrix makes others of."""
    rank, size, extent = len(x.shape) - 2, sources.size, sources.extent
    if size * extent > MOST_MATRIX:
        raise building.refuse(f"{size} results of {extent} sources in no order that repeats", "resize by a simple ratio")
    matrix = np.zeros((size, extent))
    places = np.clip(sources.begins[:, None] + np.arange(sources.weights.shape[1]), 0, extent - 1)
    np.add.at(matrix, (np.arange(size)[:, None], places), sources.weights)
    order, ones = list(range(rank + 1)), (1,) * rank
    order[0], order[axis - 1] = axis - 1, 0
    front = building.add(x, layers.PermuteLayer(tuple(order)), last=False)
    layer = layers.ConvLayer(size, ones, ones, ((0, 0),) * rank, ones)
    resized = building.layer(front, layer, {"w": building.site.array(matrix.reshape(size, extent, *ones))}, last=False)
    return building.add(resized, layers.PermuteLayer(tuple(order)), last=final)

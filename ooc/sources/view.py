"""A part of a tensor, as `::0,:,10:20` selects it: a number drops its axis, lo:hi keeps a piece of it."""

from __future__ import annotations

import re

from ooc.errors import ArgumentError, ShapeError
from ooc.ir.region import Region, Span
from ooc.sources.around import Around
from ooc.sources.checks import within
from ooc.sources.protocol import Array, Source

PART = re.compile(r"\s*(?:(\d+)|(\d*)\s*:\s*(\d*))\s*")


class View(Around):
    """A source within a source. Nothing is copied: regions are moved."""

    def __init__(self, path: str, source: Source, picked: tuple[Span, ...], kept: tuple[int, ...]) -> None:
        super().__init__(source)
        self.path, self.picked, self.kept = path, picked, kept
        self.shape = tuple([picked[a].extent for a in kept])
        self.axes = "".join(source.axes[a] for a in kept) if source.axes else ""

    def read(self, region: Region, out: Array) -> None:
        """Copy a region into `out`."""
        self.source.read(self._moved(region), self._lifted(out))

    def write(self, region: Region, array: Array) -> None:
        """Copy `array` into a region."""
        self.source.write(self._moved(region), self._lifted(array))

    def own(self, region: Region) -> Region:
        """The smallest region of whole units that covers a region, as far as the view reaches."""
        spans = self.source.own(self._moved(region))
        return tuple([spans[a].shift(-self.picked[a].lo).clip(self.picked[a].extent) for a in self.kept])

    def see(self, array: Array) -> Array:
        """The part of an array of the whole source's shape."""
        kept = {*self.kept}
        parts = [slice(p.lo, p.hi) if a in kept else p.lo for a, p in enumerate(self.picked)]
        part: Array = array[*parts, ...]  # a view, though no axis be left
        return part

    def _moved(self, region: Region) -> Region:
        spans = dict(zip(self.kept, within(self.path, region, self.shape), strict=True))
        return tuple([spans[a].shift(p.lo) if a in spans else p for a, p in enumerate(self.picked)])

    def _lifted(self, array: Array) -> Array:
        """The array with the axes that were dropped."""
        if getattr(array, "ndim", -1) != len(self.kept):
            raise ShapeError(f"{self.path}: expected an array of {len(self.kept)} axes, got {getattr(array, 'shape', array)}")
        kept = {*self.kept}
        return array[tuple([slice(None) if a in kept else None for a in range(len(self.picked))])]


def select(path: str, source: Source, text: str) -> View:
    """The part of a source that slices select; raises ShapeError where they do not fit it."""
    parts = text.split(",") if text.strip() else []
    if len(parts) > len(source.shape):
        raise ShapeError(f"{path}: {len(parts)} slices for {len(source.shape)} axes")
    picked, kept = [], []
    for axis, extent in enumerate(source.shape):
        span, keep = _span(path, parts[axis] if axis < len(parts) else ":", extent)
        picked.append(span)
        kept += [axis] if keep else []
    return View(path, source, tuple(picked), tuple(kept))


def _span(path: str, part: str, extent: int) -> tuple[Span, bool]:
    match = PART.fullmatch(part) if len(part) < 60 else None
    if match is None:
        raise ArgumentError(f"{path}: slice {part!r}: expected a number or lo:hi, neither negative, without a step")
    number, lo, hi = match.groups()
    span = Span(int(number), int(number) + 1) if number else Span(int(lo or 0), int(hi) if hi else extent)
    if not 0 <= span.lo <= span.hi <= extent:
        raise ShapeError(f"{path}: slice {part!r} does not lie inside an axis of {extent}")
    return span, number is None

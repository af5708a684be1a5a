"""A source seen with other axes: exchanged, or new ones of extent 1."""

from __future__ import annotations

from typing import Any

from ooc.errors import ShapeError
from ooc.ir.region import Region, Span
from ooc.sources.base import Around, Array, Source


class Arranged(Around):
    """A source whose axes are those of another in another order, with some of extent 1 besides. Nothing is copied.

    order: the axis of the source that each axis is; None: a new one.
    """

    def __init__(self, source: Source, order: tuple[int | None, ...], axes: str = "") -> None:
        super().__init__(source)
        self.order, self.axes = order, axes
        self.shape = tuple(1 if a is None else source.shape[a] for a in order)

    def read(self, region: Region, out: Array) -> None:
        """Copy a region into `out`."""
        self.source.read(self._within(region), self._turned(out))

    def write(self, region: Region, array: Array) -> None:
        """Copy `array` into a region."""
        self.source.write(self._within(region), self._turned(array))

    def own(self, region: Region) -> Region:
        """The smallest region of whole units that covers a region."""
        spans = self.source.own(self._within(region))
        return tuple(Span(0, 1) if a is None else spans[a] for a in self.order)

    def see(self, array: Array) -> Array:
        """An array of the source's shape with these axes."""
        old = [a for a in self.order if a is not None]
        at: Any = (*[None if a is None else slice(None) for a in self.order], ...)
        view: Array = array.transpose(old)[at]
        return view

    def _within(self, region: Region) -> Region:
        """The region, as the source has its axes."""
        return tuple(region[self.order.index(a)] for a in range(len(self.source.shape)))

    def _turned(self, array: Array) -> Array:
        """The array, as the source has its axes."""
        kept = array[tuple(0 if a is None else slice(None) for a in self.order)]
        old = [a for a in self.order if a is not None]
        return kept.transpose([old.index(a) for a in range(len(old))])


def arranged(source: Source, axes: str, letters: str) -> Arranged:
    """A source whose axes have these letters, seen with others: those that it lacks have extent 1.

    Raises ShapeError for letters that do not fit its axes, and for axes of more than 1 that are not wanted.
    """
    if len(axes) != len(source.shape) or len({*axes}) < len(axes):
        raise ShapeError(f"axes {axes!r}: expected a different letter for each axis of a tensor of shape {source.shape}")
    lost = [letter for letter in axes if letter not in letters]
    if lost:
        raise ShapeError(
            f"axes {axes!r}: nothing takes axis {', '.join(lost)} of a tensor of shape {source.shape}; select with '::'"
        )
    return Arranged(source, tuple(axes.index(letter) if letter in axes else None for letter in letters), letters)

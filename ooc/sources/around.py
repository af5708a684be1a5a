"""A source as an array, sources around others, and with other axes: exchanged, or new ones of extent 1."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ooc.errors import PositionError, ShapeError, brief, shown
from ooc.ir.region import Region, Span
from ooc.sources.protocol import Array, Source

if TYPE_CHECKING:
    from typing import Self

MOST_AXES = 32
MOST_SHOWN = 2000  # characters in a notebook
HULL = 16 << 20  # bytes that are read for positions some steps apart, at most


class Indexed:
    """A source as an array of NumPy's kind.

    `source[3, ..., 10:20]` reads what is selected into a new array: integers, slices with steps, `...` and None, as NumPy has
    them. `np.asarray(source)` reads all of it. `transpose`, `T`, `swapaxes` (and NumPy's functions of these names, and
    `np.moveaxis`) and `expand_dims` return a source.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    axes: str

    def read(self, region: Region, out: Array) -> None:
        """Copy a region into `out`."""
        raise NotImplementedError

    @property
    def ndim(self) -> int:
        """How many axes there are."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many numbers."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Their bytes."""
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a tensor without axes")
        return self.shape[0]

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        """What it is, where, and of which axes."""
        path = getattr(self, "path", "") or getattr(getattr(self, "source", None), "path", "")
        state = ", closed" if getattr(self, "closed", False) else ""
        axes = f", axes {self.axes!r}" if self.axes else ""
        return f"<{type(self).__name__} {path}: {self.shape} of {self.dtype}{axes}{state}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: where it is, what of, its axes, and where positions lie."""
        from html import escape  # which imports a table of all entities

        lies = getattr(self, "geometry", None) or {}
        lines = [repr(self), f"{self.nbytes:,} bytes", *(f"{a}: {s.step:g} {s.unit} from {s.origin:g}" for a, s in lies.items())]
        return f"<pre>{escape(brief(chr(10).join(lines), MOST_SHOWN))}</pre>"

    def __getitem__(self, at: Any) -> Any:
        """What is selected, as a new array; a number where no axis is left. Raises PositionError."""
        picked, index = _picked(at, self.shape)
        values = np.empty([len(r) for r in picked], self.dtype)
        if values.size:
            self._select(picked, values)
        return values[index]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """All of it."""
        if copy is False:
            raise ValueError("a tensor in a file has no array that is no copy")
        values: Array = np.asarray(self[...])  # of a tensor without axes a number
        return values if dtype is None else values.astype(dtype, copy=False)

    def _select(self, picked: Sequence[range], out: Array) -> None:
        """Read the positions that ranges have, in pieces where what lies between them is much."""
        spans = [Span(min(r[0], r[-1]), max(r[0], r[-1]) + 1) for r in picked]
        if all(r.step == 1 for r in picked):
            return self.read(tuple(spans), out)
        stepped = [a for a, r in enumerate(picked) if abs(r.step) > 1 and len(r) > 1]
        if stepped and math.prod(s.extent for s in spans) * self.dtype.itemsize > HULL:
            axis = max(stepped, key=lambda a: spans[a].extent)
            middle = len(picked[axis]) // 2
            for half in (slice(None, middle), slice(middle, None)):
                part: Any = (*[slice(None)] * axis, half, ...)
                self._select([r[half] if a == axis else r for a, r in enumerate(picked)], out[part])
            return None
        hull = np.empty([s.extent for s in spans], self.dtype)
        self.read(tuple(spans), hull)
        out[...] = hull[tuple(slice(None, None, r.step) for r in picked)]
        return None

    # ---- axes

    def transpose(self, *axes: Any) -> Arranged:
        """The same tensor with its axes in another order, default reversed. Nothing is read. Raises ShapeError."""
        order = tuple(axes[0]) if len(axes) == 1 and np.ndim(axes[0]) else axes
        numbers = range(self.ndim)[::-1] if order in ((), (None,)) else _axes("transpose", order, self.ndim)
        if sorted(numbers) != list(range(self.ndim)):
            raise ShapeError(f"transpose: expected each of {self.ndim} axes once, got {shown(axes)}")
        return self._arranged(tuple(numbers))

    @property
    def T(self) -> Arranged:
        """The same tensor with its axes reversed."""
        return self.transpose()

    def swapaxes(self, axis1: int, axis2: int) -> Arranged:
        """The same tensor with two axes exchanged. Raises ShapeError."""
        order = list(range(self.ndim))
        one, two = _axes("swapaxes", (axis1, axis2), self.ndim)
        order[one], order[two] = two, one
        return self._arranged(tuple(order))

    def expand_dims(self, axis: int | Sequence[int]) -> Arranged:
        """The same tensor with new axes of extent 1, at these places of the result; below 0: from its end. Nothing is read.
        Raises ShapeError."""
        new = tuple(axis) if isinstance(axis, Sequence) else (axis,)
        count = self.ndim + len(new)
        places = {*_axes("expand_dims", new, count)}
        if len(places) < len(new) or count > MOST_AXES:
            raise ShapeError(f"expand_dims: expected different places among {count} axes, got {shown(axis)}")
        old = iter(range(self.ndim))
        return self._arranged(tuple(None if a in places else next(old) for a in range(count)))

    def _arranged(self, order: tuple[int | None, ...]) -> Arranged:
        letters = "".join(self.axes[a] for a in order if a is not None) if self.axes and None not in order else ""
        return Arranged(self, order, letters)  # type: ignore[arg-type]


class Around(Indexed):
    """A source around another one. What it does not say otherwise is the other's."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.shape, self.dtype, self.axes, self.buffer_bytes = source.shape, source.dtype, source.axes, source.buffer_bytes

    def read(self, region: Region, out: Array) -> None:
        """Copy a region into `out`."""
        self.source.read(region, out)

    def write(self, region: Region, array: Array) -> None:
        """Copy `array` into a region."""
        self.source.write(region, array)

    def own(self, region: Region) -> Region:
        """The smallest region of whole units that covers a region."""
        return self.source.own(region)

    def mapped(self) -> Array | None:
        """The source's memory map, if it has one."""
        whole = self.source.mapped()
        return None if whole is None else self.see(whole)

    def see(self, array: Array) -> Array:
        """An array of the source's shape, seen as this is."""
        return array

    def settle(self) -> None:
        """Make the file say what was written."""
        self.source.settle()

    def close(self) -> None:
        """Close the source."""
        self.source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.source.__exit__(*error)


def innermost(source: Source) -> Source:
    """The source around which others may lie."""
    while isinstance(source, Around):
        source = source.source
    return source


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


def _axes(what: str, axes: Any, count: int) -> list[int]:
    """Numbers of axes, as a caller has them. Raises ShapeError."""
    try:
        numbers = [operator.index(a) for a in axes if not isinstance(a, bool | np.bool_)]
    except TypeError:
        numbers = []
    if len(numbers) != len(axes) or any(not -count <= a < count for a in numbers):
        raise ShapeError(f"{what}: expected numbers of {count} axes, got {shown(tuple(axes))}")
    return [a % count for a in numbers]


def _picked(at: Any, shape: tuple[int, ...]) -> tuple[list[range], Any]:
    """The positions along each axis that are read, and how what is read is indexed then: to drop axes, and to add some. Raises
    PositionError."""
    words = at if isinstance(at, tuple) else (at,)
    taken = sum(word is not None and word is not Ellipsis for word in words)
    if sum(word is Ellipsis for word in words) > 1 or taken > len(shape):
        raise PositionError(f"[{shown(at)}]: too many indices for {len(shape)} axes")
    rest = [slice(None)] * (len(shape) - taken)
    at_rest = next((i for i, word in enumerate(words) if word is Ellipsis), len(words))
    picked, index = list[range](), list[Any]()
    for word in (*words[:at_rest], *rest, *words[at_rest + 1 :]):
        if word is None:
            index.append(None)
            continue
        extent = shape[len(picked)]
        if isinstance(word, slice):
            picked.append(_range(word, extent))
            index.append(slice(None))
        else:
            position = _position(word, extent)
            picked.append(range(position, position + 1))
            index.append(0)
    return picked, tuple(index)


def _range(word: slice, extent: int) -> range:
    try:
        return range(extent)[word]
    except (TypeError, ValueError) as error:
        raise PositionError(f"[{shown(word)}]: {error}") from None


def _position(word: Any, extent: int) -> int:
    try:
        position = operator.index(word) if not isinstance(word, bool | np.bool_) else None
    except TypeError:
        position = None
    if position is None:
        raise PositionError(f"[{shown(word)}]: expected integers, slices, ... and None; index an array of it, source[...]")
    if not -extent <= position < extent:
        raise PositionError(f"[{position}]: there are {extent} positions")
    return position % extent

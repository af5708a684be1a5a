"""What ops on n x channels x 1 to 3 spatial axes share: letters, windows, checks, operands."""

from __future__ import annotations

from typing import Any, ClassVar

from ooc.cache import cached_property
from ooc.errors import ArgumentError, ShapeError
from ooc.ir.op import DTYPES, LAYOUTS, Op, Operand
from ooc.ir.region import Along, AxisMap, Grouped, Span, Whole
from ooc.ops.activation import ACTIVATIONS, DEFAULT_COEF
from ooc.ops.registry import IN as IN
from ooc.ops.registry import TAPS as TAPS
from ooc.ops.registry import describe

OUT = {1: "q", 2: "pq", 3: "opq"}  # letters of output extents, as IN and TAPS are of inputs and filters


class SpatialOp(Op):
    """Base of dataclasses with fields `extent` (input extents), `dtype`, `layout`, and often `groups`, `act`, `coef`."""

    extent: tuple[int, ...]
    layout: str
    words: ClassVar[dict[str, tuple[str, ...]]] = {"dtype": DTYPES, "layout": LAYOUTS, "act": ACTIVATIONS}
    quiet: ClassVar[dict[str, int]] = {}  # sequences that need no mention when all their values are this
    free: ClassVar[frozenset[str]] = frozenset()  # sequences of a length of their own, written in full

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.extent)

    @property
    def memory_order(self) -> tuple[int, ...]:
        """Axes (n, channels, spatial...) from slowest to fastest in memory."""
        spatial = tuple(range(2, 2 + self.rank))
        return (0, 1, *spatial) if self.layout == "channels_first" else (0, *spatial, 1)

    @classmethod
    def imply(cls, texts: dict[str, str]) -> None:
        """Add to the text of a descriptor what goes without saying."""
        if texts.get("act") in DEFAULT_COEF:
            texts.setdefault("coef", str(DEFAULT_COEF[texts["act"]]))

    def tacit(self, name: str, value: Any) -> bool:
        """Whether a field needs no mention in the descriptor."""
        return name in self.quiet and all(v == self.quiet[name] for v in value)

    def describe(self) -> str:
        return describe(self)

    def normalise(self, **fallback: tuple[Any, ...]) -> None:
        """Give sequences that were left empty their usual values (frozen dataclasses allow it while they are made)."""
        for name, value in fallback.items():
            if not getattr(self, name):
                object.__setattr__(self, name, value)

    def check_words(self) -> None:
        """Raise ArgumentError for a word that is not allowed."""
        for name, allowed in self.words.items():
            if getattr(self, name, allowed[0]) not in allowed:
                what = "activation" if name == "act" else name
                raise ArgumentError(f"{self.kind}: {what}: expected one of {', '.join(allowed)}; got {getattr(self, name)!r}")


class Elementwise(SpatialOp):
    """Base of ops whose tensors are all n x k x extent, or a value per channel, and whose tiles are the same for all."""

    n: int
    k: int
    groups: int

    def __post_init__(self) -> None:
        check_positive(self.kind, n=self.n, k=self.k, extent=self.extent)
        self.check_words()

    def check_letters(self, **masks: str) -> None:
        """Raise ArgumentError for axes of a partial tensor that are none."""
        letters = {"n", "k", *IN[self.rank]}
        for mask in masks.values():
            if mask != "1" and not set(mask) <= letters:
                names, known = " and ".join(f"{name}=" for name in masks), "".join(sorted(letters))
                raise ArgumentError(f"{self.kind}: {names} take{'s' * (len(masks) == 1)} letters of {known}, or 1; got {mask!r}")

    @cached_property
    def dims(self) -> dict[str, int]:  # type: ignore[override]
        return {"n": self.n, **channel_dims(self.k, self.groups), **dict(zip(OUT[self.rank], self.extent, strict=True))}

    @property
    def axes(self) -> tuple[AxisMap, ...]:
        """How the axes of a full tensor follow the loop."""
        return (Along("n"), channel_axis(self.k, self.groups), *map(Along, OUT[self.rank]))

    def tensor(self, name: str, dtype: str = "") -> Operand:
        """A full tensor, n x k x extent."""
        return Operand(name, (self.n, self.k, *self.extent), dtype or self.dtype, self.axes, self.memory_order)

    def per_channel(self, name: str, dtype: str) -> Operand:
        """One value per channel."""
        return Operand(name, (self.k,), dtype, (channel_axis(self.k, self.groups),))

    def partial(self, name: str, kept: str, dtype: str = "") -> Operand:
        """A tensor that has extent 1 on all axes but the `kept` ones (letters of n, k and the input extents)."""
        full = self.tensor(name, dtype)
        keep = [letter in kept for letter in ("n", "k", *IN[self.rank])]
        shape = tuple(s if stays else 1 for s, stays in zip(full.shape, keep, strict=True))
        axes = tuple(a if stays else Whole(1) for a, stays in zip(full.axes, keep, strict=True))
        return Operand(name, shape, full.dtype, axes, full.order)


def channel_dims(k: int, groups: int) -> dict[str, int]:
    """Loop dims of an output channel axis."""
    return {"k": k} if groups == 1 else {"g": groups, "k": k // groups}


def channel_axis(k: int, groups: int) -> AxisMap:
    """Axis map of an output channel axis."""
    return Along("k") if groups == 1 else Grouped("g", "k", k // groups)


def out_extent(extent: int, taps: int, stride: int, dilation: int, pad: tuple[int, int]) -> int:
    """Number of window positions along an axis; 0 or less when the window does not fit."""
    return (extent + sum(pad) - (taps - 1) * dilation - 1) // stride + 1


def meeting(inputs: Span, outputs: Span, stride: int, shift: int) -> tuple[slice, slice]:
    """Where a piece of x and a piece of y meet under one tap: input = output * stride + shift; slices of either piece."""
    lo = max(outputs.lo, -((shift - inputs.lo) // stride))
    hi = max(lo, min(outputs.hi, (inputs.hi - 1 - shift) // stride + 1))
    start = lo * stride + shift - inputs.lo
    at = slice(start, start + (hi - lo - 1) * stride + 1, stride) if hi > lo else slice(0, 0)
    return at, slice(lo - outputs.lo, hi - outputs.lo)


def check_positive(what: str, **values: int | tuple[int, ...]) -> None:
    """Raise ShapeError unless every value is at least 1."""
    for name, value in values.items():
        items = value if isinstance(value, tuple) else (value,)
        if any(v < 1 for v in items):
            raise ShapeError(f"{what}: {name} must be at least 1, got {value}")

"""Windows that overlap and are blended, for networks that were trained on patches: not the network on the whole, but what its
users call it. Source: MONAI's sliding_window_inference (monai/inferers/utils.py), whose results these are."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc.errors import ArgumentError
from ooc.ir.region import Region, Span

BLENDS = ("constant", "gaussian")
SIGMA = 0.125  # of a gaussian, as a share of the window
LEAST = 1e-3  # weight
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Windows:
    """How a tensor is passed in windows.

    Fields:
        size: of a window along every spatial axis, or along all.
        overlap: share of a window that the next one covers again.
        blend: weights of a window's positions: "constant", or "gaussian", highest in the middle.
    """

    size: Shape
    overlap: float = 0.25
    blend: str = "constant"

    @classmethod
    def of(cls, text: str) -> Windows | None:
        """From "window=96x96x64,overlap=0.5,blend=gaussian"; None for "whole". Raises ArgumentError."""
        if text == "whole":
            return None
        options = dict(part.partition("=")[::2] for part in text.split(","))
        unknown = {*options} - {"window", "overlap", "blend"}
        try:
            size = tuple(int(e) for e in options.get("window", "").split("x"))
            windows = cls(size, float(options.get("overlap", 0.25)), options.get("blend", "constant"))
        except ValueError:
            raise ArgumentError(
                f"--semantics: expected whole, or window=96x96,overlap=0.25,blend=gaussian; got {text!r}"
            ) from None
        if unknown or min(size) < 1 or not 0 <= windows.overlap < 1 or windows.blend not in BLENDS:
            raise ArgumentError(
                f"--semantics: window of 1 or more, overlap from 0 to below 1, blend {' or '.join(BLENDS)}; got {text!r}"
            )
        return windows

    def along(self, extent: Shape) -> Shape:
        """The window's extents. Raises ArgumentError where the number of axes is another."""
        if len(self.size) not in (1, len(extent)):
            raise ArgumentError(f"--semantics: a window of {len(self.size)} axes for {len(extent)} axes of space")
        return self.size * len(extent) if len(self.size) == 1 else self.size

    def starts(self, extent: Shape) -> list[list[int]]:
        """Where windows begin along every axis, of a tensor at least as large as one."""
        begins = []
        for e, size in zip(extent, self.along(extent), strict=True):
            step = size if size == e else max(1, int(size * (1 - self.overlap)))
            count = next(i + 1 for i in itertools.count() if i * step + size >= e)
            begins.append([min(i * step, e - size) for i in range(count)])
        return begins

    def weights(self, extent: Shape) -> Any:
        """The weights of what a window makes."""
        if self.blend == "constant":
            return np.ones(extent, np.float32)
        weights = np.ones((), np.float32)
        for e in extent:
            far = np.arange(e, dtype=np.float32) - np.float32((e - 1) / 2)
            weights = weights[..., None] * np.exp(far**2 / np.float32(-2 * (SIGMA * e) ** 2))
        return np.maximum(weights, max(float(weights.min()), LEAST)).astype(np.float32)


def scaled(start: int, size: int, out: int) -> Span:
    """Where what a window makes belongs, which begins at `start` and has `size` positions. Raises ArgumentError."""
    if start * out % size:
        raise ArgumentError(f"--semantics: a window of {size} that makes {out} cannot begin at {start}; take another overlap")
    return Span(start * out // size, start * out // size + out)


def rows(shape: Shape, most: int) -> Iterator[Region]:
    """A tensor in slabs of at most so many elements along the first spatial axis, or single ones."""
    n, c, first, *rest = shape
    each = max(1, most // max(1, c * math.prod(rest)))
    for i, lo in itertools.product(range(n), range(0, first, each)):
        yield (Span(i, i + 1), Span(0, c), Span(lo, min(lo + each, first)), *(Span(0, e) for e in rest))

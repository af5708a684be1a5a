"""A planned network moved over a tensor window by window; what windows make is added up in files, by weight."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import numpy as np

from ooc.apply.windows import Windows, rows, scaled
from ooc.ir.region import Region, Span, extents
from ooc.networks.session import Session
from ooc.sources import Source
from ooc.sources.scratch import Scratch

MOST = 1 << 22  # elements that are divided at a time
Shape = tuple[int, ...]


@contextmanager
def blended(windows: Windows, source: Source, session: Session, extent: Shape, per_window: Shape) -> Iterator[Source]:
    """What a network makes of windows of a source, blended: a tensor in a temporary file.

    extent: of space, with what is padded where a window is larger than the source. per_window: channels and extents of what one
    window makes.
    """
    size, (k, *out) = windows.along(extent), per_window
    whole = (source.shape[0], k, *(scaled(e - s, s, m).hi for e, s, m in zip(extent, size, out, strict=True)))
    with ExitStack() as stack:
        total, weight = (
            stack.enter_context(closing(Scratch(shape, np.dtype(np.float32)))).raw for shape in (whole, (1, 1, *whole[2:]))
        )
        weights = windows.weights(tuple(out))
        for n in range(source.shape[0]):
            for start in itertools.product(*windows.starts(extent)):
                y = session.forward(_window(source, n, start, size))
                at = tuple(scaled(b, s, m) for b, s, m in zip(start, size, out, strict=True))
                _add(total, (Span(n, n + 1), Span(0, k), *at), y * weights)
                if n == 0:
                    _add(weight, (Span(0, 1), Span(0, 1), *at), weights[None, None])
        for region in rows(whole, MOST):
            _divide(total, weight, region)
        yield total


def _window(source: Source, n: int, start: Shape, size: Shape) -> Any:
    """What a source has of a window: less than that where the source is smaller."""
    space = (Span(b, min(b + s, e)) for b, s, e in zip(start, size, source.shape[2:], strict=True))
    region = (Span(n, n + 1), Span(0, source.shape[1]), *space)
    window = np.empty(extents(region), source.dtype)
    source.read(region, window)
    return window


def _add(source: Source, region: Region, values: Any) -> None:
    held = np.empty(extents(region), np.float32)
    source.read(region, held)
    source.write(region, held + values)


def _divide(total: Source, weight: Source, region: Region) -> None:
    above, below = np.empty(extents(region), np.float32), np.empty((1, 1, *extents(region)[2:]), np.float32)
    total.read(region, above)
    weight.read((Span(0, 1), Span(0, 1), *region[2:]), below)
    total.write(region, above / below)

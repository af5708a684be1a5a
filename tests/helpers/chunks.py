"""A file of chunks that lies in memory and counts what is decoded and encoded."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.random import default_rng

from ooc.ir.region import Region
from ooc.sources.base import FileSource


class Chunks(FileSource):
    """A file of chunks in memory, which counts how often each is decoded and encoded. Parts of chunks are refused, as of Zarr."""

    whole_units = True

    def __init__(self, array: Any, unit: tuple[int, ...], writable: bool = True) -> None:
        super().__init__("chunks", array.shape, array.dtype, unit=unit, writable=writable)
        self.array, self.decoded, self.encoded = array, Counter[tuple[int, ...]](), Counter[tuple[int, ...]]()
        self.most = 0

    def _read(self, region: Region, out: Any) -> None:
        self.decoded.update(self._met(region))
        self.most = max(self.most, out.nbytes)
        out[...] = self.array[tuple([slice(*s) for s in region])]

    def _write(self, region: Region, array: Any) -> None:
        self.encoded.update(self._met(region))
        self.array[tuple([slice(*s) for s in region])] = array

    def _met(self, region: Region) -> Iterator[tuple[int, ...]]:
        return itertools.product(*[range(s.lo // u, -(-s.hi // u)) for s, u in zip(region, self.unit, strict=True)])


def integers(*shape: int, dtype: Any = np.float32) -> Any:
    return default_rng(sum(shape)).integers(-4, 5, shape).astype(dtype)

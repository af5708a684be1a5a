"""What the tests of sources share: random regions, arrays with gaps, pieces of whole units, OME-Zarr images."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ooc.ir.region import Region, Span, extents, slices, whole
from ooc.sources import Source


def numbers(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> np.ndarray[Any, Any]:
    """Random numbers that the dtype holds exactly."""
    dtype = np.dtype(dtype)
    drawn = np.random.default_rng(seed).integers(0, 2 if dtype.kind == "b" else 250, shape)
    return drawn.astype(dtype)


def regions(shape: tuple[int, ...], seed: int = 0, count: int = 12) -> Iterator[Region]:
    """The whole, one element, and random regions."""
    rng = random.Random(seed)
    yield whole(shape)
    yield tuple(Span(e - 1, e) for e in shape)
    for _ in range(count):
        edges = [sorted(rng.sample(range(e + 1), 2)) for e in shape]
        yield tuple(Span(lo, hi) for lo, hi in edges)


def strided(shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    """An array with gaps along every axis, the last turned around."""
    plain = np.zeros([2 * e + 1 for e in shape], dtype)
    return plain[tuple([slice(1, 2 * e + 1, 2) for e in shape])][..., ::-1] if shape else plain


def check(source: Source, want: np.ndarray[Any, Any], seed: int = 0, count: int = 12) -> None:
    """Regions of a source are those of the whole array, into plain arrays and into arrays with gaps."""
    assert source.shape == want.shape and source.dtype == want.dtype
    for i, region in enumerate(regions(want.shape, seed, count)):
        out = strided(extents(region), want.dtype) if i % 2 else np.empty(extents(region), want.dtype)
        source.read(region, out)
        np.testing.assert_array_equal(out, want[slices(region)], err_msg=str(region))


def fill(source: Source, want: np.ndarray[Any, Any], seed: int = 0) -> None:
    """Write an array in pieces of whole units, in random order, from arrays with gaps."""
    todo = np.ones(want.shape, bool)
    order = [tuple(int(i) for i in index) for index in np.argwhere(todo)]
    random.Random(seed).shuffle(order)
    for index in order:
        if todo[index]:
            region = source.own(tuple(Span(i, min(i + 4, e)) for i, e in zip(index, want.shape)))
            piece = strided(extents(region), want.dtype)
            piece[...] = want[slices(region)]
            source.write(region, piece)
            todo[slices(region)] = False


def ome(folder: Path, levels: list[np.ndarray[Any, Any]], version: int) -> None:
    """An OME-Zarr 0.4 (Zarr 2) or 0.5 (Zarr 3) image with axes c y x."""
    import zarr

    axes = [{"name": n, "type": "channel" if n == "c" else "space"} for n in "cyx"]
    scales = [{"version": "0.4", "axes": axes, "datasets": [{"path": f"s{i}"} for i in range(len(levels))]}]
    group = zarr.open_group(str(folder), mode="w", zarr_format=version)
    group.attrs.update({"multiscales": scales} if version == 2 else {"ome": {"version": "0.5", "multiscales": scales}})
    for i, level in enumerate(levels):
        array = group.create_array(f"s{i}", shape=level.shape, dtype=level.dtype, chunks=(1, 8, 8))
        array[...] = level
    assert json.loads((folder / ("zarr.json" if version == 3 else ".zattrs")).read_text())

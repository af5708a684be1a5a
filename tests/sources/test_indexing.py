"""Sources are arrays: they are indexed as NumPy's are, and their axes are moved and added without reading."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ooc
from ooc.sources import around

A = np.arange(5 * 6 * 7, dtype=np.float32).reshape(5, 6, 7)
INDICES: list[Any] = [
    ..., 0, -1, (1, 2, 3), (..., 2), (slice(None, None, 2), ...), slice(None, None, -1), (slice(4, 0, -3), 0, slice(1, None, 2)),
    (None, 0, ..., None), slice(2, 2), slice(-2, None), (np.int64(1), slice(0, 1)), (slice(0, 99), slice(3), 5), (),
]  # fmt: skip


@pytest.fixture(params=["a.npy", "a.zarr", "a.zarr::1:4,:,2:6", "array", "turned"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Any, Any]]:
    """A source, and an array of the same numbers."""
    name = request.param
    if name == "array":
        yield ooc.as_source(A), A
        return
    file = "a.npy" if name == "turned" else name.partition("::")[0]
    with ooc.create(tmp_path / file, A.shape, A.dtype, "zyx", chunks=(2, 3, 4) if "zarr" in file else None) as made:
        made.write(tuple((0, e) for e in A.shape), A)
    with ooc.open(tmp_path / (file if name == "turned" else name)) as source:
        if name == "turned":
            yield source.transpose(2, 0, 1), A.transpose(2, 0, 1)
        else:
            yield source, A[1:4, :, 2:6] if "::" in name else A


@pytest.mark.parametrize("hull", [1, around.HULL])
def test_indexing(pair: tuple[Any, Any], hull: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With steps in one read, and in many."""
    monkeypatch.setattr(around, "HULL", hull)
    source, array = pair
    for at in INDICES:
        at = tuple(min(i, array.shape[a] - 1) if type(i) is int else i for a, i in enumerate(at)) if isinstance(at, tuple) else at
        result = source[at]
        np.testing.assert_array_equal(result, array[at])
        assert np.shape(result) == np.shape(array[at]) and result.dtype == array.dtype


def test_an_array(pair: tuple[Any, Any]) -> None:
    source, array = pair
    assert (source.ndim, source.size, source.nbytes, len(source)) == (array.ndim, array.size, array.nbytes, len(array))
    np.testing.assert_array_equal(np.asarray(source), array)
    assert np.asarray(source, np.float64).dtype == np.float64 and bool(source)
    assert str(array.shape) in repr(source) and "float32" in repr(source)
    for one, other in zip(source, array, strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(ValueError, match="copy"):
        np.array(source, copy=False)


def test_axes(pair: tuple[Any, Any]) -> None:
    source, array = pair
    turned = [
        (source.T, array.T),
        (source.transpose(1, 0, 2), array.transpose(1, 0, 2)),
        (source.transpose((0, -1, 1)), array.transpose(0, 2, 1)),
        (np.moveaxis(source, 0, -1), np.moveaxis(array, 0, -1)),
        (np.transpose(source), array.T),
        (np.swapaxes(source, 0, 2), array.swapaxes(0, 2)),
        (source.expand_dims(0), array[None]),
        (source.expand_dims((0, -1)), array[None, ..., None]),
        (source.T.expand_dims(1).T, array.T[:, None].T),
        (source.transpose(np.array([2, 1, 0])), array.transpose(2, 1, 0)),
        (source.expand_dims(np.int64(0)), array[None]),
    ]
    for one, other in turned:
        assert isinstance(one, ooc.Source) and not isinstance(one, np.ndarray)
        np.testing.assert_array_equal(one[...], other)
    w = np.ones((1, 1, 3, 3, 3), np.float32)
    np.testing.assert_array_equal(ooc.conv(source.expand_dims((0, 1)), w, padding=1), ooc.conv(array[None, None], w, padding=1))


@pytest.mark.parametrize(
    "at", [99, -8, (0, 0, 0, 0), [1, 2], True, np.ones(5, bool), 1.5, "a", (..., ...), slice(None, None, 0), slice("a")], ids=str
)
def test_what_is_no_index(at: Any, pair: tuple[Any, Any]) -> None:
    with pytest.raises(ooc.errors.PositionError) as caught:
        pair[0][at]
    assert isinstance(caught.value, IndexError) and isinstance(caught.value, ooc.ArgumentError)


def test_what_are_no_axes(pair: tuple[Any, Any]) -> None:
    source, _ = pair
    for wrong in (
        lambda: source.transpose(0, 1), lambda: source.transpose(0, 1, 5), lambda: source.transpose(0.0, 1, 2),
        lambda: source.transpose(0, 1, -4), lambda: source.swapaxes(0, 5), lambda: source.swapaxes(0, 1.5),
        lambda: source.expand_dims((0, 0)), lambda: source.expand_dims(1.5), lambda: source.expand_dims((0, 1.5)),
        lambda: source.expand_dims(True), lambda: source.expand_dims(tuple(range(40))),
    ):  # fmt: skip
        with pytest.raises(ooc.ShapeError):
            wrong()


def test_dask_reads_it_by_region(tmp_path: Path) -> None:
    da = pytest.importorskip("dask.array")
    np.save(tmp_path / "a.npy", A)
    with ooc.open(tmp_path / "a.npy") as source:
        assert da.from_array(source, chunks=2).sum().compute(scheduler="threads") == A.sum()

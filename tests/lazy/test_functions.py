"""Functions on dask arrays: they stay lazy, their blocks are those of the whole, and xarray's labels go with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sweeps import crossed

import ooc

da = pytest.importorskip("dask.array")
xarray = pytest.importorskip("xarray")

RNG = np.random.default_rng(7)
X = RNG.integers(-4, 5, (2, 3, 40, 50)).astype(np.float32)
W = RNG.integers(-4, 5, (8, 3, 3, 3)).astype(np.float32)
ONES = np.ones(3)
CHUNKS = [(1, 3, 16, 20), (2, 1, 40, 7), (2, 3, 40, 50)]
Function = Callable[[Any], Any]

BLOCKWISE: dict[str, Function] = {
    "conv": lambda x: ooc.conv(x, W, np.arange(8, dtype=np.float32), padding=1, activation="relu"),
    "valid": lambda x: ooc.conv(x, W),
    "strided": lambda x: ooc.conv(x, W, stride=3, padding=((2, 0), (0, 1))),
    "dilated, pooled": lambda x: ooc.conv(x, W, padding="same", dilation=2, pool=2),
    "reflect": lambda x: ooc.conv(x, W, padding="reflect"),
    "circular": lambda x: ooc.conv(x, W, padding="circular"),
    "residual": lambda x: ooc.conv(x, np.ones((3, 3, 1, 1), np.float32), residual=X),
    "unpooled": lambda x: ooc.conv(x, W, padding=1, pool=2, with_unpooled=True)[0],
    "chain": lambda x: ooc.chain(x, ooc.Conv(W, padding=1), ooc.Activation("relu"), ooc.Pool("max", 3, 2, 1)),
    "conv_transpose": lambda x: ooc.conv_transpose(x, np.ones((3, 4, 3, 3), np.float32), stride=2, padding=1),
    "max_pool": lambda x: ooc.max_pool(x, 2),
    "avg_pool": lambda x: ooc.avg_pool(x, 3, 2, 1, count_padding=False),
    "upsample": lambda x: ooc.upsample(x, size=(80, 100), mode="linear"),
    "activation": lambda x: ooc.activation(x, "tanh"),
    "flat": lambda x: ooc.activation(x[0, 0], "relu"),
    "add": lambda x: ooc.add(x, X),
    "scale": lambda x: ooc.scale(x, 3.0),
    "batch_norm": lambda x: ooc.batch_norm(x, ONES, ONES, ONES, ONES),
    "lrn": lambda x: ooc.lrn(x, 3),
    "softmax": ooc.softmax,
    "dropout": lambda x: ooc.dropout(x, 0.5, seed=3),
    "positions that nobody needs": lambda x: ooc.conv(x, W, stride=2, padding=((0, 1), (0, 0))),
    "windows that leave some": lambda x: ooc.max_pool(x, 3, 2),
    "fewer positions": lambda x: ooc.upsample(x, size=7),
    "a part": lambda x: ooc.max_pool(x[:, 1:, 5:31], 2),
}  # fmt: skip


@pytest.mark.parametrize(("name", "chunks"), crossed([*BLOCKWISE], CHUNKS, every=3))
def test_results_stay_lazy_and_are_those_of_the_whole(name: str, chunks: tuple[int, ...]) -> None:
    counted: list[int] = []

    def chunk(block: Any) -> Any:
        counted.append(1)
        return block

    x = da.from_array(X, chunks=chunks).map_blocks(chunk, meta=np.empty((0,) * 4, np.float32))
    counted.clear()  # dask looks at what a function makes of nothing
    y = BLOCKWISE[name](x)
    assert isinstance(y, da.Array) and not counted
    expected = BLOCKWISE[name](X)
    assert y.shape == expected.shape and y.dtype == expected.dtype
    np.testing.assert_array_equal(y.compute(scheduler="threads"), expected)


def test_channels_last_and_integers() -> None:
    last = np.ascontiguousarray(np.moveaxis(X, 1, -1))
    y = ooc.conv(da.from_array(last, chunks=(1, 16, 20, 3)), W, padding=1, layout="channels_last")
    np.testing.assert_array_equal(y, ooc.conv(last, W, padding=1, layout="channels_last"))
    small = (X + 4).astype(np.uint8)
    y = ooc.conv(da.from_array(small, chunks=(1, 3, 16, 20)), W, padding=1)
    assert isinstance(y, da.Array)
    np.testing.assert_array_equal(y, ooc.conv(small, W, padding=1))


@pytest.mark.parametrize("budget", ["2 KiB", "16 KiB", "256 KiB", None])
def test_budgets_are_those_of_the_call(budget: str | None) -> None:
    x = RNG.integers(-4, 5, (1, 2, 20, 22, 24)).astype(np.float32)
    w = RNG.integers(-4, 5, (4, 2, 3, 3, 3)).astype(np.float32)
    with ooc.device(budget=budget):
        y = ooc.conv(da.from_array(x, chunks=(1, 1, 7, 11, 12)), w, padding=1)
    assert isinstance(y, da.Array)
    np.testing.assert_array_equal(y, ooc.conv(x, w, padding=1))


def test_more_channels_than_the_budget_holds_are_cut_at_once() -> None:
    x, w = (RNG.integers(-4, 5, shape).astype(np.float32) for shape in ((1, 64, 9, 9), (8, 64, 3, 3)))
    with ooc.device(budget="8 KiB"):
        y = ooc.conv(da.from_array(x, chunks=(1, 64, 4, 4)), w)
    assert isinstance(y, np.ndarray)
    np.testing.assert_array_equal(y, ooc.conv(x, w))


def test_a_chunk_is_read_where_it_is_needed_alone() -> None:
    read: list[tuple[int, ...]] = []

    def noted(block: Any, block_id: tuple[int, ...] = ()) -> Any:
        read.append(block_id)
        return block

    x = da.from_array(X[:1], chunks=(1, 3, 10, 10)).map_blocks(noted, meta=np.empty((0,) * 4, np.float32))
    y = ooc.conv(x, W, padding=1)
    read.clear()
    y[:, :, :5, :5].compute(scheduler="synchronous")
    assert sorted(read) == [(0, 0, i, j) for i in range(2) for j in range(2)]


def test_what_is_not_made_block_by_block_is_computed_at_once() -> None:
    x = da.from_array(X, chunks=CHUNKS[0])
    out = np.empty((2, 8, 40, 50), np.float32)
    assert ooc.conv(x, W, padding=1, out=out) is out
    for result, expected in (
        (ooc.global_avg_pool(x), ooc.global_avg_pool(X)),
        (ooc.conv(x, W, alpha=2.0), ooc.conv(X, W, alpha=2.0)),
        (ooc.conv(X, da.from_array(W, chunks=4)), ooc.conv(X, W)),
        (ooc.bias_backward(x), ooc.bias_backward(X)),
    ):
        assert isinstance(result, np.ndarray)
        np.testing.assert_array_equal(result, expected)


def test_other_processes() -> None:
    y = ooc.conv(da.from_array(X, chunks=CHUNKS[0]), W, padding=1, pool=2)
    np.testing.assert_array_equal(y.compute(scheduler="processes", num_workers=2), ooc.conv(X, W, padding=1, pool=2))


def test_the_same_call_has_the_same_name() -> None:
    x = da.from_array(X, chunks=CHUNKS[0])
    one, two, other = (ooc.conv(x, w, padding=1).name for w in (W, W.copy(), W + 1))
    assert one == two != other and one.startswith("ooc-conv-")


@pytest.mark.parametrize("chunks", [None, {"t": 1, "y": 16, "x": 20}], ids=["in memory", "lazy"])
def test_labels_go_along(chunks: dict[str, int] | None) -> None:
    coords = {"t": [1, 2], "band": ["r", "g", "b"], "y": np.arange(40) * 2.0, "x": np.arange(50), "late": ("t", [5, 6])}
    x = xarray.DataArray(X, coords, ("t", "band", "y", "x"), "picture", {"units": "m"})
    x = x if chunks is None else x.chunk(chunks)
    same = ooc.conv(x, W[:3], padding=1)
    assert isinstance(same, xarray.DataArray) and isinstance(same.data, da.Array) is (chunks is not None)
    assert same.dims == x.dims and {*same.coords} == {"t", "y", "x", "late"} and same.name == "picture" and same.attrs == x.attrs
    np.testing.assert_array_equal(same, ooc.conv(X, W[:3], padding=1))
    np.testing.assert_array_equal(same.y, x.y)
    pooled = ooc.max_pool(x, 2)
    assert pooled.dims == x.dims and {*pooled.coords} == {"t", "band", "late"}
    np.testing.assert_array_equal(pooled, ooc.max_pool(X, 2))
    last = ooc.conv(x.transpose("t", "y", "x", "band"), W, padding=1, layout="channels_last")
    assert last.dims == ("t", "y", "x", "band") and {*last.coords} == {"t", "y", "x", "late"}
    np.testing.assert_array_equal(last, np.moveaxis(ooc.conv(X, W, padding=1), 1, -1))
    assert {*ooc.activation(x, "relu").coords} == {*coords}
    assert {*ooc.softmax(x).coords} == {*coords}
    assert {*ooc.add(X, x).coords} == {*coords}  # whichever of them has labels


def test_an_array_of_xarray_is_written_to() -> None:
    out = xarray.DataArray(np.zeros(X.shape, np.float32), dims=("t", "band", "y", "x"))
    assert ooc.activation(X, "relu", out=out) is out
    np.testing.assert_array_equal(out, ooc.activation(X, "relu"))


def test_options_that_do_not_fit_are_refused_at_once() -> None:
    x = da.from_array(X, chunks=CHUNKS[0])
    with pytest.raises(ooc.ArgumentError, match="scale, offset"):
        ooc.conv(x, W, scale=2.0, offset=5.0)
    with pytest.raises(ooc.ShapeError):
        ooc.conv(x, W[:, :2])


def test_empty_chunks_and_masked_values() -> None:
    x = da.from_array(X[0], chunks=((0, 1, 2), (16, 24), (0, 50)))
    np.testing.assert_array_equal(ooc.scale(x, 2.0), ooc.scale(X[0], 2.0))
    masked = da.from_array(np.ma.masked_greater(X, 3), chunks=CHUNKS[0])
    with pytest.raises(ooc.DtypeError, match="masked values"):
        ooc.conv(masked, W).compute(scheduler="synchronous")
    none = da.from_array(np.ma.masked_greater(X, 99), chunks=CHUNKS[0])
    np.testing.assert_array_equal(ooc.conv(none, W).compute(scheduler="synchronous"), ooc.conv(X, W))

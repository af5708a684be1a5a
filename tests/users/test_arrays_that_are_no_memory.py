"""Arrays of zarr, h5py, dask: read and written by region, in every function; nothing is lost in a copy of one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ooc
from ooc.ir.region import whole
from ooc.sources.protocol import is_source

X = np.arange(2 * 4 * 6 * 6, dtype=np.float32).reshape(2, 4, 6, 6) % 7
W, PLANE = np.ones((4, 4, 3, 3), np.float32), np.ones((3, 4), np.float32)
STATISTIC = np.ones(4)
LABELS = np.zeros((2, 6, 6), np.int64)
Give = Callable[[Any], Any]

# Every function, as a call of an array for each argument that holds one, by its name. Outputs are those of `OUTPUTS`.
CALLS: dict[str, dict[str, Any]] = {
    "activation": {"x": X, "name": "relu"},
    "activation_backward": {"y": X, "dy": X, "name": "relu"},
    "add": {"x": X, "z": X},
    "avg_pool": {"x": X, "window": 2},
    "avg_pool_backward": {"dy": X[..., :3, :3], "x_shape": X.shape, "window": 2},
    "batch_norm": {"x": X, "scale": STATISTIC, "b": STATISTIC, "mean": STATISTIC, "var": STATISTIC},
    "batch_norm_backward": {"x": X, "dy": X, "scale": STATISTIC, "mean": STATISTIC, "var": STATISTIC},
    "bias_backward": {"dy": X},
    "chain": {"x": X, "layers": (ooc.Conv(W, padding=1),)},
    "chain_backward": {"x": X, "dy": X, "layers": (ooc.Conv(W, padding=1),)},
    "concat": {"arrays": X},
    "conv": {"x": X, "w": W, "b": STATISTIC.astype(np.float32), "padding": 1, "residual": X},
    "conv_backward": {"x": X, "w": W, "dy": X, "padding": 1, "activation": "relu", "y": X},
    "conv_transpose": {"x": X, "w": W, "padding": 1},
    "cross_entropy": {"x": X, "labels": LABELS},
    "cross_entropy_backward": {"x": X, "labels": LABELS},
    "dropout": {"x": X, "rate": 0.5, "seed": 3},
    "fold_batch_norm": {"w": W, "b": STATISTIC, "scale": STATISTIC, "bias": STATISTIC, "mean": STATISTIC, "var": STATISTIC},
    "global_avg_pool": {"x": X},
    "linear": {"x": PLANE, "w": PLANE},
    "linear_backward": {"x": PLANE, "w": PLANE, "dy": np.ones((3, 3), np.float32)},
    "lrn": {"x": X, "size": 3},
    "lrn_backward": {"x": X, "dy": X, "size": 3},
    "max_pool": {"x": X, "window": 2},
    "max_pool_backward": {"x": X, "dy": X[..., :3, :3], "window": 2},
    "scale": {"x": X, "factor": 2.0},
    "softmax": {"x": X},
    "softmax_backward": {"y": X, "dy": X},
    "upsample": {"x": X, "size": 12},
    "upsample_backward": {"dy": X, "extent": 3},
}
OUTPUTS = ("out", "outs", "dx", "dw", "db")
WRITTEN_TOO = {"batch_norm": ("mean", "var")}  # moved in place while training
LISTED = [(name, word) for name, given in CALLS.items() for word, value in given.items() if isinstance(value, np.ndarray)]
WRITTEN = [(name, word) for name in CALLS for word in OUTPUTS if word in inspect.signature(getattr(ooc, name)).parameters]


def call(name: str, **more: Any) -> Any:
    given = {**CALLS[name], **more}
    layers = given.pop("layers", ())
    if name == "concat":
        given["arrays"] = [given["arrays"], X]
    if "layers" not in CALLS[name]:
        return getattr(ooc, name)(**given)
    first = [given.pop(word) for word in ("x", "dy") if word in given]
    return getattr(ooc, name)(*first, *layers, **given)


@pytest.fixture(params=["zarr", "h5py", "dask"])
def lazy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Give]:
    """Of an array, one of another library with the same numbers."""
    library = pytest.importorskip({"dask": "dask.array"}.get(request.param, request.param))
    if request.param == "zarr":
        yield lambda array: library.array(array, store=library.storage.MemoryStore())
    elif request.param == "dask":
        with pytest.importorskip("dask.config").set(scheduler="synchronous"):  # whatever client is left of other tests
            yield lambda array: library.from_array(array, chunks=2)
    else:
        with library.File(tmp_path / "lazy.h5", "w") as file:
            yield lambda array: file.create_dataset(f"{len(file)}", data=array)


def results(made: Any) -> list[Any]:
    """All arrays of a result."""
    if made is None or np.isscalar(made):
        return [] if made is None else [np.asarray(made)]
    return [made] if hasattr(made, "shape") else [one for some in made for one in results(some)]


def test_every_function_is_listed() -> None:
    functions = {name for name in ooc.__all__ if inspect.isfunction(getattr(ooc, name))}
    others = {
        "as_source",
        "create",
        "current_device",
        "device",
        "last_report",
        "open",
        "plan",
        "run_tasks",
        "set_device_budget",
        "tasks",
        "train",
    }
    assert functions - others == set(CALLS)
    for name in CALLS:
        call(name)


def is_dask(array: Any) -> bool:
    return type(array).__module__.startswith("dask")


@pytest.mark.parametrize(("name", "word"), WRITTEN)
def test_an_output_is_written_by_region(name: str, word: str, lazy: Give) -> None:
    """What takes nothing is refused, and stays as it is."""
    made = call(name)
    expected = getattr(made, word, None) if word in ("dx", "dw", "db") and not hasattr(made, "shape") else results(made)[0]
    out = lazy(np.full_like(expected, 77))
    given = {word: {"dx": out} if word == "outs" else out}
    if is_dask(out):
        with pytest.raises(ooc.DtypeError, match=r"no memory.*ooc\.create"):
            call(name, **given)
        assert (np.asarray(out) == 77).all()
        return
    with ooc.device("cpu", budget="64 KiB"):
        call(name, **given)
    np.testing.assert_allclose(out[...], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("name", "word"), LISTED)
def test_an_input_is_read_by_region(name: str, word: str, lazy: Give) -> None:
    with ooc.device("cpu", budget="64 KiB"):
        expected = call(name)
        found = call(name, **{word: lazy(CALLS[name][word])})
    for one, two in zip(results(found), results(expected), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("word", ["mean", "var"])
def test_statistics_move(word: str, lazy: Give) -> None:
    held, expected = lazy(STATISTIC), STATISTIC.copy()
    if is_dask(held):
        with pytest.raises(ooc.DtypeError, match="no memory"):
            call("batch_norm", training=True, **{word: held})
        return
    call("batch_norm", training=True, **{word: held})
    call("batch_norm", training=True, **{word: expected})
    np.testing.assert_array_equal(held[...], expected)


def test_layers_and_networks(lazy: Give) -> None:
    expected = ooc.chain(X, ooc.Conv(W, padding=1))
    np.testing.assert_array_equal(ooc.chain(X, ooc.Conv(lazy(W), padding=1)), expected)
    g = ooc.Graph("small")
    g.output(g.conv(g.input("x", (4, 6, 6)), 4, 3, padding=1, bias=False))
    (name,) = g.parameters
    with g.plan(batch=2, train=False).session({name: lazy(W)}) as session:
        np.testing.assert_array_equal(session.forward(lazy(X)), expected)
        out = lazy(X)
        if is_dask(out):
            with pytest.raises(ooc.OocError, match=r"ooc\.create"):
                session.forward(X, out=out)
        else:
            assert session.forward(X, out=out) is out
            np.testing.assert_array_equal(out[...], expected)


class Computed:
    """An array of a library that nobody knows: its numbers are made anew each time that they are asked for."""

    shape, dtype = X.shape, X.dtype

    def __init__(self, array: Any = X) -> None:
        self.array = array

    def __getitem__(self, index: Any) -> Computed:
        return Computed(self.array[index])

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.array.copy()


class Wrapped:
    """An array with names for its axes, say, around one of NumPy."""

    def __init__(self, array: Any) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def __getitem__(self, index: Any) -> Wrapped:
        return Wrapped(self.array[index])

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.array


class Table:
    """A table of columns: it is in memory, and NumPy sees a copy."""

    shape, dtype = X.shape, X.dtype

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return X.copy()


def test_libraries_that_nobody_knows() -> None:
    assert np.array_equal(ooc.activation(Computed(), "relu"), X)
    with pytest.raises(ooc.DtypeError, match=r"out: a .*Computed is no memory"):
        ooc.activation(X, "relu", out=Computed())
    assert np.array_equal(ooc.activation(Table(), "relu"), X)
    with pytest.raises(ooc.DtypeError, match="what is written to that is lost"):
        ooc.activation(X, "relu", out=Table())
    held = Wrapped(np.zeros_like(X))
    assert ooc.activation(Wrapped(X), "relu", out=held) is held
    assert np.array_equal(held.array, X)


@pytest.mark.parametrize("kind", ["npy", "zarr", "h5:/y", "tif", "nii"])
def test_results_that_are_made_in_several_passes(kind: str, tmp_path: Path) -> None:
    """Each pass writes a part of the same sink; also when it is open for long, and when it is closed."""
    pytest.importorskip({"zarr": "zarr", "h5:/y": "h5py", "tif": "tifffile", "nii": "nibabel"}.get(kind, "numpy"))
    parts = [X[:, :1], X[:, 1:], X[:, 2:3] + 1]
    joined, sink = np.concatenate(parts, 1), ooc.create(tmp_path / f"y.{kind}", (2, 5, 6, 6), np.float32)
    seen = np.empty(joined.shape, np.float32)
    for expected, call in (
        (joined, lambda: ooc.concat(parts, 1, out=sink)),
        (3 * joined, lambda: ooc.scale(joined, 1.0, out=sink, alpha=2.0, beta=1.0)),
        (np.maximum(joined, 0), lambda: ooc.activation(joined, "relu", out=sink)),
        (joined, lambda: ooc.concat(parts, 1, out=sink)),
    ):
        call()
        if kind != "h5:/y":  # the library keeps others out while a file is written
            with ooc.open(tmp_path / f"y.{kind}") as file:
                file.read(whole(joined.shape), seen)
            assert np.array_equal(seen, expected)
    sink.close()
    with ooc.open(f"{tmp_path}/y.{kind}") as file:
        file.read(whole(joined.shape), seen)
    assert np.array_equal(seen, joined)


@pytest.mark.parametrize("kind", ["npy", "zarr", "h5:/y", "tif", "nii", "png"])
@pytest.mark.parametrize("how", ["function", "blended", "session"])
def test_a_sink_is_complete_when_the_call_returns(kind: str, how: str, tmp_path: Path) -> None:
    """The file says what was written while the sink is open still: whoever forgets to close it loses nothing."""
    pytest.importorskip({"zarr": "zarr", "h5:/y": "h5py", "tif": "tifffile", "nii": "nibabel", "png": "PIL"}.get(kind, "numpy"))
    shape, dtype = ((6, 6), np.uint8) if kind == "png" else (X[0].shape[1:], np.float32)
    sink = ooc.create(tmp_path / f"y.{kind}", shape, dtype)
    x = np.ascontiguousarray(X[0, 0])
    if how == "session":
        g = ooc.Graph("small")
        y = g.activation(g.input("x", shape[1:]), "relu")
        g.output(g.round(y, "u8") if kind == "png" else y)
        with g.plan(batch=6, train=False).session() as session:
            session.forward(x, out=sink)
    else:
        ooc.scale(x, 1.0, out=sink)
        if how == "blended":
            ooc.scale(x, 1.0, out=sink, alpha=2.0)
    expected = np.maximum(x, 0) * (2 if how == "blended" else 1)
    seen = np.empty(shape, dtype)
    if kind == "h5:/y":  # the library keeps others out while a file is written
        sink.close()
    with ooc.open(tmp_path / f"y.{kind}") as found:
        found.read(whole(shape), seen)
    assert np.array_equal(seen, expected)
    sink.close()
    with ooc.open(tmp_path / f"y.{kind}") as found:
        found.read(whole(shape), seen)
    assert np.array_equal(seen, expected)


@pytest.mark.parametrize("kind", ["zarr", "zarr in memory", "h5py", "h5py in memory", "NumPy", "a map"])
def test_an_output_that_is_the_input(kind: str, tmp_path: Path) -> None:
    """Refused where tiles read what others wrote, by whatever object; elementwise operations work in place."""
    if kind.startswith("zarr"):
        zarr = pytest.importorskip("zarr")
        store = zarr.storage.MemoryStore() if kind.endswith("memory") else tmp_path / "x.zarr"
        held = zarr.create_array(store, data=X, chunks=(1, 3, 4, 4))
        others = [zarr.open_array(store, mode="r+")]
    elif kind.startswith("h5py"):
        h5py = pytest.importorskip("h5py")
        file = h5py.File(tmp_path / "x.h5", "w", **({"driver": "core"} if kind.endswith("memory") else {}))
        held = file.create_dataset("x", data=X, chunks=(1, 3, 4, 4))
        file["y"] = held
        others = [file["x"], file["y"]]
    else:
        np.save(tmp_path / "x.npy", X)
        held = X.copy() if kind == "NumPy" else np.load(tmp_path / "x.npy", mmap_mode="r+")
        others = [ooc.as_source(held)]
        if kind == "a map":
            others.append(ooc.as_source(np.load(tmp_path / "x.npy", mmap_mode="r+")))
    with ooc.device("cpu", budget="3 KiB"):
        for out in (held, *others):
            with pytest.raises(ooc.ShapeError, match="overlaps"):
                ooc.conv(held, W, padding=1, out=out)
        assert np.array_equal(held[...], X)
        assert ooc.scale(held, 2.0, out=held) is held
    assert np.array_equal(held[...], 2 * X)


class Raising:
    """What a library's closed array is like: it raises whatever it is asked for."""

    def __init__(self, asked: list[str]) -> None:
        self.__dict__["asked"] = asked

    def __getattr__(self, name: str) -> Any:
        self.__dict__["asked"].append(name)
        raise RuntimeError(f"closed: {name}")

    shape = property(lambda self: self.__getattr__("shape"))
    dtype = property(lambda self: self.__getattr__("dtype"))


def test_who_is_a_source_is_not_asked_of_arrays_that_may_raise(tmp_path: Path) -> None:
    """Whatever the order in which attributes are looked for, which depends on the hash seed of the process."""
    asked: list[str] = []
    assert not is_source(Raising(asked)) and not is_source(None) and not is_source(X) and not asked
    np.save(tmp_path / "x.npy", X)
    assert is_source(ooc.open(tmp_path / "x.npy")) and is_source(ooc.as_source(X))


def test_what_is_no_array_any_more(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        closed = file.create_dataset("x", data=X)
    with pytest.raises(ooc.DtypeError, match=r"x: a h5py.Dataset has no shape"):
        ooc.activation(closed, "relu")
    with pytest.raises(ooc.DtypeError, match="out: masked"):
        ooc.activation(X, "relu", out=np.ma.masked_array(X.copy()))
    odd = Computed()
    odd.chunks = ("a", None, 3, 4)  # type: ignore[attr-defined]
    assert np.array_equal(ooc.activation(odd, "relu"), X)


def test_tensorstore(tmp_path: Path) -> None:
    """Read and written by region, in chunks that no tile has; what is open for reading alone takes nothing."""
    tensorstore = pytest.importorskip("tensorstore")

    def stored(name: str, shape: tuple[int, ...]) -> Any:
        grid = {"name": "regular", "configuration": {"chunk_shape": [1, 3, 4, 5]}}
        about = {"shape": list(shape), "data_type": "float32", "chunk_grid": grid}
        kvstore = {"driver": "file", "path": f"{tmp_path}/{name}"}
        return tensorstore.open({"driver": "zarr3", "kvstore": kvstore, "metadata": about}, create=True).result()

    x, out = stored("x", X.shape), stored("y", X.shape)
    x[...] = X
    with ooc.device("cpu", budget="6 KiB"):
        assert ooc.conv(x, W, padding=1, out=out) is out
    assert np.array_equal(out.read().result(), ooc.conv(X, W, padding=1))
    kept = tensorstore.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{tmp_path}/y"}}, read=True).result()
    with pytest.raises(ooc.DtypeError, match="takes nothing"):
        ooc.conv(X, W, padding=1, out=kept)


def test_xarray() -> None:
    """In memory it is memory; in chunks of Dask it is read by region, and takes nothing."""
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("dask.array")
    held, expected = xarray.DataArray(X.copy(), dims=[*"nchw"]), ooc.conv(X, W, padding=1)
    chunked = held.chunk({"h": 4})
    with ooc.device("cpu", budget="8 KiB"):
        assert np.array_equal(ooc.conv(held, W, padding=1), expected)
        assert np.array_equal(ooc.conv(chunked, W, padding=1), expected)
    with pytest.raises(ooc.DtypeError, match="takes nothing"):
        ooc.conv(X, W, padding=1, out=chunked)
    ooc.conv(X, W, padding=1, out=held)
    assert np.array_equal(held.values, expected)

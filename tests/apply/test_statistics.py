"""What steps measure of a file: NumPy's percentiles, mean and deviation, exactly, whatever the file and its blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ooc
from ooc.apply import statistics
from ooc.apply.statistics import Measure, blocks, moments, percentiles
from ooc.cli.main import main
from ooc.errors import ShapeError
from ooc.ir.region import whole

DTYPES = ("u1", "u2", "i2", "i4", "f2", "f4", "f8", "?")
WANTED = (0, 0.5, 1, 25, 50, 99.8, 100)
Array = np.ndarray[Any, Any]


def drawn(dtype: str, shape: tuple[int, ...] = (2, 3, 31, 37)) -> Array:
    rng = np.random.default_rng(7)
    if dtype == "?":
        return rng.random(shape) < 0.3
    if dtype[0] == "f":
        values = rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4, shape).astype(float)
        values[0, 0, 0, :3] = 0, -0.0, 1
        return values.astype(dtype)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype, endpoint=True)


def stored(x: Array, folder: Path) -> ooc.Source:
    np.save(folder / "x.npy", x)
    return ooc.open(folder / "x.npy")


@pytest.fixture(params=[1 << 8, 1 << 22], ids=["small blocks", "one block"])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "BLOCK", request.param)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("each", [False, True])
def test_percentiles(dtype: str, each: bool, block: None, tmp_path: Path) -> None:
    x, axes = drawn(dtype), (0, 2, 3) if each else None
    with stored(x, tmp_path) as source:
        found = percentiles(source, WANTED, each)
    wanted = np.percentile(x.astype(np.float64), WANTED, axes).reshape(len(WANTED), -1)
    np.testing.assert_allclose(np.array(found), wanted, rtol=1e-13)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("each", [False, True])
def test_moments(dtype: str, each: bool, block: None, tmp_path: Path) -> None:
    x, axes = drawn(dtype), (0, 2, 3) if each else None
    with stored(x, tmp_path) as source:
        mean, deviation = moments(source, each)
    np.testing.assert_allclose(mean, np.atleast_1d(x.astype(np.float64).mean(axes)), rtol=1e-12)
    np.testing.assert_allclose(deviation, np.atleast_1d(x.astype(np.float64).std(axes)), rtol=1e-12)


def test_blocks_are_whole_units_and_all(block: None, tmp_path: Path) -> None:
    """Nothing is read twice, and no chunk in two pieces."""
    pytest.importorskip("zarr")
    x = np.arange(2 * 3 * 40 * 50, dtype=np.int32).reshape(2, 3, 40, 50)
    with ooc.create(tmp_path / "x.zarr", x.shape, x.dtype, "ncyx") as sink:
        sink.write(whole(x.shape), x)
    with ooc.open(tmp_path / "x.zarr") as source:
        found = np.concatenate([b.reshape(-1) for _, b in blocks(source)])
    np.testing.assert_array_equal(np.sort(found), x.reshape(-1))


@pytest.mark.parametrize("values", [np.full((1, 1, 4, 4), 3.0), np.full((1, 1, 4, 4), np.nan)])
@pytest.mark.parametrize("measure", [Measure("percentile", 1, 99), Measure("normalise")])
def test_nothing_to_divide_by(values: Array, measure: Measure, tmp_path: Path) -> None:
    with stored(values, tmp_path) as source, pytest.raises(ShapeError, match=f"{measure.how}: the input has one value"):
        measure.of(source)


# ---- as steps


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx, files = pytest.importorskip("onnx"), pytest.importorskip("onnx_files")
    nodes = [onnx.helper.make_node("Relu", ["x"], ["a"]), onnx.helper.make_node("Neg", ["a"], ["y"])]
    onnx.save(files.model_of(nodes, {"x": ["n", "c", "h", "w"]}, ["y"], {}), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def less_and_by(x: Array, how: str) -> tuple[Any, Any]:
    if how.startswith("normalise"):
        return x.mean(), x.std()
    if how.endswith("each"):
        low, high = np.percentile(x, (1, 99.8), (0, 2, 3), keepdims=True)
    else:
        low, high = np.percentile(x, (1, 99.8))
    return low, high - low


@pytest.mark.parametrize("how", ["percentile 1 99.8", "percentile 1 99.8 each", "normalise"])
@pytest.mark.parametrize("budget", ["1GiB", "6KiB"])
def test_steps_of_all_of_the_file(how: str, budget: str, model: Path, tmp_path: Path) -> None:
    x = drawn("u2")
    np.save(tmp_path / "x.npy", x)
    files = ["--input", str(tmp_path / "x.npy"), "--output", str(tmp_path / "y.npy"), "--budget", budget, "--verify", "3"]
    assert main(["apply", str(model), *files, "--pre", f"{how}, add 0.25"]) == 0
    less, by = less_and_by(x.astype(np.float64), how)
    wanted = -np.maximum((x - less) / by + 0.25, 0)
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), wanted, rtol=1e-4, atol=1e-6)


def test_luminance(model: Path, tmp_path: Path) -> None:
    x = drawn("u1")
    np.save(tmp_path / "x.npy", x)
    files = ["--input", str(tmp_path / "x.npy"), "--output", str(tmp_path / "y.npy")]
    assert main(["apply", str(model), *files, "--pre", "luminance"]) == 0
    wanted = -np.einsum("nchw,c->nhw", x.astype(np.float64), (0.299, 0.587, 0.114))[:, None]
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), wanted, rtol=1e-6)


@pytest.mark.parametrize(("steps", "told"), [
    ("/ 255, percentile 1 99", "must be the first step"), ("percentile 99 1", "the lower one first"),
    ("percentile 1", "two percentiles"), ("percentile 1 101", "0 to 100"), ("percentile a b", "expected numbers"),
    ("normalise 3", "no number"), ("luminance 2", "luminance"),
])  # fmt: skip
def test_refusals(steps: str, told: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", drawn("u1"))
    files = ["--input", str(tmp_path / "x.npy"), "--output", str(tmp_path / "y.npy")]
    assert main(["apply", str(model), *files, "--pre", steps]) == 2
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1 and not (tmp_path / "y.npy").exists()


@pytest.mark.parametrize(("dtype", "passes"), [("u1", 1), ("u2", 1), ("f4", 2), ("f8", 4)])
def test_channels_share_their_passes(dtype: str, passes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is read once for each 16 bits of its numbers, however many channels and percentiles there are."""
    count = [0]
    plain = statistics.blocks

    def counted(source: ooc.Source) -> Any:
        count[0] += 1
        return plain(source)

    monkeypatch.setattr(statistics, "blocks", counted)
    with stored(drawn(dtype), tmp_path) as source:
        percentiles(source, WANTED, each=True)
    assert count[0] == passes

"""Packages of bioimage.io, built here: `ooc apply package.zip` is the network with what is done before and after it, and
`ooc.bioimageio.Adapter` the network in the pipeline of bioimageio.core."""

from __future__ import annotations

import gc
import importlib
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

spec = pytest.importorskip("bioimageio.spec")
onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
onnx_files = pytest.importorskip("onnx_files")
node = pytest.importorskip("apply_files").node

from bioimageio.spec.model import v0_5  # noqa: E402

import ooc  # noqa: E402
from ooc.cli.main import main  # noqa: E402

RNG = np.random.default_rng(4)
AXES = [{"type": "batch"}, {"type": "channel", "channel_names": ["a", "b"]}]
SPACE = [{"type": "space", "id": a, "size": {"min": 8, "step": 4}} for a in "yx"]


def package(
    folder: Path, before: Sequence[Any], after: Sequence[Any], weights: str = "onnx", size: Sequence[Any] = ("h", "w")
) -> tuple[Path, Any]:
    """A package of a small network, and the network. size: that it is exported for."""
    w = RNG.standard_normal((3, 2, 3, 3)).astype(np.float32)
    nodes = [
        node("Conv", "x w", "a", pads=[1, 1, 1, 1]), node("MaxPool", "a", "b", kernel_shape=[4, 4], strides=[4, 4]),
        node("Resize", "b none scales", "y", mode="nearest"),
    ]  # fmt: skip
    values = {"w": w, "none": np.zeros(0, np.float32), "scales": np.array([1, 1, 4, 4], np.float32)}
    model = onnx_files.model_of(nodes, {"x": [1, 2, *size]}, ["y"], values)
    onnx.save(model, folder / "weights.onnx")
    np.save(folder / "in.npy", np.ones((1, 2, 16, 16), np.float32))
    np.save(folder / "out.npy", np.ones((1, 3, 16, 16), np.float32))
    (folder / "README.md").write_text("# A network\n\n# Validation\n")
    out = [{"type": "batch"}, {"type": "channel", "channel_names": ["k", "l", "m"]}]
    out += [{"type": "space", "id": a, "size": {"tensor_id": "x", "axis_id": a}} for a in "yx"]
    held = {"onnx": {"source": str(folder / "weights.onnx"), "opset_version": 13}}
    if weights != "onnx":
        held = {"torchscript": {"source": str(folder / "weights.onnx"), "pytorch_version": "2.0"}}
    first, last = ({"source": str(folder / name)} for name in ("in.npy", "out.npy"))
    descr = v0_5.ModelDescr(
        name="A network", description="for a test", authors=[{"name": "nobody"}], license="MIT",
        cite=[{"text": "none", "doi": "10.1234/5678"}], documentation={"source": str(folder / "README.md")},
        inputs=[{"id": "x", "axes": AXES + SPACE, "test_tensor": first, "preprocessing": list(before)}],
        outputs=[{"id": "y", "axes": out, "test_tensor": last, "postprocessing": list(after)}],
        weights=held,
    )  # fmt: skip
    spec.save_bioimageio_package(descr, output_path=folder / "package.zip")
    return folder / "package.zip", model


def expected(model: Any, x: Any) -> Any:
    return onnx_files.by_runtime(model, {"x": np.ascontiguousarray(x, np.float32)})[0]


def applied(folder: Path, x: Any, model: Path, *more: str) -> Any:
    np.save(folder / "x.npy", x)
    given = ["apply", str(model), "--input", f"{folder}/x.npy", "--output", f"{folder}/y.npy", "--overwrite", "--quiet", *more]
    assert main(given) == 0
    return np.load(folder / "y.npy")


@pytest.fixture
def x() -> Any:
    return RNG.integers(0, 255, (1, 2, 24, 32)).astype(np.uint8)


CASES: dict[str, Any] = {
    "linear": (
        [{"id": "ensure_dtype", "kwargs": {"dtype": "float32"}},
         {"id": "scale_linear", "kwargs": {"axis": "channel", "gain": [0.5, 0.25], "offset": [1.0, -1.0]}}],
        [{"id": "sigmoid"}], lambda x: x * np.float32([0.5, 0.25]).reshape(2, 1, 1) + np.float32([1, -1]).reshape(2, 1, 1),
        lambda y: 1 / (1 + np.exp(-y)),
    ),
    "moments": (
        [{"id": "zero_mean_unit_variance", "kwargs": {"axes": ["x", "y"]}}], [{"id": "softmax", "kwargs": {"axis": "channel"}}],
        lambda x: (x - x.mean((2, 3), keepdims=True)) / x.std((2, 3), keepdims=True),
        lambda y: np.exp(y) / np.exp(y).sum(1, keepdims=True),
    ),
    "percentiles": (
        [{"id": "scale_range", "kwargs": {"axes": ["channel", "x", "y"], "min_percentile": 1.0, "max_percentile": 99.0}},
         {"id": "clip", "kwargs": {"min": 0.0, "max": 1.0}}],
        [{"id": "binarize", "kwargs": {"threshold": 0.25}}],
        lambda x: np.clip((x - np.percentile(x, 1)) / (np.percentile(x, 99) - np.percentile(x, 1)), 0, 1), lambda y: y > 0.25,
    ),
    "fixed": (
        [{"id": "fixed_zero_mean_unit_variance", "kwargs": {"axis": "channel", "mean": [9.0, 7.0], "std": [2.0, 4.0]}}], [],
        lambda x: (x - np.float32([9, 7]).reshape(2, 1, 1)) / np.float32([2, 4]).reshape(2, 1, 1), lambda y: y,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_done_before_and_after(name: str, x: Any, tmp_path: Path) -> None:
    before, after, begin, end = CASES[name]
    path, model = package(tmp_path, before, after)
    y = applied(tmp_path, x, path)
    np.testing.assert_allclose(y, end(expected(model, begin(x.astype(np.float32)))), rtol=1e-3, atol=2e-3)


def test_sizes_are_filled_up(x: Any, tmp_path: Path) -> None:
    """To the multiples that the description asks for, and cut back."""
    path, _ = package(tmp_path, [], [])
    assert applied(tmp_path, x[..., :21, :30].astype(np.float32), path).shape == (1, 3, 21, 30)


def test_words_of_the_caller_come_first(x: Any, tmp_path: Path) -> None:
    path, model = package(tmp_path, [{"id": "scale_linear", "kwargs": {"gain": 2.0}}], [{"id": "sigmoid"}])
    y = applied(tmp_path, x, path, "--pre", "/ 255", "--post", "add 1")
    np.testing.assert_allclose(y, expected(model, x / np.float32(255)) + 1, atol=1e-4)


def test_a_description_beside_its_files(x: Any, tmp_path: Path) -> None:
    path, model = package(tmp_path, [], [])
    with zipfile.ZipFile(path) as held:
        held.extractall(tmp_path / "open")
    (name,) = [p for p in (tmp_path / "open").iterdir() if p.suffix == ".yaml"]
    np.testing.assert_allclose(applied(tmp_path, x, name), expected(model, x), rtol=1e-4, atol=1e-3)


def test_what_is_refused(x: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def told(path: Path) -> str:
        np.save(tmp_path / "x.npy", x)
        assert main(["apply", str(path), "--input", f"{tmp_path}/x.npy", "--output", f"{tmp_path}/y.npy"]) == 2
        return capsys.readouterr().err

    (tmp_path / "no.zip").write_bytes(b"none")
    assert "not a valid model of bioimage.io" in told(tmp_path / "no.zip")
    with zipfile.ZipFile(tmp_path / "empty.zip", "w") as empty:
        empty.writestr("rdf.yaml", "type: model\nformat_version: 0.5.3\n")
    assert "not a valid model of bioimage.io" in told(tmp_path / "empty.zip")
    assert "no.zip" in told(tmp_path / "no.zip")
    path, _ = package(tmp_path, [], [], weights="torchscript")
    assert "its weights are TorchScript" in told(path)
    (tmp_path / "two").mkdir()
    path, _ = package(tmp_path / "two", [{"id": "clip", "kwargs": {"min_percentile": 1.0, "max_percentile": 99.0}}], [])
    assert "clip: by percentiles" in told(path)


# ---------------------------------------------------------------- in bioimageio.core's pipeline


@pytest.fixture
def core() -> Any:
    """bioimageio.core, which `ooc apply` does without."""
    found = pytest.importorskip("bioimageio.core")
    pytest.importorskip("bioimageio.core._model_adapter")
    importlib.import_module("ooc.bioimageio")
    return found


def both(core: Any, model: Any, inputs: Any, adapter: Any, **options: Any) -> tuple[Any, Any]:
    """What bioimageio.core predicts with an adapter of ooc, and with its own of ONNX Runtime."""
    ways = {"model_adapter": adapter}, {"weights_format": "onnx"}
    pipelines = (core.create_prediction_pipeline(model, **way) for way in ways)
    ours, own = (core.predict(model=pipeline, inputs=inputs, **options).members for pipeline in pipelines)
    assert [*ours] == [*own] and all(ours[name].dims == own[name].dims for name in own)
    return ours, own


def agree(found: Any, wanted: Any) -> None:
    found, wanted = found.data.to_numpy(), wanted.data.to_numpy()
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("budget", [None, "256 KiB"])
def test_a_pipeline(budget: str | None, core: Any, tmp_path: Path) -> None:
    """The whole sample, of two sizes one after the other; what the convolution makes is three times the budget."""
    path, _ = package(tmp_path, *CASES["moments"][:2])
    model = core.load_model(path)
    adapter = ooc.bioimageio.Adapter(model, budget=budget, device="cpu")
    for extent in ((256, 256), (40, 72), (40, 72)):
        ours, own = both(core, model, RNG.standard_normal((1, 2, *extent)).astype(np.float32), adapter)
        agree(ours["y"], own["y"])


def test_blocks_and_other_orders_of_axes(core: Any, tmp_path: Path) -> None:
    path, _ = package(tmp_path, [], [{"id": "sigmoid"}])
    model = core.load_model(path)
    x = core.Tensor(RNG.standard_normal((64, 48, 2, 1)).astype(np.float32), dims=("y", "x", "channel", "batch"))
    for options in ({}, {"blocksize_parameter": 2}):
        ours, own = both(core, model, {"x": x}, ooc.bioimageio.Adapter(model, budget="64 KiB"), **options)
        agree(ours["y"], own["y"])


def test_a_file_of_one_size(core: Any, tmp_path: Path) -> None:
    """The description allows others, of which ONNX Runtime takes none."""
    path, network = package(tmp_path, [], [], size=(16, 16))
    model, x = core.load_model(path), RNG.standard_normal((1, 2, 24, 32)).astype(np.float32)
    pipeline = core.create_prediction_pipeline(model, model_adapter=ooc.bioimageio.Adapter(model))
    for axis, name in ((2, "h"), (3, "w")):
        network.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    found = core.predict(model=pipeline, inputs=x).members["y"].data.to_numpy()
    np.testing.assert_allclose(found, expected(network, x), rtol=1e-4, atol=1e-4)


def several(folder: Path) -> Any:
    """The description of a network of two inputs and three outputs, whose weights lie beside it; it has two of these."""
    w = RNG.standard_normal((3, 2, 3, 3)).astype(np.float32)
    nodes = [
        node("Add", "p q", "s"), node("Conv", "s w", "a", pads=[1, 1, 1, 1]), node("ArgMax", "a", "k", axis=1, keepdims=1),
        node("Relu", "a", "r"),
    ]  # fmt: skip
    inputs: dict[str, list[int | str]] = {name: ["n", 2, "h", "w"] for name in "pq"}
    model = onnx_files.model_of(nodes, inputs, [], {"w": w})
    kinds = {"k": onnx.TensorProto.INT64, "a": onnx.TensorProto.FLOAT, "r": onnx.TensorProto.FLOAT}
    model.graph.output.extend(onnx.helper.make_tensor_value_info(name, kind, None) for name, kind in kinds.items())
    onnx.save(model, folder / "several.onnx", save_as_external_data=True, location="several.data", size_threshold=0)
    np.save(folder / "in.npy", np.ones((1, 2, 16, 16), np.float32))
    np.save(folder / "k.npy", np.ones((1, 1, 16, 16), np.int64))
    np.save(folder / "a.npy", np.ones((1, 3, 16, 16), np.float32))
    (folder / "README.md").write_text("# A network\n\n# Validation\n")
    out = [{"type": "space", "id": a, "size": {"tensor_id": "p", "axis_id": a}} for a in "yx"]
    begin = {"k": {"type": "channel", "channel_names": ["k"]}, "a": {"type": "channel", "channel_names": ["l", "m", "n"]}}
    descr = v0_5.ModelDescr(
        name="Several", description="for a test", authors=[{"name": "nobody"}], license="MIT",
        cite=[{"text": "none", "doi": "10.1234/5678"}], documentation={"source": str(folder / "README.md")},
        inputs=[{"id": name, "axes": AXES + SPACE, "test_tensor": {"source": str(folder / "in.npy")}} for name in "pq"],
        outputs=[
            {"id": name, "axes": [{"type": "batch"}, channel, *out], "test_tensor": {"source": str(folder / f"{name}.npy")},
             "data": {"type": "int64" if name == "k" else "float32"}} for name, channel in begin.items()
        ],
        weights={"onnx": {"source": str(folder / "several.onnx"), "opset_version": 18,
                          "external_data": {"source": str(folder / "several.data")}}},
    )  # fmt: skip
    spec.save_bioimageio_package(descr, output_path=folder / "several.zip")
    return descr


@pytest.mark.filterwarnings("ignore:Model produced more outputs")
def test_several_inputs_and_outputs(core: Any, tmp_path: Path) -> None:
    """Weights beside the file, in a folder and in a zipped package, of which copies go with the adapter."""
    p, q = RNG.standard_normal((2, 1, 2, 40, 48)).astype(np.float32)
    for model in (several(tmp_path), core.load_model(tmp_path / "several.zip")):
        adapter = ooc.bioimageio.Adapter(model, budget="48 KiB")
        ours, own = both(core, model, {"p": p, "q": q}, adapter)
        agree(ours["a"], own["a"])
        agree(ours["k"], own["k"])
        sample = core.Sample(members={"p": core.Tensor(p, dims=("batch", "channel", "y", "x"))}, stat={}, id=None)
        refused = pytest.raises(ooc.ArgumentError, match="inputs: the model takes p, q, and there is no q")
        with core.create_prediction_pipeline(model, model_adapter=adapter) as pipeline, refused:
            pipeline.predict_sample_without_blocking(sample)


def test_copies_go_with_the_adapter(core: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "copies"))
    (tmp_path / "copies").mkdir()
    path, _ = package(tmp_path, [], [])
    adapter = ooc.bioimageio.Adapter(core.load_model(path))
    assert [file.name for file in (tmp_path / "copies").glob("ooc-*/*")] == ["weights.onnx"]
    del adapter
    gc.collect()
    assert not [*(tmp_path / "copies").glob("ooc-*")]


def test_what_an_adapter_refuses(core: Any, tmp_path: Path) -> None:
    path, _ = package(tmp_path, [], [])
    model = core.load_model(path)
    for wrong in (str(path), None, {"weights": "onnx"}):
        with pytest.raises(ooc.OptionError, match=r"model_description: expected what bioimageio\.core\.load_model returns"):
            ooc.bioimageio.Adapter(wrong)
    for given in ({"budget": "much"}, {"budget": []}, {"device": 3}, {"device": "abacus"}):
        with pytest.raises(ooc.ArgumentError, match=next(iter(given))):
            ooc.bioimageio.Adapter(model, **given)
    with pytest.raises(ooc.BudgetError):
        ooc.bioimageio.Adapter(model, budget=0)
    pipeline = core.create_prediction_pipeline(model, model_adapter=ooc.bioimageio.Adapter(model, budget=100))
    with pytest.raises(ooc.BudgetError) as caught:
        core.predict(model=pipeline, inputs=np.zeros((1, 2, 16, 16), np.float32))
    assert caught.value.smallest_bytes
    pipeline = core.create_prediction_pipeline(model, model_adapter=ooc.bioimageio.Adapter(model))
    with pytest.raises(ooc.DtypeError, match="x: dtype int16 is not supported"):
        core.predict(model=pipeline, inputs=np.zeros((1, 2, 16, 16), np.int16), skip_preprocessing=True)
    with zipfile.ZipFile(path) as held:
        held.extractall(tmp_path / "open")
    (told,) = (tmp_path / "open").glob("*.yaml")
    model = core.load_model(told)
    (tmp_path / "open" / "weights.onnx").write_bytes(b"none")
    with pytest.raises(ooc.StoreError, match=r"weights that cannot be read: .*SHA256 mismatch"):
        ooc.bioimageio.Adapter(model)
    (tmp_path / "open" / "weights.onnx").unlink()
    with pytest.raises(ooc.StoreError):
        ooc.bioimageio.Adapter(model)
    (tmp_path / "other").mkdir()
    path, _ = package(tmp_path / "other", [], [], weights="torchscript")
    with pytest.raises(ooc.UnsupportedError, match=r"its weights are TorchScript; ooc reads ONNX"):
        ooc.bioimageio.Adapter(core.load_model(path))

"""Graphs as ONNX models: ONNX Runtime computes what ooc does, and ooc reads the same layers back."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exports import LAYERS, LOSSES, MODELS, close, drawn, forward, functions, inputs, mixed, weights, with_losses
from sweeps import swept

import ooc
from ooc import Graph
from ooc.networks import models
from ooc.networks.layers import KINDS, Act

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
onnx_files = pytest.importorskip("onnx_files")

from ooc.onnx import export, writer  # noqa: E402


def computed(model: bytes, given: dict[str, Any]) -> dict[str, Any]:
    """What ONNX Runtime makes, by name, as a user has it: with its optimizations."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(None, {i.name: given[i.name] for i in session.get_inputs()}), strict=True))


def read_back(graph: Graph, given: dict[str, Any], folder: Path, parameters: dict[str, Any] | None = None) -> Graph:
    path = folder / "net.onnx"
    assert graph.to_onnx(path, parameters) is None
    return ooc.onnx.load(path, {name: array.shape for name, array in given.items()})


def read(graph: Graph) -> dict[str, Any]:
    """Inputs that are read, as others are left out."""
    return {name: array for name, array in inputs(graph).items() if any(name in n.reads for n in graph.nodes)}


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return list(one) == list(other) and all(np.array_equal(one[name], other[name], equal_nan=True) for name in one)


def layers_of(graph: Graph) -> list[Any]:
    return [(n.name, n.layer, n.reads) for n in graph.nodes if n.layer.kind not in LOSSES]


# ---- each kind of layer


@pytest.mark.quick
def test_every_kind_is_exported_and_tried() -> None:
    assert set(KINDS) - LOSSES == set(export.EXPORTS) == set(LAYERS)
    assert set(functions()) == set(export.FUNCTIONS)


def served(graph: Graph) -> bool:
    """Whether ONNX Runtime computes it: it normalises across odd numbers of channels alone."""
    return all(n.layer.kind != "lrn" or n.layer.size % 2 for n in graph.nodes)


def unread(graph: Graph) -> bool:
    """Whether there is something that no importer makes."""
    return any(n.layer.kind == "convert" and n.layer.scale != 1 and graph.dtypes[n.reads[0]] == "i32" for n in graph.nodes)


@pytest.mark.parametrize("seed", swept(list(range(24)), suite=4))
@pytest.mark.parametrize("kind", LAYERS)
def test_a_layer(kind: str, seed: int, tmp_path: Path) -> None:
    graph = drawn(kind, seed)
    parameters, given = weights(graph), read(graph)
    expected = forward(graph, inputs(graph), parameters)
    model = graph.to_onnx(parameters=parameters)
    onnx.checker.check_model(model, full_check=True)
    if served(graph):
        made = computed(model, given)
        assert list(made) == list(expected) and all(close(made[name], expected[name]) for name in made)
    if unread(graph):
        with pytest.raises(ooc.UnsupportedError, match="node "):
            read_back(graph, given, tmp_path, parameters)
        return
    assert equal(forward(read_back(graph, given, tmp_path, parameters), given), expected)


@pytest.mark.parametrize("dtype", ["f64", "f16"])
@pytest.mark.parametrize("kind", [kind for kind in LAYERS if kind != "convert"])
def test_a_layer_of_another_dtype_is_read_back(kind: str, dtype: str, tmp_path: Path) -> None:
    graph = drawn(kind, 1, dtype)
    parameters, given = weights(graph), read(graph)
    onnx.checker.check_model(graph.to_onnx(parameters=parameters), full_check=True)
    assert equal(forward(read_back(graph, given, tmp_path, parameters), given), forward(graph, inputs(graph), parameters))


@pytest.mark.parametrize("seed", swept(list(range(20)), suite=4))
def test_many_layers(seed: int, tmp_path: Path) -> None:
    graph = mixed(seed, [kind for kind in LAYERS if kind not in ("convert", "resize")])
    parameters, given = weights(graph), read(graph)
    expected = forward(graph, inputs(graph), parameters)
    if served(graph):
        made = computed(graph.to_onnx(parameters=parameters), given)
        assert all(close(made[name], expected[name], 1e-4) for name in expected)
    if not unread(graph):
        assert equal(forward(read_back(graph, given, tmp_path, parameters), given), expected)


# ---- networks


@pytest.mark.parametrize("name", MODELS)
def test_networks_of_the_papers_come_back_layer_by_layer(name: str, tmp_path: Path) -> None:
    graph = MODELS[name]()
    parameters, given = weights(graph), read(graph)
    expected = forward(graph, given, parameters)
    back = read_back(graph, given, tmp_path, parameters)
    assert layers_of(back) == layers_of(graph) and back.outputs == graph.outputs and back.inputs == graph.inputs
    assert equal(forward(back, given), expected)
    made = computed(graph.to_onnx(parameters=parameters), given)
    assert all(close(made[name], expected[name], 1e-4) for name in expected)


@pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.slow)])
def test_what_importers_make_comes_back(tmp_path: Path, every: int) -> None:
    """ONNX's own cases: what ooc reads of them is exported, and is the same when it is read again."""
    for case in onnx_files.cases()[::every]:
        made = onnx_files.outcomes()[case.name]
        if isinstance(made, Exception):
            continue
        back = read_back(made.graph, case.inputs, tmp_path)
        assert equal(forward(back, case.inputs), forward(made.graph, case.inputs)), case.name


def test_a_trained_network_runs_elsewhere() -> None:
    graph = MODELS["resnet"]()
    given = inputs(graph, 4)
    plan = graph.plan(batch=4, optimizer=ooc.SGD(0.01), device="cpu")
    with plan.session(seed=3) as session:
        for _ in range(2):
            session.step(given["x"], np.arange(4) % 4)
        parameters = session.parameters() | session.statistics()
        expected = session.forward(given["x"])
    made = computed(graph.to_onnx(parameters=parameters), given)["fc"]
    assert close(made, expected, 1e-4) and not close(computed(graph.to_onnx(), given)["fc"], expected, 1e-2)


def test_parameters_are_those_given_then_those_of_the_graph_then_initial_ones(tmp_path: Path) -> None:
    graph = Graph("small")
    graph.output(graph.linear(graph.linear(graph.input("x", (3,)), 3, bias=True, name="one"), 2, name="two"))
    graph.begin_with({"one.b": np.ones(3)})
    tensors = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load_from_string(_model(graph, two_w=2.0)).graph.initializer}
    assert (tensors["one.b"] == 1).all() and (tensors["two.w"] == 2).all()
    assert np.array_equal(tensors["one.w"], graph.parameters["one.w"].initial("one.w", 0))


def _model(graph: Graph, two_w: float) -> bytes:
    model = graph.to_onnx(parameters={"two.w": np.full((2, 3), two_w)})
    assert model is not None
    return model


def test_batches_of_any_size() -> None:
    graph = MODELS["wrn"]()
    model = graph.to_onnx()
    given = inputs(graph, 5)
    expected = forward(graph, given)["fc"]
    assert all(close(computed(model, {"x": given["x"][:n]})["fc"], expected[:n]) for n in (1, 2, 5))
    info = onnx.load_from_string(model).graph.input[0].type.tensor_type.shape.dim
    assert [d.dim_param or d.dim_value for d in info] == ["n", 3, 8, 8]


# ---- ends


def test_a_graph_that_ends_in_a_loss_exports_what_the_loss_reads() -> None:
    graph = Graph("ends in a loss")
    h = graph.linear(graph.input("x", (3,)), 2, name="logits")
    graph.linear(graph.input("z", (5,)), 2, name="apart")
    graph.loss("cross_entropy", h)
    model = onnx.load_from_string(graph.to_onnx())
    assert [o.name for o in model.graph.output] == ["logits"] and [i.name for i in model.graph.input] == ["x"]
    assert [n.op_type for n in model.graph.node] == ["Gemm"]


def test_several_losses_are_left_out_and_what_they_read_leaves(tmp_path: Path) -> None:
    """With trained parameters; where there is an output it alone."""
    graph, rng = with_losses(), np.random.default_rng(0)
    x, labels, picture = rng.standard_normal((2, 2, 6, 5), np.float32), rng.integers(0, 3, (2, 6, 5)), np.ones((2, 1, 6, 5), "f4")
    targets = {"loss": labels, "loss2": picture, "loss3": labels, "loss4": picture, "loss5": picture}
    with graph.plan(batch=2, optimizer=ooc.AdamW(0.01, clip_norm=1, ema=0.9), device="cpu").session() as session:
        session.step(x, targets)
        trained = session.parameters()
    model = graph.to_onnx(None, trained)
    assert [n.op_type for n in onnx.load_from_string(model).graph.node] == ["Conv", "Relu", "Conv", "Conv"]
    made = computed(model, {"x": x})
    assert list(made) == ["classes", "picture"]
    loaded = read_back(graph, {"x": x}, tmp_path, trained)
    assert loaded.outputs == ("classes", "picture")
    ends = with_losses()
    ends.output("picture")
    assert list(computed(ends.to_onnx(None, trained), {"x": x})) == ["picture"]
    ends.output("classes")
    expected = forward(ends, {"x": x}, trained)
    assert all(close(made[name], expected[name]) for name in made)


def test_a_graph_without_an_end_is_refused() -> None:
    graph = Graph("endless")
    graph.linear(graph.input("x", (3,)), 2)
    with pytest.raises(ooc.ArgumentError, match=r"graph endless: it has no outputs to export"):
        graph.to_onnx()


@pytest.mark.parametrize(
    ("parameters", "error", "match"),
    [
        ({"one.x": np.zeros(3)}, ooc.ArgumentError, "no parameter one.x"),
        ({"one.w": np.zeros(3)}, ooc.ShapeError, "one.w: expected shape"),
        ([], ooc.ArgumentError, "expected a dict of arrays by name, got list"),
    ],
)
def test_parameters_that_do_not_fit(parameters: Any, error: type[Exception], match: str) -> None:
    graph = Graph("small")
    graph.output(graph.linear(graph.input("x", (3,)), 3, name="one"))
    with pytest.raises(error, match=match):
        graph.to_onnx(parameters=parameters)


def test_a_function_that_is_a_slope_is_refused_by_its_layer() -> None:
    graph = Graph("slope")
    graph.output(graph.function(graph.input("x", (3,)), "erf_slope", name="bent"))
    with pytest.raises(ooc.UnsupportedError, match=r"layer bent \(function\): ONNX has no function erf_slope"):
        graph.to_onnx()


def test_a_kind_without_a_row_is_refused_by_its_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(export.EXPORTS, "linear")
    graph = Graph("small")
    graph.output(graph.linear(graph.input("x", (3,)), 3, name="one"))
    with pytest.raises(ooc.UnsupportedError, match=r"layer one \(linear\): ONNX has no such layer"):
        graph.to_onnx()


def test_without_the_onnx_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ooc.UnsupportedError, match=r"writing ONNX files needs onnx; pip install"):
        MODELS["wrn"]().to_onnx()


# ---- names


def test_names_that_meet_and_names_that_are_code(tmp_path: Path) -> None:
    """Of layers, of what lies inside of them, of parameters, of those that an importer gives."""
    graph = Graph('")\n')
    h = graph.input("conv/Conv", (2, 4, 4))
    for name in ("conv", "multiply1.shape", "Conv", "conv1/Conv_2", 'quoted "', "ü", "reshape1", "global_pool1/GlobalMaxPool"):
        h = graph.conv(h, 2, 1, bias=True, activation="relu", name=name)
    graph.output(h, graph.global_pool(h, how="max", name="global_pool1"), graph.multiply(h, graph.global_pool(h)), "conv")
    parameters, given = weights(graph), read(graph)
    expected = forward(graph, given, parameters)
    assert equal(forward(read_back(graph, given, tmp_path, parameters), given), expected)
    made = computed(graph.to_onnx(parameters=parameters), given)
    assert all(close(made[name], expected[name]) for name in expected)


def test_outputs_keep_names_that_layers_without_one_would_get(tmp_path: Path) -> None:
    """Of any file."""
    nodes = [
        onnx.helper.make_node("GlobalMaxPool", ["x"], ["pooled"]),
        onnx.helper.make_node("Flatten", ["pooled"], ["global_pool1"]),
        onnx.helper.make_node("Relu", ["global_pool1"], ["reshape1"]),
    ]
    onnx.save(onnx_files.model_of(nodes, {"x": (2, 3, 4, 4)}, ["global_pool1", "reshape1"], {}), tmp_path / "a.onnx")
    assert ooc.onnx.load(tmp_path / "a.onnx").outputs == ("global_pool1", "reshape1")


def test_only_files_of_ooc_keep_layers_apart(tmp_path: Path) -> None:
    graph = Graph("norm")
    h = graph.conv(graph.input("x", (2, 4, 4)), 3, 1, name="conv")
    graph.output(graph.activation(graph.batch_norm(h, name="norm"), "relu", name="act"))
    given = read(graph)
    assert layers_of(read_back(graph, given, tmp_path)) == layers_of(graph)
    model = onnx.load(tmp_path / "net.onnx")
    model.producer_name = "another"
    onnx.save(model, tmp_path / "net.onnx")
    (folded,) = ooc.onnx.load(tmp_path / "net.onnx", given["x"].shape).nodes
    assert folded.layer.kind == "conv" and folded.layer.bias and folded.layer.act == "relu"  # type: ignore[attr-defined]


def test_a_file_of_ooc_that_somebody_changed_is_read_as_any_other(tmp_path: Path) -> None:
    """Operators that ooc writes in one way alone, in another way."""
    nodes = [
        onnx.helper.make_node("Dropout", ["x"], ["a"]),
        onnx.helper.make_node("Pad", ["a", "pads"], ["b"], mode="edge"),
        onnx.helper.make_node(
            "Resize", ["b", "", "", "sizes"], ["c"], mode="nearest", coordinate_transformation_mode="asymmetric"
        ),
        onnx.helper.make_node("Reshape", ["c", "shape"], ["d"]),
        onnx.helper.make_node("Flatten", ["d"], ["e"], axis=-1),
    ]
    constants = {"pads": np.int64([0, 0, 1, 1, 0, 0, 1, 1]), "sizes": np.int64([2, 3, 9, 9]), "shape": np.int64([2, -1, 1])}
    given = {"x": np.arange(96, dtype=np.float32).reshape(2, 3, 4, 4)}
    model = onnx_files.model_of(nodes, {"x": (2, 3, 4, 4)}, ["d"], constants)
    (expected,) = onnx_files.by_runtime(model, given)
    model.producer_name = "ooc"
    onnx.save(model, tmp_path / "a.onnx")
    assert np.array_equal(forward(ooc.onnx.load(tmp_path / "a.onnx"), given)["d"], expected)


def test_an_activation_that_changes_nothing_is_there() -> None:
    graph = Graph("idle")
    graph.output(graph.add_layer(Act("identity"), (graph.input("x", (3,)),), "same"))
    given = inputs(graph)
    assert np.array_equal(computed(graph.to_onnx(), given)["same"], given["x"])


# ---- files


def test_a_file_is_there_as_a_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, path = models.wrn(10, 1, side=8), tmp_path / "net.onnx"
    graph.to_onnx(path)
    assert path.read_bytes() == graph.to_onnx() and [p.name for p in tmp_path.iterdir()] == ["net.onnx"]

    def fail(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ooc.files.whole.os.fsync", fail)
    before = path.read_bytes()
    with pytest.raises(ooc.StoreError, match=f"{path}: No space left"):
        graph.to_onnx(path, {"conv1.w": np.zeros((16, 3, 3, 3))})
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["net.onnx"]


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ooc.StoreError, match="No such file"):
        MODELS["wrn"]().to_onnx(tmp_path / "none" / "net.onnx")


def test_constants_that_a_model_cannot_hold_lie_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = models.unet3d(side=8, width=0.0625)
    parameters, given = weights(graph), read(graph)
    expected = forward(graph, given, parameters)
    monkeypatch.setattr(writer, "MOST_INLINE", 1000)
    with pytest.raises(ooc.UnsupportedError, match=r"graph unet3d: its parameters take \d+ bytes.*; pass a path"):
        graph.to_onnx(parameters=parameters)
    back = read_back(graph, given, tmp_path, parameters)
    (beside,) = tmp_path.glob("net.onnx.*.data")
    assert beside.stat().st_size > writer.MOST_INLINE
    assert equal(forward(back, given), expected)
    onnx.checker.check_model(str(tmp_path / "net.onnx"))
    options = {"providers": ["CPUExecutionProvider"]}
    (made,) = onnxruntime.InferenceSession(str(tmp_path / "net.onnx"), **options).run(None, given)
    assert close(made, expected["logits"], 1e-4)
    graph.to_onnx(tmp_path / "net.onnx")  # others: the file that was there stays with the model that was
    assert len(list(tmp_path.glob("net.onnx.*.data"))) == 2

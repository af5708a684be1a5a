"""Graphs as modules of PyTorch: they compute what ooc does, in training too, and ooc reads them back."""

from __future__ import annotations

import copy
import pickle
import sys
from typing import Any

import numpy as np
import pytest
from exports import LAYERS, LOSSES, MODELS, close, drawn, forward, functions, inputs, mixed, weights, with_losses
from sweeps import swept

import ooc
from ooc import Graph
from ooc.networks.layers import KINDS, BatchNormLayer

torch = pytest.importorskip("torch")

from ooc.torch import export  # noqa: E402
from ooc.translate.leaving import arithmetic  # noqa: E402

NARROW = {"f64": 1e-11, "f16": 4e-3}


def read(graph: Graph) -> dict[str, Any]:
    """Inputs that are read, as others are left out."""
    return {name: array for name, array in inputs(graph).items() if any(name in n.reads for n in graph.nodes)}


def computed(graph: Graph, module: Any, given: dict[str, Any]) -> dict[str, Any]:
    """What the module makes, by name."""
    with torch.no_grad():
        made = module(*map(torch.from_numpy, given.values()))
    return {name: y.numpy() for name, y in (made if isinstance(made, dict) else {graph.outputs[0]: made}).items()}


def again(module: Any, given: dict[str, Any]) -> list[Any]:
    """What ooc makes of the module, in the order of its results."""
    graph = ooc.torch.graph(module, [array.shape for array in given.values()])
    return list(forward(graph, dict(zip(graph.inputs, given.values(), strict=True))).values())


def unread(graph: Graph) -> bool:
    """Whether there is something that ooc.torch.graph does not make."""
    wide = any(n.layer.kind == "round" and arithmetic(n.layer.store, graph.dtypes[n.reads[0]]) == "f64" for n in graph.nodes)
    return wide or any(n.layer.kind == "convert" for n in graph.nodes)


def exact(graph: Graph) -> bool:
    """Whether it has the same bits: means that leave out padding of one side are divided once more, norms across channels and
    some functions are made of others, what is mixed by tables is picked and weighed."""
    rounded = ("average_valid", "linear", "above")
    return all(n.layer.kind not in ("lrn", "function") and getattr(n.layer, "how", "") not in rounded for n in graph.nodes)


@pytest.mark.quick
def test_every_kind_is_exported_and_tried() -> None:
    assert set(KINDS) - LOSSES == set(export.EXPORTS) == set(LAYERS)
    assert set(functions()) == set(export.FUNCTIONS)


@pytest.mark.parametrize("seed", swept(list(range(24)), suite=3))
@pytest.mark.parametrize("kind", LAYERS)
def test_a_layer(kind: str, seed: int) -> None:
    graph = drawn(kind, seed)
    parameters, given = weights(graph), read(graph)
    expected = forward(graph, inputs(graph), parameters)
    module = graph.to_torch(parameters)
    made = computed(graph, module, given)
    assert list(made) == list(expected) and all(close(made[name], expected[name]) for name in made)
    if unread(graph):
        with pytest.raises((ooc.UnsupportedError, ooc.DtypeError)):
            again(module, given)
        return
    for back, wanted in zip(again(module, given), expected.values(), strict=True):
        assert np.array_equal(back, wanted) if exact(graph) else close(back, wanted)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("kind", [kind for kind in LAYERS if kind != "convert"])
def test_a_layer_of_another_dtype(kind: str, dtype: str) -> None:
    graph = drawn(kind, 2, dtype)
    if (kind, dtype) == ("lrn", "f16"):
        pytest.skip("PyTorch has none of half type on a processor")
    parameters, given = weights(graph), read(graph)
    expected = forward(graph, inputs(graph), parameters)
    made = computed(graph, graph.to_torch(parameters), given)
    assert all(close(made[name], expected[name], NARROW[dtype]) for name in expected)


def test_bf16() -> None:
    graph = Graph("short")
    h = graph.conv(graph.input("x", (2, 5, 5), dtype="bf16"), 3, 3, bias=True, name="conv")
    graph.output(graph.batch_norm(graph.upsample(h, (5, 5)), name="norm"))
    state = graph.to_torch(weights(graph)).state_dict()
    assert state["conv.weight"].dtype == state["conv.bias"].dtype == torch.bfloat16
    assert state["norm.weight"].dtype == state["norm.running_var"].dtype == torch.float32
    wanted = torch.tensor(weights(graph)["conv.w"]).bfloat16()
    assert torch.equal(state["conv.weight"], wanted)


@pytest.mark.parametrize("seed", swept(list(range(20)), suite=3))
def test_many_layers(seed: int) -> None:
    graph = mixed(seed, [kind for kind in LAYERS if kind != "convert"])
    parameters, given = weights(graph), read(graph)
    expected = forward(graph, inputs(graph), parameters)
    made = computed(graph, graph.to_torch(parameters), given)
    assert all(close(made[name], expected[name], 1e-4) for name in expected)


# ---- networks


@pytest.mark.parametrize("name", MODELS)
def test_networks_of_the_papers(name: str) -> None:
    graph = MODELS[name]()
    parameters, given = weights(graph), read(graph)
    expected = forward(graph, given, parameters)
    module = graph.to_torch(parameters)
    made = computed(graph, module, given)
    assert all(close(made[name], expected[name], 1e-4) for name in expected)
    if not unread(graph):
        for back, wanted in zip(again(module, given), expected.values(), strict=True):
            assert np.array_equal(back, wanted) if exact(graph) else close(back, wanted, 1e-4)


def test_the_state_has_the_names_of_the_layers() -> None:
    state = MODELS["resnet"]().to_torch().state_dict()
    bn = [f"bn1.{key}" for key in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")]
    assert list(state)[:6] == ["conv1.weight", *bn]
    assert {"layer1.0.conv1.weight", "layer2.0.downsample.1.running_var", "fc.weight", "fc.bias"} <= set(state)


def test_a_module_is_in_evaluation_can_be_trained_and_has_arrays_of_its_own() -> None:
    graph = MODELS["wrn"]()
    parameters = weights(graph)
    module = graph.to_torch(parameters)
    assert not any(m.training for m in module.modules()) and all(p.requires_grad for p in module.parameters())
    with torch.no_grad():
        module.get_parameter("conv1.weight").zero_()
    assert np.abs(parameters["conv1.w"]).max() > 0 and module.get_submodule("block1.0.drop").p == 0.3
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        given = read(graph)
        assert np.array_equal(computed(graph, other, given)["fc"], computed(graph, module, given)["fc"])


def test_a_trained_network_goes_on_elsewhere() -> None:
    """Steps of the session, then the same steps of PyTorch and of the session."""
    graph = MODELS["resnet"]()
    rng = np.random.default_rng(0)
    x, labels = rng.standard_normal((4, 3, 32, 32), np.float32), np.arange(4)
    plan = graph.plan(batch=4, optimizer=ooc.SGD(0.01), device="cpu")
    with plan.session(weights(graph)) as session:
        session.step(x, labels)
        module = graph.to_torch(session.parameters() | session.statistics()).train()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
        for _ in range(2):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(module(torch.from_numpy(x)), torch.from_numpy(labels))
            loss.backward()
            optimizer.step()
            assert abs(loss.item() - session.step(x, labels)) < 1e-3 * abs(loss.item())
        statistics, made = session.statistics(), dict(module.named_buffers())
        assert close(made["bn1.running_mean"].numpy(), statistics["bn1.mean"].astype("f4"), 1e-3)
        assert close(made["layer2.0.bn1.running_var"].numpy(), statistics["layer2.0.bn1.var"].astype("f4"), 1e-3)
        assert close(computed(graph, module.eval(), {"x": x})["fc"], session.forward(x), 2e-2)


def test_dropout_is_there_in_training_alone() -> None:
    graph = Graph("dropped")
    graph.output(graph.dropout(graph.input("x", (400,)), 0.25, name="drop"))
    module, x = graph.to_torch(), torch.ones(2, 400)
    assert torch.equal(module(x), x)
    made = module.train()(x)
    assert {0.0} < set(made.flatten().tolist()) and 0.15 < (made == 0).float().mean() < 0.35
    assert torch.allclose(made[made != 0], torch.tensor(4 / 3))


def test_a_frozen_norm_stays_as_it_is_in_training() -> None:
    graph = Graph("frozen")
    x = graph.input("x", (3, 5, 5))
    graph.output(graph.add_layer(BatchNormLayer(momentum=0.3, frozen=True, act="tanh"), (x,), "norm"))
    parameters, given = weights(graph), read(graph)
    module = graph.to_torch(parameters).train()
    before = module.get_buffer("norm.running_mean").clone()
    with graph.plan(batch=2, train="forward", device="cpu").session(parameters) as session:
        assert close(computed(graph, module, given)["norm"], session.forward(given))
    assert torch.equal(module.get_buffer("norm.running_mean"), before)
    module(torch.zeros(2, 3, 5, 5)).sum().backward()
    assert module.get_parameter("norm.weight").grad is not None


# ---- ends, names, errors


def test_ends() -> None:
    graph = Graph("ends in a loss")
    h = graph.linear(graph.input("x", (3,)), 2, name="logits")
    graph.loss("cross_entropy", h)
    assert graph.to_torch()(torch.ones(4, 3)).shape == (4, 2)
    graph, x = with_losses(), torch.ones(4, 2, 6, 5)
    module = graph.to_torch()
    assert list(module(x)) == ["classes", "picture"]
    assert list(module.state_dict()) == ["body.weight", "body.bias", "classes.weight", "picture.weight", "picture.bias"]
    graph.output("picture")
    assert torch.equal(graph.to_torch()(x), module(x)["picture"])
    two = Graph("two")
    h = two.linear(two.input("x", (3,)), 2, name="a b")
    two.output(two.activation(h, "relu", name="second"), h)
    assert list(two.to_torch()(torch.ones(4, 3))) == ["second", "a b"]


CODE = '"); raise SystemError("code of a name ran") #'
NAMES = (
    "graph", "code", "training", "def", "a b", CODE, "3x3", "weight", "forward", "meta", "a", "a.weight", "a.3x3.b", "x'\n",
    "self", "math", "ü", "a..b", "state_dict", "slice",
)  # fmt: skip


def test_names_are_never_code() -> None:
    """They may be a stranger's, and torch.fx makes code of them."""
    graph = Graph(CODE)
    h = graph.input(f"x{CODE}", (2, 5, 5))
    for name in ("torch", "getattr", "lambda", "self_"):
        h = graph.add(h, graph.input(name, (2, 5, 5)))
    for name in NAMES:
        h = graph.conv(h, 2, 1, bias=True, activation="relu", name=name)
    graph.output(*NAMES)
    parameters, given = weights(graph), read(graph)
    module = graph.to_torch(parameters)
    expected = forward(graph, given, parameters)
    made = computed(graph, pickle.loads(pickle.dumps(module)), given)
    assert list(made) == list(NAMES) and all(close(made[name], expected[name]) for name in NAMES)
    assert {"a.weight", "a.weight_.weight", "a.3x3.b.weight", "graph_.bias"} <= set(module.state_dict())


def test_a_function_that_is_a_slope_is_refused_by_its_layer() -> None:
    graph = Graph("slope")
    graph.output(graph.function(graph.input("x", (3,)), "erf_slope", name="bent"))
    with pytest.raises(ooc.UnsupportedError, match=r"layer bent \(function\): PyTorch has no function erf_slope"):
        graph.to_torch()


def test_a_kind_without_a_row_is_refused_by_its_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(export.EXPORTS, "linear")
    graph = Graph("small")
    graph.output(graph.linear(graph.input("x", (3,)), 3, name="one"))
    with pytest.raises(ooc.UnsupportedError, match=r"layer one \(linear\): PyTorch has no such layer; it cannot be exported"):
        graph.to_torch()


def test_a_graph_without_an_end_and_parameters_that_do_not_fit() -> None:
    graph = Graph("endless")
    graph.linear(graph.input("x", (3,)), 2, name="one")
    with pytest.raises(ooc.ArgumentError, match="it has no outputs to export"):
        graph.to_torch()
    graph.output("one")
    with pytest.raises(ooc.ArgumentError, match="no parameter two"):
        graph.to_torch({"two": np.zeros(3)})


def test_without_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "torch" or name.startswith("ooc.torch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"ooc.torch: needs PyTorch; pip install"):
        MODELS["wrn"]().to_torch()

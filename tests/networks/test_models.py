"""The networks of the papers have the parameters that are known of them, and small ones of their kind are right."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ooc
from ooc import Graph
from ooc.errors import ShapeError
from ooc.networks import models
from ooc.networks.layers import KINDS
from ooc.networks.tensors import Role

pytestmark = pytest.mark.quick

# With 1000 classes: torchvision's documentation; AlexNet and GoogLeNet (without auxiliary classifiers): Caffe's models.
KNOWN: dict[str, tuple[Callable[[], Graph], int]] = {
    "alexnet": (models.alexnet, 60_965_224),
    "overfeat": (models.overfeat, 145_920_872),  # the paper: 145 million
    "vgg11": (lambda: models.vgg(11), 132_863_336),
    "vgg13": (lambda: models.vgg(13), 133_047_848),
    "vgg16": (models.vgg, 138_357_544),
    "vgg19": (lambda: models.vgg(19), 143_667_240),
    "resnet18": (lambda: models.resnet(18), 11_689_512),
    "resnet34": (lambda: models.resnet(34), 21_797_672),
    "resnet50": (models.resnet, 25_557_032),
    "resnet101": (lambda: models.resnet(101), 44_549_160),
    "resnet152": (lambda: models.resnet(152), 60_192_808),
    "wrn28_10": (models.wrn, 36_479_194),  # the paper: 36.5 million
    "googlenet": (models.googlenet, 6_998_552),
    # The paper: 19,069,955, with biases of the 14 convolutions (2336 channels) for their normalisations' scales and biases, and
    # with two more channels in front of the first convolution (32 x 27).
    # github.com/milesial/Pytorch-UNet: 31,037,698 with three channels, and biases of the four transposed convolutions.
    "unet": (models.unet, 31_037_698 - 2 * 64 * 9 - (64 + 128 + 256 + 512)),
    "unet3d": (models.unet3d, 19_069_955 + 2336 - 2 * 32 * 27),
}  # fmt: skip
FLAT = (models.alexnet, models.overfeat, models.vgg, models.resnet, models.wrn, models.googlenet)
ALL = (*FLAT, models.unet, models.unet3d)


def parameters(graph: Graph) -> int:
    return sum(math.prod(w.shape) for w in graph.parameters.values() if w.role is Role.PARAMETER)


@pytest.mark.parametrize("name", KNOWN)
def test_the_number_of_parameters_is_the_known_one(name: str) -> None:
    make, known = KNOWN[name]
    graph = make()
    assert graph.name == name and parameters(graph) == known
    total = graph.table().splitlines()[-1].split()
    assert total[0] == "total" and total[3] == f"{known:,}"


@pytest.mark.parametrize("name", KNOWN)
def test_tables_and_json(name: str) -> None:
    graph = KNOWN[name][0]()
    lines = graph.table().splitlines()
    assert len(lines) == 1 + 1 + len(graph.nodes) + 1
    assert [line.split()[0] for line in lines[2:-1]] == [n.name for n in graph.nodes]
    again = Graph.from_json(graph.to_json())
    assert again.table() == graph.table() and again.to_json() == graph.to_json() and again.outputs == graph.outputs
    assert again.parameters == graph.parameters


def test_json_in_a_file(tmp_path: Path) -> None:
    graph, path = models.resnet(18), tmp_path / "graph.json"
    with pytest.raises(ooc.StoreError, match=f"{path}: No such file"):
        Graph.from_json(path)
    path.write_text(graph.to_json())
    assert Graph.from_json(path).to_json() == graph.to_json()
    path.write_bytes(b"\xff")
    with pytest.raises(ShapeError, match="not a graph"):
        Graph.from_json(path)


def test_names_are_those_of_the_papers() -> None:
    assert {"conv1_1", "conv5_3", "pool5", "fc6", "fc7", "fc8"} <= {n.name for n in models.vgg().nodes}
    assert {"conv1", "norm1", "pool5", "fc8"} <= {n.name for n in models.alexnet().nodes}
    resnet = {"conv1", "bn1", "layer1.0.downsample.0", "layer3.5.conv2", "layer4.2.bn3", "avgpool", "fc"}
    assert resnet <= {n.name for n in models.resnet().nodes}
    assert {"inception_3a.1x1", "inception_5b.pool_proj", "pool4"} <= {n.name for n in models.googlenet().nodes}


@pytest.mark.parametrize(
    ("depth", "blocks"),
    [(50, [3, 4, 6, 3]), (101, [3, 4, 23, 3]), (149, [3, 4, 39, 3]), (152, [3, 8, 36, 3]), (1517, [3, 8, 491, 3])],
)
def test_depths_by_formula(depth: int, blocks: list[int]) -> None:
    graph = models.resnet(depth, side=32, width=1 / 16)
    found = [sum(bool(re.fullmatch(rf"layer{stage}\.\d+", n.name)) for n in graph.nodes) for stage in (1, 2, 3, 4)]
    assert found == blocks
    layers = [n for n in graph.nodes if n.layer.kind in ("conv", "linear") and "downsample" not in n.name]
    assert len(layers) == depth == 3 * sum(blocks) + 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: models.resnet(51), lambda: models.resnet(20), lambda: models.resnet(True), lambda: models.resnet("50"),
        lambda: models.vgg(17), lambda: models.vgg([16]), lambda: models.wrn(27), lambda: models.wrn(4),
        lambda: models.wrn(16, 0.5), lambda: models.vgg(width=0), lambda: models.vgg(width="wide"),
        lambda: models.vgg(width=math.inf), lambda: models.vgg(side=31), lambda: models.vgg(classes=0),
        lambda: models.vgg(dropout=1), lambda: models.alexnet(side=14), lambda: models.overfeat(side=15),
        lambda: models.unet3d(side=12), lambda: models.unet3d(side=4), lambda: models.resnet(side=0),
        lambda: models.googlenet(side=True),
    ],
)  # fmt: skip
def test_what_makes_no_network(make: Callable[[], Any]) -> None:
    with pytest.raises(ShapeError):
        make()


@pytest.mark.parametrize("make", FLAT, ids=lambda make: make.__name__)
def test_small_pictures(make: Callable[..., Graph]) -> None:
    for side in (32, 33, 48, 64, 70, 75):
        graph = make(side=side, classes=7, width=1 / 16)
        assert graph.shapes[graph.outputs[0]] == (7,)


@pytest.mark.parametrize(
    ("make", "side"),
    [(models.alexnet, 15), (models.overfeat, 16), (models.vgg, 32), (models.resnet, 1), (models.wrn, 1), (models.googlenet, 1),
     (models.alexnet, 67), (models.overfeat, 71), (models.unet3d, 8), (models.unet, 16)],
)  # fmt: skip
def test_the_least_sides(make: Callable[..., Graph], side: int) -> None:
    assert min(min(shape) for shape in make(side=side, width=1 / 16).shapes.values() if shape) == 1


def test_strided_stems_are_the_papers() -> None:
    assert models.alexnet().shapes["conv1"] == (96, 55, 55) and models.alexnet().shapes["pool5"] == (256, 6, 6)
    assert models.overfeat().shapes["conv1"] == (96, 56, 56) and models.overfeat().shapes["pool5"] == (1024, 6, 6)
    assert models.alexnet(side=66).shapes["conv1"] == (96, 66, 66)
    shapes = models.googlenet().shapes
    assert [shapes[f"pool{i}"][1] for i in (1, 2, 3, 4)] == [56, 28, 14, 7]
    assert models.unet3d(side=16).shapes["logits"] == (3, 16, 16, 16)
    assert models.unet(side=32, channels=3).shapes["logits"] == (2, 32, 32)


@pytest.mark.parametrize("make", ALL, ids=lambda make: make.__name__)
def test_width_and_dropout(make: Callable[..., Graph]) -> None:
    for width in (1e-6, 1 / 3, 2):
        graph = make(width=width)
        assert all(shape[0] >= 1 for shape in graph.shapes.values() if shape)
    thin = make(width=1e-6)
    inner = [n.shape[0] for n in thin.nodes if n.layer.kind == "conv" and n.name not in thin.outputs]
    assert max(inner) <= (4 if make is models.resnet else 2)
    assert not [n for n in make(dropout=0).nodes if n.layer.kind == "dropout"]
    rates = {n.layer.fields()["rate"] for n in make(dropout=0.25).nodes if n.layer.kind == "dropout"}
    assert rates == {0.25}
    papers = {models.alexnet: 0.5, models.overfeat: 0.5, models.vgg: 0.5, models.googlenet: 0.4}
    defaults = {n.layer.fields()["rate"] for n in make().nodes if n.layer.kind == "dropout"}
    assert defaults == ({papers[make]} if make in papers else set())


@pytest.mark.parametrize("make", ALL, ids=lambda make: make.__name__)
def test_a_step_and_an_inference(make: Callable[..., Graph]) -> None:
    """Of each at a sixteenth of its width."""
    side = 8 if make is models.unet3d else 32
    graph = make(side=side, classes=4, width=1 / 16)
    plan = graph.plan(batch=2, device=ooc.device("cpu", threads=2))
    numbers = np.random.default_rng(1)
    x = numbers.standard_normal((2, *graph.inputs["x"]), np.float32)
    with plan.session(seed=3) as session:
        labels = numbers.integers(0, 4, plan.network.tensors["labels"].shape)
        assert 0 < session.step(x, labels) < 20
        logits = session.forward(x)
        assert logits.shape == (2, *graph.shapes[graph.outputs[0]]) and np.isfinite(logits).all()
        found = session.gradients()
        assert all(np.isfinite(g).all() for g in found.values()) and any(np.abs(g).max() > 0 for g in found.values())


@pytest.mark.parametrize("name", models.__all__)
def test_every_parameter_is_told(name: str) -> None:
    make = getattr(models, name)
    said = inspect.getdoc(make) or ""
    assert all(f"\n    {p}: " in said for p in inspect.signature(make).parameters)
    assert "Source:" in said and "Returns:" in said and ("ShapeError" in said or "ArgumentError" in said)


def test_the_layers_that_the_papers_use() -> None:
    used = {n.layer.kind for make in ALL for n in make(dropout=0.5).nodes}
    inference = {
        "argmax", "attention", "round", "affine", "binary", "convert", "depth_to_space", "expand", "function", "laid", "matmul",
        "grid_sample", "max_unpool", "parameter", "permute", "reshape", "resize", "stop",
    }  # fmt: skip
    assert used == {*KINDS} - {
        "bce",
        "dice",
        "l1",
        "mse",
        "activation",
        "group_norm",
        "multiply",
        "pad",
        "softmax",
        "upsample",
        *inference,
    }


def test_norms_of_u_nets() -> None:
    """By the batch or by each sample; nothing else."""
    for make in (models.unet, models.unet3d):
        kinds = {norm: [n.layer.kind for n in make(norm=norm).nodes] for norm in ("batch", "instance")}
        assert [k.replace("batch", "group") for k in kinds["batch"]] == kinds["instance"] != kinds["batch"]
        with pytest.raises(ooc.ArgumentError, match="expected 'batch' or 'instance'"):
            make(norm="layer")


@pytest.mark.quick
@pytest.mark.parametrize(
    "add",
    [
        lambda g, x: g.expand(x, ()),
        lambda g, x: g.expand(x, (3, 4, 6)),
        lambda g, x: g.expand(x, (3, -4, 5)),
        lambda g, x: g.expand(g.global_pool(x), (3, 1, 1, 1, 1)),
        lambda g, x: g.parameter(np.ones((2, 3)), ()),
        lambda g, x: g.parameter(np.ones((1, 1, 1, 1, 2))),
        lambda g, x: g.parameter(np.ones((2, 1)), (3, 4)),
        lambda g, x: g.binary(g.conv(x, 1, 1), x, "divide"),
    ],
)
def test_sizes_that_nothing_is_repeated_to_are_refused(add: Callable[[ooc.Graph, str], str]) -> None:
    """By the layer's kind, before anything is added."""
    graph = ooc.Graph("small")
    x = graph.input("x", (3, 4, 5))
    with pytest.raises(ooc.ShapeError, match=r"^(expand|parameter|binary): expected"):
        add(graph, x)
    assert graph.nodes == [] or [n.layer.kind for n in graph.nodes] in (["global_pool"], ["conv"])


@pytest.mark.quick
def test_files_with_sizes_that_nothing_is_repeated_to_are_refused() -> None:
    graph = ooc.Graph("small")
    graph.output(graph.add(graph.input("x", (3, 4)), graph.parameter(np.ones((3, 1)), (3, 4))))
    text = graph.to_json()
    assert ooc.Graph.from_json(text).to_json() == text
    for size in ("[]", "[3, 5, 1, 1, 1]", "[-3, 4]"):
        with pytest.raises(ooc.ShapeError, match="parameter"):
            ooc.Graph.from_json(text.replace('"size": [3, 4]', f'"size": {size}'))

"""What a run is told: everything that is wrong is one line that names the key, before a byte is written."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from training_files import small, tables, written

import ooc
from ooc.networks.optimizers import OPTIMIZERS
from ooc.training.config import configured
from ooc.training.schedule import RateSchedule, scheduled

UNET = {"name": "unet3d", "side": 8, "width": 1 / 16}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, 2)
    (tmp_path / "small.json").write_text(small().to_json())
    return tmp_path


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"models": {}}, "no table 'models'; there are model, loss"),
    ({"model": []}, r"\[model\]: expected a table"),
    ({"model": {}}, r"\[model\] expected one of name, graph and onnx"),
    ({"model": {"name": "unet3d", "graph": "small.json"}}, r"\[model\] expected one of name"),
    ({"model": {"name": "unet4d"}}, r"\[model\] network 'unet4d': expected"),
    ({"model": {"name": "vgg16", "channels": 4}}, r"\[model\] vgg16: .*channels"),
    ({"model": {"name": "vgg16", "side": 32, "width": 0.01}}, r"\[model\] vgg16: its labels have \[\]"),
    ({"model": {**UNET, "side": 12}}, r"\[model\] "),
    ({"model": {**UNET, "side": "12"}}, r"\[model\] side: expected an integer, got '12'"),
    ({"model": {"graph": "small.json", "side": 4}}, r"\[model\] side: a network in a file"),
    ({"model": {"graph": "none.json"}}, "none.json: No such file"),
    ({"model": {"graph": "x0.npy"}}, "not a graph"),
    ({"model": {"graph": "small.json", "output": "x9"}}, r"\[model\] output: small has no tensor 'x9'"),
    ({"loss": {"kind": "cross_entropy"}}, r"\[\[loss\]\]: expected a list of tables"),
    ({"loss": [{}]}, r"\[loss 1\] kind: is missing"),
    ({"loss": [{"kind": 3}]}, r"\[loss 1\] kind: expected a text"),
    ({"loss": [{"kind": "hinge"}]}, r"\[\[loss 1\]\]: loss: expected .*; got 'hinge'"),
    ({"loss": [{"kind": "cross_entropy", "wait": 2}]}, r"\[\[loss 1\]\]: .*wait"),
    ({"loss": [{"kind": "cross_entropy", "output": "x9"}]}, r"\[\[loss 1\]\]: .*x9"),
    ({"optimizer": None}, r"\[optimizer\]: expected a table, got none"),
    ({"optimizer": {"lr": 1.0}}, r"\[optimizer\] kind: expected one of sgd"),
    ({"optimizer": {"kind": []}}, r"\[optimizer\] kind: expected one of sgd"),
    ({"optimizer": {"kind": "sgd"}}, r"\[optimizer\] lr: is missing"),
    ({"optimizer": {"kind": "sgd", "lr": "1"}}, r"\[optimizer\] lr: expected an integer, got '1'"),
    ({"optimizer": {"kind": "sgd", "lr": -1.0}}, r"\[optimizer\] SGD: expected numbers that are not negative"),
    ({"optimizer": {"kind": "sgd", "lr": math.nan}}, r"\[optimizer\] SGD: "),
    ({"optimizer": {"kind": "adam", "beta": 1}}, r"\[optimizer\] beta: no such key; there are lr, .*betas"),
    ({"optimizer": {"kind": "adam", "schedule": "cosine"}}, r"\[optimizer.schedule\]: expected a table"),
    ({"optimizer__schedule": {"kind": "cosine", "every": 3}}, r"\[optimizer.schedule\] every: expected a number of steps for"),
    ({"optimizer__schedule": {"kind": "step"}}, r"\[optimizer.schedule\] every"),
    ({"optimizer__schedule": {"kind": "line"}}, r"\[optimizer.schedule\] kind: expected one of constant"),
    ({"optimizer__schedule": {"warmup": -1}}, r"\[optimizer.schedule\] warmup"),
    ({"optimizer__schedule": {"least": 2}}, r"\[optimizer.schedule\] least: expected a number from 0 to 1"),
    ({"data": {"images": "x0.npy"}}, r"\[data\] labels: is missing"),
    ({"data__images": 3}, r"\[data\] images: expected a text"),
    ({"data__images": []}, r"\[data\] images: expected 1 to \d+ files, got 0"),
    ({"data__images": "z*.npy"}, r"\[data\] images: no file is called 'z\*.npy'"),
    ({"data__images": "x.txt"}, r"\[data\] images: .*expected a file whose name ends"),
    ({"data__images": "s3://x.npy"}, r"\[data\] images: .*across a network only"),
    ({"data__images": ["z.npy", "x0.npy"]}, "z.npy"),
    ({"data__labels": "y0.npy"}, r"\[data\] labels: 1 files for 2 of images"),
    ({"data__axes": "zyxw"}, r"\[data\] axes: .*x0.npy"),
    ({"data__axes": "nzy"}, r"\[data\] images: .*channels|\[data\] labels"),
    ({"data__batch": 0}, r"\[data\] batch: expected a number from 1 to"),
    ({"data__batch": True}, r"\[data\] batch: expected an integer"),
    ({"data__batch": 1 << 70}, r"\[data\] batch: expected an integer"),
    ({"data__bacth": 2}, r"\[data\] bacth: no such key; there are images, labels, axes"),
    ({"data__patch": [8, 8, 8]}, r"\[data\] patch: the network takes \[6, 6, 6\], got \[8, 8, 8\]"),
    ({"data__patch": [0]}, r"\[data\] patch: expected extents of 1 or more"),
    ({"data__foreground": 1.5}, r"\[data\] foreground: expected a number from 0 to 1"),
    ({"data__foreground": math.nan}, r"\[data\] foreground"),
    ({"data__flips": "zz"}, r"\[data\] flips: expected letters of zyx"),
    ({"data__flips": "w"}, r"\[data\] flips: expected letters of zyx"),
    ({"data__rotations": "z"}, r"\[data\] rotations: expected two letters or more"),
    ({"data__pre": "sharpen"}, r"\[data\] pre: .*no step 'sharpen'"),
    ({"data__pre": "bgr"}, r"\[data\] pre: bgr: expected one of"),
    ({"data__pre": "/ 0"}, r"\[data\] pre: /: expected numbers other than 0"),
    ({"data__pre": "mean 1 2 3"}, r"\[data\] pre: mean: expected a number or 1"),
    ({"data__pre": "/ 2, normalise"}, r"\[data\] pre: normalise: must be the first step"),
    ({"validation": {}}, r"\[validation\] share: expected a share of the samples"),
    ({"validation": {"share": 1.0}}, r"\[validation\] share: expected a number between 0 and 1"),
    ({"validation": {"share": 0.9}}, r"\[validation\] share: 0.9 of 2 samples leaves none"),
    ({"validation": {"images": "x0.npy"}}, r"\[validation\] expected images and labels"),
    ({"validation": {"images": "x0.npy", "labels": "z.npy"}}, "z.npy"),
    ({"validation": {"share": 0.5, "metric": "iou"}}, r"\[validation\] metric: expected one of loss, accuracy, dice"),
    ({"validation": {"share": 0.5, "every": 0}}, r"\[validation\] every"),
    ({"run": {"steps": 3}}, r"\[run\] folder: is missing"),
    ({"run__folder": ""}, r"\[run\] folder: expected a path"),
    ({"run__folder": "."}, "is no folder of a run"),
    ({"run__folder": "x0.npy"}, "x0.npy: Not a directory"),
    ({"run__folder": "x0.npy/run"}, "Not a directory"),
    ({"run__folder": "a\0b"}, "null byte"),
    ({"run__steps": 0}, r"\[run\] steps"),
    ({"run__steps": 1.5}, r"\[run\] steps: expected an integer"),
    ({"run__seed": -1}, r"\[run\] seed"),
    ({"run__keep": -1}, r"\[run\] keep"),
    ({"run__budget": "many"}, "budget='many': expected bytes"),
    ({"run__budget": 100}, "budget"),
    ({"run__device": "abacus"}, "device 'abacus'|abacus"),
    ({"run__policy": "best"}, "policy.*best"),
    ({"run__home": "moon"}, "home='moon': expected one of"),
    ({"run__deterministic": 1}, r"\[run\] deterministic: expected true or false"),
]


@pytest.mark.parametrize(("more", "error"), WRONG, ids=[f"{i}-{next(iter(more))}" for i, (more, _) in enumerate(WRONG)])
def test_what_is_wrong_is_named(folder: Path, more: dict[str, Any], error: str) -> None:
    before = sorted(folder.iterdir())
    config = {"model": {"graph": "small.json"}, **tables(**more)}
    if more.get("optimizer", 0) is None:
        del config["optimizer"]
    with pytest.raises(ooc.OocError, match=error) as raised:
        ooc.train(config)
    assert "\n" not in str(raised.value) and sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
    ("text", "error"),
    [("[run", "not TOML"), ("\xff", "not TOML"), ("x = " + "[" * 100_000, "not TOML"), ("run = 1\n", r"\[model\]: expected"),
     ("# " + "x" * (1 << 20), "longer than")],
    ids=range(5),
)  # fmt: skip
def test_what_is_no_config(folder: Path, text: str, error: str) -> None:
    Path("c.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(ooc.ArgumentError, match=error):
        ooc.train("c.toml")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [({"config": None}, "config: expected a path or a dict"), ({"config": "none.toml"}, "none.toml: No such file"),
     ({"config": "a\0b"}, "null byte"),
     ({"graph": "small.json"}, "graph: expected an ooc.Graph"), ({"resume": 1}, "resume: expected True or False"),
     ({"callback": "print"}, "callback: expected a function")],
)  # fmt: skip
def test_nonsense(folder: Path, arguments: dict[str, Any], error: str) -> None:
    with pytest.raises(ooc.OocError, match=error):
        ooc.train(**{"config": tables(), "graph": small(), **arguments})


def test_a_graph_and_a_model(folder: Path) -> None:
    with pytest.raises(ooc.ArgumentError, match=r"\[model\]: a graph is given as graph="):
        ooc.train(tables(model=UNET), graph=small())
    with pytest.raises(ooc.ArgumentError, match=r"\[model\]: expected a table, got none"):
        ooc.train(tables())
    two = small()
    two.output("conv1")
    with pytest.raises(ooc.ArgumentError, match="output: small has 2 outputs; name one of them"):
        ooc.train(tables(), graph=two)


def test_paths_of_a_file_begin_at_its_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("c.toml").write_text(
        '[model]\ngraph = "small.json"\n[optimizer]\nkind = "adam"\n[data]\nimages = "x*.npy"\nlabels = "y*.npy"\n'
        '[run]\nfolder = "a/b"\nsteps = 1\ncurve = false\npolicy = "keep"\ndevice = "cpu"\n'
    )
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    assert ooc.train("../c.toml").folder.resolve() == folder / "a" / "b"
    assert ooc.train(tables(data__images=[folder / "x0.npy"], data__labels=[folder / "y0.npy"]), graph=small()).losses


@pytest.mark.parametrize("kind", sorted(OPTIMIZERS))
def test_schedules(kind: str) -> None:
    def rates(steps: int, **schedule: Any) -> list[float]:
        optimizer: Any = scheduled(kind, {"lr": 2.0}, RateSchedule(**schedule), steps)
        return [round(float(optimizer.rates(step)[0]), 9) for step in range(steps)]

    assert rates(3) == [2.0] * 3
    assert rates(6, kind="step", every=2, factor=0.5) == [2, 2, 1, 1, 0.5, 0.5]
    assert rates(5, warmup=4) == [0.5, 1, 1.5, 2, 2]
    cosine = rates(10, kind="cosine", warmup=2, least=0.1)
    assert cosine[:3] == [1, 2, 2] and cosine[6] == 1.1 and sorted(cosine[2:], reverse=True) == cosine[2:] and cosine[-1] > 0.2


def test_what_the_guide_shows_is_a_config(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    (block,) = re.findall(r"^```toml\n(.*?)^```$", text, re.M | re.S)
    (tmp_path / "c.toml").write_text(block)
    assert configured(tmp_path / "c.toml", False).run.steps == 20_000


def test_what_may_change_when_a_run_is_resumed() -> None:
    def identity(**more: Any) -> dict[str, Any]:
        return configured(tables(**more), True).identity

    same = {"run__steps": 99, "run__budget": "1 GiB", "run__device": "cuda", "run__policy": "auto", "run__every": 1,
            "run__keep": 3, "run__home": "disk", "run__pinned": 9, "run__folder": "moved", "run__curve": True}  # fmt: skip
    assert identity() == identity(**same)
    for other in (
        {"run__seed": 1},
        {"run__deterministic": False},
        {"data__batch": 1},
        {"optimizer__lr": 1},
        {"loss": [{"kind": "x"}]},
    ):
        assert identity() != identity(**other)
    cosine = {"optimizer__schedule": {"kind": "cosine"}}
    assert identity(**cosine) != identity(**cosine, run__steps=99)


def test_networks_in_files(folder: Path) -> None:
    """Their losses are replaced; several outputs are served; what is given begins."""
    graph = small()
    graph.loss("cross_entropy", "logits")
    graph.output("conv1")
    Path("two.json").write_text(graph.to_json())
    config = tables(model={"graph": "two.json"}, loss=[{"kind": "cross_entropy"}], run__steps=1, validation={"share": 0.5})
    assert len(ooc.train(config).validations) == 1
    onnx = pytest.importorskip("onnx")
    files = pytest.importorskip("onnx_files")
    node = onnx.helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 6)
    weights = {"w": np.random.default_rng(0).standard_normal((2, 1, 3, 3, 3)).astype("f4")}
    onnx.save(files.model_of([node], {"x": (None, 1, None, None, None)}, ["y"], weights), folder / "m.onnx")
    trained = ooc.train(tables(model={"onnx": "m.onnx"}, data__patch=[6, 6, 6], run__folder="onnx"))
    assert trained.losses[-1] < trained.losses[0]

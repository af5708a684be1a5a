"""What is minimised, and by what: several losses of the same labels or values, options of optimizers, under files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from training_files import small, spheres, tables, written

import ooc
from ooc.training.evaluation import cross_entropies
from ooc.training.job import TrainingJob

BOTH = [{"kind": "dice", "background": False}, {"kind": "cross_entropy", "weights": [0.5, 1.0], "smoothing": 0.05}]
VALUES = {"data__images": "x*.npy", "data__labels": "v*.npy"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, 4, (12, 12, 10))
    return tmp_path


def with_values(count: int, channels: int = 2, extent: tuple[int, ...] = (9, 8, 10)) -> None:
    """x0, x1, ... and values of them, v0, v1, ..., with channels."""
    for i in range(count):
        x, inside = spheres(i, extent)
        np.save(f"x{i}.npy", x)
        np.save(f"v{i}.npy", np.stack([x, inside, -x][:channels])[None].astype("f4"))


def same(one: str, other: str) -> bool:
    """Whether two checkpoints hold the same bits."""
    with np.load(one) as a, np.load(other) as b:
        return bool(a.files == b.files and all(np.array_equal(a[key], b[key]) for key in a.files))


def test_dice_and_cross_entropy_by_adamw_that_clips(folder: Path) -> None:
    """A network learns, and goes on bit for bit."""

    def run(name: str) -> dict[str, Any]:
        return tables(
            model={"name": "unet3d", "side": 8, "classes": 2, "width": 1 / 16}, loss=BOTH, data__foreground=0.5, data__flips="zy",
            optimizer={"kind": "adamw", "lr": 0.02, "clip_norm": 1.0, "weight_decay": 0.05}, run__folder=name,
            validation={"share": 0.25, "every": 10, "metric": "dice"}, run__every=10, run__steps=40,
        )  # fmt: skip

    def killed(row: dict[str, Any]) -> None:
        if row["step"] == 33:
            shutil.copytree("whole", "run")  # as it would be left

    trained = ooc.train(run("whole"), callback=killed)
    first, *_, last = (row.mean_dice or 0 for row in trained.validations)
    assert last > first + 0.1 and last > 0.6 and sum(trained.losses[-5:]) < 0.8 * sum(trained.losses[:5])
    assert ooc.train(run("run"), resume=True).losses == trained.losses
    assert same("run/last.ooc", "whole/last.ooc") and same("run/best.ooc", "whole/best.ooc")


@pytest.mark.parametrize(
    "optimizer",
    [
        {"kind": "rmsprop", "lr": 0.003, "centered": True, "momentum": 0.5, "clip_norm": 2.0},
        {"kind": "adam", "lr": 0.02, "accumulate": 3, "ema": 0.9, "frozen": ["conv1.*"], "loss_scale": 1024},
        {"kind": "sgd", "lr": 0.1, "accumulate": 3, "schedule": {"kind": "cosine"}, "frozen": "*.b"},
    ],
    ids=lambda optimizer: optimizer["kind"],
)
def test_options_of_optimizers_go_on_between_moves(folder: Path, optimizer: dict[str, Any]) -> None:
    def run(name: str, **more: Any) -> dict[str, Any]:
        return tables(loss=BOTH, optimizer=optimizer, run__folder=name, **more)

    trained = ooc.train(run("whole"), graph=small(side=8))
    moment: list[int] = []

    def killed(row: dict[str, Any]) -> None:
        moment.append(row["step"])
        if row["step"] == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # the checkpoint of step 4 is behind a move of three steps
        ooc.train(run("run"), graph=small(side=8), callback=killed)
    assert ooc.train(run("run"), graph=small(side=8), resume=True).losses == trained.losses
    assert same("run/last.ooc", "whole/last.ooc")
    with np.load("whole/last.ooc") as last, TrainingJob.of(run("other"), small(side=8)).plan.session(seed=0) as session:
        begin = session.parameters()
        still = {name for name, value in begin.items() if np.array_equal(last[name].reshape(value.shape), value)}
    frozen = {"adam": {"conv1.w", "conv1.b"}, "sgd": {"conv1.b", "logits.b"}}
    assert still == frozen.get(optimizer["kind"], set())


def test_rates_are_those_of_moves(folder: Path) -> None:
    """A schedule counts steps, whether parameters move in them or not."""
    optimizer = {"kind": "sgd", "lr": 0.1, "accumulate": 4, "schedule": {"kind": "step", "every": 4, "factor": 0.5}}
    ooc.train(tables(optimizer=optimizer, run__steps=12), graph=small())
    rates = [json.loads(line)["lr"] for line in Path("run/log.jsonl").read_text().splitlines()]
    assert rates == [0.1] * 4 + [0.05] * 4 + [0.025] * 4


@pytest.mark.parametrize("kinds", [["mse"], ["bce"], ["l1", "mse"]], ids="+".join)
def test_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kinds: list[str]) -> None:
    """Files of numbers, with channels, that are turned with their images."""
    monkeypatch.chdir(tmp_path)
    with_values(3)
    losses = [{"kind": kind, "weight": 1 / i} for i, kind in enumerate(kinds, 1)]
    config = tables(loss=losses, **VALUES, data__flips="zyx", data__rotations="zy", data__foreground=0.5, run__steps=24)
    x, values = TrainingJob.of(config, small()).patches.batch(0)
    assert values.shape == (2, 2, 6, 6, 6) and values.dtype == np.float32 and np.array_equal(values[:, :1], x)
    trained = ooc.train(config, graph=small())
    assert np.mean(trained.losses[-4:]) < 0.6 * np.mean(trained.losses[:4])


@pytest.mark.parametrize("dtype", ["f16", "f64"])
def test_values_have_the_dtype_of_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    monkeypatch.chdir(tmp_path)
    with_values(1, 1)
    g = ooc.Graph("other")
    g.output(g.conv(g.input("x", (1, 6, 6, 6), dtype), 1, 3, padding=1))
    trained = ooc.train(tables(loss=[{"kind": "mse"}], **VALUES, run__steps=12), graph=g)
    assert trained.losses[-1] < trained.losses[0]


def test_one_channel_tells_two_classes_apart(folder: Path) -> None:
    """Dice of a sigmoid: labels are 0 and 1, and so is what it is measured by."""
    g = ooc.Graph("binary")
    g.output(g.conv(g.input("x", (1, 6, 6, 6)), 1, 1, bias=True, name="y"))
    g.begin_with({"y.w": np.full((1, 1, 1, 1, 1), 2.0), "y.b": np.array([-1.5])})
    held = {"images": "x0.npy", "labels": "y0.npy", "metric": "dice"}
    row = ooc.train(
        tables(loss=[{"kind": "dice"}], validation=held, optimizer={"kind": "sgd", "lr": 0.0}, run__steps=1), graph=g
    ).validations[0]
    x, right = np.load("x0.npy").reshape(-1), np.load("y0.npy").reshape(-1).astype(int)
    logits = np.stack([0 * x, 2 * x - 1.5], -1).astype("f8")
    classes = logits.argmax(1)
    assert row.accuracy == (classes == right).mean() and np.isclose(row.loss, cross_entropies(logits, right).mean())
    assert len(row.dice) == 2 and np.isclose(row.mean_dice, 2 * (classes & right).sum() / (classes.sum() + right.sum()))


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"loss": [{"kind": "dice"}, {"kind": "mse"}]},
         r"\[\[loss\]\]: .* got loss labels of \[6, 6, 6\], loss2 f32 values of \[2, 6, 6, 6\]"),
        ({"loss": [{"kind": "l1", "output": "conv1", "name": "deep"}, {"kind": "mse"}]},
         r"\[\[loss\]\]: .* got deep f32 values of \[6, 6, 6, 6\], loss f32 values of \[2, 6, 6, 6\]"),
        ({"loss": [{"kind": "mse"}, {"kind": "dice", "smoothing": 0.5}]}, r"\[\[loss 2\]\]: loss: dice takes no smoothing"),
        ({"loss": [{"kind": "cross_entropy", "weights": [1]}]}, r"\[\[loss 1\]\]: .*weights: expected one for each of 2"),
        ({"loss": [{"kind": "dice", "batch": 1}]}, r"\[\[loss 1\]\]: .*batch"),
        ({"loss": [{"kind": "mse"}]}, r"\[data\] labels: .* expected \(1, 2, 12, 12, 10\)"),
        ({"loss": [{"kind": "mse"}], "data__labels": "v.npy", "data__images": "x0.npy", "validation": {"share": 0.5}},
         r"\[validation\]: its metrics are of classes"),
        ({"optimizer": {"kind": "adam", "frozen": ["conv9.*"]}}, r"\[optimizer\] frozen: no parameter 'conv9"),
        ({"optimizer": {"kind": "adamw", "clip_norm": -1.0}}, r"\[optimizer\] AdamW: clip_norm=-1.0"),
        ({"optimizer": {"kind": "adamw", "ema": 2.0}}, r"\[optimizer\] AdamW: ema=2.0"),
        ({"optimizer": {"kind": "adamw", "accumulate": 0}}, r"\[optimizer\] AdamW: accumulate=0"),
        ({"optimizer": {"kind": "adamw", "accumulate": 1.5}}, r"\[optimizer\] accumulate: expected an integer"),
        ({"optimizer": {"kind": "rmsprop", "frozen": 3}}, r"\[optimizer\] frozen: expected"),
    ],
)  # fmt: skip
def test_what_does_not_go_together(folder: Path, more: dict[str, Any], error: str) -> None:
    np.save("v.npy", np.zeros((1, 2, 12, 12, 10), "f4"))
    before = sorted(folder.iterdir())
    with pytest.raises(ooc.OocError, match=error) as raised:
        ooc.train(tables(**more), graph=small())
    assert "\n" not in str(raised.value) and sorted(folder.iterdir()) == before


def test_other_losses_are_another_run(folder: Path) -> None:
    ooc.train(tables(loss=BOTH, run__steps=1), graph=small())
    for other in (BOTH[:1], BOTH[::-1], [BOTH[0], {**BOTH[1], "smoothing": 0.1}]):
        with pytest.raises(ooc.ArgumentError, match=r"of another run: .*loss\.[12]"):
            ooc.train(tables(loss=other, run__steps=2), graph=small(), resume=True)
    with pytest.raises(ooc.ArgumentError, match=r"of another run: optimizer.clip_norm was null, is 1"):
        ooc.train(tables(loss=BOTH, run__steps=2, optimizer__clip_norm=1.0), graph=small(), resume=True)

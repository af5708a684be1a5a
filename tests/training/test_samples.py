"""What a network sees: samples of any format, type and layout, patches of seed and step alone, every position measured once."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from training_files import small, spheres, tables, written

import ooc
from ooc.training.evaluation import cross_entropies, measured, windows
from ooc.training.job import TrainingJob
from ooc.training.patches import Patches
from ooc.training.samples import NO_LABEL


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def patches(rank: int = 3, channels: int = 1, side: int = 6, **more: Any) -> Patches:
    return TrainingJob.of(tables(**more), small(rank, channels, side)).patches


def marked(*shape: int) -> Any:
    """Every position has a number of its own, that labels have too."""
    return np.arange(np.prod(shape)).reshape(shape)


def wide(rank: int = 3, side: int = 6) -> ooc.Graph:
    """A network with a class for each position of what `marked` makes."""
    g = ooc.Graph("wide")
    g.output(g.conv(g.input("x", (1, *(side,) * rank)), 4096, 1))
    return g


@pytest.mark.parametrize("dtype", ["bool", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8"])
def test_labels_of_every_type(folder: Path, dtype: str) -> None:
    inside = spheres(0, (6, 6, 6))[1].astype(dtype)
    np.save("x0.npy", np.zeros((6, 6, 6), "f4"))
    np.save("y0.npy", inside)
    _, labels = patches(data__batch=1).batch(0)
    assert labels.dtype == np.int64 and np.array_equal(labels[0], inside.astype(np.int64))


@pytest.mark.parametrize(
    ("value", "dtype", "error"),
    [(2, "u1", "2 is no class; expected less than 2"), (2**63 + 5, "u8", "is no class"), (0.5, "f4", "expected whole numbers"),
     (np.nan, "f4", "nan is no class"), (-1e300, "f8", "expected whole numbers"), (-np.inf, "f4", "expected whole numbers")],
)  # fmt: skip
def test_what_is_no_label(folder: Path, value: float, dtype: str, error: str) -> None:
    np.save("x0.npy", np.zeros((6, 6, 6), "f4"))
    np.save("y0.npy", np.full((6, 6, 6), value, dtype))
    with pytest.raises(ooc.OocError, match=f"y0.npy.*{error}"):
        ooc.train(tables(), graph=small())
    assert not list((folder / "run").glob("*.ooc"))


@pytest.mark.parametrize("dtype", ["u1", "i2", "u2", "f2", "f8", "bool"])
def test_images_of_every_type(folder: Path, dtype: str) -> None:
    image = (spheres(0, (6, 6, 6))[0] * 3).clip(0, 9).astype(dtype)
    np.save("x0.npy", image)
    np.save("y0.npy", np.zeros((6, 6, 6), "u1"))
    x, _ = patches(data__batch=1, data__pre="/ 4, mean 0.5").batch(0)
    assert x.dtype == np.float32 and np.allclose(x[0, 0], image.astype("f4") / 4 - 0.5)


@pytest.mark.parametrize("pre", ["normalise", "percentile 10 90", "normalise each, scale 2"])
def test_what_is_measured_is_of_all_of_a_sample(folder: Path, pre: str) -> None:
    """As `ooc apply --pre` has it, of each sample alone."""
    images = [spheres(i, (12, 12))[0] * (1 + i) for i in range(2)]
    np.save("x.npy", np.stack(images)[:, None])
    np.save("y.npy", np.zeros((2, 12, 12), "u1"))
    drawn = patches(2, side=12, data__images="x.npy", data__labels="y.npy", data__pre=pre).batch(0)[0]
    expected = []
    for image in images:
        if pre.startswith("normalise"):
            expected.append((image - image.mean()) / image.std() * (2 if "scale" in pre else 1))
        else:
            low, high = np.percentile(image, [10, 90])
            expected.append((image - low) / (high - low))
    assert sum(np.allclose(x[0], want, atol=1e-4) for x in drawn for want in expected) == 2


@pytest.mark.parametrize(
    ("images", "labels", "more"),
    [
        ((8, 9, 10), (8, 9, 10), {}), ((1, 8, 9, 10), (8, 9, 10), {}), ((1, 1, 8, 9, 10), (1, 8, 9, 10), {}),
        ((3, 1, 8, 9, 10), (3, 8, 9, 10), {}), ((3, 1, 8, 9, 10), (3, 1, 8, 9, 10), {}),
        ((8, 9, 10, 3), (3, 8, 9, 10), {"data__axes": "zyxn"}), ((3, 8, 9, 10), (8, 3, 9, 10),
         {"data__axes": "nzyx", "data__label_axes": "znyx"}),
    ],
)  # fmt: skip
def test_layouts(folder: Path, images: Any, labels: Any, more: dict[str, Any]) -> None:
    """One file of samples, or one sample, with or without channels."""
    np.save("x0.npy", np.zeros(images, "f4"))
    np.save("y0.npy", np.zeros(labels, "u1"))
    job = TrainingJob.of(tables(**more), small())
    assert {s.extent for s in job.patches.samples.list} == {(8, 9, 10)}
    assert len(job.patches.samples.list) == (3 if 3 in images else 1)
    x, y = job.patches.batch(0)
    assert x.shape == (2, 1, 6, 6, 6) and y.shape == (2, 6, 6, 6)


@pytest.mark.parametrize("kind", ["zarr", "h5:/a", "tif", "nii"])
def test_formats(folder: Path, kind: str) -> None:
    pytest.importorskip({"zarr": "zarr", "h5:/a": "h5py", "tif": "tifffile", "nii": "nibabel"}[kind])
    written(folder, 2, kind=kind)
    written(folder, 2, kind="npy")
    assert same(patches(data__images=f"x?.{kind}", data__labels=f"y*.{kind}").batch(3), patches().batch(3))


def same(one: tuple[Any, Any], two: tuple[Any, Any]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def test_pictures(folder: Path) -> None:
    """In colour, with their labels as pictures, from a folder of each."""
    pytest.importorskip("PIL")
    for name in ("images", "labels"):
        (folder / name).mkdir()
    for i in range(3):
        x, inside = spheres(i, (20, 24))
        for path, array, axes in (
            (f"images/{i}.png", np.stack([x * 90] * 3, -1).clip(0, 255), "yxc"),
            (f"labels/{i}.png", inside, "yx"),
        ):
            with ooc.create(path, array.shape, "u1", axes) as file:
                file.write(tuple((0, e) for e in array.shape), array.astype("u1"))
    config = tables(
        model={"name": "unet", "side": 16, "width": 1 / 32, "channels": 3}, data__images="images/*.png",
        data__labels="labels/*.png", data__flips="x", data__pre="/ 255", validation={"share": 0.4, "metric": "accuracy"},
    )  # fmt: skip
    trained = ooc.train(config)
    assert trained.losses[-1] < trained.losses[0] and trained.best is trained.validations[-1]


def test_many_files_are_not_open_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ooc.training.samples.MOST_OPEN", 3)
    written(folder, 5)
    samples = patches().samples
    assert len(samples.list) == 5 and len(samples._open) == 3
    samples.close()
    assert not samples._open


# ---- patches


def test_patches_follow_from_seed_and_step(folder: Path) -> None:
    written(folder, 3)
    how = {"data__foreground": 0.5, "data__flips": "zyx", "data__rotations": "zyx"}
    one, two, other = patches(**how), patches(**how), patches(**how, run__seed=1)
    drawn = [one.batch(step) for step in range(6)]
    assert all(same(two.batch(step), drawn[step]) for step in (5, 0, 3))
    assert not same(other.batch(0), drawn[0]) and not any(same(a, b) for a, b in itertools.combinations(drawn, 2))


@pytest.mark.parametrize(
    "how", [{}, {"data__flips": "zyx"}, {"data__rotations": "zyx"}, {"data__flips": "y", "data__rotations": "zx"}]
)
def test_labels_turn_with_their_image(folder: Path, how: dict[str, Any]) -> None:
    values = marked(7, 8, 9)
    np.save("x0.npy", values.astype("f4"))
    np.save("y0.npy", values.astype("i4"))
    job = TrainingJob.of(tables(**how), wide())
    turns = set()
    for step in range(40):
        for x, labels in zip(*job.patches.batch(step), strict=True):
            assert np.array_equal(x[0], labels)
            steps = tuple(int(labels[tuple(np.eye(3, dtype=int)[a])] - labels[0, 0, 0]) for a in range(3))
            assert sorted(map(abs, steps)) == [1, 9, 72]
            turns.add(steps)
    assert len(turns) == {"": 1, "data__flips": 8, "data__rotations": 10, "data__flipsdata__rotations": 8}["".join(how)]


def test_every_sample_comes_once_before_any_comes_again(folder: Path) -> None:
    np.save("x.npy", marked(5, 1, 1, 1, 1).repeat(6, 2).repeat(6, 3).repeat(6, 4).astype("f4"))
    np.save("y.npy", np.zeros((5, 6, 6, 6), "u1"))
    drawn = patches(data__images="x.npy", data__labels="y.npy", data__batch=3)
    order = [int(x.max()) for step in range(5) for x in drawn.batch(step)[0]]
    assert [sorted(order[i : i + 5]) for i in (0, 5, 10)] == [[0, 1, 2, 3, 4]] * 3 and order[:5] != order[5:10]


@pytest.mark.parametrize("extent", [(40, 40, 40), (40, 6, 4)])
def test_the_foreground_is_found(folder: Path, extent: tuple[int, ...]) -> None:
    """One position of many, in every patch that asks for it, at any place of the patch."""
    labels = np.zeros(extent, "u1")
    labels[33, 3, 2] = 1
    np.save("x0.npy", np.zeros(extent, "f4"))
    np.save("y0.npy", labels)
    drawn = patches(data__foreground=1.0)
    places = [np.argwhere(y == 1) for step in range(10) for y in drawn.batch(step)[1]]
    assert all(len(at) == 1 for at in places) and len({tuple(at[0]) for at in places}) > 5
    assert sum((y == 1).any() for step in range(5) for y in patches(data__foreground=0.0).batch(step)[1]) < 8


def test_foreground_positions_are_as_likely(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ooc.training.patches.REMEMBERED", 200)
    monkeypatch.setattr("ooc.training.patches.MOST_AT_ONCE", 100)
    np.save("x0.npy", np.zeros((10, 10, 10), "f4"))
    np.save("y0.npy", np.ones((10, 10, 10), "u1"))
    drawn = patches(data__foreground=1.0)
    positions = drawn._foreground(drawn.samples.list[0])
    assert len({*map(tuple, positions)}) == 200 and all(30 < (positions[:, 0] // 2 == i).sum() < 50 for i in range(5))


def test_what_lies_beyond_a_sample_does_not_count(folder: Path) -> None:
    """Samples that are smaller than a patch lie anywhere in it."""
    np.save("x0.npy", np.full((4, 6, 9), 3, "f4"))
    np.save("y0.npy", np.ones((4, 6, 9), "u1"))
    drawn, begins = patches(), set()
    for step in range(8):
        for x, labels in zip(*drawn.batch(step), strict=True):
            assert np.array_equal(labels == 1, x[0] == 3) and np.array_equal(labels == NO_LABEL, x[0] == 0)
            assert (labels == 1).sum() == 4 * 6 * 6
            begins.add(int(np.argmax((labels == 1).any((1, 2)))))
    assert begins == {0, 1, 2}


# ---- validation


@pytest.mark.parametrize("extent", [(6, 6, 6), (13, 7, 4), (5, 12, 6)])
def test_every_position_is_measured_once(folder: Path, extent: tuple[int, ...]) -> None:
    np.save("x0.npy", marked(*extent).astype("f4"))
    np.save("y0.npy", marked(*extent).astype("i4"))
    held = {"images": "x0.npy", "labels": "y0.npy"}
    evaluation = TrainingJob.of(tables(validation=held, data__batch=3), wide()).evaluation
    assert evaluation is not None
    counted = [y[y >= 0] for _, y in evaluation._batches()]
    assert sorted(np.concatenate(counted).tolist()) == [*range(np.prod(extent))]


def test_metrics_of_a_whole_volume(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that sees a position alone makes the same of a volume and of its windows."""
    monkeypatch.setattr("ooc.training.evaluation.MOST_AT_ONCE", 50)
    (x, inside), labels = spheres(1, (9, 10, 8)), np.zeros((9, 10, 8), "i2")
    labels[inside] = 1
    labels[0] = -1
    np.save("x0.npy", x)
    np.save("y0.npy", labels)
    g = ooc.Graph("alone")
    g.output(g.conv(g.input("x", (1, 6, 6, 6)), 3, 1, bias=True, name="y"))
    g.begin_with({"y.w": np.array([-1, 2, 0.1]).reshape(3, 1, 1, 1, 1), "y.b": np.array([1.0, -1, 0])})
    row = ooc.train(
        tables(validation={"images": "x0.npy", "labels": "y0.npy"}, optimizer={"kind": "sgd", "lr": 0.0}, run__steps=1), graph=g
    ).validations[0]
    logits = np.stack([1 - x, 2 * x - 1, 0.1 * x], -1)[labels >= 0].astype("f8")
    right, classes = labels[labels >= 0], logits.argmax(-1)
    dice = [2 * ((classes == c) & (right == c)).sum() / max(1, (classes == c).sum() + (right == c).sum()) for c in range(3)]
    assert row.accuracy == (classes == right).mean() and np.allclose(row.dice[:2], dice[:2])
    assert np.isclose(row.loss, -np.log(np.exp(logits)[np.arange(len(right)), right] / np.exp(logits).sum(-1)).mean())
    assert np.isclose(row.mean_dice, np.mean(dice[1:] if (classes == 2).any() else dice[1:2]))


def test_what_cannot_be_measured_is_none() -> None:
    nothing = measured(3, np.zeros((2, 2), np.int64), 0.0)
    assert (nothing.loss, nothing.accuracy, nothing.dice, nothing.mean_dice) == (None, None, (None, None), None)
    assert nothing.score("dice") is None and measured(3, np.eye(2, dtype=np.int64), np.inf).loss is None
    assert cross_entropies(np.array([[1e4, 0.0]]), np.array([1])).tolist() == [1e4]


def test_windows_cover_an_axis() -> None:
    for extent, size in itertools.product(range(1, 20), range(1, 8)):
        counted = [i for start, before in windows(extent, size) for i in range(start + before, start + size) if i < extent]
        assert counted == [*range(extent)]


def test_held_out_samples_are_not_learned_from(folder: Path) -> None:
    written(folder, 7)
    job = TrainingJob.of(tables(validation={"share": 0.3}), small())
    assert job.evaluation is not None
    learned, held = ({s.image for s in p.samples.list} for p in (job.patches, job.evaluation.patches))
    assert len(learned) == 5 and len(held) == 2 and not learned & held

"""Steps behind steps that make integers: they see numbers, and what only moves values keeps their type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sweeps import crossed

from ooc.cli.main import main

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
apply_files = pytest.importorskip("apply_files")

Array = np.ndarray[Any, Any]
CLASSES = 300  # more than 8 bits count, fewer than half types tell apart


def labels(y: Array) -> Array:
    return y.argmax(1)[:, None].astype(np.uint16)


def above(y: Array, t: float) -> Array:
    return (y > t).astype(np.uint8)


STEPS: dict[str, Any] = {
    "argmax, scale 60": lambda y: labels(y) * np.float32(60),
    "argmax, scale 60, cast uint16": lambda y: (labels(y).astype(np.int64) * 60).astype(np.uint16),
    "argmax, / 2, cast uint8": lambda y: np.clip(np.rint(labels(y) / np.float32(2)), 0, 255).astype(np.uint8),
    "argmax, > 250": lambda y: above(labels(y), 250),
    "argmax, crop 2": lambda y: labels(y)[:, :, 2:-2, 2:-2],
    "argmax, cast uint8": lambda y: np.minimum(labels(y), 255).astype(np.uint8),
    "argmax, cast int32, crop 1, add 1": lambda y: labels(y)[:, :, 1:-1, 1:-1] + np.float32(1),
    "argmax, cast float32": lambda y: labels(y).astype(np.float32),
    "argmax, channel 0 0": lambda y: labels(y)[:, [0, 0]],
    "argmax int32, crop 3": lambda y: labels(y)[:, :, 3:-3, 3:-3].astype(np.int32),
    "cast float32, argmax": labels,
    "> 0.5, cast uint8": lambda y: above(y, 0.5),
    "> 0.5, cast bool, crop 1": lambda y: y[:, :, 1:-1, 1:-1] > 0.5,
    "> 0.5, channel 2 0": lambda y: above(y, 0.5)[:, [2, 0]],
    "> 0.5, argmax": lambda y: labels(above(y, 0.5)),
    "cast int16, cast float32": lambda y: np.rint(y).astype(np.float32),
    "crop 2, cast int16, mean 1, std 2": lambda y: (np.rint(y[:, :, 2:-2, 2:-2]) - np.float32(1)) * np.float32(0.5),
}


@pytest.fixture
def given(tmp_path: Path) -> Path:
    apply_files.picture_network(tmp_path / "m.onnx", CLASSES)
    np.save(tmp_path / "x.npy", np.random.default_rng(3).standard_normal((1, 3, 37, 29)).astype(np.float32))
    return tmp_path


def applied(folder: Path, post: str, how: str, *more: str) -> Array:
    """What `ooc apply` makes with some steps behind the network."""
    files = ["--input", f"{folder}/x.npy", "--output", f"{folder}/y.npy", "--overwrite", "--semantics", how]
    assert main(["apply", f"{folder}/m.onnx", *files, "--post", post, *more]) == 0
    found: Array = np.load(folder / "y.npy")
    return found


@pytest.mark.parametrize(("how", "post"), crossed(["whole", "window=16"], list(STEPS), every=1))
def test_steps_behind_labels(given: Path, how: str, post: str) -> None:
    wanted = STEPS[post](applied(given, "", how))
    found = applied(given, post, how)
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    np.testing.assert_array_equal(found, wanted)
    assert wanted.min() < wanted.max()


@pytest.mark.parametrize("more", [("--budget", "600KiB"), ("--resume",), ("--verify", "3")])
def test_every_way_to_run_has_them(given: Path, more: tuple[str, ...]) -> None:
    """In small tiles, as tasks, and computed again by ONNX Runtime."""
    found = applied(given, "argmax, scale 60, cast uint16", "whole", *more)
    wanted = STEPS["argmax, scale 60, cast uint16"](applied(given, "", "whole"))
    assert found.dtype == np.uint16 and (found == wanted).mean() > 0.999


@pytest.mark.parametrize(
    ("post", "told"),
    [
        ("argmax, softmax", "softmax: of one channel"), ("argmax uint8", "u8 does not count 300 channels"),
        ("argmax float32", "argmax: expected one of uint8"), ("argmax uint16 uint8", "argmax: expected one of uint8"),
        ("cast", "cast: expected one of uint8"), ("cast float16", "cast: expected one of uint8"),
        ("argmax, crop 30", "crop: expected a whole number"), ("crop 1.5", "crop: expected a whole number"),
        ("crop -1", "crop: expected a whole number"), ("crop", "crop: expected one number"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_one_line(given: Path, post: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--input", f"{given}/x.npy", "--output", f"{given}/y.npy"]
    assert main(["apply", f"{given}/m.onnx", *files, "--post", post]) == 2
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1 and not (given / "y.npy").exists(), error

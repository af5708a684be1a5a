"""Networks that take multiples of their strides alone: what they are told, and what is computed again of their results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sweeps import crossed

from ooc.apply import verify
from ooc.cli.main import main

onnx = pytest.importorskip("onnx")
onnx_files = pytest.importorskip("onnx_files")
runtime = pytest.importorskip("onnxruntime")
node = pytest.importorskip("apply_files").node


def forked(path: Path, strides: int = 2, up: bool = False) -> None:
    """Down and up again, joined with what went past: sizes that are no multiples of 2 ** strides do not meet."""
    rng, arrays, nodes, x = np.random.default_rng(3), {}, [], "x"
    for i in range(strides):
        arrays[f"w{i}"] = rng.standard_normal((4, 3 if i == 0 else 4, 3, 3)) * 0.3
        nodes += [node("Conv", f"{x} w{i}", f"a{i}", pads=[1, 1, 1, 1]), node("MaxPool", f"a{i}", f"p{i}", kernel_shape=[2, 2],
                  strides=[2, 2])]  # fmt: skip
        x = f"p{i}"
    arrays |= {"last": rng.standard_normal((2, 7, 3, 3)), "scales": np.array([1, 1, 2**strides, 2**strides])}
    nodes += [
        node("Resize", f"{x} - scales", "u", mode="linear"), node("Concat", "u x", "c", axis=1),
        node("Conv", "c last", "z" if up else "y", pads=[1, 1, 1, 1]),
    ]  # fmt: skip
    if up:
        arrays["double"] = np.array([1, 1, 2, 2])
        nodes.append(node("Resize", "z - double", "y", mode="nearest"))
    weights = {name: w.astype(np.float32) for name, w in arrays.items()}
    onnx.save(onnx_files.model_of(nodes, {"x": ["n", 3, "h", "w"]}, ["y"], weights), path)


def applied(folder: Path, *more: str) -> int:
    return main(["apply", f"{folder}/m.onnx", "--input", f"{folder}/x.npy", "--output", f"{folder}/y.npy", *more])


@pytest.mark.parametrize(
    ("shape", "up", "post", "whole", "resume"),
    crossed([(2, 3, 205, 178), (1, 3, 202, 5)], [False, True], ["", "argmax"], [True, False], [False, True], every=6),
)
def test_mirrored_sizes_are_verified(
    shape: tuple[int, ...], up: bool, post: str, whole: bool, resume: bool, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    if not whole:
        monkeypatch.setattr(verify, "WHOLE", 0)
    forked(tmp_path / "m.onnx", up=up)
    x = np.random.default_rng(9).integers(0, 255, shape, np.uint8)
    np.save(tmp_path / "x.npy", x)
    more = ["--resume"] if resume else []
    steps = ["--pre", "/ 255", "--post", post, "--pad-to", "16", "--budget", "256KiB"]
    assert applied(tmp_path, *steps, "--verify", "9", "--json", *more) == 0
    told = json.loads(capsys.readouterr().out)["verified"]
    assert told["windows"] == 9 and told["difference"] <= 1e-5
    wide = np.pad(x, [(0, 0), (0, 0), *[(0, -e % 16) for e in shape[2:]]], mode="reflect").astype(np.float32) / 255
    wanted = runtime.InferenceSession(str(tmp_path / "m.onnx")).run(None, {"x": wide})[0]
    wanted = wanted[:, :, : shape[2] * (1 + up), : shape[3] * (1 + up)]
    found = np.load(tmp_path / "y.npy")
    if post:
        assert (found == wanted.argmax(1)[:, None]).mean() > 0.999
    else:
        np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize("whole", [True, False])
def test_what_is_wrong_at_a_mirrored_end_is_seen(whole: bool, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    """Mirrored otherwise than the network saw it, only the windows at the ends differ."""
    if not whole:
        monkeypatch.setattr(verify, "WHOLE", 0)
    forked(tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.random.default_rng(9).standard_normal((1, 3, 205, 178)).astype("f4"))
    right = verify.Mirrored.read

    def wrong(self: Any, region: Any, out: Any) -> None:
        right(self, region, out)
        if region[2].hi > 205:
            out[:, :, 205 - region[2].lo :] = 0

    monkeypatch.setattr(verify.Mirrored, "read", wrong)
    assert applied(tmp_path, "--pad-to", "4", "--verify", "4", "--json") == 0
    assert json.loads(capsys.readouterr().out)["verified"]["difference"] > 1e-3


@pytest.mark.parametrize(("strides", "extent"), [(1, (41, 40)), (2, (42, 40)), (3, (64, 68)), (4, (35, 16))])
def test_sizes_that_do_not_meet_name_what_helps(strides: int, extent: Any, tmp_path: Path, capsys: Any) -> None:
    forked(tmp_path / "m.onnx", strides)
    np.save(tmp_path / "x.npy", np.zeros((1, 3, *extent), "f4"))
    assert applied(tmp_path) == 2
    error = capsys.readouterr().err
    assert "concat: expected tensors of the same extents" in error and f"try --pad-to {2**strides}" in error
    assert applied(tmp_path, "--pad-to", f"{2**strides}") == 0
    if strides > 1:
        assert applied(tmp_path, "--pad-to", "2", "--overwrite") == 2
        assert f"try --pad-to {2**strides}" in capsys.readouterr().err


def test_what_no_size_helps_is_told_alone(tmp_path: Path, capsys: Any) -> None:
    nodes = [node("Conv", "x w", "a"), node("Concat", "a x", "y", axis=1)]
    arrays = {"w": np.zeros((4, 3, 3, 3), np.float32)}
    onnx.save(onnx_files.model_of(nodes, {"x": ["n", 3, "h", "w"]}, ["y"], arrays), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 40, 40), "f4"))
    assert applied(tmp_path) == 2
    error = capsys.readouterr().err
    assert "concat: expected" in error and "--pad-to" not in error
    for more in (["--semantics", "window=16"], ["--post", "crop 2"]):
        assert applied(tmp_path, "--verify", "2", *more) == 2
        assert "--verify: not with windows or crop" in capsys.readouterr().err

"""Networks with channels last, as Keras has them in ONNX: channels are channels, whatever is done before and behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ooc
from ooc.apply import Application, verify
from ooc.cli.main import main
from ooc.ir.region import whole

onnx = pytest.importorskip("onnx")
onnx_files = pytest.importorskip("onnx_files")
tifffile = pytest.importorskip("tifffile")
node = pytest.importorskip("apply_files").node

SHAPE = (40, 57)
TAIL = {
    "plain": [node("Transpose", "b", "y", perm=[0, 2, 3, 1])],
    "softmax": [node("Transpose", "b", "c", perm=[0, 2, 3, 1]), node("Softmax", "c", "y", axis=-1)],
    "sigmoid": [node("Transpose", "b", "c", perm=[0, 2, 3, 1]), node("Sigmoid", "c", "y")],
    "first": [node("Identity", "b", "y")],
}
HEAD = {
    "plain": [node("Transpose", "x", "t", perm=[0, 3, 1, 2])],
    "scaled": [node("Mul", "x by", "s"), node("Sub", "s mean", "m"), node("Transpose", "m", "t", perm=[0, 3, 1, 2])],
    "sized": [node("Shape", "x", "size"), node("Transpose", "x", "t", perm=[0, 3, 1, 2])],
}


def network(path: Path, head: str, tail: str, channels: int | str = 3, stride: int = 2) -> Any:
    """x [n, h, w, 3]: two convolutions, of which the first strides."""
    rng = np.random.default_rng(1)
    arrays = {
        "w1": rng.standard_normal((6, 3, 3, 3)) * 0.3, "w2": rng.standard_normal((4, 6, 3, 3)) * 0.3,
        "by": np.array([0.5, 2, 1]), "mean": np.array([1, 0, -1]),
    }  # fmt: skip
    nodes = [
        *HEAD[head], node("Conv", "t w1", "a", pads=[1, 1, 1, 1], strides=[stride] * 2), node("Relu", "a", "r"),
        node("Conv", "r w2", "b", pads=[1, 1, 1, 1]), *TAIL[tail],
    ]  # fmt: skip
    weights = {name: w.astype(np.float32) for name, w in arrays.items()}
    model = onnx_files.model_of(nodes, {"x": ["n", "h", "w", channels]}, ["y"], weights)
    onnx.save(model, path)
    return model


def softmax(y: Any) -> Any:
    e = np.exp(y - y.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


POST = {"": lambda y: y, "argmax": lambda y: y.argmax(1)[:, None], "softmax": softmax, "channel 2": lambda y: y[:, [2]]}
PRE = {
    "/ 255": lambda x: x / np.float32(255), "/ 64, mean 1 2 3": lambda x: x / 64 - np.float32([1, 2, 3]),
    "bgr, / 255": lambda x: x[..., ::-1] / np.float32(255),
}  # fmt: skip


@pytest.fixture
def picture(tmp_path: Path) -> Any:
    image = np.random.default_rng(3).integers(0, 256, (*SHAPE, 3), np.uint8)
    np.save(tmp_path / "yxc.npy", image)
    np.save(tmp_path / "nyxc.npy", image[None])
    np.save(tmp_path / "cyx.npy", image.transpose(2, 0, 1))
    tifffile.imwrite(tmp_path / "rgb.tif", image, photometric="rgb")
    return image


def applied(folder: Path, given: str, *more: str) -> Any:
    files = ["--input", f"{folder}/{given.split()[0]}", *given.split()[1:], "--output", f"{folder}/y.npy", "--overwrite"]
    assert main(["apply", f"{folder}/m.onnx", *files, *more]) == 0
    return np.load(folder / "y.npy")


@pytest.mark.parametrize("given", ["rgb.tif", "yxc.npy", "nyxc.npy", "yxc.npy --axes yxc", "cyx.npy --axes cyx"])
@pytest.mark.parametrize(("head", "tail", "channels"), [("plain", "plain", 3), ("scaled", "softmax", "c"), ("sized", "first", 3)])
def test_every_input_is_taken_as_it_is(picture: Any, tmp_path: Path, given: str, head: str, tail: str, channels: Any) -> None:
    check(picture, tmp_path, given, head, tail, channels, "/ 255", "argmax")


@pytest.mark.parametrize("post", POST)
@pytest.mark.parametrize("tail", TAIL)
def test_steps_go_over_channels(picture: Any, tmp_path: Path, tail: str, post: str) -> None:
    check(picture, tmp_path, "rgb.tif", "plain", tail, 3, "/ 255", post)


@pytest.mark.parametrize("pre", PRE)
@pytest.mark.parametrize("head", HEAD)
def test_steps_before_it_too(picture: Any, tmp_path: Path, head: str, pre: str) -> None:
    check(picture, tmp_path, "rgb.tif", head, "plain", 3, pre, "argmax", "--budget", "160KiB")


def check(picture: Any, folder: Path, given: str, head: str, tail: str, channels: Any, pre: str, post: str, *more: str) -> None:
    """`ooc apply` against ONNX Runtime and NumPy."""
    model = network(folder / "m.onnx", head, tail, channels)
    found = applied(folder, given, "--pre", pre, "--post", post, *more)
    (y,) = onnx_files.by_runtime(model, {"x": PRE[pre](picture.astype(np.float32))[None]})
    wanted = POST[post](y if tail == "first" else np.moveaxis(y, -1, 1))
    assert found.shape == wanted.shape and found.shape[2:] == (20, 29)
    if post == "argmax":
        assert (found == wanted).mean() > 0.999 and wanted.min() < wanted.max()
    else:
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize("more", [(), ("--pad-to", "16"), ("--resume",)])
@pytest.mark.parametrize("small", [True, False])
def test_they_are_verified(
    picture: Any, tmp_path: Path, more: tuple[str, ...], small: bool, monkeypatch: Any, capsys: Any
) -> None:
    if not small:
        monkeypatch.setattr(verify, "WHOLE", 0)
    network(tmp_path / "m.onnx", "plain", "softmax", stride=1)
    dark = np.tile(picture // 8, (4, 3, 1))  # logits of thousands would make 1e-5 of a probability of their last bits
    tifffile.imwrite(tmp_path / "rgb.tif", dark, photometric="rgb")
    applied(tmp_path, "rgb.tif", "--verify", "4", "--json", *more)
    assert json.loads(capsys.readouterr().out)["verified"]["difference"] < 1e-5


def test_no_layer_turns_axes(picture: Any, tmp_path: Path, capsys: Any) -> None:
    """What only goes there and back is not done."""
    network(tmp_path / "m.onnx", "plain", "softmax")
    job = Application(str(tmp_path / "m.onnx"), str(tmp_path / "rgb.tif"))
    assert "permute" not in [call.op.kind for call in job.prepare().network.calls]
    job.close()


def test_what_cannot_be_told_is_refused(picture: Any, tmp_path: Path, capsys: Any) -> None:
    """Rather than an argmax over rows."""
    nodes = [*HEAD["plain"], node("Relu", "t", "r"), node("Flatten", "r", "f"), node("Reshape", "f shape", "y")]
    arrays = {"shape": np.array([1, 40, 57, 3])}
    onnx.save(onnx_files.model_of(nodes, {"x": ["n", "h", "w", 3]}, ["y"], arrays), tmp_path / "m.onnx")
    files = ["--input", f"{tmp_path}/rgb.tif", "--output", f"{tmp_path}/y.npy", "--post", "argmax"]
    assert main(["apply", f"{tmp_path}/m.onnx", *files]) == 2
    assert "output y: the input has its channels last" in capsys.readouterr().err and not (tmp_path / "y.npy").exists()


def test_load_has_the_axes_of_the_file(picture: Any, tmp_path: Path) -> None:
    model = network(tmp_path / "m.onnx", "plain", "plain")
    graph = ooc.onnx.load(tmp_path / "m.onnx", (1, *SHAPE, 3))
    x = {"x": picture.astype(np.float32)[None]}
    onnx_files.compare(onnx_files.by_plan(graph.plan(batch=1, train=False), x), onnx_files.by_runtime(model, x), "channels last")
    assert whole(graph.shapes["y"]) == whole((20, 29, 4))


@pytest.mark.parametrize("first", [True, False])
def test_a_network_that_turns_its_output_alone(first: bool, tmp_path: Path) -> None:
    """Channels first in, last out; and a Transpose inside is none of the input's."""
    w = np.random.default_rng(1).standard_normal((4, 3, 3, 3)).astype(np.float32)
    nodes = [node("Conv", "x w", "a"), node("Transpose", "a", "t", perm=[0, 2, 3, 1])]
    nodes += [node("Transpose", "t", "u", perm=[0, 3, 1, 2]), node("Relu", "u", "y")] if first else [node("Relu", "t", "y")]
    model = onnx_files.model_of(nodes, {"x": ["n", 3, "h", "w"]}, ["y"], {"w": w})
    onnx.save(model, tmp_path / "m.onnx")
    x = np.random.default_rng(2).standard_normal((1, 3, 12, 9)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    (y,) = onnx_files.by_runtime(model, {"x": x})
    found = applied(tmp_path, "x.npy", "--post", "argmax")
    np.testing.assert_array_equal(found, (y if first else np.moveaxis(y, -1, 1)).argmax(1)[:, None])

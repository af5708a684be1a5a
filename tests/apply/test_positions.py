"""Where results lie in space, from .nii to .nii: as nibabel cuts the same volume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ooc
from ooc.cli.main import main

nibabel = pytest.importorskip("nibabel")
onnx = pytest.importorskip("onnx")
onnx_files = pytest.importorskip("onnx_files")
node = pytest.importorskip("apply_files").node

SHAPE = (20, 24, 28)  # i, j, k


def volume(path: Path, sform: int = 1, qform: int = 1) -> Any:
    """Spacing 0.9, 1.12, 2.52 mm, turned about an axis."""
    turn = np.array([[0.8, -0.6, 0], [0.6, 0.8, 0], [0, 0, 1]])
    affine = np.eye(4)
    affine[:3, :3], affine[:3, 3] = turn @ np.diag([0.9, 1.12, 2.52]), (40, -20, 7)
    values = np.random.default_rng(8).standard_normal(SHAPE).astype(np.float32)
    image = nibabel.Nifti1Image(values, affine)
    image.set_sform(affine, sform)
    image.set_qform(affine, qform)
    image.header.set_xyzt_units("mm", "sec")
    nibabel.save(image, path)
    return nibabel.load(path)


def network(path: Path, *layers: tuple[str, dict[str, Any]]) -> None:
    """A network of one layer after the other, over volumes of two channels inside."""
    w = {"w1": (2, 1, 3, 3, 3), "w": (2, 2, 3, 3, 3), "t": (2, 2, 2, 2, 2)}
    rng, nodes, x = np.random.default_rng(1), [node("Conv", "x w1", "0", pads=[1] * 6)], "0"
    for i, (kind, attributes) in enumerate(layers, 1):
        reads = {"Conv": f"{x} w", "ConvTranspose": f"{x} t", "Resize": f"{x} - scales"}.get(kind, x)
        nodes.append(node(kind, reads, str(i), **attributes))
        x = str(i)
    nodes[-1].output[0] = "y"
    arrays = {name: (rng.standard_normal(shape) * 0.3).astype(np.float32) for name, shape in w.items()}
    arrays["scales"] = np.array([1, 1, 2, 2, 2], np.float32)
    onnx.save(onnx_files.model_of(nodes, {"x": ["n", 1, "d", "h", "w"]}, ["y"], arrays), path)


STRIDED = ("Conv", {"pads": [1] * 6, "strides": [2, 2, 2]})
POOLED = ("MaxPool", {"kernel_shape": [2] * 3, "strides": [2] * 3})
UP = ("ConvTranspose", {"strides": [2, 2, 2]})
NEAREST = ("Resize", {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"})
LINEAR = ("Resize", {"mode": "linear"})
VALID = ("Conv", {})
HALF, ALL = slice(None, None, 2), slice(None)


def applied(folder: Path, cut: str, *more: str) -> Any:
    files = ["--input", f"{folder}/x.nii{cut}", "--output", f"{folder}/y.nii", "--overwrite"]
    assert main(["apply", f"{folder}/m.onnx", *files, *more]) == 0
    return nibabel.load(folder / "y.nii")


def same_place(found: Any, affine: Any) -> None:
    np.testing.assert_allclose(found.affine, affine, atol=1e-4)
    np.testing.assert_allclose(found.header.get_zooms()[:3], np.linalg.norm(affine[:3, :3], axis=0), rtol=1e-5)
    assert found.header.get_xyzt_units() == ("mm", "sec")


@pytest.mark.parametrize(("codes", "more"), [((1, 1), ()), ((2, 0), ()), ((0, 1), ()), ((0, 0), ()), ((1, 1), ("--resume",))])
@pytest.mark.parametrize(
    ("cut", "layers", "post", "kept"),
    [
        ("", [], "argmax", (ALL, ALL, ALL)),
        ("::3:15,4:20,5:17", [], "argmax", (slice(5, 17), slice(4, 20), slice(3, 15))),
        ("", [], "crop 2, argmax", (slice(2, -2),) * 3),
        ("", [STRIDED], "argmax", (HALF, HALF, HALF)),
        ("", [VALID], "argmax", (slice(1, -1),) * 3),
        ("::2:22", [STRIDED, VALID], "argmax, crop 1", (slice(4, -4, 2), slice(4, -4, 2), slice(6, 18, 2))),
        ("", [STRIDED, STRIDED, NEAREST, UP], "argmax", (ALL, ALL, ALL)),
        ("::7", [], "argmax", (ALL, ALL, slice(7, 8))),
    ],
)
def test_a_result_lies_where_nibabel_puts_the_same_cut(
    tmp_path: Path, codes: tuple[int, int], more: tuple[str, ...], cut: str, layers: list[Any], post: str, kept: Any
) -> None:
    image = volume(tmp_path / "x.nii", *codes)
    network(tmp_path / "m.onnx", *layers)
    found = applied(tmp_path, cut, "--post", post, *more)
    wanted = image.slicer[kept]
    assert found.shape == wanted.shape
    same_place(found, wanted.affine)


@pytest.mark.parametrize(
    ("layers", "offset", "step"),
    [
        ([POOLED], 0.5, 2), ([POOLED, POOLED], 1.5, 4), ([LINEAR], -0.25, 0.5), ([NEAREST], -0.25, 0.5), ([UP], -0.25, 0.5),
        ([POOLED, POOLED, NEAREST], 0.5, 2), ([POOLED, POOLED, UP], 0.5, 2), ([STRIDED, STRIDED, LINEAR], -1, 2),
    ],
)  # fmt: skip
@pytest.mark.parametrize("more", [(), ("--resume",)])
def test_results_lie_at_the_centre_of_what_they_see(
    tmp_path: Path, layers: list[Any], offset: float, step: float, more: tuple[str, ...]
) -> None:
    """Of 2 positions that a pooling takes the middle is half a position on."""
    image = volume(tmp_path / "x.nii")
    network(tmp_path / "m.onnx", *layers)
    found = applied(tmp_path, "::4:,:,:16", "--post", "argmax", *more)
    move = np.diag([step, step, step, 1.0])
    move[:3, 3] = offset, offset, 4 + offset
    same_place(found, image.affine @ move)


def test_windows_keep_the_place(tmp_path: Path) -> None:
    """Also where one is larger than the volume, and zeros stand around it."""
    image = volume(tmp_path / "x.nii")
    network(tmp_path / "m.onnx", STRIDED)
    found = applied(tmp_path, ":::,:,2:", "--post", "argmax", "--semantics", "window=32x16x16,overlap=0.5")
    same_place(found, image.slicer[2::2, ::2, ::2].affine)


@pytest.mark.parametrize("how", [(), ("--resume",)])
def test_where_the_place_is_not_known_it_is_said(tmp_path: Path, how: tuple[str, ...], capsys: Any) -> None:
    volume(tmp_path / "x.nii")
    nodes = [node("Transpose", "x", "a", perm=[0, 1, 3, 2, 4]), node("Relu", "a", "y")]
    onnx.save(onnx_files.model_of(nodes, {"x": ["n", 1, "d", "h", "w"]}, ["y"], {}), tmp_path / "m.onnx")
    found = applied(tmp_path, "", *how)
    told = capsys.readouterr().out
    assert told.count("note ") == 1 and "y.nii: where it lies in space is not known" in told
    np.testing.assert_array_equal(found.header.get_zooms(), (1, 1, 1))
    applied(tmp_path, "", "--json", *how)
    assert "not known" in json.loads(capsys.readouterr().out)["notes"][0]
    assert main(["apply", f"{tmp_path}/m.onnx", "--input", f"{tmp_path}/x.nii", "--output", f"{tmp_path}/y.npy", *how]) == 0
    assert "note " not in capsys.readouterr().out


def test_create_puts_a_tensor_where_it_says(tmp_path: Path) -> None:
    image = volume(tmp_path / "x.nii")
    with ooc.open(f"{tmp_path}/x.nii::3:15,4:20,5:17") as like:
        ooc.create(tmp_path / "y.nii", (6, 8, 4), "u1", like=like, position={"z": (0, 2), "y": (0, 2), "x": (3, 3)}).close()
    same_place(nibabel.load(tmp_path / "y.nii"), image.slicer[8:20:3, 4:20:2, 3:15:2].affine)
    with ooc.open(tmp_path / "x.nii") as like:
        for wrong in ({"w": (0, 1)}, {"z": (0, 0)}, {"z": (0,)}, {"z": ("a", 1)}, [1, 2], {"z": (float("nan"), 1)}):
            with pytest.raises(ooc.ShapeError, match="position"):
                ooc.create(tmp_path / "z.nii", (6, 8, 4), "u1", like=like, position=wrong)
    with pytest.raises(ooc.ShapeError, match=r"position: .* like="):
        ooc.create(tmp_path / "z.nii", (6, 8, 4), "u1", position={"z": (0, 1)})

"""`ooc apply` to OME-Zarr: images and labels with levels, where the input lies; in one process, by several, and resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ooc
from ooc.apply.job import Application
from ooc.cli.main import main
from ooc.ir.region import whole
from ooc.sources.geometry import Spacing, geometry_of
from ooc.workers.run import run_tasks

apply_files = pytest.importorskip("apply_files")
pytest.importorskip("zarr")
pytestmark = pytest.mark.usefixtures("finer")
POST = "argmax"


@pytest.fixture
def volume(tmp_path: Path) -> Any:
    """A network, and a volume with places."""
    x = np.random.default_rng(3).standard_normal((14, 260, 12)).astype(np.float32)
    with ooc.create(tmp_path / "x.ome.zarr", x.shape, x.dtype, "zyx") as sink:
        sink.write(whole(x.shape), x)
    group = tmp_path / "x.ome.zarr" / "zarr.json"
    told = json.loads(group.read_text())
    image = told["attributes"]["ome"]["multiscales"][0]
    image["datasets"] = image["datasets"][:1]
    image["datasets"][0]["coordinateTransformations"] = [
        {"type": "scale", "scale": [3.0, 0.5, 0.5]},
        {"type": "translation", "translation": [7.0, 0.0, 1.0]},
    ]
    for axis in image["axes"]:
        axis["unit"] = "micrometer"
    group.write_text(json.dumps(told))
    apply_files.volume_network(tmp_path / "m.onnx")
    return x


def job(folder: Path, output: str, **options: Any) -> Application:
    model, x = str(folder / "m.onnx"), str(folder / "x.ome.zarr")
    return Application(model, x, f"{folder}/{output}", "24 MiB", after=POST, **options)


def at_once(folder: Path, output: str, **options: Any) -> None:
    one = job(folder, output, **options)
    one.prepare()
    one.run()


def held(path: str) -> tuple[list[Any], list[dict[str, Spacing]]]:
    """All levels, and where they lie."""
    sources = []
    while True:
        try:
            sources.append(ooc.open(f"{path}:{len(sources)}"))
        except ooc.ArgumentError:
            return [source[...] for source in sources], [geometry_of(source) for source in sources]


@pytest.mark.parametrize("version", ["", "0.4"])
def test_an_image_lies_where_the_input_does(version: str, volume: Any, tmp_path: Path) -> None:
    at_once(tmp_path, "plain.npy")
    at_once(tmp_path, "y.ome.zarr", ome=version)
    values, places = held(f"{tmp_path}/y.ome.zarr")
    expected = np.load(tmp_path / "plain.npy")[0]
    assert len(values) == 2
    np.testing.assert_array_equal(values[0], expected)
    with ooc.open(tmp_path / "x.ome.zarr") as source:
        lies = geometry_of(source)
    assert all(places[0][a] == lies[a] for a in "zyx") and places[0]["z"].unit == "micrometer"
    assert places[1]["y"] == Spacing(1.0, 0.25, "micrometer") and places[1]["z"].step == 3.0


@pytest.mark.parametrize("output", ["y.ome.zarr", "x.ome.zarr/labels/parts"])
def test_workers_make_the_same(output: str, volume: Any, tmp_path: Path) -> None:
    """Levels are made once, by whoever puts the result in its place; labels join their image's list."""
    at_once(tmp_path, "plain.npy")
    if "labels" in output:
        output = output.replace("x.ome", "image.ome")
        with ooc.create(tmp_path / "image.ome.zarr", volume.shape, volume.dtype, "zyx", ome="0.4") as sink:
            sink.write(whole(volume.shape), volume)
    tasks = job(tmp_path, output).spread()
    for task in tasks[: len(tasks) // 2]:
        task()
    run_tasks(job(tmp_path, output).spread(resume=True))
    values, _ = held(f"{tmp_path}/{output}")
    expected = np.load(tmp_path / "plain.npy").reshape(values[0].shape)
    np.testing.assert_array_equal(values[0], expected)
    if "labels" in output:
        np.testing.assert_array_equal(values[1], expected[:, ::2, ::2] if values[1].shape[0] == 14 else expected[::2, ::2, ::2])
        assert json.loads((tmp_path / "image.ome.zarr" / "labels" / ".zattrs").read_text()) == {"labels": ["parts"]}
        at_once(tmp_path, "image.ome.zarr/labels/again")
        assert json.loads((tmp_path / "image.ome.zarr" / "labels" / ".zattrs").read_text()) == {"labels": ["parts", "again"]}
        np.testing.assert_array_equal(held(f"{tmp_path}/image.ome.zarr/labels/again")[0][1], values[1])
    else:
        at_once(tmp_path, "z.ome.zarr")
        for one, other in zip(values, held(f"{tmp_path}/z.ome.zarr")[0], strict=True):
            np.testing.assert_array_equal(one, other)


def test_the_command(volume: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["apply", f"{tmp_path}/m.onnx", "--input", f"{tmp_path}/x.ome.zarr", "--output", f"{tmp_path}/y.ome.zarr"]
    assert main([*given, "--post", POST, "--ome", "0.4"]) == 0
    assert (tmp_path / "y.ome.zarr" / ".zattrs").exists()
    assert main([*given, "--post", POST, "--ome", "0.3", "--overwrite"]) == 2
    assert "ome: expected one of 0.4, 0.5" in capsys.readouterr().err
    assert main([*given, "--post", POST, "--overwrite"]) == 0
    assert (tmp_path / "y.ome.zarr" / "zarr.json").exists()


@pytest.mark.parametrize("output", ["y.ome.tif", "y.nii.gz"])
def test_formats_that_are_written_whole(output: str, volume: Any, tmp_path: Path) -> None:
    """At the end, by one worker; places go along."""
    at_once(tmp_path, "plain.npy")
    at_once(tmp_path, output)
    run_tasks(job(tmp_path, f"z{output[1:]}").spread())
    for name in (output, f"z{output[1:]}"):
        with ooc.open(tmp_path / name) as source:
            expected = np.load(tmp_path / "plain.npy").reshape(source.shape)
            np.testing.assert_array_equal(source, expected)
            assert geometry_of(source)["z"].step == pytest.approx(3.0 if "tif" in output else 3e-3)

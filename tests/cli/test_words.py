"""Errors of the command line: in its own words, before anything is planned or measured, whatever streams are there."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sweeps import crossed

import ooc
from ooc.cli.main import main
from ooc.runtime.call_options import OF_DEVICES

apply_files = pytest.importorskip("apply_files")
MADE = ["y.npy", "y.zarr", "y.zarr/a", "y.h5:/y", "y.tif", "y.nii", "y.png"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    apply_files.picture_network(tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.random.default_rng(1).standard_normal((1, 3, 31, 23)).astype("f4"))
    return tmp_path


def refused(folder: Path, capsys: pytest.CaptureFixture[str], output: str, *more: str, given: str = "x.npy") -> str:
    """The one line that is told; nothing was planned or measured before it."""
    where = output if "://" in output else f"{folder}/{output}"
    source = given if "://" in given else f"{folder}/{given}"
    before = {p.name for p in folder.iterdir()}
    assert main(["apply", f"{folder}/m.onnx", "--input", source, "--output", where, *more]) == 2
    told = capsys.readouterr()
    assert not told.out and told.err.count("\n") == 1 and {p.name for p in folder.iterdir()} == before
    return told.err


@pytest.fixture
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning and passes over the input are too late for an error."""

    def late(*args: object, **kwargs: object) -> None:
        raise AssertionError("planned or measured")

    monkeypatch.setattr("ooc.apply.job.opened", late)


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("more", [(), ("--workers", "2")])
def test_what_is_there_is_told_first(
    folder: Path, capsys: pytest.CaptureFixture[str], no_work: None, name: str, more: tuple[str]
) -> None:
    ooc.create(folder / name, (3, 4), "u1").close()
    assert "exists already; pass --overwrite to replace it" in refused(folder, capsys, name, *more)


@pytest.mark.parametrize(
    ("output", "more", "told"),
    [
        ("y.jpg", (), "only .png is written"), ("y.h5", (), "name the dataset"),
        ("y.zarr:1", (), "levels of OME-Zarr are not written"), ("y.npy::0", (), "slices select"), ("y.txt", (), "y.txt"),
        ("s3://b/y.npy", (), "across a network only .zarr"), ("gs://b/y.zarr", (), "expected s3:// or https://"),
        ("https://host/y.zarr", (), "is only read"), ("s3://b/y.zarr", ("--resume",), "--work: expected a folder"),
        ("y.npy", ("--work", "s3://b/w", "--resume"), "s3://b/w: expected a folder on a disk"),
        ("y.npy", ("--work", "w"), "--work: of a run that is shared or can be resumed"),
        ("y.npy", ("--budget", "1e300"), "budget='1e300': expected less than 2^63 bytes"),
        ("y.npy", ("--budget", "nine"), "budget='nine': expected bytes"),
        ("y.npy", ("--budget", "0"), "budget='0': expected"),
    ],
)  # fmt: skip
def test_what_the_words_tell_comes_first(
    folder: Path, capsys: pytest.CaptureFixture[str], no_work: None, output: str, more: tuple[str, ...], told: str
) -> None:
    assert told in refused(folder, capsys, output, *more)


def test_keywords_are_options(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Raise --budget to at least" in refused(folder, capsys, "y.npy", "--budget", "100")
    with pytest.raises(ooc.ShapeError, match="overwrite=True"):
        ooc.create(folder / "x.npy", (1,), "u1")


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("s3://b/x.npy", "only .zarr is read"), ("https://host/x.tif", "only .zarr is read"), ("gs://b/x.zarr", "expected s3://"),
        ("file:///x.npy", "expected s3://"), ("s3:///x.zarr", "expected s3://bucket/path"),
        ("https://host/x.zarr?a=b", "without a query"), ("https://host/../x.zarr", "expected s3://bucket/path"),
    ],
)  # fmt: skip
def test_what_is_not_served_across_a_network(path: str, told: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert told in refused(folder, capsys, "y.npy", given=path)
    for call in (ooc.open, lambda p: ooc.create(p, (1,), "u1")):
        with pytest.raises(ooc.OocError, match=re.escape(told)):
            call(path)


@pytest.mark.parametrize(("closed", "more"), crossed([(1,), (2,), (0, 1, 2), (1, 2)], [(), ("--resume",)], every=2))
def test_closed_streams(folder: Path, closed: tuple[int, ...], more: tuple[str, ...]) -> None:
    """As `ooc apply ... >&-` has them: the work is done, and nothing is printed into it."""
    call = [sys.executable, "-m", "ooc", "apply", "m.onnx", "--input", "x.npy", "--output", "y.npy", *more]
    code = f"import os, sys\nfor n in {closed}: os.close(n)\nos.execv(sys.executable, {call})"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and not done.stderr
    assert ("done" in done.stdout) == (1 not in closed)
    assert np.load(folder / "y.npy").any() and not os.path.exists(folder / "y.npy.work/plain")


@pytest.mark.parametrize("word", OF_DEVICES)
def test_options_of_devices_are_named_where_they_belong(word: str) -> None:
    assert word in inspect.signature(ooc.device).parameters
    x, w = np.ones((1, 1, 8, 8), "f4"), np.ones((1, 1, 3, 3), "f4")
    with pytest.raises(ooc.OptionError, match=rf"no option {word}= here; it belongs to a device: with ooc.device\({word}="):
        ooc.conv(x, w, **{word: 1})


def test_what_is_missing_is_told_without_a_number(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, *more in (("no.onnx", "--input", f"{folder}/x.npy", "--output", f"{folder}/y.npy"), ("no.toml",)):
        assert main(["apply" if more else "train", name, *more]) == 2
        assert capsys.readouterr().err == f"ooc: {name}: No such file or directory\n"


def test_a_plan_of_windows_is_of_all_of_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["apply", f"{folder}/m.onnx", "--input", f"{folder}/x.npy", "--semantics", "window=16,overlap=0", "--post", "argmax"]
    assert main([*call, "--plan", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["windows"] > 1 and told["dtype"] == "u8"

"""Where `ooc apply` puts its results: nothing that is read, or somebody's, is lost, and nothing unfinished looks finished."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sweeps import crossed
from tasks import stored

import ooc
from ooc.cli.main import main
from ooc.ir.region import whole
from ooc.workers.begin import at_work

apply_files = pytest.importorskip("apply_files")
FINE = "from ooc.workers import cut; cut.SECONDS, cut.PARTS, cut.DEARER = 1e-9, 13, 1e9; "
SUFFIXES = {"npy": "", "zarr": "", "tif": "", "nii": "", "h5": ":/x"}


@pytest.fixture(autouse=True)
def files(tmp_path: Path, finer: None) -> None:
    x = np.random.default_rng(3).standard_normal((1, 1, 24, 22, 26)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    apply_files.volume_network(tmp_path / "v.onnx")


def command(folder: Path, source: str, output: str, *more: str) -> list[str]:
    one = ["--post", "channel 0"] if output.endswith((".nii", ".tif")) or "whole" in output else []
    return ["apply", f"{folder}/v.onnx", "--input", f"{folder}/{source}", "--output", f"{folder}/{output}", *one, *more]


def same(folder: Path, output: str) -> bool:
    """Whether a result is that of a run that nobody disturbed, of the formats with one channel that channel."""
    whole_one, found = np.load(folder / "whole.npy"), stored(f"{folder}/{output}")
    found = found[:, :1] if found.ndim == 5 else found[None, None]
    return np.array_equal(found, whole_one)


def copied(folder: Path, name: str) -> Any:
    """x.npy as another tensor."""
    x = np.load(folder / "x.npy")
    with ooc.create(f"{folder}/{name}", x.shape, x.dtype, "" if name.endswith((".tif", ".nii")) else "nczyx") as made:
        made.write(whole(x.shape), x)
    return x


def start(args: list[str], **env: str) -> subprocess.Popen[str]:
    code = f"{FINE}from ooc.cli.main import main; import sys; sys.exit(main(sys.argv[1:]))"
    return subprocess.Popen(
        [sys.executable, "-c", code, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **env}
    )


def stop(process: subprocess.Popen[str], when: Callable[[], bool], how: int = signal.SIGKILL) -> bool:
    """Kill a process at a moment; whether it came before the process had ended."""
    while process.poll() is None and not when():
        time.sleep(0.0002)
    process.send_signal(how)
    process.communicate()
    return process.returncode != 0


@pytest.mark.parametrize("way", ["itself", "link", "hard link", "slice"])
@pytest.mark.parametrize("how", ["--overwrite", "--overwrite --resume", "--overwrite --workers 2", "--parts 1/1"])
@pytest.mark.parametrize("kind", ["npy", "zarr", "zarr/in", "tif", "nii", "h5:/x"])
def test_an_output_that_is_the_input(
    kind: str, how: str, way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    x, (file, mark, tail) = copied(tmp_path, f"a.{kind}"), f"a.{kind}".partition("/" if "/" in kind and ":" not in kind else ":")
    source, output = f"a.{kind}", f"a.{kind}"
    if way in ("link", "hard link"):
        link = tmp_path / file.replace("a.", "b.")
        if way == "link":
            link.symlink_to(tmp_path / file)
        elif (tmp_path / file).is_dir():
            pytest.skip("folders have no hard links")
        else:
            link.hardlink_to(tmp_path / file)
        output = f"{link.name}{mark}{tail}"
    elif way == "slice":
        source += "::" + ",".join(":" for _ in x.shape)
    assert main(command(tmp_path, source, output, *how.split())) == 2
    assert "is read" in capsys.readouterr().err
    assert np.array_equal(stored(f"{tmp_path}/a.{kind}"), x)
    assert not list(tmp_path.glob("*.work")) and not list(tmp_path.glob("*.part*"))


def test_an_output_in_the_file_that_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("h5py")
    x = copied(tmp_path, "a.h5:/x")
    for more in ([], ["--resume"]):
        assert main(command(tmp_path, "a.h5:/x", "a.h5:/y", *more)) == 2
        assert "is read" in capsys.readouterr().err
    assert np.array_equal(stored(f"{tmp_path}/a.h5:/x"), x)


@pytest.mark.parametrize("how", [[], ["--resume"]])
def test_a_group_is_not_replaced(how: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("zarr")
    x = copied(tmp_path, "g.zarr/raw")
    copied(tmp_path, "g.zarr/deep/precious")
    for output in ("g.zarr", "g.zarr/deep", "g.zarr/raw/inside"):
        assert main(command(tmp_path, "x.npy", output, "--overwrite", *how)) == 2
        err = capsys.readouterr().err
        assert "is not replaced; name an array" in err or "is an array, in which" in err
    assert main(command(tmp_path, "g.zarr/raw", "g.zarr/made", *how)) == 0
    assert main(command(tmp_path, "x.npy", "g.zarr/made", "--overwrite", *how)) == 0
    for name in ("raw", "deep/precious"):
        assert np.array_equal(stored(f"{tmp_path}/g.zarr/{name}"), x)
    zarr = pytest.importorskip("zarr")
    assert sorted(dict(zarr.open_group(str(tmp_path / "g.zarr"), mode="r").members())) == ["deep", "made", "raw"]


def test_other_datasets_of_a_file_stay(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    x = copied(tmp_path, "a.h5:/deep/x")
    for more in ([], ["--overwrite"], ["--overwrite", "--resume"]):
        assert main(command(tmp_path, "x.npy", "a.h5:/made/y", *more)) == 0
        assert np.array_equal(stored(f"{tmp_path}/a.h5:/deep/x"), x)
    assert stored(f"{tmp_path}/a.h5:/made/y").any()


@pytest.mark.parametrize("how", [[], ["--resume"]])
@pytest.mark.parametrize("kind", SUFFIXES)
def test_what_is_there_is_replaced_at_once_or_stays(kind: str, how: list[str], tmp_path: Path, capsys: Any) -> None:
    output = f"y.{kind}{SUFFIXES[kind]}"
    assert main(command(tmp_path, "x.npy", output, *how)) == 0
    first = stored(f"{tmp_path}/{output}")
    np.save(tmp_path / "x2.npy", 2 * np.load(tmp_path / "x.npy"))
    if not how:
        assert main(command(tmp_path, "x2.npy", output)) == 2
        assert "exists already" in capsys.readouterr().err
    assert np.array_equal(stored(f"{tmp_path}/{output}"), first)
    assert main(command(tmp_path, "x2.npy", output, "--overwrite", *how)) == 0
    assert not np.array_equal(stored(f"{tmp_path}/{output}"), first)
    left = {p.name for p in tmp_path.iterdir()} - {"x.npy", "x2.npy", "v.onnx", f"y.{kind}", f"y.{kind}.work", f"y.{kind}.x.work"}
    assert not left


@pytest.mark.parametrize(("kind", "death"), crossed([*SUFFIXES], [signal.SIGKILL, signal.SIGINT, signal.SIGTERM], every=4))
def test_a_plain_run_that_was_stopped_leaves_nothing_that_looks_finished(kind: str, death: int, tmp_path: Path) -> None:
    """Nor anything at all after Ctrl-C; what dies at once leaves a folder beside the place, which the next start removes."""
    (tmp_path / "temporary").mkdir()
    args = command(tmp_path, "x.npy", f"y.{kind}{SUFFIXES[kind]}")
    process = start(args, TMPDIR=str(tmp_path / "temporary"))
    stopped = stop(process, lambda: any(tmp_path.glob(f"y.{kind}.part*/y.*")), death)
    if stopped:
        assert not (tmp_path / f"y.{kind}").exists() and not list((tmp_path / "temporary").iterdir())
        assert bool(list(tmp_path.glob("*.part*"))) <= (death != signal.SIGINT)
    assert main([*args, *([] if stopped else ["--overwrite"])]) == 0
    assert main(command(tmp_path, "x.npy", "whole.npy")) == 0
    assert same(tmp_path, f"y.{kind}{SUFFIXES[kind]}")
    assert not list(tmp_path.glob("*.part*")) and not list((tmp_path / "temporary").iterdir())


@pytest.mark.parametrize("kind", SUFFIXES)
def test_a_plain_run_that_was_killed_is_continued_by_any(kind: str, tmp_path: Path) -> None:
    args = command(tmp_path, "x.npy", f"y.{kind}{SUFFIXES[kind]}")
    stop(start(args), lambda: any(tmp_path.glob(f"y.{kind}.part*")))
    assert main([*args, "--resume", "--overwrite"]) == 0
    assert main(command(tmp_path, "x.npy", "whole.npy", "--resume")) == 0
    assert same(tmp_path, f"y.{kind}{SUFFIXES[kind]}")
    assert not list(tmp_path.glob("*.part*"))


def test_windows_leave_nothing_either(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    args = command(tmp_path, "x.npy", "y.zarr", "--semantics", "window=16,overlap=0.25")
    stop(start(args, TMPDIR=str(tmp_path / "temporary")), lambda: any(tmp_path.glob("y.zarr.part*/y.*")))
    assert not list((tmp_path / "temporary").iterdir())


def test_two_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One works, the other is told so."""
    args = command(tmp_path, "x.npy", "y.npy", "--resume")
    assert main(args) == 0
    with at_work(tmp_path / "y.npy.work"):
        for more in ([], ["--overwrite"]):
            assert main([*args, *more]) == 2
            assert "at work there" in capsys.readouterr().err
        assert main(command(tmp_path, "x.npy", "y.npy", "--overwrite")) == 2
        assert "at work there" in capsys.readouterr().err
    pair = [start(command(tmp_path, "x.npy", "z.npy", "--resume")) for _ in range(2)]
    found = [process.communicate() for process in pair]
    assert {0} <= {process.returncode for process in pair} <= {0, 2}, found
    assert np.array_equal(np.load(tmp_path / "z.npy"), np.load(tmp_path / "y.npy"))


def test_begun_anew_where_that_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --overwrite, --resume begins anew whatever cannot be resumed."""
    args = command(tmp_path, "x.npy", "y.npy", "--resume")
    assert main(args) == 0
    whole_one = np.load(tmp_path / "y.npy")
    np.save(tmp_path / "x.npy", 2 * np.load(tmp_path / "x.npy"))
    assert main(args) == 2
    assert "of another source" in capsys.readouterr().err
    assert main([*args, "--overwrite"]) == 0
    second = np.load(tmp_path / "y.npy")
    assert not np.array_equal(second, whole_one)
    np.save(tmp_path / "y.npy", whole_one)
    assert main(args) == 2
    assert "changed since it was finished" in capsys.readouterr().err
    assert np.array_equal(np.load(tmp_path / "y.npy"), whole_one)
    (tmp_path / "y.npy.work" / "work.json").write_text("{")
    assert main(args) == 2
    assert main([*args, "--overwrite"]) == 0
    assert np.array_equal(np.load(tmp_path / "y.npy"), second)


def test_datasets_of_one_file_are_runs_of_their_own(tmp_path: Path) -> None:
    """Begun one after the other, in shares too; what one leaves is not the other's."""
    pytest.importorskip("h5py")
    for name in ("a", "b"):
        assert main(command(tmp_path, "x.npy", f"all.h5:/{name}", "--parts", "1/1")) == 0
        assert main(command(tmp_path, "x.npy", f"all.zarr/{name}", "--parts", "1/1")) == 0
    found = [stored(f"{tmp_path}/all.{suffix}{name}") for suffix in ("h5:/", "zarr/") for name in ("a", "b")]
    assert all(np.array_equal(one, found[0]) for one in found)
    assert main(command(tmp_path, "x.npy", "all.h5:/c")) == 0
    assert (tmp_path / "all.h5.a.work").exists()


def test_two_results_at_once_in_one_file(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    x = copied(tmp_path, "all.h5:/old")
    running = [start(command(tmp_path, "x.npy", f"all.h5:/{name}")) for name in ("a", "b")]
    assert [process.communicate() and process.returncode for process in running] == [0, 0]
    assert np.array_equal(stored(f"{tmp_path}/all.h5:/old"), x)
    assert np.array_equal(stored(f"{tmp_path}/all.h5:/a"), stored(f"{tmp_path}/all.h5:/b"))


def test_a_file_that_is_merged_into_stays_what_it_was(tmp_path: Path) -> None:
    """Its mode, and the link by which it was named; what was killed in between goes."""
    pytest.importorskip("h5py")
    copied(tmp_path, "data.h5:/old")
    (tmp_path / "data.h5").chmod(0o600)
    (tmp_path / "link.h5").symlink_to("data.h5")
    (tmp_path / "link.h5.part0123abcd").mkdir()
    (tmp_path / "link.h5.part0123abcd" / "link.h5.part01234567").write_bytes(b"half")
    assert main(command(tmp_path, "x.npy", "link.h5:/new")) == 0
    assert (tmp_path / "link.h5").is_symlink() and (tmp_path / "data.h5").stat().st_mode & 0o777 == 0o600
    assert stored(f"{tmp_path}/data.h5:/new").any() and stored(f"{tmp_path}/data.h5:/old").any()
    assert not list(tmp_path.glob("*.part*"))


def test_what_else_lies_in_an_array_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("zarr")
    copied(tmp_path, "a.zarr")
    (tmp_path / "a.zarr" / "notes").mkdir()
    (tmp_path / "a.zarr" / "notes" / "lab.txt").write_text("precious")
    (tmp_path / "a.zarr" / ".DS_Store").write_text("")
    assert main(command(tmp_path, "x.npy", "a.zarr", "--overwrite")) == 2
    assert "holds notes/lab.txt, and is not replaced" in capsys.readouterr().err
    assert (tmp_path / "a.zarr" / "notes" / "lab.txt").read_text() == "precious"


def test_something_that_came_to_the_place_meanwhile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever resumes may say that it is to be replaced."""
    args = command(tmp_path, "x.npy", "y.npy", "--resume")
    stop(start(args), lambda: any((tmp_path / "y.npy.work" / "done").glob("*")))
    np.save(tmp_path / "y.npy", np.zeros(3))
    assert main(args) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert main([*args, "--overwrite"]) == 0
    assert main(command(tmp_path, "x.npy", "whole.npy")) == 0
    assert stored(tmp_path / "y.npy").shape[0] == 1

"""`ooc apply` in a pipe, in silence, on so many threads; what a misspelt word was meant to be; what completes words."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from waiting import HANGS, until_files

from ooc.backends.cpu import backend
from ooc.cli.main import COMMANDS, main

apply_files = pytest.importorskip("apply_files")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    apply_files.picture_network(tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.random.default_rng(1).standard_normal((1, 3, 31, 23)).astype("f4"))
    assert main(["apply", f"{tmp_path}/m.onnx", "--input", f"{tmp_path}/x.npy", "--output", f"{tmp_path}/y.npy", "--quiet"]) == 0
    return tmp_path


def piped(folder: Path, data: bytes, *more: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "ooc", "apply", f"{folder}/m.onnx", *more]
    return subprocess.run(command, input=data, capture_output=True)


def test_a_pipe(folder: Path) -> None:
    data, expected = (folder / "x.npy").read_bytes(), np.load(folder / "y.npy")
    done = piped(folder, data, "--input", "-", "--output", "-")
    assert done.returncode == 0 and b"done" in done.stderr
    np.testing.assert_array_equal(np.load(io.BytesIO(done.stdout)), expected)
    done = piped(folder, data, "--input", "-", "--output", f"{folder}/z.npy", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    np.testing.assert_array_equal(np.load(folder / "z.npy"), expected)
    done = piped(folder, b"nonsense", "--input", "-", "--output", "-")
    assert done.returncode == 2 and not done.stdout and done.stderr.count(b"\n") == 1


def test_a_stream_that_is_closed(folder: Path) -> None:
    command = [sys.executable, "-m", "ooc", "apply", f"{folder}/m.onnx", "--input", f"{folder}/x.npy", "--output", "-"]
    done = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command], stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (2, "ooc: --output -: there is no standard output\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_came_in_goes_with_a_killed_command(folder: Path, number: int) -> None:
    (folder / "tmp").mkdir()
    command = [sys.executable, "-m", "ooc", "apply", f"{folder}/m.onnx", "--input", "-", "--output", f"{folder}/z.npy"]
    environment = {**os.environ, "TMPDIR": f"{folder}/tmp"}
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, **streams) as process:
        until_files(process, folder, "tmp/ooc-*/stdin.npy")
        process.send_signal(number)
        _, err = process.communicate(timeout=HANGS)
    assert process.returncode == 130 and err.splitlines()[-1] == b"ooc: interrupted", err
    assert not list((folder / "tmp").iterdir()) and not (folder / "z.npy").exists()


def test_silence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["apply", f"{folder}/m.onnx", "--input", f"{folder}/x.npy", "--output", f"{folder}/y.npy"]
    assert main([*given, "--quiet", "--overwrite", "--verify", "2"]) == 0
    assert capsys.readouterr() == ("", "")
    assert main([*given, "--quiet"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main([*given, "--quiet", "--overwrite", "--json"]) == 0
    assert capsys.readouterr().out.startswith("{")
    assert main([*given, "--quiet", "--overwrite", "--plan"]) == 0  # that is what was wanted
    assert "predicted" in capsys.readouterr().out


def test_threads(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the device that computes, in one process and in tasks."""
    used = set()
    make = backend.CpuBackend.__init__

    def noted(self: backend.CpuBackend, threads: int | None = None, *args: object, **named: object) -> None:
        used.add(threads)
        make(self, threads, *args, **named)

    monkeypatch.setattr(backend.CpuBackend, "__init__", noted)
    given = ["apply", f"{folder}/m.onnx", "--input", f"{folder}/x.npy", "--output", f"{folder}/z.npy", "--quiet"]
    assert main([*given, "--threads", "3"]) == 0 and 3 in used
    assert main([*given, "--threads", "3", "--resume", "--overwrite"]) == 0
    np.testing.assert_array_equal(np.load(folder / "z.npy"), np.load(folder / "y.npy"))


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--output", "-", "--json"), "--json: does not go with --output -"),
        (("--output", "-", "--resume"), "streams are read and written by one process"),
        (("--output", "y2.npy", "--threads", "0"), "threads=0: expected a positive integer"),
        (("--output", "y2.npy", "--thread", "x"), "--threads"),
    ],
)  # fmt: skip
def test_what_does_not_go_together(folder: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], told: str) -> None:
    assert main(["apply", f"{folder}/m.onnx", "--input", f"{folder}/x.npy", *more]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("aply",), "did you mean apply?"), (("netwrok", "vgg16"), "did you mean network?"),
        (("plan", "x", "--bugdet", "3"), "did you mean --budget?"), (("calibrate", "--bakend=cuda"), "did you mean --backend?"),
        (("completion", "zhs"), "did you mean zsh?"),
    ],
)  # fmt: skip
def test_what_was_meant(words: tuple[str, ...], meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(list(words)) == 2
    assert meant in capsys.readouterr().err


def test_options_of_other_commands_are_not_guessed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "x", "--overwrite"]) == 2
    assert "did you mean --overwrite" not in capsys.readouterr().err


def test_what_is_far_from_every_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zzz"]) == 2
    assert "did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)], ids=str)
def test_help_tells_the_exit_status(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*command, "--help"])
    assert "exit status: 0 done" in capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab")
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "apply" in script and "--semantics" in script

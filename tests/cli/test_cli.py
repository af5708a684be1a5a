"""The `ooc` command: plans in text and JSON, one-line errors with status 2, the doctor, interruptions."""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sweeps import swept
from waiting import HANGS, until, until_files

import ooc
from ooc.cli import doctor
from ooc.cli import main as cli
from ooc.cli.main import main
from ooc.console import BROKEN_PIPE
from ooc.model.calibration import DEVICES

ROOT = Path(__file__).parents[2]
CONV = "conv.fprop n=32 c=64 h=224 w=224 k=64 r=3 s=3 pad=1 dtype=f32"


def command(*argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    return subprocess.run([sys.executable, "-m", "ooc.cli", *argv], **options(env))  # type: ignore[call-overload, no-any-return]


def options(env: dict[str, str]) -> dict[str, object]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {"capture_output": True, "text": True, "cwd": ROOT, "timeout": HANGS, "env": {**os.environ, "PYTHONPATH": path, **env}}


def one_line(text: str) -> str:
    assert text.startswith("ooc: ") and text.endswith("\n") and text.count("\n") == 1, text
    return text


# ---- ooc plan


def test_plan_prints_the_plan_of_the_library(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", CONV, "--budget", "64 MiB", "--device", "cpu"]) == 0
    assert capsys.readouterr().out == f"{ooc.plan(CONV, '64 MiB', device='cpu')}\n"


@pytest.mark.parametrize(("places", "name"), [([], "with"), (["x=disk", "y=disk"], "disk")])
def test_plan_tells_what_would_change_it(places: list[str], name: str, capsys: pytest.CaptureFixture[str]) -> None:
    wide = "conv.fprop n=8 c=16 h=64 w=64 k=16 r=3 s=3 pad=1"
    given = ["plan", wide, "--budget", "4 MiB", "--device", "h200", *(["--place", *places] if places else [])]
    where = dict(word.split("=") for word in places)
    plan = ooc.plan(wide, "4 MiB", device="null", calibration="h200", places=where)
    assert main(given) == 0
    out = capsys.readouterr().out
    told = out.removeprefix(f"{plan}\n")
    assert out.startswith(f"{plan}\n") and plan.rests in out and told.startswith(f"{name} ") and told.count("\n") == 1
    if name == "with":
        faster = ooc.plan(wide, "4 MiB", device="null", calibration="h200", places={"x": "pinned", "y": "pinned"})
        assert told == f"with      x=pinned y=pinned: {faster.predicted_seconds:.4g} s\n"
    assert main([*given, "--json"]) == 0 and capsys.readouterr().out == f"{plan.to_json()}\n"


def test_a_descriptor_may_be_several_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *CONV.split(), "--budget", "64 MiB", "--device", "null"]) == 0
    assert capsys.readouterr().out.startswith(f"plan      {CONV}\n")


def test_json_is_one_line_that_reads_back(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", CONV, "--budget", "64 MiB", "--device", "null", "--json", "--place", "x=disk", "y=disk"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    plan = ooc.Plan.from_json(out)
    assert plan == ooc.plan(CONV, "64 MiB", device="null", places={"x": "disk", "y": "disk"})
    assert plan.place("x") is plan.place("y") is ooc.Place.DISK and plan.place("w") is ooc.Place.HOST


def test_steps_are_the_first_of_the_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    from ooc.schedule.lowering import lower

    arguments = ["plan", CONV, "--budget", "16 MiB", "--device", "null", "--steps", "12"]
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()[-12:]
    steps = lower(ooc.plan(CONV, "16 MiB", device="null")).steps
    assert [line.split(maxsplit=1)[1] for line in lines] == [str(step) for step in steps[:12]]
    assert main([*arguments, "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()[1:]]
    assert [(r["step"], r["lane"], r["bytes"], tuple(r["after"])) for r in rows] == [
        (i, s.lane, s.nbytes, s.after) for i, s in enumerate(steps[:12])
    ]


@pytest.mark.parametrize("command", ["plan", "predict"])
def test_names_in_capitals_are_the_same(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    for capitals, name in (["--device", "H200"], ["--device", "h200"]), (["--device", "CPU"], ["--device", "cpu"]):
        assert cli.main([command, CONV, "--budget", "1 MiB", *capitals]) == 0
        found = capsys.readouterr().out
        assert cli.main([command, CONV, "--budget", "1 MiB", *name]) == 0
        assert capsys.readouterr().out == found
    assert cli.main(["plan", CONV, "--device", "NULL", "--calibration", "P100"]) == 0
    assert cli.main(["show", "RTX4090"]) == 0


@pytest.mark.parametrize("command", [["plan"], ["predict"], ["network", "alexnet", "--batch", "2", "--policy", "keep"]])
def test_a_shipped_calibration_or_a_file_is_a_device(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """All commands that plan take the same names for a device, and say what they take."""
    work = [*command, *([CONV] if len(command) == 1 else []), "--device"]
    told = []
    for name in ("P100", str(DEVICES / "p100.json")):
        assert main([*work, name]) == 0
        told.append(capsys.readouterr().out)
    assert told[0] == told[1] and "P100" in told[0]
    assert main([*work, "tpu"]) == 2
    assert "device 'tpu': expected one of auto, cpu, cuda, null; or one that need not be here: a100" in capsys.readouterr().err


def test_plans_for_a_gpu_that_is_not_here_have_its_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    deep = "conv.fprop n=1 c=2048 h=512 w=512 k=2048 r=3 s=3 pad=1"
    for options, kernel in (([], "cudnn_winograd"), (["--tf32"], "cudnn_tf32")):
        assert main(["plan", deep, "--device", "h200", "--budget", "4 GiB", *options]) == 0
        assert f"kernel {kernel}\n" in capsys.readouterr().out
    assert main(["plan", deep, "--device", "null", "--calibration", "h200", "--budget", "4 GiB"]) == 0
    assert "kernel cudnn_winograd\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["plan", "foo.bar n=1"], "unknown operation 'foo.bar'"),
        (["plan", "conv.fprop n=1 c=one h=4 w=4 k=1 r=3 s=3"], "expected an integer, got 'one'"),
        (["plan", CONV, "--device", "tpu"], "device 'tpu'"),
        (["plan", CONV, "--device", "cuda"], "cuda"),
        (["plan", CONV, "--budget", "lots"], "budget='lots'"),
        (["plan", CONV, "--budget", "16"], "budget"),
        (["plan", CONV, "--calibration", "nowhere.json"], "nowhere.json"),
        (["plan", CONV, "--place", "q=disk"], "no operand q"),
        (["plan", CONV, "--place", "x=tape"], "one of disk, host, pinned, device"),
        (["plan", CONV, "--steps", "-1"], "expected a whole number"),
        (["plan"], "DESCRIPTOR"),
        (["plan", CONV, "--colour"], "--colour"),
        (["demo", "--size", "huge"], "--size huge"),
        (["demo", "--size", "96x8"], "at least 16 pixels"),
        (["demo", "--size", "96", "--budget", "none"], "budget='none'"),
        (["demo", "--size", "96", "--threads", "0"], "threads=0"),
        (["demo", "--size", "96", "--dir", "/nowhere/at/all"], "/nowhere/at/all"),
        (["demo", "--size", "96", "--png", "/nowhere/at/all.png"], "/nowhere/at/all.png"),
        (["solve"], "solve"),
        ([], "COMMAND"),
    ],
)
def test_mistakes_are_one_line_and_status_2(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert says in one_line(capsys.readouterr().err)


def test_version_and_help_of_the_process() -> None:
    assert command("--version").stdout == f"ooc {ooc.__version__}\n"
    shown = command("plan", "--help")
    assert shown.returncode == 0 and "80%" in shown.stdout
    failed = command("plan", "foo")
    assert (failed.returncode, failed.stdout) == (2, "") and "foo" in one_line(failed.stderr)


def test_a_closed_pipe_is_quiet() -> None:
    """The reader leaves after the first line; the plan's steps are far more than a pipe holds."""
    argv = [sys.executable, "-m", "ooc.cli", "plan", CONV, "--budget", "1 MiB", "--device", "null", "--steps", "5000"]
    given = {k: v for k, v in options({}).items() if k in ("cwd", "env", "text")}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **given) as process:  # type: ignore[call-overload]
        assert process.stdout.readline().startswith("plan ")
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(HANGS) == BROKEN_PIPE


# ---- ooc doctor


def test_doctor_without_onednn() -> None:
    found = command("doctor", OOC_ONEDNN="off", OOC_BACKEND="nonsense", OOC_DEVICE_BUDGET="lots")
    assert (found.returncode, found.stderr) == (0, "")
    assert "switched off by OOC_ONEDNN=off" in found.stdout and "-> unset OOC_ONEDNN" in found.stdout
    for what in ("ooc", "python", "cpu", "memory", "extension", "NumPy", "driver", "CuPy", "cuDNN", "disk", "direct I/O"):
        assert any(line.startswith(f"{what} ") for line in found.stdout.splitlines()), what


def test_doctor_names_libraries_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"zarr": "3.1", "h5py": "9"}

    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr("importlib.metadata.version", version)
    found = {f.what: f for f in doctor.examine()}
    assert found["formats"].found == "zarr 3.1, h5py 9" and '"ooc[remote,tiff,nifti,images]"' in found["formats"].advice
    assert found["models"].found == "none installed" and "ooc[dask]" in found["workers"].advice


def test_doctor_with_everything_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(*_: object) -> None:
        raise OSError("nothing here")

    monkeypatch.setattr("ooc.native.kernels", None)
    monkeypatch.setattr("ooc.native.reason", "the compiled extension is missing; install a C++ compiler and reinstall ooc")
    monkeypatch.setattr(doctor, "_package", missing)
    monkeypatch.setattr("ctypes.util.find_library", missing)
    monkeypatch.setattr("shutil.disk_usage", missing)
    findings = {f.what: f for f in doctor.examine(tmp_path / "nowhere")}
    assert "C++ compiler" in findings["extension"].advice
    assert "could not tell (OSError: nothing here)" in findings["NumPy"].found
    assert "could not tell" in findings["disk"].found and "could not try" in findings["direct I/O"].found
    assert doctor.show(list(findings.values())).count("\n") >= len(findings) - 1


def test_doctor_says_why_cudnn_is_not_used(tmp_path: Path) -> None:
    broken = tmp_path / "libcudnn.so.9"
    broken.write_text("not a library")
    for given, says in ((str(broken), str(broken)), ("off", "switched off by OOC_CUDNN=off")):
        found = command("doctor", OOC_CUDNN=given)
        assert (found.returncode, found.stderr) == (0, "")
        line = next(line for line in found.stdout.splitlines() if line.startswith("cuDNN "))
        assert "not used" in line and says in line
    assert any(line.startswith("CUDA device ") for line in found.stdout.splitlines())


def test_file_system_of_a_directory() -> None:
    assert doctor.file_system("/proc") in ("proc", "unknown")


# ---- interruptions


@pytest.mark.parametrize("number", swept([signal.SIGINT, signal.SIGTERM], suite=1))
def test_an_interrupted_demo_removes_its_files(number: int, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "ooc.cli", "demo", "--size", "3000", "--dir", str(tmp_path), "--png", str(tmp_path / "t.png")]
    given: Any = {k: v for k, v in options({}).items() if k in ("cwd", "env", "text")}
    given["preexec_fn"] = lambda: signal.signal(number, signal.SIG_DFL)  # what runs in the background ignores SIGINT
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **given) as process:
        until_files(process, tmp_path, "ooc-demo-*/output.npy")
        (output,) = tmp_path.glob("ooc-demo-*/output.npy")
        until(lambda: process.poll() is not None or output.stat().st_blocks * 512 > output.stat().st_size // 8)  # in the middle
        process.send_signal(number)
        _, err = process.communicate(timeout=HANGS)
    assert process.returncode == 130, err
    assert err.splitlines()[-1] == "ooc: interrupted" and "Traceback" not in err
    assert list(tmp_path.iterdir()) == []

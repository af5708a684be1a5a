"""The commands of perfmodel, through both programs: tables, JSON, plots, peers, progress, and files that mean harm."""

from __future__ import annotations

import doctest
import io
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import HANGS, until_files

import ooc
from ooc.backends.null import NullBackend
from ooc.cli import main as cli
from ooc.console import INTERRUPTED, USAGE, Command, run_program
from ooc.errors import BackendError, ShapeError, UnsupportedError
from ooc.model.calibration import DEVICES, load_device
from ooc.ops.descriptor import parse
from ooc.runtime.device import Device
from ooc.runtime.target import target
from ooc.schedule.place import Place
from perfmodel import __main__ as command
from perfmodel import commands
from perfmodel.bench import cpu as bench
from perfmodel.bench import peers
from perfmodel.calibrate.progress import CalibrationProgress
from perfmodel.problems.sets import PROBLEMS, collect, problems
from perfmodel.report import predict, show, table

ROOT = Path(__file__).parents[2]
CONV = "conv.fprop n=8 c=16 h=56 w=56 k=32 r=3 s=3 pad=1"
PNG = b"\x89PNG\r\n\x1a\n"
PROGRAMS = {"ooc": cli.main, "perfmodel": command.main}
SHIPPED: dict[str, Any] = json.loads((DEVICES / "cpu.json").read_text())


def refused(program: str, argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line with which a program refuses."""
    assert PROGRAMS[program](argv) == USAGE
    err = capsys.readouterr().err
    assert err.startswith(f"{program}: ") and err.count("\n") == 1 and err[:-1].isprintable() and len(err) < 5000
    return err


# ---- both programs


def test_the_commands_of_everyday_use_are_those_of_ooc_too() -> None:
    everyday = {name for name, entry in commands.COMMANDS.items() if entry.everyday}
    assert {"calibrate", "show", "predict", "bench"} <= everyday <= set(cli.COMMANDS)
    assert "gpu" not in cli.COMMANDS and all(cli.COMMANDS[n] is commands.COMMANDS[n] for n in everyday)


@pytest.mark.parametrize("program", PROGRAMS)
def test_both_programs_say_the_same(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert PROGRAMS[program](["show", "cpu"]) == 0
    assert capsys.readouterr().out == show.show(show.read("cpu")) + "\n"
    for argv in (["show"], ["show", "nowhere"], ["predict"], ["bench", "--peer", "cudnn"], ["calibrate", "--backend", "tpu"]):
        refused(program, argv, capsys)


def test_interruptions_and_odd_messages(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(error: BaseException) -> int:
        def run(args: object) -> int:
            raise error

        return run_program("p", "", "1", {"go": Command("", lambda parser: None, run)}, ["go"])

    assert fail(KeyboardInterrupt()) == INTERRUPTED and capsys.readouterr().err == "p: interrupted\n"
    assert fail(ShapeError("a\x1b[31m\nb\udc80")) == USAGE and capsys.readouterr().err == "p: a?[31m b?\n"
    assert fail(ValueError("x" * 10**6)) == USAGE and len(capsys.readouterr().err) < 5000


def test_ctrl_c_and_a_closed_pipe_in_a_process_of_its_own(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-m", "perfmodel", "show", "cpu"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, cwd=ROOT) as process:
        assert process.stdout and process.stderr
        process.stdout.close()
        assert process.stderr.read() == b"" and process.wait(HANGS) == 141
    argv = [sys.executable, "-m", "ooc.cli", "bench", "--mib", "400", "--dir", str(tmp_path)]
    heeds: Any = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}  # also in the background
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, cwd=ROOT, **heeds) as process:
        until_files(process, tmp_path, "*/*")  # one in its folder
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=HANGS)
    assert (err, process.returncode, list(tmp_path.iterdir())) == (b"ooc: interrupted\n", INTERRUPTED, [])


# ---- show


@pytest.mark.parametrize("name", ["cpu", "h200"])
def test_show_tells_what_the_calibration_says(name: str) -> None:
    raw, lines = json.loads((DEVICES / f"{name}.json").read_text()), show.show(show.read(name)).splitlines()
    for key in ("name", "source", "date"):
        assert any(line.split(None, 1) == [key, raw[key]] for line in lines)
    rows = {line.split()[0]: line for line in reversed(lines) if line.strip()}  # the first table has the copies
    assert {"read", "h2d", "d2h", "write", *raw["computes"]} <= rows.keys()
    copy = load_device(name).copies["h2d"]
    assert f"{(64 << 20) / float(copy.seconds(64 << 20)) / 1e9:.3g}" in rows["h2d"].split()
    fitted = f"{raw['fit_error']['h2d']:.1%}" if "fit_error" in raw and "h2d" in raw["fit_error"] else "-"
    assert rows["h2d"].split()[-1] == fitted


def test_show_tells_of_errors_pinning_memory_and_contention(tmp_path: Path) -> None:
    path = written(tmp_path, {
        "memory_bytes": 8 << 30, "register": SHIPPED["copies"]["h2d"], "contention": {"compute": {"h2d": 0.25}},
        "computes": {"*/*/*": SHIPPED["computes"]["*/*/*"]}, "fit_error": {"*/*/*": 0.5},
        "origins": {"computes": "assumed", "register": "datasheet", "contention": "assumed"},
    })  # fmt: skip
    lines = [line.split() for line in show.show(show.read(path)).splitlines()]
    assert ["memory", "8", "GiB"] in lines and ["compute", "25%"] in lines
    assert next(line for line in lines if line[:1] == ["pinning"])[-2:] == ["datasheet", "-"]
    assert next(line for line in lines if line[:1] == ["*/*/*"])[-2:] == ["assumed", "50.0%"]
    assert next(line for line in lines if line[:1] == ["contention"])[-1] == "(assumed)"
    assert next(line for line in lines if line[:1] == ["read"])[-2] == "measured"


@pytest.mark.parametrize("name", ["cpu", "h200"])
def test_plots(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    assert command.main(["show", name, "--plot", str(tmp_path / "it.png")]) == 0
    assert (tmp_path / "it.png").read_bytes()[:8] == PNG
    assert str(tmp_path) in refused("perfmodel", ["show", name, "--plot", str(tmp_path)], capsys)


def test_the_roofline_is_that_of_the_calibration() -> None:
    from perfmodel.report.plots import best_kernel, layers_of

    model = load_device("h200")
    assert best_kernel(model) is model.compute("conv.fprop/f32/null")
    found = list(layers_of(model))
    assert len(found) == len(problems("vgg16"))
    for layer in found:
        assert 0 < layer.from_files <= layer.from_host <= layer.in_core <= best_kernel(model).flops_per_second / 1e9
        link = max(model.copies[lane].bytes_per_second for lane in ("h2d", "d2h"))
        assert layer.from_host <= layer.intensity * link / 1e9 * 1.001


def test_without_matplotlib_plots_say_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert "pip install matplotlib" in refused("ooc", ["show", "cpu", "--plot", str(tmp_path / "a.png")], capsys)


# ---- files that mean harm


def written(folder: Path, changes: dict[str, Any], name: str = "bad.json") -> Path:
    """A calibration as shipped but for some entries."""
    path = folder / name
    path.write_text(json.dumps({**SHIPPED, **changes}))
    return path


def lane(**fields: Any) -> dict[str, Any]:
    return {"copies": {**SHIPPED["copies"], "h2d": {**SHIPPED["copies"]["h2d"], **fields}}}


DEEP = "[" * 400 + "]" * 400
CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "copies of a list": ({"copies": []}, "copies"),
    "no copies": ({"copies": None}, "copies"),
    "a lane missing": ({"copies": {"h2d": SHIPPED["copies"]["h2d"]}}, "read"),
    "an unknown lane": ({"copies": {**SHIPPED["copies"], "si\x1bde" * 9999: {}}}, "copies"),
    "a lane of text": ({"copies": {**SHIPPED["copies"], "h2d": "fast"}}, "copies.h2d"),
    "NaN": (lane(bytes_per_second=math.nan), "copies.h2d.bytes_per_second"),
    "infinity": (lane(bytes_per_second=math.inf), "copies.h2d.bytes_per_second"),
    "a negative rate": (lane(bytes_per_second=-1.0), "copies.h2d.bytes_per_second"),
    "a negative latency": (lane(latency_seconds=-1e-6), "copies.h2d.latency_seconds"),
    "a huge integer": (lane(bytes_per_second=10**4000), "copies.h2d.bytes_per_second"),
    "a rate of true": (lane(bytes_per_second=True), "copies.h2d.bytes_per_second"),
    "a rate of text": (lane(bytes_per_second="1e9"), "copies.h2d.bytes_per_second"),
    "a rate of lists": (lane(bytes_per_second=json.loads(DEEP)), "copies.h2d.bytes_per_second"),
    "no rate": (lane(bytes_per_second=None), "copies.h2d.bytes_per_second"),
    "computes of text": ({"computes": "all"}, "computes"),
    "no kernel for the rest": ({"computes": {}}, "*/*/*"),
    "a key of one word": ({"computes": {"conv": {}}}, "computes.'conv'"),
    "a key that steers": ({"computes": {"a/\x1b[2J/c": {}}}, "computes"),
    "a kernel without rates": ({"computes": {"*/*/*": {}}}, "*/*/*.latency_seconds"),
    "threads that never wake": ({"handoff_seconds": 2.0}, "handoff_seconds"),
    "threads of text": ({"handoff_seconds": "soon"}, "handoff_seconds"),
    "contention of a lane": ({"contention": {"side": {}}}, "contention.side"),
    "contention above 1": ({"contention": {"compute": {"h2d": 1.5}}}, "contention.compute.h2d"),
    "contention of a list": ({"contention": {"compute": []}}, "contention.compute"),
    "a name that steers": ({"name": "cpu\x1b[2J"}, "name"),
    "a name of two lines": ({"name": "cpu\ncpu"}, "name"),
    "a name of a number": ({"name": 7}, "name"),
    "memory of less than nothing": ({"memory_bytes": -1}, "memory_bytes"),
    "pinning of text": ({"register": "slow"}, "register"),
}
ONLY_SHOWN: dict[str, tuple[dict[str, Any], str]] = {
    "a date of a list": ({"date": []}, "date"),
    "a date that steers": ({"date": "\x07"}, "date"),
    "a system of text": ({"system": "mine"}, "system"),
    "a system that steers": ({"system": {"processor": "\x1b[2J"}}, "system.processor"),
    "a huge system": ({"system": {"threads": 10**1000}}, "system.threads"),
    "origins of nothing": ({"origins": {"copies.disk": "assumed"}}, "origins.copies.disk"),
    "an origin that is none": ({"origins": {"copies": "guessed"}}, "origins.copies"),
    "errors of text": ({"fit_error": "small"}, "fit_error"),
    "an error of NaN": ({"fit_error": {"h2d": math.nan}}, "fit_error.h2d"),
    "an error of text": ({"fit_error": {"h2d": "small"}}, "fit_error.h2d"),
}


@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("argv", [["show"], ["predict", CONV, "--device"]], ids=["show", "predict"])
def test_wrong_fields_are_named(argv: list[str], how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes, field = CHANGES[how]
    said = refused("ooc", [*argv, str(written(tmp_path, changes))], capsys)
    assert "bad.json" in said and field in said


@pytest.mark.parametrize("how", ONLY_SHOWN)
def test_wrong_fields_that_only_show_reads(how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes, field = ONLY_SHOWN[how]
    said = refused("perfmodel", ["show", str(written(tmp_path, changes))], capsys)
    assert "bad.json" in said and field in said


def hostile_files(folder: Path, end: str) -> list[Path]:
    """Paths of which none can be read as what its end says."""
    contents = {
        "empty": b"", "cut": json.dumps(SHIPPED).encode()[:500], "binary": bytes(range(256)) * 40, "long": b" " * (20 << 20),
        "deep": b"[" * 200_000, "null": b"null", "number": b"9" * 5000, "twice": json.dumps(SHIPPED).encode() * 2,
        "mark": b"\xef\xbb\xbf{}",
    }  # fmt: skip
    for name, content in contents.items():
        (folder / f"{name}{end}").write_bytes(content)
    (folder / f"folder{end}").mkdir()
    (folder / f"loop{end}").symlink_to(folder / f"loop{end}")
    (folder / f"gone{end}").symlink_to(folder / "nothing")
    os.mkfifo(folder / f"pipe{end}")
    return [*sorted(folder.iterdir()), folder / f"missing{end}", Path(f"/dev/null/x{end}"), Path(f"{'x' * 5000}{end}")]


@pytest.mark.parametrize("argv", [["show"], ["predict", CONV, "--device"]], ids=["show", "predict"])
def test_files_that_are_no_calibrations(argv: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in hostile_files(tmp_path, ".json"):
        assert path.name[:50] in refused("perfmodel", [*argv, str(path)], capsys)
    for name in ("", ".", "..", "/", "cpu\0.json", "../devices/none", "\x1b"):
        refused("perfmodel", [*argv, name], capsys)


@pytest.mark.parametrize("argv", [["predict"], ["bench", "--mib", "1"]], ids=["predict", "bench"])
def test_files_that_are_no_problems(argv: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in hostile_files(tmp_path, ".txt"):
        assert path.name[:50] in refused("perfmodel", [argv[0], str(path), *argv[1:]], capsys)


def test_the_line_of_a_wrong_descriptor_is_named(tmp_path: Path) -> None:
    path = tmp_path / "some.txt"
    path.write_text(f"# comment\n\n{CONV}\nconv.fprop n=0\n")
    with pytest.raises(ShapeError, match=r"some\.txt:4: "):
        problems(str(path))


# ---- predict


def predicted(capsys: pytest.CaptureFixture[str], *argv: str) -> list[dict[str, Any]]:
    assert cli.main(["predict", *argv, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_predict_gives_the_plans_of_the_library(capsys: pytest.CaptureFixture[str]) -> None:
    row, total = predicted(capsys, *CONV.split(), "--device", "cpu", "--budget", "256 KiB")
    plan = ooc.plan(CONV, "256 KiB", device="cpu")
    assert ooc.Plan.from_json(json.dumps(row["plans"][0])) == plan
    assert row["predicted_seconds"] == plan.predicted_seconds and row["tiles"] == plan.tiles == total["problems"] * plan.tiles
    assert row["peak_bytes"] == plan.peak_bytes <= 256 << 10 and row["lane_bytes"] == plan.lane_bytes
    assert row["binds"] in plan.binds and total["budget_bytes"] == 256 << 10 and total["source"] == "measured"
    assert all(row["lane_bytes"][lane] >= n for lane, n in row["compulsory_bytes"].items())
    assert total["predicted_seconds"] == row["predicted_seconds"] and total["share_of_bound"] == row["share_of_bound"]


def test_predict_prints_a_row_per_problem(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["predict", "vgg16", CONV, "--device", "cpu", "--budget", "64 MiB", "--place", "x=disk", "y=disk"]) == 0
    lines = capsys.readouterr().out.splitlines()
    count = len(problems("vgg16")) + 1
    for column in ("predicted", "GFLOP/s", "binds", "bound", "reached", "tiles", "peak", "read x", "write x"):
        assert column in lines[0]
    assert lines[count].startswith(CONV) and lines[count + 1] == ""
    assert lines[count + 2].startswith("total ") and f"{count} problems" in lines[count + 2]
    assert lines[count + 3].split()[:3] == ["budget", "64", "MiB"] and lines[count + 4].endswith("; measured")


@pytest.mark.parametrize(
    ("places", "names"),
    [([], ["rests", "with"]), (["x=disk", "y=disk"], ["rests", "disk"]), (["x=pinned", "w=pinned", "y=pinned"], ["rests"])],
)
def test_predict_says_what_it_rests_on(places: list[str], names: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    given = [
        CONV,
        CONV.replace("n=8", "n=4"),
        "--device",
        "rtx4090",
        "--budget",
        "4 MiB",
        *(["--place", *places] if places else []),
    ]
    assert command.main(["predict", *given]) == 0
    lines = capsys.readouterr().out.splitlines()
    about = next(i for i, line in enumerate(lines) if line.startswith("calibration "))
    assert [line.split()[0] for line in lines[about + 1 :]] == [*names, "columns"]
    total = predicted(capsys, *given)[-1]
    for name in names:
        line = next(line for line in lines if line.startswith(f"{name} "))
        assert line.endswith(total["rests_on" if name == "rests" else name])
    if "with" in names:
        seconds = predicted(capsys, *given, "--place", "x=pinned", "y=pinned", "w=host")[-1]["predicted_seconds"]
        assert total["with"] == f"x=pinned y=pinned: {table.show_seconds(seconds)}"


def test_predict_of_what_was_measured_rests_on_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    total = predicted(capsys, CONV, "--device", "cpu", "--budget", "1 MiB")[-1]
    assert not total.keys() & {"rests_on", "with", "disk"}


def test_predict_with_another_batch(capsys: pytest.CaptureFixture[str]) -> None:
    backward = str(problems("vgg16_backward")[-1])
    given = ["--device", "h200", "--budget", "1 GiB"]
    *rows, total = predicted(capsys, CONV, backward, "--n", "3", *given)
    wanted = [CONV.replace("n=8", "n=3"), backward.replace("n=1", "n=3")]
    assert [row["problem"].removesuffix(" dtype=f32") for row in rows] == [t.removesuffix(" dtype=f32") for t in wanted]
    assert predicted(capsys, *wanted, *given) == [*rows, total]


def test_predict_says_what_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    large, given = "pool.max n=1 k=1 h=512 w=512 window=512 stride=512", ["--device", "h200", "--budget", "256 KiB"]
    assert command.main(["predict", CONV, large, *given]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[1].startswith(CONV) and rows[2].startswith(f"{large}  does not fit: needs 1 MiB (")
    assert "1 problem, 1 more not planned: " in rows[4]
    first, second, total = predicted(capsys, CONV, large, *given)
    assert first["predicted_seconds"] == total["predicted_seconds"] and total["refused"] == 1
    assert second["smallest_bytes"] >= 1 << 20 and "Raise budget=" in second["error"]
    assert "Raise --budget" in refused("ooc", ["predict", large, *given], capsys)
    assert command.main(["predict", large, large, *given]) == 0
    assert "0 problems, 2 more not planned" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["foo"], "unknown operation 'foo'"),
        (["conv.fprop n=1"], "expected"),
        ([CONV.replace("n=8", "n=0")], "n must be at least 1"),
        ([CONV.replace("n=8", "n=" + "9" * 30)], "2^60"),
        ([CONV.replace("n=8", "n=" + "9" * 5000)], "expected an integer"),
        ([CONV.replace("h=56", "h=1").replace("pad=1", "pad=0")], "does not fit extents"),
        ([""], "unknown operation"),
        ([CONV, "--n", "0"], "n must be at least 1"),
        ([CONV, "--n", "many"], "--n/--batch: expected a whole number, got 'many'"),
        (["vgg16", "--n", "9" * 30], "2^60"),
        ([CONV, "--device", "tpu"], "device 'tpu'"),
        ([CONV, "--budget", "lots"], "budget='lots'"),
        ([CONV, "--place", "q=disk"], "no operand q"),
        ([CONV, "--place", "x=tape"], "NAME=PLACE"),
        (["nothing.txt"], "nothing.txt"),
    ],
)
def test_mistakes_of_predict(argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in refused("ooc", ["predict", *argv], capsys)


def test_a_described_device_has_its_memory_and_its_best_kernels(tmp_path: Path) -> None:
    path = written(tmp_path, {"memory_bytes": 1 << 30}, "own.json")
    assert predict.budgeted(target(str(path)), None).device_bytes == int(0.9 * (1 << 30))
    assert predict.budgeted(target(str(path)), "50%").device_bytes == 1 << 29
    device = predict.budgeted(target("h200"), "1 GiB")
    assert device.backend.name == "null" and device.device_bytes == 1 << 30
    known = [c for k, c in device.model.computes.items() if k.startswith("conv.fprop/f32/") and "tf32" not in k]
    fastest = device.model.compute("conv.fprop/f32/null")
    assert all(fastest.seconds(1e9, 1e7) <= c.seconds(1e9, 1e7) for c in known if c.flops_per_second > 2e13)
    assert predict.budgeted(target("cpu"), None).backend.name == "cpu"


def test_the_bound_is_the_slowest_of_what_must_happen() -> None:
    op, device = parse(CONV), Device(NullBackend(), load_device("h200"), 64 << 20)
    kernel, host = device.model.compute("conv.fprop/f32/null"), dict.fromkeys("xwy", Place.HOST)
    seconds = kernel.at_best(op.effort(op.dims), op.touched_bytes(op.dims))
    x, w, y = (o.nbytes for o in op.operands)
    bound = device.planner.bound(op, host)
    assert bound.lane_bytes == {"read": x + w, "h2d": x + w, "d2h": y, "write": y}
    copies = [n / device.model.copies[lane].bytes_per_second for lane, n in bound.lane_bytes.items()]
    assert bound.seconds == max(seconds, *copies) and bound.by == "write"
    held = device.planner.bound(op, dict.fromkeys("xwy", Place.DEVICE))
    assert held == (pytest.approx(float(seconds)), "compute", {})


def test_examples_of_the_tables() -> None:
    assert doctest.testmod(table).failed == 0 and doctest.testmod(table).attempted >= 2


def test_words_of_a_command_line() -> None:
    assert collect([*CONV.split(), CONV]) == [parse(CONV)] * 2
    assert collect(["vgg16", "unet3d"]) == problems("vgg16") + problems(str(PROBLEMS / "unet3d.txt"))


# ---- bench


def test_bench_of_several_files_and_peers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    backward = (PROBLEMS / "vgg16_backward.txt").read_text().splitlines()[-1]
    for name, text in (("one", CONV), ("two", backward)):
        (tmp_path / f"{name}.txt").write_text(text + "\n")
    files = [str(tmp_path / f"{name}.txt") for name in ("one", "two")]
    given = ["--peer", "naive,pinned,naive", "--mib", "8", "--ratio", "2", "--rounds", "1", "--dir", str(tmp_path)]
    assert cli.main(["bench", *files, *given, "--out", str(tmp_path / "rows.jsonl")]) == 0
    printed = capsys.readouterr().out
    header, overhead, peak, *rows = map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())
    assert (
        header["system"]["threads"] >= 1
        and peak["peak_gflops"] > 0
        and overhead["steps"] > 0
        and [r["set"] for r in rows] == files
    )
    for row in rows:
        assert list(row["seconds"]) == ["memory", "ooc", "naive", "pinned"]
        for name in ("memory", "naive", "pinned"):
            ratio = row["seconds"]["ooc"] / row["seconds"][name]
            assert row[f"ooc_over_{name}"] == pytest.approx(ratio) and f"ooc/{name} {ratio:.2f}" in printed
        assert row["ooc_over_bound"] == pytest.approx(row["seconds"]["ooc"] / row["bound_seconds"])
        assert row["peak_bytes"] <= row["budget_bytes"]


def test_bench_with_pytorch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    (tmp_path / "one.txt").write_text(CONV)
    assert command.main(["bench", str(tmp_path / "one.txt"), "--peer", "torch", "--mib", "8", "--rounds", "1"]) == 0
    assert "ooc/torch " in capsys.readouterr().out


def test_every_contestant_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(peers.PEERS, "naive", lambda work: lambda: work.outs)
    with pytest.raises(BackendError, match="y of naive differs"):
        list(bench.bench([parse(CONV)], 4 << 20, 4, 1, ["naive"], str(tmp_path), print))


@pytest.mark.parametrize("peer", ["naive", "pinned"])
def test_peers_run_the_same_tiles_one_step_after_the_other(peer: str) -> None:
    op, numbers = parse(CONV), np.random.default_rng(0)
    inputs = {o.name: numbers.standard_normal(o.shape, np.float32) for o in op.inputs}
    outs = {o.name: np.empty(o.shape, np.float32) for o in op.outputs}
    with ooc.device("cpu", 1 << 20):
        wanted = ooc.conv(inputs["x"], inputs["w"], padding=1)
        planned = ooc.last_report().plans  # type: ignore[union-attr]
    before = threading.active_count()
    seen: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ooc.runtime.machine.Machine.perform", watching(seen))
        made = peers.PEERS[peer](peers.PeerWork(op, 1 << 20, inputs, inputs, outs))()
    assert set(seen) == {before}
    np.testing.assert_allclose(made["y"], wanted, rtol=1e-4, atol=1e-4)
    (part,) = ooc.last_report().parts  # type: ignore[union-attr]
    plan = part.schedule.plan
    assert (plan.tile, plan.order, plan.depth, plan.staged) == (planned[0].tile, planned[0].order, 1, peer == "pinned")
    assert plan.tiles > 1 and ("read" in part.lane_bytes) is (peer == "pinned")
    times = list(zip(part.measured.starts, part.measured.ends, strict=True))
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(times))


def watching(seen: list[int]) -> Callable[[Any, Any], None]:
    from ooc.runtime.machine import Machine

    perform = Machine.perform

    def watched(self: Machine, step: Any) -> None:
        seen.append(threading.active_count())
        perform(self, step)

    return watched


def test_peers_say_what_they_cannot_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ShapeError, match="--peer cudnn"):
        peers.chosen("torch,cudnn")
    assert peers.chosen("") == [] and peers.chosen(" pinned, naive,pinned") == ["pinned", "naive"]
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UnsupportedError, match="pip install torch"):
        peers.PEERS["torch"](peers.PeerWork(parse(CONV), 1, {}, {}, {}))


def test_the_bench_of_the_makefile_is_understood() -> None:
    told = (ROOT / "Makefile").read_text()
    assert "-m perfmodel bench vgg16 resnet50 unet3d mobilenet $$how --peer torch" in told and 'for how in "" --backward' in told


# ---- progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_in_a_log_is_lines() -> None:
    log = io.StringIO()
    with CalibrationProgress(2, log) as progress:
        for text in ("copies", "kernels", "more than announced"):
            progress.step(text)
    lines = log.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["[1/2]", "[2/2]", "[3/3]"] and lines[0].endswith("copies")
    log = io.StringIO()
    CalibrationProgress(None, log).step("copies")
    assert log.getvalue().startswith("[1] ")


def test_progress_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tqdm")
    shown = Terminal()
    with CalibrationProgress(2, shown) as progress:
        progress.step("copies")
        progress.step("kernels")
    assert "copies" in shown.getvalue() and "2/2" in shown.getvalue()
    monkeypatch.setitem(sys.modules, "tqdm", None)
    plain = Terminal()
    with CalibrationProgress(2, plain) as progress:
        progress.step("copies")
        progress.step("k")
    assert plain.getvalue().count("\r[") == 2 and plain.getvalue().endswith("\n")
    with pytest.raises(KeyboardInterrupt), CalibrationProgress(2, plain) as progress:
        progress.step("copies")
        raise KeyboardInterrupt


def test_calibrate_announces_its_steps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def calibrate(threads: int | None, directory: str | None, say: Callable[[str], None], quick: bool) -> dict[str, Any]:
        say("copies: h2d")
        return SHIPPED

    monkeypatch.setattr("perfmodel.calibrate.cpu.calibrate_cpu", calibrate)
    assert cli.main(["calibrate", "--out", str(tmp_path / "cpu.json")]) == 0
    out, err = capsys.readouterr()
    assert err.startswith("[1/") and "copies: h2d" in err and "worst median fit error" in out
    assert replace(load_device(tmp_path / "cpu.json")) == load_device("cpu")

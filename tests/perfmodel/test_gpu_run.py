"""`python -m perfmodel gpu` as far as it goes without a GPU: on the emulated device, and its handling of files and time."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from emulated_device import measure_small
from emulated_driver import on_one_device
from sweeps import swept
from waiting import HANGS

from ooc.backends.choice import cuda_driver
from ooc.errors import UnsupportedError
from ooc.model.calibration import load_device
from perfmodel.bench.gpu import machine, probe
from perfmodel.bench.gpu import rows as files
from perfmodel.bench.gpu import run as gpu
from perfmodel.bench.gpu.bench import bench_gpu
from perfmodel.bench.gpu.networks import TINY, bench_networks
from perfmodel.bench.gpu.problem import WORKLOADS, Arrays
from perfmodel.bench.torch_steps import PEERS


def head() -> dict[str, Any]:
    """Of rows that are measured now: the sources may be edited while the suite runs."""
    return {"system": {"gpu": "emulated", "sources": machine.sources()}}


def test_without_a_gpu(tmp_path: Path) -> None:
    if cuda_driver():
        pytest.skip("this machine has a CUDA driver")
    done = subprocess.run([sys.executable, "-m", "perfmodel", "gpu", "--out", str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and done.stderr.startswith(("perfmodel: device 'cuda': ", "perfmodel: missing: "))
    assert not list(tmp_path.iterdir())


def test_a_part_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="no part speed; expected some of first, probe, rows, tests, sanitize, calibrate, networks, "
    ):
        gpu.run_gpu(tmp_path, ["tests", "speed"], 1)


@pytest.mark.parametrize("text", ["", "garbage", "a, b", "No devices were found"])
def test_an_answer_of_nvidia_smi_that_says_nothing(text: str) -> None:
    assert machine.nvidia_smi(text) == {}


def test_the_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = "NVIDIA H200, 580.159.04, 5, [N/A], 16, 16, 1980, 143771\nNVIDIA H200, 580, 5, 5, 16, 16, 1980, 143771\n"
    found = machine.nvidia_smi(answer)
    assert found["name"] == "NVIDIA H200" and found["pcie.link.gen.current"] == 5 and found["memory.total"] == 143771
    assert "pcie.link.gen.max" not in found
    head = machine.header({"gpu": "emulated", "driver": 0})["system"]
    assert {"gpu", "driver", "cudnn", "torch", "python", "commit", "sources", "date"} <= head.keys()
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "none"))
    assert machine.commit() == "unknown"


def test_rows_are_kept_for_the_same_sources_only(tmp_path: Path) -> None:
    path = tmp_path / "bench.jsonl"
    file = files.Rows(path, head())
    file.add({"key": "a"})
    file.add({"key": "b", "error": "out of memory"})
    assert not files.complete(path)
    with path.open("a") as file:
        file.write('{"key": "cut of')
    again = files.Rows(path, head())
    assert again.has("a") and not again.has("b") and not again.has("c")
    again.add({"done": "bench", "cut_off": True})
    assert not files.complete(path)  # its time came to an end, not the part
    again.add({"done": "bench"})
    assert files.complete(path) and len(files.read_rows(path)) == 5
    assert files.Rows(path, {"system": {"sources": "others"}}).rows == []
    assert not files.complete(path)


def test_a_part_that_is_cut_off_keeps_its_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = f"""
import sys, time
sys.path.insert(0, {str(gpu.ROOT)!r})
from pathlib import Path
from perfmodel.bench.gpu import run as gpu
from perfmodel.bench.gpu.rows import Rows
rows = Rows(Path(sys.argv[2]) / gpu.FILES[sys.argv[1]], {head()!r})
rows.add({{"key": "measured"}})
while sys.argv[1] != "tests":  # until it is stopped
    time.sleep(1)
rows.add({{"done": sys.argv[1]}})
"""
    said: list[str] = []
    monkeypatch.setattr(gpu, "GRACE_SECONDS", 0.0)
    failed, seconds, bench = ["tests"], 3.0, tmp_path / "bench.jsonl"
    while "tests" in failed or files.read_rows(bench)[-1:] != [{"key": "measured"}]:
        seconds *= 2  # a machine on which processes are slow to start gets more
        assert seconds < HANGS
        end = time.perf_counter() + seconds
        failed = gpu.run_parts(["tests", "bench"], tmp_path, end, False, said.append, [sys.executable, "-c", code])
    assert failed == ["bench"]
    assert files.complete(tmp_path / "tests.jsonl") and not files.complete(bench)
    assert any("bench: 2 lines, not complete (stopped)" in text for text in said)


def test_complete_parts_are_skipped_unless_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[list[str], bool]] = []
    monkeypatch.setattr(gpu, "_check_device", lambda: None)
    monkeypatch.setattr(gpu, "_check_packages", lambda: None)
    monkeypatch.setattr(gpu, "_limited", lambda *given: (0, ""))
    monkeypatch.setattr(gpu, "run_parts", lambda parts, out, end, fresh, say: ran.append((parts, fresh)) or [])
    files.Rows(tmp_path / "tests.jsonl", head()).add({"done": "tests"})
    assert gpu.run_gpu(tmp_path, [], 0.5, print) == 0
    assert gpu.run_gpu(tmp_path, ["bench", "tests"], 0.5, print) == 0
    assert ran == [([part for part in gpu.PARTS if part != "tests"], False), (["tests", "bench"], True)]


def assert_complete(row: dict[str, Any]) -> None:
    """A contestant's row: without an error, within its budget, with its bound and what it moved."""
    assert "error" not in row, row["error"]
    assert row["seconds"]["min"] <= row["seconds"]["median"] <= row["seconds"]["max"]
    assert row["predicted_seconds"] > 0 and row["plans"] and row["cap"]
    assert row["fallbacks"] == 0 and "cuda" not in row["algorithms"]
    if row["contestant"] != "in_core":
        assert row["peak_bytes"] <= row["budget_bytes"] and row["moved_over_compulsory"] > 0.99
        assert 0 < row["bound_seconds"] < math.inf and row["share_of_bound"] > 0 and row["slowdown_vs_in_core"] > 0
    else:
        assert sum(row["moved_bytes"].values()) == 0


def assert_networks(folder: Path) -> None:
    """Rows of whole networks: right, within their budgets, with what their kernels took."""
    steps = [r for r in files.read_rows(folder / "networks.jsonl") if "contestant" in r]
    assert {"keep", "auto", "vdnn_all", "pooch"} <= {r["contestant"] for r in steps}
    volumes = [r for r in files.read_rows(folder / "volume.jsonl") if "key" in r]
    assert {r["tf32"] for r in volumes} == {True, False}
    micro = [r for r in files.read_rows(folder / "micro.jsonl") if "contestant" in r]
    assert {"in_core", "ooc_pinned", "copy_all"} <= {r["contestant"] for r in micro} and len({r["workload"] for r in micro}) == 5
    for row in (*steps, *volumes, *micro):
        assert "error" not in row, row
    for row in (*steps, *volumes):
        assert row["right"], row
        if not row.get("contestant", "").startswith("torch"):
            assert all(seconds > 0 for _, seconds, _ in row["kernels"].values()) and row["predicted_seconds"] > 0
            assert row["peak_bytes"] <= (row["budget_bytes"] or math.inf)


@pytest.mark.slow
def test_the_whole_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every part on the emulated device, in tiny sizes; a part that is begun again measures nothing twice."""
    on = on_one_device()
    monkeypatch.setenv("OOC_TINY", "1")
    monkeypatch.setattr(gpu, "SHARD", 1000)
    monkeypatch.setattr(probe, "MIB", 1 << 14)  # of random numbers
    measure_small(monkeypatch)
    monkeypatch.setattr("perfmodel.bench.gpu.bench.WORKLOADS", [w for w in WORKLOADS if w.name in ("W1", "W4")])
    for part in gpu.SHARES:
        gpu.run_part(part, tmp_path, HANGS, False, on)
        assert files.complete(tmp_path / gpu.FILES[part]), part
    looks = files.read_rows(tmp_path / "first.jsonl")[1:-1]
    assert not [r for r in looks if "error" in r or r.get("right") is False]
    kinds = {r["key"].split()[0] for r in looks}
    assert {"right", "link", "duplex", "rows", "cudnn", "kernel", "tiles"} <= kinds
    model = load_device(tmp_path / "emulated.json")
    assert model.name == "emulated"
    measured = [r for r in files.read_rows(tmp_path / "bench.jsonl") if "contestant" in r]
    assert {r["workload"] for r in measured} == {"W1", "W4"}
    for row in measured:
        assert_complete(row)
    decisive = [r for r in files.read_rows(tmp_path / "rows.jsonl") if "contestant" in r]
    assert {r["contestant"] for r in decisive} == {"in_core", "ooc_pinned"} and {r["workload"] for r in decisive} == {"W1"}
    assert_networks(tmp_path)
    probed = files.read_rows(tmp_path / "probe.jsonl")[1:-1]
    assert not [r for r in probed if "error" in r], [r for r in probed if "error" in r]
    wanted = [r for r in probed if r["key"].startswith("algorithms conv.fprop") and "tf32 channels_first" in r["key"]]
    assert {m["beyond_operands"] for r in wanted for m in r["measured"] if m["algorithm"] == 1} == {147}
    predicted = {r["key"]: r["predicted_seconds"] for r in measured}
    monkeypatch.setattr("perfmodel.bench.gpu.bench.WORKLOADS", WORKLOADS[:1])
    shipped = {
        r["key"]: r["predicted_seconds"]
        for r in bench_gpu(lambda tf32: Arrays(on(tf32)), print, rounds=1, tiny=True, seconds=HANGS, directory=str(tmp_path))
        if "contestant" in r
    }
    assert shipped.keys() == {r["key"] for r in measured if r["workload"] == WORKLOADS[0].name}
    assert all(predicted[key] != seconds for key, seconds in shipped.items())
    again = tmp_path / "again"
    gpu._take_over(tmp_path, again)
    gpu.run_part("first", again, HANGS, False, on)
    assert files.read_rows(again / "first.jsonl")[1:-1] == looks


def test_a_device_that_is_spoilt_fails_what_follows_in_its_process_alone(tmp_path: Path) -> None:
    """What died is not tried again, what came after it is."""
    code = f"""
import os, sys
sys.path.insert(0, {str(gpu.ROOT)!r})
from pathlib import Path
from perfmodel.bench.gpu.rows import Rows
rows = Rows(Path(sys.argv[2]) / "first.jsonl", {head()!r}, sys.argv[4] == "1" and sys.argv[5] == "0")
if sys.argv[5] != "0":
    rows.tried = {{r["key"] for r in rows.rows if "error" in r}}
for key in "abcd":
    if rows.has(key):
        continue
    rows.add({{"key": key, **({{"error": "spoilt"}} if key in "bc" else {{}})}})
    if key in "bc":
        os._exit(3)
rows.add({{"done": "first"}})
"""
    said: list[str] = []
    gpu.run_parts(["first"], tmp_path, time.perf_counter() + HANGS, True, said.append, [sys.executable, "-c", code])
    found = files.read_rows(tmp_path / "first.jsonl")
    assert [r.get("key") for r in found[1:]] == ["a", "b", "c", "d", None] and files.complete(tmp_path / "first.jsonl")
    assert any("wrong or refused: b, c" in text for text in said)


def test_what_is_missing_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "NEEDED", ("numpy", "no_such_package"))
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UnsupportedError, match="missing: no_such_package, a C\\+\\+ compiler; install them for"):
        gpu._check_packages()


def test_the_gpu_tests_are_found(tmp_path: Path) -> None:
    """With the project's own options for pytest, which decide what it prints of a collection."""
    names = gpu._collected(files.Rows(tmp_path / "tests.jsonl", head()), time.perf_counter() + HANGS)
    assert len(names) == len(set(names)) > 300 and all("test_gpu.py::" in name for name in names)


def test_no_gpu_tests_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "PYTEST", (*gpu.PYTEST, "-k", "no_such_test"))
    rows = files.Rows(tmp_path / "tests.jsonl", head())
    with pytest.raises(ValueError, match="no GPU tests"):
        gpu._collected(rows, time.perf_counter() + HANGS)
    assert rows.rows[0]["status"] == 5  # pytest: nothing was collected


def test_lines_of_tests(tmp_path: Path) -> None:
    """The plugin writes a test's line when it is over, failures with their text."""
    (tmp_path / "test_it.py").write_text(
        "import pytest\ndef test_a(): pass\ndef test_b(): assert 1 == 2\n@pytest.mark.skip(reason='why')\ndef test_c(): pass\n"
    )
    path = tmp_path / "tests.jsonl"
    command = [sys.executable, "-m", "pytest", "-p", "perfmodel.bench.gpu.report", "-p", "no:cacheprovider", str(tmp_path)]
    gpu._limited(command, HANGS, {"OOC_GPU_ROWS": str(path), "PYTHONPATH": str(gpu.ROOT)})
    rows = files.read_rows(path)
    assert [r["outcome"] for r in rows] == ["passed", "failed", "skipped"]
    assert "assert 1 == 2" in rows[1]["text"] and "why" in rows[2]["text"]


@pytest.mark.slow
@pytest.mark.parametrize("which", ("some", "all"))
def test_a_tiny_benchmark(which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every workload, right at sampled places, gives complete rows. The whole script runs two others."""
    say: list[str] = []
    names = {w.name for w in WORKLOADS if which == "all" or w.name == "W3"}
    monkeypatch.setattr("perfmodel.bench.gpu.bench.WORKLOADS", [w for w in WORKLOADS if w.name in names])
    once: Any = {"rounds": 1, "tiny": True, "seconds": HANGS, "directory": str(tmp_path)}
    on = on_one_device()
    rows = list(bench_gpu(lambda tf32: Arrays(on(tf32)), say.append, **once))
    assert rows[0]["key"] == "link" and all(v > 0 for v in rows[0]["bytes_per_second"].values())
    assert {r["workload"] for r in rows[1:]} == names
    for row in rows[1:]:
        assert_complete(row)
    keys = {r["key"] for r in rows[1:]}
    assert len(keys) == len(rows) - 1 == len(say)
    assert all(json.loads(json.dumps(r)) == r for r in rows)


def test_loops_by_hand_are_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The peers' loops in PyTorch, on the CPU: every chunk with its halo and its padding."""
    torch = pytest.importorskip("torch")
    names = ("W3", "W4 stem", "W7 stride 2, odd", "W7 dilated")
    monkeypatch.setattr("perfmodel.bench.gpu.bench.WORKLOADS", [w for w in WORKLOADS if w.name in names])
    on = on_one_device()
    make, folder = (lambda tf32: Arrays(on(tf32), torch, "cpu")), str(tmp_path)
    rows = list(bench_gpu(make, lambda text: None, rounds=1, tiny=True, seconds=HANGS, directory=folder, who="peers"))
    found = [r for r in rows if r.get("contestant", "").startswith("torch")]
    assert len(found) == 4 * len(names)
    assert [r["error"] for r in found if "error" in r] == []


def test_networks_of_pytorchs_are_the_same() -> None:
    """All peers of the training steps, on the CPU: losses and gradients as ours."""
    torch = pytest.importorskip("torch")
    model = load_device("h200")
    rows = list(bench_networks(on_one_device(), model, torch, lambda text: None, lambda key: False, HANGS, 1, TINY))
    peers = [r for r in rows if r["contestant"].startswith("torch")]
    assert {r["contestant"] for r in peers} == set(PEERS)
    compiled = [r for r in peers if r["contestant"] == "torch_memory_budget" and "error" in r]  # where there is no compiler
    assert [r["error"] for r in rows if "error" in r and r not in compiled] == []
    assert all(r["right"] for r in rows if r not in compiled)


def test_a_contestant_that_fails(tmp_path: Path) -> None:
    """An error is a row like any other."""
    backend = on_one_device()(False)

    def full(nbytes: int) -> int:
        raise RuntimeError("cudaErrorMemoryAllocation:\nout of memory")

    rows = []
    for row in bench_gpu(
        lambda tf32: Arrays(backend), lambda text: None, rounds=1, tiny=True, seconds=HANGS, directory=str(tmp_path)
    ):
        rows.append(row)
        backend.driver.malloc = full
        if len(rows) == 3:
            break
    assert "out of memory" in rows[1]["error"] and "\n" not in rows[1]["error"]
    assert "seconds" not in rows[1]


@pytest.mark.parametrize("work", swept(("W7 stride 2, odd", "W1"), suite=1))
def test_a_part_on_the_emulated_device(work: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way of a part: header, rows, done; a calibration that is missing or fails says so."""
    monkeypatch.setenv("OOC_TINY", "1")
    monkeypatch.setattr("perfmodel.bench.gpu.bench.WORKLOADS", [w for w in WORKLOADS if w.name == work])
    gpu.run_part("bench", tmp_path, HANGS, False, on_one_device())
    rows = files.read_rows(tmp_path / "bench.jsonl")
    assert rows[0]["system"]["gpu"] == "emulated" and rows[-1]["done"] == "bench" and len(rows) > 5
    assert files.complete(tmp_path / "bench.jsonl")

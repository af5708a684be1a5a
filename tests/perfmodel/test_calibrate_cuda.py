"""Calibrating a CUDA device, on an emulated one: everything is measured, and the model reads it."""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from emulated_device import measure_small
from emulated_driver import EmulatedDriver, emulated
from stand_in_cudnn import StandInConv

from ooc.backends import algorithms
from ooc.errors import BackendError, UnsupportedError
from ooc.model.calibration import DEVICES, load_device, read_model
from ooc.ops.descriptor import parse
from ooc.runtime.device import Device
from ooc.schedule.place import Place
from perfmodel import __main__ as command
from perfmodel.calibrate import cuda_link, cuda_timing
from perfmodel.calibrate.cuda import CONVS, FULL, OTHERS, OWN_CONVS, PRODUCTS, QUICK, calibrate_cuda
from perfmodel.calibrate.cuda_timing import CudaBench
from perfmodel.calibrate.entries import SAME, copy_points, write_calibration

TINY = {"most_bytes": 8 << 10, "copy_bytes": 64 << 10, "sample_seconds": 0.0, "samples": 2, "least": 1}
KINDS = ("conv.fprop", "conv.dgrad", "conv.wgrad")
OWN = ("cuda", "plain")


def quiet(text: str) -> None:
    pass


class Calibrated(NamedTuple):
    """What was measured, what was said meanwhile, and what was saved after each entry."""

    found: dict[str, Any]
    said: list[str]
    saved: list[dict[str, Any]]


@functools.cache
def calibrated(cudnn: bool, quick: bool) -> Calibrated:
    said: list[str] = []
    saved: list[dict[str, Any]] = []
    effort = (QUICK if quick else FULL)._replace(**TINY)
    with pytest.MonkeyPatch.context() as patch:
        measure_small(patch)
        whole = calibrate_cuda(emulated(1, cudnn=cudnn), said.append, effort=effort, save=saved.append)
    return Calibrated(whole, said, saved)


def found(cudnn: bool = True, quick: bool = False) -> dict[str, Any]:
    return calibrated(cudnn, quick).found


def convolutions(families: Iterable[str]) -> set[str]:
    return {f"{kind}/{dtype}/{f}" for kind in KINDS for dtype in ("f32", "f64", "f16", "bf16") for f in families}


def served() -> set[str]:
    """The entries of the families that serve some of the convolutions measured; those with TF32 have them of all types."""
    classes = {name: how for name, (how, _) in algorithms.EXACT.items()}
    pairs = ((key, classes[key.rpartition("/")[2]]) for key in convolutions(classes))
    able = {k for k, how in pairs if any(not how.why_not(parse(f"{k.split('/')[0]} {c} dtype={k.split('/')[1]}")) for c in CONVS)}
    products = {f"{kind}/{dtype}/cublas" for kind in PRODUCTS for dtype in ("f32", "f64", "f16", "bf16")}
    products |= {f"{key}_tf32" for key in products}
    return able | products | {f"{kind}/f32/{name}" for kind in KINDS for name in algorithms.ROUNDED} | convolutions(OWN)


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from numbers(inner)
    elif isinstance(value, (int, float)):
        yield value


@pytest.mark.parametrize("quick", [False, True])
def test_everything_is_measured(quick: bool) -> None:
    got = found(quick=quick)
    assert served() <= got["computes"].keys()
    assert {f"{kind}/*/*" for kind in (*OTHERS, *SAME)} | {"*/*/*", "*/*/null"} <= got["computes"].keys()
    assert got["copies"].keys() == {"h2d", "d2h", "read", "write"}
    assert {k: set(v) for k, v in got["contention"].items()} == {"h2d": {"d2h"}, "d2h": {"h2d"}, "compute": {"h2d", "d2h"}}
    guessed = {name.partition(".")[2] for name, origin in got["origins"].items() if origin == "assumed"}
    assert {"*/*/*", "*/*/null", "pool.average_valid/*/*"} <= guessed < got["computes"].keys()
    assert not guessed & {
        "conv.fprop/f16/cudnn",
        "conv.fprop/f32/cudnn_winograd",
        "conv.fprop/f32/cuda",
        "pool.max/*/*",
        "bn.moments/*/plain",
    }
    assert {"h2d", "d2h", "read", "write", "register", "conv.fprop/f32/cudnn_lean", "pool.max/f32/cuda"} <= got[
        "fit_error"
    ].keys()
    assert (got["gpu"], got["source"]) == ("emulated", "measured") and got["system"]["copy_threads"] == 1


@pytest.mark.slow
def test_the_list_as_it_is_gives_the_same_entries() -> None:
    """With the small convolution that a real device measures."""
    whole = calibrate_cuda(emulated(1, cudnn=True), quiet, effort=FULL._replace(**TINY))
    assert whole["computes"].keys() == found()["computes"].keys()


def test_other_operations_are_those_of_the_cpu() -> None:
    cpu = json.loads((DEVICES / "cpu.json").read_text())["computes"]
    assert {k for k in cpu if "/*/" in k} <= found()["computes"].keys()


@pytest.mark.parametrize("cudnn", [False, True])
def test_the_model_reads_it(cudnn: bool, tmp_path: Path) -> None:
    got = found(cudnn)
    write_calibration(got, tmp_path / "cuda.json")
    model = load_device(tmp_path / "cuda.json")
    assert (
        model == read_model(got, "here") and model.name == "emulated" and model.register and model.contention == got["contention"]
    )
    assert all(math.isfinite(v) and v >= 0 for v in numbers({k: v for k, v in got.items() if k != "system"}))
    for entry in (*got["copies"].values(), *got["computes"].values(), got["register"]):
        assert all(v > 0 for k, v in entry.items() if k.endswith("per_second"))
    assert all(0 <= share <= 1 for share in numbers(got["contention"]))
    assert model.memory_bytes == emulated().total_bytes


def test_a_calibration_that_is_cut_off_is_of_use(tmp_path: Path) -> None:
    """Whatever was saved last is a calibration: what was measured, and the rest as shipped."""
    whole, _, saved = calibrated(cudnn=False, quick=False)
    for some in saved:
        (tmp_path / "part.json").write_text(json.dumps(some))
        load_device(tmp_path / "part.json")
    counts = [sum(some["computes"].get(key) == entry for key, entry in whole["computes"].items()) for some in saved]
    assert counts == sorted(counts) and counts[0] < counts[-1] and len(saved) > 40
    assert all(some["copies"] == whole["copies"] for some in saved)
    assert "datasheet" in saved[0]["source"]


def test_plans_are_made_with_it() -> None:
    backend = emulated(cudnn=True)
    op = parse("conv.fprop n=4 c=8 h=16 w=16 k=8 r=3 s=3 pad=1")
    plan = Device(backend, read_model(found(), "here"), 40 << 10).planner.plan(op, {o.name: Place.HOST for o in op.operands})
    assert plan.predicted_seconds > 0 and plan.calibration == "emulated"


def test_without_cudnn_its_families_are_left_out() -> None:
    got, said, _ = calibrated(cudnn=False, quick=False)
    assert not [k for k in got["computes"] if "cudnn" in k]
    assert convolutions(OWN) <= got["computes"].keys()
    assert got["computes"]["*/*/null"] == got["computes"]["conv.fprop/f32/cuda"]
    assert any("cudnn_lean left out" in text for text in said)


def test_quick_measures_a_subset() -> None:
    backend = emulated(cudnn=True)
    benches = [CudaBench(backend, e._replace(most_bytes=1 << 40), {}, quiet) for e in (QUICK, FULL)]
    for bench in benches:
        bench.effort = bench.effort._replace(most_bytes=1 << 40)
    for kind, shapes, family in (("conv.dgrad", CONVS, "cudnn"), ("conv.fprop", OWN_CONVS, "cuda")):
        few, all_ = ({str(op) for op in bench.fitting(kind, shapes, "f16", family)} for bench in benches)
        assert few < all_ and len(all_) == len(shapes)
    assert QUICK.entry_seconds < FULL.entry_seconds and QUICK.samples >= 5
    assert found(quick=True)["computes"].keys() == found()["computes"].keys()


def test_large_shapes_are_left_out() -> None:
    bench = CudaBench(emulated(), FULL._replace(most_bytes=128 << 10, copy_bytes=1 << 16), {}, quiet)
    assert all(sum(o.nbytes for o in op.operands) <= 128 << 10 for op in bench.fitting("conv.fprop", CONVS, "f32", "cuda"))
    smallest = CudaBench(emulated(), FULL._replace(most_bytes=1, copy_bytes=1 << 16), {}, quiet)
    assert [op.dims["k"] for op in smallest.fitting("conv.fprop", CONVS, "f32", "cuda")] == [32]


def test_a_slow_entry_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first shape is sure to be measured; what is not is said."""
    said: list[str] = []
    bench = CudaBench(emulated(), FULL._replace(**TINY | {"most_bytes": 96 << 10}, entry_seconds=-1.0), {}, said.append)
    timed: list[str] = []
    monkeypatch.setattr(CudaBench, "time", lambda self, *rest: timed.append("") or 1.0)
    assert bench.entry("conv.fprop", OWN_CONVS, "f32", "cuda")
    assert len(timed) == 1 and any("the time is over" in text for text in said)


@pytest.mark.parametrize("error", [UnsupportedError("refused"), BackendError("no memory")])
def test_what_cannot_be_computed_is_left_out(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any, *given: Any) -> float:
        raise error

    said: list[str] = []
    bench = CudaBench(emulated(), QUICK._replace(**TINY), {}, said.append)
    monkeypatch.setattr(CudaBench, "time", fail)
    assert bench.entry("conv.fprop", OWN_CONVS, "f32", "cuda") is None and str(error) in said[0]


def test_what_our_own_kernels_compute_is_not_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*told: Any) -> None:
        raise UnsupportedError("cuDNN: CUDNN_STATUS_NOT_SUPPORTED")

    monkeypatch.setattr(StandInConv, "run", refuse)
    said: list[str] = []
    bench = CudaBench(emulated(cudnn=True), QUICK._replace(**TINY), {}, said.append)
    with pytest.warns(RuntimeWarning, match="slower than cuDNN"):
        assert bench.entry("conv.fprop", CONVS, "f16", "cudnn") is None and "does not compute" in said[0]


class Wasteful(CudaBench):
    """A device whose kernels compute 32 channels at a time, in ten microseconds for each image."""

    def time(self, lane: str, work: Any, warm: int = 2) -> float:
        op = self.timed
        return 1e-5 * op.n * -(-max(32, op.width(op.dims)) // 32)


def test_channels_that_a_kernel_computes_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Wasteful(emulated(cudnn=True), QUICK._replace(**TINY)._replace(most_bytes=1 << 40), {}, quiet)
    bench.effort = bench.effort._replace(most_bytes=1 << 40)

    @contextmanager
    def bound(bench: Any, op: Any, family: str) -> Iterator[Any]:
        bench.timed = op
        yield (lambda: None), (lambda: None)

    monkeypatch.setattr(cuda_timing, "BoundKernel", bound)
    for kind in KINDS:
        assert bench.width(kind, "f16", "cudnn") == 32
    assert bench.width("pool.max", "f32", "cuda") == 1
    monkeypatch.setattr(Wasteful, "time", lambda self, *given: 1e-6 * self.timed.n * self.timed.width(self.timed.dims))
    assert bench.width("conv.fprop", "f16", "cudnn") == 1


def test_indices_are_zeros_and_tensors_are_not() -> None:
    bench = CudaBench(emulated(), QUICK._replace(**TINY), {}, quiet)
    memory = bench.backend.allocate("device", 4096)
    for dtype, count in (("f32", 1024), ("i64", 512), ("bf16", 2048)):
        bench.fill(memory, dtype)
        values = bench.backend.fetch(bench.backend.view(memory, 0, (count,), dtype, (0,))).astype(float)
        assert (values == 0).all() if dtype == "i64" else 0 < abs(values).max() <= 0.5 and values.std() > 0.2


def test_copies_are_contiguous_rows_and_slices() -> None:
    import numpy as np

    large, small = np.zeros(1 << 16, np.uint8), np.zeros(1 << 14, np.uint8)
    for depth in (1, 8):
        points = list(copy_points(large, small, (1 << 14, 1 << 20), (512, 4096), depth))
        assert [p.features[2] for p in points] == [1 << 14] * 3
        assert [p.features[1] for p in points] == [32.0, 4.0, 1.0]
        for point in points:
            block = next(point.blocks)
            assert block.shape == point.dense.shape and math.prod(block.shape[:2]) == point.features[1]
            assert np.shares_memory(block, large) and np.shares_memory(point.dense, small)


def test_pinning_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, address: int, nbytes: int) -> None:
        raise RuntimeError("limit of locked memory")

    monkeypatch.setattr(EmulatedDriver, "register", refuse)
    said: list[str] = []
    got = calibrate_cuda(emulated(), said.append, effort=QUICK._replace(**TINY))
    assert "register" not in got and read_model(got, "here").register is None
    assert any("limit of locked memory" in text for text in said)


def test_everything_pinned_is_given_back() -> None:
    backend = emulated()
    calibrate_cuda(backend, quiet, effort=QUICK._replace(**TINY))
    assert backend.driver.registered == []


SMI = {
    "echo '5, 16'": {"pcie_generation": 5, "pcie_width": 16},
    "printf '4, 8\\n3, 16\\n'": {"pcie_generation": 4, "pcie_width": 8},
    "echo '[N/A], 16'": {},
    "echo 5": {},
    "true": {},
    "printf '\\377\\376, \\302\\262'": {},
    "echo 'NVIDIA-SMI has failed'; exit 9": {},
    "echo '5, 16'; exit 1": {},
    "exec sleep 5": {},
}


@pytest.mark.parametrize("script", SMI)
def test_nvidia_smi_may_say_anything(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "nvidia-smi"
    told.write_text(f"#!/bin/sh\n{script}\n")
    told.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(cuda_link, "SMI_SECONDS", 0.5)
    assert cuda_link.pcie("0") == SMI[script]


def test_there_may_be_no_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cuda_link.pcie("0") == {}


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[tuple[Any, ...]] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ooc.backends.cuda.backend.CudaBackend", lambda **how: asked.append(how))
    monkeypatch.setattr("perfmodel.calibrate.cuda.calibrate_cuda", lambda *how: asked.append(how[2]) or found())
    assert command.main(["calibrate", "--backend", "cuda", "--device", "1", "--quick"]) == 0
    assert asked == [{"threads": None, "index": 1}, True]
    assert load_device(tmp_path / "cuda.json").name == "emulated" and "cuda.json: emulated" in capsys.readouterr().out


def test_without_a_device_the_command_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(**how: Any) -> None:
        raise UnsupportedError("device 'cuda': none here")

    monkeypatch.setattr("ooc.backends.cuda.backend.CudaBackend", missing)
    assert command.main(["calibrate", "--backend", "cuda"]) == 2
    assert capsys.readouterr().err == "perfmodel: device 'cuda': none here\n"


def test_time_is_that_of_the_lane() -> None:
    """A sample is as long as asked, and is divided by its calls."""
    bench = CudaBench(emulated(), QUICK._replace(**TINY | {"sample_seconds": 1e-3}), {}, quiet)
    calls: list[int] = []
    assert bench.time("compute", lambda: calls.append(1)) > 0
    assert 2 + 1 + 2 <= len(calls) <= 2 + 1 + 2 * cuda_timing.MOST_CALLS

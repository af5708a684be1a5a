"""Where the time goes: what a sample counts as, and one problem from start to end."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
from sweeps import swept

from ooc.ops.descriptor import parse
from perfmodel.bench import where
from perfmodel.bench.cpu import gradients_of

CONV = "conv.fprop n=1 c=8 h=20 w=20 k=8 r=3 s=3 pad=1 dtype=f32"
REPORT = """
# Overhead  Shared Object  Symbol
# ........  .............  ......
    50.25%  _kernels.so    [.] ooc::direct_avx512::(anonymous namespace)::micro<float, 8, 3>
    20.00%  perf-1.map     [.] jit_avx512_core_brgemm_conv_fwd_t
    10.00%  _kernels.so    [.] ooc::direct_avx512::(anonymous namespace)::pack_weights<float>
     5.00%  perf-1.map     [.] jit_uni_reorder_kernel_f32
     4.00%  _kernels.so    [.] ooc::(anonymous namespace)::Helpers::help
     0.75%  python3        [.] _PyEval_EvalFrameDefault
"""


def test_what_a_sample_counts_as() -> None:
    found = where.shares_of(REPORT)
    assert found == {"multiply": 70.2, "pack": 15.0, "store": 0.0, "wait": 4.0, "other": 0.8}


def test_the_passes_of_a_convolution() -> None:
    forward = parse(CONV + " bias=1 act=relu")
    assert [op.kind for op in where.passes_of(forward)] == ["conv.fprop", "conv.dgrad", "conv.wgrad"]
    assert [op.kind for op in gradients_of(forward).stages] == ["reduce.bias", "conv.wgrad", "conv.dgrad"]


def test_an_op_again_and_again() -> None:
    command = [sys.executable, "-m", "perfmodel.bench.again", CONV, "0.05"]
    out = subprocess.run(command, input="go\n", capture_output=True, text=True, check=True).stdout.split()
    assert out[0] == "ready" and float(out[1]) > 0 and float(out[2]) > 0 and len(out) == 4


@pytest.mark.skipif(shutil.which("perf") is None, reason="needs Linux's perf")
@pytest.mark.parametrize("dtype", swept(("f64", "f32"), suite=1))
def test_one_problem(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(where, "SECONDS", 0.3)
    peak, *rows = where.where([parse(CONV)], 1 << 20, dtype)
    assert peak["peak_gflops"] > 0 and [parse(r["problem"]).kind for r in rows] == ["conv.fprop", "conv.dgrad", "conv.wgrad"]
    for row in rows:
        assert row["of_peak"] == pytest.approx(row["gflops"] / peak["peak_gflops"] * (2 if dtype == "f64" else 1))
        assert row["of_peak"] > 0 and row["kernel"] in ("winograd", "onednn", "native", "plain") and where.line(row)

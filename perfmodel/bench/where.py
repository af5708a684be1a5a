"""Where a convolution's time goes on this machine's processors: sampled by perf while it is computed again and again."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ooc.errors import UnsupportedError
from ooc.ir.op import Op
from ooc.ops import ConvFprop
from ooc.ops.descriptor import parse
from ooc.workers.child import python
from perfmodel.bench.cpu import batched, measured_peak

SECONDS = 1.5
# What the functions of our kernels, and the code that oneDNN makes, are there for; the first that fits counts.
PARTS = (
    ("multiply", r"lane_job|micro<|multiply<|dots_micro|lane_row|lane_dots|lane_weights|_conv_|brgemm|jit_.*gemm"),
    ("pack", r"pack_|copy_|RowCopies|fill_|transpose|turn|run_winograd|reorder|take_patch"),
    ("store", r"store_|run_gather|run_wgrad|pointwise|activate"),
    ("wait", r"Helpers|share_pieces|futex|pthread|cond_|mutex|schedule|pick_next"),
)


def passes_of(op: Op) -> list[Op]:
    """A forward convolution, and its two gradients."""
    assert isinstance(op, ConvFprop)
    sizes = str(replace(op, bias=False, act="identity")).split(" ", 1)[1]
    return [parse(f"conv.{kind} {sizes}") for kind in ("fprop", "dgrad", "wgrad")]


def where(ops: Sequence[Op], tensor_bytes: int, dtype: str) -> Iterator[dict[str, Any]]:
    """Rows, one for each pass of each convolution. Raises UnsupportedError without perf."""
    if shutil.which("perf") is None:
        raise UnsupportedError("where: needs Linux's perf")
    peak = measured_peak()
    yield peak
    for op in ops:
        if isinstance(op, ConvFprop):
            sized = batched(op, tensor_bytes)
            assert isinstance(sized, ConvFprop)
            for one in passes_of(replace(sized, dtype=dtype)):
                yield _row(one, peak)


def _row(op: Op, peak: dict[str, float]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        command, environment = python("-m", "perfmodel.bench.again", str(op), str(SECONDS))
        environment["ONEDNN_JIT_PROFILE"] = "2"  # names for the code that it makes
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, env=environment)
        assert child.stdout is not None and child.stdin is not None
        child.stdout.readline()  # it is ready, and waits
        data = str(Path(folder) / "samples")
        perf = subprocess.Popen(
            ["perf", "record", "-q", "-F", "1999", "-p", str(child.pid), "-o", data], stderr=subprocess.PIPE, text=True
        )
        out, _ = child.communicate("go\n")
        perf.wait()
        seconds, busy, kernel = out.split(maxsplit=2)
        report = subprocess.run(
            ["perf", "report", "-i", data, "--stdio", "--no-children", "-g", "none", "-F", "overhead,dso,sym"],
            capture_output=True, text=True,
        )  # fmt: skip
    shares = shares_of(report.stdout)
    gflops = op.flops(op.dims) / float(seconds) / 1e9
    most = peak["peak_gflops"] / (2 if op.dtype == "f64" else 1)  # half as many fit a vector
    return {
        "problem": str(op), "kernel": kernel.strip(), "seconds": float(seconds), "gflops": gflops,
        "of_peak": gflops / most, "processors_used": float(busy), "shares": shares,
        "bytes_per_second": sum(o.nbytes for o in op.operands) / float(seconds),
    }  # fmt: skip


def shares_of(report: str) -> dict[str, float]:
    """Of the samples, in per cent."""
    shares = dict.fromkeys([*(name for name, _ in PARTS), "other"], 0.0)
    for line in report.splitlines():
        sample = re.match(r"\s*([\d.]+)%\s+(.*)", line)
        if sample:
            part = next((name for name, words in PARTS if re.search(words, sample[2])), "other")
            shares[part] += float(sample[1])
    return {name: round(share, 1) for name, share in shares.items()}


def line(row: dict[str, Any]) -> str:
    """A row for people."""
    if "problem" not in row:
        return f"peak {row['peak_gflops']:.0f} GF/s, copies {row['copied_bytes_per_second'] / 1e9:.1f} GB/s"
    shares = "  ".join(f"{name} {share:.0f}" for name, share in row["shares"].items())
    return (
        f"{row['problem']}\n   {row['kernel']}  {row['gflops']:.0f} GF/s, {row['of_peak']:.0%} of the peak, "
        f"{row['bytes_per_second'] / 1e9:.1f} GB/s, {row['processors_used']:.2f} processors; per cent: {shares}"
    )

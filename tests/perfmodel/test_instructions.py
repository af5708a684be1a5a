"""`perfmodel instructions`: what the compiler makes of our kernels, counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from ooc.errors import UnsupportedError
from perfmodel.bench.gpu import instructions
from perfmodel.bench.gpu.compiler import find_nvdisasm, find_nvrtc
from perfmodel.bench.gpu.instructions import line, loops

CODE = """
.text.first:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   FADD R3, R3, R2 ;
.L_x_2:
        /*0020*/                   FADD R2, R3, R3 ;
        /*0030*/              @!P1 BRA `(.L_x_2) ;
        /*0040*/               @P0 BRA `(.L_x_1) ;
        /*0050*/                   EXIT ;
.L_x_3:
        /*0060*/                   BRA `(.L_x_3);
.text.second:
        /*0000*/               @P0 BRA `(.L_x_4) ;
.L_x_4:
        /*0010*/                   EXIT ;
"""


def test_loops_are_counted() -> None:
    assert loops(CODE) == {"first": [2, 4], "second": []}


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instructions, "find_nvrtc", lambda: None)
    with pytest.raises(UnsupportedError, match="nvidia-cuda-nvrtc"):
        next(instructions.instructions())


def test_elementwise_kernels_take_few(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """At most 12 instructions for each f32 element."""
    monkeypatch.setenv("OOC_CACHE", str(tmp_path))
    if find_nvrtc() is None or find_nvdisasm() is None:
        pytest.skip("no NVRTC or no nvdisasm (the wheels nvidia-cuda-nvrtc and nvidia-cuda-nvdisasm have them)")
    rows = {row["what"]: row for row in instructions.instructions(dtypes=("f32",))}
    first = next(i for i, kernel in enumerate(instructions.KERNELS) if kernel.name == "bn_pull_dense")
    for kernel in instructions.KERNELS[:first]:
        assert 0 < rows[kernel.what]["f32"] <= 12.0, line(rows[kernel.what])
    assert rows["sums"]["f32"] <= 12.0

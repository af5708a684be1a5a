"""Arrays written as NumPy writes them, and what NumPy's own writing does to Ctrl-C."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ooc.files import npy
from tests.imports import ROOT

NUMBERS = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)
ARRAYS = {
    "rows": NUMBERS, "columns": np.asfortranarray(NUMBERS), "gaps": NUMBERS[:, ::2], "none": NUMBERS[:0],
    "one number": np.float64(3)[()], "integers": NUMBERS.astype(">i4"), "half": NUMBERS.astype(np.float16),
    "bfloat16": NUMBERS.astype(ml_dtypes.bfloat16),
}  # fmt: skip


@pytest.mark.quick
@pytest.mark.parametrize("array", [np.asarray(a) for a in ARRAYS.values()], ids=ARRAYS)
def test_the_same_bytes(array: np.ndarray[Any, Any], tmp_path: Path) -> None:
    np.save(tmp_path / "expected.npy", array)
    npy.save(tmp_path / "saved.npy", array)
    assert (tmp_path / "saved.npy").read_bytes() == (tmp_path / "expected.npy").read_bytes()


def test_nothing_is_written_where_ctrl_c_gets_lost() -> None:
    """`np.save`, `np.savez` and `tofile` turn a KeyboardInterrupt into a TypeError."""
    lost = ("np.save", "np.savez", "np.savez_compressed")
    for path in [*(ROOT / "ooc").rglob("*.py"), *(ROOT / "perfmodel").rglob("*.py")]:
        named = [ast.unparse(node) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)]
        assert not [name for name in named if name in lost or name.endswith(".tofile")], path

"""What to do with arrays that ooc does not take: advice that works, and loses nothing of what they hold."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ooc
from ooc.apply.recipe import dtype_of

VALUES: dict[str, list[Any]] = {
    "c8": [1 + 2j, -3j], "c16": [1 + 2j, 0.1], ">f4": [0.1, -2], ">f2": [0.5, 3], ">i2": [-300, 7], ">u4": [2**32 - 1, 1],
    "i1": [-128, 127], "u4": [2**32 - 1, 5], "i8": [-(2**53), 9], "u8": [2**53, 9], "g": [0.5, -1],
}  # fmt: skip


def told(x: Any) -> str:
    with pytest.raises(ooc.DtypeError) as caught:
        ooc.activation(x, "relu")
    return str(caught.value)


@pytest.mark.parametrize("dtype", VALUES)
def test_advice_works_and_loses_nothing(dtype: str) -> None:
    x = np.array(VALUES[dtype], dtype).reshape(1, 1, 2)
    for _ in range(3):  # ">u4" is another byte order first, and then a type that is not taken
        parts = re.findall(r"x\.astype\(.*?\)\)?|x\.real|x\.imag", told(x))
        found = [eval(part, {"x": x}) for part in parts]
        assert found
        assert np.array_equal(found[0] + 1j * found[1] if len(found) > 1 else found[0], x)
        x = found[0]
        try:
            ooc.activation(np.ascontiguousarray(x), "relu")
        except ooc.DtypeError:
            continue
        return
    pytest.fail("no advice helps")


@pytest.mark.parametrize("dtype", ["O", "S3", "M8[s]"])
def test_what_is_no_number_is_not_converted(dtype: str) -> None:
    assert "it must hold numbers" in told(np.zeros((1, 1, 2), dtype))


@pytest.mark.parametrize("dtype", ["c8", "i1", "u4", "u8"])
def test_files_are_told_the_same(dtype: str, tmp_path: Path) -> None:
    with pytest.raises(ooc.ShapeError, match="real and x.imag" if dtype == "c8" else "int16" if dtype == "i1" else "float64"):
        dtype_of(np.dtype(dtype))

"""Unmodified SigPy, whose convolutions for GPUs call CuPy's removed cudnn module, on ooc and without a GPU.

SigPy defines these functions only where its settings say that CuPy has cuDNN. With CuPy installed `cupy_compat` sees to that;
without it, they are defined on request, against a `cupy` that has nothing but `cudnn`. `make test-sigpy` runs both ways.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import subprocess
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ooc
import ooc.cudnn
from ooc import cupy_compat

WITH_CUPY = importlib.util.find_spec("cupy") is not None
if "sigpy" in sys.modules:
    pytest.skip("SigPy was imported before", allow_module_level=True)
if WITH_CUPY and not cupy_compat.install():
    pytest.skip("this CuPy has a cuDNN of its own", allow_module_level=True)
sigpy = pytest.importorskip("sigpy", reason="SigPy is not installed: make test-sigpy")
from sigpy import conv  # noqa: E402

if WITH_CUPY:
    cupy_compat.uninstall()  # SigPy keeps what it imported
else:
    sigpy.config.cudnn_enabled = True
    with pytest.MonkeyPatch.context() as patch:
        stand_in: Any = types.ModuleType("cupy")
        stand_in.cudnn = ooc.cudnn
        patch.setitem(sys.modules, "cupy", stand_in)
        importlib.reload(conv)

BUDGETS = (None, "256 KiB", "16 KiB", "2 KiB")
SIZES = {1: ((9,), (4,)), 2: ((7, 8), (3, 2)), 3: ((5, 6, 4), (2, 3, 2))}
CASES = list(itertools.product((1, 2, 3), ("full", "valid"), (False, True), (False, True)))
DTYPES = ("float32", "float64", "complex64")


@pytest.fixture(params=BUDGETS, ids=map(str, BUDGETS))
def where(request: pytest.FixtureRequest) -> Iterator[None]:
    with ooc.device("cpu", request.param, threads=1):
        yield


def numbers(rng: np.random.Generator, shape: Any, dtype: str) -> Any:
    made = rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if dtype.startswith("complex") else 0)
    return made.astype(dtype)


def problem(rank: int, mode: str, strided: bool, many: bool, dtype: str) -> tuple[Any, Any, Any, dict[str, Any]]:
    """Data, filters, a convolution's result, and its options."""
    rng = np.random.default_rng([rank, len(mode), strided, many, len(dtype)])
    extent, taps = SIZES[rank]
    data = numbers(rng, (2, 3, *extent) if many else (2, *extent), dtype)
    filt = numbers(rng, (4, 3, *taps) if many else taps, dtype)
    how = {"mode": mode, "strides": (2, 1, 2)[:rank] if strided else None, "multi_channel": many}
    output = conv.convolve(data, filt, **how)
    return data, filt, numbers(rng, output.shape, dtype), how


def agree(found: Any, expected: Any) -> None:
    assert found.dtype == expected.dtype and found.shape == expected.shape
    tolerance = 1e-11 if expected.dtype == np.float64 else 2e-5
    np.testing.assert_allclose(found, expected, tolerance, tolerance * 10)


def on_ooc(function: Any, *arrays: Any, **how: Any) -> Any:
    """As SigPy's own dispatch for arrays of a GPU does."""
    complex_ones = np.iscomplexobj(arrays[0])
    return conv._complex(function, *arrays, **how) if complex_ones else function(*arrays, **how)


def test_sigpy_found_it() -> None:
    assert sigpy.config.cudnn_enabled and conv.cudnn.convolution_forward is ooc.cudnn.convolution_forward
    assert sigpy.config.cupy_enabled == WITH_CUPY == (importlib.util.find_spec("cupy") is not None)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rank", "mode", "strided", "many"), CASES)
def test_convolve(where: None, rank: int, mode: str, strided: bool, many: bool, dtype: str) -> None:
    data, filt, _, how = problem(rank, mode, strided, many, dtype)
    agree(on_ooc(conv._convolve_cuda, data, filt, **how), conv.convolve(data, filt, **how))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rank", "mode", "strided", "many"), CASES)
def test_data_adjoint(where: None, rank: int, mode: str, strided: bool, many: bool, dtype: str) -> None:
    data, filt, output, how = problem(rank, mode, strided, many, dtype)
    found = on_ooc(conv._convolve_data_adjoint_cuda, output, filt.conj(), data.shape, **how)
    agree(found, conv.convolve_data_adjoint(output, filt, data.shape, **how))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rank", "mode", "strided", "many"), CASES)
def test_filter_adjoint(where: None, rank: int, mode: str, strided: bool, many: bool, dtype: str) -> None:
    data, filt, output, how = problem(rank, mode, strided, many, dtype)
    found = on_ooc(conv._convolve_filter_adjoint_cuda, output, data.conj(), filt.shape, **how)
    agree(found, conv.convolve_filter_adjoint(output, data, filt.shape, **how))


@pytest.mark.skipif(not WITH_CUPY, reason="CuPy is not installed")
def test_a_program_that_is_not_edited(tmp_path: Any) -> None:
    program = tmp_path / "program.py"
    program.write_text("import sys, sigpy.config\nprint(sys.argv[1:], sigpy.config.cudnn_enabled)\n")
    done = subprocess.run([sys.executable, "-m", "ooc.run", str(program), "a"], capture_output=True, text=True, check=True)
    assert done.stdout == "['a'] True\n"

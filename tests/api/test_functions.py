"""Every public function gives its textbook result: any budget, dtype, layout and strides, files, alpha and beta."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from function_cases import CASES, agrees, expected, inputs_of
from sweeps import swept

import ooc

BUDGETS = (None, "256 KiB", "32 KiB", "2 KiB")
DEVICES = {budget: ooc.device("cpu", budget, threads=2) for budget in BUDGETS}
POISON = -77.0
SLICES = {"sliced": slice(1, None, 2), "reversed": slice(-2, None, -2)}


class Room:
    """An array of some shape inside a larger one, or in a file: what lies around it must not change."""

    def __init__(self, how: str, shape: tuple[int, ...], dtype: Any, path: Path) -> None:
        self.how = how
        if how == "memmap":
            self.whole = np.memmap(path, dtype, "w+", 64, shape)
            self.view = self.whole
        elif how == "fortran":
            self.whole = np.empty(shape, dtype, order="F")
            self.view = self.whole
        else:
            self.whole = np.empty([2 * e + 1 for e in shape], dtype)
            self.view = self.whole[(SLICES[how],) * len(shape)]
        self.whole[...] = POISON
        assert self.view.shape == shape

    def untouched(self) -> bool:
        """Whether everything around the view is as it was."""
        around = np.array(self.whole)
        if self.how not in SLICES:
            return True
        around[(SLICES[self.how],) * around.ndim] = POISON
        return bool((around == POISON).all())


@pytest.mark.parametrize("budget", swept(BUDGETS, quick=("2 KiB",)))
@pytest.mark.parametrize("name", CASES)
def test_textbook_values(name: str, budget: str | None) -> None:
    case = CASES[name]
    arrays = inputs_of(case)
    before = {k: a.copy() for k, a in arrays.items()}
    with DEVICES[budget]:
        result = case.call(**arrays)
    agrees(result, expected(case, arrays), np.float32)
    report = ooc.last_report()
    assert report is not None and report.peak_bytes <= (DEVICES[budget].device_bytes or 1 << 60)
    assert all((arrays[k] == before[k]).all() for k in arrays)


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
@pytest.mark.parametrize("name", CASES)
def test_dtypes(name: str, dtype: Any) -> None:
    case = CASES[name]
    arrays = inputs_of(case, dtype)
    with DEVICES["2 KiB" if dtype == np.float16 else "32 KiB"]:
        result = case.call(**arrays)
    agrees(result, expected(case, arrays), dtype)


@pytest.mark.parametrize("how", ["fortran", "sliced", "reversed", "memmap"])
@pytest.mark.parametrize("name", CASES)
def test_any_strides_and_files(name: str, how: str, tmp_path: Path) -> None:
    """The inputs and the output lie in memory in any way, or in files."""
    case = CASES[name]
    plain, rooms = inputs_of(case), {}
    for key, array in plain.items():
        rooms[key] = Room(how, array.shape, array.dtype, tmp_path / key)
        rooms[key].view[...] = array
    wanted = expected(case, plain)
    target = Room(how, wanted.shape, np.float32, tmp_path / "result")
    with DEVICES["32 KiB" if how == "memmap" else "2 KiB"]:
        result = case.call(**{k: r.view for k, r in rooms.items()}, **{case.out: target.view})
    assert result is target.view
    agrees(result, wanted, np.float32)
    assert target.untouched() and all(r.untouched() for r in rooms.values())


@pytest.mark.parametrize("budget", ["32 KiB", "2 KiB"])
@pytest.mark.parametrize("name", [n for n, case in CASES.items() if case.spatial])
def test_channels_last(name: str, budget: str) -> None:
    case = CASES[name]
    plain = inputs_of(case)
    arrays = {k: np.ascontiguousarray(np.moveaxis(a, 1, -1)) if k in case.spatial else a for k, a in plain.items()}
    with DEVICES[budget]:
        result = case.call(**arrays, layout="channels_last")
    wanted = expected(case, plain)
    agrees(np.moveaxis(result, -1, 1) if wanted.ndim > 2 else result, wanted, np.float32)


@pytest.mark.parametrize(("alpha", "beta", "budget"), [(0.5, 2.0, "32 KiB"), (1.0, -1.0, "2 KiB"), (-2.0, 0.0, None)])
@pytest.mark.parametrize("name", CASES)
def test_alpha_and_beta(name: str, alpha: float, beta: float, budget: str | None, tmp_path: Path) -> None:
    """alpha * result + beta * what the output held, and nothing around it; beta 0 never reads the output."""
    case = CASES[name]
    arrays = inputs_of(case)
    wanted = expected(case, arrays)
    room = Room("sliced", wanted.shape, np.float32, tmp_path / "result")
    held = np.random.default_rng(3).standard_normal(wanted.shape).astype(np.float32)
    room.view[...] = held if beta else np.nan
    blend = {"blend": (alpha, beta)} if case.blend else {"alpha": alpha, "beta": beta}
    with DEVICES[budget]:
        result = case.call(**arrays, **blend, **{case.out: room.view})
    assert result is room.view
    agrees(result, alpha * wanted + (beta * held if beta else 0), np.float32)
    assert room.untouched()

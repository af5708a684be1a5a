"""The compiled extension, when there is one. Everything that asks for it has an answer for None."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

kernels: ModuleType | None
reason: str

KERNELS = "ooc._kernels"


def _opened() -> tuple[ModuleType | None, str]:
    """The extension, or why there is none."""
    if os.environ.get("OOC_NATIVE") == "off":
        return None, "the compiled extension is switched off; unset OOC_NATIVE=off to use it"
    if importlib.util.find_spec(KERNELS) is None:  # no compiler when the package was installed
        return None, "the compiled extension is missing; install a C++ compiler and reinstall ooc"
    try:
        return importlib.import_module(KERNELS), ""
    except ImportError as error:
        return None, f"the compiled extension cannot be loaded ({error}); reinstall ooc"


kernels, reason = _opened()


@functools.cache
def told_slow() -> None:
    """Warn that NumPy computes instead, the first time; not where the extension is there, or was switched off."""
    if reason and os.environ.get("OOC_NATIVE") != "off":
        warnings.warn(f"{reason}; until then NumPy computes, 15 to 100 times as slowly", RuntimeWarning, stacklevel=2)


SMALL = 4096  # bytes up to which NumPy copies sooner
DTYPE_CODES = {"f64": 0, "f32": 1, "f16": 2, "bf16": 3}
INTEGER_CODES = {"u8": 0, "u16": 1, "i16": 2, "i32": 3, "b8": 4}


def _address(array: Any) -> int:
    return int(array.__array_interface__["data"][0]) if array.size else 0


def _nothing() -> None:
    """Without the extension nothing is given back."""


trim: Callable[[], None] = getattr(kernels, "trim", _nothing)  # gives freed memory back to the system
address: Callable[[Any], int] = getattr(kernels, "address", _address)  # of an array's first element; 0 for an empty one


def bounds(array: Any) -> tuple[int, int]:
    """The addresses of an array's first byte and of the one after its last, whatever its strides; (0, 0) of an empty one."""
    if array.flags.c_contiguous or not array.size:
        lo = address(array)
        return lo, lo + int(array.nbytes)
    reach = [(e - 1) * s for e, s in zip(array.shape, array.strides, strict=True)]
    lo = address(array) + sum(min(r, 0) for r in reach)
    return lo, address(array) + sum(max(r, 0) for r in reach) + int(array.itemsize)


def copy(target: Any, source: Any, threads: int = 1) -> None:
    """target[...] = source for arrays of the same shape and dtype; unless they are small, without the interpreter lock."""
    if kernels is None or target.nbytes <= SMALL:
        target[...] = source
        return
    kernels.copy_strided(address(target), target.strides, address(source), source.strides, target.shape, target.itemsize, threads)

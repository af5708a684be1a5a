"""The compiled extension, when there is one. Everything that asks for it has an answer for None."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

kernels: ModuleType | None
reason: str

try:
    if os.environ.get("OOC_NATIVE") == "off":
        raise ImportError("switched off by OOC_NATIVE=off")
    from ooc import _kernels  # type: ignore[attr-defined]

    kernels, reason = _kernels, ""
except ImportError as error:  # no compiler when the package was installed
    kernels, reason = None, f"the compiled extension is missing ({error}); install a C++ compiler and reinstall ooc"

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

"""The compiled extension, when there is one. Everything that asks for it has an answer for None."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

kernels: ModuleType | None
reason: str

if "OMP_WAIT_POLICY" not in os.environ:
    # GNU's OpenMP spins at its barriers, on processors that the copying lanes and its own other threads need: schedules of
    # small tiles ran three to nine times slower with 10,000 turns than with 100.
    os.environ.setdefault("GOMP_SPINCOUNT", "100")

try:
    if os.environ.get("OOC_NATIVE") == "off":
        raise ImportError("switched off by OOC_NATIVE=off")
    from ooc import _kernels  # type: ignore[attr-defined]

    kernels, reason = _kernels, ""
except ImportError as error:  # no compiler when the package was installed
    kernels, reason = None, f"the compiled extension is missing ({error}); install a C++ compiler and reinstall ooc"


class Teams:
    """What forks do to this process's threads: a team of OpenMP's does not live on in a child, where asking for it would wait
    for ever. A child of a process that has computed computes on one thread."""

    asked = False  # somebody may have made a team
    lost = False

    @classmethod
    def forked(cls) -> None:
        cls.lost = cls.asked

    @classmethod
    def of(cls, threads: int) -> int:
        """So many threads, or one."""
        cls.asked = cls.asked or threads > 1
        return 1 if cls.lost else threads


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=Teams.forked)

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
    at, start, team = address(target), address(source), Teams.of(threads)
    kernels.copy_strided(at, target.strides, start, source.strides, target.shape, target.itemsize, team)

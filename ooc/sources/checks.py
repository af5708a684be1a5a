"""What sources check before they read, write or allocate, and how errors of libraries become ooc's."""

from __future__ import annotations

import importlib
import math
import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ooc.errors import DtypeError, OocError, ShapeError, StoreError, UnsupportedError, shown
from ooc.ir.region import Region, Span

MOST_UNIT = 1 << 31  # bytes of a chunk, tile or strip: more are refused before anything is allocated


def within(path: str, region: Region, shape: tuple[int, ...]) -> Region:
    """The region as spans; raises ShapeError where it does not lie inside the shape."""
    try:
        spans = tuple([Span(operator.index(lo), operator.index(hi)) for lo, hi in region])
    except (TypeError, ValueError):
        raise ShapeError(f"{path}: expected a region, a pair (lo, hi) per axis; got {shown(region)}") from None
    if len(spans) != len(shape) or any(not 0 <= lo <= hi <= extent for (lo, hi), extent in zip(spans, shape)):
        raise ShapeError(f"{path}: the region {show(spans)} does not lie inside the shape {shape}")
    return spans


def show(region: Region) -> str:
    """A region as an error quotes it: [0:3, 5:8]."""
    return f"[{', '.join(map(str, region))}]"


@contextmanager
def faults(path: str, doing: str) -> Iterator[None]:
    """Every error of a library becomes one StoreError that names the file."""
    try:
        yield
    except OocError:
        raise
    except Exception as error:
        code, text = getattr(error, "errno", None), f"{path}: {doing} failed: {_told(error)}"
        raise (StoreError(code, " ".join(text.split())) if isinstance(code, int) else StoreError(text)) from error


def _told(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return str(error.strerror)
    return str(error) or type(error).__name__


def library(name: str, path: str, doing: str, extra: str) -> Any:
    """An optional library, imported when it is first needed; UnsupportedError names the extra that brings it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = "pillow" if name.startswith("PIL") else name.split(".")[0]
        raise UnsupportedError(f'{path}: {doing} needs {package}; pip install "ooc[{extra}]"') from error


def numeric(path: str, dtype: Any) -> np.dtype[Any]:
    """A dtype of numbers, in the byte order it came in; raises DtypeError for any other."""
    try:
        numpy_dtype: np.dtype[Any] = np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise DtypeError(f"{path}: dtype: no NumPy dtype: {error}") from None
    if numpy_dtype.kind not in "biufc" or numpy_dtype.subdtype is not None:
        raise DtypeError(f"{path}: dtype: expected bool, integers, floats or complex numbers; got {numpy_dtype}")
    return numpy_dtype


def sizes(path: str, numbers: Any, what: str = "shape", least: int = 0) -> tuple[int, ...]:
    """Extents as a file or a caller tells them; raises ShapeError where they are none."""
    try:
        extents = tuple([operator.index(e) for e in numbers])
    except TypeError:
        raise ShapeError(f"{path}: {what}: expected extents, got {shown(numbers)}") from None
    if any(e < least for e in extents) or len(extents) > 32 or math.prod(extents) >= 1 << 62:
        raise ShapeError(
            f"{path}: {what}: expected at most 32 extents of {least} or more, and less than 2^62 elements; got {extents}"
        )
    return extents


def check_unit(path: str, unit: tuple[int, ...], itemsize: int, what: str, most: int = MOST_UNIT) -> int:
    """Bytes of a unit; raises StoreError where they are too many to hold."""
    nbytes = math.prod(unit) * itemsize
    if nbytes > most:
        raise StoreError(f"{path}: {what} of {unit} elements take {nbytes} bytes each; at most {most} are read")
    return nbytes

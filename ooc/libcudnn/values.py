"""Integers that a descriptor is set to: one, several, or the address of several."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Sequence
from typing import Any

from ooc.libcudnn.guard import LOWEST_ADDRESS, NOT_SUPPORTED, refusal

Ints = int | Sequence[int]


def among(name: str, value: Any, allowed: Sequence[int]) -> int:
    """One of the allowed integers. Raises BAD_PARAM."""
    value = operator.index(value)
    if value not in allowed:
        raise refusal(f"{name}: expected one of {', '.join(map(str, allowed))}; got {value}")
    return int(value)


def at_least(name: str, values: Sequence[int], least: int) -> tuple[int, ...]:
    """Integers none of which is less. Raises BAD_PARAM."""
    if any(v < least for v in values):
        raise refusal(f"{name}: expected at least {least}, got {', '.join(map(str, values))}")
    return tuple(values)


def ints(name: str, values: Any, count: int) -> tuple[int, ...]:
    """So many integers, from the address of C ints or a sequence."""
    if hasattr(values, "__len__"):
        integers = tuple(operator.index(v) for v in values)
        if len(integers) < count:
            raise refusal(f"{name}: expected {count} values, got {len(integers)}")
        return integers[:count]
    address = operator.index(values)
    if count and address < LOWEST_ADDRESS:
        raise refusal(f"{name}: expected the address of {count} ints, or a sequence of them; got {address}")
    return tuple((ctypes.c_int * count).from_address(address)) if count else ()


def axes(name: str, value: Any, least: int, most: int) -> int:
    """A number of axes. Raises BAD_PARAM where there are too few, NOT_SUPPORTED where too many."""
    value = operator.index(value)
    if value > most:
        raise refusal(f"{name}: at most {most}, got {value}", NOT_SUPPORTED)
    return at_least(name, (value,), least)[0]

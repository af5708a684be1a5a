"""How much of a sweep runs when: a little before each commit, some in the suite, all of it in the long one."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pytest


def swept(values: Iterable[Any], suite: int | None = None, quick: int | Collection[Any] = 0) -> list[Any]:
    """Parameters for a test: the first `suite` of them run in the suite, those after them only in the long one; the first
    `quick` of them, or those in it, before each commit too."""
    found = []
    for i, value in enumerate(values):
        marks = [pytest.mark.slow] if suite is not None and i >= suite else []
        if not marks and (i < quick if isinstance(quick, int) else value in quick):
            marks = [pytest.mark.quick]
        found.append(pytest.param(value, marks=marks, id=None if isinstance(value, int) else str(value)))
    return found


def crossed(*axes: Sequence[Any], every: int) -> list[Any]:
    """Parameters for a test of several arguments: all combinations, of which the suite runs one in `every`, so that each value
    still meets each other one's neighbours."""
    found = []
    for at in itertools.product(*(range(len(axis)) for axis in axes)):
        values = [axis[i] for axis, i in zip(axes, at, strict=True)]
        names = [_name(v) for v in values]
        marks = [pytest.mark.slow] if sum(at) % every else []
        found.append(pytest.param(*values, marks=marks, id="-".join(names)))
    return found


def _name(value: Any) -> str:
    if isinstance(value, (str, int, type(None))):
        return str(value)
    return value.__name__ if isinstance(value, type) else type(value).__name__

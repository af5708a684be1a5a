"""A budget that is too small is told with what would do, as a sum that adds up, and that does."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ooc

X, W, DY = np.ones((512, 229), "f"), np.ones((30, 229), "f"), np.ones((512, 30), "f")
IMAGE, FILTERS = np.ones((1, 64, 12, 40), "f"), np.ones((64, 64, 7, 7), "f")
CALLS: dict[str, Callable[..., Any]] = {
    "a linear layer's gradients": lambda **o: ooc.linear_backward(X, W, DY, **o),
    "its dw": lambda **o: ooc.linear_backward(X, W, DY, want="dw", **o),
    "a large dw": lambda **o: ooc.conv_backward(IMAGE, FILTERS, np.ones((1, 64, 6, 34), "f"), want="dw", **o),
    "half types": lambda **o: ooc.conv(IMAGE.astype("f2"), FILTERS.astype("f2"), **o),
    "a chain": lambda **o: ooc.chain(IMAGE, ooc.Conv(FILTERS, padding=3), ooc.Pool(), **o),
    "softmax": lambda **o: ooc.softmax(X, **o),
}


def refused(call: Callable[..., Any], budget: int, **options: Any) -> ooc.BudgetError:
    with ooc.device("cpu", budget=budget), pytest.raises(ooc.BudgetError) as caught:
        call(**options)
    return caught.value


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_what_would_do_does(name: str, deterministic: bool) -> None:
    error = refused(CALLS[name], 1, deterministic=deterministic)
    least = error.smallest_bytes
    assert least is not None and least <= 8 << 10
    assert refused(CALLS[name], least - 1, deterministic=deterministic).smallest_bytes == least
    parts = re.search(r"\((.*?) = (\d+) bytes; pieces", str(error))
    if parts:
        assert sum(int(n) for n in re.findall(r" (\d+)(?: \+|$)", parts[1])) == int(parts[2]) == least


@pytest.mark.parametrize("name", ["a linear layer's gradients", "a large dw", "softmax"])
def test_two_kibibytes_are_enough(name: str) -> None:
    error = refused(CALLS[name], 1)
    assert error.smallest_bytes is not None and error.smallest_bytes <= 2048

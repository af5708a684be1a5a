"""What docs/networks.md shows is what is printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import ooc

PAGE = (Path(__file__).parents[2] / "docs" / "networks.md").read_text()


def test_the_printed_plan() -> None:
    first, shown = re.search(r"```python\n(.*?)```", PAGE, re.S), re.search(r"this prints:\n\n```\n(.*?)```", PAGE, re.S)
    assert first and shown
    names: dict[str, Any] = {}
    exec(first[1], names)
    plan = names["small"]().plan(
        batch=32, budget="32 MiB", policy="pooch", device=ooc.device("null", calibration="p100"),
        optimizer=ooc.SGD(0.01, momentum=0.9),
    )  # fmt: skip
    assert str(plan) + "\n" == shown[1]

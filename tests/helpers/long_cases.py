"""`tests/long.txt`: tests, and cases of them, that only the long suite runs."""

from __future__ import annotations

from pathlib import Path

import pytest

COLLECTED = pytest.StashKey[set[str]]()  # names of all tests, those too that are not run
PATH = Path(__file__).parents[1] / "long.txt"


def listed() -> list[str]:
    """Its lines, without comments."""
    return [line for line in PATH.read_text().splitlines() if not line.startswith("#")]


def mark(items: list[pytest.Item]) -> None:
    """Those that are listed are slow."""
    long, names = {*listed()}, {item: item.nodeid.removeprefix("tests/") for item in items}
    if items:
        items[0].config.stash[COLLECTED] = {*names.values()}
    for item, name in names.items():
        if name in long or name.partition("[")[0] in long:
            item.add_marker(pytest.mark.slow)

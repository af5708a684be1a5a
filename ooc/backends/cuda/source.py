"""Where kernels/device/ is, beside the package in a work tree, inside it once installed; and its files as one source."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

PACKAGE = Path(__file__).parents[2]
SHARED = ("common", "activations", "sums")  # what serves all others
PARTS = (
    "convolution", "pooling", "elementwise", "functions", "optimizer", "convert", "normalisation", "softmax", "resize", "blocks",
    "dense",
)  # fmt: skip
DEFINED = re.compile(r"^(?:KERNEL\((\w+)\)|SUM\((\w+),)", re.MULTILINE)


@lru_cache
def device_source(*parts: str) -> str:
    """The CUDA source of our own kernels: of these parts, and what they need; default: of all. Raises FileNotFoundError when the
    installation lacks it."""
    for folder in (PACKAGE / "kernels" / "device", PACKAGE.parent / "kernels" / "device"):
        if folder.is_dir():
            return "\n".join((folder / f"{part}.cu").read_text() for part in (*SHARED, *(parts or PARTS)))
    raise FileNotFoundError(f"kernels/device is neither in {PACKAGE} nor beside it; reinstall ooc")


@lru_cache(maxsize=1)
def part_of() -> dict[str, str]:
    """The part that has each kernel: each is compiled when one of its kernels is first used, as all of them take seconds. What
    SHARED has is in each."""
    found: dict[str, str] = {}
    for part in reversed(PARTS):
        for one, sum_of in DEFINED.findall(device_source(part)):
            found |= {one: part} if one else {sum_of: part, f"{sum_of}_parts": part}
    return found

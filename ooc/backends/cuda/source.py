"""Where kernels/device/ is, beside the package in a work tree, inside it once installed; and its files as one source."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from ooc.ops.activation import ACTIVATIONS

PACKAGE = Path(__file__).parents[2]
SHARED = ("common", "activations", "sums", "dense", "positions")  # what serves all others
PARTS = (
    "convolution", "pooling", "elementwise", "functions", "optimizer", "pacing", "convert", "reduce", "normalisation", "softmax",
    "losses", "resize", "grid_sample", "matmul", "attention",
    "blocks",
)  # fmt: skip
DEFINED = re.compile(r"^(?:KERNEL\((\w+)\)|SUM\((\w+),|ACTIVATED\((\w+)\))", re.MULTILINE)


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
    parts: dict[str, str] = {}
    for part in reversed(PARTS):
        for one, sum_of, activated in DEFINED.findall(device_source(part)):
            ends = ("",) if one else ("", "_parts", "_groups") if sum_of else tuple(f"_{act}" for act in ACTIVATIONS)
            parts |= {f"{one or sum_of or activated}{end}": part for end in ends}
    return parts

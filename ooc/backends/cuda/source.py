"""Where kernels/device/ is, beside the package in a work tree, inside it once installed; and its files as one source."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

PACKAGE = Path(__file__).parents[2]
# In the order in which they are compiled: the first three serve the others.
PARTS = (
    "common", "activations", "sums", "convolution", "pooling", "elementwise", "functions", "optimizer", "convert",
    "normalisation", "softmax", "resize", "blocks",
)  # fmt: skip


@lru_cache(maxsize=1)
def device_source() -> str:
    """The CUDA source of our own kernels. Raises FileNotFoundError when the installation lacks it."""
    for folder in (PACKAGE / "kernels" / "device", PACKAGE.parent / "kernels" / "device"):
        if folder.is_dir():
            return "\n".join((folder / f"{part}.cu").read_text() for part in PARTS)
    raise FileNotFoundError(f"kernels/device is neither in {PACKAGE} nor beside it; reinstall ooc")

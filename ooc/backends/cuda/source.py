"""Where kernels/device.cu is: beside the package in a work tree, inside it once installed."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

PACKAGE = Path(__file__).parents[2]


@lru_cache(maxsize=1)
def device_source() -> str:
    """The CUDA source of our own kernels. Raises FileNotFoundError when the installation lacks it."""
    for folder in (PACKAGE / "kernels", PACKAGE.parent / "kernels"):
        path = folder / "device.cu"
        if path.is_file():
            return path.read_text()
    raise FileNotFoundError(f"kernels/device.cu is neither in {PACKAGE} nor beside it; reinstall ooc")

"""Finding and opening cuDNN (libcudnn.so.9) at run time; nothing is linked, so its absence is a reason, not an error."""

from __future__ import annotations

import functools
import importlib.util
import os
from pathlib import Path
from typing import Any

from ooc import native

LIBRARY = "libcudnn.so.9"
ADVICE = "pip install nvidia-cudnn-cu13 (CUDA 12: nvidia-cudnn-cu12), or set OOC_CUDNN to its path"


def open_cudnn() -> Any | None:
    """The opened library, or None; `cudnn_reason` tells why."""
    return _open()[0]


def cudnn_reason() -> str:
    """Why cuDNN is not used; empty when it is."""
    return _open()[1]


@functools.cache
def _open() -> tuple[Any | None, str]:
    setting = os.environ.get("OOC_CUDNN", "")
    if setting == "off":
        return None, "switched off by OOC_CUDNN=off"
    if native.kernels is None:
        return None, native.reason
    reasons = []
    for path in (setting,) if setting else (*wheels(), LIBRARY):
        try:
            return native.kernels.Cudnn(path), ""
        except RuntimeError as error:
            reasons.append(str(error))
    return None, reasons[0] if setting else f"{reasons[0]}; {ADVICE}"


def wheels() -> list[str]:
    """The library as the wheels install it: the package `nvidia` may have parts in several folders. Nothing is imported."""
    try:
        spec = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):  # something else of that name
        return []
    folders = spec.submodule_search_locations if spec else None
    paths = (Path(folder) / "cudnn" / "lib" / LIBRARY for folder in folders or ())
    return [str(path) for path in paths if path.is_file()]

"""Files of networks: which package reads them."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from ooc.errors import UnsupportedError

READERS = {".onnx": "ooc.onnx.model", ".pt2": "ooc.torch.files"}


def reader(path: str | Path) -> Any:
    """What has `build`, `output_names` and `rank_of` for a file; ONNX where its name does not say. Raises UnsupportedError where
    a package is missing, which it names."""
    try:
        return importlib.import_module(READERS.get(Path(path).suffix.lower(), READERS[".onnx"]))
    except ImportError as error:
        raise UnsupportedError(f"{path}: {error}") from None

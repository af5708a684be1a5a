"""Files of networks: which package reads them."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from ooc.errors import UnsupportedError

READERS = {".onnx": "ooc.onnx.model", ".pt2": "ooc.torch.files"}


def opened(path: str | Path, trust: bool = False) -> Any:
    """A network in a file, with `build`, `output_names` and `rank`; ONNX where its name does not say.

    trust: whether it may hold more than data, see `ooc.torch.files`. Raises StoreError for what is no network or not to be
    trusted, UnsupportedError where a package is missing, which it names.
    """
    try:
        module = importlib.import_module(READERS.get(Path(path).suffix.lower(), READERS[".onnx"]))
    except ImportError as error:
        raise UnsupportedError(f"{path}: {error}") from None
    return module.opened(path, trust)

"""Files of networks: which package reads them."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ooc.errors import ArgumentError, OocError, ShapeError, UnsupportedError

READERS = {".onnx": "ooc.onnx.model", ".pt2": "ooc.torch.files"}
MULTIPLES = 2, 4, 8, 16, 32, 64


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


def fixed_at(model: Any, extent: Sequence[int]) -> str:
    """The size that a model was exported for, where that is another than this and it computes the same at any; it is forgotten
    then. "": there is nothing to forget."""
    if all(h in (0, e) for h, e in zip(model.baked, extent, strict=False)):
        return ""
    held = "x".join(map(str, model.baked))
    return held if model.free() else ""


def with_remedy(
    error: ShapeError, path: str | Path, model: Any, shape: Sequence[int], outputs: Sequence[str] | None
) -> ShapeError:  # fmt: skip
    """The error of a model that does not take a size, with the option of `ooc apply` that helps, if one does."""
    held, extent = model.baked, shape[2:]
    if any(h not in (0, e) for h, e in zip(held, extent, strict=False)):
        window = "x".join(str(h or e) for h, e in zip(held, extent, strict=True))
        return ArgumentError(
            f"{path}: takes {window} alone, the input has {'x'.join(map(str, extent))}; --semantics window={window} "
            f"passes it in windows that are blended; for the network on the whole, export it with {model.dynamic}"
        )
    fits = _fitting(model, shape, outputs)
    return error if fits is None else ArgumentError(f"{error}; try --pad-to {fits}")


def _fitting(model: Any, shape: Sequence[int], outputs: Sequence[str] | None) -> int | None:
    """The least power of two of whose multiples a model takes the extents next to these; None: there is none."""
    for each in MULTIPLES:
        wide = (*shape[:2], *(-(-e // each) * each for e in shape[2:]))
        with suppress(OocError):
            model.build(wide, outputs, lambda graph, name, shape, dtype: graph.input(name, shape, dtype))
            return each
    return None

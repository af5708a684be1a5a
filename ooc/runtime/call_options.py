"""How a call is to run, as its caller says: checked before anything is read or written."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ooc.errors import OptionError, StoreError
from ooc.runtime.progress import Callback

OF_DEVICES = ("budget", "pinned", "workspace", "threads", "calibration", "tf32")  # options of `ooc.device`


class CallOptions(NamedTuple):
    """deterministic: sums in one order at any budget; progress: a bar is shown; callbacks: called after every tile; trace:
    file to write when all is done; resume: folder of the journal, of a call that may be interrupted."""

    deterministic: bool = False
    progress: bool = False
    callbacks: tuple[Callback, ...] = ()
    trace: Path | None = None
    resume: Path | None = None


def read(options: Mapping[str, Any], known: Sequence[str] = ()) -> CallOptions:
    """The options of a call. known: further words that functions take, to guess what a misspelt one means.

    Raises OptionError for a word that is unknown or a value of another type, StoreError for a trace that cannot be written.
    """
    for word in options:
        if word not in CallOptions._fields:
            near = difflib.get_close_matches(word, (*CallOptions._fields, *known), 1)
            hint = f"did you mean {near[0]}=?" if near else ""
            if word in OF_DEVICES:
                hint = f"it belongs to a device: with ooc.device({word}=...): ..."
            raise OptionError("; ".join(filter(None, (f"there is no option {word}= here", hint))))
    return CallOptions(
        flag("deterministic", options.get("deterministic", False)), flag("progress", options.get("progress", False)),
        _callbacks(options.get("callbacks", ())), _trace(options.get("trace")), _resume(options.get("resume")),
    )  # fmt: skip


def flag(name: str, value: Any) -> bool:
    """An option that is True or False. Raises OptionError for anything else."""
    if not isinstance(value, (bool, np.bool_)):
        raise OptionError(f"{name}: expected True or False, got {value!r}")
    return bool(value)


def _callbacks(callbacks: Any) -> tuple[Callback, ...]:
    """One function, or several."""
    functions = (callbacks,) if callable(callbacks) else () if callbacks is None else callbacks
    if not isinstance(functions, (tuple, list)) or not all(map(callable, functions)):
        raise OptionError(f"callbacks: expected a function f(done, tiles), or a list of them, got {callbacks!r}")
    return tuple(functions)


def _resume(folder: Any) -> Path | None:
    """A folder, or the name of one that can be made."""
    if folder is None:
        return None
    if not isinstance(folder, (str, os.PathLike)) or not str(folder) or "\0" in str(folder):
        raise OptionError(f"resume: expected the path of a folder, got {folder!r}")
    path = Path(folder)
    try:
        if not path.parent.is_dir() or (path.exists() and not path.is_dir()):
            raise StoreError(f"resume: {str(path)!r}: " + ("is no folder" if path.exists() else "its folder does not exist"))
        os.stat(path)
    except FileNotFoundError:
        pass  # it is made when it is needed
    except (OSError, ValueError, TypeError) as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"resume: {str(folder)!r}: {error}") from None
    return path


def _trace(file: Any) -> Path | None:
    if file is None:
        return None
    if not isinstance(file, (str, os.PathLike)) or (isinstance(file, str) and not file):
        raise OptionError(f"trace: expected the path of a file to write, got {file!r}")
    try:
        path = Path(file)
        if b"\0" in os.fsencode(path):
            raise ValueError("a path has no null characters")
        if path.is_dir() or not path.parent.is_dir():
            raise StoreError(f"trace: {str(path)!r}: " + ("is a folder" if path.is_dir() else "its folder does not exist"))
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise StoreError(f"trace: {str(path)!r} cannot be written: permission denied")
    except (OSError, ValueError, TypeError) as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"trace: {str(file)!r}: {error}") from None
    return path

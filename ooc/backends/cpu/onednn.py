"""Finding and opening oneDNN (libdnnl.so.3) at run time; nothing is linked, so its absence is a reason, not an error."""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import os
from pathlib import Path
from typing import Any

from ooc import native
from ooc.files.mapped import spans

PACKAGE = "onednn-cpu-gomp"
LIBRARY = "libdnnl.so.3"


@functools.cache
def open_onednn() -> Any | None:
    """The opened library, or None; `onednn_reason` tells why."""
    return _open()[0]


@functools.cache
def onednn_reason() -> str:
    """Why oneDNN is not used; empty when it is."""
    return _open()[1]


@functools.cache
def _open() -> tuple[Any | None, str]:
    if os.environ.get("OOC_ONEDNN", "") == "off":
        return None, "switched off by OOC_ONEDNN=off"
    if native.kernels is None:
        return None, native.reason
    path = find_library()
    if path is None:
        return None, f'{LIBRARY} not found; pip install "ooc[onednn]" (x86-64 Linux), or set OOC_ONEDNN to its path'
    try:
        library = native.kernels.OneDnn(path)
    except RuntimeError as error:
        return None, str(error)
    _map_in(path)
    return library, ""


def _map_in(path: str) -> None:
    """Map all pages of an opened library now (Linux): first touches of its code would look like memory of a later run."""
    populate_read = 22  # MADV_POPULATE_READ, since Linux 5.14; an error changes nothing
    try:
        mapped = [span for span in spans() if span.path.endswith(Path(path).name) or path in span.path]
    except OSError:
        return
    madvise = ctypes.CDLL(None).madvise
    for span in mapped:
        madvise(ctypes.c_void_p(span.lo), ctypes.c_size_t(span.hi - span.lo), populate_read)


def find_library() -> str | None:
    """Path of libdnnl: the environment variable OOC_ONEDNN, or the installed package."""
    path = os.environ.get("OOC_ONEDNN")
    if path:
        return path
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name == LIBRARY:
            return str(Path(str(file.locate())).resolve())
    return None

"""Files that may be opened: regular ones, and of those that a file leads to, the ones beside it."""

from __future__ import annotations

import os
import stat

from ooc.errors import StoreError

KINDS = ((stat.S_ISFIFO, "pipe"), (stat.S_ISSOCK, "socket"), (stat.S_ISCHR, "device"), (stat.S_ISBLK, "device"))
REMEDY = "if you trust where it comes from, pass trust=True (--trust)"


def regular(file: str | os.PathLike[str], what: str = "") -> None:
    """Raise StoreError for a pipe, a socket or a device: who opens it may wait for ever. What is missing, or a folder, is told by
    who opens it. what: it is called so; default: by its path."""
    try:
        mode = os.stat(file).st_mode
    except (OSError, ValueError):
        return
    for is_one, name in KINDS:
        if is_one(mode):
            raise StoreError(f"{what or os.fspath(file)}: no regular file, but a {name}")


def inside(file: str, folder: str, what: str) -> None:
    """Raise StoreError where a file that another leads to lies elsewhere than in its folder, links followed, or is no regular
    one. folder: as `os.path.realpath` has it."""
    real = os.path.realpath(file)
    if real != folder and not real.startswith(os.path.join(folder, "")):
        raise StoreError(f"{what}: leads to {file}, which lies outside {folder}; {REMEDY}")
    regular(file, f"{what}: {file}")

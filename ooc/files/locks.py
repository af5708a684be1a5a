"""Locks on open files and folders, which go when whoever holds them closes them or dies.

They are those of `flock`. Where the system has none, as on Windows, or the file system has none, nobody waits for anybody.
"""

from __future__ import annotations

from contextlib import suppress

try:
    import fcntl
except ImportError:
    flock = None
else:
    flock = fcntl.flock


def lock(fd: int) -> None:
    """Wait until nobody else holds it, and hold it."""
    if flock is not None:
        with suppress(OSError):
            flock(fd, fcntl.LOCK_EX)


def try_lock(fd: int, shared: bool = False) -> bool:
    """Hold it, alone or with others who share it, and say whether there are locks. Raises BlockingIOError where somebody else
    holds it."""
    if flock is None:
        return False
    try:
        flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True

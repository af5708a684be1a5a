"""How much memory this process may take: the machine's, or what its control groups (Linux, version 2 or 1) leave of it."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path

# Where groups lie, and what holds the limit of one: version 2, alone and beside version 1; version 1.
UNIFIED = ("sys/fs/cgroup", "sys/fs/cgroup/unified")
UNKNOWN = 1 << 62  # bytes of a machine that does not tell
MAXIMUM, FIRST, FIRST_MAXIMUM = "memory.max", "sys/fs/cgroup/memory", "memory.limit_in_bytes"


@functools.cache  # devices are made in loops
def memory_limit(root: Path = Path("/")) -> int:
    """Bytes: the least of the machine's and of the limits of the process's control group and of all above it. root: of the
    system's files."""
    return min((memory("SC_PHYS_PAGES") or UNKNOWN, *_limits(root)))


def memory(pages: str) -> int:
    """Bytes of pages that the system counts; 0 where it does not: Windows counts none, macOS not those that are free."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf(pages)
    except (AttributeError, ValueError):
        return 0


def _limits(root: Path) -> Iterator[int]:
    try:
        groups = (root / "proc/self/cgroup").read_text(errors="replace").splitlines()
    except OSError:
        return
    for line in groups:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            for base in UNIFIED:
                yield from _above(root / base, path, MAXIMUM)
        elif "memory" in controllers.split(","):
            yield from _above(root / FIRST, path, FIRST_MAXIMUM)


def _above(base: Path, path: str, name: str) -> Iterator[int]:
    """The limits of a group and of those above it, as far as they can be seen: a container may see its own as the root."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for depth in range(len(parts), -1, -1):
        try:
            yield int(base.joinpath(*parts[:depth], name).read_text())
        except (OSError, ValueError):  # "max": none
            continue

"""Python processes that import what this one does: the same ooc, and nothing from the current folder that nobody named."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OWN = str(Path(__file__).absolute().parents[2])  # the folder that ooc was imported from
PATH, SAFE = "PYTHONPATH", "PYTHONSAFEPATH"


def python(*arguments: str) -> tuple[list[str], dict[str, str]]:
    """The command of another Python process, and its environment."""
    return [sys.executable, *arguments], os.environ | settings()


@contextmanager
def starting() -> Iterator[None]:
    """All Python processes that libraries start meanwhile are such, and theirs too."""
    before = {name: os.environ.get(name) for name in (PATH, SAFE)}
    os.environ.update(settings())
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def settings() -> dict[str, str]:
    """What makes Python leave the folder out in which it is started, and look for modules where this process does."""
    here = os.path.abspath("")
    folders = {OWN, *(os.path.abspath(p) for p in os.environ.get(PATH, "").split(os.pathsep) if p)}
    path = [p for p in map(os.path.abspath, [*sys.path, OWN]) if (p != here or p in folders) and os.pathsep not in p]
    return {SAFE: "1", PATH: os.pathsep.join(dict.fromkeys(path))}

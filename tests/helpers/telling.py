"""A training in another process tells what it has come to, so that it may be killed there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ooc.workers import gradients


def tell_parts(words: Callable[[Path, Any], str]) -> None:
    """Print that it begins, and of every part of a step that is written a line: words of its path and header."""
    write = gradients.checkpoint.write

    def told(path: Path, about: Any, tensors: Any, settled: bool = True) -> None:
        write(path, about, tensors, settled)
        if not settled:
            print(words(path, about), flush=True)

    gradients.checkpoint.write = told
    print("begins", flush=True)

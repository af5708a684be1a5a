"""Files of measured rows: JSON lines, the first of which says on what they were measured."""

from __future__ import annotations

import datetime
import json
import platform
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from ooc import native
from ooc.backends.cpu.backend import default_threads
from perfmodel.calibrate.entries import processor


def system_header() -> dict[str, Any]:
    """What the figures were measured on: commit, machine, threads, versions."""
    return {
        "system": {
            "commit": _git("rev-parse", "HEAD") + "+" * bool(_git("status", "--porcelain")),
            "date": datetime.date.today().isoformat(), "processor": processor(), "threads": default_threads(),
            "python": platform.python_version(), "numpy": np.__version__, "kernel": platform.release(),
            "isa": native.kernels.isa() if native.kernels else "",
        }
    }  # fmt: skip


def _git(*words: str) -> str:
    """What git says of the checkout; "" where there is none."""
    try:
        return subprocess.run(["git", *words], capture_output=True, text=True, cwd=Path(__file__).parent).stdout.strip()
    except FileNotFoundError:
        return ""


def write_rows(path: str | Path, rows: list[dict[str, Any]]) -> None:
    """Write a system header and the rows."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in [system_header(), *rows]))

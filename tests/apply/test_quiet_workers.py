"""What `ooc apply --workers` prints: what it has to say, and nothing of the library that shares the work."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("distributed")
apply_files = pytest.importorskip("apply_files")


def started(folder: Path, side: int) -> subprocess.Popen[str]:
    apply_files.picture_network(folder / "m.onnx")
    np.save(folder / "x.npy", np.zeros((1, 3, side, side), "f4"))
    call = ["apply", "m.onnx", "--input", "x.npy", "--output", "y.npy", "--workers", "2", "--budget", "4MiB"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # Shells have what they start in the background ignore the signal, and so would we.
    heeding = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen([sys.executable, "-m", "ooc", *call], cwd=folder, start_new_session=True, preexec_fn=heeding, **pipes)


def told(error: str) -> list[str]:
    """Lines, but for a warning of the port of a dashboard, which depends on who else has one."""
    dashboard = ("UserWarning: Port", "Perhaps you already have", "Hosting the HTTP server", "warnings.warn(")
    return [line for line in error.splitlines() if not any(part in line for part in dashboard)]


def test_a_good_run_is_silent(tmp_path: Path) -> None:
    process = started(tmp_path, 64)
    out, error = process.communicate(timeout=240)
    assert process.returncode == 0 and "done" in out and told(error) == []


def test_an_interrupt_is_one_line(tmp_path: Path) -> None:
    """Ctrl-C reaches all processes of a terminal."""
    process = started(tmp_path, 2000)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("progress"):
            break
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=240)
    assert (process.returncode, told(error)) == (130, ["ooc: interrupted"])

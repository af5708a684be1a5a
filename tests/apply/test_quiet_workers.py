"""What `ooc apply --workers` prints: what it has to say, and nothing of the library that shares the work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ooc.cli.console import interruptible

pytest.importorskip("distributed")
apply_files = pytest.importorskip("apply_files")


def started(folder: Path, side: int) -> subprocess.Popen[str]:
    apply_files.picture_network(folder / "m.onnx")
    np.save(folder / "x.npy", np.zeros((1, 3, side, side), "f4"))
    call = ["apply", "m.onnx", "--input", "x.npy", "--output", "y.npy", "--workers", "2", "--budget", "4MiB"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-m", "ooc", *call], cwd=folder, start_new_session=True, **pipes)


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


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_in_a_finalizer_is_not_lost() -> None:
    """Python drops what is raised there, as in those of Dask's futures: it is raised again when progress is told."""

    class Final:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0)  # where the handler runs

    with pytest.raises(KeyboardInterrupt), interruptible() as check:
        check()
        Final()
        check()
        pytest.fail("lost")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

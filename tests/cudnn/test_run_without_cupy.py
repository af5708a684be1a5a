"""`python -m ooc.run` where CuPy is not installed: one line, and programs that do not need it run."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="CuPy is installed")


def ran(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(text)
    call = [sys.executable, "-m", "ooc.run", "program.py"]
    return subprocess.run(call, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("line", ["import cupy", "import cupyx.cudnn", "from cupy import cudnn"])
def test_a_program_that_needs_it_is_one_line(line: str, tmp_path: Path) -> None:
    done = ran(tmp_path, f"{line}\n")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("ooc.run: the program imports CuPy, which is missing")


def test_one_that_does_not_runs_in_silence(tmp_path: Path) -> None:
    done = ran(tmp_path, "print(1 + 1)\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")


def test_other_modules_that_are_missing_are_its_own_matter(tmp_path: Path) -> None:
    done = ran(tmp_path, "import nowhere_at_all\n")
    assert done.returncode == 1 and "Traceback" in done.stderr and "nowhere_at_all" in done.stderr

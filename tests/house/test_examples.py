"""The small examples run as they are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import HANGS

ROOT = Path(__file__).parents[2]
EXAMPLES = [("conv.py", "64", "tiles "), ("plan_only.py", "32 MiB", "read back equal: True")]


@pytest.mark.parametrize(("name", "argument", "says"), EXAMPLES)
def test_examples_run(name: str, argument: str, says: str) -> None:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, f"examples/{name}", argument],
        capture_output=True, text=True, cwd=ROOT, timeout=HANGS, check=False, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert says in done.stdout

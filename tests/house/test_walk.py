"""DESIGN.md follows one convolution through the modules that it really enters."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import ooc
from ooc import native
from ooc.backends.cpu.onednn import onednn_reason

pytestmark = [
    pytest.mark.quick,
    pytest.mark.skipif(native.kernels is None or bool(onednn_reason()), reason="other kernels compute here"),
]

ROOT = Path(ooc.__file__).parent
ROW = re.compile(r"^\| `([\w/]+\.py)` \| .+ \| (yes)? ?\|$", re.M)

# In a process of its own: what other tests have asked before is not remembered, nor imported.
PROGRAM = """
import sys
from pathlib import Path
import numpy as np
import ooc

ooc.conv, ooc.device  # names are imported when they are first used
root, x, w = Path(ooc.__file__).parent, np.ones((2, 8, 40, 40), "f"), np.ones((8, 8, 3, 3), "f")

def entered():
    seen = {}
    def note(frame, event, arg):
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(root):
            seen.setdefault(path.relative_to(root).as_posix())
    sys.setprofile(note)
    ooc.conv(x, w, padding=1)
    sys.setprofile(None)
    return seen

with ooc.device("cpu", "64 KiB"):
    print(*entered())
    print(*entered())
"""


@pytest.fixture(scope="module")
def walks() -> list[list[str]]:
    """The modules that a call enters in order: the first time, and when its plan is remembered."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    return [line.split() for line in done.stdout.splitlines()]


def test_the_walk_of_one_convolution(walks: list[list[str]]) -> None:
    told = [path for path, _ in ROW.findall((ROOT / "DESIGN.md").read_text())]
    for walk, when in zip(walks, ("first", "again"), strict=True):
        print(f"{when}: {len(walk)} modules: {' '.join(walk)}")
    assert walks[0] == told


def test_what_a_repeated_call_enters(walks: list[list[str]]) -> None:
    told = {path for path, again in ROW.findall((ROOT / "DESIGN.md").read_text()) if again}
    assert set(walks[1]) == told

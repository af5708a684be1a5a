"""A picture is written beside its place under a name that nobody knows before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ooc

pytest.importorskip("PIL")
WHOLE = ((0, 4), (0, 4))


def test_links_that_somebody_laid_are_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for name in (f"y.png.{os.getpid()}.part", "y.png.part", f"y.png.part{os.getpid():08x}"):
        (tmp_path / name).symlink_to(victim)
    with ooc.create(tmp_path / "y.png", (4, 4), "u1") as made:
        made.write(WHOLE, np.full((4, 4), 7, "u1"))
    assert victim.read_text() == "mine"
    found = np.empty((4, 4), "u1")
    with ooc.open(tmp_path / "y.png") as read:
        read.read(WHOLE, found)
    assert (found == 7).all() and not (tmp_path / "y.png").is_symlink()


def test_what_a_killed_process_left_goes(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys, ooc, PIL.Image\n"
        "save = PIL.Image.Image.save\n"
        "def killed(self, file, **options):\n"
        "    save(self, file, **options); file.flush(); os.kill(os.getpid(), signal.SIGKILL)\n"
        "PIL.Image.Image.save = killed\n"
        "ooc.create(sys.argv[1], (4, 4), 'u1').close()\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "y.png")], timeout=60, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(list(tmp_path.iterdir())) == 1
    ooc.create(tmp_path / "y.png", (4, 4), "u1").close()
    assert [p.name for p in tmp_path.iterdir()] == ["y.png"]

"""A user without a home, as containers have them, keeps nothing on the disk, and computes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HOMELESS = """
import os
from ooc.backends.cuda.code import machine_code
from ooc.backends.cuda.source import PARTS
from ooc.backends.cuda.tuning import AlgorithmChoice, Measurements
from ooc.cache import cache_folder
import ooc, ooc.cli.doctor, numpy as np
ooc.conv  # imported while this user may read the standard library
os.setuid({uid})
assert cache_folder() is None
known = Measurements({{"gpu": "none"}})
known.add("tile", [AlgorithmChoice(1.0, 0, 0, 0)], 0)
assert known.best("tile", 0) is not None

class Compiler:
    NVRTCError = RuntimeError
    getVersion = staticmethod(lambda: (13, 0))
    createProgram = staticmethod(lambda *given: 1)
    compileProgram = destroyProgram = staticmethod(lambda *given: None)
    getCUBIN = staticmethod(lambda program: b"code")

assert machine_code(Compiler, PARTS[0], "f32", 32, "90") == b"code"
assert ooc.conv(np.ones((1, 1, 8, 8), "f4"), np.ones((1, 1, 3, 3), "f4"))[0, 0, 0, 0] == 9
"""


def unknown() -> int:
    import pwd

    used = {user.pw_uid for user in pwd.getpwall()}
    return next(uid for uid in range(54321, 60000) if uid not in used)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root becomes a user that is none")
def test_without_a_home(tmp_path: Path) -> None:
    env = {k: v for k, v in os.environ.items() if k not in ("HOME", "XDG_CACHE_HOME", "OOC_CACHE")}
    code = HOMELESS.format(uid=unknown())
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.iterdir())


def test_a_cache_is_not_where_somebody_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its specification XDG_CACHE_HOME is absolute, or ignored."""
    from ooc.cache import cache_folder

    monkeypatch.delenv("OOC_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", ".")
    assert cache_folder() == tmp_path / ".cache" / "ooc"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache_folder() == tmp_path / "x" / "ooc"

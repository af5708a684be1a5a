"""An installation without the compiled extension computes slowly, and says so, once, and why."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import ooc

# In a process that does not know what is installed of the work tree.
ALONE = "import sys; sys.meta_path = [f for f in sys.meta_path if 'editable' not in getattr(f, '__module__', '') + repr(f)]\n"
COMPUTES = """
import numpy as np, ooc
x, w = np.ones((1, 4, 16, 16), "f4"), np.ones((4, 4, 3, 3), "f4")
for _ in range(3):
    assert ooc.conv(x, w, padding=1)[0, 0, 5, 5] == 36
ooc.activation(x, "relu")
"""
PLANS = "import ooc; ooc.plan('conv.fprop n=1 c=4 h=8 w=8 k=4 r=3 s=3', '64 KiB')"
DOCTOR = "from ooc.cli.doctor import examine, show; print(show(examine()))"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of ooc without the extension, with what Python has compiled of it."""
    source = Path(ooc.__file__).parent
    shutil.copytree(source, tmp_path / "ooc", ignore=shutil.ignore_patterns("*.so"))
    return tmp_path


def told(package: Path, code: str, **settings: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "OOC_NATIVE")} | {
        "PYTHONPATH": str(package),
        **settings,
    }
    done = subprocess.run(
        [sys.executable, "-P", "-W", "always", "-c", ALONE + code], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done


def broken(package: Path) -> None:
    (package / "ooc" / f"_kernels{sysconfig.get_config_var('EXT_SUFFIX')}").write_bytes(b"no library")


def test_it_is_told_once_when_it_computes(package: Path) -> None:
    error = told(package, COMPUTES).stderr
    assert error.count("RuntimeWarning") == 1 and "C++ compiler" in error and "NumPy" in error
    assert not told(package, PLANS).stderr
    assert not told(package, COMPUTES, OOC_NATIVE="off").stderr  # who switched it off knows
    broken(package)
    error = told(package, COMPUTES).stderr
    assert error.count("RuntimeWarning") == 1 and "file too short" in error


def test_the_doctor_names_the_reason(package: Path) -> None:
    found = told(package, DOCTOR).stdout
    assert found.count("C++ compiler") == 1 and "circular" not in found and "our own kernels are used" not in found
    assert "NumPy computes" in found
    broken(package)
    found = told(package, DOCTOR).stdout
    assert found.count("file too short") == 1 and "C++ compiler" not in found
    found = told(package, DOCTOR, OOC_NATIVE="off").stdout
    assert "OOC_NATIVE=off" in found and "C++ compiler" not in found

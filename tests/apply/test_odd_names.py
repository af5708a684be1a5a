"""Names of files are bytes, whatever the locale says of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sweeps import crossed

apply_files = pytest.importorskip("apply_files")

import numpy as np  # noqa: E402

POSIX = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
UTF8 = {"LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "utf-8:strict"}


@pytest.mark.parametrize(
    ("settings", "name"), crossed([UTF8, POSIX], [b"un\xff.raw", "gr\u00f6\u00dfe.raw".encode(), b"two\nlines.raw"], every=2)
)
def test_a_mapped_file_of_any_name(name: bytes, settings: dict[str, str], tmp_path: Path) -> None:
    code = (
        "import os, sys, numpy as np\n"
        "held = np.memmap(sys.argv[1], 'f4', 'w+', shape=(1, 4, 32, 32))\n"
        "import ooc\n"
        "x, w = np.ones((1, 4, 32, 32), 'f4'), np.ones((4, 4, 3, 3), 'f4')\n"
        "ooc.conv(x, w, padding=1, out=held)\n"
        "assert np.array_equal(held, ooc.conv(x, w, padding=1)) and held[0, 0, 5, 5] == 36\n"
        "assert np.array_equal(ooc.activation(held, 'relu'), held)\n"
    )
    path = os.path.join(os.fsencode(tmp_path), name)
    done = subprocess.run(
        [sys.executable, "-c", code, path], env=os.environ | settings, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("settings", "name", "more"), crossed([UTF8, POSIX], [b"un\xff", "gr\u00f6\u00dfe".encode()], [[], ["--resume"]], every=2)
)
def test_a_network_on_files_of_any_name(name: bytes, settings: dict[str, str], more: list[str], tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", np.random.default_rng(3).standard_normal((1, 1, 12, 10, 14)).astype(np.float32))
    apply_files.volume_network(tmp_path / "v.onnx")
    folder = os.path.join(os.fsencode(tmp_path), name)
    os.mkdir(folder)
    files = [os.path.join(folder, name + ending) for ending in (b".onnx", b".npy", b"-out.npy")]
    for old, new in zip(("v.onnx", "v.npy"), files[:2], strict=True):
        os.rename(tmp_path / old, new)
    args = ["apply", files[0], "--input", files[1], "--output", files[2], "--budget", "300KiB", *more]
    for _ in range(2 if more else 1):  # begun, and found finished
        done = subprocess.run([sys.executable, "-m", "ooc", *args], env=os.environ | settings, capture_output=True, timeout=120)
        assert done.returncode == 0, done.stderr.decode(errors="replace")
    assert np.isfinite(np.load(os.fsdecode(files[2]))).all()

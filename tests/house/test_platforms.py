"""What other systems have not: Windows imports ooc and computes in memory; macOS works on files, too. Here both are played by
taking away what they lack."""

from __future__ import annotations

import subprocess
import sys

import pytest

MACOS = (
    "sched_getaffinity", "sched_setaffinity", "posix_fallocate", "posix_fadvise", "O_TMPFILE", "O_DIRECT", "POSIX_FADV_RANDOM",
    "memfd_create",
)  # fmt: skip
WINDOWS = (
    *MACOS, "pread", "pwrite", "preadv", "pwritev", "O_NOFOLLOW", "O_DIRECTORY", "O_NONBLOCK", "fork", "sync", "sysconf",
    "statvfs", "getuid", "geteuid", "getpgid", "killpg", "uname", "mkfifo", "fchmod",
)  # fmt: skip
MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog")
# What ooc stands on is imported before, as it knows these systems itself.
BEGIN = """
import sys, os, subprocess, multiprocessing, concurrent.futures, tempfile, shutil, asyncio, platform, ctypes, logging.handlers
import importlib.metadata, socket, ssl, zipfile, numpy, numpy.testing, highspy, ml_dtypes
"""
TAKEN = """
for name in {names}: delattr(os, name) if hasattr(os, name) else None
for name in {modules}: sys.modules[name] = None
if hasattr(os, "sysconf"):
    real = os.sysconf
    def sysconf(name):
        if name == "SC_AVPHYS_PAGES": raise ValueError("unrecognized configuration name")
        return real(name)
    os.sysconf = sysconf
"""
IN_MEMORY = """
import numpy as np, ooc, ooc.networks, ooc.training.job, ooc.apply, ooc.workers, ooc.sources
import ooc.cli.apply, ooc.cli.network, ooc.cli.train
x, w = np.arange(2 * 3 * 20 * 20, dtype="f4").reshape(2, 3, 20, 20), np.ones((4, 3, 3, 3), "f4")
whole = ooc.conv(x, w, padding=1)
with ooc.device("cpu", "8 KiB"):
    assert np.array_equal(ooc.conv(x, w, padding=1), whole)
g = ooc.Graph("g"); g.output(g.conv(g.input("x", (3, 20, 20)), 4, 3, padding=1))
with g.plan(batch=2, train=False, budget="64 KiB", device="cpu").session() as session:
    assert session.forward(x).shape == (2, 4, 20, 20)
"""
ON_FILES = """
np.save("x.npy", x)
y = np.lib.format.open_memmap("y.npy", "w+", np.float32, whole.shape)
with ooc.device("cpu", "8 KiB"):
    ooc.conv(np.load("x.npy", mmap_mode="r"), w, padding=1, out=y)
assert np.array_equal(np.load("y.npy"), whole)
plan = g.plan(batch=2, train=False, budget="64 KiB", device="cpu")
ooc.run_tasks(ooc.tasks(plan, "x.npy", "z.npy"))
assert np.load("z.npy").shape == (2, 4, 20, 20)
with g.plan(batch=2, train=False, budget="12 KiB", device="cpu", policy="stream").session() as session:
    session.forward(np.load("x.npy", mmap_mode="r"))  # what lies between calls is in a file
"""
DOCTOR = """
from ooc.cli.main import main
assert main(["doctor"]) == 0
"""


@pytest.mark.parametrize(
    ("names", "modules", "code"),
    [
        (MACOS, (), IN_MEMORY + ON_FILES + DOCTOR),
        (WINDOWS, MODULES, IN_MEMORY),
        ((), ("fcntl", "resource"), IN_MEMORY + ON_FILES),
    ],
    ids=["macOS", "Windows", "no fcntl"],
)
def test_a_system_that_lacks(names: tuple[str, ...], modules: tuple[str, ...], code: str, tmp_path: object) -> None:
    program = BEGIN + TAKEN.format(names=names, modules=modules) + code
    run = [sys.executable, "-c", program]
    done = subprocess.run(run, cwd=str(tmp_path), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]

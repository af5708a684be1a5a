"""Intermediate files: no death of the process leaves one, and each goes when its last reader is done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sweeps import swept
from waiting import HANGS

import ooc
from ooc.runtime import swap

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals")
CUT = """
    import os
    import sys

    import numpy as np
    import ooc

    folder, death = sys.argv[1], int(sys.argv[2])
    x = np.lib.format.open_memmap(f"{folder}/x.npy", "w+", "f", (1, 8, 96, 96))
    y = np.lib.format.open_memmap(f"{folder}/y.npy", "w+", "f", (1, 8, 96, 96))
    w = np.ones((8, 8, 5, 5), "f")

    def die(done, tiles):
        if done > tiles * 2 // 3:
            if death:
                os.kill(os.getpid(), death)
            raise SystemExit(3)

    with ooc.device("cpu", budget="16 KiB"):
        ooc.chain(x, *[ooc.Conv(w, padding=2)] * 4, out=y, callbacks=die)
"""


@pytest.mark.parametrize("death", swept([signal.SIGKILL, signal.SIGINT, 0, signal.SIGTERM, signal.SIGABRT], suite=3))
def test_no_death_leaves_a_file(tmp_path: Path, death: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CUT), tmp_path, str(int(death))], capture_output=True, text=True, timeout=HANGS
    )  # fmt: skip
    assert ended.returncode, ended.stderr
    assert sorted(os.listdir(tmp_path)) == ["x.npy", "y.npy"]


@pytest.mark.parametrize("named", [False, True], ids=["O_TMPFILE", "a name, unlinked"])
def test_files_go_when_their_last_reader_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool) -> None:
    """Three files pass between four convolutions; two live at most, none has a name."""
    if named:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    living: list[int] = []
    open_now: set[int] = set()
    make, close = swap.SwapFile.__init__, swap.SwapFile.close

    def making(self: swap.SwapFile, *given: Any) -> None:
        make(self, *given)
        open_now.add(id(self))
        living.append(len(open_now))

    def closing(self: swap.SwapFile) -> None:
        open_now.discard(id(self))
        close(self)

    monkeypatch.setattr(swap.SwapFile, "__init__", making)
    monkeypatch.setattr(swap.SwapFile, "close", closing)
    x = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", "f", (1, 8, 96, 96))
    x[:] = np.random.default_rng(0).integers(-1, 2, x.shape)
    w = np.random.default_rng(1).integers(-1, 2, (8, 8, 5, 5)).astype("f")
    names: set[str] = set()
    with ooc.device("cpu", budget="16 KiB"):
        y = ooc.chain(x, *[ooc.Conv(w, padding=2)] * 4, callbacks=lambda *_: names.update(os.listdir(tmp_path)))
    assert names == {"x.npy"}
    assert living == [1, 2, 2]
    assert not open_now
    wanted = x
    for _ in range(4):
        wanted = ooc.conv(np.array(wanted), w, padding=2)
    np.testing.assert_allclose(y, wanted, rtol=1e-5)

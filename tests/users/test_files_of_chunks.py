"""Large files of chunks under small budgets: memory of the process, files beside and in the temporary folder, decoding."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sweeps import swept

import ooc

MIB = 1 << 20
CHILD = """
import sys, threading
import numpy as np
import ooc
from ooc.sources.arrays import ArraySource

kind, path, budget = sys.argv[1:]
W = np.ones((2, 8, 3, 3), np.float32)

def opened():
    if kind == "h5py":
        import h5py
        return h5py.File(path, "r")["x"]
    if kind == "dask":
        import dask.array
        return dask.array.from_zarr(path)
    import zarr
    return zarr.open_array(path, mode="r")

def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))

decoded, read = [0], ArraySource.read
def counted(self, region, out):
    decoded[0] += np.prod([s.extent for s in self.own(region)]) * self.dtype.itemsize
    read(self, region, out)
ArraySource.read = counted

x = opened()
out = np.lib.format.open_memmap(sys.argv[2] + ".y.npy", "w+", np.float32, (1, 2, *x.shape[2:]))
with ooc.device("cpu", budget=int(budget)):
    ooc.conv(x[:, :, :8, :8] if kind == "dask" else opened()[:, :, :8, :8], W, padding=1)  # what libraries load, they load now
    decoded[0], before = 0, resident()
    ooc.conv(x, W, padding=1, out=out)
print(resident() - before, decoded[0] / (np.prod(x.shape) * 4))
"""


def written(kind: str, path: Path, shape: tuple[int, ...], chunks: tuple[int, ...]) -> None:
    """A file of integers, filled a few chunks at a time."""
    if kind == "h5py":
        file = pytest.importorskip("h5py").File(path, "w")
        made = file.create_dataset("x", shape, "f4", chunks=chunks)
    else:
        zarr = pytest.importorskip("zarr")
        made, file = zarr.create_array(path, shape=shape, dtype="f4", chunks=chunks, compressors=None), None
    for at in range(0, shape[2], chunks[2]):
        held = np.arange(8 * chunks[2] * shape[3], dtype=np.float32).reshape(1, 8, chunks[2], shape[3]) % 7 - 3 + at % 5
        made[:, :, at : at + chunks[2]] = held
    if file is not None:
        file.close()


@pytest.mark.parametrize("kind", swept(["zarr", "h5py", "dask"], suite=1))
def test_the_memory_of_a_process_keeps_within_the_budget(kind: str, tmp_path: Path) -> None:
    """Rows of chunks that are larger than the budget: 128 MiB under 8; each chunk is decoded once, or half as often again."""
    pytest.importorskip({"dask": "dask.array"}.get(kind, kind))
    shape, chunks = (1, 8, 1024, 4096), (1, 8, 128, 64)
    written(kind, tmp_path / "x", shape, chunks)
    ended = subprocess.run([sys.executable, "-c", CHILD, kind, str(tmp_path / "x"), str(8 * MIB)], capture_output=True, text=True)
    assert not ended.returncode, ended.stderr
    grown, decoded = map(float, ended.stdout.split())
    assert grown <= (8 + 64) * MIB and decoded <= 1.5
    found = np.load(f"{tmp_path}/x.y.npy", mmap_mode="r")
    row = np.arange(8 * 128 * 4096, dtype=np.float32).reshape(1, 8, 128, 4096) % 7 - 3
    held = np.concatenate([row + at % 5 for at in (0, 128)], 2)
    expected = ooc.conv(held, np.ones((2, 8, 3, 3), np.float32), padding=1)[:, :, :250]
    assert np.array_equal(found[:, :, :250], expected)


def in_folder(folder: str) -> list[str]:
    """Files of a folder that this process has open, those without a name too."""
    links = [os.path.join("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd")]
    return [to for link in links if os.path.lexists(link) and (to := os.readlink(link)).startswith(folder)]


@pytest.mark.skipif(sys.platform != "linux", reason="looks at open files")
def test_nothing_lies_in_the_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a result of 16 MiB under 1 MiB, whose chunks hold more than rows of tiles."""
    zarr = pytest.importorskip("zarr")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    x, w = np.arange(1024 * 1024, dtype=np.float32).reshape(1, 1, 1024, 1024) % 5, np.ones((4, 1, 3, 3), np.float32)
    out = zarr.create_array(tmp_path / "y.zarr", shape=(1, 4, 1024, 1024), dtype="f4", chunks=(1, 4, 200, 100))
    met: list[Any] = []
    with ooc.device("cpu", budget=MIB):
        ooc.conv(x, w, padding=1, out=out, callbacks=[lambda tile, tiles: met.extend(in_folder(str(tmp_path / "temporary")))])
    assert not met and not list((tmp_path / "temporary").iterdir())
    assert {path.name for path in tmp_path.iterdir()} == {"temporary", "y.zarr"}
    assert np.array_equal(out[...], ooc.conv(x, w, padding=1))

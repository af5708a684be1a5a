"""What an installed wheel must be able to do: compute by its kernels, on a file, under a budget. It takes a second."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

import ooc
from ooc import native
from ooc.cli.main import main as command


def main() -> None:
    if native.kernels is None:
        sys.exit(f"{ooc.__file__}: {native.reason}")
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((1, 4, 24, 64, 64), np.float32), rng.standard_normal((8, 4, 3, 3, 3), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "x.npy", x)
        source = np.load(Path(folder) / "x.npy", mmap_mode="r")
        with ooc.device("cpu", budget="512 KiB"):
            y = ooc.conv(source, w, padding=1)
            report = ooc.last_report()
            assert report is not None and report.tiles > 1, report
        del source  # a file in use cannot be removed everywhere
    padded = np.pad(x[0], [(0, 0), (1, 1), (1, 1), (1, 1)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3, 3), axis=(1, 2, 3))
    np.testing.assert_allclose(y[0], np.einsum("cdhwijk,ocijk->odhw", windows, w, optimize=True), rtol=1e-4, atol=1e-4)
    sys.exit(command(["doctor"]))  # in this process: an emulated one may have no others


if __name__ == "__main__":
    main()

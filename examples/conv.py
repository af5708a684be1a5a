"""The smallest real use: a convolution from one file to another, larger than the memory it may use.

python examples/conv.py [SIDE]     (default 1024: files of 100 MB, under a budget of 16 MiB)
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

import ooc


def main(side: int = 1024) -> None:
    """Make an image of noise, blur and mix its channels, and tell what that took."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "x.npy", rng.standard_normal((1, 8, side, side), np.float32))

        x = np.load(folder / "x.npy", mmap_mode="r")  # never read as a whole
        y = np.lib.format.open_memmap(folder / "y.npy", "w+", np.float32, (1, 16, side, side))
        w = rng.standard_normal((16, 8, 3, 3), np.float32)
        with ooc.device("cpu", budget="16 MiB"):
            ooc.conv(x, w, padding=1, activation="relu", out=y)

        print(ooc.last_report())
        print(f"files     {(x.nbytes + y.nbytes) / 1e6:.0f} MB, mean of the result {y[0, :, :64, :64].mean():.4f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))

"""Write what the commands of docs/domains read, of what is there: the relief as TIFF, in colour and in grey, and the head as
plain NIfTI.

python examples/real/prepare.py     (after fetch.py; Pillow decodes the JPEG whole, which takes some 600 MiB once)
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from cases import LUMINANCE, Array, stored
from networks import DATA

import ooc
from ooc.ir.region import whole


def written(path: Path, values: Array, axes: str) -> None:
    """A tensor in a file, and what Topaz has to know of it."""
    with ooc.create(path, values.shape, values.dtype, axes, overwrite=True) as sink:
        sink.write(whole(values.shape), values)
    mean, deviation = float(np.mean(values, dtype=np.float64)), float(np.std(values, dtype=np.float64))
    print(f"{path.name}: {'x'.join(map(str, values.shape))} {values.dtype}, mean {mean:.4f}, deviation {deviation:.4f}")


def main() -> int:
    """Write them; the exit status: 1 if there is nothing to write them of."""
    picture, volume = DATA / "relief.jpg", DATA / "head.nii.gz"
    if picture.exists():
        relief = stored(picture)
        written(DATA / "relief.tif", relief, "yxc")
        written(DATA / "grey.tif", np.rint(relief @ LUMINANCE).astype(np.uint8), "yx")
    if volume.exists():
        written(DATA / "head.nii", stored(volume), "zyx")
    if not picture.exists() and not volume.exists():
        print("nothing to prepare: python examples/real/fetch.py relief head", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

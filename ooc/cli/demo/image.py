"""The demo's image: a photograph that matplotlib ships, repeated until it is larger than the memory budget."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator, default_rng

from ooc.errors import UnsupportedError
from ooc.schedule.budget import show_bytes

MEAN, SPREAD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])  # of ImageNet's colours

Array = Any


def photograph() -> Array:
    """matplotlib's sample photograph, height x width x 3, 0 to 1."""
    try:
        from matplotlib.cbook import get_sample_data
        from matplotlib.image import imread
    except ImportError:
        raise UnsupportedError("the demo needs matplotlib for its photograph and picture; pip install matplotlib") from None
    path = get_sample_data("grace_hopper.jpg", asfileobj=False)
    return np.asarray(imread(str(path)), np.float32) / 255


def make_image(path: Path, photo: Array, width: int, height: int) -> None:
    """Fill a file with mirrored copies of a photograph, no two equally bright, a band of rows at a time."""
    begin, rng = time.perf_counter(), default_rng(1906)
    image = np.lib.format.open_memmap(path, "w+", np.float32, (1, 3, height, width))
    with open(path, "r+b") as file:
        if hasattr(os, "posix_fallocate"):  # a full disk is an error here; later, writing to the mapping, it is a crash
            os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
        for top in range(0, height, photo.shape[0]):
            band = _band(photo, width, rng)
            image[0, :, top : top + photo.shape[0]] = band[:, : height - top]
            image.flush()
        # Just written, the file is in memory. The run must read it from the disk.
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):
            del image  # mapped pages stay cached
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    print(
        f"image     {width} x {height} pixels, {show_bytes(path.stat().st_size)}, made in {time.perf_counter() - begin:.1f} s",
        flush=True,
    )


def _band(photo: Array, width: int, rng: Generator) -> Array:
    """One row of copies: 3 x photo height x width, normalised."""
    band = np.empty((3, photo.shape[0], width), np.float32)
    flip_rows = rng.random() < 0.5
    for left in range(0, width, photo.shape[1]):
        flipped = photo[:: -1 if flip_rows else 1, :: -1 if rng.random() < 0.5 else 1]
        colours = ((flipped * rng.uniform(0.6, 1.0) - MEAN) / SPREAD).transpose(2, 0, 1)
        band[:, :, left : left + photo.shape[1]] = colours[:, :, : width - left]
    return band

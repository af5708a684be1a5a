"""MRC 2014 files of electron microscopy, .mrc, .mrcs, .map and .rec: read as they lie.

Source: Cheng et al., "MRC2014: Extensions to the MRC format header for electron cryo-microscopy and tomography", J. Struct. Biol.
2015.
"""

from __future__ import annotations

import struct

import numpy as np

from ooc.errors import StoreError, UnsupportedError
from ooc.sources.checks import faults, sizes
from ooc.sources.geometry import spacing
from ooc.sources.place import TensorPath
from ooc.sources.raw import RawSource

HEADER = 1024  # bytes
MODES = {0: "i1", 1: "i2", 2: "f4", 4: "c8", 6: "u2", 12: "f2"}
VOLUMES = 401  # of a space group: from here on a stack of volumes
MOST_EXTENDED = 1 << 30  # bytes of an extended header


def open_mrc(at: TensorPath, writable: bool) -> RawSource:
    """The image, the stack of images, the volume or the stack of volumes of a file."""
    with faults(at.text, "opening"), open(at.file, "rb") as file:
        raw = file.read(HEADER)
    if len(raw) < HEADER or raw[208:211] != b"MAP":
        raise StoreError(f"{at.text}: no MRC file, or cut off in its header")
    order = _order(raw)
    if order is None:
        raise StoreError(f"{at.text}: an MRC file of an unknown byte order")
    nx, ny, nz, mode = struct.unpack_from(f"{order}4i", raw, 0)
    samples = struct.unpack_from(f"{order}3i", raw, 28)
    cell, axes = struct.unpack_from(f"{order}3f", raw, 40), struct.unpack_from(f"{order}3i", raw, 64)
    group, extended = struct.unpack_from(f"{order}i", raw, 88)[0], struct.unpack_from(f"{order}i", raw, 92)[0]
    if mode not in MODES:
        raise UnsupportedError(f"{at.text}: numbers of mode {mode}; there are {', '.join(map(str, MODES))}")
    if axes not in ((1, 2, 3), (0, 0, 0)):
        raise UnsupportedError(f"{at.text}: axes in another order, {axes}; expected columns along x, rows along y")
    if not 0 <= extended <= MOST_EXTENDED:
        raise StoreError(f"{at.text}: an extended header of {extended} bytes")
    shape, letters = sizes(at.text, (nz, ny, nx), "extents", 1), "zyx" if group else "tyx"
    if group >= VOLUMES and samples[2] > 0 and nz % samples[2] == 0:
        shape, letters = (nz // samples[2], samples[2], ny, nx), "tzyx"
    source = RawSource(at.text, at.file, shape, np.dtype(order + MODES[mode]), HEADER + extended, letters, writable)
    origin = struct.unpack_from(f"{order}3f", raw, 196)
    steps = [c / n if n > 0 else 0.0 for c, n in zip(cell, samples, strict=True)]
    lies = {a: spacing(step, first, "Å") for a, step, first in zip("xyz", steps, origin, strict=True)}
    source.geometry = {a: told for a, told in lies.items() if told is not None and a in letters}
    return source


def _order(header: bytes) -> str | None:
    """As the stamp says; of older files, which leave it zero, the one in which rows are shorter."""
    stamp = header[212:213]
    if stamp != b"\0":
        return {b"\x44": "<", b"\x11": ">"}.get(stamp)
    return min("<>", key=lambda order: int(struct.unpack_from(f"{order}I", header, 0)[0]))

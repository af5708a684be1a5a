"""NumPy's .npy format."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import IO, Any

import numpy as np

from ooc.errors import StoreError

MOST_HEADER = 10_000  # bytes: of a header that NumPy parses
PARSING = threading.Lock()  # NumPy parses headers by Python's `ast`, which fails in several threads at once before Python 3.11.8


def read_header(file: IO[bytes], what: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether the order is Fortran's, and dtype; the file then is at the values. what: the file, for errors. Raises
    StoreError for a version that is unknown and a header that is too long, ValueError for what is no header."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise StoreError(f"{what}: version {version} of the npy format is not known")
    said = file.read(2 if version == (1, 0) else 4)
    if (length := int.from_bytes(said, "little")) > MOST_HEADER:  # NumPy would allocate what the length says before it looks
        raise StoreError(f"{what}: a header of {length} bytes; at most {MOST_HEADER} are read")
    # Version 3 differs from 2 in the names of fields alone, and numbers have none.
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    with PARSING:
        return read(io.BytesIO(said + file.read(length)), max_header_size=MOST_HEADER)


def save(path: Path, array: np.ndarray[Any, Any]) -> None:
    """What `np.save` writes, but Ctrl-C stays KeyboardInterrupt: where it comes while `np.save` flushes its file, NumPy turns it
    into a TypeError."""
    rows = array if array.flags.c_contiguous or array.flags.f_contiguous else np.ascontiguousarray(array)
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(rows))
        file.write((rows if rows.flags.c_contiguous else rows.T).reshape(-1).view(np.uint8).data)

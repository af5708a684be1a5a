"""NumPy's .npy files, in C and in Fortran order."""

from __future__ import annotations

import math

import numpy as np

from ooc.errors import StoreError
from ooc.sources.checks import faults, numeric, sizes
from ooc.sources.place import NewTensor, TensorPath, creating, fresh
from ooc.sources.raw import RawSource, lengthen

MOST_HEADER = 10_000  # bytes: of a header that NumPy parses


def open_npy(at: TensorPath, writable: bool) -> RawSource:
    """The array of a .npy file."""
    with faults(at.text, "opening"), open(at.file, "rb") as file:
        version = np.lib.format.read_magic(file)
        if version not in ((1, 0), (2, 0), (3, 0)):
            raise StoreError(f"{at.text}: version {version} of the npy format is not known")
        start = file.tell()
        if (length := int.from_bytes(file.read(2 if version == (1, 0) else 4), "little")) > MOST_HEADER:
            raise StoreError(f"{at.text}: a header of {length} bytes; at most {MOST_HEADER} are read")
        file.seek(start)  # NumPy would allocate what the length says before it looks
        # Version 3 differs from 2 in the names of fields alone, and numbers have none.
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file, max_header_size=MOST_HEADER)
        offset = file.tell()
    shape, dtype = sizes(at.text, shape), numeric(at.text, dtype)
    return RawSource(at.text, at.file, shape, dtype, offset, writable=writable, fortran=fortran)


def create_npy(at: TensorPath, tensor: NewTensor) -> RawSource:
    """A .npy file of zeros, whole at once."""
    tensor.plain(at.text)
    fresh(at, tensor.overwrite)
    header = {"descr": np.lib.format.dtype_to_descr(tensor.dtype), "fortran_order": False, "shape": tensor.shape}
    with faults(at.text, "creating"), open(at.file, "xb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        offset = file.tell()
    with creating(at.text, at.file):
        lengthen(at.file, offset + math.prod(tensor.shape) * tensor.dtype.itemsize)
        return RawSource(at.text, at.file, tensor.shape, tensor.dtype, offset, tensor.axes, writable=True)

"""NumPy's .npy files, in C and in Fortran order."""

from __future__ import annotations

import math

import numpy as np

from ooc.files.npy import read_header
from ooc.sources.checks import faults, numeric, sizes
from ooc.sources.place import NewTensor, TensorPath, creating, fresh
from ooc.sources.raw import RawSource, lengthen


def open_npy(at: TensorPath, writable: bool) -> RawSource:
    """The array of a .npy file."""
    with faults(at.text, "opening"), open(at.file, "rb") as file:
        shape, fortran, dtype = read_header(file, at.text)
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

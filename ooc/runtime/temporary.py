"""Room for what one part of a cut chain hands to the next, until its last reader is done."""

from __future__ import annotations

import math
import os
import tempfile

import numpy as np

from ooc.errors import StoreError
from ooc.files.unnamed import unnamed_file
from ooc.ir.op import Operand, numpy_dtype
from ooc.runtime.store import ArrayStore, FileStore, Store


def memory_for(made: Operand, threads: int) -> Store:
    """Room in memory. threads: for copying."""
    return ArrayStore(np.empty(made.shape, numpy_dtype(made.dtype)), threads)


def file_for(made: Operand, folder: str) -> Store:
    """Room in a file in a folder, "" for the temporary one, gone when it is closed, or when the process dies in whatever way: it
    has no name. Raises StoreError."""
    folder = folder or tempfile.gettempdir()
    dtype = numpy_dtype(made.dtype)
    try:
        fd = unnamed_file(folder)
        try:
            os.ftruncate(fd, math.prod(made.shape) * dtype.itemsize)
        except BaseException:
            os.close(fd)
            raise
        return FileStore(_Laid(made.shape, dtype.itemsize), f"an intermediate file in {folder}", 0, True, fd)
    except OSError as error:
        raise StoreError(error.errno, f"intermediate file in {folder}: {error.strerror or error}") from error


class _Laid:
    """How a contiguous array lies in a file, without a mapping."""

    def __init__(self, shape: tuple[int, ...], itemsize: int) -> None:
        self.shape, self.itemsize = shape, itemsize
        self.strides = tuple(math.prod(shape[i + 1 :]) * itemsize for i in range(len(shape)))

"""What lies between, on the disk: files without a name, gone with the process, and tensors in parts of them."""

from __future__ import annotations

import os
import tempfile

from ooc.backends.views import dense_strides
from ooc.errors import StoreError
from ooc.files.unnamed import path_of, unnamed_file
from ooc.ir.op import ITEM_BYTES, Operand
from ooc.runtime.store import FileStore


class SwapFile:
    """A file without a name, all of whose bytes the disk has promised; gone when it is closed, or when the process dies in
    whatever way.

    nbytes: of it. folder: default the system's temporary directory. Raises StoreError, on a full disk too.
    """

    def __init__(self, nbytes: int, folder: str | None = None) -> None:
        where = folder or tempfile.gettempdir()
        self.path, self.fd, self.direct = f"the swap file in {where}", -1, -1
        try:
            self.fd = unnamed_file(where)
            if nbytes and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self.fd, 0, nbytes)
            else:  # macOS promises nothing: a full disk shows itself later
                os.ftruncate(self.fd, nbytes)
        except OSError as error:
            self.close()
            raise StoreError(error.errno, f"{self.path}, of {nbytes} bytes: {error.strerror or error}") from error
        try:
            self.direct = os.open(path_of(self.fd), os.O_RDWR | getattr(os, "O_DIRECT", 0))
        except OSError:
            self.direct = -1  # the file system has no direct I/O: buffered will do

    def close(self) -> None:
        """Give the room back."""
        for fd in (self.fd, self.direct):
            if fd >= 0:
                os.close(fd)
        self.fd = self.direct = -1


class FilePart(FileStore):
    """A tensor in a part of a swap file. sole: whether it is the only one there, and closes the file; else its owner does."""

    def __init__(self, operand: Operand, file: SwapFile, offset: int = 0, threads: int = 1, sole: bool = False) -> None:
        self.file = file if sole else None
        self.threads, self.shape, self.itemsize = threads, operand.shape, ITEM_BYTES[operand.dtype]
        self.strides = dense_strides(operand.shape, self.itemsize, operand.memory_order)
        self.path, self.offset, self.fd, self.direct = file.path, offset, file.fd, file.direct

    def close(self) -> None:
        if self.file is not None:
            self.file.close()

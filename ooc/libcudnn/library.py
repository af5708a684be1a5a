"""Status, version and handles."""

from __future__ import annotations

import operator

from ooc.backends.cuda.cudnn import open_cudnn
from ooc.libcudnn.errors import CuDNNError
from ooc.libcudnn.registry import Handle, add, drop, find

__all__ = [
    "check_status", "create", "destroy", "getStream", "getVersion", "get_build_version", "queryRuntimeError", "setStream",
]  # fmt: skip

VERSION = 92000  # the cuDNN whose behaviour is kept


def check_status(status: int) -> None:
    """Raise CuDNNError unless the status is CUDNN_STATUS_SUCCESS."""
    if status != 0:
        raise CuDNNError(status)


def get_build_version() -> int:
    """The version of cuDNN whose behaviour is kept."""
    return VERSION


def getVersion() -> int:
    """The version of the cuDNN that was found, or else of the one whose behaviour is kept. Source: cudnnGetVersion."""
    library = open_cudnn()
    return VERSION if library is None else int(library.version)


def create() -> int:
    """A new handle; it needs no device. Source: cudnnCreate."""
    return add(Handle(ready=True))


def destroy(handle: int) -> None:
    """Source: cudnnDestroy."""
    drop(Handle, handle, "handle")


def setStream(handle: int, stream: int) -> None:
    """Kept for `getStream`. As with CuPy v13, every call is ordered after what the thread has issued on CuPy's current
    stream. Source: cudnnSetStream."""
    find(Handle, handle, "handle").stream = operator.index(stream)


def getStream(handle: int) -> int:
    """Source: cudnnGetStream."""
    return find(Handle, handle, "handle").stream


def queryRuntimeError(handle: int, mode: int) -> int:
    """CUDNN_STATUS_SUCCESS: errors are raised by the calls themselves. Source: cudnnQueryRuntimeError."""
    find(Handle, handle, "handle")
    return 0

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
    """Raise CuDNNError with a status unless it is CUDNN_STATUS_SUCCESS.

    status: an int, as cuDNN numbers them.

    Source: CuPy v13's cudnn.check_status.
    """
    if status != 0:
        raise CuDNNError(status)


def get_build_version() -> int:
    """The version of cuDNN whose behaviour is kept, an int such as 92000.

    Source: CuPy v13's cudnn.get_build_version.
    """
    return VERSION


def getVersion() -> int:
    """The version of the cuDNN that was found, or else of the one whose behaviour is kept, an int such as 92000."""
    library = open_cudnn()
    return VERSION if library is None else int(library.version)


def create() -> int:
    """A new handle, an int; it needs no device."""
    return add(Handle(ready=True))


def destroy(handle: int) -> None:
    """Forget a handle; 0 and None are nothing to forget."""
    drop(Handle, handle, "handle")


def setStream(handle: int, stream: int) -> None:
    """Keep a stream for `getStream`. As with CuPy v13, every call is ordered after what the thread has issued on
    CuPy's current stream.

    stream: an int.
    """
    find(Handle, handle, "handle").stream = operator.index(stream)


def getStream(handle: int) -> int:
    """The stream of a handle, an int; 0 unless it was set."""
    return find(Handle, handle, "handle").stream


def queryRuntimeError(handle: int, mode: int) -> int:
    """CUDNN_STATUS_SUCCESS: errors are raised by the calls themselves."""
    find(Handle, handle, "handle")
    return 0

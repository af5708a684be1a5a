"""Room for what one part of a cut chain hands to the next, for as long as a call runs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import numpy as np

from ooc.errors import StoreError
from ooc.ir.op import Operand, numpy_dtype
from ooc.runtime.store import ArrayStore, Store, file_behind, open_store


def memory_for(made: Operand, threads: int) -> Store:
    """Room in memory. threads: for copying."""
    return ArrayStore(np.empty(made.shape, numpy_dtype(made.dtype)), threads)


def file_for(made: Operand, targets: Iterable[Any], stack: ExitStack) -> Store:
    """Room in a file beside the caller's outputs that is gone when the stack closes. Raises StoreError."""
    beside = next(filter(None, map(file_behind, targets)), None)
    directory = os.path.dirname(os.path.abspath(beside[0])) if beside else None
    try:
        handle, path = tempfile.mkstemp(prefix=".ooc-", suffix=".part", dir=directory)
        stack.callback(os.unlink, path)
        os.close(handle)
        array = np.memmap(path, numpy_dtype(made.dtype), "w+", shape=made.shape)
    except OSError as error:
        raise StoreError(error.errno, f"intermediate file: {error}") from error
    store = open_store(array, writable=True)
    stack.callback(store.close)
    return store

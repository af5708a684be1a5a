"""What `ooc.cudnn` keeps between calls: the workspace limit and handles."""

from __future__ import annotations

import atexit
import threading
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from operator import index
from typing import Any

import numpy as np

import ooc.libcudnn as libcudnn
from ooc.cache import Cache
from ooc.runtime.context import current_device
from ooc.runtime.device import Device

DEFAULT_WORKSPACE = 8 * 2**20

_set: list[int] = []  # the explicit limit, if any
_limited: Cache[Device] = Cache(8)  # devices under a workspace limit, by device and limit
_handles: dict[str, int] = {}
_lock = threading.Lock()


def get_max_workspace_size() -> int:
    """The workspace limit of a call in bytes; 8 MiB until it is set, which stands for "the planner chooses"."""
    return _set[0] if _set else DEFAULT_WORKSPACE


def set_max_workspace_size(size: int | None) -> None:
    """Limit the workspace of every later call to a number of bytes, 0 included; None (beyond v13): the planner chooses.

    Raises TypeError for what is no integer, OverflowError for what no size_t holds.
    """
    value = None if size is None else index(size)
    if value is not None and not 0 <= value < 1 << 64:
        raise OverflowError(f"can't convert {value} to size_t")
    with _lock:
        _set[:] = [] if value is None else [value]


def limited() -> AbstractContextManager[Any]:
    """The current device under the explicit workspace limit, to be entered; nothing to enter while none was set."""
    return _under(current_device(), _set[0]) if _set else nullcontext()


def _under(device: Device, limit: int) -> Device:
    """A device like another, under a workspace limit; remembered, for its plans.

    Every operation has a plan, as every one of v13's did under a limit of 0: where none keeps within it (half types are
    widened in the workspace, fused stages hand tiles on in it), the limit yields.
    """
    least = limit if device.workspace_bytes is None else min(limit, device.workspace_bytes)
    return _limited.made((device, least), lambda: replace(device, workspace_bytes=least, workspace_yields=True))


# ---- handles


def get_handle() -> int:
    """The cuDNN handle of the current device: a number for the low-level calls; the calls here need none."""
    backend = current_device().backend
    where = f"{backend.name}:{backend.index}"
    with _lock:
        if where not in _handles:
            _handles[where] = libcudnn.create()
        return _handles[where]


@atexit.register
def reset_handles() -> None:
    """Destroy the handles; the next `get_handle` makes new ones."""
    with _lock:
        handles = list(_handles.values())
        _handles.clear()
    for handle in handles:
        libcudnn.destroy(handle)


def is_tensor_core_available(dtype: Any) -> bool:
    """As v13 answered: whether dtype is float16 and the device of compute capability 7.0. Nothing here asks it."""
    return np.dtype(dtype) == np.float16 and current_device().backend.capability == "7.0"

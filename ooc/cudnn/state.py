"""What `ooc.cudnn` keeps between calls: the workspace limit and handles."""

from __future__ import annotations

import atexit
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from operator import index
from typing import Any

import numpy as np

import ooc.libcudnn as libcudnn
from ooc.cache import Cache, lock_across_forks
from ooc.runtime.context import current_device
from ooc.runtime.device import Device

DEFAULT_WORKSPACE = 8 * 2**20


@dataclass
class _Workspace:
    """The limit of every later call."""

    limit: int | None = None  # bytes; None: the planner chooses


_workspace = _Workspace()
_limited: Cache[Device] = Cache(8)  # devices under a workspace limit, by device and limit
_handles: dict[str, int] = {}
_lock = lock_across_forks()


def get_max_workspace_size() -> int:
    """The workspace limit of a call.

    Returns:
        size: bytes; 8 MiB until it is set, which stands for "the planner chooses".

    Source: CuPy v13's cudnn.get_max_workspace_size.
    """
    return DEFAULT_WORKSPACE if _workspace.limit is None else _workspace.limit


def set_max_workspace_size(size: int | None) -> None:
    """Limit the workspace of every later convolution, in all threads.

    Parameters:
        size: bytes, 0 included; where no plan keeps within it, it is raised until one does. None (beyond v13): the planner
            chooses.

    Raises:
        TypeError: no integer.
        OverflowError: less than 0, or more than a size_t holds.

    Source: CuPy v13's cudnn.set_max_workspace_size.
    """
    value = None if size is None else index(size)
    if value is not None and not 0 <= value < 1 << 64:
        raise OverflowError(f"can't convert {value} to size_t")
    with _lock:
        _workspace.limit = value


def limited() -> AbstractContextManager[Any]:
    """What a call enters: the device that it computes on, where a workspace limit was set."""
    return nullcontext() if _workspace.limit is None else limited_device()


def limited_device() -> Device:
    """The current device under the explicit workspace limit, if one was set."""
    device, limit = current_device(), _workspace.limit
    return device if limit is None else _under(device, limit)


def _under(device: Device, limit: int) -> Device:
    """A device like another, under a workspace limit; remembered, for its plans.

    Every operation has a plan, as every one of v13's did under a limit of 0: where none keeps within it (half types are
    widened in the workspace, fused stages hand tiles on in it), the limit yields.
    """
    least = limit if device.workspace_bytes is None else min(limit, device.workspace_bytes)
    return _limited.made((device, least), lambda: replace(device, workspace_bytes=least, workspace_yields=True))


# ---- handles


def get_handle() -> int:
    """The handle of the current device, made when it is first asked for; the calls here need none.

    Returns:
        handle: a number for the calls of `ooc.libcudnn`.

    Source: cudnnCreate; CuPy v13's cudnn.get_handle.
    """
    backend = current_device().backend
    where = f"{backend.name}:{backend.index}"
    with _lock:
        if where not in _handles:
            _handles[where] = libcudnn.create()
        return _handles[where]


@atexit.register
def reset_handles() -> None:
    """Destroy the handles of all devices; the next `get_handle` makes new ones. Done at exit, too.

    Source: cudnnDestroy; CuPy v13's cudnn.reset_handles.
    """
    with _lock:
        handles = list(_handles.values())
        _handles.clear()
    for handle in handles:
        libcudnn.destroy(handle)


def is_tensor_core_available(dtype: Any) -> bool:
    """Whether dtype is float16 and the current device of compute capability 7.0, as v13 answered; nothing here asks it.

    Parameters:
        dtype: anything that np.dtype takes.

    Returns:
        available: a bool.

    Source: CuPy v13's cudnn.is_tensor_core_available.
    """
    return np.dtype(dtype) == np.float16 and current_device().backend.capability == "7.0"

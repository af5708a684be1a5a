"""Memory of a device, seen as an array: NumPy keeps shape, strides and views, and nobody on the host touches the data."""

from __future__ import annotations

from typing import Any

import numpy as np

from ooc.errors import UnsupportedError
from ooc.native import address


class DeviceArray(np.ndarray[Any, Any]):
    """An array whose address belongs to a device.

    Slicing, transposing and broadcasting give views, as of any NumPy array. Everything that would read or write the
    elements raises TypeError: the host has no access to them.
    """

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **named: Any) -> Any:
        raise TypeError(f"{ufunc.__name__} cannot compute with memory of a device on the host")

    def _refuse(self, *given: Any, **named: Any) -> Any:
        raise TypeError("the host has no access to memory of a device; copy the array to the host first")

    __setitem__ = __iter__ = __float__ = __int__ = __bool__ = __index__ = __contains__ = __reduce__ = _refuse  # type: ignore[assignment]
    astype = copy = tobytes = tolist = item = fill = sum = mean = max = min = dot = byteswap = dump = flatten = _refuse  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype}, address={at(self):#x})"

    __str__ = __repr__


def at(array: Any) -> int:
    """Address of an array's first element."""
    return address(array) or int(array.__array_interface__["data"][0])  # where an empty one lies, too


def check_reached(array: Any, backend: str) -> None:
    """Raise UnsupportedError for memory of a device, which a backend of the host does not reach."""
    if isinstance(array, DeviceArray):
        raise UnsupportedError(f"an array lies in the memory of a CUDA device: compute there, not on '{backend}'")


class _Memory:
    """What NumPy needs to know of a piece of memory; views of it keep `owner` alive."""

    def __init__(self, address: int, shape: tuple[int, ...], item: int, strides: tuple[int, ...] | None, owner: Any) -> None:
        self.owner = owner
        # NumPy takes no null pointer; an empty array may lie anywhere.
        self.__array_interface__ = {
            "data": (address or item, False), "shape": shape, "typestr": f"|V{item}", "strides": strides, "version": 3,
        }  # fmt: skip


def host_array(
    address: int, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...] | None = None, owner: Any = None
) -> np.ndarray[Any, Any]:
    """An array over memory of the host; strides in bytes, dense by default."""
    dtype = np.dtype(dtype)
    found: np.ndarray[Any, Any] = np.asarray(_Memory(address, shape, dtype.itemsize, strides, owner)).view(dtype)
    return found


def device_array(
    address: int, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...] | None = None, owner: Any = None
) -> DeviceArray:
    """An array over memory of a device; strides in bytes, dense by default."""
    return host_array(address, shape, dtype, strides, owner).view(DeviceArray)


def owner_of(array: Any) -> Any:
    """What keeps an array's memory alive: the object that it was made over."""
    while isinstance(array, np.ndarray) and array.base is not None:
        array = array.base
    return array.owner if isinstance(array, _Memory) else None

"""Memory of a device, seen as an array: NumPy keeps shape, strides and views, and nobody on the host touches the data."""

from __future__ import annotations

from typing import Any

import numpy as np

from ooc.errors import ShapeError, UnsupportedError
from ooc.native import address

NEVER_COPIES = np.lib.NumpyVersion(np.__version__) >= "2.1.0"  # whether NumPy reshapes without a copy, or raises, when told to


class Untouched(np.ndarray[Any, Any]):
    """An array whose address is none of the host's memory.

    Slicing, transposing and broadcasting give views, as of any NumPy array. Everything that would read or write the
    elements raises TypeError: the host has no access to them.
    """

    where = ""  # the numbers are, and what to do

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **named: Any) -> Any:
        raise TypeError(f"{ufunc.__name__}: the numbers are {self.where}")

    def _refuse(self, *args: Any, **named: Any) -> Any:
        raise TypeError(f"the numbers are {self.where}")

    def reshape(self, *shape: Any, **named: Any) -> Any:
        """A view of another shape. Raises ShapeError where only a copy has it."""
        extents = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        try:
            if NEVER_COPIES:
                return super().reshape(extents, copy=False)
            view = self.view()
            view.shape = extents
        except (ValueError, AttributeError):
            raise ShapeError(f"an array of shape {self.shape} and strides {self.strides} cannot be seen as {extents}") from None
        return view

    __setitem__ = __iter__ = __float__ = __int__ = __bool__ = __index__ = __contains__ = __reduce__ = _refuse  # type: ignore[assignment]
    astype = copy = tobytes = tolist = item = fill = sum = mean = max = min = dot = byteswap = dump = flatten = _refuse  # type: ignore[assignment]
    ravel = _refuse  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, dtype={self.dtype}, address={at(self):#x})"

    __str__ = __repr__


class DeviceArray(Untouched):
    """An array whose address belongs to a device."""

    where = "in the memory of a device; copy the array to the host first"


def at(array: Any) -> int:
    """Address of an array's first element."""
    return address(array) or int(array.__array_interface__["data"][0])  # where an empty one lies, too


def check_reached(array: Any, backend: str) -> None:
    """Raise UnsupportedError for memory of a device, which a backend of the host does not reach."""
    if isinstance(array, DeviceArray):
        raise UnsupportedError(f"an array lies in the memory of a CUDA device: compute there, not on '{backend}'")


class _ForeignMemory:
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
    array: np.ndarray[Any, Any] = np.asarray(_ForeignMemory(address, shape, dtype.itemsize, strides, owner)).view(dtype)
    return array


def device_array(
    address: int, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...] | None = None, owner: Any = None
) -> DeviceArray:
    """An array over memory of a device; strides in bytes, dense by default."""
    return host_array(address, shape, dtype, strides, owner).view(DeviceArray)


def owner_of(array: Any) -> Any:
    """What keeps an array's memory alive: the object that it was made over."""
    while isinstance(array, np.ndarray) and array.base is not None:
        array = array.base
    return array.owner if isinstance(array, _ForeignMemory) else None

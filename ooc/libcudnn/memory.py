"""The data arguments of a call: pointers and arrays, seen as what a descriptor says; scaling factors.

A pointer is an integer (or an object with `.ptr` or `.data.ptr`, or of ctypes): its extent is what the descriptor says.
An array is a pointer with a known extent and type: one that the descriptor exceeds is refused. Both may be memory of the
host or, where the current device is a CUDA device, of that. On the CPU every pointer is taken for the host's.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np

from ooc import native
from ooc.api.foreign import known
from ooc.backends.device_array import DeviceArray, at, device_array, host_array
from ooc.ir.op import numpy_dtype
from ooc.libcudnn.guard import LOWEST_ADDRESS, NOT_SUPPORTED, refusal
from ooc.libcudnn.registry import FilterDescriptor, TensorDescriptor
from ooc.runtime.context import current_device
from ooc.runtime.stored import StoredArray

Array = Any
TYPES = {0: "f32", 1: "f64", 2: "f16", 9: "bf16"}  # CUDNN_DATA_*
RAW = (np.dtype(np.uint8), np.dtype(np.int8), np.dtype(np.uint16))  # arrays of these are memory of any type
INTERFACES = ("__cuda_array_interface__", "__array_interface__", "__dlpack__")


def type_of(name: str, code: int) -> np.dtype[Any]:
    """The NumPy type of a CUDNN_DATA_* constant. Raises NOT_SUPPORTED for one that ooc does not compute with."""
    if code not in TYPES:
        raise refusal(f"{name}: data type {code}: expected float, double, half or bfloat16", NOT_SUPPORTED)
    return numpy_dtype(TYPES[code])


def view(name: str, form: TensorDescriptor | FilterDescriptor, data: Any, write: bool = False) -> Array:
    """A data argument with the axes that its descriptor says. Raises BAD_PARAM for a null pointer, for an array that is too
    small or of another type, and for one that is read-only but to be written."""
    dtype = type_of(name, form.dtype)
    return memory(name, data, form.dims, dtype, tuple(s * dtype.itemsize for s in form.strides), write)


def memory(
    name: str, data: Any, dims: tuple[int, ...], dtype: np.dtype[Any], strides: tuple[int, ...], write: bool, typed: bool = True
) -> Array:
    """The same with axes and byte strides given; typed: an array must be of that type."""
    address = _pointer(data)
    if address is not None:
        if address < LOWEST_ADDRESS:
            raise refusal(f"{name}: expected a pointer or an array, got {data!r}")
        return (device_array if on_device(address) else host_array)(address, dims, dtype, strides, data)
    held = known(name, data)
    if isinstance(held, StoredArray):
        raise refusal(f"{name}: an array that is read by region has no memory to point to; pass an array", NOT_SUPPORTED)
    if typed and held.dtype != dtype and held.dtype not in RAW:
        raise refusal(f"{name}: the descriptor says {dtype} but the array is {held.dtype}")
    if write and not held.flags.writeable:
        raise refusal(f"{name}: the array is read-only")
    _check_reach(name, held, dims, dtype, strides)
    return _over(held, dims, dtype, strides)


def on_device(address: int) -> bool:
    """Whether an address is memory of a CUDA device, as the current backend sees it."""
    backend = current_device().backend
    return backend.name == "cuda" and backend.driver.where(address)[0] == "device"  # type: ignore[attr-defined]


def _pointer(data: Any) -> int | None:
    """The address that a data argument is; None for an array."""
    if data is None:
        return 0
    if isinstance(data, (int, np.integer)):
        return int(data)
    if isinstance(data, ctypes.c_void_p):
        return data.value or 0
    if isinstance(data, ctypes.Array):
        return ctypes.addressof(data)
    if hasattr(data, "shape") and any(hasattr(data, name) for name in INTERFACES):
        return None
    owners: tuple[Any, ...] = (data, getattr(data, "data", None))
    for owner in owners:
        if hasattr(owner, "ptr"):
            return int(owner.ptr)
    raise TypeError(f"expected a pointer or an array, got {type(data).__name__}")


def _check_reach(name: str, held: Array, dims: tuple[int, ...], dtype: Any, strides: tuple[int, ...]) -> None:
    """Raise BAD_PARAM where a descriptor reaches outside an array."""
    if not held.size:
        raise refusal(f"{name}: the array is empty")
    reach = [(e - 1) * s for e, s in zip(dims, strides, strict=True)]
    first = at(held) + sum(min(r, 0) for r in reach)
    end = at(held) + sum(max(r, 0) for r in reach) + dtype.itemsize
    lo, hi = native.bounds(held)
    if first < lo or end > hi:
        raise refusal(
            f"{name}: the descriptor ({dims}, byte strides {strides}) needs {end - first} bytes, the array of shape "
            f"{held.shape} has {hi - lo}"
        )


def _over(held: Array, dims: tuple[int, ...], dtype: Any, strides: tuple[int, ...]) -> Array:
    """An array's memory with other axes. A memmap stays one: it is read and written through its file."""
    dense = held if held.flags.c_contiguous else held.T
    if isinstance(held, DeviceArray) or not dense.flags.c_contiguous:
        constructor = device_array if isinstance(held, DeviceArray) else host_array
        array = constructor(at(held), dims, dtype, strides, held)
        array.flags.writeable = held.flags.writeable
        return array
    whole = dense.reshape(-1).view(np.uint8)
    return np.ndarray(dims, np.dtype(f"V{dtype.itemsize}"), whole, 0, strides).view(dtype)


def number(name: str, value: Any, dtype: np.dtype[Any]) -> float:
    """A scaling factor: a float (of Python, NumPy or ctypes) is the value; an integer is the address of one on the host, a
    double for double data and a float for all other, as CuPy passed it."""
    if isinstance(value, (float, np.floating)):
        return float(value)
    if isinstance(value, (ctypes.c_float, ctypes.c_double)):
        return float(value.value)
    if isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind == "f":
        return float(value.reshape(-1)[0])
    kind = ctypes.c_double if dtype == np.float64 else ctypes.c_float
    return float(kind.from_address(_address(name, value)).value)


def element(name: str, value: Any, dtype: np.dtype[Any]) -> Array:
    """One value of a tensor's own type, as an array without axes: a float, or the address of one of that type."""
    if isinstance(value, (int, np.integer, ctypes.c_void_p)) and not isinstance(value, bool):
        return np.array(host_array(_address(name, value), (), dtype))
    return np.asarray(number(name, value, dtype)).astype(dtype)


def _address(name: str, value: Any) -> int:
    address = value.value or 0 if isinstance(value, ctypes.c_void_p) else value
    if isinstance(address, bool) or not isinstance(address, (int, np.integer)) or address < LOWEST_ADDRESS:
        raise refusal(f"{name}: expected a float, or the address of one; got {value!r} (an integer is an address: write 1.0)")
    return int(address)


# ---- axes


def compact(*arrays: Array, keep: int = 0) -> list[Array]:
    """Arrays of one shape with their axes behind the first `keep` in the order of the first one's memory, and merged where
    that needs no copy in any of them."""
    first = arrays[0]
    order = sorted(range(keep, first.ndim), key=lambda axis: -abs(first.strides[axis]))
    groups: list[list[int]] = []
    for axis in (axis for axis in order if first.shape[axis] > 1):
        if groups and all(a.strides[groups[-1][-1]] == a.strides[axis] * a.shape[axis] for a in arrays):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    merged = [math.prod(first.shape[axis] for axis in group) for group in groups] or [1]
    return [a.transpose(*range(keep), *order).reshape(*a.shape[:keep], *merged) for a in arrays]


def channels_last(array: Array) -> bool:
    """Whether a tensor's channels are the fastest axis of its memory."""
    return bool(array.shape[1] > 1 and array.strides[1] == array.itemsize and array.strides[-1] != array.itemsize)

"""What users pass in: checked, and seen as the operands of an op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from functools import partial
from typing import Any

import numpy as np
from numpy.ma import MaskedArray

from ooc.api.foreign import known, written
from ooc.errors import ArgumentError, DtypeError, ShapeError, shown
from ooc.ir.op import LAYOUTS, compute_dtype, dtype_name, integer_name, numpy_dtype, remedy
from ooc.runtime import tensors
from ooc.runtime.context import current_device
from ooc.runtime.tensors import fetched

Array = Any
PerAxis = int | Sequence[int]
Padding = int | str | Sequence[int | Sequence[int]]
Extents = tuple[int, ...]
BORDERS = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}  # words of padding, and what `ooc.ops.resize` does


def check_layout(layout: Any, name: str = "layout") -> None:
    """Raise ArgumentError for an unknown layout."""
    if not isinstance(layout, str) or layout not in LAYOUTS:
        raise ArgumentError(f"{name}: expected one of {', '.join(LAYOUTS)}; got {layout!r}")


def like(name: str, array: Array, dtype: Any, shape: tuple[int, ...] | None = None) -> Array:
    """An argument that must have a dtype or, where that is a floating one, integers; and perhaps a shape. Raises DtypeError,
    ShapeError."""
    if array.dtype != dtype and (integer_name(array.dtype) is None or np.dtype(dtype).kind in "iub"):
        raise DtypeError(f"{name}: expected dtype {dtype}, got {array.dtype}; convert it")
    if shape is not None and tuple(array.shape) != tuple(shape):
        raise ShapeError(f"{name}: expected shape {tuple(shape)}, got {tuple(array.shape)}")
    return array


def per_channel(name: str, array: Array, count: int, dtype: Any) -> Array:
    """One value per channel, of x's dtype, of the type it is computed in, or integers; the second is returned."""
    array = as_array(name, array)
    wide = numpy_dtype(compute_dtype(dtype_name(dtype)))
    if tuple(array.shape) != (count,):
        raise ShapeError(f"{name} must have shape ({count},), got {tuple(array.shape)}")
    if array.dtype not in (np.dtype(dtype), wide) and integer_name(array.dtype) is None:
        raise DtypeError(f"{name} is {array.dtype} but x is {dtype}; convert one of them")
    return array if array.dtype == wide else on_host(array).astype(wide)


def as_spatial(array: Array, axis: int = 1) -> Array:
    """An array of any rank as n x channels x 1 to 3 spatial axes, `axis` being the channels; a view.

    Raises ShapeError where that needs a copy (more than five axes that cannot be merged).
    """
    if array.ndim < 2:
        return array.reshape(1, -1, 1) if array.ndim else array.reshape(1, 1, 1)
    view = array if axis == 1 else np.moveaxis(array, axis, 1)
    if view.ndim < 3:
        return view[(..., *(None,) * (3 - view.ndim))]
    if view.ndim <= 5:
        return view
    merged = view.reshape(*view.shape[:4], -1)
    if array.size and not np.may_share_memory(merged, array):
        raise ShapeError(f"an array of shape {array.shape} cannot be seen with at most five axes; make it contiguous")
    return merged


def along(what: str, x: Array, axis: int) -> tuple[Array, Any, dict[str, Any]]:
    """An array, how it is seen with an axis as its channels, and the sizes of ops on it."""
    x = as_array("x", x)
    if not x.ndim and axis == -1:
        return x, as_spatial, {"n": 1, "k": 1, "extent": (1,), "dtype": computed(x.dtype)}
    axis = as_int("axis", axis)
    if not -x.ndim <= axis < x.ndim or not x.size:
        raise ShapeError(f"{what}: axis {axis} of an array of shape {x.shape}: expected an axis of a non-empty array")
    see = partial(as_spatial, axis=axis % x.ndim)
    n, k, *extent = see(x).shape
    return x, see, {"n": n, "k": k, "extent": tuple(extent), "dtype": computed(x.dtype)}


def as_array(name: str, array: Array, integers: bool = True) -> Array:
    """An argument as a NumPy array of a supported dtype, or a view of memory of a device; 1 to 3 spatial axes are checked
    by the caller's op. integers: whether those that are converted in passing are taken too."""
    if isinstance(array, MaskedArray):
        raise DtypeError(f"{name}: masked arrays are not supported; fill the array first")
    array = array if type(array) is np.ndarray else known(name, array)
    if integers and integer_name(array.dtype) is not None:
        return array
    try:
        dtype_name(array.dtype)
    except DtypeError as error:
        more = ", or uint8, uint16, int16, int32, bool" if integers else ""
        raise DtypeError(f"{name}: {error}{more}; {remedy(name, array.dtype)}") from None
    return array


def computed(*dtypes: Any) -> str:
    """Name of the dtype in which arrays of these are computed: the first floating one, f32 where all are integers."""
    return next((dtype_name(d) for d in dtypes if integer_name(d) is None), "f32")


def on_host(array: Array) -> Array:
    """An array's values on the host: itself, or a copy where it lies in the memory of a device, or in a file read by region."""
    return fetched(array, current_device().backend)


def put(array: Array, values: Array) -> None:
    """Write values of the host into an array, wherever it lies."""
    tensors.put(array, values, current_device().backend)


def channels_first(array: Array, layout: str, name: str = "out") -> Array:
    """An array of either layout, seen channels first."""
    if array.ndim not in (3, 4, 5):
        raise ShapeError(f"{name}: expected 3 to 5 axes (1 to 3 spatial), got {array.ndim} (shape {tuple(array.shape)})")
    return array.transpose(0, array.ndim - 1, *range(1, array.ndim - 1)) if layout == "channels_last" else array


def as_int(name: str, value: Any, bits: int = 60) -> int:
    """An argument as an int of so many bits; booleans are not integers. Raises ArgumentError."""
    if type(value) is int and value.bit_length() <= bits:
        return value
    if isinstance(value, int) and value.bit_length() > bits:
        raise ArgumentError(f"{name}: expected an integer of at most {bits} bits, got {shown(value)}")
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise ArgumentError(f"{name}: expected an integer, got {value!r}")
    return int(value)


def as_float(name: str, value: Any) -> float:
    """An argument as a float, -0.0 as the 0.0 that it equals: equal ops are one object. Raises ArgumentError."""
    try:
        return float(value) + 0.0
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError(f"{name}: expected a number, got {shown(value)}") from None


def as_floats(name: str, values: Any) -> tuple[float, ...]:
    """A sequence of numbers as floats. Raises ArgumentError."""
    try:
        return tuple([as_float(name, v) for v in values])
    except TypeError:
        raise ArgumentError(f"{name}: expected numbers, got {shown(values)}") from None


def per_axis(name: str, value: PerAxis, rank: int) -> tuple[int, ...]:
    """One value per spatial axis, from an int or a sequence. Raises ShapeError."""
    if isinstance(value, (int, np.integer)):
        return (as_int(name, value),) * rank
    values = tuple([as_int(name, v) for v in _sequence(name, value, rank)])
    return values * rank if len(values) == 1 else values


def as_pads(name: str, value: Padding, rank: int) -> tuple[tuple[int, int], ...]:
    """(before, after) per spatial axis, from an int, one per axis, or one pair per axis. Raises ArgumentError."""
    if isinstance(value, (int, np.integer)):
        return ((as_int(name, value),) * 2,) * rank
    pairs = []
    for v in _sequence(name, value, rank):
        pair = tuple(v) if isinstance(v, (list, tuple, np.ndarray)) else (v, v)
        if len(pair) != 2:
            raise ArgumentError(f"{name}: expected (before, after) pairs, got {v!r}")
        pairs.append((as_int(name, pair[0]), as_int(name, pair[1])))
    return tuple(pairs) * rank if len(pairs) == 1 else tuple(pairs)


def pads_of_conv(
    value: Padding, extent: Extents, taps: Extents, stride: Extents, dilation: Extents
) -> tuple[tuple[int, int], ...]:
    """(before, after) per spatial axis of a convolution: as `as_pads`, or by a word. "valid": none; the others: as many as make
    ceil(extent / stride) results, the odd one behind."""
    rank = len(extent)
    if not isinstance(value, str):
        return as_pads("padding", value, rank)
    if value not in ("valid", "same", *BORDERS):
        raise ArgumentError(f"padding: expected integers or one of valid, same, {', '.join(BORDERS)}; got {value!r}")
    pads = []
    for e, r, s, d in zip(extent, taps, stride, dilation, strict=True):
        missing = max(0, (-(-e // max(s, 1)) - 1) * s + (r - 1) * d + 1 - e) if value != "valid" else 0
        pads.append((missing // 2, missing - missing // 2))
    return tuple(pads)


def _sequence(name: str, value: Any, rank: int) -> list[Any]:
    try:
        if isinstance(value, (str, bytes, Mapping, Set)):
            raise TypeError
        values = list(value)
    except TypeError:
        raise ArgumentError(f"{name}: expected an integer or {rank} of them, got {value!r}") from None
    if len(values) not in (1, rank):
        raise ArgumentError(f"{name}: expected 1 or {rank} values, got {len(values)}")
    return values


def check_out(array: Any, shape: tuple[int, ...], dtype: Any, name: str = "out") -> Array:
    """An output, seen as an array. Raises unless it has this shape and dtype, or one of integers, and can be written."""
    if not hasattr(array, "shape"):
        raise DtypeError(f"{name}: expected a NumPy array or memmap, got {type(array).__name__}")
    if isinstance(array, MaskedArray):
        raise DtypeError(f"{name}: masked arrays are not supported; pass {name}.data")
    out: Array = written(name, array)
    if out.shape != tuple(shape):
        raise ShapeError(f"{name}: expected shape {tuple(shape)}, got {out.shape}")
    if out.dtype != dtype and integer_name(out.dtype) is None:
        raise DtypeError(
            f"{name}: expected dtype {dtype}, got {out.dtype}; or integers to round to: uint8, uint16, int16, int32, bool"
        )
    if not out.flags.writeable:
        raise ArgumentError(f"{name}: the array is read-only; pass a writable one (a memmap opened with mode 'r+' or 'w+')")
    return out

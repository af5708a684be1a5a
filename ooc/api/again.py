"""Small calls that are made again: what the first one found out about its arguments holds for all that are like them.

A call in memory of a few microseconds is over before Python has checked its arguments, made an op of them and asked for its plan.
None of that depends on what arrays hold or where they lie, so it is remembered for arrays of the same shapes, strides and types
beside equal options: which plan was run, and of which argument each of its operands is a view.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import wraps
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ooc import native
from ooc.api.layers import Activation, Conv, Pool
from ooc.runtime.context import current_device
from ooc.runtime.device import Device
from ooc.runtime.engine import Executed, at_once, direct, watched
from ooc.schedule.plan import Plan

T = TypeVar("T", bound=Callable[..., Any])

PLAIN = frozenset((int, float, bool, str, type(None)))
LAYERS = {kind: tuple([field.name for field in fields(kind)]) for kind in (Conv, Pool, Activation)}
OWNDATA = 4  # of NumPy's flags
MOST = 400  # that is said of a call: lists of numbers may be arrays
MISSED = object()


def remembered(function: T, device_of: Callable[[], Device] = current_device) -> T:
    """Decorator for functions whose one effect is an op, from views of their arguments into results: calls like one before go
    straight to its plan. What a function does of its own before or after that would be left out. device_of: the device that it
    computes on."""

    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        """The function, or the plan of a call that was like this one."""
        begin, device, row = time.perf_counter(), device_of(), list[Any]()
        key = _key(function, given, named, row) if direct(device) else None
        if key is None:
            return function(*given, **named)
        known = device.again.get(key)
        if known is not None:
            result = known.run(row, device, begin)
            if result is not MISSED:
                return result
        result, seen = watched(lambda: function(*given, **named))
        if known is None and len(seen) == 1 and seen[0] is not None and seen[0].device is device:
            made = _again(seen[0], row, result)
            if made is not None:
                device.again.keep(key, made)
        return result

    return call  # type: ignore[return-value]


class _Untold(Exception):
    """There is more to a value than is looked at here."""


def _key(function: Any, given: Sequence[Any], named: Mapping[str, Any], row: list[Any]) -> tuple[Any, ...] | None:
    """What a call may depend on but the contents of its arrays, which are put into a row; None where there is more to it."""
    said: list[Any] = [function, len(given), *named]
    try:
        for value in given:
            _tell(value, said, row)
        for value in named.values():
            _tell(value, said, row)
    except _Untold:
        return None
    return tuple(said)


def _tell(value: Any, said: list[Any], row: list[Any]) -> None:
    kind = type(value)
    if kind is np.ndarray:
        flags = value.flags.num
        if not flags & OWNDATA and not _in_memory(value):
            raise _Untold
        said += (value.shape, value.strides, value.dtype, flags)
        row.append(value)
    elif kind in PLAIN:
        said += (kind, value)  # with its type: 1 == 1.0 == True
    elif (kind is tuple or kind is list) and len(said) + len(value) < MOST:
        said += (kind, len(value))
        for one in value:
            _tell(one, said, row)
    elif kind in LAYERS:
        said.append(kind)
        for name in LAYERS[kind]:
            _tell(getattr(value, name), said, row)
    else:
        raise _Untold


def _in_memory(array: Any) -> bool:
    """Whether an array is a view of memory that NumPy has allocated, and not of a file or of another library's."""
    while array.base is not None:
        array = array.base
        if type(array) is not np.ndarray:
            return False
    return True


class _View(NamedTuple):
    """An operand as a view of an array of the row: in another shape, with its axes in another order, or as it is."""

    name: str
    at: int
    shape: tuple[int, ...] | None = None
    axes: tuple[int, ...] | None = None

    def of(self, row: Sequence[Any]) -> Any:
        """The view of another row's array."""
        array = row[self.at]
        if self.shape is not None:
            array = array.reshape(self.shape)
        return array if self.axes is None else array.transpose(self.axes)


class Again(NamedTuple):
    """A call that was seen. fresh: shapes and dtypes of the results that are made, behind the arguments in the row; written: the
    arguments that are written; returned: the parts of the result, as places in the row; result: what is made of them."""

    plan: Plan
    views: tuple[_View, ...]
    fresh: tuple[tuple[tuple[int, ...], Any], ...]
    written: tuple[int, ...]
    returned: tuple[int | None, ...]
    result: Callable[[Sequence[Any]], Any]

    def run(self, row: list[Any], device: Device, begin: float) -> Any:
        """Make it for other arguments; MISSED where they share memory, of which the plan does not know."""
        if self.written and _share(row, self.written):
            return MISSED
        for shape, dtype in self.fresh:
            row.append(np.empty(shape, dtype))
        arrays = {view.name: view.of(row) for view in self.views}
        if not at_once(Executed(device, self.plan, arrays), begin):
            return MISSED
        return self.result([None if at is None else row[at] for at in self.returned])


def _again(seen: Executed, row: Sequence[Any], result: Any) -> Again | None:
    """How a call that was seen is made again; None where more than views lie between its arguments, what was computed and what
    was returned, or where an argument was no operand: what it holds may have mattered then."""
    several = isinstance(result, tuple)
    results = result if several else (result,)
    fresh = [r for r in results if r is not None and not any(r is a for a in row)]
    if any(type(r) is not np.ndarray or r.base is not None or not r.flags.c_contiguous for r in fresh):
        return None
    everything = [*row, *fresh]
    views = tuple([v for v in (_view(name, array, everything) for name, array in seen.arrays.items()) if v is not None])
    targets = {o.name for o in seen.plan.op.outputs}
    made = {view.at for view in views if view.name in targets}
    written = tuple(sorted(at for at in made if at < len(row)))
    if len(views) < len(seen.arrays) or {view.at for view in views} != set(range(len(everything))) or _share(row, written):
        return None
    if not made.issuperset(range(len(row), len(everything))):
        return None
    returned = [None if r is None else next(i for i, other in enumerate(everything) if other is r) for r in results]
    made_of = getattr(type(result), "_make", tuple) if several else itemgetter(0)
    return Again(seen.plan, views, tuple([(r.shape, r.dtype) for r in fresh]), written, tuple(returned), made_of)


def _view(name: str, array: Any, row: Sequence[Any]) -> _View | None:
    """An operand as a view of the one array of a row that it can be one of."""
    same = [i for i, other in enumerate(row) if other is array]
    if same:
        return _View(name, same[0]) if len(same) == 1 else None
    begin = native.address(array)
    found = [i for i, o in enumerate(row) if native.address(o) == begin and o.size == array.size and o.dtype == array.dtype]
    if len(found) != 1:
        return None
    other = row[found[0]]
    axes = _axes(array, other)
    if axes is not None:
        return _View(name, found[0], None, axes)
    shape = tuple([extent for _, extent in sorted(zip(array.strides, array.shape, strict=True), key=itemgetter(0), reverse=True)])
    axes = _axes(array, other.reshape(shape)) if other.flags.c_contiguous else None
    return None if axes is None else _View(name, found[0], shape, axes)


def _axes(array: Any, other: Any) -> tuple[int, ...] | None:
    """The order of another array's axes in which they are those of this one; None where they are others."""
    left = dict(enumerate(zip(other.shape, other.strides, strict=True)))
    order = []
    for extent, stride in zip(array.shape, array.strides, strict=True):
        fits = (axis for axis, (e, s) in left.items() if e == extent and (e == 1 or s == stride))
        axis = next(fits, None)
        if axis is None:
            return None
        del left[axis]
        order.append(axis)
    return None if left else tuple(order)


def _share(row: Sequence[Any], written: Sequence[int]) -> bool:
    """Whether an array that is written shares memory with any other of the row."""
    reach = [native.bounds(array) for array in row]
    return any(i != at and start < reach[at][1] and reach[at][0] < end for at in written for i, (start, end) in enumerate(reach))

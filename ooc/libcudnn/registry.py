"""Handles and descriptors: integers for the caller, records behind them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, TypeVar

from ooc.libcudnn.guard import refusal


@dataclass
class Record:
    """What an integer stands for; of no use before it was set."""

    ready: bool = False

    def fill(self, **values: Any) -> None:
        """Set the fields, all at once."""
        for name, value in values.items():
            setattr(self, name, value)
        self.ready = True


@dataclass
class Handle(Record):
    stream: int = 0


@dataclass
class TensorDescriptor(Record):
    """dtype: CUDNN_DATA_*; strides in elements."""

    dtype: int = 0
    dims: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()


@dataclass
class FilterDescriptor(Record):
    """dims: k, c / groups, taps, whatever the format."""

    dtype: int = 0
    format: int = 0
    dims: tuple[int, ...] = ()

    @property
    def strides(self) -> tuple[int, ...]:
        return packed(self.dims, self.format)


@dataclass
class ConvolutionDescriptor(Record):
    pad: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    mode: int = 0
    compute: int = 0
    math: int = 0
    groups: int = 1


@dataclass
class PoolingDescriptor(Record):
    mode: int = 0
    window: tuple[int, ...] = ()
    pad: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()


@dataclass
class ActivationDescriptor(Record):
    mode: int = 0
    coef: float = 0.0


@dataclass
class DropoutDescriptor(Record):
    """drawn: how many masks were drawn since the seed was set."""

    rate: float = 0.0
    seed: int = 0
    drawn: int = 0


K = TypeVar("K", bound=Record)
_records: dict[int, Record] = {}
_numbers = itertools.count(1 << 12, 16)


def add(record: Record) -> int:
    """The integer of a new record."""
    number = next(_numbers)
    _records[number] = record
    return number


def find(kind: type[K], number: Any, name: str, ready: bool = True) -> K:
    """The record of an integer. Raises BAD_PARAM where there is none of that kind, or (ready) it was never set."""
    try:
        record = _records.get(int(number))
    except (TypeError, ValueError):
        record = None
    if not isinstance(record, kind):
        raise refusal(f"{name}: {number!r} is no {_called(kind)}; it was never created, or is destroyed")
    if ready and not record.ready:
        raise refusal(f"{name}: the {_called(kind)} was created but never set")
    return record


def drop(kind: type[Record], number: Any, name: str) -> None:
    """Forget a record; null is nothing to forget, as in cuDNN."""
    if number is None or number == 0:
        return
    find(kind, number, name, ready=False)
    del _records[int(number)]


def _called(kind: type[Record]) -> str:
    return "handle" if kind is Handle else f"{kind.__name__.removesuffix('Descriptor').lower()} descriptor"


def packed(dims: tuple[int, ...], format: int) -> tuple[int, ...]:
    """Strides, in elements, of a dense tensor: NCHW (0), or NHWC (1) where the channels are fastest."""
    rank = len(dims)
    order = (0, *range(2, rank), 1) if format == 1 else tuple(range(rank))
    strides, step = [0] * rank, 1
    for axis in reversed(order):
        strides[axis] = step
        step *= dims[axis]
    return tuple(strides)

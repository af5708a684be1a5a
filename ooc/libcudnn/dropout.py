"""Dropout: its descriptor and its calls. Arguments are as in `ooc.libcudnn.convolution`."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from ooc.api.arguments import on_host, put
from ooc.api.functions import dropout
from ooc.libcudnn.elementwise import spread
from ooc.libcudnn.guard import NOT_SUPPORTED, guarded, refusal
from ooc.libcudnn.memory import Array, memory
from ooc.libcudnn.problem import alike, check_handle
from ooc.libcudnn.registry import DropoutDescriptor, Handle, TensorDescriptor, add, drop, find

__all__ = [
    "createDropoutDescriptor", "destroyDropoutDescriptor", "dropoutBackward", "dropoutForward", "dropoutGetStatesSize",
    "getDropoutReserveSpaceSize", "setDropoutDescriptor",
]  # fmt: skip

RESERVE_BYTES = 8  # the seed of a mask
STATES_BYTES = 8  # not used, but tells the states from null
STEP = 0x9E3779B97F4A7C15  # between the seeds of successive masks: odd, so that none comes twice


def createDropoutDescriptor() -> int:
    """A new dropout descriptor, an int; to be set before it is used."""
    return add(DropoutDescriptor())


def setDropoutDescriptor(dropoutDesc: int, handle: int, dropout: float, states: Any, stateSizeInBytes: int, seed: int) -> None:
    """Set a descriptor to a dropout.

    dropout: the probability of being dropped, from 0 to 1.
    states, stateSizeInBytes: nothing is kept there. Without states (null) a descriptor that has a seed keeps it, and goes on
        drawing where it was.
    seed: an int, of which the lowest 64 bits count.
    """
    form = find(DropoutDescriptor, dropoutDesc, "dropoutDesc", ready=False)
    find(Handle, handle, "handle")
    if not 0 <= dropout <= 1:
        raise refusal(f"dropout: expected a probability, got {dropout}")
    kept = form.ready and (states is None or (isinstance(states, int) and states == 0))
    fresh = {} if kept else {"seed": operator.index(seed) % (1 << 64), "drawn": 0}
    form.fill(rate=float(dropout), **fresh)


def destroyDropoutDescriptor(dropoutDesc: int) -> None:
    """Forget a dropout descriptor, set or not; 0 and None are nothing to forget."""
    drop(DropoutDescriptor, dropoutDesc, "dropoutDesc")


def dropoutGetStatesSize(handle: int) -> int:
    """Bytes of the states, 8, which ooc does not use: a mask depends on the seed and the index alone."""
    check_handle(handle)
    return STATES_BYTES


def getDropoutReserveSpaceSize(xDesc: int) -> int:
    """Bytes that a forward call leaves for the backward one, 8: the seed of its mask.

    Source: cudnnDropoutGetReserveSpaceSize.
    """
    find(TensorDescriptor, xDesc, "xDesc")
    return RESERVE_BYTES


@guarded
def dropoutForward(
    handle: int, dropoutDesc: int, srcDesc: int, srcData: Any, dstDesc: int, dstData: Any, reserveSpace: Any,
    reserveSpaceSizeInBytes: int,
) -> None:  # fmt: skip
    """dst = src / (1 - rate) where kept, else 0; every call draws another mask. dst may be src.

    reserveSpace: memory to which the seed of the mask is written: an address, or an array.
    """
    form = find(DropoutDescriptor, dropoutDesc, "dropoutDesc")
    reserve = _reserve(reserveSpace, reserveSpaceSizeInBytes, write=True)
    x, y = alike(handle, src=(srcDesc, srcData), dst=(dstDesc, dstData))
    seed = (form.seed + form.drawn * STEP) % (1 << 64)
    _drop(x, y, form.rate, seed)
    put(reserve, np.array([seed], np.uint64).view(np.int64))
    form.drawn += 1


@guarded
def dropoutBackward(
    handle: int, dropoutDesc: int, dyDesc: int, dyData: Any, dxDesc: int, dxData: Any, reserveSpace: Any,
    reserveSpaceSizeInBytes: int,
) -> None:  # fmt: skip
    """dx = dy / (1 - rate) where the forward call with this reserve space kept, else 0.

    reserveSpace: what the forward call has written: an address, or an array.
    """
    form = find(DropoutDescriptor, dropoutDesc, "dropoutDesc")
    reserve = _reserve(reserveSpace, reserveSpaceSizeInBytes)
    dy, dx = alike(handle, dy=(dyDesc, dyData), dx=(dxDesc, dxData))
    _drop(dy, dx, form.rate, int(on_host(reserve)[0]) % (1 << 64))


def _reserve(space: Any, nbytes: int, write: bool = False) -> Array:
    if nbytes < RESERVE_BYTES:
        raise refusal(f"reserveSpace: expected at least {RESERVE_BYTES} bytes, got {nbytes}")
    return memory("reserveSpace", space, (1,), np.dtype(np.int64), (RESERVE_BYTES,), write, typed=False)


def _drop(x: Array, y: Array, rate: float, seed: int) -> None:
    """The mask follows the row-major index over the descriptor's axes, whatever the strides."""
    if x.ndim > 5:
        raise refusal(f"dropout: at most five axes, got {x.ndim}", NOT_SUPPORTED)
    if rate == 1:
        spread(np.zeros((1,) * y.ndim, y.dtype), y, 1.0, 0.0)
    else:
        dropout(x, rate, seed, out=y)

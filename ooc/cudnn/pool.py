"""Pooling of `ooc.cudnn`."""

from __future__ import annotations

from functools import lru_cache
from operator import index
from typing import Any

from ooc.api.arguments import Array
from ooc.api.foreign import empty_beside, known
from ooc.cudnn.checks import Checking, Shape, array, one_type, windows_of, writable
from ooc.cudnn.options import documented
from ooc.ir.op import Op
from ooc.libcudnn.guard import refusal
from ooc.libcudnn.pooling import POOLINGS
from ooc.ops import PoolBackward, PoolForward
from ooc.runtime.engine import execute

Pads = tuple[tuple[int, int], ...]


@documented
def pooling_forward(x: Array, y: Array, ksize: Shape, stride: Shape, pad: Shape, mode: int) -> Array:
    """y = the maximum or mean of x over windows; padding never wins a maximum, NaN does.

    y: n x c x spatial, C-contiguous; overwritten. Its extents are those of whole windows, (x + 2 * pad - ksize) // stride +
        1, or one more, whose window then ends beyond the padding (Chainer's cover_all).

    Returns:
        y: the array given.
    """
    source, target = array("x", x), array("y", y)
    windows = windows_of(ksize, stride, pad)
    writable("y", target, "pooling_forward supports c-contiguous y only")
    with Checking("cudnnPoolingForward", {"x": x, "y": y}, ksize=ksize, stride=stride, pad=pad, mode=mode):
        dtype = one_type({"x": source, "y": target})
        op = _pooling(PoolForward, source.shape, target.shape, dtype, windows, mode)
    execute(op, {"x": source}, {"y": target})
    return y


@documented
def pooling_backward(x: Array, y: Array, gy: Array, ksize: Shape, stride: Shape, pad: Shape, mode: int) -> Array:
    """gx = the gradient of `pooling_forward`'s x from the gradient gy of its y; a maximum's goes to the first one of its window.

    x: n x c x spatial, the forward call's; read for maxima only.
    y: the forward call's result; its shape and dtype alone count.
    gy: like y, its gradient.

    Returns:
        gx: like x, <beside>
    """
    arrays = {name: array(name, a) for name, a in (("x", x), ("y", y), ("gy", gy))}
    source, pooled, gradient = arrays.values()
    windows = windows_of(ksize, stride, pad)
    with Checking("cudnnPoolingBackward", {"x": x, "y": y, "gy": gy}, ksize=ksize, stride=stride, pad=pad, mode=mode):
        dtype = one_type(arrays)
        if pooled.shape != gradient.shape:
            raise refusal("y and gy differ in shape")
        op = _pooling(PoolBackward, source.shape, pooled.shape, dtype, windows, mode)
    gx = empty_beside(source, source.shape, source.dtype)
    inputs = {"x": source, "dy": gradient} if len(op.inputs) == 2 else {"dy": gradient}
    execute(op, inputs, {"dx": known("gx", gx)})
    return gx


@lru_cache(4096, typed=True)
def _pooling(kind: Any, x: Shape, y: Shape, dtype: str, windows: tuple[Shape, Shape, Shape], mode: int) -> Op:
    pads = pool_pads(x, y, *windows)
    op: Op = kind(pool_name(mode), x[0], x[1], x[2:], windows[0], windows[1], pads, dtype=dtype)
    return op


def pool_name(mode: Any) -> str:
    """ooc's name of a pooling mode. Raises CuDNNError, and TypeError for what is no integer."""
    if index(mode) not in range(len(POOLINGS)):
        raise refusal(f"unknown pooling mode {mode!r}")
    return POOLINGS[mode]


def pool_pads(x: Shape, y: Shape, ksize: Shape, stride: Shape, pad: Shape) -> Pads:
    """(before, after) per axis for a pooling from x to y, both channels first. Raises CuDNNError where they do not fit."""
    rank = len(x) - 2
    if rank not in (1, 2, 3) or not rank == len(y) - 2 == len(ksize) == len(stride) == len(pad):
        raise refusal(f"expected 1 to 3 spatial axes, the same for all arrays, and {len(ksize)} of them as ksize says")
    if not all((*x, *y)) or min(ksize) < 1 or min(stride) < 1 or min(pad) < 0 or x[:2] != y[:2]:
        raise refusal("an extent is zero or of the other array, ksize or stride less than 1, or pad negative")
    pads = []
    for e, o, k, s, p in zip(x[2:], y[2:], ksize, stride, pad, strict=True):
        whole = (e + 2 * p - k) // s + 1
        after = max(p, (o - 1) * s + k - e - p)
        if p >= k or after >= k or not whole <= o <= whole + 1:
            raise refusal(f"windows of {k} at steps of {s} over {e} with padding {p} make {max(0, whole)} or one more, not {o}")
        pads.append((p, after))
    return tuple(pads)

"""Pooling. Arguments are as in `ooc.libcudnn.convolution`."""

from __future__ import annotations

from typing import Any

from ooc.api import avg_pool, max_pool
from ooc.gradients import avg_pool_backward, max_pool_backward
from ooc.libcudnn.elementwise import tensors
from ooc.libcudnn.guard import NOT_SUPPORTED, guarded, refusal
from ooc.libcudnn.memory import view
from ooc.libcudnn.problem import blending, check_handle, laid_out
from ooc.libcudnn.registry import Pooling, Tensor, find

__all__ = ["poolingBackward", "poolingForward"]

MAXIMA = (0, 3)  # CUDNN_POOLING_MAX, _MAX_DETERMINISTIC
COUNT_PADDING = 1  # CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING


def _check(form: Pooling, x: Tensor, y: Tensor) -> None:
    """Raise unless y is what the pooling makes of x."""
    rank = len(form.window)
    if len(x.dims) != rank + 2:
        raise refusal(f"a pooling of {rank} spatial axes does not take {x.dims}")
    if not 1 <= rank <= 3 or any(p < 0 or p >= w for p, w in zip(form.pad, form.window, strict=True)):
        raise refusal(f"1 to 3 spatial axes, and padding smaller than the window: {form.pad}, {form.window}", NOT_SUPPORTED)
    axes = zip(x.dims[2:], form.window, form.pad, form.stride, strict=True)
    wanted = (*x.dims[:2], *((e + 2 * p - w) // s + 1 for e, w, p, s in axes))
    if y.dims != wanted or y.dtype != x.dtype:
        raise refusal(f"the pooling's result is {wanted} of type {x.dtype}, the descriptor says {y.dims} of type {y.dtype}")


@guarded
def poolingForward(
    handle: int, poolingDesc: int, alpha: Any, srcDesc: int, srcData: Any, beta: Any, dstDesc: int, dstData: Any
) -> None:
    """dst = alpha * pooling(src) + beta * dst; padding never wins a maximum. Source: cudnnPoolingForward."""
    check_handle(handle)
    form, src, dst = find(Pooling, poolingDesc, "poolingDesc"), find(Tensor, srcDesc, "src"), find(Tensor, dstDesc, "dst")
    _check(form, src, dst)
    blend = blending(alpha, beta, dst.dtype)
    layout, (x, y) = laid_out(view("src", src, srcData), view("dst", dst, dstData, write=True))
    if form.mode in MAXIMA:
        max_pool(x, form.window, form.stride, form.pad, layout=layout, out=y, **blend)
        return
    counts = form.mode == COUNT_PADDING
    avg_pool(x, form.window, form.stride, form.pad, count_padding=counts, layout=layout, out=y, **blend)


@guarded
def poolingBackward(
    handle: int, poolingDesc: int, alpha: Any, srcDesc: int, srcData: Any, srcDiffDesc: int, srcDiffData: Any, destDesc: int,
    destData: Any, beta: Any, destDiffDesc: int, destDiffData: Any,
) -> None:  # fmt: skip
    """destDiff = alpha * gradient + beta * destDiff, from the input dest and the gradient srcDiff of the result; a maximum's
    goes to the first one of its window. The result src is not read, dest for maxima only. Source: cudnnPoolingBackward."""
    check_handle(handle)
    form = find(Pooling, poolingDesc, "poolingDesc")
    small, _ = tensors(srcDiff=(srcDiffDesc, srcDiffData), src=(srcDesc, srcData))
    large, _ = tensors(destDiff=(destDiffDesc, destDiffData), dest=(destDesc, destData))
    _check(form, large, small)
    blend = blending(alpha, beta, large.dtype)
    dy, dx = view("srcDiff", small, srcDiffData), view("destDiff", large, destDiffData, write=True)
    if form.mode in MAXIMA:
        layout, (x, dy, dx) = laid_out(view("dest", find(Tensor, destDesc, "dest"), destData), dy, dx)
        max_pool_backward(x, dy, form.window, form.stride, form.pad, layout=layout, out=dx, **blend)
        return
    layout, (dy, dx) = laid_out(dy, dx)
    counts = form.mode == COUNT_PADDING
    avg_pool_backward(dy, dx.shape, form.window, form.stride, form.pad, count_padding=counts, layout=layout, out=dx, **blend)

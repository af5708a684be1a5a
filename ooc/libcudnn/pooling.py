"""Pooling. Arguments are as in `ooc.libcudnn.convolution`."""

from __future__ import annotations

from typing import Any

from ooc.api.backward import avg_pool_backward, max_pool_backward
from ooc.api.forward import chain
from ooc.api.layers import Pool
from ooc.libcudnn.guard import NOT_SUPPORTED, guarded, refusal
from ooc.libcudnn.memory import view
from ooc.libcudnn.problem import blending, check_handle, laid_out, tensors
from ooc.libcudnn.registry import PoolingDescriptor, TensorDescriptor, find

__all__ = ["poolingBackward", "poolingForward"]

POOLINGS = ("max", "average", "average_valid", "max")  # by CUDNN_POOLING_*


def _sizes(form: PoolingDescriptor, x: TensorDescriptor, y: TensorDescriptor) -> dict[str, Any]:
    """Window, stride, and padding before and after, of the pooling from x to y. Raises BAD_PARAM, NOT_SUPPORTED.

    An extent of y may be one more than whole windows make it: the last one then ends beyond the padding (Chainer's cover_all).
    """
    rank = len(form.window)
    if len(x.dims) != rank + 2:
        raise refusal(f"a pooling of {rank} spatial axes does not take {x.dims}")
    if rank > 3 or any(p < 0 or p >= w for p, w in zip(form.pad, form.window, strict=True)):
        raise refusal(f"1 to 3 spatial axes, and padding smaller than the window: {form.pad}, {form.window}", NOT_SUPPORTED)
    axes = list(zip(x.dims[2:], form.window, form.pad, form.stride, strict=True))
    dims = (*x.dims[:2], *((e + 2 * p - w) // s + 1 for e, w, p, s in axes))
    more = [o - v for o, v in zip(y.dims, dims)]
    if (y.dtype, len(y.dims), more[:2]) != (x.dtype, rank + 2, [0, 0]) or not set(more) <= {0, 1}:
        raise refusal(f"the pooling's result is {dims} of type {x.dtype}, the descriptor says {y.dims} of type {y.dtype}")
    after = (max(p, (o - 1) * s + w - e - p) for (e, w, p, s), o in zip(axes, y.dims[2:], strict=True))
    return {"window": form.window, "stride": form.stride, "padding": tuple(zip(form.pad, after, strict=True))}


@guarded
def poolingForward(
    handle: int, poolingDesc: int, alpha: Any, srcDesc: int, srcData: Any, beta: Any, dstDesc: int, dstData: Any
) -> None:
    """dst = alpha * pooling(src) + beta * dst; padding never wins a maximum."""
    check_handle(handle)
    form = find(PoolingDescriptor, poolingDesc, "poolingDesc")
    src, dst = find(TensorDescriptor, srcDesc, "src"), find(TensorDescriptor, dstDesc, "dst")
    pool = Pool(POOLINGS[form.mode], **_sizes(form, src, dst))
    layout, (x, y) = laid_out(view("src", src, srcData), view("dst", dst, dstData, write=True))
    chain(x, pool, layout=layout, out=y, **blending(alpha, beta, y))


@guarded
def poolingBackward(
    handle: int, poolingDesc: int, alpha: Any, srcDesc: int, srcData: Any, srcDiffDesc: int, srcDiffData: Any, destDesc: int,
    destData: Any, beta: Any, destDiffDesc: int, destDiffData: Any,
) -> None:  # fmt: skip
    """destDiff = alpha * gradient + beta * destDiff, from the input dest and the gradient srcDiff of the result; a maximum's
    goes to the first one of its window.

    srcData: the result, which is not looked at.
    destData: the input, which is looked at for maxima only: an address, or an array.
    """
    form = find(PoolingDescriptor, poolingDesc, "poolingDesc")
    small, _ = tensors(handle, srcDiff=srcDiffDesc, src=srcDesc)
    large, dest = tensors(handle, destDiff=destDiffDesc, dest=destDesc)
    sizes = _sizes(form, large, small)
    dy, dx = view("srcDiff", small, srcDiffData), view("destDiff", large, destDiffData, write=True)
    how = {**sizes, **blending(alpha, beta, dx)}
    if POOLINGS[form.mode] == "max":
        layout, (x, dy, dx) = laid_out(view("dest", dest, destData), dy, dx)
        max_pool_backward(x, dy, layout=layout, out=dx, **how)
        return
    layout, (dy, dx) = laid_out(dy, dx)
    avg_pool_backward(dy, dx.shape, count_padding=POOLINGS[form.mode] == "average", layout=layout, out=dx, **how)

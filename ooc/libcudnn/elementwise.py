"""Tensor operations, activation and softmax. Arguments are as in `ooc.libcudnn.convolution`."""

from __future__ import annotations

from typing import Any

from ooc.api.backward import activation_backward
from ooc.api.dispatch import Output, compute
from ooc.api.forward import activation
from ooc.api.functions import scale
from ooc.api.layers import Activation as Act
from ooc.api.softmax import softmax, softmax_backward
from ooc.ir.op import dtype_name
from ooc.libcudnn.guard import NOT_SUPPORTED, guarded, refusal
from ooc.libcudnn.memory import Array, compact, element, number, view
from ooc.libcudnn.problem import alike, blending, check_handle, tensors
from ooc.libcudnn.registry import ActivationDescriptor, TensorDescriptor, find
from ooc.ops import Pointwise
from ooc.ops.registry import IN

__all__ = [
    "activationBackward_v4", "activationForward_v4", "addTensor_v3",
    "scaleTensor", "setTensor", "softmaxBackward", "softmaxForward",
]  # fmt: skip

ACTIVATIONS = ("sigmoid", "relu", "tanh", "clipped_relu", "elu", "identity")  # by CUDNN_ACTIVATION_*


def activation_of(activationDesc: int) -> Act:
    """The activation of a descriptor. Raises BAD_PARAM, and NOT_SUPPORTED for swish."""
    form = find(ActivationDescriptor, activationDesc, "activationDesc")
    if form.mode >= len(ACTIVATIONS):
        raise refusal(f"activation {form.mode}: not provided", NOT_SUPPORTED)
    name = ACTIVATIONS[form.mode]
    return Act(name, form.coef if name in ("clipped_relu", "elu") else None)


def _at_most_five(*arrays: Array) -> list[Array]:
    """Arrays for an operation on every element: their axes in the order of memory, merged. Raises NOT_SUPPORTED."""
    merged = compact(*arrays)
    if merged[0].ndim > 5:
        raise refusal("more than five axes that cannot be merged", NOT_SUPPORTED)
    return merged


# ---- tensors


@guarded
def addTensor_v3(handle: int, alpha: Any, bDesc: int, b: Any, beta: Any, yDesc: int, y: Any) -> None:
    """y = alpha * b + beta * y; each axis of b is y's, or 1 and repeated."""
    check_handle(handle)
    small, full = find(TensorDescriptor, bDesc, "bDesc"), find(TensorDescriptor, yDesc, "yDesc")
    fits = len(small.dims) == len(full.dims) and all(s in (1, f) for s, f in zip(small.dims, full.dims, strict=True))
    if not fits or small.dtype != full.dtype:
        raise refusal(f"b {small.dims} of type {small.dtype} cannot be added to y {full.dims} of type {full.dtype}")
    target = view("y", full, y, write=True)
    spread(view("b", small, b), target, **blending(alpha, beta, target))


@guarded
def setTensor(handle: int, yDesc: int, y: Any, valuePtr: Any) -> None:
    """Every element of y = a value.

    valuePtr: a float, or the address (an int) of one of y's type.
    """
    check_handle(handle)
    (target,) = _at_most_five(view("y", find(TensorDescriptor, yDesc, "yDesc"), y, write=True))
    value = element("valuePtr", valuePtr, target.dtype)
    spread(value.reshape((1,) * target.ndim), target, 1.0, 0.0)


@guarded
def scaleTensor(handle: int, yDesc: int, y: Any, alpha: Any) -> None:
    """y = alpha * y."""
    check_handle(handle)
    (target,) = _at_most_five(view("y", find(TensorDescriptor, yDesc, "yDesc"), y, write=True))
    scale(target, number("alpha", alpha, target.dtype), out=target)


def spread(small: Array, full: Array, alpha: float, beta: float) -> None:
    """full = alpha * small, repeated, + beta * full; what full holds is not read where beta is 0."""
    if full.ndim > 5:
        raise refusal(f"at most five axes, got {full.ndim}", NOT_SUPPORTED)
    more = (None,) * max(0, 3 - full.ndim)
    lifted = (Ellipsis, *more)
    small, full = small[lifted], full[lifted]
    n, k, *extent = full.shape
    letters = ("n", "k", *IN[len(extent)])
    mask = "".join(d for d, s, f in zip(letters, small.shape, full.shape, strict=True) if s == f) or "1"
    dtype, whole = dtype_name(full.dtype), "".join(letters) if beta else ""
    op = Pointwise(n, k, tuple(extent), alpha=alpha, beta=beta, add=whole, of=mask, dtype=dtype)
    compute(op, {"x": small, **({"z": full} if beta else {})}, [Output("y", full.shape, lambda array: array, full)])


# ---- activation and softmax


@guarded
def activationForward_v4(
    handle: int, activationDesc: int, alpha: Any, srcDesc: int, srcData: Any, beta: Any, dstDesc: int, dstData: Any
) -> None:
    """dst = alpha * activation(src) + beta * dst; dst may be src."""
    act = activation_of(activationDesc)
    x, y = _at_most_five(*alike(handle, src=(srcDesc, srcData), dst=(dstDesc, dstData)))
    activation(x, act.name, act.coef, out=y, **blending(alpha, beta, y))


@guarded
def activationBackward_v4(
    handle: int, activationDesc: int, alpha: Any, srcDesc: int, srcData: Any, srcDiffDesc: int, srcDiffData: Any, destDesc: int,
    destData: Any, beta: Any, destDiffDesc: int, destDiffData: Any,
) -> None:  # fmt: skip
    """destDiff = alpha * gradient + beta * destDiff, from the result src and its gradient srcDiff.

    destData: the input, which is not looked at.
    """
    act = activation_of(activationDesc)
    tensors(handle, src=srcDesc, srcDiff=srcDiffDesc, destDiff=destDiffDesc, dest=destDesc)
    arrays = alike(handle, src=(srcDesc, srcData), srcDiff=(srcDiffDesc, srcDiffData), destDiff=(destDiffDesc, destDiffData))
    y, dy, dx = _at_most_five(*arrays)
    activation_backward(y, dy, act.name, act.coef, out=dx, **blending(alpha, beta, dx))


@guarded
def softmaxForward(
    handle: int, algorithm: int, mode: int, alpha: Any, srcDesc: int, srcData: Any, beta: Any, dstDesc: int, dstData: Any
) -> None:
    """dst = alpha * softmax(src) + beta * dst; dst may be src."""
    _check_softmax(algorithm, mode)
    x, y = _softened(mode, *alike(handle, src=(srcDesc, srcData), dst=(dstDesc, dstData)))
    softmax(x, 1, log=algorithm == 2, out=y, **blending(alpha, beta, y))


@guarded
def softmaxBackward(
    handle: int, algorithm: int, mode: int, alpha: Any, srcDesc: int, srcData: Any, srcDiffDesc: int, srcDiffData: Any,
    beta: Any, destDiffDesc: int, destDiffData: Any,
) -> None:  # fmt: skip
    """destDiff = alpha * gradient + beta * destDiff, from the result src and its gradient srcDiff."""
    _check_softmax(algorithm, mode)
    arrays = alike(handle, src=(srcDesc, srcData), srcDiff=(srcDiffDesc, srcDiffData), destDiff=(destDiffDesc, destDiffData))
    y, dy, dx = _softened(mode, *arrays)
    softmax_backward(y, dy, 1, log=algorithm == 2, out=dx, **blending(alpha, beta, dx))


def _check_softmax(algorithm: int, mode: int) -> None:
    if algorithm not in (0, 1, 2) or mode not in (0, 1):
        raise refusal(f"softmax: algorithm {algorithm}, mode {mode}: expected 0 to 2, and 0 or 1")


def _softened(mode: int, *arrays: Array) -> list[Array]:
    """Arrays with what softmax runs over as axis 1. Raises NOT_SUPPORTED where images have gaps."""
    if mode == 1:
        if arrays[0].ndim > 5:
            raise refusal(f"softmax: at most five axes, got {arrays[0].ndim}", NOT_SUPPORTED)
        return list(arrays)
    merged = compact(*arrays, keep=1)
    if merged[0].ndim != 2:
        raise refusal("softmax over instances: images must be dense, and in the same order in all tensors", NOT_SUPPORTED)
    return merged

"""The convolutions of `ooc.cudnn`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from ooc.api.arguments import Array, per_channel
from ooc.cudnn.checks import Checking, ConvolutionGeometry, Shape, array, first, geometry, layout_of, one_type, view, writable
from ooc.cudnn.options import documented
from ooc.cudnn.state import limited
from ooc.ir.op import Op
from ooc.libcudnn import CUDNN_TENSOR_NCHW
from ooc.libcudnn.guard import refusal
from ooc.ops import ConvDgrad, ConvFprop, ConvWgrad
from ooc.runtime.call_options import CallOptions
from ooc.runtime.engine import execute

# What each pass calls the convolution's input, filters and result, and which of them it makes.
PASSES: dict[str, tuple[Any, tuple[str, str, str], int]] = {
    "Forward": (ConvFprop, ("x", "w", "y"), 2),
    "BackwardData": (ConvDgrad, ("dx", "w", "dy"), 0),
    "BackwardFilter": (ConvWgrad, ("x", "dw", "dy"), 1),
}
SIZES = ("pad", "stride", "dilation", "groups")
WIDE = (np.dtype(np.float32), np.dtype(np.float64))  # computed in as they are


@documented
def convolution_forward(
    x: Array, W: Array, b: Array | None, y: Array, pad: Shape, stride: Shape, dilation: Shape | None, groups: int, *,
    auto_tune: bool, tensor_core: str, d_layout: int = CUDNN_TENSOR_NCHW, w_layout: int = CUDNN_TENSOR_NCHW,
) -> None:  # fmt: skip
    """y = the cross-correlation of x and W, plus b per channel.

    y: n x k x spatial, C-contiguous; overwritten. Its extents are (x + 2 * pad - dilation * (taps - 1) - 1) // stride + 1.
    """
    arguments, rest = {"x": x, "W": W, "y": y}, {"auto_tune": auto_tune, "tensor_core": tensor_core}
    _compute("Forward", arguments, b, (pad, stride, dilation, groups), rest, (d_layout, w_layout), False)


@documented
def convolution_backward_data(
    W: Array, x: Array, b: Array | None, y: Array, pad: Shape, stride: Shape, dilation: Shape | None, groups: int, *,
    deterministic: bool, auto_tune: bool, tensor_core: str, d_layout: int = CUDNN_TENSOR_NCHW,
    w_layout: int = CUDNN_TENSOR_NCHW,
) -> None:  # fmt: skip
    """y = the gradient of the input of a convolution with W whose result has the gradient x, plus b per channel.

    That is also the deconvolution of x, with its bias.

    x: n x k x spatial, the gradient of the convolution's result.
    y: n x c x spatial, C-contiguous; overwritten. Its extents are any whose convolution has those of x.
    """
    arguments, rest = {"y": y, "W": W, "x": x}, {"auto_tune": auto_tune, "tensor_core": tensor_core}
    _compute("BackwardData", arguments, b, (pad, stride, dilation, groups), rest, (d_layout, w_layout), deterministic)


@documented
def convolution_backward_filter(
    x: Array, gy: Array, gW: Array, pad: Shape, stride: Shape, dilation: Shape | None, groups: int, *,
    deterministic: bool, auto_tune: bool, tensor_core: str, d_layout: int = CUDNN_TENSOR_NCHW,
    w_layout: int = CUDNN_TENSOR_NCHW,
) -> None:  # fmt: skip
    """gW = the gradient of the filters, from a convolution's input x and the gradient gy of its result.

    x: n x c x spatial, the input.
    gy: n x k x spatial, the gradient of the result.
    gW: k x c/groups x taps, C-contiguous; overwritten.
    """
    arguments, rest = {"x": x, "gW": gW, "gy": gy}, {"auto_tune": auto_tune, "tensor_core": tensor_core}
    _compute("BackwardFilter", arguments, None, (pad, stride, dilation, groups), rest, (d_layout, w_layout), deterministic)


def _compute(
    name: str, arguments: Mapping[str, Any], b: Any, sizes: tuple[Any, ...], rest: dict[str, Any], layouts: tuple[int, int],
    deterministic: bool,
) -> None:  # fmt: skip
    """One pass over three arrays: the convolution's input, its filters, its result."""
    tensors = {key: array(key, a) for key, a in arguments.items()}
    rank = next(iter(tensors.values())).ndim
    how = geometry(rank, sizes, rest["tensor_core"], layouts)
    kind, names, makes = PASSES[name]
    target = list(arguments)[makes]
    writable(target, tensors[target])
    bias = None if b is None else array("b", b)
    numbers = dict(zip(SIZES, sizes, strict=True)) | rest | {"d_layout": layouts[0], "w_layout": layouts[1]}
    with Checking(f"cudnnConvolution{name}", {**arguments, "b": b}, **numbers):
        op = sized(kind, tensors, bias, how)
        arrays = [view(a, how.filters_last if i == 1 else how.last) for i, a in enumerate(tensors.values())]
        operands = dict(zip(names, arrays, strict=True))
        target = names[makes]
        targets = {target: operands.pop(target)}
        if bias is not None:
            operands["b"] = whole_bias(bias, op.inputs[-1].shape[0])
    with limited():
        execute(op, operands, targets, CallOptions(bool(deterministic)))


def sized(kind: Any, tensors: Mapping[str, Any], bias: Any, how: ConvolutionGeometry) -> Op:
    """The op of a pass on a convolution's input, filters and, if it is stored, result. Raises CuDNNError where dtypes or
    sizes do not fit together."""
    dtype = one_type(tensors if bias is None else {**tensors, "b": bias})
    x, w, *y = (a.shape for a in tensors.values())
    return op_of(kind, x, w, y[0] if y else None, None if bias is None else bias.size, dtype, how)


@lru_cache(4096)
def op_of(kind: Any, x: Shape, w: Shape, y: Shape | None, bias: int | None, dtype: str, how: ConvolutionGeometry) -> Op:
    """The op that computes one of three arrays of a convolution from the others, from their shapes as given."""
    x, w = first(x, how.last), first(w, how.filters_last)
    shape = result_of(x, w, how)
    if y is not None and first(y, how.last) != shape:
        raise refusal(f"the convolution's result has shape {shape}, not {first(y, how.last)}")
    channels = shape[1] if kind is ConvFprop else x[1]
    if bias not in (None, 1, channels):
        raise refusal(f"b has {bias} values, expected {channels}")
    pads = tuple((p, p) for p in how.pad)
    layout = layout_of(how.last)
    op: Op = kind(
        x[0], x[1], x[2:], w[0], w[2:], how.stride, how.dilation, pads, bias is not None, groups=how.groups, dtype=dtype,
        layout=layout,
    )  # fmt: skip
    return op


def result_of(x: Shape, w: Shape, how: ConvolutionGeometry) -> Shape:
    """The shape of a convolution's result, all channels first. Raises CuDNNError where there is none."""
    if not len(x) - 2 == len(w) - 2 == len(how.pad) or len(how.pad) not in (1, 2, 3):
        raise refusal(f"expected 1 to 3 spatial axes, the same for all arrays, and {len(how.pad)} of them as pad says")
    if not all((*x, *w)):
        raise refusal("an extent is zero")
    if min(how.pad) < 0 or min(how.stride) < 1 or min(how.dilation) < 1:
        raise refusal("pad must not be negative; stride and dilation must be at least 1")
    if how.groups < 1 or x[1] != w[1] * how.groups or w[0] % how.groups:
        raise refusal(f"filters of {w[1]} channels in {how.groups} groups do not fit {x[1]} channels and {w[0]} filters")
    axes = zip(x[2:], w[2:], how.pad, how.stride, how.dilation, strict=True)
    shape = (x[0], w[0], *((e + 2 * p - d * (t - 1) - 1) // s + 1 for e, t, p, s, d in axes))
    if min(shape) < 1:
        raise refusal("the filters do not fit")
    return shape


def whole_bias(bias: Any, channels: int) -> Any:
    """One value per channel, in the type that is computed in; a single value stands for all."""
    values = bias.reshape(-1)
    if values.size < channels:
        values = np.broadcast_to(values, (channels,), subok=True)
    return values if values.dtype in WIDE else per_channel("b", values, channels, values.dtype)

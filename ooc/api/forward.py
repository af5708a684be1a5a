"""The forward functions: cuDNN-like operations on arrays of any size.

Every function checks its arguments, describes the work as an op, and hands it to the engine. Arrays may be NumPy
arrays of any strides, or `np.memmap`s, which are read and written through their file. Shapes are n x channels x
spatial (channels_first) or n x spatial x channels (channels_last) with 1 to 3 spatial axes.

What functions share is said once, in `options.py`, and shown whole by `help`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np

from ooc.api.arguments import (
    Array,
    Padding,
    PerAxis,
    as_array,
    as_int,
    as_pads,
    as_spatial,
    channels_first,
    check_layout,
    computed,
    like,
    per_axis,
    per_channel,
)  # fmt: skip
from ooc.api.dispatch import Output, compute, spatial_result
from ooc.api.layers import Activation, Conv, Layer, Pool, act_of, flatten, stages_of
from ooc.api.options import ArrayLike, ImageLayoutOptions, ImageOptions, ImageOutputOptions, documented
from ooc.errors import ArgumentError, DtypeError, ShapeError
from ooc.ir.bounds import Node
from ooc.ir.fused import Fused, fuse
from ooc.ir.op import Op, integer_name, numpy_dtype
from ooc.ops import ConvDgrad, ConvFprop, Pointwise, Reduce
from ooc.ops.registry import IN
from ooc.runtime.call_options import flag


@documented
def conv(
    x: ArrayLike,
    w: ArrayLike,
    b: ArrayLike | None = None,
    *,
    stride: PerAxis = 1,
    padding: Padding = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
    activation: str | Activation | None = None,
    pool: int | Pool | None = None,
    residual: ArrayLike | None = None,
    with_unpooled: bool = False,
    layout: str = "channels_first",
    filter_layout: str = "channels_first",
    out: Any = None,
    **options: Unpack[ImageOptions],
) -> Any:
    """y = pool(activation(conv(x, w) + b + residual)): cross-correlation as in cuDNN, in 1 to 3 spatial dimensions.

    An output position p sums x at p * stride - padding + dilation * r over the taps r and the channels of its group.

    <arrays>

    Parameters:
        x: n x c x spatial.
        w: k x c/groups x taps, the filters.
        b: k, in x's dtype or, for half types, float32; default None: zeros.
        <stride, padding of conv, dilation, groups, activation, pool>
        residual: added before the activation, of the shape of the convolution's result; default None: nothing.
        with_unpooled: True returns (y, z), the activation's result before and after pooling, made in one pass; needs pool;
            default False.
        <layout, filter layout, conversion>
        out: an array of the result's shape and dtype to write to, a memmap (mode "r+" or "w+") for example, with with_unpooled
            a pair of them; default None: a new one.
        <blend, run>

    Returns:
        y: n x k x p x q, of extents (x + padding before and after - dilation * (taps - 1) - 1) // stride + 1, pooled if so
            asked; with with_unpooled the pair (y, z).
        <beside>

    Raises:
        <errors, before>

    Source: cudnnConvolutionForward, cudnnConvolutionBiasActivationForward; ooc_cuDNN's
    ConvolutionBiasActivationPoolingForward.
    """
    if residual is None and (with_unpooled is False or not flag("with_unpooled", with_unpooled)):
        layer = Conv(w, b, stride, padding, dilation, groups, activation, pool)
        return chain(x, layer, layout=layout, filter_layout=filter_layout, out=out, **options)
    before = None if residual is not None else activation
    layers = flatten([Conv(w, b, stride, padding, dilation, groups, before, pool)])
    check_layout(layout)
    view = channels_first(as_array("x", x), layout, "x")
    beside = None if residual is None else as_array("residual", residual)
    dtype = numpy_dtype(computed(view.dtype, as_array("w", w).dtype, *(() if beside is None else (beside.dtype,))))
    stages, parameters = stages_of(view.shape, dtype, layers, layout, filter_layout)
    operands = {name.partition(".")[0]: array for name, array in parameters.items()}  # of the one convolution
    if beside is not None:
        at = next(i for i, stage in enumerate(stages) if isinstance(stage, ConvFprop))
        y = stages[at].outputs[0]
        operands["z"] = channels_first(like("residual", beside, dtype), layout, "residual")
        stages.insert(at + 1, _adding(stages[at], activation))
        if operands["z"].shape != y.shape:
            raise ShapeError(f"residual: expected the shape of the convolution's result, {y.shape}, got {operands['z'].shape}")
    if with_unpooled and not isinstance(layers[-1], Pool):
        raise ArgumentError("conv: with_unpooled= needs pool=")
    return _conv_graph(stages, {"x": view, **operands}, with_unpooled, layout, out, options)


def _adding(conv: Op, activation: str | Activation | None) -> Op:
    """activation(y + z) behind a convolution."""
    n, k, *extent = conv.outputs[0].shape
    act, coef = act_of(activation)
    groups, layout = getattr(conv, "groups", 1), getattr(conv, "layout", "channels_first")
    letters = "nk" + IN[len(extent)]
    return Pointwise(
        n, k, tuple(extent), act=act, coef=coef, add=letters, groups=groups, dtype=conv.dtype, layout=layout
    )  # fmt: skip


def _conv_graph(
    stages: list[Op], operands: dict[str, Array], with_unpooled: bool, layout: str, out: Any, options: Mapping[str, Any]
) -> Any:
    """Convolution, perhaps addition, perhaps pooling, each reading the one before; the last two may both leave."""
    nodes: list[Node] = []
    for i, op in enumerate(stages):
        reads = [o.name if o.name != "x" or i == 0 else f"y{i - 1}" for o in op.inputs]
        nodes.append(Node(op, tuple(reads), (f"y{i}",)))
    last = len(stages) - 1
    results = [f"y{last - 1}", f"y{last}"] if with_unpooled else [f"y{last}"]
    op = Fused(nodes, results)
    if with_unpooled and out is not None and not (isinstance(out, (tuple, list)) and len(out) == 2):
        raise ArgumentError("conv: with with_unpooled=, out= is a pair (y, z)")
    outs = (None, None) if out is None else tuple(out) if with_unpooled else (out,)
    outputs = [spatial_result(o, layout, array) for o, array in zip(op.outputs, outs)]
    arrays = compute(op, operands, outputs, image="x", **options)
    return tuple(arrays) if with_unpooled else arrays[0]


@documented
def max_pool(
    x: ArrayLike, window: PerAxis, stride: PerAxis | None = None, padding: Padding = 0, **options: Unpack[ImageOutputOptions]
) -> Array:
    """y = the maximum of x over windows; padding never wins, NaN does.

    <arrays>

    Parameters:
        x: n x c x spatial.
        <windows, layout, conversion, out, blend, run>

    Returns:
        y: n x c x p x q, of extents (x + padding before and after - window) // stride + 1, <beside x>

    Raises:
        <errors, before>

    Source: cudnnPoolingForward with CUDNN_POOLING_MAX.
    """
    return chain(x, Pool("max", window, stride, padding), **options)


@documented
def avg_pool(
    x: ArrayLike,
    window: PerAxis,
    stride: PerAxis | None = None,
    padding: Padding = 0,
    *,
    count_padding: bool = True,
    **options: Unpack[ImageOutputOptions],
) -> Array:
    """y = the mean of x over windows.

    <arrays>

    Parameters:
        x: n x c x spatial.
        <windows>
        count_padding: True (default) counts padding as zeros, False leaves it out of the mean.
        <layout, conversion, out, blend, run>

    Returns:
        y: n x c x p x q, of extents (x + padding before and after - window) // stride + 1, <beside x>

    Raises:
        <errors, before>

    Source: cudnnPoolingForward with CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING, or _EXCLUDE_PADDING.
    """
    return chain(
        x, Pool("average" if flag("count_padding", count_padding) else "average_valid", window, stride, padding), **options
    )


@documented
def global_avg_pool(
    x: ArrayLike, *, layout: str = "channels_first", out: ArrayLike | None = None, **options: Unpack[ImageOptions]
) -> Array:
    """y = the mean of x over all positions, summed in float64; positions may be split like any other axis.

    <arrays>

    Parameters:
        x: n x c x spatial.
        <layout, conversion, out, blend, run>

    Returns:
        y: n x c x 1 x 1, with as many axes as x, <beside x>

    Raises:
        <errors, before>

    Source: cudnnReduceTensor.
    """
    check_layout(layout)
    x = as_array("x", x)
    view = channels_first(x, layout)
    n, k, *extent = view.shape
    op = Reduce("positions", n, k, tuple(extent), 1 / max(1, int(np.prod(extent))), dtype=computed(x.dtype), layout=layout)
    return compute(op, {"x": view}, [spatial_result(op.outputs[0], layout, out)], image="x", **options)[0]


@documented
def activation(
    x: ArrayLike, name: str, coef: float | None = None, *, out: ArrayLike | None = None, **options: Unpack[ImageLayoutOptions]
) -> Array:
    """y = activation(x), element by element; NaN passes through.

    <arrays>

    Parameters:
        x: any shape; more than five axes must be contiguous enough to be seen as five.
        <name, conversion along one>
        out: an array of the shape and dtype of x to write to; x itself for example; default None: a new one.
        <blend, any layout, run>

    Returns:
        y: like x, <beside x>

    Raises:
        <errors, before>

    Source: cudnnActivationForward.
    """
    x = as_array("x", x)
    if 0 in x.shape:
        raise ShapeError(f"activation: every extent of x must be at least 1, got shape {x.shape}")
    view = as_spatial(x)
    n, k, *extent = view.shape
    act, at = act_of(name, "name", coef)
    op = Pointwise(n, k, tuple(extent), act=act, coef=at, dtype=computed(x.dtype))
    options.pop("layout", None)  # the same for every layout
    return compute(op, {"x": view}, [Output("y", x.shape, as_spatial, out)], image="x", **options)[0]


@documented
def chain(
    x: ArrayLike, *layers: Layer, layout: str = "channels_first", filter_layout: str = "channels_first",
    out: ArrayLike | None = None, **options: Unpack[ImageOptions],
) -> Array:  # fmt: skip
    """Several layers in a row, fused tile by tile: `chain(x, Conv(w1, b1, padding=1), Activation("relu"), Pool("max", 2))`.

    Intermediates exist only for the tile in work, unless cutting the chain is predicted to be faster or only that fits
    the budget; those then pass through memory, or a temporary file where one of the arrays is a memmap.

    <arrays>

    Parameters:
        x: n x c x spatial.
        *layers: at least one `ooc.Conv`, `ooc.Pool` or `ooc.Activation`, applied in this order.
        <layout, filter layout, conversion, out, blend, run>

    Returns:
        y: the last layer's result, n x k x spatial, <beside x>

    Raises:
        <errors, before>

    Source: those of `ooc.conv`, `ooc.max_pool`, `ooc.avg_pool` and `ooc.activation`.
    """
    check_layout(layout)
    x = channels_first(as_array("x", x), layout, "x")
    stages, operands = stages_of(x.shape, x.dtype, flatten(layers), layout, filter_layout)
    op = fuse(*stages) if len(stages) > 1 else stages[0]
    return compute(op, {"x": x, **operands}, [spatial_result(op.outputs[0], layout, out)], image="x", **options)[0]


@documented
def conv_transpose(
    x: ArrayLike,
    w: ArrayLike,
    b: ArrayLike | None = None,
    *,
    stride: PerAxis = 1,
    padding: Padding = 0,
    output_padding: PerAxis = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
    activation: str | Activation | None = None,
    layout: str = "channels_first",
    filter_layout: str = "channels_first",
    out: ArrayLike | None = None,
    **options: Unpack[ImageOptions],
) -> Array:
    """y = activation(the transposed convolution of x, + b): the gradient of a convolution with w, used forward.

    <arrays>

    Parameters:
        x: n x k x spatial.
        w: k x c/groups x taps, the filters as of the convolution that is transposed.
        b: c, in x's dtype or, for half types, float32; default None: zeros.
        <stride, padding>
        output_padding: positions that the result has more at the end of each spatial axis; an int, or one per axis, from 0 to
            stride - 1; default 0.
        <dilation, groups, activation, layout, filter layout, conversion, out, blend, run>

    Returns:
        y: n x c x spatial, of extents (x - 1) * stride - padding before and after + dilation * (taps - 1) + output_padding
            + 1, <beside x>

    Raises:
        <errors, before>

    Source: cudnnConvolutionBackwardData; ooc_cuDNN's DeconvolutionBiasActivationForward.
    """
    check_layout(layout)
    check_layout(filter_layout, "filter_layout")
    view, w = channels_first(as_array("x", x), layout, "x"), channels_first(as_array("w", w), filter_layout, "w")
    dtype = computed(view.dtype, w.dtype)
    if w.dtype != numpy_dtype(dtype) and integer_name(w.dtype) is None:
        raise DtypeError(f"conv_transpose: w is {w.dtype} but x is {view.dtype}; convert one of them")
    if len(w.shape) != view.ndim or w.shape[0] != view.shape[1]:
        raise ShapeError(f"conv_transpose: w of shape {tuple(w.shape)} does not take the {view.shape[1]} channels of x")
    n, k, *small = view.shape
    rank, taps, groups = len(small), tuple(w.shape[2:]), as_int("groups", groups)
    if groups < 1 or k % groups:
        raise ShapeError(f"conv_transpose: groups={groups} must divide the channels of x ({k})")
    strides, dilations = per_axis("stride", stride, rank), per_axis("dilation", dilation, rank)
    pads, extra = as_pads("padding", padding, rank), per_axis("output_padding", output_padding, rank)
    if any(not 0 <= e < s for e, s in zip(extra, strides, strict=True)):
        raise ShapeError(f"conv_transpose: output_padding {extra} must be smaller than stride {strides}")
    axes = zip(small, strides, pads, dilations, taps, extra, strict=True)
    extent = tuple((i - 1) * s - sum(p) + d * (r - 1) + e + 1 for i, s, p, d, r, e in axes)
    act, coef = act_of(activation)
    op = ConvDgrad(
        n, w.shape[1] * groups, extent, k, taps, strides, dilations, pads, b is not None, act, coef, groups,
        dtype, layout,
    )  # fmt: skip
    inputs = {"dy": view, "w": w} | ({} if b is None else {"b": per_channel("b", b, op.c, numpy_dtype(dtype))})
    return compute(op, inputs, [spatial_result(op.outputs[0], layout, out)], image="dy", **options)[0]

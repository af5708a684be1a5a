"""The backward functions: gradients of those in `forward.py`, from the gradients of their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Unpack

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
    per_axis,
)
from ooc.api.backward_graph import WantedGradients, backward_graph
from ooc.api.conversions import check_scalable
from ooc.api.dispatch import Output, compute, plain_result, spatial_result
from ooc.api.layers import Activation, Conv, Layer, Pool, act_of, flatten, stages_of
from ooc.api.options import ArrayLike, BlendOptions, ImageOptions, LayoutOptions, OutputOptions, documented
from ooc.errors import ArgumentError, ShapeError
from ooc.ir.op import Op, numpy_dtype
from ooc.ops import ActivationBackward, ConvFprop, PoolBackward, Reduce
from ooc.runtime.call_options import flag


@documented
class Gradients(NamedTuple):
    """Gradients of a layer, as `ooc.conv_backward`, `ooc.chain_backward` and `ooc.linear_backward` return them.

    Fields:
        dx: gradient of the input, of its shape and dtype; None if not asked for.
        dw: gradient of the filters, of their shape and dtype; None if not asked for.
        db: gradient of the bias, k values of the type that is computed in (float32, or float64 for float64); None if not
            asked for.
    """

    dx: Array | None
    dw: Array | None
    db: Array | None


@documented
def conv_backward(
    x: ArrayLike | None,
    w: ArrayLike,
    dy: ArrayLike,
    *,
    y: ArrayLike | None = None,
    want: Sequence[str] = ("dx", "dw", "db"),
    stride: PerAxis = 1,
    padding: Padding = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
    activation: str | Activation | None = None,
    pool: int | Pool | None = None,
    x_shape: Sequence[int] | None = None,
    layout: str = "channels_first",
    filter_layout: str = "channels_first",
    dx: ArrayLike | None = None,
    dw: ArrayLike | None = None,
    db: ArrayLike | None = None,
    **options: Unpack[ImageOptions],
) -> Gradients:
    """Gradients of y = pool(activation(conv(x, w) + b)) from the gradient dy of its result, in one pass over dy.

    With dz = dy taken back through pooling and activation: db sums dz over images and positions, dw correlates x with dz, dx
    is the transposed convolution of dz with w. A maximum's gradient goes to the first one of its window.

    <arrays>

    Parameters:
        x: n x c x spatial, the forward call's; None where dw is not wanted, x_shape then says its shape.
        w: k x c/groups x taps, the filters; read for dx, otherwise its shape alone counts.
        dy: n x k x p x q, of the shape of the forward call's result (after pooling).
        y: n x k x spatial, the forward call's result before pooling; needed with activation or max pooling, default None.
        want: which gradients, a name or several of "dx", "dw", "db"; default all.
        <stride, padding of conv, dilation, groups, activation, pool>
        x_shape: the shape of x in this layout, where x is None; default None.
        <layout, filter layout, conversion>
            dx is the gradient of what x is converted to.
        dx, dw, db: arrays of the gradients' shapes and dtypes to write to (of wanted ones), db of the type that is computed in;
            default None: new ones.
        alpha, beta: numbers, default 1.0 and 0.0: each wanted gradient is alpha * gradient + beta * (what its output holds
            before); a beta other than 0 needs an output for each. Each gradient then takes a pass of its own.
        <run>

    Returns:
        `ooc.Gradients` (dx, dw, db): dx like x, dw like w, db k values in float32 (float64 for float64); None for those not
            wanted.
        <beside>

    Raises:
        <errors, before>

    Source: cudnnConvolutionBackwardData, cudnnConvolutionBackwardFilter, cudnnConvolutionBackwardBias; ooc_cuDNN's
    PoolingActivationConvolutionBackwardDataFilterBias and its parts.
    """
    check_layout(layout)
    request = WantedGradients.of(want, {"dx": dx, "dw": dw, "db": db})
    seen_dy = channels_first(as_array("dy", dy), layout, "dy")
    if x is None and (request.dw or x_shape is None):
        raise ArgumentError("conv_backward: dw needs x; without x, pass x_shape=")
    seen_x = None if x is None else channels_first(as_array("x", x), layout, "x")
    if seen_x is not None:  # also where it is not read
        check_scalable(seen_x, options.get("scale"), options.get("offset"))
    shape = _shape_of(x_shape, layout) if seen_x is None else seen_x.shape
    layers = flatten([Conv(w, None, stride, padding, dilation, groups, activation, pool)])
    dtypes = [a.dtype for a in (seen_x, seen_dy, as_array("w", w)) if a is not None]
    stages, operands = stages_of(shape, numpy_dtype(computed(*dtypes)), layers, layout, filter_layout)
    _matches(stages[-1], seen_dy)
    at = next(i for i, stage in enumerate(stages) if isinstance(stage, ConvFprop))
    needs_y = getattr(stages[at], "act", "identity") != "identity" or any(s.kind == "pool.max" for s in stages)
    if needs_y and y is None:
        raise ArgumentError("conv_backward: with activation= or max pooling, pass y=, the forward result before pooling")
    inputs = {**operands, "dy": seen_dy} | ({} if seen_x is None else {"x": seen_x})
    if needs_y:
        inputs["y"] = channels_first(as_array("y", y), layout, "y")
    op, names = backward_graph(stages, request, forward=False)
    bare = [name.partition(".")[0] for name in names]
    results = [
        result._replace(out=request.outs.get(name), word=name)
        for result, name in zip(_results(op, names, layout, filter_layout, request), bare, strict=True)
    ]
    op_inputs = {o.name: inputs[o.name] for o in op.inputs}
    gradients = dict(zip(bare, compute(op, op_inputs, results, image="x", **options), strict=True))
    return Gradients(gradients.get("dx"), gradients.get("dw"), gradients.get("db"))


@documented
def chain_backward(
    x: ArrayLike, dy: ArrayLike, *layers: Layer, want: Sequence[str] = ("dx", "dw", "db"), layout: str = "channels_first",
    filter_layout: str = "channels_first", outs: Mapping[str, ArrayLike] | None = None, **options: Unpack[ImageOptions],
) -> tuple[Array | None, list[Gradients]]:  # fmt: skip
    """Gradients of `chain(x, *layers)` from the gradient dy of its result; what lies between is computed again.

    Results between are made again inside the tile: only x, the filters, biases and dy are read, only dx and each convolution's
    dw and db are written, unless cutting the work is predicted to be faster or only that fits.

    <arrays>

    Parameters:
        x: n x c x spatial, the forward call's.
        dy: of the shape of the chain's result.
        *layers: the layers of the forward call: `ooc.Conv`, `ooc.Pool`, `ooc.Activation`.
        want: which gradients, a name or several of "dx", "dw", "db", the last two of every convolution; default all.
        <layout, filter layout, conversion>
            dx is the gradient of what x is converted to.
        outs: a dict of arrays to write to: dx, dw and db of the first layer, dw.1, db.1, ... of later ones, counted over the
            flattened layers (the pooling of a `Conv` counts as a layer, so does a border that its padding= names, in front of
            it; an `Activation` behind a `Conv` is part of it); default None: new ones for all.
        alpha, beta: numbers, default 1.0 and 0.0: each gradient is alpha * gradient + beta * (what its output holds before); a
            beta other than 0 needs an output for each. Each gradient then takes a pass of its own.
        <run>

    Returns:
        dx: like x; None if not wanted.
        gradients: a list of `ooc.Gradients`, one for each flattened layer in order: dw and db of convolutions (db of float32,
            or float64 for float64), None for other layers and what is not wanted; their dx is always None.
        <beside>

    Raises:
        <errors, before>

    Source: cudnnConvolutionBackwardData, -Filter, -Bias, cudnnActivationBackward, cudnnPoolingBackward.
    """
    check_layout(layout)
    outs = {} if outs is None else outs
    x_view, seen_dy = (channels_first(as_array(n, a), layout, n) for n, a in (("x", x), ("dy", dy)))
    flat = flatten(layers)
    own_types = [as_array("w", layer.w).dtype for layer in flat if isinstance(layer, Conv)]
    dtype = numpy_dtype(computed(x_view.dtype, *own_types, seen_dy.dtype))
    stages, operands = stages_of(x_view.shape, dtype, flat, layout, filter_layout)
    _matches(stages[-1], seen_dy)
    request = WantedGradients.of(want, outs)
    op, names = backward_graph(stages, request, forward=True)
    unknown = sorted(set(request.outs) - set(names))
    if unknown:
        raise ArgumentError(f"chain_backward: outs: no gradient {', '.join(unknown)}; expected some of {', '.join(names)}")
    inputs = {"x": x_view, "dy": seen_dy, **operands}
    op_inputs = {o.name: inputs[o.name] for o in op.inputs}
    results = _results(op, names, layout, filter_layout, request)
    gradients = dict(zip(names, compute(op, op_inputs, results, image="x", **options), strict=True))
    suffixes = [f".{i}" if i else "" for i in range(len(stages))]
    return gradients.get("dx"), [Gradients(None, gradients.get("dw" + s), gradients.get("db" + s)) for s in suffixes]


def _shape_of(shape: Sequence[int] | None, layout: str) -> tuple[int, ...]:
    """A shape that the user gives for an array that is not there, seen channels first."""
    try:
        n, *rest = (as_int("x_shape", s) for s in shape or ())
    except (TypeError, ValueError):
        raise ShapeError(f"x_shape: expected the shape of x, got {shape!r}") from None
    if len(rest) not in (2, 3, 4) or min(n, *rest) < 1:
        raise ShapeError(f"x_shape: expected 3 to 5 positive extents, got {shape!r}")
    return (n, rest[-1], *rest[:-1]) if layout == "channels_last" else (n, *rest)


def _matches(last: Op, dy: Array) -> None:
    operand = last.outputs[0]
    if tuple(dy.shape) != operand.shape:
        raise ShapeError(f"{last}: dy must have the shape of the result, {operand.shape}, got {tuple(dy.shape)}")


def _results(op: Op, names: Sequence[str], layout: str, filter_layout: str, request: WantedGradients) -> list[Output]:
    operands = {o.name: o for o in op.outputs}
    outputs = []
    for name in names:
        out = request.outs.get(name)
        operand = operands[name]
        order = filter_layout if name.startswith("dw") else layout
        outputs.append(plain_result(operand, out, name) if name.startswith("db") else spatial_result(operand, order, out, name))
    return outputs


@documented
def activation_backward(
    y: ArrayLike,
    dy: ArrayLike,
    name: str,
    coef: float | None = None,
    *,
    out: ArrayLike | None = None,
    **options: Unpack[LayoutOptions],
) -> Array:
    """dx = dy * activation'(x): the gradient of an activation's input, from its result y; at a kink the slope on the left.

    <arrays>

    Parameters:
        y: the result of `ooc.activation`, any shape; more than five axes must be contiguous enough to be seen as five.
        dy: like y, the gradient of the result.
        <name>
        out: an array of the shape and dtype of y to write to, y or dy itself for example; default None: a new one.
        <blend, any layout, run>

    Returns:
        dx: like y, <beside y>

    Raises:
        <errors, before>

    Source: cudnnActivationBackward.
    """
    y, dy = as_array("y", y), as_array("dy", dy)
    if y.shape != dy.shape or 0 in y.shape:
        raise ShapeError(f"activation_backward: y and dy must have the same shape, got {y.shape} and {dy.shape}")
    view = as_spatial(y)
    n, k, *extent = view.shape
    act, at = act_of(name, "name", coef)
    options.pop("layout", None)  # the same for every layout
    op = ActivationBackward(n, k, tuple(extent), act, at, dtype=computed(y.dtype, dy.dtype))
    return compute(op, {"y": view, "dy": as_spatial(dy)}, [Output("dx", y.shape, as_spatial, out)], **options)[0]


@documented
def max_pool_backward(
    x: ArrayLike,
    dy: ArrayLike,
    window: PerAxis,
    stride: PerAxis | None = None,
    padding: Padding = 0,
    **options: Unpack[OutputOptions],
) -> Array:
    """dx = the gradient of `ooc.max_pool`'s x: each window's gradient goes to its first maximum in row-major order.

    <arrays>

    Parameters:
        x: n x c x spatial, the forward call's.
        dy: n x c x p x q, the gradient of its result.
        <windows, layout, out, blend, run>

    Returns:
        dx: n x c x spatial like x, <beside x>

    Raises:
        <errors, before>

    Source: cudnnPoolingBackward with CUDNN_POOLING_MAX (which takes y too, and needs it for nothing here).
    """
    x = as_array("x", x)
    return _pool_backward("max", x.shape, x, dy, window, stride, padding, **options)


@documented
def avg_pool_backward(
    dy: ArrayLike, x_shape: Sequence[int], window: PerAxis, stride: PerAxis | None = None, padding: Padding = 0, *,
    count_padding: bool = True, **options: Unpack[OutputOptions],
) -> Array:  # fmt: skip
    """dx = the gradient of `ooc.avg_pool`'s x: each window's gradient in equal parts to the positions that were counted.

    <arrays>

    Parameters:
        dy: n x c x p x q, the gradient of the forward call's result.
        x_shape: the shape of the forward call's x in this layout, 3 to 5 extents.
        <windows>
        count_padding: as in the forward call: True (default) counts padding as zeros, False leaves it out of the mean.
        <layout, out, blend, run>

    Returns:
        dx: of shape x_shape, <beside dy>

    Raises:
        <errors, before>

    Source: cudnnPoolingBackward with CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING, or _EXCLUDE_PADDING.
    """
    kind = "average" if flag("count_padding", count_padding) else "average_valid"
    return _pool_backward(kind, x_shape, None, dy, window, stride, padding, **options)


def _pool_backward(
    kind: str, x_shape: Sequence[int], x: Array | None, dy: Array, window: PerAxis, stride: PerAxis | None,
    padding: Padding, layout: str = "channels_first", out: Array | None = None, **options: Any,
) -> Array:  # fmt: skip
    check_layout(layout)
    view = channels_first(as_array("dy", dy), layout, "dy")
    n, k, *extent = _shape_of(x_shape, layout)
    rank = len(extent)
    windows = per_axis("window", window, rank)
    strides = windows if stride is None else per_axis("stride", stride, rank)
    op = PoolBackward(
        kind,
        n,
        k,
        tuple(extent),
        windows,
        strides,
        as_pads("padding", padding, rank),
        dtype=computed(view.dtype, *(() if x is None else (x.dtype,))),
        layout=layout,
    )
    inputs = {"dy": view} | ({} if x is None else {"x": channels_first(as_array("x", x), layout, "x")})
    return compute(op, inputs, [spatial_result(op.outputs[0], layout, out)], **options)[0]


@documented
def bias_backward(
    dy: ArrayLike, *, layout: str = "channels_first", out: ArrayLike | None = None, **options: Unpack[BlendOptions]
) -> Array:
    """db = the sum of dy over images and positions, one value per channel; summed in float64.

    <arrays>

    Parameters:
        dy: n x k x spatial, the gradient of the result to which the bias was added.
        <layout>
        out: k values to write to, of the type that is computed in: float32, or float64 for float64; default None: a new array.
        <blend, run>

    Returns:
        db: k values of float32 (float64 for float64), beside dy; out itself where it is given, else a new array: of NumPy, or
            where dy lies in a device's memory one there, of PyTorch if dy is, else of CuPy.

    Raises:
        <errors, before>

    Source: cudnnConvolutionBackwardBias.
    """
    check_layout(layout)
    view = channels_first(as_array("dy", dy), layout, "dy")
    n, k, *extent = view.shape
    op = Reduce("bias", n, k, tuple(extent), dtype=computed(view.dtype), layout=layout)
    return compute(op, {"x": view}, [plain_result(op.outputs[0], out)], **options)[0]

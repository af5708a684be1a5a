"""The backward functions. Arrays, layouts, options and errors are as in `ooc.api`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

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
    check_out,
    per_axis,
)
from ooc.api.backward_graph import Wanted, backward_graph
from ooc.api.dispatch import Result, compute, plain_result, spatial_result
from ooc.api.forward import as_rows
from ooc.api.layers import Activation, Conv, Layer, Pool, act_of, flatten, stages_of
from ooc.errors import ShapeError
from ooc.ir.op import Op, dtype_name
from ooc.ops import ActivationBackward, PoolBackward, Reduce


class Gradients(NamedTuple):
    """Gradients of a layer's input, filters and bias; None for those not asked for."""

    dx: Array | None
    dw: Array | None
    db: Array | None


def conv_backward(
    x: Array | None,
    w: Array,
    dy: Array,
    *,
    y: Array | None = None,
    want: Sequence[str] = ("dx", "dw", "db"),
    stride: PerAxis = 1,
    padding: Padding = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
    activation: str | Activation | None = None,
    pool: int | Pool | None = None,
    x_shape: Sequence[int] | None = None,
    layout: str = "channels_first",
    dx: Array | None = None,
    dw: Array | None = None,
    db: Array | None = None,
    **options: Any,
) -> Gradients:
    """Gradients of pool(activation(conv(x, w) + b)) from the gradient dy of its result, in one pass over dy.

    want: which of dx, dw, db. x may be None when dw is not wanted; then x_shape says its shape. y: the result of the
    forward call before pooling, needed with activation= and for max pooling. dx, dw, db: where to write. With alpha or
    beta, each wanted gradient becomes alpha * gradient + beta * what its output holds. Sources: cudnnConvolutionBackward-
    Data, -Filter, -Bias; ooc_cuDNN's PoolingActivationConvolutionBackwardDataFilterBias and its parts.
    """
    check_layout(layout)
    wanted = Wanted.of(want, {"dx": dx, "dw": dw, "db": db})
    seen_dy = channels_first(as_array("dy", dy), layout)
    if x is None and (wanted.dw or x_shape is None):
        raise ShapeError("conv_backward: dw needs x; without x, pass x_shape=")
    seen_x = None if x is None else channels_first(as_array("x", x), layout)
    shape = _shape_of(x_shape, layout) if seen_x is None else seen_x.shape
    layers = flatten([Conv(w, None, stride, padding, dilation, groups, activation, pool)])
    stages, operands = stages_of(shape, (seen_dy if seen_x is None else seen_x).dtype, layers, layout)
    _matches(stages[-1], seen_dy)
    needs_y = getattr(stages[0], "act", "identity") != "identity" or any(s.kind == "pool.max" for s in stages)
    if needs_y and y is None:
        raise ShapeError("conv_backward: with activation= or max pooling, pass y=, the forward result before pooling")
    inputs = {"w": operands["w"], "dy": seen_dy} | ({} if seen_x is None else {"x": seen_x})
    if needs_y:
        inputs["y"] = channels_first(as_array("y", y), layout)
    op, names = backward_graph(stages, wanted, forward=False)
    results = _results(op, names, layout, wanted)
    own = {o.name: inputs[o.name] for o in op.inputs}
    made = dict(zip(names, compute(op, own, results, **options), strict=True))
    return Gradients(made.get("dx"), made.get("dw"), made.get("db"))


def chain_backward(
    x: Array, dy: Array, *layers: Layer, want: Sequence[str] = ("dx", "dw", "db"), layout: str = "channels_first",
    outs: Mapping[str, Array] | None = None, **options: Any,
) -> tuple[Array | None, list[Gradients]]:  # fmt: skip
    """Gradients of `chain(x, *layers)` from the gradient dy of its result, everything recomputed inside the tile.

    Only x, the filters, biases and dy are read, only dx and each convolution's dw and db are written, unless cutting the
    work is predicted to be faster or only that fits. Returns dx (None if not wanted) and the Gradients of every layer in
    order (convolutions' dw and db; their dx is None). outs: outputs by name (dx, dw, db of the first layer, dw.1, ...,
    counted over the flattened layers).
    """
    check_layout(layout)
    outs = outs or {}
    seen, seen_dy = (channels_first(as_array(n, a), layout) for n, a in (("x", x), ("dy", dy)))
    flat = flatten(layers)
    stages, operands = stages_of(seen.shape, seen.dtype, flat, layout)
    _matches(stages[-1], seen_dy)
    wanted = Wanted.of(want, outs)
    op, names = backward_graph(stages, wanted, forward=True)
    unknown = sorted(set(wanted.outs) - set(names))
    if unknown:
        raise ShapeError(f"chain_backward: outs: no gradient {', '.join(unknown)}; expected some of {', '.join(names)}")
    inputs = {"x": seen, "dy": seen_dy, **operands}
    own = {o.name: inputs[o.name] for o in op.inputs}
    made = dict(zip(names, compute(op, own, _results(op, names, layout, wanted), **options), strict=True))
    suffixes = [f".{i}" if i else "" for i in range(len(stages))]
    return made.get("dx"), [Gradients(None, made.get("dw" + s), made.get("db" + s)) for s in suffixes]


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
    made = last.outputs[0]
    if tuple(dy.shape) != made.shape:
        raise ShapeError(f"{last}: dy must have the shape of the result, {made.shape}, got {tuple(dy.shape)}")


def _results(op: Op, names: Sequence[str], layout: str, wanted: Wanted) -> list[Result]:
    operands = {o.name: o for o in op.outputs}
    found = []
    for name in names:
        out = wanted.outs.get(name)
        operand = operands[name]
        found.append(plain_result(operand, out) if name.startswith("db") else spatial_result(operand, layout, out))
    return found


def activation_backward(
    y: Array, dy: Array, name: str, coef: float | None = None, *, out: Array | None = None, **options: Any
) -> Array:
    """The gradient of an activation's input from its output y and the gradient dy of that; any shape; out may be dy."""
    y, dy = as_array("y", y), as_array("dy", dy)
    if y.shape != dy.shape or not y.size:
        raise ShapeError(f"activation_backward: y and dy must have the same shape, got {y.shape} and {dy.shape}")
    seen = as_spatial(y)
    n, k, *extent = seen.shape
    act, at = act_of(Activation(name, coef))
    options.pop("layout", None)  # the same for every layout
    op = ActivationBackward(n, k, tuple(extent), act, at, dtype=dtype_name(y.dtype))
    return compute(op, {"y": seen, "dy": as_spatial(dy)}, [Result("dx", y.shape, as_spatial, out)], **options)[0]


def max_pool_backward(
    x: Array, dy: Array, window: PerAxis, stride: PerAxis | None = None, padding: Padding = 0, **options: Any
) -> Array:
    """The gradient of `max_pool`'s x: each window's gradient goes to its first maximum in row-major order."""
    x = as_array("x", x)
    return _pool_backward("max", x.shape, x, dy, window, stride, padding, **options)


def avg_pool_backward(
    dy: Array, x_shape: Sequence[int], window: PerAxis, stride: PerAxis | None = None, padding: Padding = 0, *,
    count_padding: bool = True, **options: Any,
) -> Array:  # fmt: skip
    """The gradient of `avg_pool`'s x, whose shape is given."""
    kind = "average" if count_padding else "average_valid"
    return _pool_backward(kind, x_shape, None, dy, window, stride, padding, **options)


def _pool_backward(
    kind: str, x_shape: Sequence[int], x: Array | None, dy: Array, window: PerAxis, stride: PerAxis | None,
    padding: Padding, layout: str = "channels_first", out: Array | None = None, **options: Any,
) -> Array:  # fmt: skip
    check_layout(layout)
    seen = channels_first(as_array("dy", dy), layout)
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
        dtype=dtype_name(seen.dtype),
        layout=layout,
    )
    inputs = {"dy": seen} | ({} if x is None else {"x": channels_first(as_array("x", x), layout)})
    return compute(op, inputs, [spatial_result(op.outputs[0], layout, out)], **options)[0]


def bias_backward(dy: Array, *, layout: str = "channels_first", out: Array | None = None, **options: Any) -> Array:
    """db: the sum of dy over n and positions, one value per channel, in the type dy is computed in."""
    check_layout(layout)
    seen = channels_first(as_array("dy", dy), layout)
    n, k, *extent = seen.shape
    op = Reduce("bias", n, k, tuple(extent), dtype=dtype_name(seen.dtype), layout=layout)
    return compute(op, {"x": seen}, [plain_result(op.outputs[0], out)], **options)[0]


def linear_backward(
    x: Array, w: Array, dy: Array, *, want: Sequence[str] = ("dx", "dw", "db"), y: Array | None = None,
    activation: str | Activation | None = None, dx: Array | None = None, dw: Array | None = None, db: Array | None = None,
    **options: Any,
) -> Gradients:  # fmt: skip
    """Gradients of `linear`: dx like x, dw like w (k x c), db k. y: the forward result, needed with activation=."""
    x, w, dy = (as_array(n, a) for n, a in (("x", x), ("w", w), ("dy", dy)))
    if w.ndim != 2 or x.shape[-1:] != w.shape[1:] or dy.shape != (*x.shape[:-1], w.shape[0]):
        raise ShapeError(f"linear_backward: x {x.shape}, w {w.shape} and dy {dy.shape} do not fit together")
    seen_dx, seen_dw = (None if a is None else check_out(a, like.shape, x.dtype) for a, like in ((dx, x), (dw, w)))
    made = conv_backward(
        as_rows(x), w[:, None, :], as_rows(dy), want=want, y=None if y is None else as_rows(as_array("y", y)),
        activation=activation, layout="channels_last", dx=None if seen_dx is None else as_rows(seen_dx),
        dw=None if seen_dw is None else seen_dw[:, None, :], db=db, **options,
    )  # fmt: skip
    return Gradients(
        dx if dx is not None else None if made.dx is None else made.dx.reshape(x.shape),
        dw if dw is not None else None if made.dw is None else made.dw.reshape(w.shape),
        made.db,
    )

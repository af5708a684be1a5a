"""Fully connected layers: pointwise convolutions whose positions are the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import numpy as np

from ooc.api.arguments import Array, as_array, check_out, computed
from ooc.api.backward import Gradients, conv_backward
from ooc.api.dispatch import Output, compute
from ooc.api.layers import Activation, Conv, flatten, stages_of
from ooc.api.options import ArrayLike, ImageOptions, documented
from ooc.errors import ShapeError
from ooc.ir.op import numpy_dtype


@documented
def linear(
    x: ArrayLike, w: ArrayLike, b: ArrayLike | None = None, *, activation: str | Activation | None = None,
    out: ArrayLike | None = None, **options: Unpack[ImageOptions],
) -> Array:  # fmt: skip
    """y = activation(x @ w.T + b): a pointwise convolution whose positions are the rows of x.

    Rows, channels and outputs may all be split.

    <arrays>

    Parameters:
        x: ... x c, any number of axes whose rows can be seen as one axis without a copy.
        w: k x c.
        b: k, in x's dtype or, for half types, float32; default None: zeros.
        <activation, conversion, out, blend, run>

    Returns:
        y: ... x k, <beside x>

    Raises:
        <errors, before>

    Source: cudnnConvolutionForward with 1 x 1 filters.
    """
    x, w = as_array("x", x), as_array("w", w)
    if len(w.shape) != 2 or not x.shape or x.shape[-1] != w.shape[1] or 0 in w.shape:
        raise ShapeError(f"linear: x of shape {x.shape} does not fit w of shape {w.shape} (k x c)")
    layer = flatten([Conv(w[:, :, None], b, activation=activation)])
    rows = as_rows(x)
    view = np.moveaxis(rows, -1, 1)
    stages, operands = stages_of(view.shape, view.dtype, layer, "channels_last")
    shape = (*x.shape[:-1], w.shape[0])
    result = Output("y", shape, lambda array: np.moveaxis(as_rows(array), -1, 1), out)
    return compute(stages[0], {"x": view, **operands}, [result], image="x", **options)[0]


@documented
def linear_backward(
    x: ArrayLike, w: ArrayLike, dy: ArrayLike, *, want: Sequence[str] = ("dx", "dw", "db"), y: ArrayLike | None = None,
    activation: str | Activation | None = None, dx: ArrayLike | None = None, dw: ArrayLike | None = None,
    db: ArrayLike | None = None, **options: Unpack[ImageOptions],
) -> Gradients:  # fmt: skip
    """Gradients of y = activation(x @ w.T + b) (`ooc.linear`): dx = dz @ w, dw = dz.T @ x, db = sum of dz over rows, with
    dz = dy * activation'(x @ w.T + b).

    <arrays>

    Parameters:
        x: ... x c, the forward call's.
        w: k x c, the forward call's.
        dy: ... x k, the gradient of the result.
        want: which gradients, a name or several of "dx", "dw", "db"; default all.
        y: ... x k, the forward call's result; needed with activation, default None.
        <activation, conversion>
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

    Source: cudnnConvolutionBackwardData, -Filter, -Bias with 1 x 1 filters.
    """
    x, w, dy = (as_array(n, a) for n, a in (("x", x), ("w", w), ("dy", dy)))
    if len(w.shape) != 2 or x.shape[-1:] != w.shape[1:] or dy.shape != (*x.shape[:-1], w.shape[0]):
        raise ShapeError(f"linear_backward: x {x.shape}, w {w.shape} and dy {dy.shape} do not fit together")
    if y is not None and (y := as_array("y", y)).shape != dy.shape:
        raise ShapeError(f"linear_backward: y must have the shape of dy, {dy.shape}, got {y.shape}")
    dtype = numpy_dtype(computed(x.dtype, dy.dtype, w.dtype))
    seen_dx, seen_dw = (
        None if a is None else check_out(a, like.shape, dtype, word) for a, like, word in ((dx, x, "dx"), (dw, w, "dw"))
    )
    gradients = conv_backward(
        as_rows(x), w[:, :, None], as_rows(dy), want=want, y=None if y is None else as_rows(y),
        activation=activation, layout="channels_last", dx=None if seen_dx is None else as_rows(seen_dx),
        dw=None if seen_dw is None else seen_dw[:, :, None], db=db, **options,
    )  # fmt: skip
    return Gradients(
        dx if dx is not None else None if gradients.dx is None else gradients.dx.reshape(x.shape),
        dw if dw is not None else None if gradients.dw is None else gradients.dw.reshape(w.shape),
        gradients.db,
    )


def as_rows(x: Array) -> Array:
    """... x c as 1 x rows x c, a view."""
    rows = x.reshape(1, -1, x.shape[-1])
    if x.size and not np.may_share_memory(rows, x):
        raise ShapeError(f"linear: the rows of an array of shape {x.shape} and strides {x.strides} cannot be seen as one axis")
    return rows

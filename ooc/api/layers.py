"""Layers as the user writes them, and the ops that they stand for."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ooc.api.arguments import (
    BORDERS,
    Array,
    Extents,
    Padding,
    PerAxis,
    as_array,
    as_float,
    as_int,
    as_pads,
    channels_first,
    check_layout,
    computed,
    pads_of_conv,
    per_axis,
    per_channel,
)
from ooc.api.options import documented
from ooc.errors import ArgumentError, DtypeError, ShapeError
from ooc.ir.op import LAYOUTS, Op, dtype_name, integer_name, numpy_dtype
from ooc.ops import ACTIVATIONS, ConvFprop, Pointwise
from ooc.ops import PoolForward as PoolOp
from ooc.ops.activation import DEFAULT_COEF
from ooc.ops.pool import KINDS
from ooc.ops.resize import Resize


@documented
@dataclass(frozen=True)
class Pool:
    """Pooling as a layer, for `ooc.chain`, and as the pool of `ooc.conv` and `ooc.Conv`.

    Fields:
        kind: "max" (default; padding never wins), "average" (padding counts as zeros) or "average_valid" (padding not counted).
        window: extents of a window; an int, or one per spatial axis; default 2.
        stride: positions between windows; an int, or one per spatial axis; default None: the window.
        padding: positions added around each spatial axis; an int, one per axis, or one pair (before, after) per axis; smaller
            than the window, default 0.

    What does not fit is refused by the call that takes the layer. Source: cudnnPoolingForward.
    """

    kind: str = "max"
    window: PerAxis = 2
    stride: PerAxis | None = None
    padding: Padding = 0


@documented
@dataclass(frozen=True)
class Activation:
    """An activation as a layer, for `ooc.chain`, and as the activation of other functions.

    Fields:
        <name>

    What does not fit is refused by the call that takes the layer. Source: cudnnActivationForward.
    """

    name: str
    coef: float | None = None


@documented
@dataclass(frozen=True)
class Conv:
    """A convolution as a layer, for `ooc.chain`: pool(activation(conv(x, w) + b)).

    Fields:
        w: k x c/groups x taps, the filters (for calls with `filter_layout="channels_last"`: k x taps x c/groups).
        b: k, in x's dtype or, for half types, float32; default None: zeros.
        <stride, padding of conv, dilation, groups, activation, pool>

    What does not fit is refused by the call that takes the layer. Source: cudnnConvolutionBiasActivationForward.
    """

    w: Array
    b: Array | None = None
    stride: PerAxis = 1
    padding: Padding = 0
    dilation: PerAxis = 1
    groups: int = 1
    activation: str | Activation | None = None
    pool: int | Pool | None = None


Layer = Conv | Pool | Activation


@dataclass(frozen=True)
class BorderLayer:
    """What a convolution with `padding="reflect"` and the like reads beyond its image."""

    conv: Conv


def flatten(layers: Sequence[Layer]) -> list[Layer | BorderLayer]:
    """Pooling and borders out of convolutions, activations into the convolution before them."""
    flat: list[Layer | BorderLayer] = []
    for layer in layers:
        if not isinstance(layer, (Conv, Pool, Activation)):
            raise ArgumentError(f"chain: expected Conv, Pool or Activation layers, got {type(layer).__name__}")
        before = flat[-1] if flat else None
        if isinstance(layer, Activation) and isinstance(before, Conv) and before.activation is None and before.pool is None:
            flat[-1] = replace(before, activation=layer)
        elif isinstance(layer, Conv):
            bordered = isinstance(layer.padding, str) and layer.padding in BORDERS
            flat += [BorderLayer(layer)] if bordered else []
            flat.append(replace(layer, pool=None, padding=0 if bordered else layer.padding))
            if layer.pool is not None:
                flat.append(layer.pool if isinstance(layer.pool, Pool) else Pool("max", as_int("pool", layer.pool)))
        else:
            flat.append(layer)
    kept = [layer for layer in flat if not (isinstance(layer, Activation) and layer.name == "identity")]
    flat = kept or flat[:1]
    if not flat:
        raise ArgumentError("chain: expected at least one layer")
    return flat


def stages_of(
    shape: tuple[int, ...], dtype: Any, layers: list[Layer | BorderLayer], layout: str, filter_layout: str = "channels_first"
) -> tuple[list[Op], dict[str, Array]]:
    """The ops of the layers on an x of this shape (channels first) and dtype, and their further operands by the names they
    have in a chain. An x of integers is computed in the dtype of the filters."""
    check_layout(filter_layout, "filter_layout")
    stages: list[Op] = []
    operands: dict[str, Array] = {}
    groups = 1
    if integer_name(dtype) is not None:
        filters = (as_array("w", layer.w).dtype for layer in layers if isinstance(layer, Conv))
        dtype = numpy_dtype(computed(dtype, *filters))
    for i, layer in enumerate(layers):
        suffix = f".{i}" if i else ""
        op: Op
        if isinstance(layer, Conv):
            op, parameters = conv_op(shape, dtype, layer, layout, filter_layout)
            operands |= {name + suffix: array for name, array in parameters.items()}
            groups = op.groups
        elif isinstance(layer, BorderLayer):
            op = _border_op(shape, dtype, layer.conv, layout, filter_layout)
        elif isinstance(layer, Pool):
            op = pool_op(shape, dtype, layer, groups, layout)
        else:
            act, coef = act_of(layer)
            n, k, *extent = shape
            op = Pointwise(n, k, tuple(extent), False, act, coef, groups=groups, dtype=dtype_name(dtype), layout=layout)
        stages.append(op)
        shape = op.outputs[0].shape
    return stages, operands


def _border_op(shape: tuple[int, ...], dtype: Any, layer: Conv, layout: str, filter_layout: str) -> Resize:
    assert isinstance(layer.padding, str)
    conv, _ = conv_op(shape, dtype, replace(layer, padding="same"), layout, filter_layout)
    size, lines = bordered(conv.extent, conv.pad)
    return Resize(BORDERS[layer.padding], conv.n, conv.c, conv.extent, size, lines, dtype_name(dtype), layout)


def bordered(extent: Extents, pads: Sequence[tuple[int, int]]) -> tuple[Extents, tuple[float, ...]]:
    """Size and lines of the `Resize` that puts so much around an image."""
    size = tuple(e + before + behind for e, (before, behind) in zip(extent, pads, strict=True))
    return size, tuple(itertools.chain(*((-float(before), 1.0, 1.0, 0.0) for before, _ in pads)))


def conv_op(
    shape: tuple[int, ...], dtype: Any, layer: Conv, layout: str, filter_layout: str
) -> tuple[ConvFprop, dict[str, Array]]:
    w = channels_first(as_array("w", layer.w), filter_layout, "w")
    rank = len(shape) - 2
    if w.ndim != len(shape):
        raise ShapeError(f"conv: w must have {len(shape)} axes like x, got {w.ndim} (shape {tuple(w.shape)})")
    if w.dtype != dtype and integer_name(w.dtype) is None:
        raise DtypeError(f"conv: w is {w.dtype} but x is {dtype}; convert one of them")
    n, c, *extent = shape
    groups = as_int("groups", layer.groups)
    if groups < 1 or c % groups or w.shape[0] % groups:
        raise ShapeError(f"conv: groups={groups} must divide the channels of x ({c}) and the filters of w ({w.shape[0]})")
    if w.shape[1] * groups != c:
        other = next(name for name in LAYOUTS if name != filter_layout)
        fits = channels_first(as_array("w", layer.w), other, "w").shape[1] * groups == c
        raise ShapeError(
            f"conv: w takes {w.shape[1]} channels per group x {groups} groups = {w.shape[1] * groups}, but x has {c}"
            + (f"; filter_layout={other!r} reads w the other way" if fits else "")
        )
    act, coef = act_of(layer.activation)
    stride, dilation = per_axis("stride", layer.stride, rank), per_axis("dilation", layer.dilation, rank)
    pads = pads_of_conv(layer.padding, tuple(extent), tuple(w.shape[2:]), stride, dilation)
    op = ConvFprop(
        n, c, tuple(extent), w.shape[0], tuple(w.shape[2:]), stride, dilation, pads, layer.b is not None, act, coef, groups,
        dtype_name(dtype), layout,
    )  # fmt: skip
    return op, {"w": w} if layer.b is None else {"w": w, "b": per_channel(f"{op}: b", layer.b, op.k, dtype)}


def pool_op(shape: tuple[int, ...], dtype: Any, layer: Pool, groups: int, layout: str) -> PoolOp:
    n, k, *extent = shape
    rank = len(extent)
    if layer.kind not in KINDS:
        raise ArgumentError(f"pool: expected one of {', '.join(KINDS)}; got {layer.kind!r}")
    window = per_axis("window", layer.window, rank)
    stride = window if layer.stride is None else per_axis("stride", layer.stride, rank)
    pads = as_pads("padding", layer.padding, rank)
    return PoolOp(layer.kind, n, k, tuple(extent), window, stride, pads, groups, dtype_name(dtype), layout)


def act_of(layer: str | Activation | None, word: str = "activation", coef: Any = None) -> tuple[str, float]:
    """Name and coefficient of an activation; word: what the caller calls it, coef: beside a name."""
    activation = layer if isinstance(layer, Activation) else Activation("identity" if layer is None else layer, coef)
    if not isinstance(activation.name, str) or activation.name not in ACTIVATIONS:
        raise ArgumentError(f"{word}: expected one of {', '.join(ACTIVATIONS)}, or an ooc.Activation; got {activation.name!r}")
    coef = DEFAULT_COEF.get(activation.name, 0.0) if activation.coef is None else as_float("coef", activation.coef)
    return activation.name, coef if activation.name in DEFAULT_COEF else 0.0

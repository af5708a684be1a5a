"""The Python functions: cuDNN-like operations on arrays of any size.

Every function checks its arguments, describes the work as an op, and hands it to the engine. Arrays may be NumPy
arrays of any strides, or `np.memmap`s, which are read and written through their file. Shapes are n x channels x
spatial (channels_first) or n x spatial x channels (channels_last) with 1 to 3 spatial axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ooc import engine
from ooc.errors import DtypeError, ShapeError
from ooc.fused import fuse
from ooc.op import LAYOUTS, Op, compute_dtype, dtype_name, numpy_dtype
from ooc.ops import ACTIVATIONS, ConvFprop, Pointwise
from ooc.ops import Pool as PoolOp
from ooc.ops.activation import DEFAULT_COEF
from ooc.ops.pool import KINDS

Array = Any
PerAxis = int | Sequence[int]
Padding = int | Sequence[int | Sequence[int]]


@dataclass(frozen=True)
class Pool:
    """Pooling as a layer: kind max, average (padding counts as zeros) or average_valid (padding not counted).

    stride None: the window.
    """

    kind: str = "max"
    window: PerAxis = 2
    stride: PerAxis | None = None
    padding: Padding = 0


@dataclass(frozen=True)
class Activation:
    """An activation as a layer; coef None: its usual value (clipped_relu 6, elu 1, leaky_relu 0.01)."""

    name: str
    coef: float | None = None


@dataclass(frozen=True)
class Conv:
    """A convolution as a layer: w is k x c/groups x taps (channels_last: k x taps x c/groups), b is k."""

    w: Array
    b: Array | None = None
    stride: PerAxis = 1
    padding: Padding = 0
    dilation: PerAxis = 1
    groups: int = 1
    activation: str | Activation | None = None
    pool: int | Pool | None = None


Layer = Conv | Pool | Activation


def conv(
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    stride: PerAxis = 1,
    padding: Padding = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
    activation: str | Activation | None = None,
    pool: int | Pool | None = None,
    layout: str = "channels_first",
    out: Array | None = None,
    progress: bool = False,
    callbacks: Sequence[Callable[[int, int], None]] = (),
    trace: str | None = None,
) -> Array:
    """pool(activation(conv(x, w) + b)), cross-correlation as in cuDNN, in 1 to 3 spatial dimensions.

    x: n x c x spatial; w: k x c/groups x taps; b: k. padding: an int, one per axis, or one (before, after) pair per axis.
    pool: an int (max pooling, window = stride) or a `Pool`. out: where to write (a memmap, say); default a new array.
    progress: show a bar. callbacks: called as f(tiles done, tiles). trace: file for a Chrome/Perfetto trace.
    Returns the result. Raises ShapeError, DtypeError, BudgetError or UnsupportedError before anything is written,
    StoreError when a file fails. Source: cudnnConvolutionBiasActivationForward.
    """
    layer = Conv(w, b, stride, padding, dilation, groups, activation, pool)
    return chain(x, layer, layout=layout, out=out, progress=progress, callbacks=callbacks, trace=trace)


def max_pool(x: Array, window: PerAxis, stride: PerAxis | None = None, padding: Padding = 0, **options: Any) -> Array:
    """Maximum over windows; padding never wins. Options: layout, out, progress, callbacks, trace, as in `conv`."""
    return chain(x, Pool("max", window, stride, padding), **options)


def avg_pool(
    x: Array, window: PerAxis, stride: PerAxis | None = None, padding: Padding = 0, *, count_padding: bool = True, **options: Any
) -> Array:
    """Mean over windows; count_padding: whether padding counts as zeros. Options as in `conv`."""
    return chain(x, Pool("average" if count_padding else "average_valid", window, stride, padding), **options)


def activation(x: Array, name: str, coef: float | None = None, *, out: Array | None = None, **options: Any) -> Array:
    """An activation of an array of any shape: identity, relu, clipped_relu, elu, leaky_relu, sigmoid or tanh.

    coef: ceiling of clipped_relu (6), alpha of elu (1), slope of leaky_relu (0.01). Options as in `conv`.
    """
    x = _array("x", x)
    if not x.size:
        raise ShapeError(f"activation: every extent of x must be at least 1, got shape {x.shape}")
    if out is not None:
        _check_out(out, x.shape, x.dtype)
    seen, target = _as_matrix(x), None if out is None else _as_matrix(out)
    if out is not None and (target is None or not _same_memory(target, out)):
        raise ShapeError("activation: out= must have an axis order that can be seen as at most five axes")
    result = chain(seen, Activation(name, coef), out=target, **options)
    return out if out is not None else result.reshape(x.shape)


def _as_matrix(x: Array) -> Array:
    """Any array as n x channels x 1 to 3 spatial axes, without a copy where its strides allow."""
    if x.ndim < 3:
        return x[(..., *(None,) * (3 - x.ndim))]
    if x.ndim <= 5:
        return x
    return x.reshape(-1, *x.shape[-4:])


def _same_memory(view: Array, array: Array) -> bool:
    return bool(np.may_share_memory(view, array)) or array.size == 0


def chain(
    x: Array,
    *layers: Layer,
    layout: str = "channels_first",
    out: Array | None = None,
    progress: bool = False,
    callbacks: Sequence[Callable[[int, int], None]] = (),
    trace: str | None = None,
) -> Array:
    """Several layers in a row, fused tile by tile: `chain(x, Conv(w1, b1, padding=1), Activation("relu"), Pool("max", 2))`.

    Intermediates exist only for the tile in work, unless cutting the chain is predicted to be faster or only that fits
    the budget. Arguments, result and errors as in `conv`.
    """
    if layout not in LAYOUTS:
        raise ShapeError(f"layout: expected one of {', '.join(LAYOUTS)}; got {layout!r}")
    x = _first(_array("x", x), layout)
    stages, operands = _stages(x, _flatten(layers), layout)
    y, target = _output(stages[-1], out, layout)
    engine.execute(fuse(*stages), {"x": x, **operands}, {"y": target}, progress, callbacks, trace)
    return y


# ---- arguments -> ops


def _flatten(layers: Sequence[Layer]) -> list[Layer]:
    """Pooling out of convolutions, activations into the convolution before them."""
    flat: list[Layer] = []
    for layer in layers:
        if not isinstance(layer, (Conv, Pool, Activation)):
            raise ShapeError(f"chain: expected Conv, Pool or Activation layers, got {type(layer).__name__}")
        before = flat[-1] if flat else None
        if isinstance(layer, Activation) and isinstance(before, Conv) and before.activation is None and before.pool is None:
            flat[-1] = replace(before, activation=layer)
        elif isinstance(layer, Conv) and layer.pool is not None:
            pool = layer.pool if isinstance(layer.pool, Pool) else Pool("max", _int("pool", layer.pool))
            flat += [replace(layer, pool=None), pool]
        else:
            flat.append(layer)
    if not flat:
        raise ShapeError("chain: expected at least one layer")
    return flat


def _stages(x: Array, layers: list[Layer], layout: str) -> tuple[list[Op], dict[str, Array]]:
    """The ops of the layers, and their further operands by the names they have in a chain."""
    stages: list[Op] = []
    operands: dict[str, Array] = {}
    shape, groups = tuple(x.shape), 1
    for i, layer in enumerate(layers):
        suffix = f".{i}" if i else ""
        op: Op
        if isinstance(layer, Conv):
            op, own = _conv_op(shape, x.dtype, layer, layout)
            operands |= {name + suffix: array for name, array in own.items()}
            groups = op.groups
        elif isinstance(layer, Pool):
            op = _pool_op(shape, x.dtype, layer, groups, layout)
        else:
            act, coef = _act(layer)
            n, k, *extent = shape
            op = Pointwise(n, k, tuple(extent), False, act, coef, groups=groups, dtype=dtype_name(x.dtype), layout=layout)
        stages.append(op)
        shape = op.outputs[0].shape
    return stages, operands


def _conv_op(shape: tuple[int, ...], dtype: Any, layer: Conv, layout: str) -> tuple[ConvFprop, dict[str, Array]]:
    w = _first(_array("w", layer.w), layout)
    rank = len(shape) - 2
    if w.ndim != len(shape):
        raise ShapeError(f"conv: w must have {len(shape)} axes like x, got {w.ndim} (shape {tuple(w.shape)})")
    if w.dtype != dtype:
        raise DtypeError(f"conv: w is {w.dtype} but x is {dtype}; convert one of them")
    n, c, *extent = shape
    groups = _int("groups", layer.groups)
    if groups < 1 or c % groups or w.shape[0] % groups:
        raise ShapeError(f"conv: groups={groups} must divide the channels of x ({c}) and the filters of w ({w.shape[0]})")
    if w.shape[1] * groups != c:
        raise ShapeError(
            f"conv: w takes {w.shape[1]} channels per group x {groups} groups = {w.shape[1] * groups}, but x has {c}"
        )
    act, coef = _act(layer.activation)
    op = ConvFprop(
        n, c, tuple(extent), w.shape[0], tuple(w.shape[2:]), _per_axis("stride", layer.stride, rank),
        _per_axis("dilation", layer.dilation, rank), _pads("padding", layer.padding, rank), layer.b is not None, act, coef,
        groups, dtype_name(dtype), layout,
    )  # fmt: skip
    if layer.b is None:
        return op, {"w": w}
    b = _array("b", layer.b)
    if b.shape != (op.k,):
        raise ShapeError(f"{op}: b must have shape ({op.k},), got {tuple(b.shape)}")
    wide = numpy_dtype(compute_dtype(op.dtype))
    if b.dtype not in (np.dtype(dtype), wide):
        raise DtypeError(f"{op}: b is {b.dtype} but x is {dtype}; convert one of them")
    return op, {"w": w, "b": b if b.dtype == wide else b.astype(wide)}


def _pool_op(shape: tuple[int, ...], dtype: Any, layer: Pool, groups: int, layout: str) -> PoolOp:
    n, k, *extent = shape
    rank = len(extent)
    if layer.kind not in KINDS:
        raise ShapeError(f"pool: expected one of {', '.join(KINDS)}; got {layer.kind!r}")
    window = _per_axis("window", layer.window, rank)
    stride = window if layer.stride is None else _per_axis("stride", layer.stride, rank)
    pads = _pads("padding", layer.padding, rank)
    return PoolOp(layer.kind, n, k, tuple(extent), window, stride, pads, groups, dtype_name(dtype), layout)


def _act(layer: str | Activation | None) -> tuple[str, float]:
    wanted = layer if isinstance(layer, Activation) else Activation(layer or "identity")
    if wanted.name not in ACTIVATIONS:
        raise ShapeError(f"activation: expected one of {', '.join(ACTIVATIONS)}; got {wanted.name!r}")
    coef = DEFAULT_COEF.get(wanted.name, 0.0) if wanted.coef is None else _float("coef", wanted.coef)
    return wanted.name, coef if wanted.name in DEFAULT_COEF else 0.0


def _array(name: str, array: Array) -> Array:
    """An argument as a NumPy array of a supported dtype; 1 to 3 spatial axes are checked by the caller's op."""
    if isinstance(array, np.ma.MaskedArray):
        raise DtypeError(f"{name}: masked arrays are not supported; fill the array first")
    if not isinstance(array, np.ndarray):
        array = np.asarray(array)
    dtype_name(array.dtype)
    return array


def _first(array: Array, layout: str) -> Array:
    """An array of either layout, seen channels first."""
    if array.ndim not in (3, 4, 5):
        raise ShapeError(f"expected 3 to 5 axes (1 to 3 spatial), got {array.ndim} (shape {tuple(array.shape)})")
    return np.moveaxis(array, -1, 1) if layout == "channels_last" else array


def _int(name: str, value: Any) -> int:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise ShapeError(f"{name}: expected an integer, got {value!r}")
    return int(value)


def _float(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ShapeError(f"{name}: expected a number, got {value!r}") from None


def _per_axis(name: str, value: PerAxis, rank: int) -> tuple[int, ...]:
    if isinstance(value, (int, np.integer)):
        return (_int(name, value),) * rank
    values = tuple(_int(name, v) for v in _sequence(name, value, rank))
    return values * rank if len(values) == 1 else values


def _pads(name: str, value: Padding, rank: int) -> tuple[tuple[int, int], ...]:
    if isinstance(value, (int, np.integer)):
        return ((_int(name, value),) * 2,) * rank
    pairs = []
    for v in _sequence(name, value, rank):
        pair = tuple(v) if isinstance(v, (list, tuple, np.ndarray)) else (v, v)
        if len(pair) != 2:
            raise ShapeError(f"{name}: expected (before, after) pairs, got {v!r}")
        pairs.append((_int(name, pair[0]), _int(name, pair[1])))
    return tuple(pairs) * rank if len(pairs) == 1 else tuple(pairs)


def _sequence(name: str, value: Any, rank: int) -> list[Any]:
    try:
        values = list(value)
    except TypeError:
        raise ShapeError(f"{name}: expected an integer or {rank} of them, got {value!r}") from None
    if len(values) not in (1, rank):
        raise ShapeError(f"{name}: expected 1 or {rank} values, got {len(values)}")
    return values


def _output(last: Op, out: Array | None, layout: str) -> tuple[Array, Array]:
    """The result as the user sees it, and seen channels first."""
    shape, dtype = last.outputs[0].shape, numpy_dtype(last.dtype)
    seen = (shape[0], *shape[2:], shape[1]) if layout == "channels_last" else shape
    if out is None:
        out = np.empty(seen, dtype)
    else:
        _check_out(out, seen, dtype)
    return out, _first(out, layout)


def _check_out(out: Array, shape: tuple[int, ...], dtype: Any) -> None:
    if not isinstance(out, np.ndarray):
        raise DtypeError(f"out: expected a NumPy array or memmap, got {type(out).__name__}")
    if out.shape != tuple(shape):
        raise ShapeError(f"out: expected shape {tuple(shape)}, got {out.shape}")
    if out.dtype != dtype:
        raise DtypeError(f"out: expected dtype {dtype}, got {out.dtype}")
    if not out.flags.writeable:
        raise ShapeError("out: the array is read-only; pass a writable one (a memmap opened with mode 'r+' or 'w+')")


__all__ = ["Activation", "Conv", "Pool", "activation", "avg_pool", "chain", "conv", "fuse", "max_pool"]

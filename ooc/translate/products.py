"""Convolutions and linear layers of other libraries, with a batch normalisation and an activation behind them taken in, and
normalisations."""

from __future__ import annotations

from typing import Any

from ooc.networks import layers
from ooc.translate.building import Building, Constant, FrozenNorm, GraphTensor, Shape, exact, spatial
from ooc.translate.elementwise import affine, function, multiply
from ooc.translate.parts import Pads, over
from ooc.translate.views import Changed, in_channels, in_rows, in_space


def conv(
    b: Building, x: GraphTensor, w: Constant, bias: Constant | None, stride: Shape, pads: Pads, dilation: Shape, groups: int
) -> GraphTensor:
    """A convolution; w: k x c / groups x taps."""
    w, bias = _folded(b, w, bias, 0)
    k, taps = w.shape[0], w.shape[2:]
    more = (bias is not None, *b.activation())
    if b.site.view(x).in_front or len(taps) > 2:
        return b.layer(x, layers.ConvLayer(k, taps, stride, pads, dilation, groups, *more), {"w": w, "b": bias})
    # What is joined with the batch, windows or heads, becomes an axis of space that no filter reaches along.
    layer = layers.ConvLayer(k, (1, *taps), (1, *stride), ((0, 0), *pads), (1, *dilation), groups, *more)
    arranged = in_space(b, x)
    y = b.layer(arranged.tensor, layer, {"w": w.reshaped((*w.shape[:2], 1, *taps)), "b": bias}, last=False)
    return arranged.back(y, Changed(0, 1, k), *(Changed(i, i, e) for i, e in enumerate(y.shape[3:], 2)))


def conv_transpose(
    b: Building, x: GraphTensor, w: Constant, bias: Constant | None, stride: Shape, pads: Pads, more: Shape, dilation: Shape,
    groups: int,
) -> GraphTensor:  # fmt: skip
    """A transposed convolution; w: c x k / groups x taps; more: padding of the result."""
    if groups == 1:
        w, bias = _folded(b, w, bias, 1)
    k, taps = w.shape[1] * groups, w.shape[2:]
    layer = layers.ConvTranspose(k, taps, stride, pads, more, dilation, groups, bias is not None, *b.activation())
    return b.layer(x, layer, {"w": w, "b": bias})


def linear(b: Building, x: GraphTensor, w: Constant, bias: Constant | None, last: bool = True) -> GraphTensor:
    """x w^T + bias over the last axis, of several axes as a pointwise convolution; w: k x c."""
    act, coef = b.activation() if last else ("identity", 0.0)
    if len(x.shape) == 2 and b.site.view(x).in_front:
        return b.layer(x, layers.Linear(w.shape[0], bias is not None, act, coef), {"w": w, "b": bias}, last)
    arranged = in_channels(b, x, len(x.shape) - 1)
    rank = len(arranged.tensor.shape) - 2
    ones, none = (1,) * rank, ((0, 0),) * rank
    layer = layers.ConvLayer(w.shape[0], ones, ones, none, ones, 1, bias is not None, act, coef)
    y = b.layer(arranged.tensor, layer, {"w": w.reshaped((*w.shape, *ones)), "b": bias}, last=False)
    return arranged.back(y, Changed(0, len(x.shape) - 1, w.shape[0]), last=last)


def _folded(b: Building, w: Constant, bias: Constant | None, axis: int) -> tuple[Constant, Constant | None]:
    """Filters and bias with the batch normalisation behind them, whose channels are an axis of the filters."""
    norm = b.norm()
    if norm is None:
        return w, bias
    shape = tuple(-1 if i == axis else 1 for i in range(len(w.shape)))

    def filters(values: Any) -> Any:
        by = _factor(norm, values)  # one of each channel
        return exact(w.value(values)) * by.reshape(shape)

    def offsets(values: Any) -> Any:
        before = exact(norm.mean.value(values))
        before = before if bias is None else before - exact(bias.value(values))
        offset = -before * _factor(norm, values)
        return offset if norm.shift is None else offset + exact(norm.shift.value(values))

    return Constant(filters, w.shape), Constant(offsets, norm.mean.shape)


def frozen_norm(b: Building, x: GraphTensor, norm: FrozenNorm) -> GraphTensor:
    """A normalisation of the second axis by running statistics, where the batch is not alone in front."""
    shape = (1, x.shape[1], *(1,) * (len(x.shape) - 2))
    scale = Constant(lambda values: _factor(norm, values).reshape(shape), shape)

    def offsets(values: Any) -> Any:
        offset = -exact(norm.mean.value(values)) * _factor(norm, values)
        return (offset if norm.shift is None else offset + exact(norm.shift.value(values))).reshape(shape)

    return affine(b, affine(b, x, "scale", scale, last=False), "shift", Constant(offsets, shape))


def _factor(norm: FrozenNorm, values: Any) -> Any:
    """What a batch normalisation multiplies each channel by, in f64."""
    unit = (exact(norm.var.value(values)) + norm.eps) ** -0.5
    return unit if norm.scale is None else exact(norm.scale.value(values)) * unit


# ---- normalisations


def group_norm(
    b: Building, x: GraphTensor, groups: int, eps: float, scale: Constant | None, bias: Constant | None
) -> GraphTensor:
    """Over the positions of so many groups of channels, with the activation behind; groups 0: each channel is one."""
    spatial(b, x)
    plain = scale is None and bias is None
    layer = layers.GroupNorm(groups, eps, *b.activation(), affine=not plain)
    return b.layer(x, layer, {} if plain else affine_of(b, x.shape[1], scale, bias))


def affine_of(b: Building, k: int, scale: Constant | None, bias: Constant | None) -> dict[str, Constant]:
    """Scale and bias of a normalisation, ones and zeros where it has none."""
    return {"scale": scale or b.site.full(1, (k,)), "b": bias or b.site.full(0, (k,))}


def rms_norm(b: Building, x: GraphTensor, count: int, eps: float, scale: Constant | None) -> GraphTensor:
    """x / sqrt(the mean of squares over the last axes, so many, + eps) * scale."""
    rank = len(x.shape)
    if not 0 < count < rank:
        raise b.refuse("over the batch")
    squares = multiply(b, x, x, last=False)
    mean = over(b, squares, list(range(rank - count, rank)), "average", True)
    unit = function(b, affine(b, mean, "shift", b.site.full(eps), last=False), "rsqrt", last=False)
    y = multiply(b, x, unit, last=scale is None)
    return y if scale is None else affine(b, y, "scale", scale.reshaped((*(1,) * (rank - 1 - count), *x.shape[rank - count :])))


def layer_norm(b: Building, x: GraphTensor, count: int, eps: float, scale: Constant | None, bias: Constant | None) -> GraphTensor:
    """Over the last axes, so many: the positions of an instance normalisation whose channels are the axes before."""
    rank = len(x.shape)
    if b.site.view(x).batch_axis >= rank - count:
        raise b.refuse("over the batch")
    arranged, _ = in_rows(b, x, range(rank - count, rank))
    unit = b.add(arranged.tensor, layers.GroupNorm(0, eps, affine=False), last=False)
    y = arranged.back(unit, last=scale is None and bias is None)
    shape = (*(1,) * (rank - 1 - count), *x.shape[rank - count :])
    if scale is not None:
        y = affine(b, y, "scale", scale.reshaped(shape), last=bias is None)
    return y if bias is None else affine(b, y, "shift", bias.reshaped(shape))

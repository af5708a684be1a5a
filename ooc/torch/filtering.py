"""Convolutions and linear layers on tensors: three passes, each differentiated by the other two, as often as wanted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from ooc.api import backward, forward
from ooc.errors import ShapeError, shown
from ooc.translate.parts import Pads


class How(NamedTuple):
    """A convolution without its tensors: what all its passes share.

    Fields:
        x_shape, w_shape: of the image that the forward pass reads, and of the filters.
        stride, padding, dilation, groups: as `ooc.conv` takes them.
        options: of `ooc.conv` and its relatives.
    """

    x_shape: tuple[int, ...]
    w_shape: tuple[int, ...]
    stride: tuple[int, ...]
    padding: Pads
    dilation: tuple[int, ...]
    groups: int
    options: Mapping[str, Any]

    @property
    def words(self) -> dict[str, Any]:
        """Keywords of ooc's functions."""
        own = {"stride": self.stride, "padding": self.padding, "dilation": self.dilation, "groups": self.groups}
        return own | dict(self.options)


class Fprop(Function):
    """y = conv(x, w)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, how: How) -> Any:
        ctx.save_for_backward(x, w)
        ctx.how = how
        return forward.conv(x, w, **how.words)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, w = ctx.saved_tensors
        dx = Dgrad.apply(dy, w, ctx.how) if ctx.needs_input_grad[0] else None
        dw = Wgrad.apply(x, dy, ctx.how) if ctx.needs_input_grad[1] else None
        return dx, dw, None


class Dgrad(Function):
    """dx of dy and w: the transposed convolution."""

    @staticmethod
    def forward(ctx: Any, dy: Tensor, w: Tensor, how: How) -> Any:
        ctx.save_for_backward(dy, w)
        ctx.how = how
        return backward.conv_backward(None, w, dy, want="dx", x_shape=how.x_shape, **how.words).dx

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        dy, w = ctx.saved_tensors
        of_dy = Fprop.apply(g, w, ctx.how) if ctx.needs_input_grad[0] else None
        of_w = Wgrad.apply(g, dy, ctx.how) if ctx.needs_input_grad[1] else None
        return of_dy, of_w, None


class Wgrad(Function):
    """dw of x and dy."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dy: Tensor, how: How) -> Any:
        ctx.save_for_backward(x, dy)
        ctx.how = how
        w = torch.empty((), dtype=x.dtype, device=x.device).expand(how.w_shape)  # its shape alone counts
        return backward.conv_backward(x, w, dy, want="dw", **how.words).dw

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, dy = ctx.saved_tensors
        of_x = Dgrad.apply(dy, g, ctx.how) if ctx.needs_input_grad[0] else None
        of_dy = Fprop.apply(x, g, ctx.how) if ctx.needs_input_grad[1] else None
        return of_x, of_dy, None


def per_axis(name: str, value: Any, rank: int) -> tuple[int, ...]:
    """A number for each spatial axis. Raises ShapeError."""
    found = (value,) * rank if isinstance(value, int) else tuple(value)
    if len(found) == 1:
        found *= rank
    if len(found) != rank or not all(isinstance(v, int) for v in found):
        raise ShapeError(f"{name}: expected an integer, or {rank} of them, got {shown(value)}")
    return found


def batched(x: Tensor, rank: int, what: str) -> Tensor:
    """A tensor with a batch in front. Raises ShapeError."""
    if x.dim() not in (rank + 1, rank + 2):
        raise ShapeError(f"{what}: expected {rank + 1} or {rank + 2} axes, got {tuple(x.shape)}")
    return x if x.dim() == rank + 2 else x.unsqueeze(0)


def _pads(padding: Any, taps: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Pads:
    if padding == "valid":
        return ((0, 0),) * len(taps)
    if padding == "same":
        if any(s != 1 for s in stride):
            raise ShapeError("padding='same': the stride must be 1")
        total = [d * (t - 1) for t, d in zip(taps, dilation, strict=True)]
        return tuple((e // 2, e - e // 2) for e in total)
    return tuple((p, p) for p in per_axis("padding", padding, len(taps)))


def _plus(y: Tensor, bias: Tensor | None) -> Tensor:
    """A bias, which autograd follows; it is added in place, as nobody else has seen y."""
    return y if bias is None else y.add_(bias.to(y.dtype).reshape(-1, *(1,) * (y.dim() - 2)))


def conv(
    rank: int, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int,
    options: Mapping[str, Any],
) -> Any:  # fmt: skip
    """As `ooc.torch.conv2d`, of any rank."""
    seen, taps = batched(x, rank, "input"), tuple(weight.shape[2:])
    if len(taps) != rank:
        raise ShapeError(f"weight: expected {rank + 2} axes, got {tuple(weight.shape)}")
    strides, dilations = per_axis("stride", stride, rank), per_axis("dilation", dilation, rank)
    pads = _pads(padding, taps, strides, dilations)
    how = How(tuple(seen.shape), tuple(weight.shape), strides, pads, dilations, groups, options)
    y = _plus(Fprop.apply(seen, weight, how), bias)
    return y if seen is x else y.squeeze(0)


def conv_transpose(
    rank: int, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, output_padding: Any, groups: int,
    dilation: Any, options: Mapping[str, Any],
) -> Any:  # fmt: skip
    """As `ooc.torch.conv_transpose2d`, of any rank."""
    seen, taps = batched(x, rank, "input"), tuple(weight.shape[2:])
    if len(taps) != rank or weight.shape[0] != seen.shape[1]:
        raise ShapeError(f"weight: {tuple(weight.shape)} does not fit an input of {tuple(x.shape)}")
    strides, dilations = per_axis("stride", stride, rank), per_axis("dilation", dilation, rank)
    padding, more = per_axis("padding", padding, rank), per_axis("output_padding", output_padding, rank)
    axes = zip(seen.shape[2:], strides, padding, dilations, taps, more, strict=True)
    extent = tuple((e - 1) * s - 2 * p + d * (t - 1) + o + 1 for e, s, p, d, t, o in axes)
    shape = (seen.shape[0], weight.shape[1] * groups, *extent)
    how = How(shape, tuple(weight.shape), strides, tuple((p, p) for p in padding), dilations, groups, options)
    y = _plus(Dgrad.apply(seen, weight, how), bias)
    return y if seen is x else y.squeeze(0)

"""Pooling on tensors, named and called as torch.nn.functional's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from ooc.api import backward, forward
from ooc.errors import UnsupportedError
from ooc.torch.filtering import batched, named, per_axis
from ooc.torch.passes import Pass, through
from ooc.translate.building import Shape
from ooc.translate.parts import Pads, ceiled


def _windows(
    x: Tensor, rank: int, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool
) -> tuple[Shape, Shape, Pads, Pads]:
    """Window, stride, padding, and padding with what ceil_mode adds behind."""
    taps = per_axis("kernel_size", kernel_size, rank)
    strides = taps if stride is None or stride == [] else per_axis("stride", stride, rank)
    pads: Pads = tuple((p, p) for p in per_axis("padding", padding, rank))
    return taps, strides, pads, ceiled(tuple(x.shape[2:]), taps, strides, pads) if ceil_mode else pads


def _maximum(rank: int) -> Callable[..., Tensor]:
    plain = getattr(F, f"max_pool{rank}d")

    def max_pool(
        input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
        **options: Any,
    ) -> Tensor:  # fmt: skip
        """As torch.nn.functional's of this name, without dilation and indices; options: of `ooc.max_pool`."""
        if any(d != 1 for d in per_axis("dilation", dilation, rank)):
            raise UnsupportedError("max_pool: a dilated window; ooc has none")
        x = batched(input, rank, "input")
        taps, strides, _, pads = _windows(x, rank, kernel_size, stride, padding, ceil_mode)
        how = Pass(
            lambda x: forward.max_pool(x, taps, strides, pads, **options),
            lambda saved, y, dy, needs: (backward.max_pool_backward(saved[0], dy, taps, strides, pads, **options),),
            lambda x: plain(x, taps, strides, padding, 1, ceil_mode),
        )
        y: Tensor = through(how, x)
        return y if x is input else y.squeeze(0)

    return named(max_pool, f"max_pool{rank}d", __name__)


def _mean(rank: int) -> Callable[..., Tensor]:
    plain = getattr(F, f"avg_pool{rank}d")

    def avg_pool(
        input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, **options: Any,
    ) -> Tensor:  # fmt: skip
        """As torch.nn.functional's of this name, without divisor_override; options: of `ooc.avg_pool`."""
        x = batched(input, rank, "input")
        taps, strides, pads, wide = _windows(x, rank, kernel_size, stride, padding, ceil_mode)
        if not len(x):
            return plain(input, kernel_size, stride, padding, ceil_mode, count_include_pad)  # type: ignore[no-any-return]
        if count_include_pad and wide != pads:  # what ceil_mode adds does not count
            around = F.pad(x, [p for pair in reversed(pads) for p in pair])
            rest = tuple((0, after - pad[1]) for (_, after), pad in zip(wide, pads, strict=True))
            y = _average(around, taps, strides, rest, False, options)
        else:
            y = _average(x, taps, strides, wide, count_include_pad, options)
        return y if x is input else y.squeeze(0)

    return named(avg_pool, f"avg_pool{rank}d", __name__)


class AveragePooling(NamedTuple):
    """An average pooling without its tensors.

    Fields:
        shape: of x.
        window, stride, padding: as `ooc.avg_pool` takes them.
        words: its other keywords.
    """

    shape: Shape
    window: Shape
    stride: Shape
    padding: Pads
    words: Mapping[str, Any]


class Average(Function):
    """Means over windows, or the gradient of that: it is linear, so that the gradient of either is the other."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, how: AveragePooling, back: bool) -> Any:
        ctx.how, ctx.back = how, back
        if back:
            return backward.avg_pool_backward(x, how.shape, how.window, how.stride, how.padding, **how.words)
        return forward.avg_pool(x, how.window, how.stride, how.padding, **how.words)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        return Average.apply(g, ctx.how, not ctx.back), None, None


def _average(x: Tensor, taps: Shape, strides: Shape, pads: Pads, counted: bool, options: Mapping[str, Any]) -> Tensor:
    how = AveragePooling(tuple(x.shape), taps, strides, pads, {"count_padding": counted, **options})
    return Average.apply(x, how, False)  # type: ignore[no-any-return]


max_pool1d, max_pool2d, max_pool3d = (_maximum(rank) for rank in (1, 2, 3))
avg_pool1d, avg_pool2d, avg_pool3d = (_mean(rank) for rank in (1, 2, 3))

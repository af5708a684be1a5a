"""Convolutions and linear layers on tensors, named and called as torch.nn.functional's, with gradients of any order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from ooc.api import backward, forward
from ooc.errors import ArgumentError, ShapeError, shown
from ooc.translate.building import Shape
from ooc.translate.parts import Pads

ROLES = ("x", "w", "y")
Made = TypeVar("Made", bound=Callable[..., Any])


class Convolving(NamedTuple):
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
        geometry = {"stride": self.stride, "padding": self.padding, "dilation": self.dilation, "groups": self.groups}
        return geometry | dict(self.options)

    def third(self, role: str, x: Tensor | None, w: Tensor | None, y: Tensor | None) -> Any:
        """The tensor of a role, of the other two: fprop makes y, dgrad makes x, wgrad makes w."""
        if role == "y":
            assert x is not None and w is not None
            return forward.conv(x, w, **self.words)
        assert y is not None
        if role == "x":
            assert w is not None
            return backward.conv_backward(None, w, y, want="dx", x_shape=self.x_shape, **self.words).dx
        assert x is not None
        shape_alone = torch.empty((), dtype=x.dtype, device=x.device).expand(self.w_shape)
        return backward.conv_backward(x, shape_alone, y, want="dw", **self.words).dw


class Third(Function):
    """One of x, w and y of a convolution from the other two. It is linear in each of them, so its gradients are passes too: a
    gradient stands in the place of the tensor that was made."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, role: str, how: Convolving) -> Any:
        ctx.save_for_backward(a, b)
        ctx.role, ctx.how = role, how
        return how.third(role, **placed((a, b), role), **{role: None})

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        tensors = placed(ctx.saved_tensors, ctx.role)
        here = tensors | {ctx.role: g}
        gradients = [
            Third.apply(*(here[r] for r in ROLES if r != of), of, ctx.how) if needed else None
            for of, needed in zip(tensors, ctx.needs_input_grad, strict=False)
        ]
        return gradients[0], gradients[1], None, None


def placed(tensors: Sequence[Tensor], but: str) -> dict[str, Tensor]:
    """Two tensors by their roles, in order, without that of `but`."""
    return dict(zip((r for r in ROLES if r != but), tensors, strict=True))


def named(function: Made, name: str, module: str) -> Made:
    """A function made for one rank, under its name."""
    function.__name__ = function.__qualname__ = name
    function.__module__ = module
    return function


def per_axis(name: str, value: Any, rank: int) -> tuple[int, ...]:
    """A number for each spatial axis. Raises ArgumentError."""
    numbers = (value,) * rank if isinstance(value, int) else tuple(value)
    if len(numbers) == 1:
        numbers *= rank
    if len(numbers) != rank or not all(isinstance(v, int) for v in numbers):
        raise ArgumentError(f"{name}: expected an integer, or {rank} of them, got {shown(value)}")
    return numbers


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


def _seen(rank: int, x: Tensor, weight: Tensor, stride: Any, dilation: Any) -> tuple[Tensor, Shape, Shape, Shape]:
    """The input with its batch, the filters' taps, stride and dilation along each axis. Raises ShapeError."""
    if weight.dim() != rank + 2:
        raise ShapeError(f"weight: expected {rank + 2} axes, got {tuple(weight.shape)}")
    strides, dilations = per_axis("stride", stride, rank), per_axis("dilation", dilation, rank)
    return batched(x, rank, "input"), tuple(weight.shape[2:]), strides, dilations


def _finished(y: Tensor, bias: Tensor | None, batch: bool) -> Tensor:
    """With a bias, which autograd follows; it is added in place, as nobody else has seen y. batch: whether there was one."""
    if bias is not None:
        y = y.add_(bias.to(y.dtype).reshape(-1, *(1,) * (y.dim() - 2)))
    return y if batch else y.squeeze(0)


def _convolution(rank: int) -> Callable[..., Tensor]:
    plain = getattr(F, f"conv{rank}d")

    def conv(
        input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
        groups: int = 1, **options: Any,
    ) -> Tensor:  # fmt: skip
        """As torch.nn.functional's of this name, gradients of any order too.

        Parameters:
            input: n x c x spatial axes, n 0 too, or without the batch.
            weight: k x c/groups x filter taps.
            bias: k values; default None: none.
            stride, dilation: a number, or one per spatial axis; default 1.
            padding: a number, one per spatial axis, "same" or "valid"; default 0.
            groups: default 1.
            **options: of `ooc.conv`, such as deterministic= and progress=.

        Returns:
            y: n x k x spatial axes, beside the input.

        Raises:
            ShapeError, DtypeError: what does not fit.
            BudgetError: no tiling fits the current device's budget.
        """
        x, taps, strides, dilations = _seen(rank, input, weight, stride, dilation)
        if not len(x):
            return plain(input, weight, bias, stride, padding, dilation, groups)  # type: ignore[no-any-return]
        pads = _pads(padding, taps, strides, dilations)
        how = Convolving(tuple(x.shape), tuple(weight.shape), strides, pads, dilations, groups, options)
        return _finished(Third.apply(x, weight, "y", how), bias, x is input)

    return named(conv, f"conv{rank}d", __name__)


def _transposed(rank: int) -> Callable[..., Tensor]:
    plain = getattr(F, f"conv_transpose{rank}d")

    def conv_transpose(
        input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
        groups: int = 1, dilation: Any = 1, **options: Any,
    ) -> Tensor:  # fmt: skip
        """As torch.nn.functional's of this name, gradients of any order too.

        Parameters:
            input: n x c x spatial axes, n 0 too, or without the batch.
            weight: c x k/groups x filter taps.
            bias: k values; default None: none.
            stride, dilation: a number, or one per spatial axis; default 1.
            padding, output_padding: a number, or one per spatial axis; default 0.
            groups: default 1.
            **options: of `ooc.conv_backward`.

        Returns:
            y: n x k x spatial axes, beside the input.

        Raises:
            ShapeError, DtypeError: what does not fit.
            BudgetError: no tiling fits the current device's budget.
        """
        x, taps, strides, dilations = _seen(rank, input, weight, stride, dilation)
        if weight.shape[0] != x.shape[1]:
            raise ShapeError(f"weight: {tuple(weight.shape)} does not fit an input of {tuple(input.shape)}")
        if not len(x):
            return plain(input, weight, bias, stride, padding, output_padding, groups, dilation)  # type: ignore[no-any-return]
        around, more = per_axis("padding", padding, rank), per_axis("output_padding", output_padding, rank)
        axes = zip(x.shape[2:], strides, around, dilations, taps, more, strict=True)
        extent = tuple((e - 1) * s - 2 * p + d * (t - 1) + o + 1 for e, s, p, d, t, o in axes)
        shape = (x.shape[0], weight.shape[1] * groups, *extent)
        how = Convolving(shape, tuple(weight.shape), strides, tuple((p, p) for p in around), dilations, groups, options)
        return _finished(Third.apply(weight, x, "x", how), bias, x is input)

    return named(conv_transpose, f"conv_transpose{rank}d", __name__)


conv1d, conv2d, conv3d = (_convolution(rank) for rank in (1, 2, 3))
conv_transpose1d, conv_transpose2d, conv_transpose3d = (_transposed(rank) for rank in (1, 2, 3))


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None, **options: Any) -> Tensor:
    """As torch.nn.functional.linear; options: of `ooc.conv`."""
    if not input.numel():
        return F.linear(input, weight, bias)
    rows = input.reshape(1, -1, input.shape[-1]).transpose(1, 2)  # positions of a pointwise convolution
    y = conv1d(rows, weight.unsqueeze(-1), bias, **options)
    return y.transpose(1, 2).reshape(*input.shape[:-1], weight.shape[0])

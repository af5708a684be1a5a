"""Functions on tensors, named and called as those of torch.nn.functional: they stay on their device, keep their dtype, and are
followed by autograd. What they compute runs on ooc's current device, under its budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from ooc.api import backward, forward
from ooc.api import batch_norm as norms
from ooc.api import functions as others
from ooc.api import softmax as exponentials
from ooc.errors import UnsupportedError
from ooc.torch import filtering
from ooc.torch.filtering import per_axis
from ooc.translate.parts import Pads, ceiled


class Pass(NamedTuple):
    """One function, forward and backward.

    Fields:
        forth: y of the tensors.
        back: gradients of the tensors, of them, y, dy, and which are wanted.
        plain: the same by PyTorch, for gradients of gradients.
    """

    forth: Callable[..., Tensor]
    back: Callable[[Sequence[Tensor], Tensor, Tensor, Sequence[bool]], Sequence[Tensor | None]]
    plain: Callable[..., Tensor]


class Through(Function):
    """A pass as autograd sees it."""

    @staticmethod
    def forward(ctx: Any, how: Pass, *tensors: Tensor) -> Tensor:
        y = how.forth(*tensors)
        ctx.how = how
        ctx.save_for_backward(*tensors, y)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, y = ctx.saved_tensors
        wanted = ctx.needs_input_grad[1:]
        if not torch.is_grad_enabled():
            return (None, *ctx.how.back(tensors, y, dy, wanted))
        asked = [t for t, w in zip(tensors, wanted, strict=True) if w]
        found = iter(torch.autograd.grad(ctx.how.plain(*tensors), asked, dy, create_graph=True))
        return (None, *(next(found) if w else None for w in wanted))


def _through(how: Pass, *tensors: Tensor) -> Any:
    return Through.apply(how, *tensors)


# ---- convolutions and linear layers


def conv1d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1, **options: Any,
) -> Tensor:  # fmt: skip
    """As torch.nn.functional.conv1d; options: of `ooc.conv`, such as deterministic= and progress=."""
    return filtering.conv(1, input, weight, bias, stride, padding, dilation, groups, options)  # type: ignore[no-any-return]


def conv2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1, **options: Any,
) -> Tensor:  # fmt: skip
    """As torch.nn.functional.conv2d, gradients of any order too.

    Parameters:
        input: n x c x h x w, or c x h x w.
        weight: k x c/groups x r x s.
        bias: k values; default None: none.
        stride, dilation: a number, or one per spatial axis; default 1.
        padding: a number, one per spatial axis, "same" or "valid"; default 0.
        groups: default 1.
        **options: of `ooc.conv`, such as deterministic= and progress=.

    Returns:
        y: n x k x p x q, beside the input.

    Raises:
        ShapeError, DtypeError: what does not fit.
        BudgetError: no tiling fits the current device's budget.
    """
    return filtering.conv(2, input, weight, bias, stride, padding, dilation, groups, options)  # type: ignore[no-any-return]


def conv3d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1, **options: Any,
) -> Tensor:  # fmt: skip
    """As torch.nn.functional.conv3d; options: of `ooc.conv`."""
    return filtering.conv(3, input, weight, bias, stride, padding, dilation, groups, options)  # type: ignore[no-any-return]


def conv_transpose1d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
    groups: int = 1, dilation: Any = 1, **options: Any,
) -> Tensor:  # fmt: skip
    """As torch.nn.functional.conv_transpose1d; options: of `ooc.conv_backward`."""
    return filtering.conv_transpose(  # type: ignore[no-any-return]
        1, input, weight, bias, stride, padding, output_padding, groups, dilation, options
    )


def conv_transpose2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
    groups: int = 1, dilation: Any = 1, **options: Any,
) -> Tensor:  # fmt: skip
    """As torch.nn.functional.conv_transpose2d; options: of `ooc.conv_backward`."""
    return filtering.conv_transpose(  # type: ignore[no-any-return]
        2, input, weight, bias, stride, padding, output_padding, groups, dilation, options
    )


def conv_transpose3d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
    groups: int = 1, dilation: Any = 1, **options: Any,
) -> Tensor:  # fmt: skip
    """As torch.nn.functional.conv_transpose3d; options: of `ooc.conv_backward`."""
    return filtering.conv_transpose(  # type: ignore[no-any-return]
        3, input, weight, bias, stride, padding, output_padding, groups, dilation, options
    )


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None, **options: Any) -> Tensor:
    """As torch.nn.functional.linear; options: of `ooc.conv`."""
    rows = input.reshape(1, -1, input.shape[-1]).transpose(1, 2)  # positions of a pointwise convolution
    y = conv1d(rows, weight.unsqueeze(-1), bias, **options)
    return y.transpose(1, 2).reshape(*input.shape[:-1], weight.shape[0])


# ---- pooling


def _windows(
    input: Tensor, rank: int, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool
) -> tuple[tuple[int, ...], tuple[int, ...], Pads, Pads]:
    """Window, stride, padding, and padding with what ceil_mode adds behind."""
    taps = per_axis("kernel_size", kernel_size, rank)
    strides = taps if stride is None or stride == [] else per_axis("stride", stride, rank)
    pads: Pads = tuple((p, p) for p in per_axis("padding", padding, rank))
    return taps, strides, pads, ceiled(tuple(input.shape[2:]), taps, strides, pads) if ceil_mode else pads


def _max_pool(
    rank: int,
    input: Tensor,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    options: Mapping[str, Any],
) -> Tensor:
    if any(d != 1 for d in per_axis("dilation", dilation, rank)):
        raise UnsupportedError("max_pool: a dilated window; ooc has none")
    x = filtering.batched(input, rank, "input")
    taps, strides, _, pads = _windows(x, rank, kernel_size, stride, padding, ceil_mode)
    plain = getattr(F, f"max_pool{rank}d")
    how = Pass(
        lambda x: forward.max_pool(x, taps, strides, pads, **options),
        lambda saved, y, dy, wanted: (backward.max_pool_backward(saved[0], dy, taps, strides, pads, **options),),
        lambda x: plain(x, taps, strides, padding, 1, ceil_mode),
    )
    y: Tensor = _through(how, x)
    return y if x is input else y.squeeze(0)


def max_pool1d(
    input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
    **options: Any,
) -> Tensor:  # fmt: skip
    """As torch.nn.functional.max_pool1d, without dilation and indices; options: of `ooc.max_pool`."""
    return _max_pool(1, input, kernel_size, stride, padding, dilation, ceil_mode, options)


def max_pool2d(
    input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
    **options: Any,
) -> Tensor:  # fmt: skip
    """As torch.nn.functional.max_pool2d, without dilation and indices; options: of `ooc.max_pool`."""
    return _max_pool(2, input, kernel_size, stride, padding, dilation, ceil_mode, options)


def max_pool3d(
    input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
    **options: Any,
) -> Tensor:  # fmt: skip
    """As torch.nn.functional.max_pool3d, without dilation and indices; options: of `ooc.max_pool`."""
    return _max_pool(3, input, kernel_size, stride, padding, dilation, ceil_mode, options)


def _avg_pool(
    rank: int, input: Tensor, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool, counted: bool,
    options: Mapping[str, Any],
) -> Tensor:  # fmt: skip
    x = filtering.batched(input, rank, "input")
    taps, strides, pads, wide = _windows(x, rank, kernel_size, stride, padding, ceil_mode)
    if counted and wide != pads:  # what ceil_mode adds does not count
        x_wide = F.pad(x, [p for pair in reversed(pads) for p in pair])
        rest = tuple((0, after - given[1]) for (_, after), given in zip(wide, pads, strict=True))
        y = _average(x_wide, taps, strides, rest, False, options)
    else:
        y = _average(x, taps, strides, wide, counted, options)
    return y if x is input else y.squeeze(0)


def _average(
    x: Tensor, taps: tuple[int, ...], strides: tuple[int, ...], pads: Pads, counted: bool, options: Mapping[str, Any]
) -> Tensor:
    shape = tuple(x.shape)

    class Mean(Function):
        """Linear: the gradient of the gradient is the mean again."""

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Any:
            return forward.avg_pool(x, taps, strides, pads, count_padding=counted, **options)

        @staticmethod
        def backward(ctx: Any, dy: Tensor) -> Any:
            return Back.apply(dy)

    class Back(Function):
        @staticmethod
        def forward(ctx: Any, dy: Tensor) -> Any:
            return backward.avg_pool_backward(dy, shape, taps, strides, pads, count_padding=counted, **options)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return Mean.apply(g)

    return Mean.apply(x)  # type: ignore[no-any-return]


def avg_pool1d(
    input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, **options: Any,
) -> Tensor:  # fmt: skip
    """As torch.nn.functional.avg_pool1d; options: of `ooc.avg_pool`."""
    return _avg_pool(1, input, kernel_size, stride, padding, ceil_mode, count_include_pad, options)


def avg_pool2d(
    input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, **options: Any,
) -> Tensor:  # fmt: skip
    """As torch.nn.functional.avg_pool2d, without divisor_override; options: of `ooc.avg_pool`."""
    return _avg_pool(2, input, kernel_size, stride, padding, ceil_mode, count_include_pad, options)


def avg_pool3d(
    input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, **options: Any,
) -> Tensor:  # fmt: skip
    """As torch.nn.functional.avg_pool3d, without divisor_override; options: of `ooc.avg_pool`."""
    return _avg_pool(3, input, kernel_size, stride, padding, ceil_mode, count_include_pad, options)


# ---- activations


def _activation(
    input: Tensor, name: str, coef: float | None, plain: Callable[[Tensor], Tensor], options: Mapping[str, Any]
) -> Any:
    how = Pass(
        lambda x: forward.activation(x, name, coef, **options),
        lambda saved, y, dy, wanted: (backward.activation_backward(y, dy, name, coef, **options),),
        plain,
    )
    return _through(how, input)


def relu(input: Tensor, **options: Any) -> Any:
    """As torch.nn.functional.relu; options: of `ooc.activation`."""
    return _activation(input, "relu", None, F.relu, options)


def relu6(input: Tensor, **options: Any) -> Any:
    """As torch.nn.functional.relu6; options: of `ooc.activation`."""
    return _activation(input, "clipped_relu", 6.0, F.relu6, options)


def leaky_relu(input: Tensor, negative_slope: float = 0.01, **options: Any) -> Any:
    """As torch.nn.functional.leaky_relu, slopes not negative; options: of `ooc.activation`."""
    return _activation(input, "leaky_relu", negative_slope, lambda x: F.leaky_relu(x, negative_slope), options)


def elu(input: Tensor, alpha: float = 1.0, **options: Any) -> Any:
    """As torch.nn.functional.elu, alpha not negative; options: of `ooc.activation`."""
    return _activation(input, "elu", alpha, lambda x: F.elu(x, alpha), options)


def sigmoid(input: Tensor, **options: Any) -> Any:
    """As torch.sigmoid; options: of `ooc.activation`."""
    return _activation(input, "sigmoid", None, torch.sigmoid, options)


def tanh(input: Tensor, **options: Any) -> Any:
    """As torch.tanh; options: of `ooc.activation`."""
    return _activation(input, "tanh", None, torch.tanh, options)


def softmax(input: Tensor, dim: int = 1, **options: Any) -> Any:
    """As torch.nn.functional.softmax; options: of `ooc.softmax`."""
    how = Pass(
        lambda x: exponentials.softmax(x, dim, **options),
        lambda saved, y, dy, wanted: (exponentials.softmax_backward(y, dy, dim, **options),),
        lambda x: F.softmax(x, dim),
    )
    return _through(how, input)


def log_softmax(input: Tensor, dim: int = 1, **options: Any) -> Any:
    """As torch.nn.functional.log_softmax; options: of `ooc.softmax`."""
    how = Pass(
        lambda x: exponentials.softmax(x, dim, log=True, **options),
        lambda saved, y, dy, wanted: (exponentials.softmax_backward(y, dy, dim, log=True, **options),),
        lambda x: F.log_softmax(x, dim),
    )
    return _through(how, input)


# ---- normalisations and the rest


def batch_norm(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None,
    bias: Tensor | None = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5, **options: Any,
) -> Any:  # fmt: skip
    """As torch.nn.functional.batch_norm; options: of `ooc.batch_norm`."""
    k = input.shape[1]
    scale = torch.ones(k, dtype=input.dtype, device=input.device) if weight is None else weight
    shift = torch.zeros(k, dtype=input.dtype, device=input.device) if bias is None else bias
    if not training:
        return _frozen_norm(input, running_mean, running_var, scale, shift, eps, options)
    statistics: list[Any] = []

    def forth(x: Tensor, scale: Tensor, shift: Tensor) -> Any:
        made = norms.batch_norm(
            x, scale, shift, running_mean, running_var, training=True, momentum=momentum, eps=eps, **options
        )  # fmt: skip
        statistics.extend((made.mean, made.var))
        return made.y

    def back(saved: Sequence[Tensor], y: Tensor, dy: Tensor, wanted: Sequence[bool]) -> Sequence[Tensor | None]:
        x, scale, shift = saved
        made = norms.batch_norm_backward(x, dy, scale, *statistics, eps=eps, **options)
        dscale, db = (torch.from_numpy(v).to(scale.device) for v in (made.dscale, made.db))
        return made.dx, dscale.to(scale.dtype), db.to(shift.dtype)

    return _through(
        Pass(forth, back, lambda x, s, b: F.batch_norm(x, None, None, s, b, True, momentum, eps)), input, scale, shift
    )


def _frozen_norm(
    input: Tensor, mean: Tensor | None, var: Tensor | None, scale: Tensor, shift: Tensor, eps: float, options: Mapping[str, Any]
) -> Any:
    """By running statistics."""
    if mean is None or var is None:
        raise UnsupportedError("batch_norm: in inference it needs running_mean and running_var")
    zeros = torch.zeros_like(mean)

    def back(saved: Sequence[Tensor], y: Tensor, dy: Tensor, wanted: Sequence[bool]) -> Sequence[Tensor | None]:
        x, scale, shift = saved
        dx = norms.batch_norm(dy, scale, None, zeros, var, eps=eps, **options) if wanted[0] else None
        if not any(wanted[1:]):
            return dx, None, None
        sums = norms.batch_norm_backward(x, dy, scale, mean, var, eps=eps, **options)
        dscale, db = (torch.from_numpy(v).to(scale.device) for v in (sums.dscale, sums.db))
        return dx, dscale.to(scale.dtype), db.to(shift.dtype)

    how = Pass(
        lambda x, s, b: norms.batch_norm(x, s, b, mean, var, eps=eps, **options),
        back,
        lambda x, s, b: F.batch_norm(x, mean, var, s, b, False, 0.1, eps),
    )
    return _through(how, input, scale, shift)


def local_response_norm(input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0, **options: Any) -> Any:
    """As torch.nn.functional.local_response_norm; options: of `ooc.lrn`."""
    terms = (size, alpha, beta, k)
    before = size // 2
    how = Pass(
        lambda x: others.lrn(x, *terms, before=before, **options),
        lambda saved, y, dy, wanted: (others.lrn_backward(saved[0], dy, *terms, before=before, **options),),
        lambda x: F.local_response_norm(x, *terms),
    )
    return _through(how, input)


def interpolate(
    input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool | None = None,
    **options: Any,
) -> Any:  # fmt: skip
    """As torch.nn.functional.interpolate: modes nearest, linear, bilinear and trilinear, to sizes that a factor hits; options:
    of `ooc.upsample`."""
    rank, extent = input.dim() - 2, tuple(input.shape[2:])
    if mode not in ("nearest", {1: "linear", 2: "bilinear", 3: "trilinear"}.get(rank)):
        raise UnsupportedError(f"interpolate: mode {mode!r} of {rank} spatial axes; ooc has nearest and linear")
    if size is None:
        factors = (scale_factor,) * rank if isinstance(scale_factor, (int, float)) else tuple(scale_factor)
        sizes = tuple(int(e * f) for e, f in zip(extent, factors, strict=True))
        if any(abs(e * f - s) > 1e-9 for e, f, s in zip(extent, factors, sizes, strict=True)):
            raise UnsupportedError(f"interpolate: {extent} times {factors} is between sizes; pass size=")
    else:
        sizes = per_axis("size", size, rank)
    words = {"mode": "nearest" if mode == "nearest" else "linear", "align_corners": bool(align_corners), **options}
    how = Pass(
        lambda x: others.upsample(x, sizes, **words),
        lambda saved, y, dy, wanted: (others.upsample_backward(dy, extent, **words),),
        lambda x: F.interpolate(x, sizes, mode=mode, align_corners=align_corners),
    )
    return _through(how, input)


def cross_entropy(input: Tensor, target: Tensor, reduction: str = "mean", ignore_index: int = -100, **options: Any) -> Any:
    """As torch.nn.functional.cross_entropy of classes, without weights and smoothing; options: of `ooc.cross_entropy`."""
    labels = torch.where(target == ignore_index, torch.full_like(target, -1), target)

    def forth(x: Tensor) -> Tensor:
        made = exponentials.cross_entropy(x, labels, reduction=reduction, **options)
        return torch.as_tensor(made, dtype=x.dtype).to(x.device)

    how = Pass(
        forth,
        lambda saved, y, dy, wanted: (
            exponentials.cross_entropy_backward(
                saved[0], labels, float(dy) if not dy.dim() else dy, reduction=reduction, **options
            ),
        ),
        lambda x: F.cross_entropy(x, target, reduction=reduction, ignore_index=ignore_index),
    )
    return _through(how, input)

"""Activations, normalisations, resizing and the loss on tensors, named and called as those of torch.nn.functional: they stay on
their device, keep their dtype, and are followed by autograd. What they compute runs on ooc's current device, under its budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ooc.api import backward, forward
from ooc.api import batch_norm as norms
from ooc.api import functions as others
from ooc.api import softmax as exponentials
from ooc.errors import UnsupportedError
from ooc.torch.filtering import per_axis
from ooc.torch.passes import Pass, through

# ---- activations


def _activation(
    input: Tensor, name: str, coef: float | None, plain: Callable[[Tensor], Tensor], options: Mapping[str, Any]
) -> Any:
    how = Pass(
        lambda x: forward.activation(x, name, coef, **options),
        lambda saved, y, dy, needs: (backward.activation_backward(y, dy, name, coef, **options),),
        plain,
    )
    return through(how, input)


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
        lambda saved, y, dy, needs: (exponentials.softmax_backward(y, dy, dim, **options),),
        lambda x: F.softmax(x, dim),
    )
    return through(how, input)


def log_softmax(input: Tensor, dim: int = 1, **options: Any) -> Any:
    """As torch.nn.functional.log_softmax; options: of `ooc.softmax`."""
    how = Pass(
        lambda x: exponentials.softmax(x, dim, log=True, **options),
        lambda saved, y, dy, needs: (exponentials.softmax_backward(y, dy, dim, log=True, **options),),
        lambda x: F.log_softmax(x, dim),
    )
    return through(how, input)


# ---- normalisations and the rest


def batch_norm(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None,
    bias: Tensor | None = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5, **options: Any,
) -> Any:  # fmt: skip
    """As torch.nn.functional.batch_norm; options: of `ooc.batch_norm`."""
    if not input.numel():
        return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    k = input.shape[1]
    scale = torch.ones(k, dtype=input.dtype, device=input.device) if weight is None else weight
    shift = torch.zeros(k, dtype=input.dtype, device=input.device) if bias is None else bias
    if not training:
        return _frozen_norm(input, running_mean, running_var, scale, shift, eps, options)
    statistics: list[Any] = []

    def forth(x: Tensor, scale: Tensor, shift: Tensor) -> Any:
        norm = norms.batch_norm(
            x, scale, shift, running_mean, running_var, training=True, momentum=momentum, eps=eps, **options
        )  # fmt: skip
        statistics.extend((norm.mean, norm.var))
        return norm.y

    def back(saved: Sequence[Tensor], y: Tensor, dy: Tensor, needs: Sequence[bool]) -> Sequence[Tensor | None]:
        x, scale, shift = saved
        gradients = norms.batch_norm_backward(x, dy, scale, *statistics, eps=eps, **options)
        dscale, db = (torch.from_numpy(v).to(scale.device) for v in (gradients.dscale, gradients.db))
        return gradients.dx, dscale.to(scale.dtype), db.to(shift.dtype)

    return through(Pass(forth, back, lambda x, s, b: F.batch_norm(x, None, None, s, b, True, momentum, eps)), input, scale, shift)


def _frozen_norm(
    input: Tensor, mean: Tensor | None, var: Tensor | None, scale: Tensor, shift: Tensor, eps: float, options: Mapping[str, Any]
) -> Any:
    """By running statistics."""
    if mean is None or var is None:
        raise UnsupportedError("batch_norm: in inference it needs running_mean and running_var")
    zeros = torch.zeros_like(mean)

    def back(saved: Sequence[Tensor], y: Tensor, dy: Tensor, needs: Sequence[bool]) -> Sequence[Tensor | None]:
        x, scale, shift = saved
        dx = norms.batch_norm(dy, scale, None, zeros, var, eps=eps, **options) if needs[0] else None
        if not any(needs[1:]):
            return dx, None, None
        sums = norms.batch_norm_backward(x, dy, scale, mean, var, eps=eps, **options)
        dscale, db = (torch.from_numpy(v).to(scale.device) for v in (sums.dscale, sums.db))
        return dx, dscale.to(scale.dtype), db.to(shift.dtype)

    how = Pass(
        lambda x, s, b: norms.batch_norm(x, s, b, mean, var, eps=eps, **options),
        back,
        lambda x, s, b: F.batch_norm(x, mean, var, s, b, False, 0.1, eps),
    )
    return through(how, input, scale, shift)


def local_response_norm(input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0, **options: Any) -> Any:
    """As torch.nn.functional.local_response_norm; options: of `ooc.lrn`."""
    terms = (size, alpha, beta, k)
    before = size // 2
    how = Pass(
        lambda x: others.lrn(x, *terms, before=before, **options),
        lambda saved, y, dy, needs: (others.lrn_backward(saved[0], dy, *terms, before=before, **options),),
        lambda x: F.local_response_norm(x, *terms),
    )
    return through(how, input)


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
        lambda saved, y, dy, needs: (others.upsample_backward(dy, extent, **words),),
        lambda x: F.interpolate(x, sizes, mode=mode, align_corners=align_corners),
    )
    return through(how, input)


def cross_entropy(input: Tensor, target: Tensor, reduction: str = "mean", ignore_index: int = -100, **options: Any) -> Any:
    """As torch.nn.functional.cross_entropy of classes, without weights and smoothing; options: of `ooc.cross_entropy`."""
    labels = torch.where(target == ignore_index, torch.full_like(target, -1), target)

    def forth(x: Tensor) -> Tensor:
        loss = exponentials.cross_entropy(x, labels, reduction=reduction, **options)
        return torch.as_tensor(loss, dtype=x.dtype).to(x.device)

    how = Pass(
        forth,
        lambda saved, y, dy, needs: (
            exponentials.cross_entropy_backward(
                saved[0], labels, float(dy) if not dy.dim() else dy, reduction=reduction, **options
            ),
        ),
        lambda x: F.cross_entropy(x, target, reduction=reduction, ignore_index=ignore_index),
    )
    return through(how, input)

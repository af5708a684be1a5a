"""A convolution as four descriptors say it: checked, and as the arguments of ooc's functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc.api.arguments import on_host, put
from ooc.libcudnn.guard import NOT_SUPPORTED, refusal
from ooc.libcudnn.memory import Array, channels_last, number, type_of, view
from ooc.libcudnn.registry import ConvolutionDescriptor, FilterDescriptor, Handle, TensorDescriptor, find


def output_dims(conv: ConvolutionDescriptor, x: TensorDescriptor, w: FilterDescriptor) -> tuple[int, ...]:
    """The shape of a convolution's result. Raises BAD_PARAM where the descriptors do not fit together."""
    rank = len(conv.pad)
    if not len(x.dims) == len(w.dims) == rank + 2:
        raise refusal(f"a convolution of {rank} spatial axes does not take x {x.dims} and filters {w.dims}")
    if x.dims[1] != w.dims[1] * conv.groups:
        raise refusal(f"x has {x.dims[1]} channels, the filters take {w.dims[1]} in {conv.groups} group(s)")
    axes = zip(x.dims[2:], w.dims[2:], conv.pad, conv.stride, conv.dilation, strict=True)
    extent = tuple((e + 2 * p - d * (t - 1) - 1) // s + 1 for e, t, p, s, d in axes)
    if any(e < 1 for e in extent):
        raise refusal(f"filters {w.dims} with dilation {conv.dilation} do not fit x {x.dims} with padding {conv.pad}")
    return (x.dims[0], w.dims[0], *extent)


@dataclass(frozen=True)
class ConvolutionProblem:
    """y = conv(x, w), or its gradients: x, w and y are also those of dx, dw and dy."""

    x: TensorDescriptor
    w: FilterDescriptor
    y: TensorDescriptor
    conv: ConvolutionDescriptor

    @classmethod
    def of(cls, handle: int, x: int, w: int, y: int, conv: int) -> ConvolutionProblem:
        """From the integers of a handle and descriptors. Raises BAD_PARAM, NOT_SUPPORTED."""
        check_handle(handle)
        problem = cls(
            find(TensorDescriptor, x, "x"),
            find(FilterDescriptor, w, "w"),
            find(TensorDescriptor, y, "y"),
            find(ConvolutionDescriptor, conv, "convDesc"),
        )
        dims = output_dims(problem.conv, problem.x, problem.w)
        if problem.y.dims != dims:
            raise refusal(f"y: the convolution's result is {dims}, the descriptor says {problem.y.dims}")
        if problem.w.dims[0] % problem.conv.groups:
            raise refusal(f"{problem.w.dims[0]} filters cannot be split into {problem.conv.groups} groups")
        if not problem.x.dtype == problem.w.dtype == problem.y.dtype:
            raise refusal(f"data types differ: x {problem.x.dtype}, w {problem.w.dtype}, y {problem.y.dtype}")
        if not 1 <= len(problem.conv.pad) <= 3:
            raise refusal(f"1 to 3 spatial axes expected, got {len(problem.conv.pad)}", NOT_SUPPORTED)
        type_of("x", problem.x.dtype)
        return problem

    def how(self, layout: str) -> dict[str, Any]:
        """The arguments of ooc's functions."""
        c, layouts = self.conv, {"layout": layout, "filter_layout": layout}
        return {"stride": c.stride, "padding": c.pad, "dilation": c.dilation, "groups": c.groups, **layouts}

    def flipped(self, w: Array) -> Array:
        """Filters as a cross-correlation takes them."""
        if self.conv.mode == 1:
            return w
        return w[(slice(None), slice(None), *(slice(None, None, -1),) * (w.ndim - 2))]


def laid_out(first: Array, *others: Array) -> tuple[str, list[Array]]:
    """The layout of the first array's memory, and all of them seen so."""
    if channels_last(first):
        return "channels_last", [np.moveaxis(a, 1, -1) for a in (first, *others)]
    return "channels_first", [first, *others]


def check_algo(algo: int, count: int) -> None:
    """Raise BAD_PARAM for a number that is no algorithm; which one it is does not matter."""
    if not 0 <= algo < count:
        raise refusal(f"algo: expected 0 to {count - 1}, got {algo}")


def check_handle(handle: int) -> None:
    """Raise BAD_PARAM unless it is a handle."""
    find(Handle, handle, "handle")


def blending(alpha: Any, beta: Any, target: Array) -> dict[str, Any]:
    """alpha and beta of a call, for a target of that type."""
    return {"alpha": number("alpha", alpha, target.dtype), "beta": number("beta", beta, target.dtype)}


def tensors(handle: int, **numbers: int) -> list[TensorDescriptor]:
    """Descriptors of tensors of one shape and type. Raises BAD_PARAM where they, or the handle, are not."""
    check_handle(handle)
    forms = [find(TensorDescriptor, number, name) for name, number in numbers.items()]
    for name, form in zip(numbers, forms, strict=True):
        if (form.dims, form.dtype) != (forms[0].dims, forms[0].dtype):
            raise refusal(f"{name}: {form.dims} of type {form.dtype}, but the first is {forms[0].dims} of type {forms[0].dtype}")
    return forms


def alike(handle: int, **operands: tuple[int, Any]) -> list[Array]:
    """Tensors of one shape and type, each a descriptor and memory; the last one is to be written. Checks the handle, too."""
    forms = tensors(handle, **{name: number for name, (number, _) in operands.items()})
    *_, last = operands
    return [view(n, form, data, n == last) for (n, (_, data)), form in zip(operands.items(), forms, strict=True)]


def blend_small(target: Array, values: Array, alpha: float, beta: float) -> None:
    """target = alpha * values + beta * target, in memory: for what is as small as a value per channel."""
    put(target, alpha * values + (beta * on_host(target) if beta else 0))


def per_channel(name: str, form: TensorDescriptor, array: Array, count: int) -> Array:
    """One value per channel, from a tensor 1 x k x 1 ... Raises BAD_PARAM for other shapes."""
    if form.dims != (1, count, *(1,) * (len(form.dims) - 2)):
        raise refusal(f"{name}: expected 1 x {count} x 1 ..., the descriptor says {form.dims}")
    return array[(0, slice(None), *(0,) * (array.ndim - 2))]

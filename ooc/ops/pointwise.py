"""Bias and activation, element by element."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ooc.descriptor import Fields, register, take_int, take_word
from ooc.errors import ShapeError
from ooc.op import DTYPES, LAYOUTS, Block, Op, Operand, compute_dtype, crop, numpy_dtype
from ooc.ops.spatial import IN, OUT, check_positive, memory_order, rank_of, take_extents
from ooc.region import Along, AxisMap, Grouped, Sizes, Tile

# Order = codes in kernels/common.hpp.
ACTIVATIONS = ("identity", "relu", "clipped_relu", "elu", "leaky_relu", "sigmoid", "tanh")
DEFAULT_COEF = {"clipped_relu": 6.0, "elu": 1.0, "leaky_relu": 0.01}


def activate(act: str, coef: float, z: Any) -> Any:
    """The activation of an array. NaN passes through.

    coef: ceiling of clipped_relu, alpha of elu, negative slope of leaky_relu (cuDNN's `coef`).
    """
    if act == "relu":
        return np.maximum(z, 0)
    if act == "clipped_relu":
        return np.minimum(np.maximum(z, 0), z.dtype.type(coef))
    if act == "elu":
        return np.where(z > 0, z, z.dtype.type(coef) * np.expm1(np.minimum(z, 0)))
    if act == "leaky_relu":
        return np.where(z > 0, z, z.dtype.type(coef) * z)
    if act == "sigmoid":
        e = np.exp(-np.abs(z))
        return np.where(z >= 0, 1 / (1 + e), e / (1 + e))
    return np.tanh(z) if act == "tanh" else z


@dataclass(frozen=True)
class Pointwise(Op):
    """y = act(x + b) on n x k x spatial tensors; b is one value per channel.

    Source: cudnnActivationForward, cudnnAddTensor. Descriptor: `pointwise n= k= [[d=] h=] w= [bias=1] [act=] [coef=]`.
    """

    n: int
    k: int
    extent: tuple[int, ...]
    bias: bool = False
    act: str = "identity"
    coef: float = 0.0
    groups: int = 1
    dtype: str = "f32"
    layout: str = "channels_first"

    kind = "pointwise"

    def __post_init__(self) -> None:
        check_positive("pointwise", n=self.n, k=self.k, extent=self.extent)
        if self.act not in ACTIVATIONS:
            raise ShapeError(f"activation: expected one of {', '.join(ACTIVATIONS)}; got {self.act!r}")

    @cached_property
    def dims(self) -> dict[str, int]:  # type: ignore[override]
        return {"n": self.n, **channel_dims(self.k, self.groups), **dict(zip(OUT[self.rank], self.extent, strict=True))}

    @property
    def rank(self) -> int:
        return len(self.extent)

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        k = channel_axis(self.k, self.groups)
        bias = Operand("b", (self.k,), compute_dtype(self.dtype), (k,))
        return (self._tensor("x"), bias) if self.bias else (self._tensor("x"),)

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self._tensor("y"),)

    def _tensor(self, name: str) -> Operand:
        axes = (Along("n"), channel_axis(self.k, self.groups), *map(Along, OUT[self.rank]))
        order = memory_order(self.rank, self.layout)
        return Operand(name, (self.n, self.k, *self.extent), self.dtype, axes, order)

    def flops(self, sizes: Sizes) -> Any:
        return self.outputs[0].count(sizes) * (1 + self.bias)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        z = crop(blocks["x"], self.inputs[0].region(tile)).array.astype(numpy_dtype(compute_dtype(self.dtype)))
        if self.bias:
            z += blocks["b"].array.reshape(-1, *(1,) * self.rank)
        blocks["y"].array[...] = activate(self.act, self.coef, z)

    def describe(self) -> str:
        spatial = " ".join(f"{d}={e}" for d, e in zip(IN[self.rank], self.extent, strict=True))
        return f"pointwise n={self.n} k={self.k} {spatial}{show_epilogue(self)}{show_common(self)}"


def channel_dims(k: int, groups: int) -> dict[str, int]:
    """Loop dims of an output channel axis."""
    return {"k": k} if groups == 1 else {"g": groups, "k": k // groups}


def channel_axis(k: int, groups: int) -> AxisMap:
    """Axis map of an output channel axis."""
    return Along("k") if groups == 1 else Grouped("g", "k", k // groups)


def show_epilogue(op: Any) -> str:
    """` bias=1 act=relu` of an op that has them."""
    coef = f" coef={op.coef:g}" if op.act in DEFAULT_COEF else ""
    return (" bias=1" if op.bias else "") + (f" act={op.act}{coef}" if op.act != "identity" else "")


def take_epilogue(kind: str, fields: Fields) -> dict[str, Any]:
    """Remove bias, act and coef from the fields of a descriptor."""
    act = take_word(kind, fields, "act", ACTIVATIONS, "identity")
    text = fields.pop("coef", None)
    try:
        coef = float(text) if text is not None else DEFAULT_COEF.get(act, 0.0)
    except ValueError:
        raise ShapeError(f"descriptor: {kind}: coef= expected a number, got {text!r}") from None
    return {"bias": bool(take_int(kind, fields, "bias", 0)), "act": act, "coef": coef}


def show_common(op: Any) -> str:
    """` groups=2 dtype=f32 layout=channels_last` of any op."""
    groups = f" groups={op.groups}" if op.groups != 1 else ""
    layout = f" layout={op.layout}" if op.layout != "channels_first" else ""
    return f"{groups} dtype={op.dtype}{layout}"


def take_common(kind: str, fields: Fields) -> dict[str, Any]:
    """Remove groups, dtype and layout from the fields of a descriptor."""
    return {
        "groups": take_int(kind, fields, "groups", 1),
        "dtype": take_word(kind, fields, "dtype", DTYPES, "f32"),
        "layout": take_word(kind, fields, "layout", LAYOUTS, "channels_first"),
    }


@register("pointwise")
def _parse(kind: str, fields: Fields) -> Op:
    rank = rank_of(kind, fields)
    n, k = take_int(kind, fields, "n"), take_int(kind, fields, "k")
    extent = take_extents(kind, fields, IN[rank])
    return Pointwise(n, k, extent, **take_epilogue(kind, fields), **take_common(kind, fields))

"""Element by element: scaling, adding with broadcasting, bias and activation; and the activation's gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc.cache import cached_property
from ooc.errors import ArgumentError
from ooc.ir.op import Block, Operand, compute_dtype, crop, numpy_dtype
from ooc.ir.region import Sizes, Tile
from ooc.ops.activation import activate, pull_back
from ooc.ops.registry import register
from ooc.ops.spatial import Elementwise


@register("pointwise")
@dataclass(frozen=True)
class Pointwise(Elementwise):
    """y = act(alpha * x + beta * z + b) on n x k x spatial tensors; b is one value per channel.

    add: the axes along which z is full, as letters (`nkhw`, `k`; `1` for a single value), empty for no z; its other axes
    have extent 1 and are repeated. of: the same for x, empty for a full x. Sources: cudnnActivationForward,
    cudnnAddTensor, cudnnScaleTensor. Descriptor: `pointwise n= k= [[d=] h=] w= [bias=1] [act=] [coef=] [alpha=] [beta=]
    [add=] [of=]`.
    """

    n: int
    k: int
    extent: tuple[int, ...]
    bias: bool = False
    act: str = "identity"
    coef: float = 0.0
    alpha: float = 1.0
    beta: float = 1.0
    add: str = ""
    of: str = ""
    groups: int = 1
    dtype: str = "f32"
    layout: str = "channels_first"

    kind = "pointwise"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_letters(add=self.add, of=self.of)

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        operands = [self.partial("x", self.of) if self.of else self.tensor("x")]
        if self.add:
            operands.append(self.partial("z", self.add))
        if self.bias:
            operands.append(self.per_channel("b", compute_dtype(self.dtype)))
        return tuple(operands)

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("y"),)

    def flops(self, sizes: Sizes) -> Any:
        return self.outputs[0].count(sizes) * (1 + self.bias + bool(self.add))

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        compute = numpy_dtype(compute_dtype(self.dtype))
        parts = {o.name: crop(blocks[o.name], o.region(tile)).array.astype(compute) for o in self.inputs}
        z = parts["x"] * compute.type(self.alpha) if self.alpha != 1 else parts["x"]
        if self.add and self.beta:
            z = z + parts["z"] * compute.type(self.beta)
        if self.bias:
            z = z + parts["b"].reshape(-1, *(1,) * self.rank)
        blocks["y"].array[...] = activate(self.act, self.coef, z)


@register("activation_backward")
@dataclass(frozen=True)
class ActivationBackward(Elementwise):
    """dx = dy * act'(x), from the activation's output y; n x k x spatial.

    Source: cudnnActivationBackward (which takes x too, and needs it for none of these). Descriptor:
    `activation_backward n= k= [[d=] h=] w= act= [coef=]`.
    """

    n: int
    k: int
    extent: tuple[int, ...]
    act: str = "identity"
    coef: float = 0.0
    groups: int = 1
    dtype: str = "f32"
    layout: str = "channels_first"

    kind = "activation_backward"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.act in ("elu", "leaky_relu") and not self.coef >= 0:
            raise ArgumentError(
                f"{self.kind}: {self.act} with coef={self.coef:g} cannot be inverted from its output; expected >= 0"
            )
        if self.act == "clipped_relu":  # what y holds at the ceiling may have been rounded to below it
            with np.errstate(over="ignore"):
                stored = float(np.asarray(self.coef).astype(numpy_dtype(self.dtype)))
            object.__setattr__(self, "coef", min(self.coef, stored))

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("y"), self.tensor("dy"))

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("dx"),)

    def flops(self, sizes: Sizes) -> Any:
        return 2 * self.outputs[0].count(sizes)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        compute = numpy_dtype(compute_dtype(self.dtype))
        y, dy = (crop(blocks[o.name], o.region(tile)).array.astype(compute) for o in self.inputs)
        with np.errstate(invalid="ignore", over="ignore"):
            blocks["dx"].array[...] = pull_back(self.act, self.coef, y, dy)

"""Products element by element, with broadcasting: scaling by what another op makes, gates, masks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ooc.cache import cached_property
from ooc.ir.op import Block, Operand, compute_dtype, crop, numpy_dtype
from ooc.ir.region import Sizes, Tile
from ooc.ops.activation import activate
from ooc.ops.registry import register
from ooc.ops.spatial import Elementwise


@register("multiply")
@dataclass(frozen=True)
class Multiply(Elementwise):
    """y = act(x * z + b) on n x k x spatial tensors; b is one value per channel. y may be x, or z where that is full.

    by: the axes along which z is full, as letters (`nk`; `1` for a single value), empty for a full z; its other axes have
    extent 1 and are repeated. Source: cudnnOpTensor (CUDNN_OP_TENSOR_MUL).
    Descriptor: `multiply n= k= [[d=] h=] w= [by=] [bias=1] [act=] [coef=]`.
    """

    n: int
    k: int
    extent: tuple[int, ...]
    by: str = ""
    bias: bool = False
    act: str = "identity"
    coef: float = 0.0
    dtype: str = "f32"
    layout: str = "channels_first"

    kind = "multiply"
    groups = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_letters(by=self.by)

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        operands = (self.tensor("x"), self.partial("z", self.by) if self.by else self.tensor("z"))
        return (*operands, self.per_channel("b", compute_dtype(self.dtype))) if self.bias else operands

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("y"),)

    def flops(self, sizes: Sizes) -> Any:
        return self.outputs[0].count(sizes) * (1 + self.bias)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        compute = numpy_dtype(compute_dtype(self.dtype))
        x, z, *b = (crop(blocks[o.name], o.region(tile)).array.astype(compute, copy=False) for o in self.inputs)
        y = x * z
        for each in b:
            y += each.reshape(-1, *(1,) * self.rank)
        blocks["y"].array[...] = activate(self.act, self.coef, y)

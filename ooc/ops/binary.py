"""Functions of two values, element by element, with broadcasting: quotients, extremes, powers, comparisons, choices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc.cache import cached_property
from ooc.ir.op import Block, Operand, compute_dtype, crop, numpy_dtype
from ooc.ir.region import Sizes, Tile
from ooc.ops.registry import register
from ooc.ops.spatial import Elementwise

# Of x and z; order = codes in kernels/functions.cpp and kernels/device/functions.cu. NaN of either passes through the first four.
BINARIES: dict[str, Callable[[Any, Any], Any]] = {
    "divide": lambda x, z: x / z,
    "power": np.power,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "greater": lambda x, z: (x > z).astype(x.dtype),
    "not_less": lambda x, z: (x >= z).astype(x.dtype),
    "equal": lambda x, z: (x == z).astype(x.dtype),
    "where": lambda x, z: np.where(z != 0, x, 0),
    "unless": lambda x, z: np.where(z != 0, 0, x),
}


@register(*(f"binary.{how}" for how in BINARIES))
@dataclass(frozen=True)
class Binary(Elementwise):
    """y = f(x, z) on n x k x spatial tensors; y may be x, or z where that is full.

    how: divide, power (x ** z), maximum, minimum, greater, not_less, equal (1 where it holds, else 0), where (x where z is not 0,
    else 0), unless (x where z is 0, else 0). by: the axes along which z is full, as letters (`nk`; `1` for a single value),
    empty for a full z; its other axes have extent 1 and are repeated. Sources: cudnnOpTensor (CUDNN_OP_TENSOR_MAX, _MIN); ONNX.
    Descriptor: `binary.divide n= k= [[d=] h=] w= [by=]`.
    """

    how: str
    n: int
    k: int
    extent: tuple[int, ...]
    by: str = ""
    groups: int = 1
    dtype: str = "f32"
    layout: str = "channels_first"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_letters(by=self.by)

    @property
    def kind(self) -> str:  # type: ignore[override]
        return f"binary.{self.how}"

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("x"), self.partial("z", self.by) if self.by else self.tensor("z"))

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("y"),)

    def flops(self, sizes: Sizes) -> Any:
        return self.outputs[0].count(sizes)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        compute = numpy_dtype(compute_dtype(self.dtype))
        x, z = (crop(blocks[o.name], o.region(tile)).array.astype(compute, copy=False) for o in self.inputs)
        with np.errstate(all="ignore"):
            blocks["y"].array[...] = BINARIES[self.how](x, z)

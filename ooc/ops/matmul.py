"""Products of matrices, one for each sample and head, both computed by the network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ooc.cache import cached_property
from ooc.errors import ShapeError
from ooc.ir.op import Block, Operand, compute_dtype, crop, numpy_dtype
from ooc.ir.region import Along, AxisMap, Sizes, Tile
from ooc.ops.reduce import in_runs
from ooc.ops.registry import register
from ooc.ops.spatial import Elementwise, check_positive

RUN = 1024  # terms of a long sum that are summed apart, then added: one chain of millions of terms loses digits
HOWS = ("nn", "nt", "tn")  # whether a and b are transposed: a b, a b^T, a^T b


@register(*(f"matmul.{how}" for how in HOWS))
@dataclass(frozen=True)
class MatMul(Elementwise):
    """y = alpha * a b (nn), a b^T (nt) or a^T b (tn); y is n x k x rows x columns, k the heads, c what is summed.

    a is n x k x rows x c (tn: c x rows), b is n x k x c x columns (nt: columns x c). Summed in the compute type, along c in its
    order; sums of more than RUN terms by runs of so many, which are added in their order. Sources: cublasGemmStridedBatchedEx;
    torch.matmul; ONNX MatMul. Descriptor: `matmul.nn n= k= h= w= c= [alpha=]`.
    """

    how: str
    n: int
    k: int
    extent: tuple[int, ...]
    c: int
    alpha: float = 1.0
    groups: int = 1
    dtype: str = "f32"
    layout: str = "channels_first"

    reduce = ("c",)
    ordered = ("c",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self.kind, c=self.c)
        if self.rank != 2:
            raise ShapeError(f"{self.kind}: expected rows and columns, h= and w=, got {self.rank} axes")

    @property
    def kind(self) -> str:  # type: ignore[override]
        return f"matmul.{self.how}"

    @property
    def run(self) -> int:
        """Terms that are summed before they are added to the others; 0: the sum is one chain."""
        return RUN if self.c > RUN else 0

    @property
    def ordered_steps(self) -> dict[str, int]:  # type: ignore[override]
        return {"c": RUN} if self.run else {}

    @cached_property
    def dims(self) -> dict[str, int]:  # type: ignore[override]
        return {**super().dims, "c": self.c}

    def matrices(self, name: str, turned: bool, along: str, count: int) -> Operand:
        """A factor, whose rows are the result's or whose columns are; turned: its axes lie the other way round."""
        axes: list[tuple[AxisMap, int]] = [(Along(along), count), (Along("c"), self.c)]
        if turned:
            axes.reverse()
        shape, maps = (self.n, self.k, *(e for _, e in axes)), (*self.axes[:2], *(m for m, _ in axes))
        return Operand(name, shape, self.dtype, maps, self.memory_order)

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        rows, columns = self.extent
        return (self.matrices("a", self.how == "tn", "p", rows), self.matrices("b", self.how != "nt", "q", columns))

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("y"),)

    @cached_property
    def state(self) -> tuple[Operand, ...]:  # type: ignore[override]
        y, compute = self.outputs[0], compute_dtype(self.dtype)
        return (y if compute == self.dtype else Operand("acc", y.shape, compute, y.axes, y.order),)

    def flops(self, sizes: Sizes) -> Any:
        return 2 * self.outputs[0].count(sizes) * sizes["c"]

    def factors(self, tile: Tile, blocks: Mapping[str, Block]) -> tuple[Any, Any]:
        """What a tile reads of both, as rows x c and c x columns."""
        a, b = (crop(blocks[o.name], o.region(tile)).array for o in self.inputs)
        return (a.swapaxes(2, 3) if self.how == "tn" else a), (b.swapaxes(2, 3) if self.how == "nt" else b)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        compute = numpy_dtype(compute_dtype(self.dtype))
        a, b = (factor.astype(compute, copy=False) for factor in self.factors(tile, blocks))
        acc = blocks.get(self.state[0].name)
        terms = a[:, :, :, :, None] * b[:, :, None]
        before = None if first or acc is None else acc.array[:, :, :, None].astype(compute, copy=False)
        total = in_runs(terms, before, 3, self.run, tile["c"].lo)[:, :, :, 0]
        if not last and acc is not None:
            acc.array[...] = total
        else:
            blocks["y"].array[...] = total * compute.type(self.alpha)

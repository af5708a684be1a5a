"""Products of matrices and attention by cuBLAS: the scores of a tile's queries and keys are in the workspace.

They lie keys by queries, so that neighbouring threads, one for each query, read neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ooc import ops
from ooc.backends.base import Kernel
from ooc.backends.cuda.arguments import Arguments
from ooc.backends.cuda.blas import multiply, products
from ooc.backends.cuda.kernels import BLANK, own_kernel
from ooc.backends.cuda.recipes import heads_of_biases
from ooc.backends.families import Family
from ooc.backends.gpu_workspace import SLOPED, products_bytes, why_not_products
from ooc.backends.views import Pieces, dense
from ooc.errors import UnsupportedError
from ooc.ir.op import ITEM_BYTES, Block, Op, aligned, compute_dtype, crop, numpy_dtype
from ooc.ir.region import Sizes, Span, Tile

DENSE = (0, 1, 2, 3)
SCALED = ("q", "k")
# Slots of kernels/device/attention.cu beside the scores.
BASE, TOTAL, BIAS, SLOPES, DOTS = range(1, 6)
FACTOR, RESULT, MASK = 7, 8, 9


class Added(NamedTuple):
    """What is added to the scores of a tile.

    Fields:
        slots: the biases, keys by queries, by their slots.
        heads: how those of either bias follow from the scores', see heads_of_biases.
    """

    slots: dict[int, Any]
    heads: tuple[int, int, int, int]


class BlasProduct:
    """y = alpha * a b, of tiles whose sums may be split."""

    def __init__(self, op: Any, backend: Any, tf32: bool) -> None:
        self.op, self.backend, self.tf32, self.fallback = op, backend, tf32, own_kernel(op, backend)

    def __call__(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        try:
            self.compute(tile, blocks, first, last)
        except UnsupportedError:  # of the layout of an operand, before anything is done
            self.fallback(tile, blocks, first, last)

    def compute(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        """Raises UnsupportedError where cuBLAS does not take the operands as they lie."""
        a, b = self.op.factors(tile, blocks)
        self.add(a, b, tile, blocks, self.op.alpha, first, last)

    def add(
        self, a: Any, b: Any, tile: Tile, blocks: Mapping[str, Block], alpha: float, first: bool, last: bool
    ) -> None:  # fmt: skip
        """Add a product to the sum; the last one times alpha is the result."""
        y, total = self.result(tile, blocks)
        factor = alpha if last else 1.0
        multiply(self.backend.blas, total, a, b, factor, 0.0 if first else factor, self.tf32)
        if last and total is not y:
            self.backend.convert(y, total)

    def result(self, tile: Tile, blocks: Mapping[str, Block]) -> tuple[Any, Any]:
        """The result, None in a tile that does not end it, and what is summed: that, or the partial sum."""
        result, acc = self.op.outputs[0], self.op.state[-1]
        y = crop(blocks[result.name], result.region(tile)).array if result.name in blocks else None
        apart = acc.name in blocks and acc.name != result.name
        return y, crop(blocks[acc.name], acc.region(tile)).array if apart else y


class BlasAttention(BlasProduct):
    """A part of attention but the dots: scores by a product, their weights or slopes, and another product."""

    def __init__(self, op: ops.Attention, workspace: Any, backend: Any, tf32: bool) -> None:
        super().__init__(op, backend, tf32)
        self.workspace = workspace

    def compute(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        op, how = self.op, self.op.how
        x = {o.name: crop(blocks[o.name], o.region(tile)).array for o in op.inputs}
        pieces, shape = Pieces(self.workspace), (*x["q"].shape[:2], x["k"].shape[2], x["q"].shape[2])
        if not math.prod(shape):
            raise UnsupportedError("cuBLAS: a tile without scores")
        scores = self._matrix(pieces, shape, compute_dtype(op.dtype))
        multiply(self.backend.blas, scores, x["k"], x["q"].swapaxes(2, 3), op.scale, 0.0, self.tf32)
        biases = {slot: x[name].swapaxes(2, 3) for name, slot in (("bias", BIAS), ("mask", MASK)) if name in x}
        added = Added(biases, heads_of_biases(op, tile["g"].extent if "g" in tile else 1, tile["k"].extent))
        if how == "forward":
            sums = op.outputs[1]
            x["sums"] = crop(blocks[sums.name], sums.region(tile)).array
            self._forward(pieces, x, scores, added, *self.result(tile, blocks), first, last)
            return
        slopes = None
        if how in SLOPED:
            slopes = self._matrix(pieces, shape, compute_dtype(op.dtype))
            multiply(self.backend.blas, slopes, x["v"], x["dy"].swapaxes(2, 3), 1.0, 0.0, self.tf32)
        if how == "scores":
            result = op.outputs[0]
            dx = crop(blocks[result.name], result.region(tile)).array
            self._weigh(x, scores, added, dx.swapaxes(2, 3), slopes)
            return
        weights = self._weights(pieces, scores)
        self._weigh(x, scores, added, weights, slopes)
        factor = x[{"q": "k", "k": "q", "v": "dy"}[how]]
        turned = weights.swapaxes(2, 3) if how == "q" else weights
        self.add(turned, factor, tile, blocks, op.scale if how in SCALED else 1.0, first, last)

    def _forward(
        self, pieces: Pieces, x: Mapping[str, Any], scores: Any, added: Added, y: Any, total: Any, first: bool, last: bool
    ) -> None:  # fmt: skip
        """Scores become exponentials, by which values are weighted; what was summed before is scaled to them."""
        factors = self._matrix(pieces, (*scores.shape[:2], 1, scores.shape[3]), "f64")
        weights = self._weights(pieces, scores)
        rounded = total.dtype != scores.dtype  # results of a half type have no room for undivided sums
        # What cuBLAS does not take is refused here, before the sums of the tiles before change.
        calls = products(total, weights.swapaxes(2, 3), x["v"], 1.0, 0.0 if first else 1.0, self.tf32)
        slots = {0: scores, FACTOR: factors, **_of_queries(x), **added.slots}
        self._launch("attention_rows", scores.size // scores.shape[2], slots, (0, 0, *added.heads), first)
        self._weigh(x, scores, added, weights, None, divided=rounded)
        if not first:
            self._scale(total, factors.swapaxes(2, 3), total)
        for call in calls:
            self.backend.blas.run(call)
        if last and not rounded:
            self._scale(total, x["sums"][..., 1:], y, divided=True)

    def _matrix(self, pieces: Pieces, shape: tuple[int, ...], dtype: str) -> Any:
        kind = numpy_dtype(dtype)
        memory = pieces.take(int(aligned(math.prod(shape) * kind.itemsize)))
        return dense(memory, 0, shape, kind, DENSE)

    def _weights(self, pieces: Pieces, scores: Any) -> Any:
        """Room for the weights: of a half type beside the scores, else where they are."""
        return self._matrix(pieces, scores.shape, self.op.dtype) if ITEM_BYTES[self.op.dtype] == 2 else scores

    def _weigh(
        self, x: Mapping[str, Any], scores: Any, added: Added, result: Any, slopes: Any, divided: bool = True
    ) -> None:  # fmt: skip
        """Weights of scores, or their slopes."""
        slots = {0: scores, RESULT: result, **_of_queries(x), **added.slots}
        if slopes is not None:
            slots |= {SLOPES: slopes, DOTS: x["dots"][..., 0][:, :, None]}
        self._launch("attention_weigh", scores.size, slots, (result.dtype != scores.dtype, divided, *added.heads))

    def _scale(self, x: Any, by: Any, y: Any, divided: bool = False) -> None:
        """y = x times, or divided by, a number for each query; 0 where it is divided by 0."""
        self._launch("attention_scale", x.size, {0: x, FACTOR: by, RESULT: y}, (y.dtype != x.dtype, divided))

    def _launch(
        self, name: str, threads: int, slots: Mapping[int, Any], numbers: Sequence[int], first: bool = True
    ) -> None:  # fmt: skip
        """A kernel of attention.cu. numbers: its `whole`."""
        args = Arguments(BLANK)
        args.phase(first, True)
        args.record["whole"][: len(numbers)] = numbers
        for slot, array in slots.items():
            lifted = array[:, :, None]
            args.fill(slot, lifted.shape, tuple(Span(0, e) for e in lifted.shape), lifted)
        self.backend.launch(name, self.op.dtype, threads, args.record, args.index)


def _of_queries(x: Mapping[str, Any]) -> dict[int, Any]:
    """The sums, a number for each query, by their slots."""
    return {slot: x["sums"][..., i][:, :, None] for i, slot in enumerate((BASE, TOTAL))}


def blas_family(tf32: bool) -> Family:
    """Products and attention by cuBLAS, with the factors of f32 rounded to TF32 or not."""

    def prepare(op: Op, sizes: Sizes, workspace: Any, backend: Any) -> Kernel:
        if isinstance(op, ops.Attention):
            return BlasAttention(op, workspace, backend, tf32)
        return BlasProduct(op, backend, tf32)

    return Family(why_not_products, lambda op, sizes, backend: products_bytes(op, sizes), prepare)

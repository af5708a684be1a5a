"""Attention: values weighted by the softmax of what their keys have in common with a query, and its gradients.

Nothing as large as the scores is made: the result is a fold over the keys, and so is each gradient. What is summed is
relative to the largest score so far, rounded up to a multiple of ln 2: where that grows, sums are scaled by a power of two,
which is exact, so that no bit depends on where keys are split. Sources: Vaswani et al., "Attention is all you need", NIPS
2017; Rabe, Staats, "Self-attention does not need O(n^2) memory", 2021; Dao et al., "FlashAttention", NeurIPS 2022.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc.cache import cached_property
from ooc.errors import ArgumentError, ShapeError
from ooc.ir.op import Block, Operand, compute_dtype, crop, numpy_dtype
from ooc.ir.region import Along, AxisMap, Sizes, Tile, Whole
from ooc.ops.reduce import in_chain
from ooc.ops.registry import register
from ooc.ops.spatial import Elementwise, check_positive

# Besides q and k what is read (dots: of these alone), what is made, and over which loop dims that is a sum. Order = codes in
# kernels/products/products.hpp.
PARTS: dict[str, tuple[str, str, str]] = {
    "forward": ("v", "y sums", "q"),
    "q": ("v dy sums dots", "dx", "q"),
    "k": ("v dy sums dots", "dx", "p"),
    "v": ("dy sums", "dx", "p"),
    "scores": ("v dy sums dots", "dx", ""),
    "dots": ("y dy", "dots", ""),
}
QUERIES, KEYS = "p", "q"  # loop dims
LN2 = math.log(2)
EVEN = 2.0**20  # scores below it are counted in powers of two; beyond it float32 has no digits left for these


@register(*(f"attention{'' if how == 'forward' else '_backward'}.{how}" for how in PARTS))
@dataclass(frozen=True)
class Attention(Elementwise):
    """A part of y = softmax(scale * q k^T + bias) v, or of its gradients, for n samples and k heads of h queries and w keys.

    how: `forward` (y, and of each query the sums: what its scores are relative to, which is the largest of them rounded up to
    a multiple of ln 2, and the sum of exponentials relative to that), `q`, `k`, `v` (their gradients dx), `scores` (the
    gradient of scale * q k^T + bias), `dots` (of each query the product of y and dy; w is 1).

    q is n x k x h x c, k n x k x w x c, v n x k x w x depth, y n x k x h x depth. by: the axes along which the bias is full,
    as letters (`khw`; `1` for a single value), its others are 1; empty: none. mask: the same of a second bias. groups: heads
    come in so many groups, windows say, one after the other; `g` are these, and `k` the heads of one, in the letters of
    biases then. A query that all keys are masked for (minus infinity) has y = 0. Sources:
    torch.nn.functional.scaled_dot_product_attention; cudnnMultiHeadAttnForward; biases of heads and masks of windows: Liu et
    al., "Swin Transformer", ICCV 2021. Descriptor: `attention.forward n= k= h= w= c= depth= [scale=] [by=] [mask=]
    [groups=]`.
    """

    how: str
    n: int
    k: int
    extent: tuple[int, ...]
    c: int
    depth: int
    scale: float = 1.0
    by: str = ""
    mask: str = ""
    groups: int = 1
    dtype: str = "f32"
    layout: str = "channels_first"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self.kind, c=self.c, depth=self.depth)
        if self.rank != 2:
            raise ShapeError(f"{self.kind}: expected queries and keys, h= and w=, got {self.rank} axes")
        if self.k % self.groups:
            raise ArgumentError(f"{self.kind}: groups: expected a divisor of {self.k} heads, got {self.groups}")
        known = "ngkhw" if self.groups > 1 else "nkhw"
        for name, letters in (("by", self.by), ("mask", self.mask)):
            if letters != "1" and not set(letters) <= set(known):
                raise ArgumentError(f"{self.kind}: {name}= takes letters of {known}, or 1; got {letters!r}")

    @property
    def kind(self) -> str:  # type: ignore[override]
        return f"attention{'' if self.how == 'forward' else '_backward'}.{self.how}"

    @property
    def reduce(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(PARTS[self.how][2])

    @property
    def ordered(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.reduce

    def operand(self, name: str) -> Operand:
        """One of the tensors, by its name."""
        if name == "dx" and self.how == "scores":
            return self.tensor(name)
        like = self.how if name == "dx" else name
        along = KEYS if like in ("k", "v") else QUERIES
        deep = {"q": self.c, "k": self.c, "sums": 2, "dots": 1}.get(like, self.depth)
        axes: tuple[AxisMap, ...] = (*self.axes[:2], Along(along), Whole(deep))
        dtype = "f64" if name in ("sums", "dots") else self.dtype
        return Operand(name, (self.n, self.k, self.dims[along], deep), dtype, axes, self.memory_order)

    @property
    def biases(self) -> dict[str, str]:
        """The letters of what is added to scores, by the operand's name."""
        return {name: letters for name, letters in (("bias", self.by), ("mask", self.mask)) if letters}

    def _added(self, name: str, letters: str) -> Operand:
        heads: tuple[int, AxisMap] = (1, Whole(1))
        if self.groups == 1 or {"g", "k"} <= set(letters):
            heads = (self.k, self.axes[1]) if "k" in letters else heads
        elif "k" in letters:
            heads = (self.k // self.groups, Along("k"))
        elif "g" in letters:
            heads = (self.groups, Along("g"))
        extents, axes = (self.n, *self.extent), (self.axes[0], *self.axes[2:])
        full = [(e, a) if letter in letters else (1, Whole(1)) for letter, e, a in zip("nhw", extents, axes, strict=True)]
        each: list[tuple[int, AxisMap]] = [full[0], heads, *full[1:]]
        return Operand(name, tuple(e for e, _ in each), self.dtype, tuple(a for _, a in each), self.memory_order)

    def by_groups(self, name: str, array: Any, tile: Tile) -> Any:
        """A block of a bias as n x groups x heads x queries x keys, with 1 where it is repeated."""
        letters, (n, _, h, w) = self.biases[name], array.shape
        groups = tile["g"].extent if "g" in tile and "g" in letters else 1
        return array.reshape(n, groups, tile["k"].extent if "k" in letters else 1, h, w)

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        bias = [self._added(name, letters) for name, letters in self.biases.items()]
        scored = () if self.how == "dots" else ("q", "k")
        return (*map(self.operand, (*scored, *PARTS[self.how][0].split())), *bias)

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return tuple(map(self.operand, PARTS[self.how][1].split()))

    @cached_property
    def state(self) -> tuple[Operand, ...]:  # type: ignore[override]
        y, compute = self.outputs[0], compute_dtype(self.dtype)
        if not self.reduce:
            return ()
        return (*self.outputs[1:], y if y.dtype in ("f64", compute) else Operand("acc", y.shape, compute, y.axes, y.order))

    def flops(self, sizes: Sizes) -> Any:
        products = {
            "dots": self.depth,
            "forward": self.c + self.depth,
            "v": self.c + self.depth,
            "scores": self.c + self.depth,
        }
        return 2 * self.tensor("dx").count(sizes) * products.get(self.how, 2 * self.c + self.depth)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        compute = numpy_dtype(compute_dtype(self.dtype))
        x = {o.name: crop(blocks[o.name], o.region(tile)).array for o in self.inputs}
        if self.how == "dots":
            y, dy = (crop(blocks[o.name], o.region(tile)).array.astype(np.float64) for o in self.inputs)
            blocks["dots"].array[...] = np.cumsum(y * dy, axis=3)[..., -1:]
            return
        x = {name: values if name in ("sums", "dots") else values.astype(compute, copy=False) for name, values in x.items()}
        scores = _products(x["q"], x["k"]) * compute.type(self.scale)
        for name in self.biases:
            apart = scores.reshape(len(scores), tile["g"].extent if "g" in tile else 1, -1, *scores.shape[2:])
            scores = (apart + self.by_groups(name, x[name], tile)).reshape(scores.shape)
        acc, y = blocks.get(self.state[-1].name) if self.state else None, blocks.get(self.outputs[0].name)
        before = None if first or acc is None else acc.array[:, :, :, None].astype(compute, copy=False)
        if self.how == "forward":
            weights, factor = _weights_so_far(scores, blocks["sums"].array, first)
            before = None if before is None else before * factor[..., None].astype(compute)
            divisor = blocks["sums"].array[..., 1:]
        else:
            weights, divisor = _weights(scores, x["sums"]), np.ones(())
        weights = weights.astype(compute)
        if self.how in ("q", "k", "scores"):
            weights = weights * (_products(x["dy"], x["v"]) - x["dots"].astype(compute))
        if self.how == "scores":
            blocks["dx"].array[...] = weights
            return
        beside = x[{"forward": "v", "q": "k", "k": "q", "v": "dy"}[self.how]]
        turned = weights if self.reduce == (KEYS,) else weights.swapaxes(2, 3)
        total = in_chain(turned[..., None] * beside[:, :, None], before, 3)[:, :, :, 0]
        if not last and acc is not None:
            acc.array[...] = total
        elif y is not None:
            y.array[...] = total * _share(divisor).astype(compute) * compute.type(self.scale if self.how in ("q", "k") else 1)


def _products(rows: Any, columns: Any) -> Any:
    """Of each row with each of the others, in turn along their depth."""
    return np.cumsum(rows[:, :, :, None] * columns[:, :, None], axis=-1)[..., -1]


def _base(top: Any) -> Any:
    """What scores are relative to where this is the largest of them."""
    with np.errstate(invalid="ignore"):
        return np.where(np.abs(top) < EVEN, np.ceil(top / LN2) * LN2, top)


def _exponentials(x: Any, base: Any) -> Any:
    """exp(x - base), which another base scales by a power of two exactly; of minus infinity 0."""
    even = (np.abs(x) < EVEN) & (np.abs(base) < EVEN)
    with np.errstate(invalid="ignore", over="ignore"):
        power = np.rint(np.where(even, x, 0.0) / LN2)
        fraction = np.exp(np.where(even, x, 0.0) - power * LN2)
        scaled = np.ldexp(fraction, (power - np.rint(np.where(even, base, 0.0) / LN2)).astype(np.int64))
        return np.where(x == -np.inf, 0.0, np.where(even, scaled, np.exp(x - base)))


def _weights_so_far(scores: Any, sums: Any, first: bool) -> tuple[Any, Any]:
    """Exponentials of scores, which are added to the sums, and what sums of before are scaled by."""
    x = scores.astype(np.float64)
    before = np.full_like(sums[..., :1], -np.inf) if first else sums[..., :1].copy()
    base = np.maximum(before, _base(x.max(axis=3, keepdims=True)))
    weights, factor = _exponentials(x, base), _exponentials(before, base)
    start = np.zeros_like(before) if first else sums[..., 1:] * factor
    sums[..., :1], sums[..., 1:] = base, np.cumsum(np.concatenate([start, weights], axis=3), axis=3)[..., -1:]
    return weights, factor


def _share(total: Any) -> Any:
    with np.errstate(divide="ignore"):
        return np.where(total == 0, 0.0, 1 / total)


def _weights(scores: Any, sums: Any) -> Any:
    base, total = sums[..., :1], sums[..., 1:]
    with np.errstate(invalid="ignore"):
        return _exponentials(scores.astype(np.float64), base) * _share(total)

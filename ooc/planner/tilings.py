"""Candidate tilings: coarse ladders over every dim, fine grids around a good one, and the loop orders worth trying."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ooc.ir.op import Op

MOST = 1024  # tilings costed at once

Grid = dict[str, np.ndarray[Any, Any]]  # loop dim -> tile size of every candidate


def ladder(op: Op) -> Grid:
    """A coarse grid over all tile sizes, from 1 to the whole extent on every dim."""
    free = [d for d, e in op.dims.items() if e > 1 and d not in op.whole]
    per_dim = max(2, int(MOST ** (1 / max(1, len(free)))))
    return _grid(op, {d: _steps(op, d, per_dim + (d == tall(op))) for d in free})


def tall(op: Op) -> str:
    """The outermost spatial dim: the one most worth cutting finely."""
    return next((d for d in ("o", "p", "q") if op.dims.get(d, 1) > 1), "")


def _steps(op: Op, dim: str, most: int) -> list[int]:
    """At most `most` tile sizes for a dim, from whole to 1, in equal ratios."""
    extent = op.dims[dim]
    ratio = extent ** (1 / max(1, most - 1))
    sizes = {math.ceil(extent / ratio**i) for i in range(most)} | {1, extent}
    return sorted({_rounded(op, dim, s) for s in sizes})


def _rounded(op: Op, dim: str, size: int) -> int:
    """The size that cuts as often but evenly; channels and groups in whole vectors and, where there are many channels, in
    kernels' blocks, or steps of their sums."""
    extent, step = op.dims[dim], op.ordered_steps.get(dim, 0)
    even = -(-extent // -(-extent // size))
    grain = 1 if dim not in ("g", "k", "c") or even < (12 if dim == "g" else 24) else 16 if even <= 96 or dim == "g" else 64
    grain = step if step and even >= step // 2 else grain
    return min(extent, -(-even // grain) * grain)


def around(op: Op, best: Mapping[str, int]) -> Grid:
    """A fine grid around a tiling."""
    free = [d for d, e in op.dims.items() if e > 1 and d not in op.whole]
    ratios = (0.5, 0.75, 1, 1.5, 2) if 5 ** len(free) <= MOST else (0.5, 1, 2)
    choices = {}
    for d in free:
        near = {min(op.dims[d], max(1, round(best[d] * r))) for r in ratios}
        choices[d] = sorted({_rounded(op, d, s) for s in near} | {best[d]})
    while math.prod(map(len, choices.values())) > 2 * MOST:
        longest = max(choices, key=lambda d: len(choices[d]))
        choices[longest] = [*choices[longest][::2], best[longest]]
    return _grid(op, choices)


def _grid(op: Op, choices: dict[str, list[int]]) -> Grid:
    axes = np.meshgrid(*[np.array(v, np.int64) for v in choices.values()], indexing="ij")
    count = math.prod(len(v) for v in choices.values())
    sizes = {d: np.full(count, e, np.int64) for d, e in op.dims.items()}
    sizes |= {d: a.ravel() for d, a in zip(choices, axes, strict=True)}
    if "g" in sizes:
        # Several groups at once need all their channels: the same rule as Op.legal, for arrays.
        legal = np.ones(count, bool)
        for d in ("k", "c"):
            if d in sizes:
                legal &= (sizes["g"] == 1) | (sizes[d] == op.dims[d])
        sizes = {d: v[legal] for d, v in sizes.items()}
    return sizes


def in_order(op: Op, sizes: Grid) -> Any:
    """Which tilings keep the order of every sum: only dims that may be split are, at multiples of their steps, and one only when
    those before it advance one by one."""
    allowed: Any = True
    for reduce, ordered in op.ordered_folds:
        for d in reduce:
            stepwise: Any = sizes[d] % op.ordered_steps.get(d, 1) == 0 if d in ordered else False
            for before in ordered[: ordered.index(d)] if d in ordered else ():
                stepwise = stepwise & (sizes[before] == 1)
            allowed = allowed & ((sizes[d] >= op.dims[d]) | stepwise)
    return allowed


def orders(op: Op) -> list[tuple[str, ...]]:
    """Loop orders that differ in what they reuse: every nesting of positions, output channels and the reduction."""
    blocks = (
        tuple(d for d in op.dims if d not in ("g", "k", "c", "r")),
        tuple(d for d in op.dims if d in ("g", "k")),
        tuple(d for d in op.dims if d in ("c", "r")),
    )
    present = [b for b in blocks if b]
    return [tuple(itertools.chain(*nest)) for nest in itertools.permutations(present)]

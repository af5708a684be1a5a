"""Sampling at positions that a network computes, and the positions of affine maps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ooc.api.arguments import PerAxis, as_int
from ooc.errors import ArgumentError, shown
from ooc.networks import layers
from ooc.translate.binary import as_tensor
from ooc.translate.building import Building, GraphTensor, Operand, Shape
from ooc.translate.products import linear
from ooc.translate.views import permuted, reshaped


def as_displacement(value: PerAxis | None) -> Shape:
    """What a user declares: one number, or one per spatial axis; (): nothing. Raises ArgumentError."""
    if value is None:
        return ()
    values = tuple(as_int("displacement", v) for v in (value if isinstance(value, Sequence) else [value]))
    if not 1 <= len(values) <= 3 or min(values) < 0:
        raise ArgumentError(f"displacement: expected a number of pixels, or one for each spatial axis; got {shown(value)}")
    return values


def grid_sample(b: Building, x: Operand, grid: Operand, how: str, padding: str, aligned: bool) -> GraphTensor:
    """Values of x at positions, which are the last axis of the grid; one of both is a tensor."""
    like = x if isinstance(x, GraphTensor) else grid
    assert isinstance(like, GraphTensor)
    values, positions = as_tensor(b, x, like), as_tensor(b, grid, like)
    rank = len(values.shape) - 2
    turned = permuted(b, positions, (0, rank + 1, *range(1, rank + 1)), last=False)
    reach = b.site.displacement
    layer = layers.GridSampleLayer(how, padding, aligned, reach * rank if len(reach) == 1 else reach)
    return b.add((values, turned), layer)


def affine_grid(b: Building, theta: GraphTensor, size: Shape, aligned: bool) -> GraphTensor:
    """Where an even grid of a size comes to lie by the matrix of each sample, rank x (rank + 1)."""
    axes = [even(extent, aligned) for extent in size]
    places = [*np.meshgrid(*axes, indexing="ij")[::-1], np.ones(size)]  # the last axis first
    base = np.stack([p.ravel() for p in places], axis=1)
    y = linear(b, theta, b.site.array(base), None, last=False)
    rank = len(size)
    return permuted(b, reshaped(b, y, (theta.shape[0], rank, *size), last=False), (0, *range(2, rank + 2), 1))


def even(extent: int, aligned: bool) -> np.ndarray:
    """Positions of an even grid along an axis; of one alone that of the middle."""
    i = np.arange(extent)
    if not aligned:
        return (2 * i + 1) / extent - 1
    return 2 * i / (extent - 1) - 1 if extent > 1 else np.zeros(1)

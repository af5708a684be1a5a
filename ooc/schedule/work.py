"""What a step has to do, as the model is asked about it: a stage of a tile to compute, a region to copy."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from ooc.ir.op import Op


def stage_keys(op: Op, kernels: Iterable[str]) -> tuple[str, ...]:
    """What the model is asked about each stage of an op, each computed by one of these kernels."""
    return tuple(f"{stage.kind}/{stage.dtype}/{kernel}" for stage, kernel in zip(op.stages, kernels, strict=True))


class Work(NamedTuple):
    """What one stage of a tile computes. key: kind/dtype/kernel; effort: floating-point operations; nbytes: walked through;
    width: output channels, inf where they do not matter."""

    key: str
    effort: float
    nbytes: int
    width: float = math.inf


class Moved(NamedTuple):
    """What a copy moves over a lane: bytes in contiguous pieces."""

    lane: str
    nbytes: float
    pieces: float

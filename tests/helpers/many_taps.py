"""Convolutions of many taps, and how far results of rounded transforms are from exact ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ooc.ir.op import Op, numpy_dtype
from ooc.ops.descriptor import parse

LONG = (  # lines whose segments are folded into planes
    "n=2 c=1 w=9000 k=1 s=2001 pad=800 bias=1 act=relu",
    "n=1 c=3 w=4500 k=2 s=1025 dilation=2 pad=90",
    "n=1 c=3 w=6000 k=3 s=900 groups=3 layout=channels_last",
    "n=1 c=2 h=5000 w=2 k=2 r=1203 s=1 pad=600x0 groups=2",
)
SHAPES = (
    "n=2 c=3 h=40 w=53 k=4 r=11 s=13 pad=3",
    "n=1 c=1 w=700 k=1 s=129 pad=20",
    "n=2 c=4 w=900 k=6 s=131 groups=2 dilation=2",
    "n=1 c=5 h=64 w=70 k=5 r=31 s=31 pad=15 groups=5",
    "n=1 c=2 h=190 w=12 k=3 r=141 s=1",
    "n=1 c=3 d=12 h=14 w=15 k=2 t=5 r=5 s=6 pad=2",
    "n=1 c=2 d=70 h=9 w=5 k=2 t=45 r=1 s=3 pad=1",
    "n=3 c=2 h=20 w=200 k=2 r=3 s=101 pad=0:2x50:3 bias=1 act=leaky_relu coef=0.5",
    "n=1 c=4 h=33 w=32 k=4 r=13 s=11 pad=2 layout=channels_last bias=1 act=relu",
    *LONG,
)
PASSES = ("fprop", "dgrad", "wgrad")


def op_of(which: str, shape: str, dtype: str) -> Op:
    """A pass of a convolution; gradients of filters have no bias and no activation."""
    if which == "wgrad":
        shape = " ".join(word for word in shape.split() if word.split("=")[0] not in ("bias", "act", "coef"))
    return parse(f"conv.{which} {shape} dtype={dtype}")


def numbers(op: Op, seed: int = 0) -> dict[str, Any]:
    """Inputs."""
    rng = np.random.default_rng(seed)
    return {o.name: rng.standard_normal(o.shape).astype(numpy_dtype(o.dtype)) for o in op.inputs}


def widened(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The same in f64."""
    return {name: array.astype(np.float64) for name, array in arrays.items()}


def apart(result: Any, exact: Any) -> float:
    """The largest difference, over the largest number."""
    return float(np.abs(result.astype(np.float64) - exact).max() / np.abs(exact).max())

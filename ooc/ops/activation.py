"""Activations and their slopes, on arrays: the meaning of every epilogue."""

from __future__ import annotations

from typing import Any

import numpy as np

# Order = codes in kernels/common.hpp.
ACTIVATIONS = ("identity", "relu", "clipped_relu", "elu", "leaky_relu", "sigmoid", "tanh")
DEFAULT_COEF = {"clipped_relu": 6.0, "elu": 1.0, "leaky_relu": 0.01}


def activate(act: str, coef: float, z: Any) -> Any:
    """The activation of an array. NaN passes through, and a zero keeps its sign.

    coef: ceiling of clipped_relu, alpha of elu, negative slope of leaky_relu (cuDNN's `coef`).
    """
    if act == "relu":
        return np.where(z < 0, 0, z)
    if act == "clipped_relu":
        return np.minimum(np.where(z < 0, 0, z), z.dtype.type(coef))
    if act == "elu":
        return np.where(z < 0, z.dtype.type(coef) * np.expm1(np.minimum(z, 0)), z)
    if act == "leaky_relu":
        return np.where(z > 0, z, z.dtype.type(coef) * z)
    if act == "sigmoid":
        e = np.exp(-np.abs(z))
        return np.where(z >= 0, 1 / (1 + e), e / (1 + e))
    return np.tanh(z) if act == "tanh" else z


def pull_back(act: str, coef: float, y: Any, dy: Any) -> Any:
    """The gradient of an activation's input, from its output y and the output's gradient dy.

    At a kink the slope is the one on the left (relu at 0: 0), as in cuDNN. Where a unit is shut its gradient is 0
    whatever arrives, NaN and infinity included; a unit that holds NaN is not shut.
    """
    if act == "relu":
        return np.where(y <= 0, 0, dy)
    if act == "clipped_relu":
        return np.where((y <= 0) | (y >= y.dtype.type(coef)), 0, dy)
    if act == "elu":
        return np.where(y <= 0, dy * (y + y.dtype.type(coef)), dy)
    if act == "leaky_relu":
        return np.where(y > 0, dy, y.dtype.type(coef) * dy)
    if act == "sigmoid":
        return dy * (y * (1 - y))
    # Of 1 - y * y little is left where |y| is almost 1.
    return dy * ((1 - y) * (1 + y)) if act == "tanh" else dy

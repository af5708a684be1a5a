"""Functions of one value, element by element, that no epilogue has, and their slopes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc.cache import cached_property
from ooc.ir.op import Block, Operand, compute_dtype, crop, numpy_dtype
from ooc.ir.region import Sizes, Tile
from ooc.ops.registry import register
from ooc.ops.spatial import Elementwise

ROOT2, ROOT2PI = math.sqrt(2.0), math.sqrt(2 / math.pi)
_erf = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: Any) -> Any:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def _gelu_tanh_slope(x: Any) -> Any:
    t = np.tanh(ROOT2PI * (x + 0.044715 * x**3))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * ROOT2PI * (1 + 3 * 0.044715 * x * x)


# Of x and two numbers; order = codes in kernels/functions.cpp and kernels/device/functions.cu. NaN passes through all but zero.
FUNCTIONS: dict[str, Callable[[Any, float, float], Any]] = {
    "clip": lambda x, a, b: np.where(x < a, a, np.where(x > b, b, x)),
    "hard_sigmoid": lambda x, a, b: np.where(a * x + b < 0, 0, np.where(a * x + b > 1, 1, a * x + b)),
    "hard_swish": lambda x, a, b: x * np.where(x / 6 + 0.5 < 0, 0, np.where(x / 6 + 0.5 > 1, 1, x / 6 + 0.5)),
    "silu": lambda x, a, b: x * _sigmoid(x),
    "gelu": lambda x, a, b: 0.5 * x * (1 + _erf(x / ROOT2)),
    "gelu_tanh": lambda x, a, b: 0.5 * x * (1 + np.tanh(ROOT2PI * (x + 0.044715 * x**3))),
    "erf": lambda x, a, b: _erf(x),
    "reciprocal": lambda x, a, b: 1 / x,
    "softplus": lambda x, a, b: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),
    "above": lambda x, a, b: np.where(x > a, 1, np.where(x == x, 0, x)),
    # The derivatives of those that have one, at x; as PyTorch has them where there is a corner.
    "clip_slope": lambda x, a, b: np.where((x <= a) | (x >= b), 0, 1),
    "hard_sigmoid_slope": lambda x, a, b: np.where((a * x + b <= 0) | (a * x + b >= 1), 0, a),
    "hard_swish_slope": lambda x, a, b: np.where(x < -3, 0, np.where(x > 3, 1, x / 3 + 0.5)),
    "silu_slope": lambda x, a, b: _sigmoid(x) + x * (_sigmoid(x) - _sigmoid(x) ** 2),
    "gelu_slope": lambda x, a, b: 0.5 * (1 + _erf(x / ROOT2)) + x * np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi),
    "gelu_tanh_slope": lambda x, a, b: _gelu_tanh_slope(x),
    "erf_slope": lambda x, a, b: 2 / math.sqrt(math.pi) * np.exp(-x * x),
    "softplus_slope": lambda x, a, b: _sigmoid(x),
    "abs": lambda x, a, b: np.abs(x),
    "sign": lambda x, a, b: np.sign(x),
    "floor": lambda x, a, b: np.floor(x),
    "ceil": lambda x, a, b: np.ceil(x),
    "round": lambda x, a, b: np.rint(x),
    "zero": lambda x, a, b: np.zeros_like(x),
    "sqrt": lambda x, a, b: np.sqrt(x),
    "rsqrt": lambda x, a, b: 1 / np.sqrt(x),
    "softsign": lambda x, a, b: x / (1 + np.abs(x)),
    "soft_shrink": lambda x, a, b: np.where(x > a, x - a, np.where(x < -a, x + a, 0 * x)),
    "hard_shrink": lambda x, a, b: np.where((x >= -a) & (x <= a), 0, x),
    "exp": lambda x, a, b: np.exp(x),
    "log": lambda x, a, b: np.log(x),
    "pow": lambda x, a, b: np.power(x, a),
    "celu": lambda x, a, b: np.where(x > 0, x, a * np.expm1(np.minimum(x, 0) / a)),
    "sin": lambda x, a, b: np.sin(x),
    "cos": lambda x, a, b: np.cos(x),
    "tan": lambda x, a, b: np.tan(x),
    "asin": lambda x, a, b: np.arcsin(x),
    "acos": lambda x, a, b: np.arccos(x),
    "atan": lambda x, a, b: np.arctan(x),
    "sinh": lambda x, a, b: np.sinh(x),
    "cosh": lambda x, a, b: np.cosh(x),
    "asinh": lambda x, a, b: np.arcsinh(x),
    "acosh": lambda x, a, b: np.arccosh(x),
    "atanh": lambda x, a, b: np.arctanh(x),
    "reciprocal_slope": lambda x, a, b: -1 / (x * x),
    "sqrt_slope": lambda x, a, b: 0.5 / np.sqrt(x),
    "rsqrt_slope": lambda x, a, b: -0.5 / (x * np.sqrt(x)),
    "softsign_slope": lambda x, a, b: 1 / ((1 + np.abs(x)) * (1 + np.abs(x))),
    "hard_shrink_slope": lambda x, a, b: np.where((x >= -a) & (x <= a), 0, 1),
    "pow_slope": lambda x, a, b: a * np.power(x, a - 1),
    "celu_slope": lambda x, a, b: np.where(x > 0, 1, np.exp(np.minimum(x, 0) / a)),
    "cos_slope": lambda x, a, b: -np.sin(x),
    "tan_slope": lambda x, a, b: 1 / (np.cos(x) * np.cos(x)),
    "asin_slope": lambda x, a, b: 1 / np.sqrt(1 - x * x),
    "acos_slope": lambda x, a, b: -1 / np.sqrt(1 - x * x),
    "atan_slope": lambda x, a, b: 1 / (1 + x * x),
    "asinh_slope": lambda x, a, b: 1 / np.sqrt(1 + x * x),
    "acosh_slope": lambda x, a, b: 1 / np.sqrt(x * x - 1),
    "atanh_slope": lambda x, a, b: 1 / (1 - x * x),
}
# Of functions, those that are the slope of others.
ALIKE = {
    "abs": "sign", "exp": "exp", "log": "reciprocal", "sin": "cos", "sinh": "cosh", "cosh": "sinh",
    "soft_shrink": "hard_shrink_slope", **dict.fromkeys(("sign", "floor", "ceil", "round", "above", "zero"), "zero"),
}  # fmt: skip


def slope_of(how: str) -> str | None:
    """The function that is the derivative of one; None: there is none."""
    name = ALIKE.get(how, f"{how}_slope")
    return name if name in FUNCTIONS else None


@register(*(f"function.{how}" for how in FUNCTIONS))
@dataclass(frozen=True)
class Function(Elementwise):
    """y = f(x) on n x k x spatial tensors.

    how: clip (to a..b), hard_sigmoid (a * x + b, clipped to 0..1), hard_swish, silu (x * sigmoid(x)), gelu, gelu_tanh (as
    approximated), erf, reciprocal, softplus, above (1 where x > a, else 0), abs, sign, floor, ceil, round (halves to even), sqrt,
    rsqrt, exp, log, pow (x ** a), sin and the others of a triangle or hyperbola, celu (of a), softsign, soft_shrink
    and hard_shrink (by a), zero, or the slope of one of them, as silu_slope, see `slope_of`.
    Sources: ONNX's operators of these names; gelu: Hendrycks, Gimpel, arXiv 1606.08415.
    Descriptor: `function.clip n= k= [[d=] h=] w= [a=] [b=]`.
    """

    how: str
    n: int
    k: int
    extent: tuple[int, ...]
    a: float = 0.0
    b: float = 0.0
    groups: int = 1
    dtype: str = "f32"
    layout: str = "channels_first"

    @property
    def kind(self) -> str:  # type: ignore[override]
        return f"function.{self.how}"

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("x"),)

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("y"),)

    def flops(self, sizes: Sizes) -> Any:
        return 2 * self.outputs[0].count(sizes)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        compute = numpy_dtype(compute_dtype(self.dtype))
        x = crop(blocks["x"], self.inputs[0].region(tile)).array.astype(compute)
        with np.errstate(all="ignore"):
            blocks["y"].array[...] = FUNCTIONS[self.how](x, compute.type(self.a), compute.type(self.b))

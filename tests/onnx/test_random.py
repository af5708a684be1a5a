"""Random networks of all operators at odd sizes, under three budgets, against ONNX Runtime."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ooc

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
onnx_files = pytest.importorskip("onnx_files")

OPSETS = (11, 13, 17, 18, 21)
CHANNELS, EXTENT, VALUES = 8, 17, 700  # at most; values of a sample
LARGEST = 50.0  # of all tensors: sums that cancel tell nothing
SIDES = {1: (3, 17), 2: (3, 9), 3: (2, 5)}  # extents of inputs, by spatial axes
Rejected = onnx_files.RejectedError


def sweep(count: int, suite: int, quick: int) -> list[Any]:
    """Seeds: the first few before each commit, some in the suite, the others in the long sweep."""
    marks = [[pytest.mark.quick] if s < quick else [] if s < suite else [pytest.mark.slow] for s in range(count)]
    return [pytest.param(s, marks=m) for s, m in enumerate(marks)]


class Drawn:
    """A random network.

    Parameters:
        seed: of all that is drawn.
    """

    def __init__(self, seed: int) -> None:
        self.rng, self.numbers = random.Random(seed), np.random.default_rng(seed)
        self.growing = onnx_files.Growing(self.rng.choice(OPSETS))
        self.batch = self.rng.randint(1, 3)
        self.live = [self.input(self.rng.choice((1, 2, 2, 2, 3)))]
        self.used: list[str] = []

    def input(self, rank: int) -> str:
        shape = (self.batch, self.rng.randint(1, 5), *(self.rng.randint(*SIDES[rank]) for _ in range(rank)))
        if self.rng.random() < 0.1:
            x = self.growing.input(self.numbers.integers(0, 256, shape).astype(np.uint8))
            return self.constant_by("Mul", self.node("Cast", x, to=onnx.TensorProto.FLOAT), np.float32(1 / 255))
        return str(self.growing.input(self.values(shape)))

    # ---- short for what steps need

    def node(self, *args: Any, **attributes: Any) -> Any:
        return self.growing.node(*args, **attributes)

    def shape(self, x: str) -> tuple[int, ...]:
        return tuple(self.growing.shape(x))

    def values(self, shape: Any, scale: float = 1.0) -> Any:
        return (self.numbers.standard_normal(shape) * scale).astype(np.float32)

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        return str(self.growing.constant(value, dtype))

    def constant_by(self, kind: str, x: str, value: Any, first: bool = False) -> str:
        w = self.constant(value)
        return str(self.node(kind, w, x) if first else self.node(kind, x, w))

    def flip(self, share: float = 0.5) -> bool:
        return self.rng.random() < share

    def sizes(self, low: int, high: int, rank: int) -> list[int]:
        return [self.rng.randint(low, high) for _ in range(rank)]

    # ---- growing

    def grow(self, steps: int) -> None:
        while steps:
            x, step, mark = self.rng.choice(self.live[-3:]), self.rng.choice(STEPS), self.growing.mark()
            try:
                made = step(self, x)
                self.check(mark[0])
                if any(len(self.shape(m)) > 5 for m in ([made] if isinstance(made, str) else made)):
                    raise Rejected("more axes than ooc has")
            except Rejected:
                self.growing.back(mark)
                continue
            self.used.append(step.__name__)
            self.live += made if isinstance(made, list) else [made]
            steps -= 1

    def check(self, begin: int) -> None:
        """Refuse what is too large, in values or in bytes, and what is left empty."""
        for name in (n for node in self.growing.nodes[begin:] for n in node.output):
            value = self.growing.values[name]
            if value.dtype == np.float32 and not (0 < value[0].size <= VALUES and np.abs(value).max() < LARGEST):
                raise Rejected("too large")
            if max(value.shape[2:], default=1) > EXTENT or value.ndim > 8 or (value.ndim > 2 and value.shape[1] > 2 * CHANNELS):
                raise Rejected("too long")

    def outputs(self) -> list[str]:
        tips = self.growing.tips(self.live)
        if self.flip(0.3):
            made = [n for n in self.live if n not in self.growing.inputs]
            tips = list(dict.fromkeys((*tips, self.rng.choice(made))))
        return [t for t in tips if t not in self.growing.inputs]


Step = Callable[[Drawn, str], Any]
STEPS: list[Step] = []


def step(weight: int = 1) -> Callable[[Step], Step]:
    def add(function: Step) -> Step:
        STEPS.extend([function] * weight)
        return function

    return add


def spatial(d: Drawn, x: str) -> tuple[int, ...]:
    """Spatial extents; others are no use."""
    if len(d.shape(x)) < 3:
        raise Rejected("no spatial axes")
    return d.shape(x)[2:]


# ---- convolutions and pooling


def window(d: Drawn, extent: tuple[int, ...], dilated: bool) -> dict[str, Any]:
    """Attributes of a window that fits."""
    rank = len(extent)
    taps = d.sizes(1, 3, rank)
    found: dict[str, Any] = {"kernel_shape": taps, "strides": d.sizes(1, 3 if d.flip(0.3) else 1, rank)}
    if dilated and d.flip(0.3):
        found["dilations"] = d.sizes(1, 2, rank)
    how = d.rng.choice(("pads", "pads", "pads", "SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"))
    if how == "pads":
        found["pads"] = [d.rng.randint(0, t - 1) for t in taps * 2]
    elif how.startswith("SAME") and any(v > 1 for v in found.get("dilations", ())):
        raise Rejected("deprecated")
    else:
        found["auto_pad"] = how
    return found


@step(4)
def conv(d: Drawn, x: str) -> str:
    extent, c = spatial(d, x), d.shape(x)[1]
    groups = d.rng.choice([g for g in (1, 1, 1, 2, 3, c) if c % g == 0])
    k = groups * d.rng.randint(1, max(1, CHANNELS // groups))
    found = window(d, extent, True)
    w = d.values((k, c // groups, *found["kernel_shape"]), 0.4)
    reads = [x, d.constant(w)] + [d.constant(d.values(k))] * d.flip()
    made = d.node("Conv", *reads, group=groups, **found)
    if d.flip(0.3):
        made = normed(d, made)
    return str(d.node("Relu", made)) if d.flip(0.3) else str(made)


@step(2)
def conv_transpose(d: Drawn, x: str) -> str:
    extent, c = spatial(d, x), d.shape(x)[1]
    groups = d.rng.choice([g for g in (1, 1, 2, c) if c % g == 0])
    k = d.rng.randint(1, 3)
    found = window(d, extent, True)
    if d.flip():
        found["output_padding"] = [d.rng.randint(0, s - 1) for s in found["strides"]]
    w = d.values((c, k, *found["kernel_shape"]), 0.4)
    reads = [x, d.constant(w)] + [d.constant(d.values(k * groups))] * d.flip()
    made = d.node("ConvTranspose", *reads, group=groups, **found)
    return normed(d, made) if d.flip(0.3) else str(made)


@step(2)
def pool(d: Drawn, x: str) -> str:
    found = window(d, spatial(d, x), False)
    if d.flip():
        found["ceil_mode"] = 1
    if d.flip():
        return str(d.node("MaxPool", x, **found))
    return str(d.node("AveragePool", x, count_include_pad=int(d.flip()), **found))


@step()
def squeeze_and_excite(d: Drawn, x: str) -> str:
    spatial(d, x)
    pooled = d.node(d.rng.choice(("GlobalAveragePool", "GlobalAveragePool", "GlobalMaxPool")), x)
    c, ones = d.shape(x)[1], (1,) * (len(d.shape(x)) - 2)
    narrow = d.node("Conv", pooled, d.constant(d.values((2, c, *ones))), d.constant(d.values(2)))
    wide = d.node("Conv", d.node("Relu", narrow), d.constant(d.values((c, 2, *ones))))
    gate = d.node(d.rng.choice(("Sigmoid", "HardSigmoid")), wide)
    return str(d.node("Mul", *d.rng.sample((x, gate), 2)))


# ---- element by element


@step(3)
def activation(d: Drawn, x: str) -> str:
    kinds = ("Relu", "LeakyRelu", "Elu", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "Erf", "Softplus", "Neg", "Mish", "Gelu")
    kind = d.rng.choice(kinds)
    attributes: dict[str, Any] = {}
    if kind in ("LeakyRelu", "Elu", "HardSigmoid") and d.flip():
        attributes["alpha"] = d.rng.uniform(0.1, 1)
    if kind == "Gelu" and d.flip():
        attributes["approximate"] = "tanh"
    return str(d.node(kind, x, **attributes))


@step()
def silu(d: Drawn, x: str) -> str:
    return str(d.node("Mul", x, d.node("Sigmoid", x)))


@step()
def clip(d: Drawn, x: str) -> str:
    low = d.rng.choice(("", d.constant(0), d.constant(-0.5)))
    high = d.rng.choice(("", d.constant(6), d.constant(0.75)))
    return str(d.node("Clip", x, low, high))


@step()
def prelu(d: Drawn, x: str) -> str:
    c, ones = d.shape(x)[1], (1,) * (len(d.shape(x)) - 2)
    return str(d.node("PRelu", x, d.constant(d.values(d.rng.choice(((1,), (c, *ones), (1, c, *ones))), 0.3))))


@step()
def softmax(d: Drawn, x: str) -> str:
    kind = d.rng.choice(("Softmax", "LogSoftmax"))
    rank = len(d.shape(x))
    axis = d.rng.choice((1, -1, d.rng.randint(1, rank - 1)))
    if d.growing.opset < 13 and axis not in (-1, rank - 1):
        raise Rejected("over all axes behind it")
    return str(d.node(kind, x, axis=axis))


@step(2)
def with_constant(d: Drawn, x: str) -> str:
    shape = list(d.shape(x))
    shape[0] = 1
    own = [e if d.flip() else 1 for e in shape]
    own = own[d.rng.randint(0, 1 + (own[1] == 1)) :] if d.flip() else own
    value = d.values(own if d.flip(0.8) else ())
    kind, first = d.rng.choice(("Add", "Sub", "Mul", "Div")), d.flip()
    if kind == "Div" and first:
        x = d.node("Add", d.node("Sigmoid", x), d.constant(0.25))
    elif kind == "Div":
        value = np.copysign(np.abs(value) + np.float32(0.5), value)
    return d.constant_by(kind, x, value, first)


@step(3)
def with_tensor(d: Drawn, x: str) -> str:
    """Skips, and one value per channel or position beside a tensor."""
    alike = [t for t in d.live if d.shape(t) == d.shape(x)]
    if d.flip(0.6) and len(d.shape(x)) > 2:
        axes = list(range(2, len(d.shape(x)))) if d.flip(0.7) else [1]
        other = reduced(d, x, "ReduceMean", axes, 1)
    else:
        other = d.rng.choice(alike)
    kind = d.rng.choice(("Add", "Sub", "Mul", "Div"))
    if kind == "Div":
        return str(d.node("Div", x, d.node("Add", d.node("Sigmoid", other), d.constant(0.25))))
    return str(d.node(kind, *d.rng.sample((x, other), 2)))


@step()
def power(d: Drawn, x: str) -> str:
    if d.flip(0.3):
        return d.constant_by("Pow", d.node("Add", d.node("Sigmoid", x), d.constant(0.25)), d.rng.choice((0.5, -0.5, -1, 1.7)))
    return d.constant_by("Pow", x, d.rng.choice((1, 2)))


@step(2)
def function(d: Drawn, x: str) -> str:
    """Smooth ones: steps would part what differs in the last place."""
    kind = d.rng.choice(("Abs", "Atan", "Cos", "Sin", "Softsign", "Celu", "Selu", "Exp", "Log", "Sqrt", "Asin", "Tan", "Shrink"))
    if kind in ("Exp", "Log", "Sqrt", "Asin", "Tan"):
        x = d.node("Mul", d.node("Add", d.node("Sigmoid", x), d.constant(0.25)), d.constant(0.7))
    return str(d.node(kind, x, **({"lambd": 0.3, "bias": 0.3} if kind == "Shrink" else {})))


@step(2)
def choice(d: Drawn, x: str) -> str:
    """The larger or smaller of two, or one of them by what holds."""
    alike = [t for t in d.live if d.shape(t) == d.shape(x)]
    other = (
        d.rng.choice(alike) if d.flip() else d.constant(d.values([e if i and d.flip() else 1 for i, e in enumerate(d.shape(x))]))
    )
    if d.flip():
        return str(d.node(d.rng.choice(("Max", "Min")), *d.rng.sample((x, other), 2)))
    holds = d.node(d.rng.choice(("Greater", "Less")), x, d.constant(0.123))
    if d.flip(0.3):
        holds = d.node(d.rng.choice(("And", "Or", "Xor")), holds, d.node("Greater", d.rng.choice(alike), d.constant(-0.217)))
    return str(d.node("Where", d.node("Not", holds) if d.flip(0.3) else holds, *d.rng.sample((x, other), 2)))


@step()
def reciprocal(d: Drawn, x: str) -> str:
    return str(d.node("Reciprocal", d.node("Add", d.node("Sigmoid", x), d.constant(0.5))))


@step()
def total(d: Drawn, x: str) -> str:
    alike = [t for t in d.live if d.shape(t) == d.shape(x)]
    return str(d.node("Sum", x, *(d.rng.choice(alike) for _ in range(d.rng.randint(0, 2)))))


@step()
def nothing(d: Drawn, x: str) -> str:
    return str(d.node(d.rng.choice(("Identity", "Dropout")), x))


# ---- normalisations


def normed(d: Drawn, x: str) -> str:
    c = d.shape(x)[1]
    own = (d.values(c), d.values(c), d.values(c), np.abs(d.values(c)) + np.float32(0.5))
    return str(d.node("BatchNormalization", x, *map(d.constant, own), epsilon=d.rng.choice((1e-5, 1e-3))))


@step()
def batch_norm(d: Drawn, x: str) -> str:
    return normed(d, x)


@step(2)
def group_norm(d: Drawn, x: str) -> str:
    """Over positions that differ: what is nearly constant is noise once it is divided by its deviation."""
    spatial(d, x)
    c = d.shape(x)[1]
    groups = d.rng.choice([g for g in range(1, c + 1) if c % g == 0]) if d.growing.opset >= 21 else c
    value = d.growing.values[x].reshape(d.batch, groups, -1)
    if not (value.std(2) > 0.1 * np.abs(value).max()).all():
        raise Rejected("nearly constant")
    own = (d.constant(d.values(c)), d.constant(d.values(c)))
    if groups == c and d.flip():
        return str(d.node("InstanceNormalization", x, *own))
    return str(d.node("GroupNormalization", x, *own, num_groups=groups))


@step()
def lrn(d: Drawn, x: str) -> str:
    if len(d.shape(x)) != 4:
        raise Rejected("ONNX Runtime has images alone")
    return str(d.node("LRN", x, size=d.rng.choice((1, 3, 5)), alpha=0.1))


# ---- means and maxima


def reduced(d: Drawn, x: str, kind: str, axes: list[int], keep: int) -> str:
    if d.growing.opset >= 18 or (kind == "ReduceSum" and d.growing.opset >= 13):
        return str(d.node(kind, x, d.constant(axes, np.int64), keepdims=keep))
    return str(d.node(kind, x, axes=axes, keepdims=keep))


@step(2)
def reduce(d: Drawn, x: str) -> str:
    rank = len(d.shape(x))
    axes = d.rng.choice(([1], [d.rng.randint(1, rank - 1)], list(range(2, rank)), list(range(1, rank)), [-1]))
    if not axes:
        raise Rejected("nothing to reduce")
    keep = int(d.flip() or len(axes) == rank - 1)
    kinds = ("ReduceMean", "ReduceMax", "ReduceSum", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp")
    return reduced(d, x, d.rng.choice(kinds), axes, keep)


# ---- products


@step(2)
def classifier(d: Drawn, x: str) -> str:
    shape = d.shape(x)
    flat = x if len(shape) == 2 else d.node("Flatten", x)
    c, k = d.shape(flat)[1], d.rng.randint(1, CHANNELS)
    if d.flip():
        by, more = d.rng.choice((1.0, 0.5)), d.rng.choice((1.0, 0.5))
        w = d.values((k, c), c**-0.5)
        turned = int(d.flip())
        reads = [flat, d.constant(w if turned else w.T)]
        reads += [d.constant(d.values(d.rng.choice(((k,), (1, k), (), (1,)))))] * d.flip()
        return str(d.node("Gemm", *reads, alpha=by, beta=more, transB=turned))
    made = d.node("MatMul", flat, d.constant(d.values((c, k), c**-0.5)))
    return d.constant_by("Add", made, d.values(k), d.flip())


@step(2)
def channels_last(d: Drawn, x: str) -> str:
    """A product over the last axis, there and back."""
    rank = len(spatial(d, x))
    c, k = d.shape(x)[1], d.rng.randint(1, CHANNELS)
    last = d.node("Transpose", x, perm=[0, *range(2, rank + 2), 1])
    made = d.constant_by("Add", d.node("MatMul", last, d.constant(d.values((c, k), c**-0.5))), d.values(k))
    if d.flip():
        made = d.node("Softmax", made, axis=-1)
    return str(d.node("Transpose", made, perm=[0, rank + 1, *range(1, rank + 1)]))


# ---- moves


@step(2)
def concat(d: Drawn, x: str) -> str:
    shape = d.shape(x)
    axis = d.rng.randint(1, len(shape) - 1) if d.flip() else 1
    fits = [t for t in d.live if all(i == axis or e == f for i, (e, f) in enumerate(zip(d.shape(t), shape)))]
    fits = [t for t in fits if len(d.shape(t)) == len(shape)]
    return str(
        d.node("Concat", x, *(d.rng.choice(fits) for _ in range(d.rng.randint(1, 2))), axis=axis - len(shape) * d.flip(0.3))
    )


@step(2)
def slice_(d: Drawn, x: str) -> str:
    shape = d.shape(x)
    axes = d.rng.sample(range(1, len(shape)), d.rng.randint(1, len(shape) - 1))
    begins = [d.rng.randint(0, shape[a] - 1) for a in axes]
    ends = [d.rng.choice((1 << 62, d.rng.randint(b + 1, shape[a]), -1)) for a, b in zip(axes, begins)]
    steps = [d.rng.randint(1, 3) if d.flip() else 1 for _ in axes]
    if d.flip(0.2):  # all of an axis, backwards
        begins[0], ends[0], steps[0] = shape[axes[0]] - 1, -(1 << 62), -1
    begins = [b - shape[a] if d.flip(0.3) else b for a, b in zip(axes, begins)]
    reads = [d.constant(v, np.int64) for v in (begins, ends, axes, steps)]
    return str(d.node("Slice", x, *(reads[:3] if max(steps) == 1 and d.flip() else reads)))


@step()
def gather(d: Drawn, x: str) -> str:
    shape = d.shape(x)
    axis = d.rng.randint(1, len(shape) - 1)
    if d.flip(0.3) and len(shape) > 2:
        return str(d.node("Gather", x, d.constant(d.rng.randrange(shape[axis]), np.int64), axis=axis))
    places = [d.rng.randrange(-shape[axis], shape[axis]) for _ in range(d.rng.randint(1, 5))]
    return str(d.node("Gather", x, d.constant(places, np.int64), axis=axis))


@step()
def repeat(d: Drawn, x: str) -> str:
    shape = d.shape(x)
    if d.flip():
        times = [1, *(d.rng.choice((1, 1, 2)) for _ in shape[1:])]
        return str(d.node("Tile", x, d.constant(times, np.int64)))
    axes = [d.rng.randint(1, len(shape) - 1)]
    one = reduced(d, x, "ReduceMean", axes, 1)
    return str(d.node("Expand", one, d.constant([1, *shape[1:]], np.int64)))


@step(2)
def six_axes(d: Drawn, x: str) -> str:
    """Channels or positions split, and moved."""
    shape = d.shape(x)
    splits = [next(((e // f, f) for f in (2, 3, 5) if i and e % f == 0), (e,)) for i, e in enumerate(shape)]
    flat = [e for pair in splits for e in pair]
    order = [0, *d.rng.sample(range(1, len(flat)), len(flat) - 1)]
    moved = d.node("Transpose", d.node("Reshape", x, d.constant(flat, np.int64)), perm=order)
    rest = [flat[i] for i in order[1:]]
    return str(d.node("Reshape", moved, d.constant([shape[0], rest[0], int(np.prod(rest[1:]))], np.int64)))


@step()
def split(d: Drawn, x: str) -> Any:
    shape = d.shape(x)
    axis = d.rng.randint(1, len(shape) - 1)
    if shape[axis] < 2:
        raise Rejected("nothing to split")
    first = d.rng.randint(1, shape[axis] - 1)
    if d.growing.opset >= 18 and d.flip():
        return d.node("Split", x, count=2, axis=axis, num_outputs=2)
    if shape[axis] % 2 == 0 and d.growing.opset < 18 and d.flip():
        return d.node("Split", x, count=2, axis=axis)
    sizes = [first, shape[axis] - first]
    if d.growing.opset >= 13:
        return d.node("Split", x, d.constant(sizes, np.int64), count=2, axis=axis)
    return d.node("Split", x, count=2, axis=axis, split=sizes)


@step(2)
def pad(d: Drawn, x: str) -> str:
    shape, mode = d.shape(x), d.rng.choice(("constant", "reflect", "edge"))
    least = -1 if mode == "constant" else 0
    pads = [[d.rng.randint(least, min(2, e - 1)) if e > 1 else 0 for e in shape[2:]] for _ in range(2)]
    front = [d.rng.randint(0, 1) if mode == "constant" else 0 for _ in range(2)]
    if d.growing.opset >= 18 and d.flip() and pads[0]:
        reads = [d.constant(pads[0] + pads[1], np.int64), "", d.constant(range(2, len(shape)), np.int64)]
        return str(d.node("Pad", x, *reads, mode=mode))
    reads = [d.constant([0, front[0], *pads[0], 0, front[1], *pads[1]], np.int64)]
    reads += [d.constant(d.rng.uniform(-1, 1))] * (mode == "constant" and d.flip())
    return str(d.node("Pad", x, *reads, mode=mode))


WHERE = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric", "tf_half_pixel_for_nn")
ROUNDED = ("floor", "ceil")  # for the others see below: halves of scales that are no quotients of lengths


@step(3)
def resize(d: Drawn, x: str) -> str:
    spatial(d, x)
    found = {"coordinate_transformation_mode": d.rng.choice(WHERE), "mode": d.rng.choice(("nearest", "linear"))}
    if (
        found["coordinate_transformation_mode"] == "half_pixel_symmetric"
    ):  # of what falls on a pixel ONNX Runtime takes its neighbour
        found["mode"] = "linear"  # at one size in twenty
    if found["mode"] == "nearest":
        found["nearest_mode"] = d.rng.choice(ROUNDED)
    return resized(d, x, found)


def resized(d: Drawn, x: str, attributes: dict[str, str]) -> str:
    """By scales or to sizes."""
    none = "" if d.growing.opset >= 13 else d.constant([])
    if d.flip():
        by = [d.rng.choice((2, 1.5, 0.5, 0.7, 1.3, 1, 3)) for _ in spatial(d, x)]
        return str(d.node("Resize", x, none, d.constant([1, 1, *by]), **attributes))
    size = [*d.shape(x)[:2], *(d.rng.randint(1, min(EXTENT, 2 * e + 1)) for e in spatial(d, x))]
    return str(d.node("Resize", x, none, none, d.constant(size, np.int64), **attributes))


@step()
def blocks(d: Drawn, x: str) -> str:
    """Depth to space, and back; ONNX Runtime has images alone."""
    if len(d.shape(x)) != 4:
        raise Rejected("no image")
    if all(e % 2 == 0 for e in spatial(d, x)) and d.flip():
        return str(d.node("SpaceToDepth", x, blocksize=2))
    if d.shape(x)[1] % 4:
        x = d.node("Conv", x, d.constant(d.values((4, d.shape(x)[1], 1, 1))))
    made = d.node("DepthToSpace", x, blocksize=2, mode=d.rng.choice(("DCR", "CRD")))
    return str(d.node("SpaceToDepth", made, blocksize=2)) if d.flip(0.3) else str(made)


@step()
def transpose(d: Drawn, x: str) -> str:
    axes = list(range(1, len(d.shape(x))))
    return str(d.node("Transpose", x, perm=[0, *d.rng.sample(axes, len(axes))]))


@step()
def shuffle(d: Drawn, x: str) -> str:
    """Channels of groups by turns, as ShuffleNet has it."""
    n, c, *extent = d.shape(x)
    groups = d.rng.choice([g for g in range(1, c + 1) if c % g == 0])
    parted = d.node("Reshape", x, d.constant([0, groups, c // groups, -1], np.int64))
    turned = d.node("Transpose", parted, perm=[0, 2, 1, 3])
    return str(d.node("Reshape", turned, d.constant([n if d.flip() else -1, c, *extent], np.int64)))


@step()
def squeezed(d: Drawn, x: str) -> str:
    """An axis of 1 more, or one less."""
    shape = d.shape(x)
    ones = [i for i, e in enumerate(shape) if e == 1 and i > 0]
    kind, axes = ("Squeeze", ones[:1]) if ones and len(shape) > 2 else ("Unsqueeze", [d.rng.randint(1, len(shape))])
    if d.growing.opset >= 13:
        return str(d.node(kind, x, d.constant(axes, np.int64)))
    return str(d.node(kind, x, axes=axes))


# ---- sizes that the network computes, as PyTorch writes them


def extent_of(d: Drawn, x: str, axis: int) -> str:
    """An extent of a tensor, as a vector of one."""
    if d.flip():
        return str(d.node("Gather", d.node("Shape", x), d.constant([axis], np.int64)))
    one = d.node("Gather", d.node("Shape", x), d.constant(axis, np.int64))
    if d.growing.opset >= 13:
        return str(d.node("Unsqueeze", one, d.constant([0], np.int64)))
    return str(d.node("Unsqueeze", one, axes=[0]))


@step(2)
def resize_to_computed(d: Drawn, x: str) -> str:
    spatial(d, x)
    twice = [d.node("Mul", extent_of(d, x, i), d.constant([2], np.int64)) for i in range(2, len(d.shape(x)))]
    front = d.node("Slice", d.node("Shape", x), d.constant([0], np.int64), d.constant([2], np.int64), d.constant([0], np.int64))
    size = d.node("Concat", front, *twice, axis=0)
    none = "" if d.growing.opset >= 13 else d.constant([])
    how = d.rng.choice(({"mode": "nearest", "nearest_mode": "floor"}, {"mode": "linear"}))
    where = "asymmetric" if how["mode"] == "nearest" else "half_pixel"
    return str(d.node("Resize", x, none, none, size, coordinate_transformation_mode=where, **how))


@step(2)
def resize_as_another(d: Drawn, x: str) -> str:
    """To the size of an earlier tensor, and beside it, as U-Net has it."""
    others = [t for t in d.live if len(d.shape(t)) == len(d.shape(x)) and d.shape(t) != d.shape(x)]
    if not others:
        raise Rejected("nothing beside it")
    spatial(d, x)
    other = d.rng.choice(others)
    size = d.node(
        "Concat", *(extent_of(d, x, i) for i in (0, 1)), *(extent_of(d, other, i) for i in range(2, len(d.shape(x)))), axis=0
    )
    none = "" if d.growing.opset >= 13 else d.constant([])
    made = d.node("Resize", x, none, none, size, mode="linear", coordinate_transformation_mode="align_corners")
    return str(d.node("Concat", made, other, axis=1))


@step()
def reshape_to_computed(d: Drawn, x: str) -> str:
    """All positions as one axis, and back."""
    spatial(d, x)
    sizes = [extent_of(d, x, i) for i in range(len(d.shape(x)))]
    flat = d.node("Reshape", x, d.node("Concat", *sizes[:2], d.constant([-1], np.int64), axis=0))
    if d.flip():
        return str(flat)
    return str(d.node("Reshape", d.node("Relu", flat), d.node("Concat", *sizes, axis=0)))


def budgets(graph: ooc.Graph, batch: int) -> list[Any]:
    """A plan without a budget, one at half of what that takes, and one at the least."""
    whole = graph.plan(batch=batch, train=False)
    least = whole.smallest_bytes
    found = [whole]
    for budget in (max(least, whole.peaks["device"] // 2), least):
        plan = graph.plan(batch=batch, train=False, budget=budget)
        assert plan.peaks["device"] <= budget
        found.append(plan)
    return found


def drawn(seed: int) -> tuple[Drawn, Any]:
    d = Drawn(seed)
    d.grow(d.rng.randint(2, 6))
    return d, d.growing.model(d.outputs(), d.flip())


@pytest.mark.parametrize("seed", sweep(300, 10, 4))
def test_random_networks(seed: int, tmp_path: Path) -> None:
    d, model = drawn(seed)
    inputs = d.growing.inputs
    wanted = onnx_files.by_runtime(model, inputs)
    onnx.save(model, tmp_path / "random.onnx")
    graph = ooc.onnx.load(tmp_path / "random.onnx", {name: value.shape for name, value in inputs.items()})
    for share, plan in zip(("whole", "half", "smallest"), budgets(graph, d.batch), strict=True):
        onnx_files.compare(onnx_files.by_plan(plan, inputs), wanted, f"{share}, {', '.join(d.used)}")


def test_all_steps_are_drawn() -> None:
    """The sweep has each kind of step."""
    used = {name for seed in range(120) for name in drawn(seed)[0].used}
    assert used == {s.__name__ for s in STEPS}


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("rounded", ROUNDED)
def test_nearest_takes_the_same_values(where: str, rounded: str, tmp_path: Path) -> None:
    """To the bit, at many sizes."""
    path = tmp_path / "resize.onnx"
    for seed in range(12):
        d = Drawn(seed)
        x = d.growing.input(d.values((d.batch, 2, *d.sizes(1, EXTENT, d.rng.randint(1, 2)))))
        try:
            made = resized(d, x, {"coordinate_transformation_mode": where, "nearest_mode": rounded, "mode": "nearest"})
            d.check(0)
        except Rejected:
            continue
        onnx.save(d.growing.model([made], False), path)
        plan = ooc.onnx.load(path, {n: v.shape for n, v in d.growing.inputs.items()}).plan(batch=d.batch, train=False)
        (own,) = onnx_files.by_plan(plan, d.growing.inputs)
        np.testing.assert_array_equal(own, d.growing.values[made], f"seed {seed}")


@pytest.mark.parametrize("where", ["asymmetric", "half_pixel"])
@pytest.mark.parametrize("rounded", ["round_prefer_floor", "round_prefer_ceil"])
def test_halves_are_rounded_alike(where: str, rounded: str, tmp_path: Path) -> None:
    """To the bit, from every length to every other, where halves are many."""
    for n, m in [(n, m) for n in range(2, 12) for m in range(2, 20) if n != m]:
        weights = {"sizes": np.array([1, 1, m])}
        node = onnx.helper.make_node(
            "Resize", ["x", "", "", "sizes"], ["y"], mode="nearest", nearest_mode=rounded, coordinate_transformation_mode=where
        )
        model = onnx_files.model_of([node], {"x": [1, 1, n]}, ["y"], weights)
        onnx.save(model, tmp_path / "resize.onnx")
        x = np.arange(n, dtype=np.float32)[None, None]
        session = ooc.onnx.load(tmp_path / "resize.onnx").plan(batch=1, train=False).session()
        np.testing.assert_array_equal(session.forward(x), onnx_files.by_runtime(model, {"x": x})[0], f"{n} to {m}")

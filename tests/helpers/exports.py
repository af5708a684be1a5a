"""Graphs that are exported: layers of every kind with random numbers, one by one and many together."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from cases import POSITIVE, WITHIN_ONE

import ooc
from ooc.networks import Graph, layers, models
from ooc.networks.tensors import Role
from ooc.ops.activation import ACTIVATIONS
from ooc.ops.binary import BINARIES
from ooc.ops.function import FUNCTIONS
from ooc.ops.matmul import HOWS as PRODUCTS
from ooc.translate.parts import axis_line

MODELS: dict[str, Callable[[], Graph]] = {
    "alexnet": lambda: models.alexnet(side=16, classes=7, width=0.125),
    "overfeat": lambda: models.overfeat(side=16, classes=5, width=0.05),
    "vgg": lambda: models.vgg(side=32, classes=5, width=0.0625),
    "resnet": lambda: models.resnet(18, side=32, classes=4, width=0.125),
    "wrn": lambda: models.wrn(10, 2, side=8, classes=4, dropout=0.3),
    "googlenet": lambda: models.googlenet(side=64, classes=5, width=0.125),
    "unet": lambda: models.unet(side=16, width=1 / 16, channels=3),
    "unet3d": lambda: models.unet3d(side=8, width=0.125, dropout=0.2),
}
LOSSES = {*layers.LOSSES}
SIDES = {0: (1, 1), 1: (4, 12), 2: (4, 9), 3: (3, 6)}  # extents of inputs, by spatial axes
Draw = Callable[["Drawing", str], str]
LAYERS: dict[str, Draw] = {}


def with_losses() -> Graph:
    """Two heads, losses of every kind, and no outputs."""
    graph = Graph("heads")
    h = graph.conv(graph.input("x", (2, 6, 5)), 4, 3, padding=1, bias=True, activation="relu", name="body")
    classes, picture = graph.conv(h, 3, 1, name="classes"), graph.conv(h, 1, 1, bias=True, name="picture")
    graph.loss("dice", classes, background=False)
    graph.loss("mse", picture, weight=0.1)
    graph.loss("cross_entropy", classes, weights=[0.5, 1, 2], smoothing=0.1)
    graph.loss("l1", picture)
    graph.loss("bce", picture, weights=[2])
    return graph


class Drawing:
    """A graph while its layers are drawn.

    Parameters:
        seed: of all that is drawn.
        dtype: of its tensors.
        rank: spatial axes of its input; default: drawn.
    """

    def __init__(self, seed: Any, dtype: str = "f32", rank: int | None = None) -> None:
        self.rng, self.graph, self.dtype = random.Random(f"{seed}"), Graph(f"drawn {seed}"), dtype
        self.start = self.input(self.rng.randint(1, 3) if rank is None else rank)

    def input(self, rank: int, dtype: str = "") -> str:
        shape = self.rng.choice((2, 4, 6)), *self.ints(*SIDES[rank], rank)
        return self.graph.input(f"x{len(self.graph.inputs)}", shape, dtype or self.dtype)

    def ints(self, low: int, high: int, count: int) -> tuple[int, ...]:
        return tuple(self.rng.randint(low, high) for _ in range(count))

    def shape(self, x: str) -> tuple[int, ...]:
        return self.graph.shapes[x]

    def act(self) -> ooc.Activation | None:
        how = self.rng.choice(("identity", *ACTIVATIONS))
        return None if how == "identity" else ooc.Activation(how, self.rng.choice((0.25, 0.5, 1.5)))

    def words(self) -> dict[str, Any]:
        """An activation as a layer has it."""
        how = self.rng.choice(ACTIVATIONS)
        return {"act": how, "coef": self.rng.choice((0.25, 0.5, 1.5)) if how in ("clipped_relu", "elu", "leaky_relu") else 0.0}

    def add(self, layer: layers.Layer, *reads: str) -> str:
        return self.graph.add_layer(layer, reads)

    def like(self, x: str, shape: tuple[int, ...]) -> str:
        """Another tensor, of a shape that x is repeated to, or that is repeated beside it."""
        name = f"x{len(self.graph.inputs)}"
        return self.graph.input(name, shape, self.graph.dtypes[x])


def layer(*kinds: str) -> Callable[[Draw], Draw]:
    def add(draw: Draw) -> Draw:
        LAYERS.update(dict.fromkeys(kinds, draw))
        return draw

    return add


def drawn(kind: str, seed: int, dtype: str = "f32") -> Graph:
    """A graph of one layer of a kind, with an activation behind perhaps."""
    for attempt in itertools.count():
        drawing = Drawing(f"{kind} {seed} {attempt}", dtype)
        try:
            y = LAYERS[kind](drawing, drawing.start)
        except ooc.ShapeError:
            continue
        drawing.graph.output(y)
        return drawing.graph
    raise AssertionError


def mixed(seed: int, kinds: list[str], count: int = 6) -> Graph:
    """A graph of many layers, whose tensors all have some readers."""
    drawing = Drawing(f"mixed {seed}")
    live = [drawing.start]
    while len(drawing.graph.nodes) < count:
        before = dict(drawing.graph.inputs)
        try:
            y = LAYERS[drawing.rng.choice(kinds)](drawing, drawing.rng.choice(live[-2:]))
        except ooc.ShapeError:
            continue
        if math.prod(drawing.shape(y)) < 4000 and drawing.graph.dtypes[y] == "f32":
            live.append(y)
        assert before.items() <= drawing.graph.inputs.items()
    tips = [n.name for n in drawing.graph.nodes if not any(n.name in m.reads for m in drawing.graph.nodes)]
    drawing.graph.output(*tips)
    return drawing.graph


# ---- data


def weights(graph: Graph, seed: int = 0) -> dict[str, Any]:
    """Random parameters and statistics that f16 holds."""
    rng, made = np.random.default_rng(seed), {}
    for name, one in graph.parameters.items():
        values = rng.standard_normal(one.shape) * math.sqrt(1 / one.fan_in)
        if name.endswith((".var", ".scale")) and one.dtype == "f64":
            values = 1 + rng.random(one.shape)
        made[name] = values.astype(np.float16).astype(np.float64)
        assert one.role in (Role.PARAMETER, Role.STATISTIC)
    return made


def inputs(graph: Graph, batch: int = 2, seed: int = 0) -> dict[str, Any]:
    """Random inputs that f16 holds; integers over their range."""
    rng, made = np.random.default_rng(seed), {}
    for name, shape in graph.inputs.items():
        dtype = graph.dtypes[name]
        if dtype == "b8":
            made[name] = rng.random((batch, *shape)) < 0.5
        elif (width := {"u8": "u1", "u16": "u2", "i16": "i2", "i32": "i4"}.get(dtype)) is not None:
            limits = np.iinfo(width)
            made[name] = rng.integers(limits.min, limits.max, (batch, *shape), width, endpoint=True)
        else:
            values = rng.standard_normal((batch, *shape)).astype(np.float16)
            made[name] = values.astype({"f32": np.float32, "f64": np.float64, "f16": np.float16}[dtype])
    return made


def forward(graph: Graph, given: Mapping[str, Any], parameters: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What ooc makes in an inference, by name; the same bits for the same layers."""
    batch = len(next(iter(given.values())))
    plan = graph.plan(batch=batch, train=False, deterministic=True, device="cpu")
    with plan.session(parameters or {}) as session:
        made = session.forward(given)
    return made if isinstance(made, dict) else {graph.outputs[0]: made}


def close(made: Any, expected: Any, most: float = 1e-5) -> bool:
    """Whether all values are within `most` of the largest one."""
    made, expected = np.asarray(made), np.asarray(expected)
    if made.shape != expected.shape or made.dtype != expected.dtype:
        return False
    if expected.dtype.kind in "iub":
        return bool((made != expected).mean() <= 0.01)  # of a tie that is rounded
    off = np.abs(made.astype(np.float64) - expected.astype(np.float64)).max(initial=0)
    return bool(off <= most * max(1.0, float(np.abs(expected.astype(np.float64)).max(initial=0))))


# ---- a layer of each kind


@layer("conv")
def conv(d: Drawing, x: str) -> str:
    c, *extent = d.shape(x)
    rank, groups = len(extent), d.rng.choice((1, 1, 2)) if c % 2 == 0 else 1
    pads = [d.ints(0, 2, 2) for _ in extent] if d.rng.random() < 0.5 else d.rng.randint(0, 1)
    return d.graph.conv(
        x, groups * d.rng.randint(1, 3), d.ints(1, 3, rank), stride=d.ints(1, 2, rank), padding=pads, dilation=d.ints(1, 2, rank),
        groups=groups, bias=d.rng.random() < 0.5, activation=d.act(),
    )  # fmt: skip


@layer("conv_transpose")
def conv_transpose(d: Drawing, x: str) -> str:
    c, *extent = d.shape(x)
    rank, groups = len(extent), d.rng.choice((1, 1, 2)) if c % 2 == 0 else 1
    stride = d.ints(1, 3, rank)
    pads = [d.ints(0, 2, 2) for _ in extent] if d.rng.random() < 0.5 else d.rng.randint(0, 1)
    return d.graph.conv_transpose(
        x, groups * d.rng.randint(1, 3), d.ints(1, 3, rank), stride=stride, padding=pads, dilation=d.ints(1, 2, rank),
        output_padding=[d.rng.randint(0, s - 1) for s in stride], groups=groups, bias=d.rng.random() < 0.5, activation=d.act(),
    )  # fmt: skip


@layer("linear")
def linear(d: Drawing, x: str) -> str:
    return d.graph.linear(d.graph.flatten(x), d.rng.randint(1, 5), bias=d.rng.random() < 0.5, activation=d.act())


@layer("activation")
def activation(d: Drawing, x: str) -> str:
    return d.add(layers.Act(**d.words()), x)


def functions() -> list[str]:
    """Those that have a name of their own: slopes are what gradients are made of."""
    return [how for how in FUNCTIONS if not how.endswith("_slope")]


@layer("function")
def function(d: Drawing, x: str) -> str:
    how = d.rng.choice(functions())
    if how in POSITIVE:  # of what is not near zero
        x = d.graph.function(x, "clip", 0.5, 3.0)
    elif how in WITHIN_ONE:
        x = d.graph.function(x, "clip", -0.9, 0.9)
    elif how == "acosh":
        x = d.graph.function(x, "clip", 1.25, 3.0)
    numbers = {"clip": d.rng.choice(((-0.5, 0.75), (-math.inf, 0.0), (0.25, math.inf))), "above": (0.25,)}
    numbers |= {"pow": (d.rng.choice((3.0, 1.5, -2.0)),), "celu": (0.5,), "soft_shrink": (0.5,), "hard_shrink": (0.25,)}
    numbers["hard_sigmoid"] = d.rng.choice(((1 / 6, 0.5), (0.25, 0.5)))
    return d.graph.function(x, how, *numbers.get(how, ()))


@layer("softmax")
def softmax(d: Drawing, x: str) -> str:
    return d.graph.softmax(x, log=d.rng.random() < 0.5)


@layer("dropout")
def dropout(d: Drawing, x: str) -> str:
    return d.graph.dropout(x, d.rng.choice((0.1, 0.5)))


def _repeated(d: Drawing, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that is repeated beside another: it is 1 along some axes, or has no others than channels."""
    if d.rng.random() < 0.3:
        return shape[:1]
    return tuple(e if d.rng.random() < 0.6 else 1 for e in shape)


@layer("add")
def add(d: Drawing, x: str) -> str:
    pair = [x, d.like(x, _repeated(d, d.shape(x)))]
    d.rng.shuffle(pair)
    return d.add(layers.Add(**d.words(), beta=d.rng.choice((1.0, -1.0, 0.5))), *pair)


@layer("multiply")
def multiply(d: Drawing, x: str) -> str:
    return d.add(layers.MultiplyLayer(**d.words()), x, d.like(x, _repeated(d, d.shape(x))))


@layer("binary")
def binary(d: Drawing, x: str) -> str:
    how, z = d.rng.choice((*BINARIES,)), d.like(x, _repeated(d, d.shape(x)))
    if how in ("divide", "power"):
        z = d.graph.function(z, "clip", 0.5, 3.0)
    if how == "power":
        x = d.graph.function(x, "clip", 0.5, 3.0)
    if how in ("where", "unless"):
        z = d.graph.function(z, "above", 0.25)
    return d.add(layers.BinaryLayer(how), x, z)


@layer("matmul")
def matmul(d: Drawing, x: str) -> str:
    x = x if len(d.shape(x)) == 3 else d.input(2)
    heads, rows, columns = d.shape(x)
    how, count = d.rng.choice(PRODUCTS), d.rng.randint(1, 5)
    other = {"nn": (heads, columns, count), "nt": (heads, count, columns), "tn": (heads, rows, count)}[how]
    return d.add(layers.MatMulLayer(how, d.rng.choice((1.0, 0.5))), x, d.like(x, other))


GROUPED = {False: ("khw", "kw", "kh"), True: ("khw", "ghw", "gkhw", "gw")}  # axes of biases, of groups of heads or none


@layer("attention")
def attention(d: Drawing, x: str) -> str:
    x = x if len(d.shape(x)) == 3 else d.input(2)
    heads, queries, c = d.shape(x)
    keys, depth = d.ints(1, 5, 2)
    groups = d.rng.choice([g for g in range(1, heads + 1) if heads % g == 0])
    letters = [d.rng.choice((*GROUPED[groups > 1], "hw", "")) for _ in range(d.rng.randint(0, 2))]
    full = {"g": groups, "k": heads // groups, "h": queries, "w": keys}
    apart = [[full[axis] if axis in one else 1 for axis in "gkhw"] for one in letters]
    biases = [d.like(x, (g * k, h, w)) for g, k, h, w in apart]
    layer_ = layers.AttentionLayer(d.rng.choice((1.0, 0.5)), groups, tuple(letters))
    return d.add(layer_, x, d.like(x, (heads, keys, c)), d.like(x, (heads, keys, depth)), *biases)


@layer("expand")
def expand(d: Drawing, x: str) -> str:
    shape = d.shape(x)
    return d.graph.expand(d.like(x, tuple(e if d.rng.random() < 0.6 else 1 for e in shape)), shape)


@layer("parameter")
def parameter(d: Drawing, x: str) -> str:
    values = np.random.default_rng(d.rng.getrandbits(32)).standard_normal(_repeated(d, d.shape(x)))
    return d.graph.add(x, d.graph.parameter(values, d.shape(x), d.graph.dtypes[x]))


@layer("affine")
def affine(d: Drawing, x: str) -> str:
    how = d.rng.choice(("shift", "scale"))
    alpha = d.rng.choice((1.0, -1.0, 0.5)) if how == "shift" else 1.0
    return d.add(layers.Affine(how, _repeated(d, d.shape(x)), alpha, **d.words()), x)


@layer("batch_norm")
def batch_norm(d: Drawing, x: str) -> str:
    if d.rng.random() < 0.2:
        x = d.graph.flatten(x)
    return d.graph.batch_norm(x, eps=d.rng.choice((1e-5, 1e-3)), momentum=d.rng.choice((0.1, 0.3)), activation=d.act())


@layer("group_norm")
def group_norm(d: Drawing, x: str) -> str:
    groups = d.rng.choice([g for g in (0, 1, 2, 3) if g == 0 or d.shape(x)[0] % g == 0])
    return d.add(layers.GroupNorm(groups, d.rng.choice((1e-5, 1e-3)), **d.words(), affine=d.rng.random() < 0.7), x)


@layer("lrn")
def lrn(d: Drawing, x: str) -> str:
    return d.graph.lrn(x, d.rng.choice((1, 3, 4, 5)), alpha=d.rng.choice((1e-4, 0.5)), beta=0.75, base=d.rng.choice((1.0, 2.0)))


@layer("pool")
def pool(d: Drawing, x: str) -> str:
    rank = len(d.shape(x)) - 1
    window = d.ints(1, 3, rank)
    pads = [(d.rng.randint(0, w - 1), d.rng.randint(0, w - 1)) for w in window]
    if d.rng.random() < 0.5:
        pads = [(w // 2, w // 2) for w in window]
    return d.graph.pool(x, window, stride=d.ints(1, 3, rank), padding=pads, how=d.rng.choice(("max", "average", "average_valid")))


@layer("max_unpool")
def max_unpool(d: Drawing, x: str) -> str:
    rank = len(d.shape(x)) - 1
    window = d.ints(1, 3, rank)
    stride = [w + d.rng.choice((0, 0, 1)) for w in window]
    pads = [(d.rng.randint(0, w - 1), d.rng.randint(0, w - 1)) for w in window]
    values = d.graph.pool(x, window, stride=stride, padding=pads)
    return d.graph.max_unpool(x, d.graph.multiply(values, values), window, stride=stride, padding=pads)


@layer("grid_sample")
def grid_sample(d: Drawing, x: str) -> str:
    """Positions within a picture twice as large; by cubics of pictures alone, as PyTorch has it."""
    extent = d.shape(x)[1:]
    grid = d.graph.activation(d.like(x, (len(extent), *(d.rng.choice((e, e + 2)) for e in extent))), "tanh")
    how = d.rng.choice(("linear", "nearest", "cubic") if len(extent) == 2 else ("linear", "nearest"))
    words = {"padding": d.rng.choice(("zeros", "border", "reflection")), "aligned": d.rng.random() < 0.5}
    return d.graph.grid_sample(x, d.add(layers.Affine("scale", (1,)), grid), how=how, **words)


@layer("global_pool")
def global_pool(d: Drawing, x: str) -> str:
    return d.graph.global_pool(x, how=d.rng.choice(("max", "average")))


@layer("concat")
def concat(d: Drawing, x: str) -> str:
    c, *extent = d.shape(x)
    return d.graph.concat(*(x, d.like(x, (c + 1, *extent)), x)[: d.rng.randint(1, 3)])


@layer("flatten")
def flatten(d: Drawing, x: str) -> str:
    return d.graph.flatten(x)


@layer("reshape")
def reshape(d: Drawing, x: str) -> str:
    c, *extent = d.shape(x)
    return d.graph.reshape(x, d.rng.choice(((1, c, *extent)[:4], (c, math.prod(extent)), (c * math.prod(extent),), (c, *extent))))


@layer("stop")
def stop(d: Drawing, x: str) -> str:
    return d.graph.stop(x)


@layer("permute")
def permute(d: Drawing, x: str) -> str:
    order = list(range(len(d.shape(x))))
    d.rng.shuffle(order)
    return d.graph.permute(x, order)


@layer("depth_to_space")
def depth_to_space(d: Drawing, x: str) -> str:
    wide = d.graph.conv(x, 2 * 2 ** (len(d.shape(x)) - 1), 1)
    return d.graph.depth_to_space(wide, 2, how=d.rng.choice(("crd", "dcr")))


@layer("pad")
def pad(d: Drawing, x: str) -> str:
    return d.graph.pad(x, [d.ints(-1, 2, 2) for _ in d.shape(x)[1:]])


@layer("laid")
def laid(d: Drawing, x: str) -> str:
    around = [d.ints(-1, 2, 2) for _ in d.shape(x)]
    size = tuple(e + a + b for e, (a, b) in zip(d.shape(x), around, strict=True))
    return d.add(layers.Laid(tuple(a for a, _ in around), size, d.rng.choice((0.0, 0.5))), x)


@layer("upsample")
def upsample(d: Drawing, x: str) -> str:
    extent = d.shape(x)[1:]
    size = tuple(d.rng.choice((2 * e, 3 * e, e, e + 3, 7)) for e in extent)
    return d.graph.upsample(x, size, how=d.rng.choice(("nearest", "linear", "aligned")))


WHERES = ("asymmetric", "half_pixel", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric", "tf_half_pixel_for_nn")


@layer("resize")
def resize(d: Drawing, x: str) -> str:
    extent = d.shape(x)[1:]
    how = d.rng.choice(("floor", "floor", "ceil", "prefer_floor", "prefer_ceil", "linear", "edge", "reflect", "wrap", "steps"))
    if how == "steps":
        step, begin = d.ints(1, 2, len(extent)), d.ints(0, 1, len(extent))
        size = tuple(len(range(b, e, s)) for e, b, s in zip(extent, begin, step, strict=True))
        lines = [(0.0, float(s), 1.0, -float(b)) for b, s in zip(begin, step, strict=True)]
        return d.add(layers.ResizeLayer("floor", size, tuple(itertools.chain(*lines))), x)
    if how in ("edge", "reflect", "wrap"):
        around = [d.ints(-1 if d.rng.random() < 0.2 else 0, 2, 2) for _ in extent]
        lines = [(-float(a), 1.0, 1.0, 0.0) for a, _ in around]
        size = tuple(e + a + b for e, (a, b) in zip(extent, around, strict=True))
        return d.add(layers.ResizeLayer(how, size, tuple(itertools.chain(*lines))), x)
    where = d.rng.choice(WHERES)
    scales = [d.rng.choice((1.0, 2.0, 0.5, 1.5, 3.0, float(np.float32(1.3)))) for _ in extent]
    size = tuple(max(1, math.floor(e * np.float32(s))) for e, s in zip(extent, scales, strict=True))
    lines = [axis_line(how, where, e, s, by) for e, s, by in zip(extent, size, scales, strict=True)]
    return d.add(layers.ResizeLayer(how, size, tuple(itertools.chain(*lines))), x)


@layer("convert")
def convert(d: Drawing, x: str) -> str:
    store = d.rng.choice(("u8", "u16", "i16", "i32", "b8"))
    numbers = d.rng.choice(({}, {"scale": 1 / 255}, {"scale": 0.5, "offset": -1.0}))
    return d.graph.convert(d.input(d.rng.randint(1, 3), store), **numbers)


@layer("round")
def round_(d: Drawing, x: str) -> str:
    return d.graph.round(d.add(layers.Affine("scale", (1,)), x), d.rng.choice(("u8", "u16", "i16", "i32", "b8")))


@layer("argmax")
def argmax(d: Drawing, x: str) -> str:
    return d.graph.argmax(x, d.rng.choice(("u8", "u16", "i16", "i32")))

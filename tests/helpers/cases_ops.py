"""Random problems of every kind: one to three spatial axes, anything that the kind's descriptor can say."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from ooc.errors import ShapeError
from ooc.ir.op import INTEGERS, LAYOUTS, Op
from ooc.ops import (
    ACTIVATIONS,
    Accrue,
    ActivationBackward,
    AdamUpdate,
    ArgMax,
    Attention,
    Binary,
    BnApply,
    BnMoments,
    BnPull,
    BnSums,
    Concat,
    ConvDgrad,
    ConvertIn,
    ConvertOut,
    ConvFprop,
    ConvWgrad,
    CrossEntropy,
    CrossEntropyBackward,
    DiceDot,
    DicePull,
    DiceScore,
    DiceSums,
    Distance,
    DistanceBackward,
    Dropout,
    Embed,
    Function,
    GridSample,
    GridSampleDgrid,
    GridSampleDx,
    LrnBackward,
    LrnForward,
    MatMul,
    Multiply,
    Pace,
    Permute,
    Pointwise,
    PoolBackward,
    PoolForward,
    Reduce,
    Resize,
    ResizeBackward,
    RmsPropUpdate,
    Sgd,
    SoftmaxApply,
    SoftmaxDot,
    SoftmaxPull,
    SoftmaxSum,
    Spread,
    Squares,
    Upsample,
    UpsampleBackward,
)  # fmt: skip
from ooc.ops.attention import PARTS
from ooc.ops.binary import BINARIES
from ooc.ops.distance import DISTANCES
from ooc.ops.function import FUNCTIONS
from ooc.ops.grid_sample import MODES, PADDINGS
from ooc.ops.matmul import HOWS as PRODUCTS
from ooc.ops.matmul import RUN
from ooc.ops.resize import BORDERS, HOWS
from ooc.ops.spatial import IN

Common = dict[str, Any]  # dtype and layout
Shape = tuple[int, ...]
LARGEST = {1: 13, 2: 7, 3: 4}  # extents, by the number of spatial axes


def random_common(rng: random.Random) -> Common:
    return {"dtype": rng.choice(("f32", "f32", "f64", "f16", "bf16")), "layout": rng.choice(LAYOUTS)}


def random_shape(rng: random.Random, most: int = 6) -> Shape:
    """n, channels, and one to three extents."""
    rank = rng.choice((1, 2, 2, 3))
    return (rng.randint(1, 3), rng.randint(1, most), *(rng.randint(1, LARGEST[rank]) for _ in range(rank)))


def fitting(make: Callable[[], Any]) -> Any:
    """The first of many draws that is a valid op."""
    for _ in range(200):
        try:
            return make()
        except ShapeError:
            continue
    raise AssertionError("no valid problem in 200 draws")


def random_act(rng: random.Random) -> dict[str, Any]:
    """Mostly an activation that keeps integers exact."""
    act = rng.choice(("identity", "relu", "identity", "relu", *ACTIVATIONS))
    coef = {"clipped_relu": 3.0, "leaky_relu": rng.choice((0.25, 0.1)), "elu": 0.7}
    return {"act": act, "coef": coef.get(act, 0.0)}


def dividing(rng: random.Random, *channels: int) -> int:
    """A number of groups that divides all of these, depthwise included."""
    return rng.choice([1, 1, *(g for g in range(1, min(channels) + 1) if all(c % g == 0 for c in channels))])


# ---- windows


def conv_sizes(rng: random.Random, shape: Shape, k: int = 0, most_taps: int = 3) -> dict[str, Any]:
    """Sizes of a convolution of an x of this shape; they may not fit."""
    n, c, *extent = shape
    groups = dividing(rng, c, k) if k else dividing(rng, c)
    return {
        "n": n, "c": c, "extent": tuple(extent), "k": k or groups * rng.randint(1, 3), "groups": groups,
        "taps": tuple(rng.randint(1, most_taps) for _ in extent), "stride": tuple(rng.randint(1, 3) for _ in extent),
        "dilation": tuple(rng.randint(1, 2) for _ in extent),
        "pad": tuple((rng.randint(0, 3), rng.randint(0, 3)) for _ in extent),
    }  # fmt: skip


def pool_sizes(rng: random.Random, shape: Shape) -> dict[str, Any]:
    """Sizes of a pooling of an x of this shape; they may not fit."""
    n, k, *extent = shape
    window = tuple(rng.randint(1, 3) for _ in extent)
    return {
        "n": n, "k": k, "extent": tuple(extent), "window": window, "stride": tuple(rng.randint(1, 3) for _ in extent),
        "pad": tuple((rng.randrange(w), rng.randrange(w)) for w in window), "groups": dividing(rng, k),
    }  # fmt: skip


def _conv(cls: type[Any]) -> Callable[[random.Random, Common], Op]:
    def make(rng: random.Random, common: Common) -> Op:
        def draw() -> Op:
            extra = random_act(rng) | {"bias": rng.random() < 0.5} if cls is not ConvWgrad else {}
            op: Op = cls(**conv_sizes(rng, random_shape(rng)), **extra, **common)
            return op

        found: Op = fitting(draw)
        return found

    return make


def _pool(cls: type[Any], how: str) -> Callable[[random.Random, Common], Op]:
    return lambda rng, common: fitting(lambda: cls(how, **pool_sizes(rng, random_shape(rng)), **common))


# ---- element by element, and folds


def _sizes(rng: random.Random) -> dict[str, Any]:
    n, k, *extent = random_shape(rng)
    return {"n": n, "k": k, "extent": tuple(extent)}


def _letters(rng: random.Random, sizes: dict[str, Any]) -> str:
    """Axes along which a tensor is full: none said, all, some, or `1`."""
    letters = "nk" + IN[len(sizes["extent"])]
    some = "".join(x for x in letters if rng.random() < 0.5)
    return rng.choice(("", letters, some, some, "1"))


def _pointwise(rng: random.Random, common: Common) -> Op:
    s = _sizes(rng)
    alpha, beta = (rng.choice((1.0, 1.0, 0.5, -2.0, 0.0, 0.3)) for _ in range(2))
    return Pointwise(
        **s, bias=rng.random() < 0.5, **random_act(rng), alpha=alpha, beta=beta, add=_letters(rng, s), of=_letters(rng, s),
        groups=dividing(rng, s["k"]), **common,
    )  # fmt: skip


def _activation_backward(rng: random.Random, common: Common) -> Op:
    s = _sizes(rng)
    return ActivationBackward(**s, **random_act(rng), groups=dividing(rng, s["k"]), **common)


def _convert_in(rng: random.Random, common: Common) -> Op:
    s, each = _sizes(rng), rng.random() < 0.4
    numbers = {} if each else {"scale": rng.choice((1.0, 0.5, -2.0, 0.1)), "offset": rng.choice((0.0, 0.0, 3.0, -0.3))}
    return ConvertIn(
        **s, store=rng.choice(INTEGERS), channelwise=each, **numbers, groups=dividing(rng, s["k"]), **common
    )  # fmt: skip


def _convert_out(rng: random.Random, common: Common) -> Op:
    s = _sizes(rng)
    return ConvertOut(**s, store=rng.choice(INTEGERS), groups=dividing(rng, s["k"]), **common)


def _reduce(how: str) -> Callable[[random.Random, Common], Op]:
    def make(rng: random.Random, common: Common) -> Op:
        s = _sizes(rng)
        return Reduce(how, **s, alpha=rng.choice((1.0, 1.0, 0.25, 0.3)), groups=dividing(rng, s["k"]), **common)

    return make


def _plain(cls: type[Any], *how: str) -> Callable[[random.Random, Common], Op]:
    """Ops that have nothing but sizes."""
    return lambda rng, common: cls(*how, **_sizes(rng), **common)


def _cross_entropy(cls: type[Any]) -> Callable[[random.Random, Common], Op]:
    def make(rng: random.Random, common: Common) -> Op:
        op: Op = cls(**_sizes(rng), smoothing=rng.choice((0.0, 0.0, 0.1, 1.0)), weighted=rng.random() < 0.4, **common)
        return op

    return make


def _distance(cls: type[Any], how: str) -> Callable[[random.Random, Common], Op]:
    return lambda rng, common: cls(how, **_sizes(rng), weighted=how == "bce" and rng.random() < 0.5, **common)


def _dice(cls: type[Any], least: int = 1) -> Callable[[random.Random, Common], Op]:
    def make(rng: random.Random, common: Common) -> Op:
        sizes = _sizes(rng)
        sizes["k"] = max(least, rng.choice((1, sizes["k"])))
        scored = {"smooth": rng.choice((1.0, 0.25)), "background": rng.random() < 0.7}
        together = {"batch": rng.random() < 0.4}
        if cls is DiceScore:
            return DiceScore(**{**sizes, "extent": (1,) * len(sizes["extent"])}, **scored, **common)
        op: Op = cls(**sizes, **together, **({} if cls is DiceSums else scored), **common)
        return op

    return make


def _bn(cls: type[Any]) -> Callable[[random.Random, Common], Op]:
    def make(rng: random.Random, common: Common) -> Op:
        own: dict[str, Any] = {} if cls is BnMoments else {"eps": rng.choice((1e-5, 0.1))}
        if cls is BnApply:
            own |= random_act(rng)
        found: Op = cls(**_sizes(rng), per=rng.choice(("channel", "channel", "activation")), **own, **common)
        return found

    return make


def _lrn(cls: type[Any]) -> Callable[[random.Random, Common], Op]:
    def make(rng: random.Random, common: Common) -> Op:
        size = rng.randint(1, 6)
        own = {"alpha": rng.choice((1e-4, 0.5)), "beta": rng.choice((0.75, 0.5)), "base": rng.choice((1.0, 2.0))}
        found: Op = cls(**_sizes(rng), size=size, before=rng.randrange(size), **own, **common)
        return found

    return make


def _dropout(rng: random.Random, common: Common) -> Op:
    seed, drawn = rng.choice((0, 7, rng.getrandbits(64))), rng.random() < 0.5
    return Dropout(**_sizes(rng), rate=rng.choice((0.5, 0.5, 0.75, 0.0, 0.1)), seed=seed, drawn=drawn, **common)


def _multiply(rng: random.Random, common: Common) -> Op:
    s = _sizes(rng)
    return Multiply(**s, by=_letters(rng, s), bias=rng.random() < 0.5, **random_act(rng), **common)


def _binary(how: str) -> Callable[[random.Random, Common], Op]:
    def make(rng: random.Random, common: Common) -> Op:
        s = _sizes(rng)
        return Binary(how, **s, by=_letters(rng, s), **common)

    return make


def _matmul(how: str) -> Callable[[random.Random, Common], Op]:
    """One in five has sums of several runs."""

    def make(rng: random.Random, common: Common) -> Op:
        long = rng.random() < 0.2
        extent, alpha = tuple(rng.randint(1, 3 if long else 12) for _ in range(2)), rng.choice((1.0, 0.5))
        c = RUN + rng.randint(1, RUN + 9) if long else rng.randint(1, 12)
        return MatMul(how, rng.randint(1, 3), rng.randint(1, 4), extent, c, alpha, **common)

    return make


def _attention(how: str) -> Callable[[random.Random, Common], Op]:
    def make(rng: random.Random, common: Common) -> Op:
        extent, depths = tuple(rng.randint(1, 9) for _ in range(2)), [rng.randint(1, 9) for _ in range(2)]
        n, k, groups = rng.randint(1, 3), rng.randint(1, 4), rng.choice((1, 1, 2, 3))
        by, mask = ("".join(c for c in ("nkhw" if groups == 1 else "ngkhw") if rng.random() < 0.6) or "1" for _ in range(2))
        by, mask = rng.choice((("", ""), (by, ""), ("", mask), (by, mask)))
        if how == "dots":
            extent, by, mask = (extent[0], 1), "", ""
        scale = rng.choice((1.0, 0.5))
        return Attention(how, n, k * groups, extent, *depths, scale, by, mask, **{**common, "groups": groups})

    return make


def _concat(rng: random.Random, common: Common) -> Op:
    n, _, *extent = random_shape(rng)
    return Concat(n, tuple(rng.randint(1, 4) for _ in range(rng.randint(1, 4))), tuple(extent), **common)


def place_sizes(rng: random.Random, shape: Shape) -> dict[str, Any]:
    """Sizes of an x of this shape laid somewhere, mostly where some of it is seen."""
    n, *own = shape
    made = [rng.randint(1, 2 * e) for e in own]
    lead = tuple(
        rng.randint(-e, m) if rng.random() < 0.3 else rng.randint(min(0, m - e), max(0, m - e))
        for e, m in zip(own, made, strict=True)
    )
    return {"n": n, "c": own[0], "extent": tuple(own[1:]), "k": made[0], "size": tuple(made[1:]), "lead": lead}


def _place(rng: random.Random, common: Common) -> Op:
    return Embed(**place_sizes(rng, random_shape(rng)), value=rng.choice((0.0, 0.0, -2.0)), **common)


def _function(how: str) -> Callable[[random.Random, Common], Op]:
    def make(rng: random.Random, common: Common) -> Op:
        a, b = (-1.0, 2.0) if how == "clip" else (0.25, 0.5)
        return Function(how, **_sizes(rng), a=a, b=b, **common)

    return make


def _resize(how: str, kind: type[Resize] = Resize) -> Callable[[random.Random, Common], Op]:
    """Positions that f32 holds without rounding, so that all agree what they are rounded to; some go backwards."""

    def make(rng: random.Random, common: Common) -> Op:
        s = _sizes(rng)
        size = tuple(rng.choice((e, 2 * e, rng.randint(1, 2 * LARGEST[3]))) for e in s["extent"])
        lines: list[float] = []
        for extent in s["extent"]:
            by = rng.choice((0.5, 1.0, 2.0, 4.0))
            if how not in BORDERS and rng.random() < 0.2:
                lines += (0.0, -1.0, by, 1.0 - extent)
                continue
            own = (
                (-float(rng.randint(0, 5)), 1.0, 1.0, 0.0) if how in BORDERS else (*rng.choice(((0.5, 1.0), (0.0, 3.0))), by, 0.5)
            )
            lines += own
        return kind(how, **s, size=size, lines=tuple(lines), **common)

    return make


def _argmax(rng: random.Random, common: Common) -> Op:
    n, c, *extent = random_shape(rng)
    return ArgMax(n, c, tuple(extent), rng.choice(("u8", "u16", "i16", "i32")), **common)


def _permute(rng: random.Random, common: Common) -> Op:
    s = _sizes(rng)
    order = list(range(1 + len(s["extent"])))
    rng.shuffle(order)
    return Permute(**s, order=tuple(order), **common)


def _spread(how: str) -> Callable[[random.Random, Common], Op]:
    def make(rng: random.Random, common: Common) -> Op:
        n, k, *extent = random_shape(rng, 3)
        block = rng.choice((1, 2, 3))
        return Spread(how, n, k * block ** len(extent), tuple(extent), block, **common)

    return make


def _masters(rng: random.Random) -> dict[str, bool]:
    master = rng.random() < 0.4
    return {"master": master, "summed": master and rng.random() < 0.5}


def _sgd(rng: random.Random, common: Common) -> Op:
    return Sgd(**_sizes(rng), momentum=rng.random() < 0.7, dtype=common["dtype"], **_masters(rng))


def _adam(rng: random.Random, common: Common) -> Op:
    return AdamUpdate(**_sizes(rng), dtype=common["dtype"], **_masters(rng))


def _rmsprop(rng: random.Random, common: Common) -> Op:
    words = {"momentum": rng.random() < 0.5, "centered": rng.random() < 0.5}
    return RmsPropUpdate(**_sizes(rng), **words, dtype=common["dtype"], **_masters(rng))


def _accrue(rng: random.Random, common: Common) -> Op:
    return Accrue(**_sizes(rng), dtype=common["dtype"])


def _squares(rng: random.Random, common: Common) -> Op:
    return Squares(1, 1, (rng.randint(1, 2000),), rng.random() < 0.5, common["dtype"])


def _pace(rng: random.Random, common: Common) -> Op:
    return Pace(summed=rng.random() < 0.7, count=rng.choice((-1, 5)))


def _upsample(cls: type[Any], how: str) -> Callable[[random.Random, Common], Op]:
    def make(rng: random.Random, common: Common) -> Op:
        s = _sizes(rng)
        size = tuple(rng.choice((e, 2 * e, rng.randint(1, 2 * LARGEST[3]))) for e in s["extent"])
        found: Op = cls(how, **s, size=size, **common)
        return found

    return make


def _grid_sample(cls: type[Any]) -> Callable[[random.Random, Common], Op]:
    def make(rng: random.Random, common: Common) -> Op:
        s = _sizes(rng)
        size = tuple(rng.choice((e, rng.randint(1, LARGEST[3] + 2))) for e in s["extent"])
        words = {"mode": rng.choice(tuple(MODES)), "padding": rng.choice(PADDINGS), "aligned": rng.random() < 0.5}
        reach = tuple(rng.randint(0, 2) for _ in size) if rng.random() < 0.5 else ()
        op: Op = cls(**s, size=size, **words, reach=reach, **common)
        return op

    return make


KINDS: dict[str, Callable[[random.Random, Common], Op]] = {
    "conv.fprop": _conv(ConvFprop),
    "conv.dgrad": _conv(ConvDgrad),
    "conv.wgrad": _conv(ConvWgrad),
    **{f"pool.{how}": _pool(PoolForward, how) for how in ("max", "average", "average_valid")},
    **{f"pool_backward.{how}": _pool(PoolBackward, how) for how in ("max", "average", "average_valid")},
    "pointwise": _pointwise,
    "multiply": _multiply,
    **{f"binary.{how}": _binary(how) for how in BINARIES},
    **{f"matmul.{how}": _matmul(how) for how in PRODUCTS},
    **{f"attention{'' if how == 'forward' else '_backward'}.{how}": _attention(how) for how in PARTS},
    "concat": _concat,
    "place": _place,
    "argmax": _argmax,
    "permute": _permute,
    **{f"spread.{how}": _spread(how) for how in ("crd", "dcr")},
    **{f"function.{how}": _function(how) for how in FUNCTIONS},
    **{f"resize.{how}": _resize(how) for how in HOWS},
    **{f"resize_backward.{how}": _resize(how, ResizeBackward) for how in HOWS},
    "convert.in": _convert_in,
    "convert.out": _convert_out,
    "activation_backward": _activation_backward,
    "reduce.bias": _reduce("bias"),
    "reduce.positions": _reduce("positions"),
    "bn.moments": _bn(BnMoments),
    "bn.apply": _bn(BnApply),
    "bn.sums": _bn(BnSums),
    "bn.pull": _bn(BnPull),
    "softmax.sum": _plain(SoftmaxSum),
    "softmax.plain": _plain(SoftmaxApply, "plain"),
    "softmax.log": _plain(SoftmaxApply, "log"),
    "softmax_backward.dot": _plain(SoftmaxDot, "dot"),
    "softmax_backward.sum": _plain(SoftmaxDot, "sum"),
    "softmax_backward.plain": _plain(SoftmaxPull, "plain"),
    "softmax_backward.log": _plain(SoftmaxPull, "log"),
    "cross_entropy": _cross_entropy(CrossEntropy),
    "cross_entropy_backward": _cross_entropy(CrossEntropyBackward),
    **{f"distance.{how}": _distance(Distance, how) for how in DISTANCES},
    **{f"distance_backward.{how}": _distance(DistanceBackward, how) for how in DISTANCES},
    "dice.sums": _dice(DiceSums),
    "dice.score": _dice(DiceScore),
    "dice_backward.dot": _dice(DiceDot, 2),
    "dice_backward.pull": _dice(DicePull),
    "lrn": _lrn(LrnForward),
    "lrn_backward": _lrn(LrnBackward),
    "grid_sample": _grid_sample(GridSample),
    "grid_sample_backward.x": _grid_sample(GridSampleDx),
    "grid_sample_backward.grid": _grid_sample(GridSampleDgrid),
    "dropout": _dropout,
    "sgd": _sgd,
    "adam": _adam,
    "adam.rmsprop": _rmsprop,
    "pointwise.accrue": _accrue,
    "reduce.squares": _squares,
    "sgd.pace": _pace,
    **{f"upsample.{how}": _upsample(Upsample, how) for how in ("nearest", "linear", "aligned")},
    **{f"upsample_backward.{how}": _upsample(UpsampleBackward, how) for how in ("nearest", "linear", "aligned")},
}

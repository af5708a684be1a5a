"""Random problems: convolutions and chains of up to three of them, with integer data that any tiling computes exactly;
data for any op, and plans."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
from oracle_forward import attention
from oracle_sampling import positions

from ooc.backends.base import Offer, fused_workspace
from ooc.errors import ShapeError
from ooc.ir.fused import fuse
from ooc.ir.op import INTEGERS, LAYOUTS, Op, numpy_dtype
from ooc.ir.region import Span, split
from ooc.ops import Attention, ConvFprop, Pointwise, PoolForward
from ooc.schedule.budget import Budget
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan

DTYPES = ("f32", "f32", "f64", "f16", "bf16")
EXACT_ACTS = ("identity", "relu", "clipped_relu")
EXACT_KINDS = (
    "conv.fprop", "conv.dgrad", "conv.wgrad", "pool.max", "pool_backward.max", "pointwise", "activation_backward", "convert.in",
    "convert.out", "multiply", "concat", "place",
    "permute", "spread.crd", "spread.dcr",
    "function.clip", "function.above", "function.abs", "function.sign", "function.floor", "function.round",
    "function.hard_shrink",
    "binary.maximum", "binary.minimum", "binary.greater", "binary.not_less", "binary.equal", "binary.where", "binary.unless",
    "matmul.nn", "matmul.nt", "matmul.tn", "argmax", "resize.floor", "resize.ceil",
    "resize.prefer_floor", "resize.prefer_ceil", "resize.edge", "resize.reflect", "resize.wrap",
    "resize_backward.floor", "resize_backward.edge", "resize_backward.reflect",
    "resize_backward.wrap",
    "reduce.bias", "reduce.positions", "upsample.nearest", "upsample_backward.nearest", "dropout", "softmax_backward.dot",
    "softmax_backward.sum",
)  # fmt: skip


def random_conv(rng: random.Random, dtype: str, layout: str, rank: int) -> ConvFprop:
    """A small convolution with anything that a convolution can have."""
    groups = rng.choice([1, 1, 1, 2, 3])
    c, k = groups * rng.randint(1, 4), groups * rng.randint(1, 4)
    while True:
        extent = tuple(rng.randint(1, 9) for _ in range(rank))
        taps, stride = (tuple(rng.randint(1, 3) for _ in range(rank)) for _ in range(2))
        dilation = tuple(rng.randint(1, 2) for _ in range(rank))
        pad = tuple((rng.randint(0, 3), rng.randint(0, 3)) for _ in range(rank))
        act = rng.choice(EXACT_ACTS)
        try:
            return ConvFprop(
                rng.randint(1, 3), c, extent, k, taps, stride, dilation, pad, rng.random() < 0.5, act,
                3.0 if act == "clipped_relu" else 0.0, groups, dtype, layout,
            )  # fmt: skip
        except ShapeError:
            continue


def random_next(rng: random.Random, before: Op) -> Op | None:
    """A stage that can follow another; None when none was found."""
    made = before.outputs[0]
    n, k, *extent = made.shape
    layout, dtype, rank = getattr(before, "layout", "channels_first"), before.dtype, len(extent)
    groups = rng.choice([1, getattr(before, "groups", 1)])
    for _ in range(50):
        kind = rng.choice(("pool", "conv", "pointwise"))
        try:
            if kind == "pointwise":
                return Pointwise(n, k, tuple(extent), rng.random() < 0.5, "relu", 0.0, groups=groups, dtype=dtype, layout=layout)
            window, stride = (tuple(rng.randint(1, 3) for _ in range(rank)) for _ in range(2))
            if kind == "pool":
                pad = tuple((rng.randint(0, w - 1), rng.randint(0, w - 1)) for w in window)
                return PoolForward("max", n, k, tuple(extent), window, stride, pad, groups, dtype, layout)
            own = rng.choice([g for g in (1, 2, 3, k) if k % g == 0])
            pads = tuple((rng.randint(0, 2), rng.randint(0, 2)) for _ in range(rank))
            return ConvFprop(
                n, k, tuple(extent), own * rng.randint(1, 3), window, stride, (1,) * rank, pads, rng.random() < 0.5,
                rng.choice(EXACT_ACTS[:2]), 0.0, own, dtype, layout,
            )  # fmt: skip
        except ShapeError:
            continue
    return None


def random_op(rng: random.Random) -> Op:
    """One convolution or a chain of up to three stages, in any dtype and layout."""
    dtype, layout, rank = rng.choice(DTYPES), rng.choice(LAYOUTS), rng.choice((1, 2, 2, 3))
    stages: list[Op] = [random_conv(rng, dtype, layout, rank)]
    for _ in range(rng.choice((0, 0, 1, 2))):
        following = random_next(rng, stages[-1])
        if following is not None:
            stages.append(following)
    return fuse(*stages)


def integers(rng: random.Random, op: Op) -> dict[str, Any]:
    """Small integers for every input of an op; sparse enough that half types hold every partial result exactly."""
    numbers = np.random.default_rng(rng.getrandbits(32))
    bound = 1 if op.dtype in ("f16", "bf16") else 2
    return {o.name: numbers.integers(-bound, bound + 1, o.shape).astype(numpy_dtype(o.dtype)) for o in op.inputs}


def noise(rng: random.Random, op: Op) -> dict[str, Any]:
    """Values whose sums are rounded, so that their order shows."""
    numbers = np.random.default_rng(rng.getrandbits(32))
    found = {}
    for o in op.inputs:
        values = numbers.standard_normal(o.shape) * 10.0 ** numbers.integers(-2, 2, o.shape)
        found[o.name] = (np.abs(values) + 0.1 if o.name in ("var", "lse", "v", "totals", "weights") else values).astype(
            numpy_dtype(o.dtype)
        )
        if o.name == "labels":
            found[o.name] = numbers.integers(-1, op.inputs[0].shape[1], o.shape)
        if o.name == "rates":
            found[o.name] = rates(rng, op)
        if o.name in ("shares", "controls", "state") or (op.kind == "sgd.pace" and o.name == "sums"):
            found[o.name] = pacing(rng, o.name)
    return found


def exact_in(op: Op, result: Any) -> bool:
    """Whether the dtype of an op holds its exact result (and so every partial one of these problems)."""
    limit = {"f64": 2**50, "f32": 2**24, "f16": 2**11, "bf16": 2**8}[op.dtype]
    return bool(np.max(np.abs(result), initial=0) <= limit)


def is_exact(op: Op) -> bool:
    """Whether every stage of an op computes small integers without rounding, in any order of summation."""
    return all(_is_exact(stage) for stage in op.stages)


def _is_exact(op: Any) -> bool:
    act = getattr(op, "act", "identity")
    if act not in EXACT_ACTS and (act, op.coef) != ("leaky_relu", 0.25):
        return False
    dyadic = (getattr(op, name, 1.0) for name in ("alpha", "beta", "scale", "offset"))
    return op.kind in EXACT_KINDS and all((v * 16).is_integer() for v in dyadic) and getattr(op, "rate", 0) in (0, 0.5, 0.75)


def rates(rng: random.Random, op: Op) -> Any:
    """Of the optimizer among the stages of an op: usual ones, or with a term that vanishes, or where nothing moves."""
    found, decay = np.zeros(8), rng.choice((0.0, 0.01))
    if any(stage.kind == "adam" for stage in op.stages):
        apart = rng.choice((0, 1))
        found[:7] = rng.choice((1e-3, 0.1)), rng.choice((0.9, 0.0)), 0.999, 1e-8, decay, rng.choice((1, 2, 1000)), apart
    elif any(stage.kind == "adam.rmsprop" for stage in op.stages):
        found[:5] = rng.choice((1e-3, 0.1)), rng.choice((0.9, 0.5)), 0.1, decay, rng.choice((0.9, 0.5))
    else:
        found[:4] = rng.choice((0.5, 0.1)), rng.choice((0.9, 0.5)), decay, rng.choice((0, 1))
    found[7] = rng.choice((0, 0, 0.5, -1))
    return found


def pacing(rng: random.Random, name: str) -> Any:
    """The numbers of steps that sum, or wait, or have come to nothing."""
    if name == "shares":
        return np.array([rng.choice((0.0, 1.0, 0.75)), rng.choice((0.0, 1.0, 0.25))])
    if name == "controls":
        most, fixed = rng.choice((math.inf, 0.1, 10)), rng.choice((0, 1, 1024))
        return np.array([rng.choice((0, 1, 1)), rng.choice((1, 0.25)), most, 0.9, fixed, 0, 0, 0])
    if name == "state":
        return np.array([rng.choice((2.0**16, 2.0**-24)), rng.choice((0, 1999)), 3, 0])
    return np.array([rng.choice((1, 1, 1, math.inf, math.nan)) * rng.random() for _ in range(256)])


POSITIVE = ("reciprocal", "sqrt", "rsqrt", "log", "pow")
WITHIN_ONE = ("asin", "acos", "atanh", "tan")


def in_domain(op: Op, name: str, values: Any) -> Any:
    """Values that functions of a part of the numbers have a result of."""
    how = op.kind.split(".")[-1].removesuffix("_slope")
    if how in POSITIVE or (how, name) in (("power", "x"), ("divide", "z")):
        return np.abs(values) + 0.5
    if how in WITHIN_ONE:
        return np.clip(values / 4, -0.9, 0.9)
    return np.abs(values) + 1.25 if how == "acosh" else values


def data(rng: random.Random, op: Op) -> dict[str, Any]:
    """Values for every input of an op: small integers where they are computed exactly, otherwise anything that fits."""
    numbers = np.random.default_rng(rng.getrandbits(32))
    bound = 1 if op.dtype in ("f16", "bf16") else 2
    found = {}
    for o in op.inputs:
        if o.name == "labels":
            found[o.name] = numbers.integers(-1, op.stages[-1].inputs[0].shape[1], o.shape)
        elif o.name == "rates":
            found[o.name] = rates(rng, op)
        elif o.name in ("shares", "controls", "state") or op.kind == "sgd.pace":
            found[o.name] = pacing(rng, o.name)
        elif o.name.startswith("draw"):
            found[o.name] = numbers.integers(-(2**53), 2**53, o.shape)  # float64 holds it
        elif o.name == "grid":
            found[o.name] = positions(op, numbers).astype(numpy_dtype(o.dtype))
        elif o.dtype in INTEGERS:
            lo, hi = (-bound if o.dtype in ("i16", "i32") else 0), (1 if o.dtype == "b8" else 100 * bound)
            found[o.name] = numbers.integers(lo, hi + 1, o.shape).astype(numpy_dtype(o.dtype))
        elif op.kind == "convert.out":
            quarters = numbers.integers(-12, 13, o.shape) / 4 + numbers.choice((0, 1, -(2**7), 2**8, 2.0**15, 2.0**31), o.shape)
            odd = numbers.choice((1.0, 1, 1, 1, np.nan, np.inf, -np.inf), o.shape)
            with np.errstate(invalid="ignore", over="ignore"):
                found[o.name] = (quarters * odd).astype(numpy_dtype(o.dtype))
        elif is_exact(op):
            found[o.name] = numbers.integers(-bound, bound + 1, o.shape).astype(numpy_dtype(o.dtype))
        else:
            values = numbers.standard_normal(o.shape)
            if o.name in ("var", "sums", "v", "totals", "weights"):
                values = np.abs(values) + 0.5
            if o.name == "a":  # a mean, whose square is below that of squares
                values = values / 4
            values = in_domain(op, o.name, values)
            found[o.name] = values.astype(numpy_dtype(o.dtype))
    if isinstance(op, Attention) and "sums" in found:  # what it makes of them is meant for those of its scores
        found["sums"] = attention(replace(op, how="forward"), {n: v.astype(np.float64) for n, v in found.items()})["sums"]
    return found


def reference_offer(op: Op) -> Offer:
    """The NumPy meaning of an op. It is offered only where there is no compiled extension, but must be right everywhere."""
    own = [lambda sizes: 0] * len(op.stages)
    return Offer("reference", lambda sizes: fused_workspace(op, sizes, own))


def random_plan(rng: random.Random, op: Op, backend: Any) -> Plan:
    """Any legal tiling, loop order, depth, placement and kernel."""
    sizes = op.legal({d: rng.randint(1, e) for d, e in op.dims.items()})
    order = list(op.dims)
    rng.shuffle(order)
    places = tuple((o.name, rng.choice((Place.HOST, Place.DEVICE, Place.PINNED))) for o in op.operands)
    offer = rng.choice((*backend.offers(op, Budget(places=places).in_place), *((reference_offer(op),) if backend.shared else ())))
    return Plan(
        op, tuple(sizes.items()), tuple(order), rng.randint(1, 3), places, backend.staged, backend.shared,
        kernel=offer.name, workspace_bytes=int(offer.workspace(sizes)),
    )  # fmt: skip


def tiles_of(op: Op, sizes: dict[str, int]) -> list[dict[str, Span]]:
    """Every tile of these sizes."""
    pieces = [split(e, sizes[d]) for d, e in op.dims.items()]
    return [dict(zip(op.dims, spans, strict=True)) for spans in itertools.product(*pieces)]

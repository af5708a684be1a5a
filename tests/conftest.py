"""Seeded random problems that several test files share."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Callable
from typing import Any

import long_cases
import numpy as np
import pytest

from ooc import native
from ooc.errors import ShapeError
from ooc.ir.fused import fuse
from ooc.ir.op import Op, numpy_dtype
from ooc.ops import ACTIVATIONS, ConvFprop, Pointwise, PoolForward
from ooc.ops.activation import DEFAULT_COEF
from ooc.ops.pool import KINDS
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan
from ooc.workers import cut

if native.kernels is not None:
    native.kernels.share_from(3)  # threads share problems as small as tests have
os.environ["OOC_PLANS"] = "off"  # tests replace parts of the planner, which the question that a kept plan answers does not tell


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    long_cases.mark(items)


def pytest_collection_finish() -> None:
    """The tests themselves, some 20,000 objects with all that hangs on them, are no rubbish: without this, every sweep of the
    garbage collector looks at them again, and half of some tests' time is that."""
    set_aside()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Nor is what a file leaves behind, modules and what they remember: a sweep that a test asks for took a second in the end."""
    if nextitem is None or nextitem.path != item.path:
        set_aside()


def set_aside() -> None:
    """All that lives now is no longer looked at; what nobody refers to any more still goes."""
    gc.collect()
    gc.freeze()


DEFAULTS = {"dtype": "f32", "layout": "channels_first"}


def _conv(rng: random.Random, shape: tuple[int, ...], common: dict[str, str]) -> Op:
    n, c, *extent = shape
    groups = rng.choice([g for g in (1, 1, 2, 3, c) if c % g == 0])
    pads = tuple((rng.randint(0, 2), rng.randint(0, 2)) for _ in extent)
    taps, stride, dilation = (tuple(rng.randint(1, most) for _ in extent) for most in (3, 3, 2))
    act = rng.choice(("identity", "relu", *ACTIVATIONS))
    return ConvFprop(
        n, c, tuple(extent), groups * rng.randint(1, 3), taps, stride, dilation, pads, rng.random() < 0.5, act,
        DEFAULT_COEF.get(act, 0.0), groups, **common,
    )  # fmt: skip


def _pool(rng: random.Random, shape: tuple[int, ...], common: dict[str, str], groups: int) -> Op:
    n, k, *extent = shape
    window = tuple(rng.randint(1, 3) for _ in extent)
    pads = tuple((rng.randrange(w), rng.randrange(w)) for w in window)
    stride = tuple(rng.randint(1, 3) for _ in extent)
    return PoolForward(rng.choice(KINDS), n, k, tuple(extent), window, stride, pads, groups, **common)


def _pointwise(rng: random.Random, shape: tuple[int, ...], common: dict[str, str], groups: int) -> Op:
    n, k, *extent = shape
    act = rng.choice(ACTIVATIONS)
    return Pointwise(n, k, tuple(extent), rng.random() < 0.5, act, DEFAULT_COEF.get(act, 0.0), groups=groups, **common)


def make_op(rng: random.Random, most: int = 3, common: dict[str, str] = DEFAULTS) -> Op:
    """A random convolution, pooling, pointwise op, or chain of up to `most` of them, in 1 to 3 dimensions."""
    shape = (rng.randint(1, 3), rng.choice((1, 2, 3, 4, 6)), *(rng.randint(2, 7) for _ in range(rng.randint(1, 3))))
    stages: list[Op] = []
    while len(stages) < rng.randint(1, most):
        try:
            stages.append(_next(rng, shape, getattr(stages[-1], "groups", 1) if stages else 1, common))
        except ShapeError:  # the window does not fit: draw again
            continue
        shape = stages[-1].outputs[0].shape
    return fuse(*stages)


def _next(rng: random.Random, shape: tuple[int, ...], groups: int, common: dict[str, str]) -> Op:
    kind = rng.choice(("conv", "conv", "pool", "pointwise"))
    if kind == "conv":
        return _conv(rng, shape, common)
    return (_pool if kind == "pool" else _pointwise)(rng, shape, common, groups)


def make_plan(rng: random.Random, op: Op) -> Plan:
    """A random legal plan: tiles, loop order, depth, places, staging, in turn or not."""
    sizes = op.legal({d: rng.randint(1, e) for d, e in op.dims.items()})
    order = rng.sample(list(op.dims), len(op.dims))
    staged = rng.random() < 0.5
    choices = (Place.DISK, Place.HOST, Place.HOST, Place.PINNED, Place.DEVICE)
    places = tuple((o.name, rng.choice(choices)) for o in op.operands)
    return Plan(op, tuple(sizes.items()), tuple(order), rng.randint(1, 3), places, staged, not staged,
                workspace_bytes=rng.choice((0, 128)), bounce_bytes=rng.choice((0, 4096)),
                in_turn=rng.random() < 0.2)  # fmt: skip


def make_arrays(op: Op, seed: int = 0, most: int = 4) -> dict[str, np.ndarray[Any, Any]]:
    """Small integers for every input of an op: any order of summation gives the same bits."""
    rng = np.random.default_rng(seed)
    return {o.name: rng.integers(-most, most + 1, o.shape).astype(numpy_dtype(o.dtype)) for o in op.inputs}


@pytest.fixture(scope="session")
def random_op() -> Callable[..., Op]:
    return make_op


@pytest.fixture(scope="session")
def random_plan() -> Callable[[random.Random, Op], Plan]:
    return make_plan


@pytest.fixture(scope="session")
def integers() -> Callable[..., dict[str, np.ndarray[Any, Any]]]:
    return make_arrays


@pytest.fixture
def finer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small networks in as many tasks as large ones."""
    monkeypatch.setattr(cut, "SECONDS", 1e-9)
    monkeypatch.setattr(cut, "PARTS", 7)
    monkeypatch.setattr(cut, "DEARER", 1e9)

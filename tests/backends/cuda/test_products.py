"""Products of matrices and attention by cuBLAS, on the emulated device: exact or as near as one tile, however operands lie."""

from __future__ import annotations

import random
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cases import data
from cases_ops import KINDS, random_common
from emulated_device import assert_runs, plan_of
from emulated_driver import emulated
from stand_in_blas import StandInBlas

from ooc.backends.cuda.blas import IN_F32, USUAL, CupyBlas, multiply
from ooc.backends.device_array import at, device_array, host_array
from ooc.errors import UnsupportedError
from ooc.ops import Attention
from ooc.ops.attention import PARTS
from ooc.ops.matmul import HOWS
from ooc.schedule.place import Place

SERVED = (*(f"matmul.{how}" for how in HOWS), *(f"attention {how}" for how in PARTS if how != "dots"))
FORMS = tuple(form for form in KINDS if form.startswith(("matmul.", "attention")) and not form.endswith(".dots"))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("form", FORMS)
def test_tiles_in_any_order(form: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all types, cut anywhere, resident or streamed; and it is cuBLAS that computes them."""
    rng, ran = random.Random(f"{form} {seed}"), list[Any]()
    run = StandInBlas.run
    monkeypatch.setattr(StandInBlas, "run", lambda blas, product: (ran.append(product), run(blas, product))[1])
    common = random_common(rng) | {"layout": "channels_first"}
    op, backend = KINDS[form](rng, common), emulated(seed, cudnn=True)
    sizes = {d: max(1, e // 2) for d, e in op.dims.items() if rng.random() < 0.6}
    plan = plan_of(op, backend, sizes, "cublas", rng.choice((Place.DEVICE, Place.HOST)))
    arrays = data(rng, op)
    assert_runs(plan, arrays, backend, rng)
    assert ran or min(op.dims.values()) == 0


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_what_cublas_refuses_is_refused_before_sums_change(name: str) -> None:
    """With heads innermost in memory; keys are cut, so that a tile goes on from the sums of another one."""
    op, backend, rng = Attention("forward", 1, 3, (5, 6), 4, 2), emulated(0, cudnn=True), random.Random(0)
    plan = plan_of(op, backend, {"q": 2}, "cublas")
    arrays = data(rng, op)
    arrays[name] = np.moveaxis(np.ascontiguousarray(np.moveaxis(arrays[name], 1, 3)), 3, 1)
    assert_runs(plan, arrays, backend, rng)


def test_every_form_is_there() -> None:
    assert len(FORMS) == len(SERVED)


def test_cupys_cublas_works_on_the_stream_of_the_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy's binding takes CuPy's current stream in every call: on an H200 products raced with all that was beside them."""
    current, seen = [0], list[Any]()

    class ExternalStream:
        def __init__(self, stream: int) -> None:
            self.stream = stream

        def __enter__(self) -> None:
            current.append(self.stream)

        def __exit__(self, *error: Any) -> None:
            current.pop()

    binding = SimpleNamespace(create=lambda: "handle", gemmStridedBatchedEx=lambda *given: seen.append((current[-1], given)))
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(ExternalStream=ExternalStream)))
    for name in ("cupy_backends", "cupy_backends.cuda", "cupy_backends.cuda.libs"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(cublas=binding))
    blas = CupyBlas(7, lambda: 0)
    y, a, b = (device_array(64, shape, np.float16) for shape in ((2, 3, 4, 5), (2, 3, 4, 6), (2, 3, 6, 5)))
    multiply(blas, y, a, b, 0.5)
    ((stream, given),) = seen
    assert stream == 7 and current == [0]
    assert given[:6] == ("handle", 0, 0, 5, 4, 6) and given[8:11] == (2, 5, 30) and given[-3:] == (6, IN_F32, USUAL)


def laid(rng: random.Random, values: Any) -> tuple[Any, tuple[int, ...]]:
    """Values in memory with their axes in some order and gaps between rows, and where they lie, in bytes."""
    order = rng.sample(range(4), 4)
    wide = [e + rng.randint(0, 2) * (axis != order[-1]) for axis, e in enumerate(values.shape)]
    memory = np.zeros([wide[axis] for axis in order], values.dtype)
    view = memory.transpose(np.argsort(order))[tuple(slice(0, e) for e in values.shape)]
    view[...] = values
    return memory, view.strides


@pytest.mark.parametrize("seed", range(150))
def test_products_of_matrices_that_lie_anyhow(seed: int) -> None:
    """Rows or columns one element after the other: computed; neither: refused before anything is done."""
    rng, backend = random.Random(seed), emulated(seed, cudnn=True)
    n, h, rows, inner, columns = (rng.randint(1, 4) for _ in range(5))
    draw = np.random.default_rng(seed)
    values = [draw.integers(-4, 5, shape).astype(np.float32) for shape in
              ((n, h, rows, inner), (n, h, inner, columns), (n, h, rows, columns))]  # fmt: skip
    alpha, beta = rng.choice((1.0, 2.0)), rng.choice((0.0, 1.0, 2.0))
    held, arrays, regular = [], [], True
    for value in values:
        memory, strides = laid(rng, value)
        there = backend.allocate("device", memory.nbytes)[: memory.nbytes]
        backend.put(there, memory.view(np.uint8).reshape(-1) if memory.size else memory)
        held.append((there, memory))
        arrays.append(device_array(at(there), value.shape, np.float32, strides))
        (far, near), (r, c) = (s // 4 for s in strides[2:]), value.shape[2:]
        regular = regular and ((near == 1 or c == 1) or (far == 1 or r == 1))
    a, b, y = arrays
    wanted = alpha * (values[0] @ values[1]) + beta * values[2]
    backend.begin()
    try:
        with backend.lane("compute"):
            multiply(backend.blas, y, a, b, alpha, beta)
    except UnsupportedError:
        assert not regular
        return
    got = np.array(backend.fetch(held[2][0]))
    view = host_array(got.ctypes.data, values[2].shape, np.float32, y.strides, owner=got)
    np.testing.assert_array_equal(view, wanted)

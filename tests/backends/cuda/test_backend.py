"""The CUDA backend on an emulated device: every op under any plan, whatever its streams do when nothing forbids it."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import weakref
import zlib
from dataclasses import fields

import cuda_running
import numpy as np
import pytest
from cases import data, random_plan
from cases_fused import FUSED
from cases_ops import KINDS, random_common
from emulated_device import execute, on, single_tile
from emulated_driver import Call, EmulatedDriver, emulated
from running import assert_right
from sweeps import swept

import ooc
from ooc.backends.cuda import backend as cuda
from ooc.backends.cuda import streams
from ooc.backends.cuda.cudnn import open_cudnn
from ooc.backends.cuda.driver import CupyDriver
from ooc.errors import BudgetError, OutOfMemoryError
from ooc.ops.descriptor import parse
from ooc.schedule.place import Place

FORMS = KINDS | FUSED


def under_random_plans(form: str, seed: int, count: int) -> None:
    rng = random.Random(zlib.crc32(form.encode()) + seed)
    for _ in range(count):
        op = FORMS[form](rng, random_common(rng))
        arrays = data(rng, op)
        backend = emulated(rng.getrandbits(32), cudnn=rng.random() < 0.7, grid=rng.choice((None, 1, 7, 64)))
        plan = random_plan(rng, op, backend)
        got = execute(plan, arrays, backend, rng if rng.random() < 0.7 else None)
        assert_right(op, got, arrays, backend, plan.kernel, str(plan.to_json()), single_tile)


@pytest.mark.parametrize("form", swept(FORMS, quick=("conv.dgrad", "bn.moments")))
def test_random_plans(form: str) -> None:
    under_random_plans(form, 0, 3)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_many_random_plans(form: str) -> None:
    under_random_plans(form, 0, 60)


@pytest.mark.parametrize("budget", swept(("2 KiB", "64 KiB", "256 KiB", "16 KiB", "1 MiB"), suite=3))
def test_budgets(budget: str) -> None:
    """Whatever is planned fits the device budget, and is right."""
    rng, served = random.Random(budget), 0
    for form in FORMS:
        op = FORMS[form](rng, random_common(rng))
        backend, arrays = emulated(rng.getrandbits(32), cudnn=True), data(rng, op)
        where = on(backend, budget)
        try:
            plans = where.planner.plans(op, {o.name: Place.HOST for o in op.operands})
        except BudgetError:
            continue
        known = dict(arrays)
        for plan in plans:
            assert plan.peak_bytes <= where.device_bytes
            known |= execute(plan, {o.name: known[o.name] for o in plan.op.inputs}, backend, rng)
        taken = [c.note for c in backend.driver.log if c.what == "malloc"]
        assert max(taken, default=0) <= max(plan.peak_bytes for plan in plans)
        assert sum(taken) <= where.device_bytes * len(plans)
        assert_right(op, {o.name: known[o.name] for o in op.outputs}, arrays, backend, plans[0].kernel, budget, single_tile)
        served += 1
    assert served >= 0.9 * len(FORMS)


def test_device_memory_held_is_what_was_planned() -> None:
    """Budgets as the tests on a real device look at them."""
    rng, tiles = random.Random(4), 0
    for form in list(FORMS)[::3]:
        op, backend = FORMS[form](rng, random_common(rng)), emulated(rng.getrandbits(32), cudnn=True)
        held = cuda_running.Held(backend.driver)
        where = on(backend, "8 KiB")
        tiles += cuda_running.under_budget(op, data(rng, op), where, held, backend.place_copy, backend.peek)
    assert 3 * tiles >= len(FORMS)


def test_an_infinite_workspace_is_asked_for_what_cudnn_refuses() -> None:
    """A tile of 2**31 elements: cuDNN's families are never planned for it."""
    op = parse("conv.fprop n=1 c=2048 h=1024 w=1024 k=2048 r=3 s=3 pad=1")
    backend = emulated(0, cudnn=True)
    whole = {o.name: o.workspace(op.dims) for o in backend.offers(op)}
    assert all(nbytes >= 2**55 for name, nbytes in whole.items() if name.startswith("cudnn")) and whole["plain"] == 0
    assert {"cudnn_winograd", "cudnn_fft", "cudnn_lean"} < whole.keys()
    plan = on(backend, "16 GiB").planner.plan(op, {o.name: Place.HOST for o in op.operands})
    assert plan.kernel.startswith("cudnn") and plan.peak_bytes <= 16 << 30
    assert all(int(o.count(plan.sizes)) < 2**31 for o in op.operands)


def test_one_backend_for_a_device_and_a_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "CupyDriver", lambda index: EmulatedDriver())
    monkeypatch.setattr(cuda, "_opened", {})
    one = cuda.cuda_backend(0, False, None)
    assert cuda.cuda_backend(0, False, None) is one
    assert len({id(found) for found in (one, cuda.cuda_backend(0, True, None), cuda.cuda_backend(0, False, 3))}) == 3


def test_memory_goes_when_a_device_is_left() -> None:
    """Four times 64 KiB, without the help of Python's collector; while it is entered memory is kept for the next call."""
    rng, backend = random.Random(7), emulated(7, cudnn=True)
    x, w = (rng.choices(range(-4, 5), k=n) for n in (2 * 4 * 32 * 32, 4 * 4 * 9))
    x, w = np.reshape(x, (2, 4, 32, 32)).astype("f4"), np.reshape(w, (4, 4, 3, 3)).astype("f4")
    gc.disable()
    try:
        for _ in range(4):
            with on(backend, "64 KiB"), on(backend, "32 KiB"):
                for _ in range(2):
                    ooc.conv(x, w, padding=1)
                assert len(backend.driver.device) == 1
            assert not backend.driver.device and len(backend.driver.pinned) == 1  # the ring stays
    finally:
        gc.enable()
    assert [call.what for call in backend.driver.log].count("host_malloc") == 1
    del backend.driver
    held = weakref.ref(backend)
    del backend
    assert held() is None


def test_a_large_ring_goes_when_a_device_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be missed elsewhere; of two, the larger is kept."""
    backend = emulated()
    sizes = [1 << 16, 1 << 12, 1 << 17]
    for nbytes in sizes:
        backend.release("staging", backend._fresh("staging", nbytes))
    assert [piece.nbytes for piece in backend.driver.pinned] == sizes[-1:]
    backend._memory.lasting = {"staging": (1 << 17) - 1}
    backend.idle()
    assert not backend.driver.pinned


def test_clocks_are_compared_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking takes as long as a small call."""
    monkeypatch.setattr(streams, "AT_ONCE", 1e9)
    monkeypatch.setattr(streams, "AGAIN", 1e9)
    backend = emulated()
    for late in (False, False, True, False):
        if late:
            backend._clock -= 2e9
        backend.begin()
    asked = [call for call in backend.driver.log if call.what == "finished" and call.event == backend._base]
    assert len(asked) == 2


def test_memory_that_is_refused_is_asked_for_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """When what others keep was given back."""
    backend, take, refused = emulated(), EmulatedDriver.malloc, [1, 3, 4]  # the first, third and fourth time

    def malloc(driver: EmulatedDriver, nbytes: int) -> int:
        driver.log.append(Call("", "asked"))
        if sum(call.what == "asked" for call in driver.log) in refused:
            raise RuntimeError("cudaErrorMemoryAllocation: out of memory")
        return take(driver, nbytes)

    monkeypatch.setattr(EmulatedDriver, "malloc", malloc)
    assert backend.allocate("device", 1 << 17).nbytes == 1 << 17
    told = [call.what for call in backend.driver.log]
    assert told[-4:] == ["asked", "spare", "asked", "malloc"]
    with pytest.raises(OutOfMemoryError, match="131072 bytes of device memory: cudaErrorMemoryAllocation"):
        backend.allocate("device", 1 << 17)


@pytest.mark.skipif(open_cudnn() is None, reason="install nvidia-cudnn-cu13 or run make test-cudnn")
def test_cudnn_accepts_what_it_is_told() -> None:
    """Every tile that the backend would hand to cuDNN is one that the real library's descriptors describe."""
    rng, library, told = random.Random(12), open_cudnn(), set()
    for _ in range(150):
        kind = rng.choice(("conv.fprop", "conv.dgrad", "conv.wgrad"))
        op = FORMS[kind](rng, random_common(rng))
        backend = emulated(rng.getrandbits(32), cudnn=True)
        plan = random_plan(rng, op, backend)
        if plan.kernel.startswith("cudnn"):
            execute(plan, data(rng, op), backend, None)
            told |= set(backend.cudnn.library.geometries)
    for one in told:
        library.conv(*(getattr(one, field.name) for field in fields(one)))
    assert len(told) > 100


class Flags:
    """CUDA's runtime, as far as events are made: their flags are their numbers."""

    eventDefault, eventBlockingSync, eventDisableTiming = 0, 1, 2

    def eventCreateWithFlags(self, flags: int) -> int:
        return flags


def test_threads_sleep_while_they_wait_for_an_event() -> None:
    """Events are made for that, and timed."""
    driver = CupyDriver.__new__(CupyDriver)
    driver.runtime = Flags()
    assert driver.event() == Flags.eventBlockingSync


def test_memory_that_comes_and_goes_meanwhile_closes_nothing() -> None:
    """As where the collector gives memory back while a library computes. The system refuses to read what is protected."""
    driver = EmulatedDriver()
    address, other = driver.malloc(64), driver.malloc(64)
    data = (ctypes.c_char * 64).from_address(address)
    reader, writer = os.pipe()
    try:
        with driver.opened():
            driver.free(other)
            driver.malloc(64)
            with driver.opened():
                assert os.write(writer, data) == 64
            assert os.write(writer, data) == 64
        with pytest.raises(OSError, match="Bad address"):
            os.write(writer, data)
    finally:
        os.close(reader)
        os.close(writer)

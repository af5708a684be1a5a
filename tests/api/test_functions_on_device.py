"""The public functions on arrays in the memory of a device, mixed freely with the host's, on an emulated device."""

from __future__ import annotations

import gc
import random
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_calls import CALLS, called, stays_on_the_device
from emulated_device import on, read, results_beside_foreign_arrays, theirs  # noqa: F401
from emulated_driver import Foreign, emulated
from function_cases import CASES, W, X, agrees, expected, inputs_of

import ooc
from ooc.api import foreign
from ooc.backends.device_array import device_array
from ooc.errors import BackendError, DtypeError, ShapeError, UnsupportedError
from ooc.model.cost import Copy
from ooc.runtime.device import Device
from ooc.schedule.place import Place

# These compute on their inputs with NumPy before they call ooc.
ON_HOST = ("activation_backward", "batch_norm_backward")
NAMES = [name for name in CASES if not name.startswith(ON_HOST)]


@pytest.fixture
def gpu() -> Iterator[Device]:
    with on(emulated(7, cudnn=True), "64 KiB") as device:
        yield device


@pytest.mark.parametrize("name", NAMES)
def test_everything_on_the_device(name: str) -> None:
    """In place, without a budget: nothing moves, and the result is beside its input."""
    case, backend = CASES[name], emulated(1, cudnn=True)
    arrays = inputs_of(case)
    with on(backend, None):
        result = case.call(**{n: theirs(backend, a) for n, a in arrays.items()})
        moved = sum(ooc.last_report().lane_bytes.values())
    assert isinstance(result, Foreign)
    agrees(read(result), expected(case, arrays), np.float32)
    assert moved == 0 or name.startswith(("concat", "cross_entropy", "batch_norm"))  # these bring values of the host along


@pytest.mark.parametrize("name", NAMES)
def test_mixed_places_under_a_budget(name: str, tmp_path: Path) -> None:
    """Each argument on the device, in pinned memory, in plain memory or in a file; the output too."""
    case, rng = CASES[name], random.Random(zlib.crc32(name.encode()))
    arrays = inputs_of(case, rng.choice((np.float32, np.float64, np.float16)))
    wanted = expected(case, arrays)
    backend = emulated(rng.getrandbits(32), cudnn=rng.random() < 0.7)

    def somewhere(array: Any) -> Any:
        place = rng.choice(("device", "device", "pinned", "host", "file"))
        if place == "file":
            mapped = np.memmap(tmp_path / f"{rng.getrandbits(64)}", array.dtype, "w+", shape=array.shape)
            mapped[...] = array
            return mapped
        return theirs(backend, array) if place == "device" else backend.place_copy(array, place) if place == "pinned" else array

    like = next(iter(arrays.values()))
    out = somewhere(np.full(wanted.shape, np.nan, _result_type(case, like)))
    with on(backend, rng.choice(("48 KiB", "200 KiB"))):
        made = case.call(**{n: somewhere(a) for n, a in arrays.items()}, **{case.out: out})
    assert made is out
    agrees(read(out), wanted, like.dtype)


def _result_type(case: Any, like: Any) -> Any:
    """Gradients of biases are of the computed type."""
    return np.float32 if case.call is ooc.bias_backward and like.dtype == np.float16 else like.dtype


def test_half_types_of_another_library(gpu: Device) -> None:
    """bfloat16, for which the array interface has no code."""
    import ml_dtypes

    rng = np.random.default_rng(0)
    x, w = (rng.integers(-2, 3, shape).astype(ml_dtypes.bfloat16) for shape in (X, W))
    y = ooc.conv(theirs(gpu.backend, x), theirs(gpu.backend, w), padding=1)
    whole = ooc.conv(x.astype("f4"), w.astype("f4"), padding=1)
    np.testing.assert_array_equal(read(y).astype("f4"), whole.astype(ml_dtypes.bfloat16).astype("f4"))


def test_biases_and_statistics_of_other_types_on_the_device(gpu: Device) -> None:
    """What must be converted goes by way of the host; running statistics are moved where they are."""
    rng, backend = np.random.default_rng(1), gpu.backend
    x, w, b = (rng.standard_normal(s).astype("f2") for s in (X, W, (4,)))
    y = ooc.conv(theirs(backend, x), theirs(backend, w), theirs(backend, b), padding=1)
    np.testing.assert_allclose(read(y), ooc.conv(x, w, b, padding=1), rtol=0, atol=2e-2)
    mean, var = theirs(backend, np.zeros(6)), theirs(backend, np.ones(6, "f4"))
    x = x.astype("f4")
    made = ooc.batch_norm(theirs(backend, x), mean=mean, var=var, training=True, momentum=0.25)
    np.testing.assert_allclose(read(mean), 0.25 * x.mean((0, 2, 3), np.float64), rtol=1e-5, atol=1e-7)
    unbiased = x.var((0, 2, 3), np.float64, ddof=1)
    np.testing.assert_allclose(read(var), 0.75 + 0.25 * unbiased, rtol=1e-5)
    assert isinstance(made.y, Foreign)


def test_labels_on_the_device(gpu: Device) -> None:
    rng = np.random.default_rng(2)
    x, labels = rng.standard_normal((9, 7)).astype("f4"), rng.integers(-1, 7, 9)
    loss = ooc.cross_entropy(theirs(gpu.backend, x), theirs(gpu.backend, labels))
    assert loss == pytest.approx(ooc.cross_entropy(x, labels), rel=1e-6)


def test_in_place_on_the_device(gpu: Device) -> None:
    x = np.random.default_rng(3).standard_normal((3, 50)).astype("f4")
    held = theirs(gpu.backend, x)
    assert ooc.activation(held, "relu", out=held) is held
    np.testing.assert_array_equal(read(held), np.maximum(x, 0))


def test_views_of_device_memory(gpu: Device) -> None:
    """Strided, reversed and transposed views are read where they are."""
    x = np.random.default_rng(4).standard_normal((8, 3, 9, 10)).astype("f4")
    seen = foreign.known("x", theirs(gpu.backend, x))
    for index in ((slice(None, None, 2),), (slice(None, None, -1), slice(1, 3)), (slice(None), slice(None), slice(1, 8, 3))):
        y = ooc.max_pool(seen[index], 2, out=np.empty(ooc.max_pool(x[index], 2).shape, "f4"))
        np.testing.assert_array_equal(y, ooc.max_pool(x[index], 2))


def test_devices_arrays_need_their_device() -> None:
    backend = emulated(5)
    x = theirs(backend, np.ones((2, 3, 4, 4), "f4"))
    with ooc.device("cpu"), pytest.raises(UnsupportedError, match="memory of a CUDA device"):
        ooc.max_pool(x, 2, out=np.empty((2, 3, 2, 2), "f4"))
    other = device_array(1 << 20, (2, 3, 4, 4), "f4")
    with on(backend, None), pytest.raises(UnsupportedError, match="other memory"):
        ooc.max_pool(other, 2, out=np.empty((2, 3, 2, 2), "f4"))


def test_bad_outputs_on_the_device(gpu: Device) -> None:
    x = np.ones((2, 3, 4, 4), "f4")
    with pytest.raises(ShapeError, match="out: expected shape"):
        ooc.max_pool(x, 2, out=theirs(gpu.backend, np.empty((2, 3, 2, 1), "f4")))
    with pytest.raises(DtypeError, match="out: expected dtype"):
        ooc.max_pool(x, 2, out=theirs(gpu.backend, np.empty((2, 3, 2, 2), "f8")))
    held = theirs(gpu.backend, np.zeros((2, 3, 8, 8), "f4"))
    with pytest.raises(ShapeError, match="out overlaps"):
        seen = foreign.known("x", held)
        ooc.max_pool(seen[:, :, :4, :4], 2, out=seen[:, :, 1:3, 1:3])


def test_the_host_cannot_touch_device_memory(gpu: Device) -> None:
    held = foreign.known("x", theirs(gpu.backend, np.ones(3)))
    for touch in (lambda: held + 1, lambda: held.astype("f4"), held[0:1].sum, held.tolist, lambda: list(held)):
        with pytest.raises(TypeError, match="host"):
            touch()
    assert "DeviceArray" in repr(held) and "DeviceArray" in str(held)


def test_no_memory_left_is_an_error_of_its_own() -> None:
    backend = emulated(6)
    grab = backend.driver.malloc

    def full(nbytes: int) -> int:
        raise RuntimeError("cudaErrorMemoryAllocation: out of memory")

    backend.driver.malloc = full
    x = np.ones((2, 3, 64, 64), "f4")
    with on(backend, "64 KiB"):
        with pytest.raises(BackendError, match=r"cannot allocate .* of device memory: .*out of memory"):
            ooc.max_pool(x, 2)
        backend.driver.malloc = grab
        np.testing.assert_array_equal(ooc.max_pool(x, 2), np.ones((2, 3, 32, 32)))


def test_threads_share_a_device() -> None:
    import threading

    backend = emulated(8, cudnn=True)
    rng, found = np.random.default_rng(8), {}
    x, w = (rng.integers(-2, 3, shape).astype("f4") for shape in (X, W))
    whole = ooc.conv(x, w, padding=1)

    def work(i: int) -> None:
        with on(backend, "48 KiB"):
            found[i] = ooc.conv(x, w, padding=1)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(4):
        np.testing.assert_array_equal(found[i], whole)


def test_pinning_the_callers_memory_when_it_pays() -> None:
    """With a model in which pinning is cheap the caller's arrays are pinned for the call; where it is dear they are not."""
    rng = np.random.default_rng(9)
    x, w = (rng.integers(-2, 3, shape).astype("f4") for shape in ((40, 8, 32, 32), (8, 8, 3, 3)))
    whole = ooc.conv(x, w, padding=1)
    for cost, pins in ((Copy(1e-6, 0, 1e12), True), (Copy(1e-6, 0, 1e6), False), (None, False)):
        backend = emulated(9, cudnn=True)
        device = on(backend, "300 KiB")
        staging = dict.fromkeys(("read", "write"), Copy(2e-5, 5e-9, 1e10))
        device = replace(device, model=replace(device.model, register=cost, copies=device.model.copies | staging))
        with device:
            np.testing.assert_array_equal(ooc.conv(x, w, padding=1), whole)
            places = {place for plan in ooc.last_report().plans for _, place in plan.places}
        assert (Place.PINNED in places) == pins
        assert bool([c for c in backend.driver.log if c.what == "register"]) == pins
        assert backend.driver.registered == []


def test_short_rows_of_pinned_memory_are_gathered_when_it_pays() -> None:
    """By a model in which a row costs the copy engines more than the host. Long rows, and where it does not pay, go directly."""
    values = np.random.default_rng(1).integers(-9, 9, (1, 9, 9, 512)).astype(np.float32)
    whole = ooc.max_pool(values, 3, layout="channels_last")
    for row, budget, gathers in ((1e-4, "2 KiB", True), (1e-12, "2 KiB", False), (1e-4, "1 MiB", False)):
        backend = emulated(3)
        x, device = backend.place_copy(values, "pinned"), on(backend, budget)
        copies = {
            lane: replace(c, run_seconds=row if lane in ("h2d", "d2h") else 1e-9) for lane, c in device.model.copies.items()
        }
        with replace(device, model=replace(device.model, copies=copies)):
            np.testing.assert_array_equal(read(ooc.max_pool(x, 3, layout="channels_last")), whole)
            (plan,) = ooc.last_report().plans
        assert (plan.place("x") is Place.HOST) == gathers


def test_memory_that_cannot_be_pinned_is_staged() -> None:
    backend = emulated(10, cudnn=True)

    def refuse(address: int, nbytes: int) -> None:
        raise RuntimeError("cudaErrorHostMemoryAlreadyRegistered")

    backend.driver.register = refuse
    x = np.random.default_rng(10).standard_normal((40, 8, 32, 32)).astype("f4")
    device = on(backend, "300 KiB")
    device = replace(device, model=replace(device.model, register=Copy(1e-6, 0, 1e12)))
    with device:
        np.testing.assert_array_equal(ooc.max_pool(x, 2), ooc.max_pool(x, 2, out=np.empty((40, 8, 16, 16), "f4")))


def test_memory_is_kept_for_the_next_call_and_given_back_with_the_device() -> None:
    backend = emulated(11, cudnn=True)
    driver, x = backend.driver, np.ones((2, 3, 64, 64), "f4")
    with on(backend, "64 KiB"):
        ooc.max_pool(x, 2)
        taken = [c.what for c in driver.log].count("malloc")
        ooc.max_pool(x, 2)
        assert [c.what for c in driver.log].count("malloc") == taken == 1
    del backend
    gc.collect()
    assert driver.device == [] and driver.pinned == []


@pytest.mark.parametrize("name", CALLS)
def test_calls_of_the_tests_on_a_real_device(name: str, tmp_path: Path) -> None:
    """These calls run there with CuPy's and PyTorch's arrays."""
    rng, backend = random.Random(zlib.crc32(name.encode())), emulated(3, cudnn=True)
    kinds = {
        "numpy": (np.copy, np.copy),
        "pinned": (lambda v: backend.place_copy(v, "pinned"), np.array),
        "emulated_driver": (lambda v: theirs(backend, v), read),
        "emulated_driver strided": (lambda v: theirs(backend, np.asfortranarray(v)), read),
    }
    for budget in (None, "48 KiB"):
        called(name, kinds, on(backend, budget), rng)


@pytest.mark.parametrize("budget", [None, "256 KiB"])
def test_what_is_on_the_device_is_not_copied(budget: str | None) -> None:
    backend = emulated(3, cudnn=True)
    kind = (lambda v: theirs(backend, v), read)
    stays_on_the_device(kind, (np.copy, np.copy), on(backend, budget))

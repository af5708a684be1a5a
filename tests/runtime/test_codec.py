"""Zeros become bits and come back, with every other bit as it was; the extension and NumPy write the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ooc import native
from ooc.backends.device_array import device_array
from ooc.errors import DtypeError, ShapeError, StoreError, UnsupportedError
from ooc.ir.op import numpy_dtype
from ooc.runtime import codec
from ooc.runtime.codec import BLOCK, most_bytes, pack_zeros, unpack_zeros

pytestmark = pytest.mark.quick

SIZES = (0, 1, 31, 32, 33, 64, 1000, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 77)
GUARD = 0xA5


@pytest.fixture(params=["extension", "numpy"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "numpy":
        monkeypatch.setattr(codec, "kernels", None)
    elif native.kernels is None:
        pytest.skip("no compiled extension")
    return str(request.param)


@pytest.fixture
def many_threads() -> Iterator[None]:
    """Threads share small problems too."""
    if native.kernels is not None:
        native.kernels.share_from(0.0)
    yield
    if native.kernels is not None:
        native.kernels.share_from(100.0)


def items(count: int, density: float, item: int = 4, seed: int = 0) -> Any:
    """Random bits, of which that share of the items has any."""
    rng = np.random.default_rng(seed)
    found = rng.integers(1, 1 << (8 * item - 1), count, np.uint64).astype(codec.ITEMS[item])
    return np.where(rng.random(count) < density, found, found.dtype.type(0))


def packed(array: Any, **options: Any) -> Any:
    """What is packed, in a target of just that size, with guards behind it."""
    room = np.full(most_bytes(array.size, array.itemsize) + 64, GUARD, np.uint8)
    written = pack_zeros(array, room[:-64], **options)
    assert written is not None and (room[written:] == GUARD).all()
    exact = np.full(written + 64, GUARD, np.uint8)
    assert pack_zeros(array, exact[:written], **options) == written and (exact[written:] == GUARD).all()
    np.testing.assert_array_equal(exact[:written], room[:written])
    return exact[:written].copy()


def unpacked(source: Any, array: Any, **options: Any) -> Any:
    room = np.full(array.nbytes + 64, GUARD, np.uint8)
    unpack_zeros(source, array.size, room[: array.nbytes].view(array.dtype), **options)
    assert (room[array.nbytes :] == GUARD).all()
    return room[: array.nbytes].view(array.dtype)


@pytest.mark.parametrize("item", codec.ITEMS)
@pytest.mark.parametrize("density", [0.0, 0.02, 0.5, 0.98, 1.0])
def test_what_is_packed_comes_back(way: str, item: int, density: float, many_threads: None) -> None:
    for count in SIZES:
        array = items(count, density, item, count)
        for threads in (1, 2):
            source = packed(array, threads=threads)
            kept = int(np.count_nonzero(array))
            assert source.nbytes == most_bytes(count, item) - (count - kept) * item
            np.testing.assert_array_equal(unpacked(source, array, threads=threads), array)


@pytest.mark.parametrize("item", codec.ITEMS)
def test_the_extension_writes_what_numpy_writes(item: int, monkeypatch: pytest.MonkeyPatch, many_threads: None) -> None:
    if native.kernels is None:
        pytest.skip("no compiled extension")
    for seed, count in enumerate(SIZES):
        array = items(count, (0.5, 0.1, 0.9)[seed % 3], item, seed)
        one, two = packed(array), packed(array, threads=2)
        with monkeypatch.context() as without:
            without.setattr(codec, "kernels", None)
            np.testing.assert_array_equal(packed(array), one)
        np.testing.assert_array_equal(two, one)


def test_the_layout(way: str) -> None:
    array = np.zeros(BLOCK + 40, np.uint32)
    array[[0, 33, BLOCK + 1, BLOCK + 39]] = 7, 8, 9, 10
    words = packed(array).view("<u4").tolist()
    assert words[:2] == [2, 2]  # kept in each block
    masks, rest = words[2 : 2 + BLOCK // 32], words[2 + BLOCK // 32 :]
    assert masks == [1, 2, *[0] * (BLOCK // 32 - 2)] and rest == [7, 8, 2, 1 << 7, 9, 10]


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16"])
def test_all_but_zero_survives_bit_by_bit(way: str, dtype: str) -> None:
    kind = numpy_dtype(dtype)
    bits = np.dtype(codec.ITEMS[kind.itemsize])
    high = 1 << (8 * bits.itemsize - 1)
    with np.errstate(over="ignore"):
        values = np.array([0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, -np.nan, float(np.finfo(np.float16).tiny)]).astype(kind)
    odd = np.array([1, high | 1, high - 1, 2 * high - 1, high - 2], bits).view(kind)  # subnormal, NaN with payloads
    array = np.tile(np.concatenate([values, odd, np.zeros(30, kind)]), 9)
    back = unpacked(packed(array), array)
    np.testing.assert_array_equal(back.view(bits), array.view(bits))
    kept = packed(array).nbytes - most_bytes(array.size, kind.itemsize) + array.nbytes
    assert kept == 13 * 9 * kind.itemsize  # all but +0.0


def test_what_does_not_fit_is_refused(way: str, many_threads: None) -> None:
    for count in (1, 100, BLOCK, 2 * BLOCK + 5):
        array = items(count, 1.0)
        assert most_bytes(count) == packed(array).nbytes > array.nbytes
        for threads in (1, 2):
            for room in (0, 3, array.nbytes, most_bytes(count) - 1):
                target = np.full(room + 64, GUARD, np.uint8)
                assert pack_zeros(array, target[:room], threads=threads) is None
                assert (target[room:] == GUARD).all()
    assert pack_zeros(np.zeros(BLOCK, "f4"), bytearray(BLOCK // 8 + 3)) is None
    assert pack_zeros(np.zeros(BLOCK, "f4"), bytearray(BLOCK // 8 + 4)) == BLOCK // 8 + 4


@pytest.mark.parametrize("seed", range(20))
def test_random_densities_that_change_along_the_way(way: str, seed: int, many_threads: None) -> None:
    rng = np.random.default_rng(seed)
    item = int(rng.choice([2, 4, 8]))
    parts = [items(int(rng.integers(0, 50_000)), float(rng.random()) ** 3, item, seed + i) for i in range(6)]
    array = np.concatenate(parts)
    np.testing.assert_array_equal(unpacked(packed(array), array, threads=2), array)


def test_blocks_are_unpacked_alone(way: str) -> None:
    array = items(4 * BLOCK + 100, 0.4, 2)
    source = packed(array)
    for first, last in ((0, 1), (1, 3), (2, 4), (4, 5), (0, 5), (3, 3)):
        lo, hi = first * BLOCK, min(last * BLOCK, array.size)
        part = np.ones(hi - lo, array.dtype)
        unpack_zeros(source, array.size, part, first=lo)
        np.testing.assert_array_equal(part, array[lo:hi])
    for first, count in ((1, BLOCK), (0, 100), (4 * BLOCK, 99), (4 * BLOCK, 101), (-BLOCK, BLOCK), (8 * BLOCK, 0)):
        with pytest.raises(ShapeError, match="expected whole blocks"):
            unpack_zeros(source, array.size, np.empty(count, array.dtype), first=first)


def test_bytes_of_any_kind(way: str) -> None:
    array = items(1000, 0.5)
    wanted = packed(array).tobytes()
    given = (array.tobytes(), bytearray(array.tobytes()), memoryview(array), array.view("f4").reshape(10, 100), array.view("u1"))
    for source in given:
        target = bytearray(most_bytes(1000))
        assert target[: pack_zeros(source, target)] == wanted
    back = bytearray(4000)
    unpack_zeros(wanted, 1000, memoryview(back))
    assert back == array.tobytes()
    unaligned = bytearray(1 + len(wanted))
    assert pack_zeros(np.frombuffer(b"!" + array.tobytes(), np.uint8)[1:], memoryview(unaligned)[1:]) == len(wanted)
    assert unaligned[1:] == wanted
    assert packed(array.view("u8")).tobytes() != wanted and pack_zeros(array, bytearray(5000), item=2) != len(wanted)


def broken() -> Iterator[tuple[str, Any]]:
    """What is packed of 2 blocks and 40 items, with something wrong."""
    array = items(2 * BLOCK + 40, 0.5)
    room = np.empty(most_bytes(array.size), np.uint8)
    good = room[: pack_zeros(array, room)]
    words = good.view("<u4")
    yield "empty", good[:0]
    yield "of an index", good[:11]
    yield "short", good[:-4]
    yield "long", np.concatenate([good, good[:4]])
    for name, at, change in (
        ("more than a block", 0, BLOCK + 1), ("more than the last", 2, 41), ("far more", 1, 0xFFFFFFFF), ("fewer", 2, 0),
    ):  # fmt: skip
        bad = words.copy()
        bad[at] = change
        yield name, bad
    moved = words.copy()
    moved[0], moved[1] = moved[0] + 1, moved[1] - 1
    yield "another block's", moved
    for name, at, bit in (("a mask", 3, 1), ("the last mask", -2 - int(words[2]), 1)):
        bad = words.copy()
        bad[at] ^= bit
        yield name, bad
    ragged = words.copy()
    last = words.size - int(words[2]) - 1
    lowest = int(ragged[last]) & -int(ragged[last])
    ragged[last] = (int(ragged[last]) ^ lowest) | 1 << 20  # as many as the index says, one of them beyond the end
    yield "beyond the end", ragged
    yield "noise", np.random.default_rng(0).integers(0, 256, good.nbytes, np.uint8)


BROKEN = dict(broken())


@pytest.mark.parametrize("name", BROKEN)
def test_malformed_input_is_refused_and_nothing_written(way: str, name: str) -> None:
    count = 2 * BLOCK + 40
    target = np.full(count, 3, np.uint32)
    with pytest.raises(StoreError, match="packed items: "):
        unpack_zeros(BROKEN[name], count, target, threads=2)
    assert (target == 3).all()


def test_another_count_or_item_is_refused(way: str) -> None:
    source = packed(items(1000, 0.5))
    for count, item in ((999 - 32, 4), (1001 + 32, 4), (1000, 8), (1000, 2)):
        with pytest.raises(StoreError, match="packed items: "):
            unpack_zeros(source, count, bytearray(count * item), item=item)
    with pytest.raises(StoreError, match="expected an index"):
        unpack_zeros(source, 10**12, bytearray(BLOCK * 4))


def test_arguments_that_make_no_sense(way: str) -> None:
    array, target = items(100, 0.5), bytearray(1000)
    for bad in (array[::2], np.asfortranarray(array.reshape(10, 10)), "text", 7, array.astype(object), None):
        with pytest.raises((ShapeError, DtypeError)):
            pack_zeros(bad, target)
    for target_too in (bytes(1000), array[::2]):
        with pytest.raises(ShapeError):
            pack_zeros(np.zeros(4, "f4"), target_too)
    for item in (1, 3, 16, 0):
        with pytest.raises(DtypeError, match="expected 2, 4 or 8"):
            pack_zeros(array, target, item=item)
    with pytest.raises(DtypeError):
        pack_zeros(np.zeros(3, "c16"), target)
    with pytest.raises(ShapeError, match="no whole number"):
        pack_zeros(bytes(7), target)
    with pytest.raises(ShapeError, match="overlap"):
        pack_zeros(array, array.view("u1")[4:])
    with pytest.raises(UnsupportedError):
        pack_zeros(device_array(4096, (8,), "f4"), target)
    with pytest.raises(UnsupportedError):
        unpack_zeros(bytes(8), 0, device_array(4096, (8,), "f4"))

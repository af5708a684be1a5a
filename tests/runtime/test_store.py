"""Whole tensors on disk: which file is behind an array, regions read and written, and disks and files that fail."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import resource
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
from waiting import until

import ooc
from ooc.errors import StoreError
from ooc.ir.region import Region, Span, slices, whole
from ooc.ops.descriptor import parse
from ooc.runtime.store import ArrayStore, FileStore, file_behind, open_store

OP = "conv.fprop n=4 c=4 h=128 w=128 k=16 r=3 s=3 pad=1 dtype=f32"  # y is 4 MiB
BUDGET = "256 KiB"


def mapped(path: Path, shape: tuple[int, ...], dtype: Any = np.float32, offset: int = 0, seed: int = 0) -> Any:
    array = np.memmap(path, dtype, "w+", offset, shape)
    array[...] = np.random.default_rng(seed).integers(-4, 5, shape)
    array.flush()
    return array


def lanes_left() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("ooc-")]


@pytest.fixture(autouse=True)
def all_lanes_are_joined() -> Iterator[None]:
    yield
    assert lanes_left() == []


# ---- the file behind an array


def test_a_memmap_has_its_file_and_offset(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    array = mapped(path, (6, 8), offset=4000)  # not a multiple of the page
    assert file_behind(array) == (str(path), 4000)
    assert file_behind(np.asarray(array)) == (str(path), 4000)
    assert file_behind(array[2:, 3:]) == (str(path), 4000 + (2 * 8 + 3) * 4)
    assert file_behind(np.asarray(array)[2:].T) == (str(path), 4000 + 2 * 8 * 4)
    assert file_behind(array[::-1, ::2]) == (str(path), 4000 + 5 * 8 * 4)
    assert file_behind(array.reshape(3, 2, 8)[1]) == (str(path), 4000 + 2 * 8 * 4)
    assert file_behind(np.moveaxis(array[None], -1, 1)) == (str(path), 4000)


def test_copies_and_copy_on_write_maps_are_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    array = mapped(path, (6, 8))
    assert file_behind(np.array(array)) is None
    assert file_behind(array + 1) is None
    assert file_behind(np.zeros(3)) is None
    assert file_behind(np.memmap(path, np.float32, "c", shape=(6, 8))) is None
    assert file_behind(np.memmap(path, np.float32, "r", shape=(6, 8))) == (str(path), 0)


def test_npy_files_are_found_behind_their_header(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(12.0))
    found = file_behind(np.load(tmp_path / "a.npy", mmap_mode="r"))
    assert found == (str(tmp_path / "a.npy"), 128)


def test_a_replaced_or_deleted_file_is_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    array = mapped(path, (6, 8))
    mapped(tmp_path / "b.bin", (6, 8), seed=1)
    os.replace(tmp_path / "b.bin", path)
    assert file_behind(array) is None
    assert isinstance(open_store(array), ArrayStore)
    path.unlink()
    assert file_behind(array) is None


def test_a_moved_file_is_memory_and_computes_the_same(tmp_path: Path) -> None:
    x = mapped(tmp_path / "a.bin", (1, 2, 8, 8))
    expected = np.maximum(x, 0)
    os.rename(tmp_path / "a.bin", tmp_path / "b.bin")
    with ooc.device("cpu", "16 KiB"):
        np.testing.assert_array_equal(ooc.activation(x, "relu"), expected)


# ---- regions


def views(array: Any) -> list[Any]:
    """The same file seen dense, transposed, sliced, strided and reversed."""
    return [array, array.transpose(0, 2, 3, 1), array[1:, :, 2:, 1:-1], array[:, ::2, ::-1, ::3], np.moveaxis(array, 1, -1)]


def random_region(rng: random.Random, shape: tuple[int, ...]) -> Region:
    spans = []
    for extent in shape:
        lo = rng.randrange(extent)
        spans.append(Span(lo, rng.randint(lo + 1, extent)))
    return tuple(spans)


def bounce_of(nbytes: int) -> Any:
    """An aligned buffer for direct I/O."""
    raw = np.empty(nbytes + 4096, np.uint8)
    start = -raw.ctypes.data % 4096
    return raw[start : start + nbytes]


SMALL, LARGE = (3, 5, 40, 67), (2, 3, 400, 1000)  # direct I/O is for a mebibyte and more
ROOMS = [(SMALL, None), (SMALL, 8192), (SMALL, 1 << 17), (LARGE, None), (LARGE, (1 << 20) + 8192), (LARGE, 4 << 20)]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("shape", "bounce"), ROOMS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_random_strided_regions_read_as_the_mapping(
    tmp_path: Path, dtype: Any, shape: tuple[int, ...], bounce: int | None, threads: int
) -> None:
    rng = random.Random(0)
    array = mapped(tmp_path / "a.bin", shape, dtype, offset=8)
    array[...] = np.random.default_rng(1).standard_normal(array.shape)
    array.flush()
    room = bounce_of(bounce) if bounce else None
    for view in views(array):
        store = open_store(view, threads=threads)
        assert isinstance(store, FileStore) and store.threads == threads
        for _ in range(12):
            region = random_region(rng, view.shape)
            wanted = np.asarray(view[slices(region)])
            order = rng.sample(range(4), 4)
            target = np.full([wanted.shape[i] for i in order], np.nan, dtype).transpose(np.argsort(order))
            os.posix_fadvise(store.fd, 0, 0, os.POSIX_FADV_DONTNEED)
            if rng.random() < 0.5:
                store.fetch([region, random_region(rng, view.shape)], bounce or 0)
            store.read(region, target, room)
            np.testing.assert_array_equal(target, wanted)
        store.close()


@pytest.mark.parametrize(("shape", "bounce"), ROOMS)
def test_random_strided_regions_write_only_themselves(tmp_path: Path, shape: tuple[int, ...], bounce: int | None) -> None:
    rng = random.Random(2)
    room = bounce_of(bounce) if bounce else None
    array = mapped(tmp_path / "a.bin", shape, offset=8)
    expected = np.array(array)
    for view, wanted in zip(views(array), views(expected), strict=True):
        store = open_store(view, writable=True)
        for i in range(12):
            region = random_region(rng, view.shape)
            source = np.random.default_rng(i).standard_normal(wanted[slices(region)].shape).astype(np.float32)
            source = np.asfortranarray(source) if i % 2 else source
            store.write(region, source, room)
            wanted[slices(region)] = source
        store.close()
    np.testing.assert_array_equal(array, expected)
    np.testing.assert_array_equal(np.fromfile(tmp_path / "a.bin", np.float32, offset=8), expected.ravel())


def test_what_was_fetched_is_in_the_page_cache(tmp_path: Path) -> None:
    array = mapped(tmp_path / "a.bin", (8, 64, 1024))  # planes of 256 KiB
    os.sync()
    store = open_store(np.memmap(tmp_path / "a.bin", np.float32, "r", shape=array.shape))
    assert isinstance(store, FileStore)
    del array
    os.posix_fadvise(store.fd, 0, 0, os.POSIX_FADV_DONTNEED)
    if cached(store.fd, 0, 4096) or not hasattr(os, "RWF_NOWAIT"):
        pytest.skip("this file system keeps all in memory, or cannot tell")
    store.fetch([(Span(2, 3), Span(0, 64), Span(0, 1024)), (Span(3, 4), Span(0, 32), Span(0, 1024))], 0)
    plane = 1 << 18
    until(lambda: cached(store.fd, 2 * plane, 3 * plane // 2))
    assert not cached(store.fd, 7 * plane, plane)
    store.close()


@pytest.mark.parametrize("bounce", [0, 1 << 16])
@pytest.mark.parametrize("pages", [4, 16])
def test_short_gaps_are_fetched_too(tmp_path: Path, pages: int, bounce: int) -> None:
    """Pieces of 8 KiB of rows: gaps of 8 KiB, which cost less than another request, and of 56 KiB."""
    items = pages * 1024
    mapped(tmp_path / "a.bin", (64, items))
    os.sync()
    store = open_store(np.memmap(tmp_path / "a.bin", np.float32, "r", shape=(64, items)))
    assert isinstance(store, FileStore)
    os.posix_fadvise(store.fd, 0, 0, os.POSIX_FADV_DONTNEED)
    if resident(tmp_path / "a.bin").any():
        pytest.skip("this file system keeps all in memory")
    region = (Span(0, 48), Span(0, 2048))
    store.fetch([region], bounce)
    until(lambda: resident(tmp_path / "a.bin").reshape(64, pages)[:48, :2].all())
    for _ in range(2):
        there = resident(tmp_path / "a.bin").reshape(64, pages)
        assert there[:48, :2].all() and not there[48:].any()
        assert there[:47, 2:].all() if pages == 4 else not there[:, 2:].any()
        store.read(region, np.empty((48, 2048), np.float32), bounce_of(bounce) if bounce else None)  # brings nothing more
    store.close()


def resident(path: Path) -> Any:
    """Which pages of a file the page cache holds."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as pages:
        start = np.frombuffer(pages, np.uint8)
        found = np.zeros(-(-len(pages) // mmap.PAGESIZE), np.uint8)
        where, answer = ctypes.c_void_p(start.ctypes.data), ctypes.c_void_p(found.ctypes.data)
        failed = ctypes.CDLL(None).mincore(where, ctypes.c_size_t(len(pages)), answer)
        del start
    assert not failed
    return found & 1 != 0


def cached(fd: int, offset: int, nbytes: int) -> bool:
    """Whether the page cache holds a whole piece of a file."""
    try:
        return os.preadv(fd, [bytearray(nbytes)], offset, os.RWF_NOWAIT) == nbytes
    except OSError:
        return False


def test_an_empty_region_moves_nothing(tmp_path: Path) -> None:
    array = mapped(tmp_path / "a.bin", (4, 4))
    store = open_store(array, writable=True)
    empty = np.empty((0, 4), np.float32)
    store.fetch([(Span(4, 4), Span(0, 4))], 0)
    store.read((Span(4, 4), Span(0, 4)), empty, None)
    store.write((Span(4, 4), Span(0, 4)), empty, None)
    store.close()


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    array = mapped(tmp_path / "a.bin", (64, 64))
    os.truncate(tmp_path / "a.bin", 64 * 64 * 4 - 1)
    with pytest.raises(StoreError, match="needs 16384 bytes but the file has 16383; it was truncated"):
        open_store(array)
    open_store(array[:63]).close()  # what is still there can be used


@pytest.mark.parametrize("threads", [1, 3])
def test_a_shrunk_file_fails_the_read_not_the_process(tmp_path: Path, threads: int) -> None:
    array = mapped(tmp_path / "a.bin", (64, 64))
    store = open_store(array, threads=threads)
    os.truncate(tmp_path / "a.bin", 4096)
    target = np.zeros((64, 64), np.float32)
    with pytest.raises(StoreError, match=r"a\.bin: reading failed"):
        store.read(whole((64, 64)), target, None)
    store.close()


# ---- faults in mid-run


def inputs(directory: Path) -> dict[str, Any]:
    op = parse(OP)
    return {o.name: mapped(directory / f"{o.name}.bin", o.shape, seed=i) for i, o in enumerate(op.inputs)}


def works_after() -> None:
    """The next call on the same arena is right."""
    op = parse(OP)
    rng = np.random.default_rng(5)
    arrays = {o.name: rng.integers(-4, 5, o.shape).astype(np.float32) for o in op.inputs}
    np.testing.assert_array_equal(ooc.conv(arrays["x"], arrays["w"], padding=1), oracle.chain(op, arrays))


def test_memmap_to_memmap_is_right(tmp_path: Path) -> None:
    arrays, op = inputs(tmp_path), parse(OP)
    out = np.memmap(tmp_path / "y.bin", np.float32, "w+", shape=op.outputs[0].shape)
    with ooc.device("cpu", BUDGET):
        assert ooc.conv(arrays["x"], arrays["w"], padding=1, out=out) is out
    np.testing.assert_array_equal(out, oracle.chain(op, arrays))


@pytest.mark.parametrize("name", ["x", "y"])
def test_a_file_that_shrinks_in_mid_run(tmp_path: Path, name: str) -> None:
    arrays, op = inputs(tmp_path), parse(OP)
    out = np.memmap(tmp_path / "y.bin", np.float32, "w+", shape=op.outputs[0].shape)
    seen: list[int] = []

    def shrink(done: int, total: int) -> None:
        seen.append(total)
        if done == 2:
            os.truncate(tmp_path / f"{name}.bin", 0)

    with ooc.device("cpu", BUDGET):
        with pytest.raises(StoreError, match=rf"{name}\.bin: "):
            ooc.conv(arrays["x"], arrays["w"], padding=1, out=out, callbacks=[shrink])
        assert lanes_left() == []
        works_after()
    assert seen[0] > 8


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB, which only root can make."""
    place = tmp_path / "small"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"a file system that fills up needs the right to mount one: {made.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_disk_that_fills_up(tmp_path: Path, small_disk: Path) -> None:
    arrays, op = inputs(tmp_path), parse(OP)
    out = np.memmap(small_disk / "y.bin", np.float32, "w+", shape=op.outputs[0].shape)  # sparse: fits until written
    with ooc.device("cpu", BUDGET):
        with pytest.raises(StoreError, match=r"y\.bin: writing failed") as caught:
            ooc.conv(arrays["x"], arrays["w"], padding=1, out=out)
        assert caught.value.errno == 28 and isinstance(caught.value, OSError)  # ENOSPC
        assert lanes_left() == []
        works_after()


def test_no_room_for_the_intermediate_of_a_cut_chain(tmp_path: Path, small_disk: Path) -> None:
    x = mapped(tmp_path / "x.bin", (1, 8, 96, 96))
    ws = [mapped(tmp_path / "v.bin", (64, 8, 3, 3)), mapped(tmp_path / "w.bin", (1, 64, 3, 3))]
    out = np.memmap(small_disk / "y.bin", np.float32, "w+", shape=(1, 1, 24, 24))
    layers = [ooc.Conv(ws[0], padding=1), ooc.Conv(ws[1], padding=1), ooc.Pool("max", 4)]
    with ooc.device("cpu", "16 KiB"):  # the first filter alone is 18 KiB: the fused chain would need it whole
        with pytest.raises(StoreError, match=r"swap file in .*small, of 2359296 bytes: No space left"):  # before anything is made
            ooc.chain(x, *layers, out=out)
        assert lanes_left() == []
    assert [p.name for p in small_disk.iterdir()] == ["y.bin"]  # the intermediate was removed


def test_a_file_size_limit_is_a_store_error(tmp_path: Path) -> None:
    """The same path without root: writing past RLIMIT_FSIZE fails like a full disk (EFBIG instead of ENOSPC)."""
    arrays, op = inputs(tmp_path), parse(OP)
    out = np.memmap(tmp_path / "y.bin", np.float32, "w+", shape=op.outputs[0].shape)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with ooc.device("cpu", BUDGET):
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, hard))
            with pytest.raises(StoreError, match=r"y\.bin: writing failed"):
                ooc.conv(arrays["x"], arrays["w"], padding=1, out=out)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert lanes_left() == []
        works_after()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, StopIteration, ooc.OocError])
def test_an_error_of_a_callback_is_the_callers_own(tmp_path: Path, error: type[BaseException]) -> None:
    arrays, op = inputs(tmp_path), parse(OP)
    out = np.memmap(tmp_path / "y.bin", np.float32, "w+", shape=op.outputs[0].shape)
    calls: list[int] = []

    def stop(done: int, total: int) -> None:
        calls.append(done)
        if done == 3:
            raise error("enough")

    with ooc.device("cpu", BUDGET):
        with pytest.raises(error, match="enough") as caught:
            ooc.conv(arrays["x"], arrays["w"], padding=1, out=out, callbacks=[stop])
        assert type(caught.value) is error and calls == [1, 2, 3]
        assert lanes_left() == []
        works_after()

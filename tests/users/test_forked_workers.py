"""Workers that are forked after ooc was used: data loaders, multiprocessing's default on Linux before Python 3.14."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from waiting import HANGS

import ooc
from ooc import native

pytestmark = [pytest.mark.quick, pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")]


def work(seed: int) -> list[np.ndarray[Any, Any]]:
    """A little of everything."""
    numbers = np.random.default_rng(seed)
    x, w = numbers.integers(-2, 3, (2, 8, 40, 40)).astype("f"), numbers.integers(-2, 3, (8, 8, 3, 3)).astype("f")
    y = ooc.conv(x, w, padding=1)
    dx, dw, db = ooc.conv_backward(x, w, y, padding=1)
    return [y, dx, dw, db, ooc.max_pool(y, 2), ooc.batch_norm(y, training=True).y, ooc.activation(y, "relu")]


def in_child(todo: Callable[[], bool]) -> bool:
    """Whether it comes out well in a forked child; a child that hangs is killed."""
    child = os.fork()
    if not child:
        try:
            os._exit(0 if todo() else 1)
        finally:
            os._exit(2)
    timer = threading.Timer(HANGS, lambda: os.kill(child, signal.SIGKILL))
    timer.start()
    _, status = os.waitpid(child, 0)
    timer.cancel()
    return os.waitstatus_to_exitcode(status) == 0


def same(a: list[Any], b: list[Any]) -> bool:
    return all(np.array_equal(p, q) for p, q in zip(a, b, strict=True))


@pytest.mark.parametrize("budget", [None, "64 KiB"])
@pytest.mark.parametrize("threads", [2, 4])
def test_a_child_computes_what_its_parent_did(threads: int, budget: str | None) -> None:
    with ooc.device("cpu", budget=budget, threads=threads, deterministic=True):
        wanted = work(0)
        assert in_child(lambda: same(work(0), wanted))
        assert same(work(0), wanted)  # and the parent goes on
    with ooc.device("cpu", budget=budget, threads=threads, deterministic=True):
        assert in_child(lambda: same(work(0), wanted))


def test_a_child_and_its_parent_do_not_share_memory() -> None:
    """Buffers that are kept for the next run are its own in each process."""
    with ooc.device("cpu", budget="1 MiB", threads=2, deterministic=True):
        wanted = work(1)
        read, write = os.pipe()

        def many() -> bool:
            os.write(write, b"!")
            return all(same(work(1), wanted) for _ in range(20))

        results: list[bool] = []
        waiting = threading.Thread(target=lambda: results.append(in_child(many)))
        waiting.start()
        os.read(read, 1)
        assert all(same(work(1), wanted) for _ in range(20))
        waiting.join()
        os.close(read)
        os.close(write)
        assert results == [True]


def test_forks_while_other_threads_compute() -> None:
    """No child finds a lock that somebody held."""
    stop = threading.Event()

    def busy() -> None:
        n = 5
        while not stop.is_set():
            with ooc.device("cpu", budget=1 << 16):
                ooc.activation(np.ones((1, 2, 5, n), "f"), "relu")
            n += 1

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        for n in range(10):
            x = np.full((1, 2, 700 + n, 5), -1, "f")
            assert in_child(lambda x=x: not ooc.activation(x, "relu").any())
    finally:
        stop.set()
        thread.join()


def test_a_child_forgets_and_finds_what_its_parent_remembered() -> None:
    """Tables that are full when it is forked, by keys of the parent's."""
    x, w = np.ones((1, 4, 9, 9), "f"), np.ones((4, 4, 3, 3), "f")

    def many() -> bool:
        results = []
        for budget in range(20_000, 20_200):
            with ooc.device("cpu", budget=budget, threads=3):
                results.append(ooc.conv(x, w))
        return all((y == 36).all() for y in results)

    assert many()
    assert in_child(many)


def test_a_child_after_a_large_copy() -> None:
    """Copies have teams too."""
    source = np.ones(8 << 20, "f")
    native.copy(np.empty_like(source), source, 2)
    x = np.ones((2, 8, 100, 100), "f")
    with ooc.device("cpu", threads=2):
        assert in_child(lambda: bool((ooc.conv(x, np.ones((8, 8, 3, 3), "f")) == 72).all()))


def squares(n: int) -> float:
    return float(ooc.conv(np.full((2, 8, 100, 100), n, "f"), np.ones((8, 8, 3, 3), "f")).max())


def test_a_pool_of_forked_workers() -> None:
    squares(0)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map_async(squares, [1, 2, 3]).get(HANGS) == [72.0, 144.0, 216.0]


@pytest.mark.slow
def test_a_data_loader_with_workers() -> None:
    torch = pytest.importorskip("torch")
    squares(0)

    class Pictures(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
        def __len__(self) -> int:
            return 4

        def __getitem__(self, i: int) -> float:
            return squares(i)

    loader = torch.utils.data.DataLoader(Pictures(), num_workers=2, timeout=HANGS)
    assert [float(batch[0]) for batch in loader] == [0.0, 72.0, 144.0, 216.0]

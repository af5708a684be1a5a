"""The garbage collector rests while something is planned, and is as it was behind that."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator

import pytest

import ooc
from ooc.networks import Graph
from ooc.schedule.collector import rest

pytestmark = pytest.mark.quick


@pytest.fixture(autouse=True)
def _enabled() -> Iterator[None]:
    yield
    gc.enable()


@pytest.mark.parametrize("on", [True, False])
def test_it_is_as_it_was(on: bool) -> None:
    (gc.enable if on else gc.disable)()
    with rest.taken():
        assert not gc.isenabled()
        with rest.taken():
            pass
        assert not gc.isenabled()
    assert gc.isenabled() is on
    with pytest.raises(KeyError), rest.taken():
        raise KeyError
    assert gc.isenabled() is on


def test_it_rests_while_any_thread_plans() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def plan() -> None:
        with rest.taken():
            begun.set()
            go_on.wait()

    thread = threading.Thread(target=plan)
    thread.start()
    begun.wait()
    with rest.taken():
        pass
    assert not gc.isenabled()
    go_on.set()
    thread.join()
    assert gc.isenabled()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_has_it_on() -> None:
    with rest.taken():
        child = os.fork()
        if not child:
            with rest.taken():
                pass
            os._exit(0 if gc.isenabled() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not gc.isenabled()


def test_plans_that_fail_too(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    graph = Graph("g")
    graph.output(graph.conv(graph.input("x", (2, 8, 8)), 4, 3, padding=1))
    monkeypatch.setattr("ooc.networks.planning.choose", lambda *given: seen.append(gc.isenabled()) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        graph.plan(batch=1, train=False, device=ooc.device("cpu", threads=1))
    assert seen == [False] and gc.isenabled()

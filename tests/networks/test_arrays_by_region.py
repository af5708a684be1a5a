"""Sessions that read and write files of chunks, and arrays with their axes in another order: by region, nothing copied whole."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chunks import Chunks, integers

import ooc

SHAPE = (2, 3, 40, 36)


def planned(budget: str | None, shape: tuple[int, ...] = SHAPE) -> Any:
    """A convolution and its activation."""
    g = ooc.Graph("small")
    x = g.input("x", shape[1:])
    y = g.conv(x, 4, 3, padding=1, bias=False)
    g.output(g.activation(y, "relu"))
    return g.plan(batch=shape[0], train=False, budget=budget)


def expected(x: Any, given: dict[str, Any]) -> Any:
    (w,) = given.values()
    return ooc.conv(np.ascontiguousarray(x), w, padding=1, activation="relu")


def weights(plan: Any) -> dict[str, Any]:
    """Of integers, by the name that the graph gives them."""
    (name,) = plan.network.graph.parameters
    return {name: integers(4, 3, 3, 3)}


@pytest.mark.parametrize("budget", ["48 KiB", "256 KiB", None])
@pytest.mark.parametrize("unit", [(1, 4, 7, 36), (2, 1, 9, 5), (1, 4, 40, 36)], ids=str)
def test_from_chunks_to_chunks(budget: str | None, unit: tuple[int, ...]) -> None:
    """Chunks that no tile fills wait until they are whole, and each is written once."""
    plan = planned(budget)
    source = Chunks(integers(*SHAPE), (1, 3, 8, 36), writable=False)
    sink = Chunks(np.full((2, 4, 40, 36), 7, np.float32), unit)
    given = weights(plan)
    with plan.session(given) as session:
        for _ in range(2):
            assert session.forward(source, out=sink) is sink
            np.testing.assert_array_equal(sink.array, expected(source.array, given))
    assert set(sink.encoded.values()) == {2}
    assert sum(source.decoded.values()) <= 1.5 * 2 * len(source.decoded)


def test_axes_in_another_order_are_not_copied(tmp_path: Path) -> None:
    """A file with channels last is read where it lies."""
    shape = (1, 3, 512, 512)
    held = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (1, 512, 512, 3))
    held[...] = integers(1, 512, 512, 3)
    x = held.transpose(0, 3, 1, 2)
    plan = planned("256 KiB", shape)
    given, out = weights(plan), np.lib.format.open_memmap(tmp_path / "y.npy", "w+", np.float32, (1, 4, 512, 512))
    with plan.session(given) as session:
        tracemalloc.start()
        session.forward(x, out=out)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < held.nbytes / 2
    np.testing.assert_array_equal(out, expected(x, given))


def test_a_failing_run_leaves_what_was_there() -> None:
    """Units that wait are given up with the run."""
    plan = planned("48 KiB")
    source = Chunks(integers(*SHAPE), (1, 3, 8, 36), writable=False)
    sink = Chunks(np.full((2, 4, 40, 36), 7, np.float32), (2, 4, 40, 36))

    def fail(region: Any, out: Any) -> None:
        raise OSError(5, "gone")

    with plan.session(weights(plan)) as session:
        read, source._read = source._read, fail  # type: ignore[method-assign]
        with pytest.raises(ooc.StoreError, match="gone"):
            session.forward(source, out=sink)
        assert (sink.array == 7).all()
        source._read = read  # type: ignore[method-assign]
        session.forward(source, out=sink)
    assert not (sink.array == 7).all()


def test_outputs_share_nothing(tmp_path: Path) -> None:
    """Not with each other, not with an input, by whatever handle; nothing is written then."""
    zarr = pytest.importorskip("zarr")
    x = zarr.create_array(tmp_path / "x.zarr", data=integers(1, 4, 16, 16), chunks=(1, 3, 5, 7))
    g = ooc.Graph("two")
    a = g.conv(g.input("x", (4, 16, 16)), 4, 3, padding=1, name="a")
    g.output(a, g.activation(a, "relu", name="b"))
    path, before = f"{tmp_path}/x.zarr", x[...]
    with (
        g.plan(batch=1, train=False, budget="32 KiB").session() as session,
        ooc.open(path, "r+") as one,
        ooc.open(path, "r+") as two,
    ):
        memory = np.empty_like(before)
        for out in ({"a": one, "b": two}, {"a": one, "b": one}, {"a": x, "b": two}):
            with pytest.raises(ooc.ShapeError, match="shares memory"):
                session.forward(np.zeros_like(before), out=out)
        for given, out in ((one, {"a": two, "b": memory}), (x, {"a": x, "b": memory})):
            with pytest.raises(ooc.ShapeError, match="shares memory"):
                session.forward(given, out=out)
        with ooc.open(path) as closed, pytest.raises(ooc.ShapeError, match="for reading"):
            session.forward(before, out={"a": memory, "b": closed})
        with pytest.raises(ooc.StoreError, match="x: the source is closed"):
            session.forward(closed)
    assert np.array_equal(x[...], before)


def test_lent_parameters_in_chunks() -> None:
    g = ooc.Graph("lent")
    g.output(g.conv(g.input("x", (3, 40, 36)), 4, 3, padding=1, bias=False))
    plan = g.plan(batch=2, train=False, budget="64 KiB", lent=True)
    (name,), x, w = g.parameters, integers(*SHAPE), integers(4, 3, 3, 3)
    with plan.session() as session:
        found = session.forward({"x": Chunks(x, (1, 3, 8, 36), False), name: Chunks(w, (3, 3, 3, 3), False)})
    np.testing.assert_array_equal(found, ooc.conv(x, w, padding=1))


def test_an_input_whose_unit_is_larger_than_the_budget() -> None:
    """Refused before anything is read or written."""
    source = Chunks(integers(*SHAPE), (2, 3, 40, 36), writable=False)
    sink = Chunks(np.full((2, 4, 40, 36), 7, np.float32), (1, 4, 8, 36))
    plan = planned("32 KiB")
    with plan.session(weights(plan)) as session, pytest.raises(ooc.BudgetError, match=r"x: a unit.*34560 bytes"):
        session.forward(source, out=sink)
    assert (sink.array == 7).all() and not source.decoded

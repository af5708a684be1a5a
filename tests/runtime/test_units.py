"""Files of chunks, read and written by region: right at every budget, each chunk decoded about once."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adversarial import adversarial
from chunks import Chunks, integers
from numpy.random import default_rng

import ooc
from ooc.ir.region import Region, Span, elements, whole
from ooc.ops.descriptor import parse
from ooc.runtime import engine
from ooc.runtime.keeping import planned_beside, units_of_call
from ooc.runtime.stored import Stored, array_of, stored_in
from ooc.runtime.tensors import tensors_of
from ooc.runtime.units import Keeping, Units
from ooc.schedule.lowering import lower


def conv(x: Any, w: Any, **more: Any) -> Any:
    return ooc.conv(x, w, padding=w.shape[-1] // 2, **more)


@pytest.mark.parametrize(
    "unit", [(1, 3, 64, 48), (1, 1, 7, 48), (1, 3, 7, 5), (2, 2, 16, 16), (1, 3, 1, 48), (1, 1, 64, 1)], ids=str
)
@pytest.mark.parametrize("budget", ["60 KiB", "256 KiB", None])
def test_a_convolution_between_files_of_chunks(unit: tuple[int, ...], budget: str | None) -> None:
    """It is right, and no chunk is decoded, or encoded, more often than half as often again as there are chunks."""
    x, w = integers(2, 3, 64, 48), integers(4, 3, 3, 3)
    source, sink = Chunks(x, unit, writable=False), Chunks(np.zeros((2, 4, 64, 48), np.float32), (1, 2, *unit[2:]))
    with ooc.device("cpu", budget=budget):
        assert conv(source, w, out=sink) is sink
    report = ooc.last_report()
    np.testing.assert_array_equal(sink.array, conv(x, w))
    assert report is not None
    if budget is not None:
        assert report.peak_bytes <= int(budget.split()[0]) << 10
        assert report.peak_bytes <= report.predicted_peak_bytes
    for counted in (source.decoded, sink.encoded):
        assert sum(counted.values()) <= 1.5 * len(counted)


@pytest.mark.parametrize("budget", ["40 KiB", "256 KiB"])
def test_results_in_pieces_that_no_tile_fills(budget: str) -> None:
    """Chunks of all channels, and long ones, while tiles have some: what waits is held, and each is encoded once."""
    x, w = integers(1, 8, 40, 40), integers(16, 8, 3, 3)
    sink = Chunks(np.full((1, 16, 40, 40), 7, np.float32), (1, 16, 3, 40))
    with ooc.device("cpu", budget=budget):
        conv(x, w, out=sink)
    np.testing.assert_array_equal(sink.array, conv(x, w))
    assert max(sink.encoded.values()) == 1


def test_what_a_part_of_a_sink_holds_stays() -> None:
    """Chunks that are written in part keep the rest, whatever budget."""
    x = integers(1, 2, 20, 20)
    before = integers(1, 6, 20, 20, dtype=np.float32)
    for budget in ("2 KiB", "16 KiB", "256 KiB", None):
        sink = Chunks(before.copy(), (1, 4, 6, 7))
        part = array_of("out", sink)[:, 1:3]
        with ooc.device("cpu", budget=budget):
            ooc.activation(x, "relu", out=part)
        expected = before.copy()
        expected[:, 1:3] = np.maximum(x, 0)
        np.testing.assert_array_equal(sink.array, expected)


def test_in_place() -> None:
    x = integers(1, 4, 20, 20)
    for budget in ("2 KiB", "16 KiB", None):
        held = Chunks(x.copy(), (1, 3, 6, 7))
        with ooc.device("cpu", budget=budget):
            ooc.activation(held, "relu", out=held)
        np.testing.assert_array_equal(held.array, np.maximum(x, 0))


def test_filters_that_are_read_again() -> None:
    """All that several steps of an outer loop read is kept between them."""
    x, w = integers(4, 16, 20, 20), integers(32, 16, 3, 3)
    held, filters = Chunks(x, (1, 16, 5, 20), False), Chunks(w, (8, 16, 3, 3), False)
    with ooc.device(
        "cpu",
        budget="48 KiB",
    ):
        found = conv(held, filters)
    np.testing.assert_array_equal(found, conv(x, w))
    for counted in (held.decoded, filters.decoded):
        assert sum(counted.values()) <= 1.5 * len(counted)


def test_a_unit_that_does_not_fit() -> None:
    source = Chunks(integers(1, 4, 64, 64), (1, 4, 64, 64), False)
    with ooc.device("cpu", budget="32 KiB"), pytest.raises(ooc.BudgetError, match="unit") as caught:
        ooc.activation(source, "relu")
    assert not source.decoded
    with ooc.device("cpu", budget="80 KiB"):
        np.testing.assert_array_equal(ooc.activation(source, "relu"), np.maximum(source.array, 0))
    assert "64 KiB" in str(caught.value)


@pytest.mark.parametrize("what", ["turned", "sliced", "merged", "a row of a batch", "with new axes"])
def test_views_of_a_source(what: str) -> None:
    """A view reads and writes its region of the source."""
    array = integers(3, 4, 5, 6, 2, dtype=np.int32)
    views: dict[str, Callable[[Any], Any]] = {
        "turned": lambda a: a.transpose(0, 4, 1, 3, 2),
        "sliced": lambda a: a[1:, :, 2:4, 1:5],
        "merged": lambda a: a.reshape(3, 4, 30, 2),
        "a row of a batch": lambda a: a[1].reshape(4, 60),
        "with new axes": lambda a: a[2, :, 1][None, :, None],
    }
    source = Chunks(array.copy(), (2, 3, 2, 4, 1))
    view, plain = views[what](array_of("x", source)), views[what](array)
    stored = stored_in(view)
    assert stored is not None
    units = Units(source, Keeping((1,) * 5, True, 40, 1 << 8, 1 << 7), threading.RLock())
    rng = default_rng(5)
    for _ in range(30):
        region = tuple(Span(*sorted(rng.integers(0, e + 1, 2).tolist())) for e in plain.shape)
        index = tuple(slice(*s) for s in region)
        out = np.empty(plain[index].shape, np.int32)
        if not elements(region):
            continue
        for piece, part in stored.pieces(region, out):
            units.read(piece, part)
        np.testing.assert_array_equal(out, plain[index])
        plain[index] = rng.integers(0, 99, out.shape)
        for piece, part in stored.pieces(region, plain[index]):
            units.write(piece, part)
    units.finish()
    np.testing.assert_array_equal(source.array, array)


def test_views_that_no_file_has() -> None:
    source = Chunks(integers(3, 4, 6), (1, 2, 3))
    array = array_of("x", source)
    for view in (array[:, ::2], array[..., ::-1], np.broadcast_to(array[:1], (3, 4, 6), subok=True)):
        with pytest.raises(ooc.UnsupportedError, match="axes"):
            stored_in(view)
    with pytest.raises(ooc.ShapeError, match="cannot be seen"):
        array.transpose(2, 1, 0).reshape(-1)
    for touch in (lambda: array + 1, lambda: array.sum(), lambda: array.astype(np.int32), lambda: array.copy()):
        with pytest.raises(TypeError, match="read by region"):
            touch()


@pytest.mark.parametrize("seed", range(8))
def test_random_reads_and_writes(seed: int) -> None:
    """Against an array, with little room, and nothing lost by what gives way."""
    rng = default_rng(seed)
    shape = tuple(rng.integers(3, 12, 3).tolist())
    unit = tuple(int(rng.integers(1, e + 1)) for e in shape)
    array = rng.integers(0, 99, shape).astype(np.int16)
    source, expected = Chunks(array.copy(), unit), array.copy()
    near = tuple(int(rng.integers(0, 3)) for _ in shape)
    keeping = Keeping(near, bool(seed % 2), int(rng.integers(0, 20)), *[int(rng.integers(0, array.nbytes)) for _ in range(2)])
    if seed % 3 == 0:  # what is said of reads to come is a hint
        keeping = replace(keeping, uses={index: int(rng.integers(2, 9)) for index in np.ndindex(2, 2, 2)})
    units = Units(source, keeping, threading.RLock())
    for _ in range(60):
        region = tuple(Span(*sorted(rng.integers(0, e + 1, 2).tolist())) for e in shape)
        index = tuple(slice(*s) for s in region)
        if rng.integers(0, 2):
            expected[index] = rng.integers(0, 99, expected[index].shape)
            units.write(region, expected[index])
        else:
            out = np.empty(expected[index].shape, np.int16)
            units.read(region, out)
            np.testing.assert_array_equal(out, expected[index])
    units.finish()
    np.testing.assert_array_equal(source.array, expected)
    units.close()


def test_the_same_file_opened_twice(tmp_path: Path) -> None:
    """Written while it is read by another name: refused, as of memory maps."""
    pytest.importorskip("zarr")
    with ooc.create(tmp_path / "x.zarr", (1, 2, 8, 8), np.float32, chunks=(1, 1, 4, 4)) as made:
        made.write(whole(made.shape), integers(1, 2, 8, 8))
    with (
        ooc.open(tmp_path / "x.zarr") as x,
        ooc.open(tmp_path / "x.zarr", "r+") as out,
        pytest.raises(ooc.ShapeError, match="overlaps"),
    ):
        conv(x, np.ones((2, 2, 3, 3), np.float32), out=out)


def test_stored_is_told_by_what_it_is() -> None:
    source = Chunks(integers(3, 4, 6), (1, 2, 3))
    assert stored_in(array_of("x", source)) == Stored(source, (0, 0, 0), ((0,), (1,), (2,)))
    assert stored_in(source.array) is None
    source.close()
    with pytest.raises(ooc.UnsupportedError, match="closed"):
        array_of("x", source)


def test_views_without_axes(tmp_path: Path) -> None:
    """A number of a file, by slices that drop every axis, of chunks and of swapped bytes; arrays without axes."""
    zarr = pytest.importorskip("zarr")
    with ooc.create(tmp_path / "v.zarr", (5,), np.float32) as made:
        made.write(whole((5,)), np.arange(5, dtype=np.float32))
    np.save(tmp_path / "b.npy", np.arange(5, dtype=">f4"))
    for name in ("v.zarr", "b.npy"):
        with ooc.open(f"{tmp_path}/{name}::3") as number:
            assert ooc.scale(number, 2.0) == 6 and ooc.scale(number, 2.0).shape == ()
    assert ooc.scale(zarr.array(np.float32(3), store=zarr.storage.MemoryStore()), 2.0) == 6


def test_a_new_sink_that_others_write_too(tmp_path: Path) -> None:
    """What a chunk holds beside the part that is written is what the file says now, not what it said when it was made."""
    zarr = pytest.importorskip("zarr")
    x = integers(1, 4, 16, 16)
    with ooc.create(tmp_path / "y.zarr", (1, 8, 16, 16), np.float32, chunks=(1, 3, 5, 7)) as sink:
        zarr.open_array(tmp_path / "y.zarr", mode="r+")[...] = 7
        ooc.activation(x, "relu", out=array_of("out", sink)[:, :4])
    found = zarr.open_array(tmp_path / "y.zarr")[...]
    np.testing.assert_array_equal(found[:, :4], np.maximum(x, 0))
    assert (found[:, 4:] == 7).all()


def test_tiles_that_lie_in_the_padding() -> None:
    """What is kept does not follow from the first tiles alone."""
    source = Chunks(integers(1, 16, 96, 96), (1, 1, 96, 96), False)
    with ooc.device("cpu", budget="48 KiB"):
        ooc.conv(source, np.ones((16, 4, 1, 1), np.float32), padding=5, groups=4, stride=2)
    assert sum(source.decoded.values()) <= 1.5 * len(source.decoded)


@pytest.mark.parametrize("budget", [2 << 10, 16 << 10, 256 << 10, None])
@pytest.mark.parametrize("deterministic", [False, True])
def test_integers_are_exact_at_any_budget(budget: int | None, deterministic: bool) -> None:
    """And what is measured keeps within what was predicted, and that within the budget."""
    x, w, z = integers(2, 4, 13, 17), integers(6, 4, 3, 3), integers(2, 6, 13, 17)
    calls: dict[str, Callable[[Any, Any], Any]] = {
        "conv": lambda x, out: ooc.conv(x, w, padding=1, residual=z, activation="relu", out=out, deterministic=deterministic),
        "groups": lambda x, out: ooc.conv(x, w[:, :2], padding=1, groups=2, out=out, deterministic=deterministic),
        "add": lambda x, out: ooc.add(x, x, out=out, deterministic=deterministic),
        "pool": lambda x, out: ooc.max_pool(x, 3, stride=2, out=out, deterministic=deterministic),
    }
    for unit in ((1, 1, 4, 5), (1, 3, 2, 7), (2, 1, 13, 2)):
        for call in calls.values():
            expected = call(x, None)
            sink = Chunks(np.full(expected.shape, 7, expected.dtype), tuple(map(min, unit, expected.shape)))
            with ooc.device("cpu", budget=budget):
                call(Chunks(x, unit, False), sink)
            report = ooc.last_report()
            np.testing.assert_array_equal(sink.array, expected)
            assert report is not None and report.peak_bytes <= report.predicted_peak_bytes
            assert budget is None or report.predicted_peak_bytes <= budget


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", ["fprop n=6", "wgrad n=7"])
def test_lanes_in_any_order(kind: str, seed: int) -> None:
    """Reads and writes of one call, in every order that its waits allow."""
    op, rng, where = (
        parse(f"conv.{kind} c=3 h=20 w=18 k=4 r=3 s=3 pad=1"),
        random.Random(seed),
        ooc.device("cpu", budget="24 KiB"),
    )
    held = {o.name: integers(*o.shape) for o in op.inputs}
    made = {o.name: np.full(o.shape, 7, np.float32) for o in op.outputs}
    unit = {name: tuple(rng.randint(1, e) for e in array.shape) for name, array in (held | made).items()}
    files = {name: Chunks(array, unit[name]) for name, array in (held | made).items()}
    tensors = tensors_of(op, {name: array_of(name, file) for name, file in files.items()}, where)
    plans, room = planned_beside(op, tensors, where, True)
    assert len(plans) == 1 and plans[0].tiles > 1
    with closing(units_of_call(plans, tensors, list(made), room)) as units:
        stores = {name: units.store(tensor, name in made) for name, tensor in tensors.items()}
        adversarial(lower(plans[0]), stores, where.backend, rng.choice)
        units.finish()
    with ooc.device("cpu"):
        engine.execute(op, held, expected := {name: np.empty_like(array) for name, array in made.items()})
    for name, array in made.items():
        np.testing.assert_array_equal(array, expected[name])


@pytest.mark.parametrize("locked", [True, False])
def test_lanes_take_turns(locked: bool) -> None:
    """What one writes while another decodes the rest of the same unit is not lost; without their turns it is."""
    column = [(Span(0, 8), Span(at, at + 4)) for at in (0, 4)]
    beside = threading.Thread(target=lambda: units.write(column[1], np.full((8, 4), 2, np.float32)))

    class Late(Chunks):
        def _read(self, region: Region, out: Any) -> None:
            super()._read(region, out)
            if self.decoded.total() == 1:
                beside.start()
                beside.join(0.05 if locked else None)  # it waits for its turn, or comes in between

    source = Late(np.zeros((8, 12), np.float32), (8, 12))
    turn: Any = threading.RLock() if locked else nullcontext()
    units = Units(source, Keeping((0, 0), False, 1), turn)
    units.write(column[0], np.full((8, 4), 1, np.float32))
    beside.join()
    units.finish()
    assert (source.array[:, :4] == 1).all() and (source.array[:, 8:] == 0).all()
    assert bool((source.array[:, 4:8] == 2).all()) is locked

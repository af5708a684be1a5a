"""Steps of calls in very many tiles are made when they run: a plan holds the first of them, and predicts the others."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from networks import Hostile, cpu
from races import races
from sweeps import crossed, swept

import ooc
from ooc.networks import SGD, Graph, running, tiles
from ooc.networks.plan import NetworkPlan
from ooc.runtime import executor
from ooc.schedule import lowering


def graph(side: int = 24) -> Graph:
    """Its activations outweigh its parameters; a statistic and a sum of two branches are in it."""
    g = Graph("windows")
    h = g.conv(g.input("x", (4, side, side)), 8, 3, padding=1, activation="relu")
    h = g.batch_norm(g.conv(h, 8, 3, padding=1, bias=True))
    h = g.add(g.conv(h, 8, 3, padding=1), h, activation="relu")
    logits = g.linear(g.global_pool(g.pool(h, 2)), 4)
    g.output(logits)
    g.loss("cross_entropy", logits)
    return g


@pytest.fixture(params=[8, 32, 256])
def few(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Plans hold so many steps of a call, and run in windows of as many."""
    most: int = request.param
    monkeypatch.setattr(tiles, "LONG", most)
    monkeypatch.setattr(lowering.Schedule.windows, "__defaults__", (most,))
    return most


def planned(device: ooc.Device, train: bool = True, home: str = "host", side: int = 24) -> NetworkPlan:
    made = graph(side)
    options: dict[str, Any] = {"optimizer": SGD(0.05, 0.9)} if train else {"train": False}
    asked: dict[str, Any] = {"batch": 3, "policy": "stream", "device": device, "deterministic": True, "home": home, **options}
    try:
        least = made.plan(budget=1, **asked).smallest_bytes
    except ooc.BudgetError as error:
        assert error.smallest_bytes is not None
        least = error.smallest_bytes
    return made.plan(budget=least + (2 << 10), **asked)


def stepped(plan: NetworkPlan) -> list[Any]:
    """What some steps make, and an inference."""
    rng = np.random.default_rng(0)
    made: list[Any] = []
    side = plan.graph.shapes["x"][1]
    with plan.session(seed=2) as session:
        for _ in range(3):
            x = rng.standard_normal((3, 4, side, side)).astype("f4")
            made += [session.step(x, np.arange(3))]
        made += [session.forward(x), *session.parameters().values()]
    return made


@pytest.fixture(scope="module")
def wanted() -> Iterator[list[Any]]:
    """The same with all steps at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "LONG", 1 << 30)
        plan = planned(cpu())
    assert not plan.schedule.tails
    yield stepped(plan)


def same(made: list[Any], wanted: list[Any]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(made, wanted, strict=True))


@pytest.mark.parametrize(("home", "keeps"), crossed(["disk", "host"], [True, False], every=2))
def test_windows_change_no_bits(few: int, home: str, keeps: bool, wanted: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether windows are kept for the next run or made again."""
    monkeypatch.setattr(running, "HELD", 1 << 20 if keeps else few)
    plan = planned(cpu(), home=home)
    assert len(plan.schedule.tails) > 3 or few == 256
    assert same(stepped(plan), wanted)


@pytest.mark.parametrize("budget", [2 << 10, 16 << 10, 256 << 10, None])
@pytest.mark.parametrize("staged", [False, True])
def test_exact_integers_within_any_budget(few: int, budget: int | None, staged: bool) -> None:
    """Memory held <= predicted <= budget, in whatever windows."""
    rng = np.random.default_rng(1)
    g = Graph("exact")
    h = g.conv(g.input("x", (4, 20, 20)), 6, 3, padding=1, activation="relu", name="a")
    g.output(g.conv(h, 5, 3, padding=1, groups=1, name="b"))
    values = {name: rng.integers(-2, 3, w.shape).astype("f4") for name, w in g.parameters.items()}
    x = rng.integers(-3, 4, (3, 4, 20, 20)).astype("f4")
    plan = g.plan(batch=3, train=False, policy="stream" if budget else "keep", budget=budget, device=cpu(staged))
    with plan.session(values) as session:
        made = [session.forward(x), session.forward(x[::-1])]
        machine = session._main.machine  # type: ignore[union-attr]
        held = sum(int(m.nbytes) for m in machine.memory.values())
    predicted = sum(plan.peaks[space] for space in ("device", "staging", "pinned"))
    assert held <= predicted <= (budget or predicted) and (plan.schedule.tails or budget != 2 << 10 or few == 256)
    first = np.maximum(convolved(x, values["a.w"]), 0)
    np.testing.assert_array_equal(made[0], convolved(first, values["b.w"]))
    np.testing.assert_array_equal(made[1], made[0][::-1])


def convolved(x: Any, w: Any) -> Any:
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))).astype("f8")
    seen = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    return np.einsum("nchwrs,kcrs->nkhw", seen, w, optimize=True)


@pytest.mark.parametrize("staged", [False, True])
def test_hostile_orders_within_windows(few: int, staged: bool, wanted: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(cpu(staged))
    hostile = Hostile(random.Random(few), whole=False)
    monkeypatch.setattr(executor, "walk", hostile)
    assert same(stepped(plan), wanted)
    assert hostile.windows > 4 * 2  # three steps and an inference, in more than a window each


@pytest.mark.parametrize("staged", [False, True])
def test_windows_have_no_races(few: int, staged: bool) -> None:
    """Nor had the steps that a plan holds; a wait that is taken out is missed."""
    plan = planned(cpu(staged))
    assert races(plan.steps(), plan.schedule.layout) == []
    windows = list(plan.schedule.windows())
    assert len(windows) > 1 and max(len(window.steps) for window in windows) <= few
    waits = 0
    for window in windows[:: max(1, len(windows) // 40)]:
        assert races(window.steps, window.layout) == []
        at = next((i for i, step in enumerate(window.steps) if step.after), None)
        if at is not None:
            less = window.steps[at]._replace(after=window.steps[at].after[1:])
            waits += bool(races((*window.steps[:at], less, *window.steps[at + 1 :]), window.layout))
    assert waits or not staged  # one lane after the other has none to wait for


@pytest.mark.parametrize("few", swept([64, 256], suite=1), indirect=True)
def test_what_is_not_held_is_predicted(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Peaks are those of all steps, bytes and seconds nearly: at the edges tiles read less."""
    for device, home in ((cpu(), "host"), (ooc.device("null", calibration="p100"), "disk")):
        short = planned(device, home=home, side=32)
        with monkeypatch.context() as patch:
            patch.setattr(tiles, "LONG", 1 << 30)
            whole = planned(device, home=home, side=32)
        assert not whole.schedule.tails and (few == 256 or short.schedule.tails)
        assert short.peaks == whole.peaks and short.smallest_bytes == whole.smallest_bytes
        assert {lane: pytest.approx(nbytes, rel=0.1) for lane, nbytes in whole.lane_bytes.items()} == short.lane_bytes
        assert short.predicted_seconds == pytest.approx(whole.predicted_seconds, rel=0.15)
        assert short.schedule.count == pytest.approx(whole.schedule.count, rel=0.1)
        assert {k: calls for k, (calls, _) in short.kernels.items()} == {k: calls for k, (calls, _) in whole.kernels.items()}
        for kernel, (_, seconds) in short.kernels.items():
            assert seconds == pytest.approx(whole.kernels[kernel][1], rel=0.2)
        assert short.timeline.starts == sorted(short.timeline.starts) or device.backend.name == "null"
        assert max(short.timeline.ends) == short.predicted_seconds >= max(short.timeline.starts)
        assert sum(len(window.steps) for window in short.schedule.windows()) == whole.schedule.count


def test_progress_grows_to_one(few: int) -> None:
    plan = planned(cpu())
    shares: list[float] = []
    x, labels = np.ones((3, 4, 24, 24), "f4"), np.arange(3)
    with plan.session() as session:
        machine = session._main.machine  # type: ignore[union-attr]
        perform, over = machine.perform, threading.Event()

        def noted(step: Any) -> None:
            shares.append(session.progress)
            perform(step)

        machine.perform = noted  # type: ignore[method-assign]
        for _ in range(2):
            shares.clear()
            session.step(x, labels)
            assert shares == sorted(shares) and shares[0] == 0 and session.progress == 1
            assert max(abs(share - i / len(shares)) for i, share in enumerate(shares)) < 0.15
        over.set()


@pytest.mark.parametrize("late", [False, True])
def test_a_step_that_fails_in_a_window(few: int, late: bool, wanted: list[Any]) -> None:
    """Before the first update nothing has changed; from then on the session is over."""
    plan = planned(cpu())
    rng = np.random.default_rng(0)
    xs = [rng.standard_normal((3, 4, 24, 24)).astype("f4") for _ in range(3)]
    updates = {call.op for call in plan.network.calls if call.phase == "update"}
    with plan.session(seed=2) as session:
        losses = [session.step(xs[0], np.arange(3))]
        machine = session._main.machine  # type: ignore[union-attr]
        perform, count = machine.perform, 0

        def failing(step: Any) -> None:
            nonlocal count
            count += step.kind == "run"
            updating = step.kind == "run" and plan.schedule.jobs[step.job].plan.op in updates  # type: ignore[union-attr]
            if updating if late else count == 9:
                raise KeyboardInterrupt
            perform(step)

        machine.perform = failing  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            session.step(xs[1], np.arange(3))
        machine.perform = perform  # type: ignore[method-assign]
        if late:
            with pytest.raises(ooc.OocError, match="while it moved the parameters"):
                session.step(xs[1], np.arange(3))
            return
        losses += [session.step(x, np.arange(3)) for x in xs[1:]]
        assert losses == wanted[:3]


def test_any_number_of_tiles_is_planned_and_few_steps_held() -> None:
    """More than a hundred thousand were refused: a plan held all their steps."""
    g = Graph("many")
    h = g.conv(g.input("x", (4, 2048, 2048)), 4, 3, padding=1)
    g.output(g.conv(h, 4, 3, padding=1))
    device = ooc.device("null", calibration="cpu")
    plan = g.plan(batch=1, train=False, policy="stream", budget="2 KiB", device=device)
    count = sum(tail.tiles for tail in plan.schedule.tails)
    assert count > 1 << 17 and len(plan.steps()) < 1 << 13
    assert f"in {plan.schedule.count} steps" in str(plan) and plan.schedule.count > count
    again = NetworkPlan.from_json(plan.to_json(), device)
    assert again.predicted_seconds == plan.predicted_seconds and again.lane_bytes == plan.lane_bytes


def test_what_no_memory_holds_is_moved_in_few_pieces() -> None:
    g = Graph("padded")
    g.output(g.pad(g.input("x", (3, 16, 16)), ((0, 1 << 40), (0, 0))))
    plan = g.plan(batch=1, train=False, device=ooc.device("null", calibration="p100"))
    assert plan.peaks["device"] > 1 << 47 and len(plan.steps()) < 1 << 13


def test_sources_are_decoded_once(few: int, tmp_path: Path) -> None:
    """Units of a call whose steps are not held are kept as those of others."""
    zarr = pytest.importorskip("zarr")
    g = Graph("source")
    g.output(g.conv(g.input("x", (4, 96, 96)), 4, 3, padding=1))
    x = np.random.default_rng(0).integers(-3, 4, (2, 4, 96, 96)).astype("f4")
    zarr.open_array(tmp_path / "x.zarr", mode="w", shape=x.shape, chunks=(1, 2, 24, 24), dtype="f4")[...] = x
    plan = g.plan(batch=2, train=False, policy="stream", budget="40 KiB", device=ooc.device("cpu"), deterministic=True)
    assert plan.schedule.tails or few == 256
    source = ooc.open(tmp_path / "x.zarr")
    read, units = source.read, list[Any]()

    def counted(region: Any, out: Any) -> None:
        units.append(out.nbytes)
        read(region, out)

    source.read = counted  # type: ignore[method-assign]
    with plan.session(seed=1) as session:
        made = session.forward(source)
    with g.plan(batch=2, train=False, deterministic=True).session(seed=1) as session:
        np.testing.assert_array_equal(made, session.forward(x))
    assert sum(units) <= 1.5 * x.nbytes

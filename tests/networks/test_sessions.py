"""Sessions: what they take and refuse, what they remember, and that nothing has changed where something was refused."""

from __future__ import annotations

import gc
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from networks import differing, run
from sweeps import crossed

import ooc
from ooc.errors import BudgetError, DtypeError, OocError, OptionError, ShapeError, StoreError, UnsupportedError
from ooc.networks import POLICIES, SGD, Graph

pytestmark = pytest.mark.quick

BATCH, CLASSES = 4, 5
X = np.random.default_rng(0).standard_normal((BATCH, 3, 8, 8)).astype(np.float32)
LABELS = np.arange(BATCH)


def cpu() -> ooc.Device:
    return ooc.device("cpu", threads=2, deterministic=True)


def graph(normed: bool = True) -> Graph:
    g = Graph("small")
    h = g.conv(g.input("x", (3, 8, 8)), 4, 3, padding=1, bias=True, name="conv")
    h = g.batch_norm(h, activation="relu", name="bn") if normed else g.activation(h, "relu")
    h = g.dropout(g.flatten(g.pool(h, 2)), 0.25)
    logits = g.linear(h, CLASSES, bias=True, name="fc")
    g.loss("cross_entropy", logits)
    g.output(logits)
    return g


def plan(**more: Any) -> ooc.NetworkPlan:
    return graph().plan(**{"batch": BATCH, "device": cpu(), "optimizer": SGD(0.1, 0.9), **more})


def state(given: Any) -> dict[str, Any]:
    return given.parameters() | given.statistics()


def same(have: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return differing(have, wanted) == []


# ---- what is refused

BAD_PLANS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"batch": 0}, ShapeError, "batch"), ({"batch": -3}, ShapeError, "batch"),
    ({"batch": 2.5}, (ShapeError, DtypeError), "batch"),
    ({"policy": "hope"}, ShapeError, "policy"), ({"policy": None}, ShapeError, "policy"),
    ({"wish": 1}, OptionError, "wish"), ({"policy": "vdnn++", "codec": "magic"}, (OptionError, ShapeError), "codec"),
    ({"home": "moon"}, ShapeError, "home"), ({"home": 3}, ShapeError, "home"),
    ({"budget": 0}, BudgetError, "budget"), ({"budget": "much"}, ShapeError, "budget"),
    ({"pinned": "much"}, ShapeError, "pinned"),
    ({"device": 3}, ShapeError, "device"), ({"device": "abacus"}, (ShapeError, UnsupportedError), "abacus"),
    ({"train": "yes"}, OptionError, "train"), ({"deterministic": 2}, OptionError, "deterministic"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "kind", "says"), BAD_PLANS)
def test_a_plan_that_makes_no_sense_is_refused_and_the_graph_stays_open(given: Any, kind: Any, says: str) -> None:
    made = graph()
    with pytest.raises(kind, match=says):
        made.plan(**{"batch": BATCH, "device": cpu(), **given})
    made.activation("fc", "relu")
    assert made.plan(batch=BATCH, device=cpu()).batch == BATCH


@pytest.mark.parametrize(
    "optimizer", [{"lr": -1}, {"lr": float("nan")}, {"lr": 0.1, "momentum": 1}, {"lr": 0.1, "nesterov": True}, {"lr": True}]
)
def test_optimizers_that_make_no_sense(optimizer: Any) -> None:
    with pytest.raises(ShapeError, match="SGD"):
        SGD(**optimizer)


def test_a_graph_that_was_planned_takes_no_more_layers() -> None:
    made = graph()
    made.plan(batch=BATCH, device=cpu())
    adds: list[Callable[[], Any]] = [
        lambda: made.input("z", (3,)), lambda: made.activation("fc", "relu"), lambda: made.output("conv"),
    ]  # fmt: skip
    for add in adds:
        with pytest.raises(ShapeError, match="was planned"):
            add()
    assert made.plan(batch=2 * BATCH, device=cpu()).batch == 2 * BATCH


@pytest.mark.parametrize("name", ["labels", "share", "draw", "rates", "d.x", "x", "", 3, None])
def test_reserved_names(name: Any) -> None:
    made = Graph("names")
    made.input("x", (3, 8, 8))
    with pytest.raises(ShapeError, match="name="):
        made.input(name, (3, 8, 8))
    if name is not None:  # None asks for a name
        with pytest.raises(ShapeError, match="name="):
            made.activation("x", "relu", name=name)
    assert list(made.shapes) == ["x"]


BAD_STEPS: list[tuple[str, Any, Any, type[Exception], str]] = [
    ("batch", X[:2], LABELS, ShapeError, "shape"), ("sides", X[:, :, 1:], LABELS, ShapeError, "shape"),
    ("rank", X[0], LABELS, ShapeError, "shape"), ("double", X.astype(np.float64), LABELS, DtypeError, "float64"),
    ("integers", X.astype(np.int32), LABELS, DtypeError, "int32"),
    ("complex", X.astype(np.complex64), LABELS, DtypeError, "complex"),
    ("masked", np.ma.masked_array(X, X > 0), LABELS, DtypeError, "masked"),
    ("other name", {"z": X}, LABELS, ShapeError, "inputs"), ("one too many", {"x": X, "z": X}, LABELS, ShapeError, "inputs"),
    ("none", {}, LABELS, ShapeError, "inputs"),
    ("too few", X, LABELS[:2], ShapeError, "labels"), ("a column", X, LABELS[:, None], ShapeError, "labels"),
    ("no class", X, LABELS + CLASSES, ShapeError, "class"), ("huge", X, np.full(BATCH, 2**63, np.uint64), ShapeError, "class"),
    ("floats", X, LABELS.astype(np.float32), DtypeError, "labels"), ("flags", X, LABELS > 0, DtypeError, "labels"),
    ("nothing", X, None, DtypeError, "labels"), ("ragged", X, [[0], [1, 2], 3, 4], (DtypeError, ShapeError), "labels"),
]  # fmt: skip


@pytest.mark.parametrize("case", BAD_STEPS, ids=lambda case: case[0])
def test_what_does_not_fit_is_refused_before_anything_changes(case: Any) -> None:
    _, x, labels, kind, says = case
    with plan().session() as given:
        given.step(X, LABELS)
        before, gradients = state(given), given.gradients()
        with pytest.raises(kind, match=says):
            given.step(x, labels)
        if x is not X:
            with pytest.raises(kind, match=says):
                given.forward(x)
        assert given.steps == 1 and same(state(given), before) and same(given.gradients(), gradients)
        given.step(X, LABELS)
        with plan().session() as other:
            other.step(X, LABELS)
            other.step(X, LABELS)
            assert same(state(given), state(other))


@pytest.mark.parametrize(
    ("parameters", "kind", "says"),
    [
        ({"fc.x": np.zeros(3)}, ShapeError, "fc.x"), ({3: np.zeros(3)}, ShapeError, "3"), ([1, 2], ShapeError, "dict"),
        ({"fc.w": np.zeros((2, 2), np.float32)}, ShapeError, "fc.w"), ({"fc.w": np.zeros((5, 64), int)}, DtypeError, "fc.w"),
        ({"fc.w": np.zeros((5, 64), np.complex64)}, DtypeError, "fc.w"),
    ],
)  # fmt: skip
def test_parameters_that_do_not_fit(parameters: Any, kind: Any, says: str) -> None:
    with pytest.raises(kind, match=says):
        plan().session(parameters)


@pytest.mark.parametrize("seed", [-1, 1 << 63, 0.5, True, None, "1"])
def test_seeds_that_are_none(seed: Any) -> None:
    with pytest.raises(ShapeError, match="seed="):
        plan().session(seed=seed)


def test_a_closed_session_and_one_of_inference() -> None:
    given = plan().session()
    given.close()
    given.close()
    calls: list[Callable[[], Any]] = [
        lambda: given.step(X, LABELS), lambda: given.forward(X), given.parameters, given.statistics, given.gradients,
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(OocError, match="closed"):
            call()
    with plan(train=False).session() as given:
        with pytest.raises(UnsupportedError, match="inference"):
            given.step(X, LABELS)
        assert given.forward(X).shape == (BATCH, CLASSES)


def test_no_gradients_before_a_step_and_no_outputs_of_a_graph_without() -> None:
    made = Graph("bare")
    made.loss("cross_entropy", made.linear(made.input("x", (6,)), 3))
    with made.plan(batch=2, device=cpu()).session() as given:
        with pytest.raises(ShapeError, match="no step"):
            given.gradients()
        with pytest.raises(ShapeError, match="no output"):
            given.forward(np.zeros((2, 6), np.float32))
        assert given.step(np.zeros((2, 6), np.float32), [0, 1]) == pytest.approx(np.log(3))


# ---- what is taken


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64, list])
def test_labels_of_any_integers(dtype: Any) -> None:
    with plan().session() as given, plan().session() as other:
        labels = LABELS.tolist() if dtype is list else LABELS.astype(dtype)
        assert given.step(X, labels) == other.step(X, LABELS)
        assert same(state(given), state(other))


def test_samples_without_a_label_do_not_count() -> None:
    labels = np.array([0, -1, 2, -7])
    with plan().session() as given, plan().session() as other:
        assert given.step(X, labels) == other.step(X, np.where(labels < 0, -1, labels))
    with plan().session() as given:
        assert given.step(X, np.full(BATCH, -1)) == 0
        assert all(not d.any() for d in given.gradients().values())


@pytest.mark.parametrize("policy", ["keep", "stream", "vdnn_all"])
def test_x_of_any_kind(policy: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    kinds = {
        "dict": {"x": X}, "memmap": np.load(tmp_path / "x.npy", mmap_mode="r"),
        "turned": np.ascontiguousarray(X.transpose(3, 1, 2, 0)).transpose(3, 1, 2, 0),
        "gaps": np.repeat(X, 2, axis=3)[..., ::2], "backwards": X[::-1].copy()[::-1], "fortran": np.asfortranarray(X),
    }  # fmt: skip
    made = plan(policy=policy)
    with made.session() as other:
        losses = [other.step(X, LABELS) for _ in range(2)]
        wanted = other.forward(X)
        for kind, x in kinds.items():
            with made.session() as given:
                assert [given.step(x, LABELS) for _ in range(2)] == losses, kind
                assert np.array_equal(given.forward(x), wanted) and same(state(given), state(other)), kind
    assert np.array_equal(np.load(tmp_path / "x.npy"), X)


def test_one_value_everywhere() -> None:
    one = np.broadcast_to(np.float32(0.5), X.shape)
    with plan().session() as given, plan().session() as other:
        assert given.step(one, LABELS) == other.step(one.copy(), LABELS)
        row = np.broadcast_to(X[:1], X.shape)
        assert given.step(row, LABELS) == other.step(row.copy(), LABELS)


@pytest.mark.parametrize("policy", [p for p in POLICIES if p != "modnn"])
def test_several_inputs_and_outputs(policy: str) -> None:
    made = Graph("two")
    a, b = made.input("a", (3, 6, 6)), made.input("b", (4, 6, 6))
    h = made.add(made.conv(a, 4, 3, padding=1, name="left"), made.batch_norm(b), activation="relu")
    flat = made.flatten(h)
    logits = made.linear(flat, 3)
    made.output(h, logits)
    made.output(logits, flat)
    made.loss("cross_entropy", logits)
    rng = np.random.default_rng(1)
    x = {n: rng.standard_normal((BATCH, *made.shapes[n])).astype(np.float32) for n in ("b", "a")}
    one = made.plan(batch=BATCH, policy=policy, device=cpu())
    with one.session() as given, made.plan(batch=BATCH, device=cpu()).session() as other:
        assert given.step(x, [0, 1, 2, 0]) == other.step(dict(reversed(x.items())), [0, 1, 2, 0])
        found, wanted = given.forward(x), other.forward(x)
        assert list(found) == [h, logits, flat] and same(found, wanted)
        assert np.array_equal(found[flat], found[h].reshape(BATCH, -1))
        assert found[h].shape == (BATCH, 4, 6, 6) and found[logits].shape == (BATCH, 3)
        with pytest.raises(ShapeError, match="dict"):
            given.step(x["a"], [0, 1, 2, 0])


# ---- what is remembered


def test_runs_with_other_arrays_have_nothing_in_common() -> None:
    """Kernels keep what they derive from a block: packed filters, or x in another order. Runs have the same steps."""
    made = Graph("wide")
    h = made.conv(made.input("x", (16, 32, 32)), 32, 3, padding=1, bias=True)
    logits = made.linear(made.global_pool(made.conv(h, 32, 3, padding=1)), 10)
    made.output(logits)
    made.loss("cross_entropy", logits)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((16, 16, 32, 32)).astype(np.float32) for _ in range(2))
    for train in (True, False):
        one = made.plan(batch=16, device=cpu(), train=train)
        with one.session() as given, one.session() as other:
            first = given.forward(a)
            wanted = other.forward(b)
            assert np.array_equal(given.forward(b), wanted) and not np.array_equal(first, wanted)
            assert np.array_equal(given.forward(a), first)


def test_a_failed_step_leaves_nothing_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Graph("wide")
    h = made.conv(made.input("x", (16, 32, 32)), 32, 3, padding=1, bias=True)
    made.loss("cross_entropy", made.linear(made.global_pool(made.conv(h, 32, 3, padding=1)), 10))
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((16, 16, 32, 32)).astype(np.float32) for _ in range(2))
    labels = rng.integers(0, 10, 16)
    one = made.plan(batch=16, device=cpu())
    with one.session() as given, one.session() as other:
        machine = given._main.machine  # type: ignore[union-attr]
        monkeypatch.setattr(machine, "perform", failing(machine.perform, len(one.steps()) - 1))
        with pytest.raises(KeyboardInterrupt):
            given.step(a, labels)
        monkeypatch.undo()
        assert given.step(b, labels) == other.step(b, labels)
        assert same(given.gradients(), other.gradients())


def failing(perform: Callable[[Any], None], at: int, error: BaseException | None = None, late: bool = False) -> Any:
    """Steps are performed until one fails, or, late, behind one."""
    count = [0]

    def performing(step: Any) -> None:
        count[0] += 1
        if count[0] <= at or late:
            perform(step)
        if count[0] > at:
            raise error or KeyboardInterrupt

    return performing


def test_parameters_return_as_they_were() -> None:
    made = plan()
    with made.session(seed=3) as given:
        given.step(X, LABELS)
        saved, wanted = state(given), given.forward(X)
        with made.session(saved) as other:
            assert same(state(other), saved) and np.array_equal(other.forward(X), wanted)
        saved["fc.w"][...] = 0
        assert given.parameters()["fc.w"].any(), "copies"
    with made.session({"fc.b": np.full(CLASSES, 2.0)}) as given, made.session() as other:
        assert given.parameters()["fc.b"].tolist() == [2.0] * CLASSES
        assert np.array_equal(given.parameters()["fc.w"], other.parameters()["fc.w"])


def test_seeds() -> None:
    made = plan()
    found = []
    for seed in (0, 0, 1, (1 << 63) - 1, np.int64(1)):
        with made.session(seed=seed) as given:
            found.append(run_state(given))
    assert same(found[0], found[1]) and same(found[2], found[4])
    assert not same(found[0], found[2]) and not same(found[2], found[3])
    with made.session(seed=0) as given, made.session(given.parameters(), seed=1) as other:
        assert same(given.parameters(), other.parameters())
        assert given.step(X, LABELS) != other.step(X, LABELS), "dropout draws otherwise"


def run_state(given: Any) -> dict[str, Any]:
    return {"loss": given.step(X, LABELS), **state(given)}


def test_steps_are_counted_and_sessions_are_independent() -> None:
    made = plan(policy="vdnn_all")
    with made.session() as given, made.session() as other:
        begun = state(other)
        for i in range(3):
            assert given.steps == i
            given.step(X, LABELS)
            given.forward(X)
        assert other.steps == 0 and same(state(other), begun)
        with made.session() as alone:
            for _ in range(3):
                alone.step(X, LABELS)
            other.step(X[::-1], LABELS)
            assert same(state(given), state(alone)) and "3 steps" in repr(given)


def test_two_sessions_at_once() -> None:
    made = plan(policy="vdnn_all", home="disk")
    found: dict[int, Any] = {}

    def work(i: int) -> None:
        with made.session() as given:
            losses = [given.step(X, LABELS) for _ in range(5)]
            found[i] = {"losses": losses, **state(given)}

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    work(3)
    assert all(same(found[i], found[3]) for i in range(3))


# ---- plans as text, devices, budgets


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("home", ["disk", "pinned"])
def test_plans_return_from_text(policy: str, home: str) -> None:
    made, device = graph(normed=policy != "modnn"), cpu()
    try:
        made.plan(batch=BATCH, budget=1, policy=policy, device=device, home=home)
    except BudgetError as error:
        assert error.smallest_bytes is not None
        least = max(error.smallest_bytes, 16 << 10)
    one = made.plan(batch=BATCH, budget=least, policy=policy, device=device, home=home, optimizer=SGD(0.1), deterministic=True)
    again = ooc.NetworkPlan.from_json(one.to_json(), device)
    assert again.steps() == one.steps() and again.predicted_seconds == one.predicted_seconds
    assert again.peaks == one.peaks and again.to_json() == one.to_json() and str(again) == str(one)
    assert again.smallest_bytes == one.smallest_bytes and again.why == one.why
    assert differing(run(again, X, LABELS), run(one, X, LABELS)) == []


@pytest.mark.parametrize("text", ["", "{}", "[]", "3", "null", '{"graph": {}}', None])
def test_texts_that_are_no_plan(text: Any) -> None:
    with pytest.raises(ShapeError, match="to_json"):
        ooc.NetworkPlan.from_json(text)


@pytest.mark.parametrize("key", ["graph", "batch", "policy", "budget", "proposal", "home", "optimizer", "smallest_bytes"])
def test_texts_of_plans_with_something_missing(key: str) -> None:
    raw = json.loads(plan().to_json())
    del raw[key]
    with pytest.raises(ShapeError, match="to_json"):
        ooc.NetworkPlan.from_json(json.dumps(raw))


def test_traces(tmp_path: Path) -> None:
    made = plan(policy="vdnn_all")
    made.trace(tmp_path / "trace.json")
    told = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    lanes = {e["tid"]: e["args"]["name"] for e in told if e["ph"] == "M" and e["name"] == "thread_name"}
    events = [e for e in told if e["ph"] == "X"]
    assert len(events) == len(made.steps())
    assert {lanes[e["tid"]] for e in events} == {s.lane for s in made.steps()} and all(e["dur"] >= 0 for e in events)
    assert max(e["ts"] + e["dur"] for e in events) == pytest.approx(made.predicted_seconds * 1e6)
    with pytest.raises(OSError):
        made.trace(tmp_path / "nowhere" / "trace.json")


def test_a_measured_trace(tmp_path: Path) -> None:
    """Beside the predicted one, of all runs behind each other; what is not asked for is not kept."""
    g = Graph("inference")
    g.output(g.conv(g.input("x", (3, 8, 8)), 4, 3))
    made = g.plan(batch=BATCH, train=False, device=cpu())
    with made.session() as session:
        with session.profile(trace=True) as profile:
            session.forward(X)
            session.forward(X)
        with session.profile() as without:
            session.forward(X)
    assert not without.events and without.bars
    made.trace(tmp_path / "trace.json", profile)
    told = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    runs = {name: [e for e in told if e["ph"] == "X" and e["pid"] == pid] for pid, name in ((1, "predicted"), (2, "measured"))}
    assert len(runs["measured"]) == 2 * len(runs["predicted"]) == 2 * len(made.steps())
    half = len(made.steps())
    assert max(e["ts"] + e["dur"] for e in runs["measured"][:half]) <= min(e["ts"] for e in runs["measured"][half:]) + 1e-3


def test_devices() -> None:
    made = graph()
    assert made.plan(batch=BATCH, device="cpu").device.backend.name == "cpu"
    given = cpu()
    assert made.plan(batch=BATCH, device=given).device is given
    with ooc.device("cpu", threads=1, budget="1 MiB", deterministic=True) as entered:
        inside = made.plan(batch=BATCH)
        assert inside.device == entered and inside.budget == 1 << 20 and inside.scene.costs.deterministic
        assert made.plan(batch=BATCH, budget="2 MiB").budget == 2 << 20, "its own budget overrides the device's"
    with inside.session() as one, made.plan(batch=BATCH, device=given).session() as other:
        assert one.step(X, LABELS) == other.step(X, LABELS), "it remembers its device"


def test_budgets() -> None:
    made, total = graph(), cpu().backend.total_bytes
    forms = ((None, None), ("2 MiB", 2 << 20), (0.5, total // 2), (3_000_000, 3_000_000), (1e7, 10_000_000), ("50%", total // 2))
    for budget, nbytes in forms:
        one = made.plan(batch=BATCH, device=cpu(), budget=budget)
        assert one.budget == (nbytes if nbytes != total // 2 else pytest.approx(nbytes, abs=1)), budget
    assert isinstance(made.plan(batch=BATCH, device=cpu(), budget=np.int64(1 << 20)).budget, int)


def test_the_limit_of_pinned_memory() -> None:
    null = ooc.device("null", calibration="p100")
    one = plan(policy="vdnn_all", device=null)
    held = one.peaks["staging"] + one.peaks["pinned"]
    assert held > 0 and plan(policy="vdnn_all", device=null, pinned=held).peaks == one.peaks
    with pytest.raises(BudgetError, match="pinned") as caught:
        plan(policy="vdnn_all", device=null, pinned=held - 1)
    assert caught.value.smallest_bytes is None
    for home in ("host", "disk"):
        assert plan(policy="vdnn_all", device=null, home=home).peaks["pinned"] == 0


# ---- what fails, and what is left then


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """No file stays open, no thread alive, no process waits."""
    gc.collect()
    files, threads = open_files(), threading.active_count()
    yield
    gc.collect()
    assert open_files() == files and threading.active_count() == threads


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("policy", ["stream", "vdnn_all", "superneurons", "layrub"])
def test_nothing_stays_open(policy: str, nothing_left: None) -> None:
    for _ in range(3):
        with plan(policy=policy, home="disk").session() as given:
            given.step(X, LABELS)
            given.forward(X)
    given = plan(policy=policy, home="disk").session()
    given.step(X, LABELS)
    del given


def test_a_full_disk_is_an_error_before_the_first_step(monkeypatch: pytest.MonkeyPatch, nothing_left: None) -> None:
    made = plan(policy="vdnn_all", home="disk")

    def full(fd: int, offset: int, nbytes: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StoreError, match="No space left") as caught:
        made.session()
    assert caught.value.errno == 28 and str(made.peaks["file"]) in str(caught.value)
    monkeypatch.undo()
    with made.session() as given:
        given.step(X, LABELS)


FAILING = ["keep", "stream", "vdnn_all", "superneurons", "layrub", "modnn"]
ERRORS = [KeyboardInterrupt(), RuntimeError("a kernel failed"), StoreError(5, "a file failed"), MemoryError()]


@pytest.mark.parametrize(("policy", "error", "when"), crossed(FAILING, ERRORS, ["before", "behind"], every=5))
def test_a_failed_step_breaks_a_session_only_in_the_update(
    policy: str, error: BaseException, when: str, nothing_left: None
) -> None:
    """Some step fails: as it begins, or when its work is done and nobody knows yet."""
    made = graph(normed=policy != "modnn").plan(
        batch=BATCH,
        budget="64 KiB" if policy == "stream" else None,
        policy=policy,
        device=cpu(),
        home="disk",
        optimizer=SGD(0.1, 0.9),
    )
    with made.session() as other:
        other.step(X[::-1], LABELS)
        before = state(other)
        other.step(X, LABELS)
        wanted = state(other)
    kinds = {call.op for call in made.network.calls if call.phase == "update"}
    jobs = made.schedule.jobs
    first = next(i for i, s in enumerate(made.steps()) if s.kind == "run" and jobs[s.job].plan.op in kinds)  # type: ignore[union-attr]
    count = len(made.steps())
    seen = set()
    for at in sorted({*range(0, count, max(1, count // 8)), first - 1, first, first + 1, count - 1}):
        with made.session() as given:
            given.step(X[::-1], LABELS)
            machine = given._main.machine  # type: ignore[union-attr]
            perform = machine.perform
            machine.perform = failing(perform, at, error, when == "behind")  # type: ignore[method-assign]
            with pytest.raises(type(error) if not isinstance(error, RuntimeError) else ooc.BackendError):
                given.step(X[::2].repeat(2, axis=0), LABELS)
            machine.perform = perform  # type: ignore[method-assign]
            assert given.steps == 1
            broken = at >= first
            seen.add(broken)
            if broken:
                for call in (lambda: given.step(X, LABELS), given.parameters, lambda: given.forward(X)):
                    with pytest.raises(OocError, match="while it moved the parameters"):
                        call()
            else:
                assert same(state(given), before)
                given.step(X, LABELS)
                assert same(state(given), wanted)
    assert seen == {True, False}


def test_a_rate_that_fails_breaks_nothing() -> None:
    def rate(step: int) -> float:
        if step == 1 and failing_now:
            raise ValueError("no rate")
        return 0.1

    failing_now = [1]
    with plan(optimizer=SGD(rate)).session() as given, plan(optimizer=SGD(0.1)).session() as other:
        given.step(X, LABELS)
        with pytest.raises(ValueError, match="no rate"):
            given.step(X, LABELS)
        failing_now.clear()
        given.step(X, LABELS)
        other.step(X, LABELS)
        other.step(X, LABELS)
        assert same(state(given), state(other))


def test_an_axis_that_was_put_in_front_is_no_repetition() -> None:
    """NumPy gives x[None] a stride of 0: an array like any other."""
    g = ooc.Graph()
    g.output(g.activation(g.input("x", (2, 3)), "relu"))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    with g.plan(batch=1, train=False).session() as session:
        np.testing.assert_array_equal(session.forward(x[None]), x[None])
        np.testing.assert_array_equal(session.forward(np.broadcast_to(np.float32(7), (1, 2, 3)).copy()), np.full((1, 2, 3), 7))

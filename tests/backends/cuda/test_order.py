"""What the CUDA backend asks of the runtime carries at least the order that a schedule needs.

Every schedule is run on its threads against the emulated device, which keeps a log. From that log alone (streams keep their
order; an event recorded and waited for; a thread that waits for an event) the order of the steps is derived anew, and the
race checker judges it.
"""

from __future__ import annotations

import itertools
import random
import threading
import zlib
from collections import defaultdict
from typing import Any

import pytest
from cases import data, random_plan
from cases_fused import FUSED
from cases_ops import KINDS, random_common
from emulated_device import execute
from emulated_driver import EmulatedCuda, emulated
from races import Race, races
from running import poisoned
from sweeps import crossed, swept

from ooc.backends.cuda.streams import DEVICE_LANES, IN_FLIGHT, Token
from ooc.errors import BackendError
from ooc.ir.fused import fuse
from ooc.ops import ConvFprop
from ooc.runtime.executor import run
from ooc.runtime.machine import Machine
from ooc.runtime.store import ArrayStore
from ooc.schedule.lowering import Schedule, lower
from ooc.schedule.plan import Plan
from ooc.schedule.steps import Step

FORMS = KINDS | FUSED


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[Schedule]:
    """Steps note in the device's log when they begin and end; returns the schedules that were run."""
    ran: list[Schedule] = []
    perform, make = Machine.perform, Machine.__init__

    def begin(self: Any, todo: Schedule, *rest: Any) -> None:
        make(self, todo, *rest)
        ran.append(todo)
        self.numbers = {id(step): i for i, step in enumerate(todo.steps)}

    def noted(self: Any, step: Step) -> None:
        driver, i = self.backend.driver, self.numbers[id(step)]
        with driver.lock:
            driver._log("begin", note=i)
        perform(self, step)
        with driver.lock:
            driver._log("end", note=i)

    monkeypatch.setattr(Machine, "__init__", begin)
    monkeypatch.setattr(Machine, "perform", noted)
    return ran


def order_of(log: list[Any], steps: tuple[Step, ...]) -> list[Step]:
    """The steps, each after those that the log says it comes after, and no others."""
    owner: dict[int, int | None] = {}  # by event: the step behind which it was recorded last
    latest: dict[str, int] = {}  # by thread: the step it worked on last
    pending: dict[str, list[int]] = defaultdict(list)
    over: set[int] = set()
    found = list(steps)
    for call in log:
        if call.what == "record":
            owner[call.event] = latest.get(call.thread)
        elif call.what in ("wait", "finish") and owner.get(call.event) is not None:
            pending[call.thread].append(owner[call.event])
        elif call.what == "begin":
            i = call.note
            # What the host knows to be over comes before whatever begins later.
            known = [j for j in steps[i].after if j in over]
            found[i] = steps[i]._replace(after=tuple(sorted({*pending.pop(call.thread, ()), *known} - {i})))
            latest[call.thread] = i
        elif call.what == "end" and steps[call.note].lane not in DEVICE_LANES:
            over.add(call.note)
        elif call.what == "finished" and owner.get(call.event) is not None:
            over.add(owner[call.event])
    return found


def judged(plan: Plan, arrays: Any, backend: EmulatedCuda, logged: list[Schedule]) -> list[Race]:
    """The races that the log leaves."""
    mark = len(backend.driver.log)
    execute(plan, arrays, backend, None)
    todo = logged[-1]
    return races(order_of(backend.driver.log[mark:], todo.steps), todo.layout)


@pytest.mark.parametrize(("form", "count"), crossed(list(FORMS), (3, 6), every=2))
def test_every_schedule_is_ordered(form: str, count: int, logged: list[Schedule]) -> None:
    rng = random.Random(zlib.crc32(form.encode()) + 77)
    for _ in range(count):
        op = FORMS[form](rng, random_common(rng))
        backend = emulated(rng.getrandbits(32), cudnn=rng.random() < 0.5)
        assert judged(random_plan(rng, op, backend), data(rng, op), backend, logged) == []


class Forgetful(EmulatedCuda):
    """Lanes that do not wait for each other on the device."""

    def wait(self, lane: str, token: Token) -> None:
        if lane not in DEVICE_LANES:
            super().wait(lane, token)


class Hasty(EmulatedCuda):
    """A host that does not wait for the device before it uses a staging buffer again."""

    def wait(self, lane: str, token: Token) -> None:
        if lane in DEVICE_LANES:
            super().wait(lane, token)


@pytest.mark.parametrize("count", swept((15, 40), suite=1, quick=1))
@pytest.mark.parametrize("mutant", [Forgetful, Hasty])
def test_a_backend_that_forgets_to_wait_is_found_out(mutant: type[EmulatedCuda], count: int, logged: list[Schedule]) -> None:
    """Schedules whose lanes depend on each other nearly all show it (now and then the host happens to know enough)."""
    rng, flagged, lanes = random.Random(5), 0, DEVICE_LANES if mutant is Forgetful else ("read", "write")
    tried = 0
    while tried < count:
        op = ConvFprop(2, 4, (8, 8), 4, (3, 3), pad=((1, 1), (1, 1)))
        backend = mutant(emulated(rng.getrandbits(32)).driver, threads=1)
        plan = random_plan(rng, op, backend)
        steps = lower(plan).steps
        if not any(steps[j].lane in DEVICE_LANES for s in steps if s.lane in lanes for j in s.after):
            continue
        tried += 1
        flagged += bool(judged(plan, data(rng, op), backend, logged))
    assert flagged >= 0.9 * tried


def test_lanes_wait_for_the_caller() -> None:
    """Whatever the calling thread's streams still have to do comes before the first step on any lane."""
    op, backend = fuse(ConvFprop(1, 2, (4, 4), 2, (3, 3))), emulated(1)
    driver = backend.driver
    done: list[str] = []
    driver._mine = lambda: None
    driver._issue("copy", driver.foreign[0], 0, lambda: done.append("caller"))
    launch = driver._launch
    driver._launch = lambda *given: (done.append("kernel"), launch(*given))
    rng = random.Random(3)
    execute(random_plan(rng, op, backend), data(rng, op), backend, None)
    assert done[0] == "caller" and "kernel" in done


def test_events_are_used_again() -> None:
    """However long a schedule, there are no more events than steps in flight."""
    rng, op = random.Random(9), ConvFprop(3, 8, (16, 16), 4, (3, 3))
    backend = emulated(2)
    sizes = {d: 1 if d in ("n", "p") else e for d, e in op.dims.items()}
    sizes["c"] = 1
    plan = random_plan(rng, op, backend)
    plan = Plan(op, tuple(sizes.items()), tuple(op.dims), 2, plan.places, True, False, kernel="plain")
    for _ in range(2):
        execute(plan, data(rng, op), backend, None)
    assert plan.tiles > 200
    assert len(backend.driver.issued) <= 3 * (IN_FLIGHT + 2) + 8


def test_a_failing_device_is_reported_and_hangs_nothing() -> None:
    rng, op = random.Random(4), ConvFprop(2, 4, (8, 8), 4, (3, 3))
    backend = emulated(3)
    plan, arrays = random_plan(rng, op, backend), data(rng, op)
    backend.driver.failing = RuntimeError("cudaErrorIllegalAddress")
    with pytest.raises(BackendError, match="cudaErrorIllegalAddress"):
        execute(plan, arrays, backend, None)
    assert not [t for t in threading.enumerate() if t.name.startswith("ooc-")]


def test_times_of_steps(logged: list[Schedule]) -> None:
    """Steps that were only issued have the times at which the device did them."""
    rng, op = random.Random(6), ConvFprop(4, 2, (8, 8), 4, (3, 3))
    backend = emulated(4)
    sizes = {**op.dims, "n": 1}
    plan = Plan(op, tuple(sizes.items()), tuple(op.dims), 2, (), True, False, kernel="plain")
    arrays = data(rng, op) | {"y": poisoned(op.outputs[0])}
    measured = run(lower(plan), {n: ArrayStore(a) for n, a in arrays.items()}, backend)
    for i, step in enumerate(logged[-1].steps):
        assert 0 <= measured.starts[i] <= measured.ends[i]
        assert all(measured.ends[j] <= measured.ends[i] for j in step.after)


def test_times_where_clocks_disagree(logged: list[Schedule], monkeypatch: pytest.MonkeyPatch) -> None:
    """What a device says may be some microseconds early: no step ends before one that it waited for."""
    backend = emulated(4)
    ended, early = backend.ended, itertools.cycle((0.0, 1e-2))
    monkeypatch.setattr(backend, "ended", lambda token: ended(token) - next(early))
    op = ConvFprop(4, 2, (8, 8), 4, (3, 3))
    plan = Plan(op, tuple({**op.dims, "n": 1}.items()), tuple(op.dims), 2, (), True, False, kernel="plain")
    arrays = data(random.Random(6), op) | {"y": poisoned(op.outputs[0])}
    measured = run(lower(plan), {n: ArrayStore(a) for n, a in arrays.items()}, backend)
    for i, step in enumerate(logged[-1].steps):
        assert measured.starts[i] <= measured.ends[i]
        assert all(measured.ends[j] <= measured.ends[i] for j in step.after)

"""Runs a schedule in any order that its waits allow, on one thread: results must not change."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence

from ooc.backends.base import Backend
from ooc.runtime.machine import Machine
from ooc.runtime.store import Store
from ooc.schedule.lowering import Schedule


def adversarial(todo: Schedule, stores: Mapping[str, Store], backend: Backend, pick: Callable[[Sequence[str]], str]) -> list[int]:
    """Issue every step on one thread, `pick` choosing the next lane among those whose waits are met; returns the order."""
    machine = Machine(todo, backend)
    queues: dict[str, list[int]] = {}
    for i, step in enumerate(todo.steps):
        queues.setdefault(step.lane, []).append(i)
    heads = dict.fromkeys(queues, 0)
    order: list[int] = []
    machine.begin((stores,))
    with contextlib.ExitStack() as lanes:
        for lane in queues:
            lanes.enter_context(backend.lane(lane))
        while len(order) < len(todo.steps):
            ready = [
                lane for lane, queue in queues.items()
                if heads[lane] < len(queue) and all(machine.done[j] for j in todo.steps[queue[heads[lane]]].after)
            ]  # fmt: skip
            lane = pick(ready)
            i = queues[lane][heads[lane]]
            heads[lane] += 1
            machine.issue(i)
            order.append(i)
    machine.release()
    return order

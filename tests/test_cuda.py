"""The CUDA backend on an emulated device: every op under any plan, whatever its streams do when nothing forbids it."""

from __future__ import annotations

import random
import zlib
from typing import Any

import numpy as np
import pytest
from cases import data, random_plan
from cases_fused import FUSED
from cases_ops import KINDS, random_common
from emulated_driver import EmulatedCuda, emulated
from running import Arrays, assert_right, poisoned

from ooc.backends.device_array import DeviceArray
from ooc.descriptor import parse
from ooc.plan import Place, Plan
from ooc.run import adversarial, run, schedule
from ooc.steps import races
from ooc.store import ArrayStore, Store

FORMS = KINDS | FUSED


def execute(plan: Plan, arrays: Arrays, backend: EmulatedCuda, rng: random.Random | None) -> Arrays:
    """The outputs of a plan whose operands are put where it says they are."""
    todo = schedule(plan)
    assert races(todo.steps, todo.layout) == []
    spaces = {Place.DEVICE: "device", Place.PINNED: "pinned"}
    whole = arrays | {o.name: poisoned(o) for o in plan.op.outputs}
    placed = {n: backend.put(a, spaces[plan.place(n)]) if plan.place(n) in spaces else a for n, a in whole.items()}
    stores: dict[str, Store] = {n: ArrayStore(a) for n, a in placed.items()}
    if rng is None:
        run(todo, stores, backend)
    else:
        adversarial(todo, stores, backend, rng.choice)
    made = {o.name: placed[o.name] for o in plan.op.outputs}
    return {n: backend.fetch(a) if isinstance(a, DeviceArray) else a for n, a in made.items()}


def single_tile(op: Any, arrays: Arrays, backend: Any, kernel: str) -> Arrays:
    """The outputs of one tile that is the whole op, on the device."""
    backend = emulated(0, cudnn=True)
    offer = next(o for o in backend.offers(op) if o.name == kernel)
    places = tuple((o.name, Place.DEVICE) for o in op.operands)
    plan = Plan(op, tuple(op.dims.items()), tuple(op.dims), 1, places, True, False,
                kernel=kernel, workspace_bytes=int(offer.workspace(op.dims)))  # fmt: skip
    return execute(plan, arrays, backend, None)


def under_random_plans(form: str, seed: int, count: int) -> None:
    rng = random.Random(zlib.crc32(form.encode()) + seed)
    for _ in range(count):
        op = FORMS[form](rng, random_common(rng))
        arrays = data(rng, op)
        backend = emulated(rng.getrandbits(32), cudnn=rng.random() < 0.7, grid=rng.choice((None, 1, 7, 64)))
        plan = random_plan(rng, op, backend)
        got = execute(plan, arrays, backend, rng if rng.random() < 0.7 else None)
        assert_right(op, got, arrays, backend, plan.kernel, str(plan.to_json()), single_tile)


@pytest.mark.parametrize("form", FORMS)
def test_random_plans(form: str) -> None:
    under_random_plans(form, 0, 20)


@pytest.mark.parametrize("text", ["conv.wgrad n=3 c=8 h=16 w=16 k=8 r=3 s=3 pad=1", "bn.moments n=3 k=8 h=64 w=64"])
def test_workspaces_of_many_tilings_at_once(text: str) -> None:
    """The planner asks for the workspaces of all tile sizes in one go, and must hear what it would hear of each."""
    op = parse(text)
    rng = np.random.default_rng(0)
    sizes = {d: rng.integers(1, e + 1, 50) for d, e in op.dims.items()} | {"n": np.arange(50) % 3 + 1}
    for offer in emulated().offers(op):
        together = np.broadcast_to(offer.workspace(sizes), 50)
        assert [int(n) for n in together] == [int(offer.workspace({d: int(s[i]) for d, s in sizes.items()})) for i in range(50)]

"""Every bug ever found stays fixed: tests/helpers/regressions.txt, on every kernel family."""

from __future__ import annotations

import random

import pytest
from cases import data
from regressions import LINES
from running import assert_right, execute

from ooc.backends.cpu.backend import CpuBackend
from ooc.backends.cpu.families import FAMILIES
from ooc.ops.descriptor import parse
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("line", LINES)
def test_regression(line: str, family: str) -> None:
    text, _, how = line.partition(" ; ")
    given = dict(pair.split("=") for pair in how.split())
    outermost = given.pop("order", "")
    op, backend = parse(text), CpuBackend(threads=2)
    if not any(o.name == family for o in backend.offers(op)) and family != "reference":
        family = backend.offers(op)[0].name  # what serves the op where this family refuses it
    sizes = op.legal({d: int(v) for d, v in given.items()})
    assert given.items() <= {d: str(s) for d, s in sizes.items()}.items()
    order = sorted(op.dims, key=lambda d: d != outermost)
    workspace = next((int(o.workspace(sizes)) for o in backend.offers(op) if o.name == family), 0)
    for seed, place in enumerate((Place.HOST, Place.DEVICE)):
        places = tuple((o.name, place) for o in op.operands)
        plan = Plan(op, tuple(sizes.items()), tuple(order), 2, places, False, True, family, workspace)
        rng = random.Random(seed)
        arrays = data(rng, op)
        assert_right(op, execute(plan, arrays, backend, rng), arrays, backend, family, line)

"""What a session says that its steps took."""

from __future__ import annotations

import numpy as np
import pytest
from networks import data
from sweeps import swept

import ooc
from ooc.networks.models import named

BATCH = 4


@pytest.mark.parametrize("budget", swept(["1 MiB", None], suite=1))
def test_every_tile_is_counted_once(budget: str | None) -> None:
    graph = named("unet", side=16, width=0.125)
    plan = graph.plan(batch=BATCH, budget=budget, device="cpu", home="disk")
    x, labels = data(graph, BATCH)
    with plan.session() as session:
        first = session.step(x, labels)
        with session.profile() as profile:
            second = session.step(x, labels)
        step = profile.kernels
        with session.profile() as both:
            session.step(x, labels)
            session.forward(x)
        session.step(x, labels)
    assert first == second
    predicted = plan.kernels
    assert {name.split()[-1] for name in step} == set(predicted)
    for kernel, (calls, seconds) in predicted.items():
        told = [time for name, time in step.items() if name.split()[-1] == kernel]
        assert sum(t.tiles for t in told) >= calls
        assert np.isclose(sum(t.predicted_seconds for t in told), seconds)
    assert all(t.seconds > 0 for t in step.values()) and list(step.values()) == sorted(step.values(), key=lambda t: -t.seconds)
    assert profile.lane_seconds["compute"] == pytest.approx(sum(t.seconds for t in step.values()))
    assert both.kernels.keys() >= step.keys() and all(both.kernels[name].tiles >= time.tiles for name, time in step.items())
    assert sum(t.tiles for t in both.kernels.values()) > sum(t.tiles for t in step.values())
    assert str(profile).startswith(f"<Profile of {sum(t.tiles for t in step.values())} tiles: ")


def test_a_closed_session_has_nothing_to_tell() -> None:
    graph = named("unet", side=16, width=0.125)
    session = graph.plan(batch=1, device="cpu").session()
    session.close()
    with pytest.raises(ooc.OocError, match="it was closed"), session.profile():
        pass

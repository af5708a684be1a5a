"""What leaves is packed with codec="zeros": the same bits, fewer bytes at home, and incompressible data goes as it is."""

from __future__ import annotations

import numpy as np
import pytest
from emulated_driver import emulated
from networks import data, differing, planned, run, smallest
from sweeps import crossed

import ooc
from ooc.model.calibration import load_device
from ooc.networks import Graph
from ooc.runtime.device import Device

BATCH = 8


def sparse() -> Graph:
    """Activations behind ReLUs, half of them zero, and before them none."""
    graph = Graph("sparse")
    h = graph.input("x", (3, 16, 16))
    for k in (8,) * 9:
        h = graph.conv(h, k, 3, padding=1, bias=True)
        h = graph.activation(h, "relu")
    logits = graph.linear(graph.global_pool(h), 4)
    graph.output(logits)
    graph.loss("cross_entropy", logits)
    return graph


def devices() -> list[ooc.Device]:
    return [ooc.device("cpu", threads=2), Device(emulated(0), load_device("p100"), deterministic=True)]


@pytest.mark.parametrize(("where", "home"), crossed(range(2), ("pinned", "host", "disk"), every=2))
def test_packed_homes_change_no_bits(where: int, home: str) -> None:
    graph, device = sparse(), devices()[where]
    x, labels = data(graph, BATCH)
    wanted = run(planned(graph, "keep", None, device, BATCH), x, labels)
    budget = smallest(graph, "vdnn++", device, BATCH, home=home, codec="zeros")
    plan = planned(graph, "vdnn++", budget, device, BATCH, home=home, codec="zeros")
    # Homes in the memory of a processor count against its budget: there nothing leaves.
    assert plan.proposal.codec == ("zeros" if where or home == "disk" else "")
    assert differing(run(plan, x, labels), wanted) == []


@pytest.mark.parametrize("where", range(2))
def test_zeros_take_no_room_at_home(where: int) -> None:
    graph, device = sparse(), devices()[where]
    x, labels = data(graph, BATCH)
    budget = smallest(graph, "vdnn++", device, BATCH, home="disk", codec="zeros")
    plan = planned(graph, "vdnn++", budget, device, BATCH, home="disk", codec="zeros")
    assert plan.lane_bytes["write"] > 0
    with plan.session() as session:
        session.step(x, labels)
        packed, raw = session.packed_bytes
    assert 0 < packed < 0.8 * raw


def test_nothing_is_packed_unasked() -> None:
    graph = sparse()
    plan = planned(graph, "vdnn++", smallest(graph, "vdnn++", devices()[0], BATCH), devices()[0], BATCH)
    with plan.session() as session:
        session.step(*data(graph, BATCH))
        assert session.packed_bytes == (0, 0)


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(ooc.OptionError, match="codec"):
        planned(sparse(), "vdnn++", 1 << 20, devices()[0], BATCH, codec="huffman")


def test_values_that_are_not_zero_come_back_as_they_were() -> None:
    graph, device = sparse(), devices()[0]
    x, labels = data(graph, BATCH)
    x[0, 0, :4] = -0.0
    x[1, 0, 0, 0] = np.nan
    wanted = run(planned(graph, "keep", None, device, BATCH), x, labels, 1)
    budget = smallest(graph, "vdnn++", device, BATCH, codec="zeros")
    assert differing(run(planned(graph, "vdnn++", budget, device, BATCH, codec="zeros"), x, labels, 1), wanted) == []

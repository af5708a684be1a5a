"""A null device walks every policy's steps: nothing is held, nothing is computed."""

from __future__ import annotations

import numpy as np
import pytest

import ooc
from ooc.networks import POLICIES, SGD, Graph


def network(policy: str) -> ooc.NetworkPlan:
    graph = Graph("walked")
    h = graph.input("x", (3, 16, 16))
    for k in (8, 8, 8):
        h = graph.conv(h, k, 3, padding=1, activation="relu")
    logits = graph.linear(graph.global_pool(h), 4)
    graph.output(logits)
    graph.loss("cross_entropy", logits)
    return graph.plan(batch=8, policy=policy, device=ooc.device("null", calibration="p100"), optimizer=SGD(0.1))


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_is_walked(policy: str) -> None:
    x, labels = np.ones((8, 3, 16, 16), np.float32), np.zeros(8, int)
    with network(policy).session() as session:
        assert session.step(x, labels) == 0.0
        assert session.forward(x).shape == (8, 4)
        assert session.parameters().keys() == session.gradients().keys()
        assert session.steps == 1

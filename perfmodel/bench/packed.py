"""How few bytes what leaves takes at home once its zeros are left out, after some training: measured here, on a processor."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator, default_rng

import ooc
from ooc.networks import POLICIES, SGD, NetworkPlan
from ooc.networks.models import named
from ooc.networks.planning import NetworkRequest, judge_of
from ooc.networks.tensors import Mode

STEPS, BATCH, CLASSES = 50, 32, 8
# Networks small enough to be trained here, and learning rates at which they learn.
TRAINED: dict[str, tuple[dict[str, Any], float]] = {
    "alexnet": ({"side": 67, "width": 0.25, "dropout": 0.0}, 0.01),
    "vgg16": ({"side": 32, "width": 0.25, "dropout": 0.0}, 0.001),
}


class PackedTraining(NamedTuple):
    """What a training came to.

    Fields:
        first, last: losses of the first and the last step.
        begin, end: bytes that what left took at home, over those that it has, in those steps.
        nbytes: that it has.
    """

    first: float
    last: float
    begin: float
    end: float
    nbytes: int


def pictures(side: int, count: int, rng: Generator) -> tuple[Any, Any]:
    """Pictures that can be learned, and their labels: of each class a coarse pattern, and noise."""
    patterns = default_rng(0).standard_normal((CLASSES, 3, 8, 8))
    labels = rng.integers(0, CLASSES, count)
    at = np.arange(side) * 8 // side
    x = patterns[labels][:, :, at[:, None], at] + rng.standard_normal((count, 3, side, side))
    return x.astype(np.float32), labels


def planned(network: str) -> NetworkPlan:
    """A training step by vDNN++ in which the inputs of all layers leave, packed with their zeros left out."""
    policy, codec = POLICIES["vdnn++"], {"codec": "zeros"}
    sizes, rate = TRAINED[network]
    request, optimizer = NetworkRequest(Mode.STEP), SGD(rate, momentum=0.9)
    judge = judge_of(named(network, classes=CLASSES, **sizes), BATCH, None, request, ooc.device("cpu"), optimizer=optimizer)
    every = max(policy.frugal(judge, **codec), key=lambda proposal: len(proposal.fates))
    return NetworkPlan.of(judge, policy.name, codec, every, judge.needs(every))


def trained(network: str, steps: int = STEPS) -> PackedTraining:
    """Some steps of a network, with a look at what the first and the last one packed."""
    rng, losses, shares, raw = default_rng(1), [], [], 0
    with planned(network).session(seed=0) as session:
        for _ in range(steps):
            losses.append(session.step(*pictures(TRAINED[network][0]["side"], BATCH, rng)))
            packed, raw = session.packed_bytes
            shares.append(packed / raw)
    return PackedTraining(losses[0], losses[-1], shares[0], shares[-1], raw)

"""What kernels are there for an op, and why others are not, is told to whoever asks the logger "ooc" for it."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import ooc
from ooc.backends.cpu.backend import CpuBackend
from ooc.ops.descriptor import parse
from ooc.planner.question import usable_offers

OP = parse("conv.fprop n=1 c=4 h=20 w=20 k=4 r=3 s=3 dtype=f32")


def test_refusals(caplog: pytest.LogCaptureFixture) -> None:
    backend = CpuBackend(1)
    with caplog.at_level(logging.DEBUG, logger="ooc"):
        offers = usable_offers(OP, backend, False)
    told = [record.getMessage() for record in caplog.records]
    assert f"{OP}: cpu offers {', '.join(offer.name for offer in offers)}" in told
    assert {f"{OP}: {why}" for why in backend.why_not(OP).values()} <= {*told}


def test_silence_by_default(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="ooc"):
        ooc.conv(np.ones((1, 4, 21, 20), np.float32), np.ones((4, 4, 3, 3), np.float32))
    assert not caplog.records

"""Every call on its own, with everything outside."""

from __future__ import annotations

from collections.abc import Iterable

from ooc.networks.judge import Judge
from ooc.networks.policies.base import Policy
from ooc.networks.proposal import Fate, Proposal


def propose(judge: Judge) -> Iterable[Proposal]:
    """Each call is cut into tiles and streamed by the plan that `ooc.plan` gives for it; all tensors, parameters too, live
    outside the device."""
    yield Proposal("stream", others=Fate.STREAM)


STREAM = Policy("stream", "layer by layer, nothing resident", propose, propose, streams=True)

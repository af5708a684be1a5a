"""vDNN++: vDNN's offloads without its barriers, memory laid out from two ends, and what left packed.

Source: Shriram S B, Garg, Kulkarni, "Dynamic Memory Management for GPU-based Training of Deep Neural Networks", IPDPS 2019
(vDNN++, HiPC 2018). Compute goes on while a layer's input leaves; where memory is short, what needs the bytes waits for
them, and here the wait follows from the bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ooc.errors import OptionError
from ooc.networks.judge import Judge
from ooc.networks.policies.base import Policy, room_beside
from ooc.networks.policies.vdnn import CONVOLUTIONS, rung
from ooc.networks.proposal import Proposal


def propose(judge: Judge, codec: str = "") -> Iterable[Proposal]:
    """vDNN_dyn's ladder with neither rung waiting at the ends of layers; codec="zeros": what leaves is packed in memory of the
    host, a mask of the values that are not zero in front of them."""
    yield Proposal("none (p)")
    for kinds, name in ((CONVOLUTIONS, "conv"), (None, "all")):
        lean = rung(judge.net, kinds, "lean", f"{name} (m)")
        for kernels, how in (("fastest", "p"), (room_beside(judge, free(lean, codec)), "greedy"), ("lean", "m")):
            for space in ("ends", "colour"):
                proposal = rung(judge.net, kinds, kernels, f"{name} ({how}), no barrier, {space}")
                yield replace(free(proposal, codec), space=space)


def free(proposal: Proposal, codec: str) -> Proposal:
    """Without barriers: bytes that are being stored are left alone while memory allows. Raises OptionError for a codec that is
    not there."""
    if codec not in ("", "zeros"):
        raise OptionError(f"policy vdnn++: codec={codec!r}: expected 'zeros' or ''")
    return replace(proposal, barrier=False, patient=True, codec=codec)


def frugal(judge: Judge, codec: str = "") -> Iterable[Proposal]:
    """The leanest."""
    for kinds, name in ((CONVOLUTIONS, "conv"), (None, "all")):
        yield free(rung(judge.net, kinds, "lean", f"{name} (m), no barrier"), codec)
    yield Proposal("none (m)", kernels="lean")


VDNNPP = Policy("vdnn++", "vDNN++ (Shriram et al., HiPC 2018)", propose, frugal, options=("codec",))

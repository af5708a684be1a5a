"""What the benchmarks compare with: PyTorch in memory, and what is left of the library without its overlap."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import ooc
from ooc.backends.base import Backend
from ooc.backends.cpu.backend import default_threads
from ooc.errors import ShapeError, UnsupportedError
from ooc.ir.op import Op
from ooc.ops import Convolution
from ooc.planner.planner import Planner
from ooc.runtime.device import Device
from ooc.runtime.engine import execute
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan

Contestant = Callable[[], Mapping[str, Any]]  # does the work once; returns its results by name


class PeerWork(NamedTuple):
    """A problem with its data: inputs where they live and in memory, outputs where they live."""

    op: Op
    budget: int
    inputs: dict[str, Any]
    in_memory: dict[str, Any]
    outs: dict[str, Any]


def execute_on(device: Device, op: Op, inputs: Mapping[str, Any], outs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Compute an op on a device; returns the outputs."""
    with device:
        execute(op, inputs, outs)
    return outs


class InTurn(Planner):
    """Plans without overlap: the tiles that `chooser` plans, one buffer per operand, one step after the other on the
    calling thread. Staged where its backend is, else straight from and to pageable memory."""

    def __init__(self, chooser: Planner, backend: Backend) -> None:
        super().__init__(backend, chooser.model, chooser.limits)
        self.chooser = chooser

    def plan(self, op: Op, places: Mapping[str, Place], deterministic: bool = False, greedy: bool = True) -> Plan:
        """The chooser's plan at depth 1, in turn."""
        return replace(self.chooser.plan(op, places, deterministic), depth=1, in_turn=True, staged=self.backend.staged)


@dataclass(frozen=True)
class InTurnDevice(Device):
    """A device without overlap that runs the tiles of another one."""

    chooser: Device | None = None

    @cached_property
    def planner(self) -> Planner:
        assert self.chooser is not None
        return InTurn(self.chooser.planner, self.backend)


def _in_turn(work: PeerWork, staged: bool) -> Contestant:
    chooser = ooc.device("cpu", work.budget)
    like = ooc.device("cpu", work.budget, pinned=work.budget) if staged else chooser
    device = InTurnDevice(like.backend, like.model, like.device_bytes, chooser=chooser)
    return lambda: execute_on(device, work.op, work.inputs, work.outs)


def _naive(work: PeerWork) -> Contestant:
    """The same tiles, synchronously through pageable memory: what a plain loop does."""
    return _in_turn(work, False)


def _pinned(work: PeerWork) -> Contestant:
    """The same tiles, synchronously through a ring of staging buffers: beside the library, this isolates the overlap."""
    return _in_turn(work, True)


def _torch(work: PeerWork) -> Contestant:
    """The same work in PyTorch on tensors in memory: a forward convolution, or all gradients of one."""
    try:
        import torch
    except ImportError:
        raise UnsupportedError("the peer torch needs PyTorch; pip install torch") from None

    op = work.op
    conv = next((s for s in op.stages if isinstance(s, Convolution)), None)
    kinds = {stage.kind for stage in op.stages}
    if conv is None or not (kinds == {"conv.fprop"} or "conv.wgrad" in kinds) or any(a != b for a, b in conv.pad):
        raise UnsupportedError(f"{op}: the peer torch does forward convolutions and all gradients of one, padded evenly")
    torch.set_num_threads(default_threads())
    tensors = {name: torch.from_numpy(array) for name, array in work.in_memory.items()}
    geometry = (list(conv.stride), [before for before, _ in conv.pad], list(conv.dilation), False, [0] * conv.rank, conv.groups)

    def forward() -> Mapping[str, Any]:
        with torch.no_grad():
            y = torch.ops.aten.convolution(tensors["x"], tensors["w"], None, *geometry)
        gc.collect(0)
        return {op.outputs[0].name: y.numpy()}

    def backward() -> Mapping[str, Any]:
        mask = [name in {o.name for o in op.outputs} for name in ("dx", "dw", "db")]
        with torch.no_grad():
            gradients = torch.ops.aten.convolution_backward(tensors["dy"], tensors["x"], tensors["w"], [conv.k], *geometry, mask)
        gc.collect(0)
        return {name: t.numpy() for name, t in zip(("dx", "dw", "db"), gradients, strict=True) if t is not None}

    return forward if op.kind == "conv.fprop" else backward


PEERS: dict[str, Callable[[PeerWork], Contestant]] = {"torch": _torch, "naive": _naive, "pinned": _pinned}


def chosen(text: str) -> list[str]:
    """The peers of a list such as `torch,naive`, each once. Raises ShapeError."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if unknown := [name for name in names if name not in PEERS]:
        raise ShapeError(f"--peer {unknown[0]}: expected some of {', '.join(PEERS)}")
    return names

"""Training steps under a budget with activations on disk, beside the same step with everything in memory: ours, and PyTorch's
where it is installed, in memory and as people make it fit. Steps of all take turns, so that what else the machine does meets each
alike."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import numpy as np

import ooc
import ooc.native
from ooc.errors import BudgetError, UnsupportedError
from ooc.networks import POLICIES
from ooc.networks.models import named
from ooc.runtime.resident import ResidentMemory
from perfmodel.bench.torch_steps import PEERS, ContestantStep, data, torch_step

Row = dict[str, Any]


def measure(network: str, batch: int, side: int, width: float, share: int, only: Sequence[str], repeats: int) -> Iterator[Row]:
    """Rows of results: of keep in memory, of every policy that has a plan, and of PyTorch's steps, median seconds, how many times
    those of keep, and by how much the process's resident memory grew from before it was made to after its first step.

    share: the bytes of the activations that keep holds for the backward pass are so many times the budget.
    """
    device = ooc.device("cpu")

    def build() -> ooc.Graph:
        return named(network, side=side, width=width, dropout=0)

    keep = build().plan(batch=batch, policy="keep", device=device)
    activations = sum(keep.network.tensors[t].nbytes for t in keep.network.kept)
    budget = activations // share
    about = {"network": network, "batch": batch, "side": side, "width": width, "activations": activations, "budget": budget}
    plans, torch = {"keep": keep}, _torch(device)
    for policy in only or [p for p in (*POLICIES, "auto") if p != "keep"]:
        try:
            plans[policy] = build().plan(batch=batch, device=device, budget=budget, policy=policy, home="disk")
        except (BudgetError, UnsupportedError) as error:
            yield {**about, "policy": policy, "needs": getattr(error, "smallest_bytes", None), "error": str(error)}
    ways: dict[str, AbstractContextManager[ContestantStep]] = {name: _ours(plan) for name, plan in plans.items()}
    ways |= {how: torch_step(torch, build(), batch, how) for how in PEERS if torch is not None}
    steps, rows = dict[str, Callable[[], Any]](), dict[str, Row]()
    with ExitStack() as stack:
        for name, way in ways.items():
            ooc.native.trim()
            try:
                with ResidentMemory() as memory:
                    step = stack.enter_context(way)
                    step.run()
            except Exception as error:
                if name not in PEERS:  # these may lack what they need, such as a compiler
                    raise
                rows[name] = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
                continue
            steps[name], rows[name] = step.run, {"grown_bytes": memory.grown_bytes, **step.about()}
        seconds = _in_turns(steps, repeats)
    for name, row in rows.items():
        if name in seconds:
            row |= {"seconds": seconds[name], "over_keep": seconds[name] / seconds["keep"]}
        yield {**about, "policy": name, **row}


def _torch(device: ooc.Device) -> Any:
    """PyTorch with as many threads as a device, or None."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return None
    torch.set_num_threads(getattr(device.backend, "threads", 1))
    return torch


@contextmanager
def _ours(plan: ooc.NetworkPlan) -> Iterator[ContestantStep]:
    """A step of a plan."""
    x, labels = data(plan)
    about = {
        "why": plan.why, "peak": plan.peaks["device"], "file": plan.peaks["file"], "moved": sum(plan.lane_bytes.values()),
        "predicted_seconds": plan.predicted_seconds,
    }  # fmt: skip
    with plan.session() as session:
        name = next(iter(plan.graph.parameters))
        yield ContestantStep(lambda: session.step(x, labels), lambda: session.gradients()[name], lambda: about)


def _in_turns(ways: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median seconds of each, after one of each that does not count."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(repeats + 1):
        for name, step in ways.items():
            begin = time.perf_counter()
            step()
            if turn:
                times[name].append(time.perf_counter() - begin)
    return {name: float(np.median(seconds)) for name, seconds in times.items()}


def line(row: Row) -> str:
    """A row as a line of text."""
    if "error" in row:
        return f"{row['policy']:19} {row['error']}"
    ours = f"; predicted {row['predicted_seconds']:.2f} s, {row['peak'] / 2**20:.0f} MiB" if "peak" in row else ""
    grown = row["grown_bytes"] / 2**20
    return f"{row['policy']:19} {row['seconds']:7.2f} s, {row['over_keep']:.2f} x keep, resident memory +{grown:.0f} MiB{ours}"

"""Training steps under a budget with activations on disk, beside the same step with everything in memory: ours, and PyTorch's
where it is installed. Steps of all take turns, so that what else the machine does meets each alike."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.random import default_rng

import ooc
from ooc.errors import BudgetError, UnsupportedError
from ooc.networks import POLICIES
from ooc.networks.models import named

Row = dict[str, Any]


def measure(network: str, batch: int, side: int, width: float, share: int, only: Sequence[str], repeats: int) -> Iterator[Row]:
    """Rows of results: of every policy that has a plan, median seconds of a step, and how many times those of keep in memory.

    share: the bytes of the activations that keep holds for the backward pass are so many times the budget.
    """
    device = ooc.device("cpu")

    def build() -> ooc.Graph:
        return named(network, side=side, width=width, dropout=0)

    keep = build().plan(batch=batch, policy="keep", device=device)
    x, labels = data(keep)
    activations = sum(keep.network.tensors[t].nbytes for t in keep.network.kept)
    budget = activations // share
    in_memory = keep.session()
    torch_step = torch_in_memory(keep, x, labels)
    about = {"network": network, "batch": batch, "side": side, "width": width, "activations": activations, "budget": budget}
    for policy in only or [p for p in (*POLICIES, "auto") if p != "keep"]:
        try:
            plan = build().plan(batch=batch, device=device, budget=budget, policy=policy, home="disk")
        except (BudgetError, UnsupportedError) as error:
            least = getattr(error, "smallest_bytes", None)
            yield {**about, "policy": policy, "needs": least, "error": str(error)}
            continue
        with plan.session() as session:
            ways: dict[str, Callable[[], Any]] = {
                "ours": lambda session=session: session.step(x, labels),  # type: ignore[misc]
                "keep": lambda: in_memory.step(x, labels),
            }
            if torch_step is not None:
                ways["torch"] = torch_step
            seconds = _in_turns(ways, repeats)
        yield {
            **about, "policy": policy, "why": plan.why, "peak": plan.peaks["device"], "file": plan.peaks["file"],
            "moved": sum(plan.lane_bytes.values()), "predicted_seconds": plan.predicted_seconds, "seconds": seconds["ours"],
            "keep_seconds": seconds["keep"], "keep_peak": keep.peaks["device"], "torch_seconds": seconds.get("torch"),
            "over_keep": seconds["ours"] / seconds["keep"],
        }  # fmt: skip
        gc.collect()


def data(plan: ooc.NetworkPlan) -> tuple[Any, Any]:
    """A batch at random, and labels."""
    draw = default_rng(0)
    (name,) = plan.graph.inputs
    x = draw.standard_normal((plan.batch, *plan.graph.shapes[name]), np.float32)
    labels = plan.network.tensors["labels"].shape
    return x, draw.integers(0, 3, labels)


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


def torch_in_memory(plan: ooc.NetworkPlan, x: Any, labels: Any) -> Callable[[], float] | None:
    """A step of the same network in PyTorch; None where it is not installed."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(getattr(plan.device.backend, "threads", 1))
    model, criterion = module_of(plan.graph).train(), torch.nn.CrossEntropyLoss()
    inputs, targets = torch.from_numpy(x), torch.from_numpy(labels)

    def step() -> float:
        model.zero_grad(set_to_none=True)
        loss = criterion(model(inputs), targets)
        loss.backward()
        return float(loss.detach())

    return step


def module_of(graph: Any) -> Any:
    """A network as a module of PyTorch, with the parameters that sessions begin with."""
    with graph.plan(batch=1, policy="keep", device="cpu", train=False).session() as session:
        return graph.to_torch(session.parameters())


def line(row: Row) -> str:
    """A row as a line of text."""
    if "error" in row:
        return f"{row['policy']:13} {row['error']}"
    torch = f", torch {row['torch_seconds']:.2f} s" if row["torch_seconds"] else ""
    keep = f"keep in memory {row['keep_seconds']:.2f} s ({row['over_keep']:.2f} x)"
    return (
        f"{row['policy']:13} {row['seconds']:7.2f} s, {keep}{torch}; "
        f"predicted {row['predicted_seconds']:.2f} s, peak {row['peak'] / 2**20:.0f} of {row['keep_peak'] / 2**20:.0f} MiB"
    )

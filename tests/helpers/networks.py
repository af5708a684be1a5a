"""Networks for tests: random graphs, data, and what a session makes of them; steps in a hostile order on poisoned memory."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ooc
from ooc.backends.cpu.backend import CpuBackend
from ooc.networks import SGD, Graph
from ooc.networks.costs import CallCosts
from ooc.networks.judge import Judge
from ooc.networks.plan import NetworkPlan
from ooc.networks.scene import Scene
from ooc.networks.tensors import Mode
from ooc.networks.where import space_of
from ooc.networks.writer import network
from ooc.runtime.machine import Machine
from ooc.schedule.arena import Buffer
from ooc.schedule.lowering import WINDOW, Schedule

Results = dict[str, Any]
# Policies that cut calls into tiles: in their smallest budgets, tiles get ever more and smaller.
STREAMING = ("stream", "ooc_cudnn")


def seeds(count: int, quick: int) -> list[Any]:
    """Parameters of a sweep, of which the first few are quick."""
    return [pytest.param(s, marks=() if s < quick else pytest.mark.slow) for s in range(count)]


def cpu(staged: bool = False) -> ooc.Device:
    """Two threads. staged: a ring of pinned memory and a lane for each hop, as on a GPU."""
    where = ooc.device("cpu", threads=2)
    return replace(where, backend=CpuBackend(2, staged=True)) if staged else where


def random_graph(seed: int, statistics: bool = True) -> Graph:
    """A network of random layers with branches, whose activations outweigh its parameters; every layer has a gradient.

    statistics: whether there may be batch norms.
    """
    rng = random.Random(seed)
    graph = Graph(f"random {seed}")
    rank = rng.choice((1, 2, 2, 3))
    side = {1: 96, 2: 12, 3: 6}[rank]
    x = graph.input("x", (rng.randint(1, 3), *(side,) * rank))
    live = [_conv(graph, rng, x)]
    for _ in range(rng.randint(3, 8)):
        live.append(_layer(graph, rng, live, statistics))
        if rng.random() < 0.6:
            live = live[-2:]
    tips = [t for t in live if not any(t in n.reads for n in graph.nodes)]
    pooled = [graph.global_pool(t, how=rng.choice(("average", "max"))) for t in tips]
    h = pooled[0] if len(pooled) == 1 else graph.concat(*pooled)
    if rng.random() < 0.4:
        h = graph.dropout(h, 0.3)
    logits = graph.linear(h, 4, bias=rng.random() < 0.7)
    graph.output(logits)
    graph.loss("cross_entropy", logits)
    return graph


def _conv(graph: Graph, rng: random.Random, x: str) -> str:
    groups = 2 if graph.shapes[x][0] % 2 == 0 and rng.random() < 0.3 else 1
    padding = rng.choice((0, 1)) if min(graph.shapes[x][1:]) > 2 else 1
    activation = rng.choice((None, "relu", "leaky_relu"))
    bias = rng.random() < 0.5
    return graph.conv(
        x, rng.choice((4, 6, 8)), rng.choice((1, 3)), padding=padding, groups=groups, bias=bias, activation=activation
    )


def _layer(graph: Graph, rng: random.Random, live: Sequence[str], statistics: bool) -> str:
    x = rng.choice(live)
    shape = graph.shapes[x]
    alike = [t for t in live if graph.shapes[t] == shape and t != x]
    large = min(shape[1:]) > 3
    kinds = ["conv", "conv", "act", "lrn", "dropout", "instance", "group"] + ["norm"] * 3 * statistics
    kinds += ["pool", "crop", "stride"] * large + ["add", "multiply", "concat"] * 2 * bool(alike)
    kinds += ["binary"] * bool(alike) + ["pad", "up", "gate", "transpose", "parameter"]
    kind = rng.choice(kinds)
    if kind == "stride":
        return graph.conv(x, 8, 3, stride=2, padding=1)
    if kind == "act":
        return graph.activation(x, rng.choice(("relu", "sigmoid", "tanh", "elu")))
    if kind == "lrn":
        return graph.lrn(x, 3, alpha=0.1)
    if kind == "dropout":
        return graph.dropout(x, 0.25)
    if kind == "instance":
        return graph.instance_norm(x, activation=rng.choice((None, "relu")), affine=shape[1] % 2 == 0)
    if kind == "group":
        return graph.group_norm(x, 2, affine=shape[1] % 2 == 0) if shape[0] % 2 == 0 else graph.instance_norm(x)
    if kind == "norm":
        return graph.batch_norm(x, activation=rng.choice((None, "relu")))
    if kind == "pool":
        return graph.pool(
            x, 2, how=rng.choice(("max", "average", "average_valid")), stride=rng.choice((1, 2)), padding=rng.choice((0, 1))
        )
    if kind == "crop":
        return graph.crop(x, 1)
    if kind == "pad":
        return graph.pad(x, [(1, 0)] * (len(shape) - 1)) if max(shape[1:]) < 100 else graph.activation(x, "relu")
    if kind == "up":
        return (
            graph.upsample(graph.pool(x, 2), factor=2, how=rng.choice(("nearest", "linear"))) if large else _conv(graph, rng, x)
        )
    if kind == "gate":
        return graph.multiply(x, graph.linear(graph.global_pool(x), shape[0], activation="sigmoid"))
    if kind == "transpose":
        return graph.conv_transpose(x, 4, 3, stride=1, padding=1, bias=True)
    if kind == "add":
        return graph.add(x, rng.choice(alike), activation=rng.choice((None, "relu")))
    if kind == "multiply":
        return graph.multiply(x, rng.choice(alike))
    if kind == "binary":
        how = rng.choice(("divide", "maximum", "minimum", "where"))
        z = graph.activation(rng.choice(alike), "sigmoid")
        return graph.binary(x, graph.function(z, "above", 0.5) if how == "where" else z, how)
    if kind == "parameter":
        return graph.concat(x, graph.expand(graph.parameter(np.ones((2, *(1,) * (len(shape) - 1)))), (2, *shape[1:])))
    if kind == "concat":
        return graph.concat(x, rng.choice(alike))
    return _conv(graph, rng, x)


def data(graph: Graph, batch: int, seed: int = 0) -> tuple[Any, Any]:
    """Random floats and labels for a graph with one input and a loss."""
    rng = np.random.default_rng(seed)
    (name,) = graph.inputs
    x = rng.standard_normal((batch, *graph.shapes[name])).astype(np.float32)
    loss = next(n for n in graph.nodes if n.layer.kind == "cross_entropy")
    classes, *positions = graph.shapes[loss.reads[0]]
    return x, rng.integers(0, classes, (batch, *positions))


def run(plan: ooc.NetworkPlan, x: Any, labels: Any, steps: int = 2) -> Results:
    """Losses, gradients, parameters and statistics after some steps, and the outputs of an inference where there are any."""
    with plan.session(seed=1) as session:
        found: Results = {"losses": [session.step(x, labels) for _ in range(steps)]}
        found |= {f"d {name}": a for name, a in session.gradients().items()}
        found |= session.parameters() | session.statistics()
        if plan.graph.outputs:
            found["outputs"] = session.forward(x)
        return found


def differing(have: Results, wanted: Results) -> list[str]:
    """What is not the same bit for bit."""
    assert have.keys() == wanted.keys()
    return [name for name, value in wanted.items() if not np.array_equal(have[name], value, equal_nan=True)]


def planned(graph: Graph, policy: str, budget: int | None, device: ooc.Device, batch: int, **options: Any) -> ooc.NetworkPlan:
    """A plan that trains, with sums in an order of their own."""
    return graph.plan(
        batch=batch, budget=budget, policy=policy, device=device, optimizer=SGD(0.05, 0.9), deterministic=True, **options
    )


def smallest(graph: Graph, policy: str, device: ooc.Device, batch: int, **options: Any) -> int:
    """The smallest budget of a policy."""
    try:
        return planned(graph, policy, 1, device, batch, **options).smallest_bytes
    except ooc.BudgetError as error:
        assert error.smallest_bytes is not None
        return error.smallest_bytes


def inference(graph: Graph, device: ooc.Device, home: str, batch: int = 3) -> Judge:
    """Who judges the plans of an inference without a budget, with sums in an order of their own."""
    return Judge(network(graph, batch, Mode.INFER, None, True), Scene(CallCosts(device, True), space_of(home, device)), None)


def forward(plan: NetworkPlan, x: Any) -> Any:
    """What a session makes of x."""
    with plan.session(seed=3) as session:
        return session.forward(x)


class Hostile:
    """Walks a schedule on one thread, in any order that its waits allow; bytes that nobody needs any more are poisoned at once,
    where it has all steps. Takes the place of `ooc.runtime.executor.walk`. whole: whether all steps are one window, unless they
    are too many for one."""

    def __init__(self, rng: random.Random, whole: bool = True) -> None:
        self.rng, self.whole, self.walked, self.windows = rng, whole, 0, 0
        self.layout: Any = None
        self.partial = False

    def __call__(self, machine: Machine, todo: Schedule) -> None:
        self.partial = len(todo.steps) >= WINDOW or (self.partial and todo.layout is self.layout)
        self.layout = todo.layout
        queues: dict[str, list[int]] = {}
        for i, step in enumerate(todo.steps):
            queues.setdefault(step.lane, []).append(i)
        self.left = _uses(todo)
        self.begun: set[Buffer] = set()
        heads = dict.fromkeys(queues, 0)
        with ExitStack() as lanes:
            for lane in queues:
                lanes.enter_context(machine.backend.lane(lane))
            for _ in todo.steps:
                ready = [lane for lane, queue in queues.items() if heads[lane] < len(queue)
                         and all(machine.done[j] for j in todo.steps[queue[heads[lane]]].after)]  # fmt: skip
                lane = self.rng.choice(ready)
                i = queues[lane][heads[lane]]
                heads[lane] += 1
                self._begin(todo, i)
                machine.issue(i)
                self._end(machine, todo, i)
        self.walked += len(todo.steps)
        self.windows += 1

    def _begin(self, todo: Schedule, i: int) -> None:
        self.begun |= {r.buffer for r in (*todo.steps[i].reads, *todo.steps[i].writes) if r.buffer}

    def _end(self, machine: Machine, todo: Schedule, i: int) -> None:
        for buffer in {r.buffer for r in (*todo.steps[i].reads, *todo.steps[i].writes) if r.buffer}:
            self.left[buffer] -= 1
            resident = getattr(todo, "resident", None) if self.whole and not self.partial else None
            if self.left[buffer] or buffer.space not in machine.memory or resident is None or buffer.name in resident:
                continue
            at = todo.layout.offsets[buffer]
            memory = machine.memory[buffer.space][at : at + buffer.nbytes]
            others = (b for b in self.begun if b.space == buffer.space and b != buffer and self.left[b])
            taken = [(todo.layout.offsets[b], todo.layout.end(b)) for b in others]
            for lo, hi in _without((at, at + buffer.nbytes), taken):
                memory[lo - at : hi - at] = 0xFF


def _uses(todo: Schedule) -> dict[Buffer, int]:
    found: dict[Buffer, int] = {}
    for step in todo.steps:
        for buffer in {r.buffer for r in (*step.reads, *step.writes) if r.buffer}:
            found[buffer] = found.get(buffer, 0) + 1
    return found


def _without(span: tuple[int, int], taken: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """What is left of a range without others."""
    found, at = [], span[0]
    for lo, hi in sorted(taken):
        if lo > at:
            found.append((at, min(lo, span[1])))
        at = max(at, hi)
    return [(lo, hi) for lo, hi in (*found, (at, span[1])) if hi > lo]

"""Small networks in as many tasks as large ones, and their files."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from networks import cpu

import ooc
from ooc.ir.region import whole
from ooc.networks import Graph

SHAPE = (1, 3, 61, 83)


def normed(shape: tuple[int, ...] = SHAPE) -> Graph:
    """Statistics over all of a sample between layers that see their neighbourhood, and a skip."""
    graph = Graph("normed")
    x = graph.input("x", shape[1:])
    a = graph.activation(graph.group_norm(graph.conv(x, 8, 3, padding=1, bias=True), groups=0), "relu")
    b = graph.group_norm(graph.conv(graph.pool(a, 2), 8, 3, padding=1), groups=4)
    b = graph.upsample(graph.activation(b, "relu"), shape[2:])
    graph.output(graph.conv(graph.concat(a, b), 4, 3, padding=1))
    return graph


def written(path: Path, shape: tuple[int, ...], seed: int = 0) -> Any:
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    np.save(path, x)
    return x


def stored(path: Path | str) -> Any:
    with ooc.open(str(path)) as source:
        found = np.empty(source.shape, source.dtype)
        source.read(whole(source.shape), found)
    return found


def session(plan: ooc.NetworkPlan, x: Any) -> Any:
    with plan.session() as running:
        return running.forward(x)


@cache
def plan_of(budget: int) -> ooc.NetworkPlan:
    """Of `normed`, here, with sums in one order."""
    return normed().plan(batch=1, train=False, budget=budget, device=cpu(), deterministic=True)


def wanted(folder: Path) -> Any:
    """x.npy in a folder, and what every run makes of it."""
    return result_of(written(folder / "x.npy", SHAPE).tobytes())


@cache
def by_tasks() -> Any:
    """The same of tasks, one after the other in this process."""
    with TemporaryDirectory() as folder:
        written(Path(folder) / "x.npy", SHAPE)
        ooc.run_tasks(ooc.tasks(plan_of(1 << 20), f"{folder}/x.npy", f"{folder}/y.npy"))
        return np.load(f"{folder}/y.npy")


@cache
def result_of(x: bytes) -> Any:
    return session(plan_of(1 << 20), np.frombuffer(x, np.float32).reshape(SHAPE))

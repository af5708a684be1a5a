"""Many workers: simulated on described devices, and measured here beside its prediction."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.random import default_rng

import ooc
from ooc.files import npy
from ooc.networks import Graph
from ooc.networks.models import named
from ooc.networks.planning import NetworkRequest, plan_network
from ooc.networks.tensors import Mode
from ooc.networks.where import device_of
from ooc.networks.writer import network
from ooc.schedule.budget import parse_bytes
from ooc.workers.child import starting
from ooc.workers.cut import Cutter, whole
from ooc.workers.levels import Level
from perfmodel.bench.tasks import Cluster, predicted

Row = dict[str, Any]
STORE = 20e9  # bytes per second of a file system that all hosts share, in simulation: assumed
HOSTS = {1: 1, 2: 1, 4: 1, 8: 1, 16: 2, 32: 4, 64: 8}  # hosts of so many GPUs


def edges(side: int) -> Graph:
    """The convolutions of VGG16 with results from five depths, as HED has them, on a picture."""
    g = Graph("edges")
    h = g.input("x", (3, side, side))
    maps = []
    for depth, (k, count) in enumerate(((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))):
        h = g.pool(h, 2) if depth else h
        for _ in range(count):
            h = g.conv(h, k, 3, padding=1, bias=True, activation="relu")
        maps.append(g.upsample(g.conv(h, 1, 1, bias=True), (side, side), how="linear"))
    g.output(g.activation(g.conv(g.concat(*maps), 1, 1, bias=True), "sigmoid"))
    return g


def volume(side: int, k: int = 32, depths: int = 3) -> Graph:
    """A 3-D U-Net with instance norms: each of them needs all of the volume."""
    g = Graph("volume")
    skips, h = [], g.input("x", (1, side, side, side))

    def block(x: str, channels: int) -> str:
        for _ in range(2):
            x = g.activation(g.instance_norm(g.conv(x, channels, 3, padding=1, bias=True)), "leaky_relu")
        return x

    for depth in range(depths):
        skips.append(block(h, k << depth))
        h = g.pool(skips[-1], 2)
    h = block(h, k << depths)
    for depth in reversed(range(depths)):
        h = g.conv_transpose(h, k << depth, 2, stride=2)
        h = block(g.concat(skips[depth], h), k << depth)
    g.output(g.conv(h, 3, 1, bias=True))
    return g


class ScaledNetwork(NamedTuple):
    """A network and its batch."""

    name: str
    make: Callable[[], Graph]
    samples: int
    budget: str


SIMULATED = (
    ScaledNetwork("edges of a picture of 32768 x 32768", lambda: edges(32768), 1, "16 GiB"),
    ScaledNetwork("a volume of 1024 x 1024 x 1024, 14 instance norms", lambda: volume(1024), 1, "64 GiB"),
    ScaledNetwork("ResNet-50 on 65536 pictures of 224 x 224", lambda: named("resnet50"), 65536, "16 GiB"),
)


def simulate(device: str) -> Iterator[Row]:
    """A row for each case and number of GPUs: seconds as predicted, and what binds."""
    for case in SIMULATED:
        graph, card = case.make(), ooc.device("null", calibration=device)
        levels, pieces = cut(graph, case, card)
        alone = None
        for gpus, hosts in HOSTS.items():
            run = predicted(levels, pieces, Cluster.of(card.model, gpus, hosts, False, STORE if hosts > 1 else 0.0))
            alone = alone or run.seconds
            yield {
                "network": case.name, "device": card.model.name, "gpus": gpus, "hosts": hosts, "levels": len(levels),
                "tasks": sum(level.units for level in levels) * pieces, "seconds": run.seconds,
                "faster": alone / run.seconds, "busy": run.busy, "waiting": run.waiting, "binds": run.binds,
            }  # fmt: skip


def cut(graph: Graph, case: ScaledNetwork, device: ooc.Device) -> tuple[Sequence[Level], int]:
    """The levels of a piece of the batch, and how many pieces there are."""
    where, budget = device_of(device), parse_bytes(case.budget, device.backend.total_bytes)
    each = -(-case.samples // 256)
    net = network(graph, each, Mode.INFER)
    if case.samples == 1:
        return Cutter(net, where, budget or 0, False).levels(), 1
    plan = plan_network(graph, each, budget, "auto", NetworkRequest(Mode.INFER), where, None, "disk", None, False, {})
    return whole(net, plan), -(-case.samples // each)


MEASURED = (
    ScaledNetwork("edges of a picture of 1536 x 1536", lambda: edges(1536), 1, "256 MiB"),
    ScaledNetwork("a volume of 128 x 128 x 128, 10 instance norms", lambda: volume(128, 16, 2), 1, "256 MiB"),
)


def measure(counts: Sequence[int], repeats: int, folder: str | None = None) -> Iterator[Row]:
    """A row for each case and number of processes on this machine, which share its processors: seconds, beside what was
    predicted, and what one process takes that has all processors."""
    processors = len(os.sched_getaffinity(0))
    for case in MEASURED:
        with tempfile.TemporaryDirectory(dir=folder) as place:
            graph = case.make()
            (x,) = graph.inputs
            npy.save(Path(place) / "x.npy", default_rng(0).standard_normal((1, *graph.shapes[x])).astype(np.float32))
            plan = graph.plan(batch=1, train=False, budget=case.budget)
            taken: dict[int, list[float]] = {count: [] for count in (0, *counts)}
            for _ in range(repeats):
                for count, seconds in taken.items():
                    seconds.append(once(plan, Path(place), count, max(1, processors // max(1, count))))
            same = {(Path(place) / f"y{count}.npy").read_bytes() for count in taken}
            levels = ooc.tasks(plan, f"{place}/x.npy", f"{place}/y0.npy", resume=True)[0].work.levels()
            for count, seconds in taken.items():
                cluster = Cluster.of(plan.device.model, max(1, count), 1, True)
                yield {
                    "network": case.name, "budget": case.budget, "processes": count, "threads": processors // max(1, count) or 1,
                    "seconds": float(np.median(seconds)), "all_seconds": seconds,
                    "predicted_seconds": predicted(levels, 1, cluster).seconds, "same_bits": len(same) == 1,
                    "efficiency": float(np.median(taken[0]) / np.median(seconds)),
                }  # fmt: skip


def once(plan: ooc.NetworkPlan, place: Path, count: int, threads: int) -> float:
    """Seconds of a run by so many processes that are there already; 0: by this one, with all processors."""
    (place / f"y{count}.npy").unlink(missing_ok=True)
    tasks = ooc.tasks(plan, place / "x.npy", place / f"y{count}.npy")
    if not count:
        begin = time.perf_counter()
        ooc.run_tasks(tasks)
        return time.perf_counter() - begin
    with starting(), ProcessPoolExecutor(count, get_context("spawn")) as pool:
        list(pool.map(loaded, range(count * 4)))
        begin = time.perf_counter()
        ooc.run_tasks(tasks, pool, threads=threads)
        return time.perf_counter() - begin


def loaded(_: int) -> bool:
    """Wait until this process has loaded ooc."""
    time.sleep(0.2)
    return ooc.current_device().backend.name != ""


def line(row: Row) -> str:
    """A row for people."""
    if "gpus" in row:
        return (
            f"{row['network']:<52} {row['gpus']:>3} GPUs, {row['hosts']} hosts  {row['seconds']:>9.1f} s  "
            f"{row['faster']:>5.1f}x  {row['binds']}"
        )
    who = f"{row['processes']} processes" if row["processes"] else "here, all processors"
    return (
        f"{row['network']:<52} {who:<21} {row['threads']} threads  {row['seconds']:>7.2f} s  predicted "
        f"{row['predicted_seconds']:>6.2f} s  efficiency {row['efficiency']:.2f}  same bits {row['same_bits']}"
    )

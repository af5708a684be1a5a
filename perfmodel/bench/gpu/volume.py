"""Inference of a volume that fits neither in the GPU's memory nor, with what the network keeps of it, in the host's."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.random import default_rng

import ooc
from ooc.backends.base import Backend
from ooc.model.cost import Model
from ooc.runtime.device import Device
from perfmodel.bench.gpu.bench import Row, Say, forget, measured, timed
from perfmodel.bench.gpu.networks import told
from perfmodel.bench.gpu.problem import GIB, noise

ROUNDS = 3
SIDES, TINY_SIDE = (512, 1024), 16
BUDGET, TINY_BUDGET, PINNED = 16 * GIB, 1 << 20, 16 * GIB
HALO, CORE = 48, 8  # voxels that a voxel depends on, each way, rounded up to the coarsest level's; voxels that are compared
TOLERANCE = {False: 1e-4, True: 1e-2}


def faultseg3d(side: int) -> ooc.Graph:
    """The network of FaultSeg3D: a U-Net of four levels, 16 to 128 channels, that tells where faults are in a seismic volume.

    Source: Wu, Liang, Shi, Fomel, "FaultSeg3D: Using synthetic data sets to train an end-to-end convolutional neural network for
    3D seismic fault segmentation", Geophysics 84(3), 2019.
    """
    graph, skips = ooc.Graph("faultseg3d"), []

    def level(x: str, k: int, name: str) -> str:
        for i in (1, 2):
            x = graph.conv(x, k, 3, padding=1, bias=True, activation="relu", name=f"{name}_{i}")
        return x

    h = graph.input("x", (1, side, side, side))
    for i, k in enumerate((16, 32, 64)):
        skips.append(level(h, k, f"down{i}"))
        h = graph.pool(skips[-1], 2)
    h = level(h, 128, "bottom")
    for i, k in ((2, 64), (1, 32), (0, 16)):
        h = level(graph.concat(graph.upsample(h, factor=2), skips[i]), k, f"up{i}")
    graph.output(graph.conv(h, 1, 1, bias=True, activation="sigmoid"))
    return graph


def bench_volume(
    make: Callable[[bool], Backend], model: Model, say: Say, done: Callable[[str], bool], seconds: float, tiny: bool = False
) -> Iterator[Row]:
    """Rows of results. make: the backend that may use TF32 or not. model: what the inferences are planned by. done: whether the
    row of a key is there already."""
    end = time.perf_counter() + seconds
    for side in (TINY_SIDE,) if tiny else SIDES:
        for tf32 in (True, False):
            key = f"faultseg3d {side} {'tf32' if tf32 else 'fma'}"
            if done(key) or time.perf_counter() > end:
                continue
            row: Row = {"key": key, "network": "faultseg3d", "side": side, "tf32": tf32}
            try:
                row |= _measured(Device(make(tf32), model), side, TINY_BUDGET if tiny else BUDGET, tf32, end)
            except Exception as error:
                row["error"] = f"{type(error).__name__}: {' '.join(str(error).split())[:800]}"
            forget()
            say(f"{key}: {row.get('error') or '{:.3f} s'.format(row['seconds']['median'])}")
            yield row


def _measured(device: Device, side: int, budget: int, tf32: bool, end: float) -> Row:
    """An inference from and to ordinary memory of the host, once more where there is time, and whether it is right."""
    shape = (1, 1, side, side, side)
    x, y = noise(default_rng(0), shape, "f32"), np.empty(shape, np.float32)
    with device:
        begin = time.perf_counter()
        plan = faultseg3d(side).plan(batch=1, train=False, budget=budget, pinned=PINNED)
        planned = time.perf_counter() - begin
        with plan.session() as session:
            first = timed(lambda: session.forward(x, out=y))
            seconds = measured(lambda: session.forward(x, out=y), ROUNDS, end - first, math.inf)
            off = max(_off(session.parameters(), x, y, corner) for corner in (0, side // 2))
            with session.profile() as profile:
                session.forward(x, out=y)
    return {
        "budget_bytes": budget, "seconds": {**seconds, "first": first}, "planning_seconds": planned, "why": plan.why, "off": off,
        "right": off <= TOLERANCE[tf32], "predicted_seconds": plan.predicted_seconds, "bound_seconds": plan.bound_seconds,
        "peak_bytes": plan.peaks["device"], "pinned_bytes": plan.peaks["pinned"], "moved_bytes": plan.lane_bytes,
        **told(profile),
    }  # fmt: skip


def _off(parameters: Any, x: Any, y: Any, lo: int) -> float:
    """How far a few voxels are from what the CPU makes of all that they depend on, at the lowest corner or inside."""
    side = x.shape[-1]
    begin, stop = max(0, lo - HALO), min(side, lo + CORE + HALO)
    part = np.ascontiguousarray(x[..., begin:stop, begin:stop, begin:stop])
    small = faultseg3d(stop - begin)
    with small.plan(batch=1, train=False, device="cpu").session(parameters) as session:
        expected = session.forward(part)
    inside, there = slice(lo - begin, lo - begin + CORE), slice(lo, lo + CORE)
    return float(np.max(np.abs(expected[..., inside, inside, inside] - y[..., there, there, there])))

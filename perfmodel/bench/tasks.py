"""What tasks take with so many workers on so many hosts: simulated, from the levels and the calibrated model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ooc.model.cost import Model
from ooc.workers.levels import AT_THE_END, Level


class Cluster(NamedTuple):
    """Who computes.

    Fields:
        workers: processes; on GPUs one each.
        hosts: machines that they are spread over, as evenly as may be.
        shared: whether the workers of a host share its processors, too; else each has a device of its own.
        reads, writes: bytes per second that the files of a host give and take; they are shared by its workers.
        store: bytes per second that all hosts together read and write; 0: each host has files of its own.
        beside: seconds of a task that are not in the plan: opened files, the journal.
    """

    workers: int
    hosts: int
    shared: bool
    reads: float
    writes: float
    store: float = 0.0
    beside: float = 0.01

    @classmethod
    def of(cls, model: Model, workers: int, hosts: int, shared: bool, store: float = 0.0) -> Cluster:
        """As a calibration has it."""
        reads, writes = (model.copy(lane).bytes_per_second for lane in ("read", "write"))
        return cls(workers, hosts, shared, reads, writes, store)


class RunPrediction(NamedTuple):
    """What a run takes.

    Fields:
        seconds: of the run.
        busy: share of that in which each resource is busy: "devices" (in the mean), "files" (of the busiest host), "store".
        waiting: share of the workers' time in which there is no task for them.
    """

    seconds: float
    busy: dict[str, float]
    waiting: float

    @property
    def binds(self) -> str:
        """What there is too little of."""
        name = max(self.busy, key=self.busy.__getitem__)
        if self.waiting > self.busy[name]:
            return "too few tasks"
        return name


class One(NamedTuple):
    """A task alone on its host: its seconds, those of its device and of its files, and bytes that it moves."""

    seconds: float
    computing: float
    files: float
    nbytes: int


def predicted(levels: Sequence[Level], pieces: int, cluster: Cluster) -> RunPrediction:
    """Seconds of all levels, one after the other, each with its tasks in order, taken by whichever worker is free.

    A task computes while it moves or in turn, as its level's seconds say; tasks of a host share its files, and on processors its
    cores: where they ask for more than there is, all go on as much slower.
    """
    seconds, device, files, store, waiting = 0.0, 0.0, [0.0] * cluster.hosts, 0.0, 0.0
    for level in levels:
        count = level.units * (1 if level.kind in AT_THE_END else pieces)
        task = _task(level, cluster)
        took = _level(task, count, cluster)
        seconds += took
        device += task.computing * count
        for host in range(cluster.hosts):
            files[host] += task.files * count / min(cluster.hosts, count) if host < count else 0.0
        store += task.nbytes * count / cluster.store if cluster.store else 0.0
        waiting += took * cluster.workers - task.seconds * count
    total = max(seconds, 1e-12)
    units = 1 if cluster.shared else cluster.workers
    busy = {"devices": device / units / total, "files": max(files) / total}
    if cluster.store:
        busy["store"] = store / total
    return RunPrediction(seconds, busy, max(0.0, waiting) / (total * cluster.workers))


def _task(level: Level, cluster: Cluster) -> One:
    """One task of a level, alone on its host."""
    read, written = (nbytes / level.units for nbytes in level.moved)
    files = read / cluster.reads + written / cluster.writes
    computing = level.computing / level.units
    seconds = max(level.seconds / level.units, computing, files) + cluster.beside
    return One(seconds, computing, files, int(read + written))


def _level(task: One, count: int, cluster: Cluster) -> float:
    """Seconds of so many equal tasks: waves of them, of which each host has its share."""
    seconds, left = 0.0, count
    while left > 0:
        now = min(left, cluster.workers)
        on_host = math.ceil(now / cluster.hosts)
        slower = [1.0, on_host * task.files / task.seconds]
        if cluster.shared:
            slower.append(on_host * task.computing / task.seconds)
        if cluster.store:
            slower.append(now * task.nbytes / cluster.store / task.seconds)
        seconds += task.seconds * max(slower)
        left -= now
    return seconds

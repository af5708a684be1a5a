"""An inference as tasks: small, each of its own, the same however many workers there will be."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ooc.errors import ArgumentError, OocError, ShapeError, StoreError, UnsupportedError
from ooc.files.records import understood
from ooc.files.whole import sweep
from ooc.ir.op import numpy_dtype
from ooc.ir.region import Region, whole
from ooc.networks.build import Built
from ooc.networks.chains import hull, share
from ooc.networks.lasting import checked
from ooc.networks.plan import NetworkPlan
from ooc.networks.tensors import Mode
from ooc.runtime.call_options import flag
from ooc.runtime.context import device_here
from ooc.runtime.device import Device
from ooc.sources import Source
from ooc.sources.beside import location
from ooc.sources.objects import is_there
from ooc.sources.remote import is_remote
from ooc.workers.begin import WorkRequest, at_work_too, begun, resumed, run_folder
from ooc.workers.levels import Kind
from ooc.workers.result import Result
from ooc.workers.units import Unit
from ooc.workers.where import REGIONS, Where, check_apart
from ooc.workers.work import ABOUT, WorkFolder, check_current, digest_of, opened


@dataclass(frozen=True)
class Task:
    """One unit of a run: some tiles of some layers, a sum, or a copy. `task()` computes it, in any process that sees the folder
    and the files; one that is finished is not computed again. Units of one level may run in any order and at once, those of the
    next when all of them are finished.

    Fields:
        folder: of the run.
        digest: of the run.
        level: which tasks are finished before.
        piece: which samples.
        unit: which one of those of the level.
        region: of the tensor that is wanted or of one on the way to it; (): all of it.
        seconds: as predicted.
    """

    folder: str
    digest: str
    level: int
    piece: int
    unit: int
    region: Region = ()
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """As the journal calls it."""
        return f"{self.level}-{self.piece}-{self.unit}"

    @property
    def done(self) -> bool:
        """Whether it is finished."""
        return self.work.journal.done(self.name)

    @property
    def work(self) -> WorkFolder:
        """The run that it is of."""
        return opened(self.folder, self.digest)

    def __call__(self, device: Device | None = None, threads: int | None = None) -> dict[str, Any]:
        """Compute it.

        Parameters:
            device: what computes; default None: the current one, if it is of the kind that was planned for, else one of that.
            threads: of a processor; default None: the device's.

        Returns:
            told: seconds, and notes on what went otherwise than planned; `computed` is False where it was finished before.

        Raises:
            OocError: as the functions of ooc; tasks of an earlier level that are missing.
        """
        work = self.work
        check_current(work.folder, self.digest)
        if work.journal.done(self.name):
            return {**work.journal.told(self.name), "computed": False}
        if work.reads_source(self.level, self.piece):
            work.check_source()
        self._ready(work)
        begin = time.perf_counter()
        device = device or device_here(work.about.fingerprint["backend"], work.about.deterministic, threads)
        unit = Unit(work, self.level, self.piece, self.unit, device)
        try:
            with at_work_too(work.folder):
                unit.run()
                wrote = unit.summed()
        except (OocError, OSError):
            if not work.journal.done(self.name):
                raise
            return {**work.journal.told(self.name), "computed": False}  # another one was faster, and what it reads is gone
        told = {"seconds": time.perf_counter() - begin, "notes": unit.notes, "process": os.getpid()}
        check_current(work.folder, self.digest)  # it may have slept for long
        work.journal.finish(self.name, unit.settles, {**told, "wrote": wrote})
        return {**told, "computed": True}

    def _ready(self, work: WorkFolder) -> None:
        """Raise OocError where what it reads is not made yet."""
        if self.level:
            missing = {*work.names_of(self.level - 1)} - work.journal.finished()
            if missing:
                raise OocError(f"task {self.name}: {len(missing)} tasks of level {self.level - 1} are not finished")


def tasks(
    plan: NetworkPlan, source: Any, sink: Any, *, parameters: Mapping[str, Any] | None = None, seed: int = 0,
    resume: bool = False, folder: str | os.PathLike[str] | None = None,
) -> list[Task]:  # fmt: skip
    """An inference as tasks for any number of workers: processes, machines, or this one process.

    The network is cut into levels, those into tasks, by its sizes and the budget alone, so that the result has the same bits
    whoever computes which task. What passes from level to level, the weights and a journal of what is finished lie in a folder
    beside the result, which all workers must see.

    Parameters:
        plan: of an inference, `Graph.plan(..., train=False)`; its budget is that of each worker.
        source: the input, batch x its shape: a path or a source as of `ooc.open`, or a memory map in C order.
        sink: where the output goes, batch x its shape: as `source`; a path where nothing is yet is created.
        parameters, seed: as of `NetworkPlan.session`.
        resume: True goes on with a run that was begun in the folder, which must be the same run; default False: begins anew.
        folder: of the run; default None: the sink's path and ".work". A sink across a network needs one that all workers see.

    Returns:
        tasks: in an order in which they may run one after the other; `ooc.run_tasks(tasks)` runs them here.

    Raises:
        ArgumentError, DtypeError: what does not fit; arrays in memory; a run that is another, which the message tells.
        UnsupportedError: a plan for training, a graph of several inputs or outputs.
        BudgetError: a call does not fit.
        StoreError: files that cannot be read or made.
    """
    check_inference(plan, "tasks")
    net, graph = plan.network, plan.network.graph
    (x,), (y,) = graph.inputs, graph.outputs
    read = Where.of("source", source)
    with read.open() as file:
        fitting("source", file, (net.batch, *graph.shapes[x]), graph.dtypes[x])
    net_shape, into = net.tensors[net.outputs[0]].shape, Where.of("sink", sink)
    check_apart(read, into)
    result = result_of(into, (net.batch, *graph.shapes[y]), graph.dtypes[y], net_shape)
    built, exact = Built.from_json(graph.to_json()), plan.scene.costs.deterministic
    values = values_of(plan, parameters or {}, seed)
    request = WorkRequest(built, net.batch, plan.device, plan.budget, exact, values, read, result)
    return listed(run_of(request, folder, flag("resume", resume)))


def check_inference(plan: NetworkPlan, what: str) -> None:
    """Raise ArgumentError, UnsupportedError where a plan is none of an inference from one tensor to one."""
    if not isinstance(plan, NetworkPlan):
        raise ArgumentError(f"plan: expected what Graph.plan returned, got a {type(plan).__name__}")
    net = plan.network
    if net.mode is not Mode.INFER or net.lent or len(net.graph.inputs) != 1 or len(net.graph.outputs) != 1:
        raise UnsupportedError(f"{what}: expected the plan of an inference (train=False) with one input and one output")


def run_of(request: WorkRequest, folder: str | os.PathLike[str] | None, resume: bool) -> WorkFolder:
    """The run of what is wanted, new, or resumed where there is one."""
    where = request.result.where
    beside = run_folder(where, folder)
    if beside is None:
        raise ArgumentError(f"{where.path}: the journal and tensors between levels lie in no such store; pass folder=")
    files = {where.file, where.file if where.raw else location(where.path)}
    for path in {beside, *[Path(file) for file in files if not is_remote(file)]}:
        sweep(path.parent, path.name)  # what killed processes left
    if resume and (beside / ABOUT).is_file():
        try:
            return resumed(request, beside)
        except (ShapeError, StoreError):
            if not request.result.overwrite:
                raise
    return begun(request, beside)


def listed(work: WorkFolder) -> list[Task]:
    """All tasks of a run. Raises ShapeError for levels that are not of its network."""
    digest, tasks = digest_of(work.about), []
    with understood(work.folder / ABOUT, "damaged; begin anew"):
        for level in range(len(work.levels())):
            for piece, unit in work.units_of(level):
                entry = work.levels(piece)[level]
                seconds = entry.seconds / max(1, entry.units)
                tasks.append(Task(str(work.folder), digest, level, piece, unit, region_of(work, level, piece, unit), seconds))
    return tasks


def region_of(work: WorkFolder, level: int, piece: int, unit: int) -> Region:
    """What a unit makes of its tensor."""
    entry = work.levels(piece)[level]
    if entry.kind == Kind.FLUSH:
        return work.flushes[unit]
    if entry.kind == Kind.PUT:
        return whole(work.about.result.shape)
    if entry.kind != Kind.CHAIN:
        return ()
    net = work.segment(level, piece)
    shares = [share(net.tensors[net.outputs[-1]].shape, entry.grid, cell) for cell in entry.cells(unit)]
    region = shares[0]
    for other in shares[1:]:
        region = tuple(map(hull, region, other))
    return (region[0].shift(work.pieces[piece].lo), *region[1:])


def fitting(what: str, source: Source, shape: tuple[int, ...], dtype: str) -> None:
    """Raise ShapeError, DtypeError where a tensor is another."""
    if tuple(source.shape) != shape or source.dtype != numpy_dtype(dtype):
        raise ShapeError(f"{what}: expected {shape} of {numpy_dtype(dtype)}, it is {tuple(source.shape)} of {source.dtype}")


def result_of(where: Where, shape: tuple[int, ...], dtype: str, net_shape: tuple[int, ...]) -> Result:
    """The tensor that is wanted. net_shape: its shape as the network has it."""
    direct = where.shared == REGIONS and shape == net_shape
    there = is_there(location(where.path)) if is_remote(where.file) else os.path.exists(where.file)
    if not there:
        axes: dict[str, Any] = {"shape": shape, "dtype": numpy_dtype(dtype).str, "axes": "", "like": None, "overwrite": False}
        return Result(where, shape, dtype, axes, direct)
    with where.open("r+") as sink:
        fitting("sink", sink, shape, dtype)
    return Result(where, shape, dtype, {}, direct)


def values_of(plan: NetworkPlan, parameters: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """What a session would begin with, by name."""
    net = plan.network
    values = {**net.graph.values, **checked(net.graph, parameters, plan.device.backend)}
    weights = {name: w for name, w in net.graph.parameters.items() if name in net.tensors}
    return {name: values[name] if name in values else w.initial(name, seed) for name, w in weights.items()}

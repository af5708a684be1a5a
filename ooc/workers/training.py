"""Training by several workers: each takes parts of the batch, gradients are summed in one order, parameters move once."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ooc.api.arguments import as_int
from ooc.errors import ArgumentError, BudgetError, OocError, StoreError, UnsupportedError
from ooc.files import npy
from ooc.files.records import understood
from ooc.files.whole import holds_only, incomplete, sweep
from ooc.networks import checkpoint
from ooc.networks.build import Built
from ooc.networks.checkpoint import bits, saving, stored, unbits
from ooc.networks.inputs import inputs_of, targets_of
from ooc.networks.judge import Judge
from ooc.networks.lasting import averaged, before, checked
from ooc.networks.layers.loss import divisors
from ooc.networks.optimizers import kind_of
from ooc.networks.plan import NetworkPlan
from ooc.networks.proposal import Fate, Proposal
from ooc.networks.running import Running
from ooc.networks.segments import updates
from ooc.networks.step_levels import independent
from ooc.networks.tensors import Mode, Role, Slot
from ooc.networks.writer import network
from ooc.runtime.call_options import flag
from ooc.runtime.journal import boot, load, store
from ooc.runtime.store import file_behind
from ooc.runtime.version import VERSION
from ooc.workers.gradients import GradientPart
from ooc.workers.level_worker import LevelPlans
from ooc.workers.part_sums import PartSums
from ooc.workers.run import Run, alone, pooled
from ooc.workers.step_part import ABOUT, GRADIENTS, STATE
from ooc.workers.sums import check_joined
from ooc.workers.tasks import fitting
from ooc.workers.where import Where


class Training:
    """Training of a graph by several workers. A context manager.

    The batch is cut into equal parts, whose gradients are computed by whichever worker there is, and summed in halves, so that
    the bits do not depend on how many workers there are. What sums over the batch, a batch norm or a Dice loss with batch=True,
    sums over all parts, as if one process had the whole batch: all parts come to that sum, before the first one goes on behind
    it, and what they have made until then waits in files. Parameters and running statistics move here. Everything lies in a
    folder that all workers see, so that training goes on after being killed, and finished parts are not computed again.

    Parameters:
        plan: of a step, with an optimizer: `Graph.plan(batch=, optimizer=)`; its budget is that of each worker.
        folder: of the training; made where it is missing.
        parts: of the batch; they divide it.
        parameters, seed: as of `NetworkPlan.session`.
        resume: True goes on with what is in the folder, which must be the same training; default False: begins anew.
        executor: of `concurrent.futures`, or Dask's `client.get_executor(pure=False)`; default None: this thread.
        threads: of each part, on a processor; default None: the device's.

    Fields:
        steps: that are done.

    Raises:
        UnsupportedError: a plan without an optimizer, or with a loss scale, which f16 has by default.
        BudgetError: what a worker does between two sums over the batch, or the update, does not fit.
        ShapeError: parts that do not divide the batch; a folder of another training, which the message tells.
        StoreError: a folder that cannot be made or read.
    """

    def __init__(
        self, plan: NetworkPlan, folder: str | os.PathLike[str], *, parts: int, parameters: Mapping[str, Any] | None = None,
        seed: int = 0, resume: bool = False, executor: Executor | None = None, threads: int | None = None,
    ) -> None:  # fmt: skip
        trainable(plan)
        count = as_int("parts", parts)
        if count < 1 or plan.batch % count:
            raise ArgumentError(f"parts={parts}: expected a number that divides the batch of {plan.batch}")
        self.plan, self.folder, self.parts, self.seed = plan, Path(folder).absolute(), count, as_int("seed", seed)
        self.steps, self._token = 0, secrets.token_hex(8)  # which tells this training from an older one in the same folder
        self._run: Run[GradientPart] = alone(threads) if executor is None else pooled(executor, threads)
        net, scene = updates(plan.network), plan.scene
        self._levels = self._levels_of(plan)
        judge = Judge(net, scene, plan.budget)
        proposals = (Proposal("at once"), Proposal("streamed", others=Fate.STREAM))
        proposal = next(filter(judge.fits, proposals), None)
        if proposal is None:
            raise BudgetError(f"{plan.graph.name}: the budget is too small to move parameters; raise it")
        values = {**plan.graph.values, **checked(plan.graph, parameters or {}, plan.device.backend)}
        self._still = {name: values.get(name, w.initial(name, self.seed)) for name, w in plan.graph.parameters.items()}
        self._running = Running(net, judge.schedule(proposal), plan.device, None, plan.budget)
        for t in net.lasting:
            self._running.put(t, before(t, self._still, {}, self.seed))
        self._begin(flag("resume", resume))

    def _levels_of(self, plan: NetworkPlan) -> LevelPlans:
        """What each worker does of a step. Raises UnsupportedError, BudgetError."""
        exact = plan.scene.costs.deterministic
        graph = Built.from_json(plan.graph.to_json())
        levels = LevelPlans(network(graph, plan.batch // self.parts, Mode.STEP, None, exact), plan.device, plan.budget, exact)
        for call in (call for level in levels.levels for call in level.summing):
            check_joined(call.op, f"Training: layer {call.layer} ({call.kind})")
        if not independent(levels.levels):  # else workers plan as the policy has it
            levels.check()
        return levels

    def _begin(self, resume: bool) -> None:
        """The folder, new or found again."""
        about, begun = json.loads(json.dumps(self._about())), (self.folder / ABOUT).is_file()
        since = {"host": socket.gethostname(), "boot": boot()}
        if resume and begun:
            have = load(self.folder / ABOUT)
            self._token, before = have.pop("token", ""), have.pop("since", None)
            changed = [name for name in {**about, **have} if have.get(name) != about.get(name)]
            if changed:
                raise ArgumentError(f"{self.folder}: resume: of another {', '.join(changed)}; begin anew, or in another folder")
            sweep(self.folder)
            self._restore()
            (self.folder / GRADIENTS).mkdir(exist_ok=True)
            if before != since:
                if not isinstance(before, dict) or before.get("host") == since["host"]:
                    self._tidy()  # what was on its way to the disk went down with the machine
                store(self.folder / ABOUT, json.dumps({**about, "token": self._token, "since": since}).encode())
            return
        try:
            if self.folder.exists() and not begun and not holds_only(self.folder, {GRADIENTS, STATE, ABOUT}):
                raise ArgumentError(f"{self.folder}: is no folder of a training, and is not replaced")
            shutil.rmtree(self.folder / GRADIENTS, ignore_errors=True)
            (self.folder / GRADIENTS).mkdir(parents=True)
        except OSError as error:
            if isinstance(error, OocError):
                raise
            raise StoreError(error.errno, f"{self.folder}: {error.strerror or error}") from error
        sweep(self.folder)
        self.save(self.folder / STATE)
        store(self.folder / ABOUT, json.dumps({**about, "token": self._token, "since": since}).encode())

    def _about(self) -> dict[str, Any]:
        """What must be the same when it is resumed, and what workers have to know."""
        plan, scene = self.plan, self.plan.scene
        return {
            "graph": json.loads(plan.graph.to_json()), "batch": plan.batch, "samples": plan.batch // self.parts,
            "seed": self.seed, "budget": plan.budget, "policy": plan.policy, "deterministic": scene.costs.deterministic,
            "backend": plan.device.backend.name, "optimizer": kind_of(plan.network.optimizer), "version": VERSION,
        }  # fmt: skip

    def _restore(self) -> None:
        """What was saved last."""
        with checkpoint.saved(self.folder / STATE) as file:
            for t in saving(self.plan.network):
                values = unbits(file.tensor(t.name, t.shape, stored(t.dtype)), t.dtype)
                if t.name in self._running.net.tensors:
                    self._running.put(t, values)
                else:
                    self._still[t.name] = values
            self.steps = file.about.steps

    def step(self, x: Any, labels: Any) -> float:
        """One training step, as of `Session.step`.

        Parameters:
            x: the input, batch x its shape: an array, a memory map, a source, or a path.
            labels: as of `Session.step`.

        Returns:
            loss: a float.

        Raises:
            ShapeError, DtypeError: what does not fit; nothing has changed then.
            OocError: of the first part that failed; the same step may be done again, and goes on.
        """
        net = self.plan.network
        targets = targets_of(net, labels, self.plan.device.backend)
        counted = tuple(divisors(net, targets).items())
        with self._files(x, targets) as (where, compared, mark):
            parts, totals = list[list[GradientPart]](), dict[str, Any]()
            sums = PartSums(self._levels.levels, parts)
            for level, entry in enumerate(self._levels.levels):
                known = {t: totals[t] for t in entry.totals}
                batch = (counted, where, compared, mark, self._token, level, known)
                numbered = enumerate(self._samples())
                parts.append([GradientPart(str(self.folder), self.steps, i, samples, *batch) for i, samples in numbered])
                for _ in self._run(parts[-1]):
                    pass
                totals |= sums.totals(level)
                self._forget(level, parts[-1])
        loss = self._move(sums, totals)
        self.steps += 1
        self.save(self.folder / STATE)
        self._tidy()
        return loss

    def _samples(self) -> list[tuple[int, int]]:
        """The samples of every part."""
        each = self.plan.batch // self.parts
        return [(lo, lo + each) for lo in range(0, self.plan.batch, each)]

    def _move(self, sums: PartSums, totals: Mapping[str, Any]) -> float:
        """Parameters moved by the gradients of all parts, running statistics by those of the batch; returns the loss."""
        running = self._running
        for t in running.net.lasting:
            if t.role is Role.GRADIENT_SUM:
                running.put(t, sums.gradient(t))
        optimizer = running.net.optimizer
        assert optimizer is not None
        moments = {
            t: totals[t].reshape(slot.shape) for t, slot in running.net.tensors.items() if t in totals and slot.role is Role.INPUT
        }
        loss = sums.loss()
        running.run(optimizer.inputs(self.steps) | moments)
        return loss

    def _forget(self, level: int, parts: list[GradientPart]) -> None:
        """Remove what no level behind this one reads of the batch."""
        later = {t for entry in self._levels.levels[level + 1 :] for t in entry.net.graph.inputs}
        for t in {*self._levels.levels[level].net.graph.inputs} - later:
            for part in parts:
                part.between(t).unlink(missing_ok=True)

    def _tidy(self) -> None:
        """Remove what there is of a step that is done."""
        with understood(self.folder / GRADIENTS, kind=StoreError):
            sweep(self.folder / GRADIENTS)
            for path in (self.folder / GRADIENTS).iterdir():
                if not incomplete(path.name):
                    path.unlink(missing_ok=True)

    @contextmanager
    def _files(
        self, x: Any, targets: Mapping[str, Any]
    ) -> Iterator[tuple[Where, tuple[tuple[str, Where], ...], str]]:  # fmt: skip
        """Where workers find a batch: arrays in memory are written to the folder until the step is done. And what tells it from
        others."""
        net = self.plan.network
        (name,) = net.graph.inputs
        shape, dtype = net.size_of(name)
        paths: list[Path] = []

        def placed(what: str, array: Any) -> tuple[Where, str]:
            if not isinstance(array, np.ndarray) or file_behind(array) is not None:
                where = Where.of(what, array)
                return where, json.dumps(where.identity())
            paths.append(self.folder / f"{what}.npy")
            npy.save(paths[-1], array)
            return Where.of(what, paths[-1]), hashlib.blake2b(paths[-1].read_bytes()).hexdigest()

        try:
            fresh = isinstance(x, np.ndarray) and file_behind(x) is None
            where, told = placed("x", inputs_of(net, x, self.plan.device.backend)[name] if fresh else x)
            with where.open() as source:
                fitting("x", source, shape, dtype)
            distinct = {id(target): target for target in targets.values()}
            places = {key: placed(f"labels{i or ''}", target) for i, (key, target) in enumerate(distinct.items())}
            compared = [(loss, *places[id(target)]) for loss, target in targets.items()]
            mark = hashlib.sha256(" ".join([self._token, told, *(each for _, _, each in compared)]).encode()).hexdigest()
            yield where, tuple((loss, place) for loss, place, _ in compared), mark
        except OSError as error:
            if isinstance(error, OocError):
                raise
            raise StoreError(error.errno, f"{self.folder}: {error.strerror or error}") from error
        finally:
            for path in paths:
                path.unlink(missing_ok=True)

    # ---- what is there

    def parameters(self) -> dict[str, Any]:
        """Copies of the parameters, by name."""
        return {t.name: self._value(t) for t in self.plan.network.tensors.values() if t.role is Role.PARAMETER}

    def statistics(self) -> dict[str, Any]:
        """Copies of the running statistics of batch norms, by name."""
        return {t.name: self._value(t) for t in self.plan.network.tensors.values() if t.role is Role.STATISTIC}

    def averages(self) -> dict[str, Any]:
        """Copies of the moving averages of the parameters, by name, as of `Session.averages`."""
        return averaged(self.plan.network, self._value)

    def _value(self, t: Slot) -> Any:
        return self._running.get(t) if t.name in self._running.net.tensors else np.broadcast_to(self._still[t.name], t.shape)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint, as `Session.save` does; `Graph.restore` goes on with it in one process.

        Parameters:
            path: of the file.

        Raises:
            StoreError: a full disk, a folder that is not there; the file that was there is whole.
        """
        net = self.plan.network
        about = checkpoint.CheckpointHeader(
            checkpoint.digest(net.graph.to_json()), net.batch, self.seed, kind_of(net.optimizer), self.steps
        )
        checkpoint.write(Path(path), about, ((t.name, bits(self._value(t))) for t in saving(net)))

    def close(self) -> None:
        """Give memory and files back; the folder stays."""
        self._running.close()

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def trainable(plan: NetworkPlan) -> None:
    """Raise UnsupportedError, ArgumentError where parts of a batch cannot train a plan's graph."""
    if not isinstance(plan, NetworkPlan):
        raise ArgumentError(f"plan: expected what Graph.plan returned, got a {type(plan).__name__}")
    net = plan.network
    if net.mode is not Mode.STEP or net.optimizer is None or net.lent or len(net.graph.inputs) != 1:
        raise UnsupportedError("Training: expected a plan with train=True and an optimizer, of a graph with one input")
    if net.optimizer.scales:
        raise UnsupportedError(
            "Training: parts of a batch have no loss scale, which graphs with f16 have unless it is 1: pass loss_scale=1 to the "
            "optimizer, or use bf16"
        )

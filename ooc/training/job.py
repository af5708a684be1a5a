"""A run from its tables to its end: all is checked and planned before anything is written."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from typing import Any

from ooc.cache import cached_property
from ooc.errors import ArgumentError, UnsupportedError, shown
from ooc.networks import Graph, NetworkPlan
from ooc.networks.checkpoint import digest
from ooc.networks.optimizers import Optimizer
from ooc.networks.profile import Profile
from ooc.networks.session import Session
from ooc.runtime.call_options import flag
from ooc.training.ahead import ahead
from ooc.training.config import TrainingConfig, configured
from ooc.training.curve import draw
from ooc.training.evaluation import Evaluation
from ooc.training.folder import CURVE, RunFolder
from ooc.training.intensity import Intensity
from ooc.training.network import TrainedNetwork
from ooc.training.outcome import StepRow, Trained, ValidationRow, best_of, better
from ooc.training.patches import Patches, split
from ooc.training.samples import FileSamples
from ooc.training.schedule import scheduled

Callback = Callable[[dict[str, Any]], None]


class TrainingJob:
    """A run that is checked.

    Fields:
        config: its tables.
        network: what is trained.
        patches: what it learns from.
        evaluation: what it is measured on; None: nothing.
        folder: of the run.
        profile: what its last step took, where that was wanted.
    """

    profile: Profile | None = None

    def __init__(self, config: TrainingConfig, network: TrainedNetwork) -> None:
        self.config, self.network = config, network
        learned, held = self._samples()
        self.patches = self._patches(learned)
        self.evaluation = None
        if held is not None:
            self.evaluation = Evaluation(self._patches(held), network.classes, network.output)
        identity = {
            **config.identity, "network": digest(network.graph.to_json()), "samples": learned.identity(),
            "held out": held.identity() if held is not None else [],
        }  # fmt: skip
        self.folder = RunFolder(config.base / config.run.folder, identity)
        self.notes: list[str] = []

    @classmethod
    def of(cls, config: str | os.PathLike[str] | Mapping[str, Any], graph: Graph | None = None) -> TrainingJob:
        """The run of a file or a dict, of its own network or the caller's. Raises OocError."""
        if graph is not None and not isinstance(graph, Graph):
            raise ArgumentError(f"graph: expected an ooc.Graph, got {shown(graph)}")
        tables = configured(config, graph is not None)
        return cls(tables, TrainedNetwork.of(tables, graph))

    def _samples(self) -> tuple[FileSamples, FileSamples | None]:
        """What is learned from, and what is held out. Raises OocError."""
        data, validation, pairing = self.config.data, self.config.validation, self.network.pairing
        axes, base = (data.axes, data.label_axes), self.config.base
        samples = FileSamples("data", data.images, data.labels, axes, pairing, base)
        if validation is None:
            return samples, None
        if pairing.targets:
            raise UnsupportedError("[validation]: its metrics are of classes, the loss is of values; leave the table out")
        if validation.images:
            return samples, FileSamples("validation", validation.images, validation.labels, axes, pairing, base)
        learned, held = split(samples.list, validation.share, self.config.run.seed)
        samples.close()
        return samples.part(learned), samples.part(held)

    def _patches(self, samples: FileSamples) -> Patches:
        pairing = self.network.pairing
        try:
            intensity = Intensity.of(self.config.data.pre, pairing.channels, pairing.rank)
        except ArgumentError as error:
            raise ArgumentError(f"[data] pre: {error}") from None
        return Patches(samples, self.config.data, self.network.patch, intensity, self.config.run.seed)

    @cached_property
    def plan(self) -> NetworkPlan:
        """How a step is computed. Raises BudgetError, UnsupportedError, ArgumentError."""
        run = self.config.run
        return self.network.graph.plan(
            batch=self.config.data.batch, budget=run.budget, policy=run.policy, device=run.device, pinned=run.pinned,
            home=run.home, deterministic=run.deterministic, optimizer=self._optimizer(),
        )  # fmt: skip

    def _optimizer(self) -> Optimizer:
        """What moves the network's parameters. Raises ArgumentError where it names others."""
        told, steps = self.config.optimizer, self.config.run.steps
        try:
            return scheduled(told.kind, told.keywords, told.schedule, steps).of(self.network.graph)
        except ArgumentError as error:
            raise ArgumentError(f"[optimizer] {error}") from None

    # ---- the run

    def run(self, resume: bool = False, callback: Callback | None = None, profiled: bool = False) -> Trained:
        """Train; see `ooc.train`. profiled: what the last step takes is kept."""
        if callback is not None and not callable(callback):
            raise ArgumentError(f"callback: expected a function, got {shown(callback)}")
        with self._files():
            resume = flag("resume", resume)
            self.folder.check(resume)
            plan = self.plan
            with self.folder.held(resume, self.network.graph.to_json()), self._session(plan) as session:
                self.folder.cut_back(session.steps)
                self.folder.prune(self.config.run.keep, session.steps)
                self._go_on(session, callback or (lambda row: None), profiled)
        best = best_of(self.folder.validations, self._metric)
        losses = tuple(row.loss for row in self.folder.steps)
        return Trained(self.folder.path, losses, tuple(self.folder.validations), best, tuple(self.notes))

    @contextmanager
    def _files(self) -> Iterator[None]:
        """Files of samples are closed at the end."""
        try:
            yield
        finally:
            self.patches.samples.close()
            if self.evaluation is not None:
                self.evaluation.patches.samples.close()

    def _session(self, plan: NetworkPlan) -> Session:
        """A new session, or the one that was saved last."""
        seed, last = self.config.run.seed, self.folder.last
        return plan.session(seed=seed) if last is None else self.network.graph.restore(last, plan, seed)

    def _go_on(self, session: Session, tell: Callback, profiled: bool) -> None:
        """All steps that are not done."""
        steps = self.config.run.steps
        best = best_of(self.folder.validations, self._metric)
        if best is not None and best.step == session.steps:
            self.folder.save_best(session)  # a kill may have come between last.ooc and best.ooc
        with closing(ahead(self.patches.batch, range(session.steps, steps))) as batches:
            for step, (x, labels) in batches:
                with session.profile() if profiled and step == steps - 1 else nullcontext() as self.profile:
                    row = self._step(session, step, x, labels)
                self.folder.write(row)
                tell(row.row())
                validation = self._validated(session, tell)
                improved = validation is not None and better(validation, best, self._metric)
                if improved or session.steps % self.config.run.every == 0 or session.steps == steps:
                    self.folder.save(session, self.config.run.keep)
                    self._draw()
                if improved:
                    best = validation
                    self.folder.save_best(session)

    def _step(self, session: Session, step: int, x: Any, labels: Any) -> StepRow:
        """One step. Raises ArgumentError where its loss is not a number: nothing is saved then."""
        optimizer: Any = self.plan.network.optimizer
        begin = time.perf_counter()
        loss = session.step(x, labels)
        if not math.isfinite(loss):
            raise ArgumentError(f"step {step + 1}: the loss is {loss}; lower [optimizer] lr, and look at what the images hold")
        return StepRow(step + 1, loss, float(optimizer.lr(step // optimizer.accumulate)), time.perf_counter() - begin)

    def _validated(self, session: Session, tell: Callback) -> ValidationRow | None:
        """The validation that is due."""
        validation = self.config.validation
        if self.evaluation is None or validation is None:
            return None
        if session.steps % validation.every and session.steps != self.config.run.steps:
            return None
        row = self.evaluation.row(session, session.steps)
        self.folder.write(row)
        tell(row.row())
        return row

    @property
    def _metric(self) -> str:
        return self.config.validation.metric if self.config.validation else "loss"

    def _draw(self) -> None:
        """The losses, where matplotlib is there."""
        if not self.config.run.curve:
            return
        try:
            draw(self.folder.path / CURVE, self.network.graph.name, self.folder.steps, self.folder.validations)
        except UnsupportedError as error:
            self.notes = [f"{CURVE} is not drawn: {error}"]

"""Gradients of a part of the batch, by any worker."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ooc.cache import lock_across_forks
from ooc.errors import OocError
from ooc.ir.region import Span
from ooc.networks import checkpoint
from ooc.networks.build import Built
from ooc.networks.checkpoint import bits, stored, unbits
from ooc.networks.planning import NetworkRequest, plan_network
from ooc.networks.session import drawn
from ooc.networks.tensors import Mode
from ooc.runtime.context import device as named_device
from ooc.runtime.journal import load
from ooc.workers.where import Where

ABOUT, STATE, GRADIENTS = "training.json", "state.ooc", "gradients"
_one = lock_across_forks()  # a worker's budget is that of its process: one part of the batch at a time


@dataclass(frozen=True)
class GradientPart:
    """The gradients of a part of the batch, in one step. `part()` computes them, in any process that sees the folder; those that
    are there already are not computed again.

    Fields:
        folder: of the training.
        step: of it, from 0.
        number: of the part.
        samples: of the batch.
        counted: what losses and gradients are divided by, by the name of the loss.
        x: where the batch is; labels: where the labels are, or what else each loss is compared with.
        mark: what tells this batch from others.
        run: what tells this training from others in the same folder.
    """

    folder: str
    step: int
    number: int
    samples: tuple[int, int]
    counted: tuple[tuple[str, float], ...]
    x: Where
    labels: tuple[tuple[str, Where], ...]
    mark: str
    run: str

    @property
    def path(self) -> Path:
        """Of the gradients."""
        return Path(self.folder) / GRADIENTS / f"{self.number}"

    @property
    def done(self) -> bool:
        """Whether its gradients are there."""
        with suppress(OocError), checkpoint.saved(self.path) as file:
            return bool((file.about.steps, file.about.graph) == (self.step, self.mark))
        return False

    def __call__(self, threads: int | None = None) -> dict[str, Any]:
        """Compute it. Raises OocError."""
        if self.done:
            return {"computed": False}
        with _one:
            check_current(self)
            worker = working(self.folder, self.run, threads)
            worker.turn_to(self.step)
            loss = worker.loss(self)
            about = checkpoint.CheckpointHeader(self.mark, self.number, 0, "", self.step)
            gradients = {**worker.session.gradients(), "loss": np.array([loss], np.float64)}
            check_current(self)  # it may have slept for long
            checkpoint.write(self.path, about, ((name, bits(values)) for name, values in gradients.items()), settled=False)
        return {"computed": True}


def check_current(part: GradientPart) -> None:
    """Raise OocError where another training has begun in the folder."""
    if load(Path(part.folder) / ABOUT).get("token") != part.run:
        raise OocError(f"{part.folder}: another training has begun there since this part was made")


class Worker:
    """What a process keeps from part to part: a session, and which step's parameters it has."""

    def __init__(self, folder: str, threads: int | None) -> None:
        self.folder, about = Path(folder), load(Path(folder) / ABOUT)
        self.seed, self.step = int(about["seed"]), -1
        graph = Built.from_json(json.dumps(about["graph"]))
        device = None if threads is None else named_device(about["backend"], threads=threads)
        plan = plan_network(
            graph, about["samples"], about["budget"], about["policy"], NetworkRequest(Mode.STEP), device, None, None, None,
            about["deterministic"], {},
        )  # fmt: skip
        self.session = plan.session()

    def turn_to(self, step: int) -> None:
        """The parameters of a step. Raises OocError where they are not those that are there."""
        if step == self.step:
            return
        with checkpoint.saved(self.folder / STATE) as file:
            if file.about.steps != step:
                raise OocError(f"{self.folder}: step {step} is over, it has come to {file.about.steps}")
            parameters = self.session.plan.network.graph.parameters
            for name, w in parameters.items():
                if name in file.names:
                    self.session.begin_with({name: unbits(file.tensor(name, w.shape, stored(w.dtype)), w.dtype)})
        self.step = step

    def loss(self, part: GradientPart) -> float:
        """The share of the loss of a part; its gradients are the session's then."""
        self.session.seed, self.session.steps = drawn(self.seed, part.number) & (1 << 62) - 1, part.step
        span = Span(*part.samples)
        labels = {name: taken(where, span) for name, where in part.labels}
        return self.session.step(taken(part.x, span), labels, dict(part.counted))


@lru_cache(maxsize=2)
def working(folder: str, run: str, threads: int | None) -> Worker:
    """What this process keeps for a training."""
    return Worker(folder, threads)


def taken(where: Where, samples: Span) -> Any:
    """Some samples of a file, in memory: of labels, and of a part of a batch."""
    with where.open() as source:
        region = (samples, *(Span(0, e) for e in source.shape[1:]))
        array = np.empty((samples.extent, *source.shape[1:]), source.dtype)
        source.read(region, array)
    return array

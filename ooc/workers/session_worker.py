"""Parts of a step without sums over the batch, each a step of one session."""

from __future__ import annotations

from typing import Any

import numpy as np

from ooc.ir.region import Span
from ooc.networks.plan import NetworkPlan
from ooc.workers.step_part import StepPart
from ooc.workers.training_state import TrainingState
from ooc.workers.where import Where


class SessionWorker:
    """What a process keeps from part to part: a session, and which step's parameters it has."""

    def __init__(self, plan: NetworkPlan, state: TrainingState) -> None:
        self.state, self.step = state, -1
        self.session = plan.session()

    def sums(self, part: StepPart) -> dict[str, Any]:
        """Gradients of a part and its share of the loss, by tensor."""
        self._turn_to(part.step)
        self.session.seed, self.session.steps = part.drawn_by(self.state.seed), part.step
        labels = {name: taken(where, part.span) for name, where in part.labels}
        loss = self.session.step(taken(part.x, part.span), labels, dict(part.counted))
        gradients = {f"d.{name}": values for name, values in self.session.gradients().items()}
        return {**gradients, "loss": np.array([loss], np.float64)}

    def _turn_to(self, step: int) -> None:
        """The parameters of a step. Raises OocError where they are not those that are there."""
        if step != self.step:
            weights = self.session.plan.network.graph.parameters
            for name, values in self.state.tensors(step, {name: (w.shape, w.dtype) for name, w in weights.items()}):
                self.session.begin_with({name: values})
            self.step = step


def taken(where: Where, samples: Span) -> Any:
    """Some samples of a file, in memory: of labels, and of a part of a batch."""
    with where.open() as source:
        region = (samples, *(Span(0, e) for e in source.shape[1:]))
        array = np.empty((samples.extent, *source.shape[1:]), source.dtype)
        source.read(region, array)
    return array

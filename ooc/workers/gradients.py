"""Parts of a training step, by any worker."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from ooc.cache import lock_across_forks
from ooc.errors import OocError
from ooc.networks import checkpoint
from ooc.networks.build import Built
from ooc.networks.checkpoint import bits
from ooc.networks.planning import NetworkRequest, plan_network
from ooc.networks.step_levels import independent
from ooc.networks.tensors import Mode
from ooc.networks.where import device_of
from ooc.networks.writer import network
from ooc.runtime.context import device as named_device
from ooc.runtime.journal import load
from ooc.workers.level_worker import LevelPlans, LevelWorker
from ooc.workers.session_worker import SessionWorker
from ooc.workers.step_part import ABOUT, StepPart
from ooc.workers.training_state import TrainingState

_one = lock_across_forks()  # a worker's budget is that of its process: one part of the batch at a time


class GradientPart(StepPart):
    """The gradients of a part of the batch, in one step, as far as one level makes them. `part()` computes them, in any process
    that sees the folder; those that are there already are not computed again."""

    def __call__(self, threads: int | None = None) -> dict[str, Any]:
        """Compute it. Raises OocError."""
        if self.done:
            return {"computed": False}
        with _one:
            check_current(self)
            sums = working(self.folder, self.run, threads).sums(self)
            about = checkpoint.CheckpointHeader(self.mark, self.number, 0, "", self.step)
            check_current(self)  # it may have slept for long
            checkpoint.write(self.path, about, ((name, bits(s).reshape(-1)) for name, s in sums.items()), settled=False)
        return {"computed": True}


def check_current(part: StepPart) -> None:
    """Raise OocError where another training has begun in the folder."""
    if load(Path(part.folder) / ABOUT).get("token") != part.run:
        raise OocError(f"{part.folder}: another training has begun there since this part was made")


@lru_cache(maxsize=2)
def working(folder: str, run: str, threads: int | None) -> SessionWorker | LevelWorker:
    """What this process keeps for a training."""
    about = load(Path(folder) / ABOUT)
    graph, exact, samples, budget = (
        Built.from_json(json.dumps(about["graph"])),
        about["deterministic"],
        about["samples"],
        about["budget"],
    )
    device = None if threads is None else named_device(about["backend"], threads=threads)
    state = TrainingState(Path(folder), int(about["seed"]))
    plans = LevelPlans(network(graph, samples, Mode.STEP, None, exact), device_of(device), budget, exact)
    if not independent(plans.levels):
        return LevelWorker(plans, state)
    request = NetworkRequest(Mode.STEP)
    plan = plan_network(graph, samples, budget, about["policy"], request, device, None, None, None, exact, {})
    return SessionWorker(plan, state)

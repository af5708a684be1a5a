"""Training a network on volumes and pictures in files: `ooc.train`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from ooc.networks import Graph
from ooc.training.outcome import Trained

__all__ = ["Trained", "train"]


def train(
    config: str | os.PathLike[str] | Mapping[str, Any], *, graph: Graph | None = None, resume: bool = False,
    callback: Callable[[dict[str, Any]], None] | None = None,
) -> Trained:  # fmt: skip
    """Train a network on patches of volumes or pictures in files, as `ooc train` does.

    The patches of a step depend on the seed and the step alone. Checkpoints, a log and a curve go to the folder of the run, so
    that training which was killed goes on from its last checkpoint as if nothing had happened.

    Parameters:
        config: path of a TOML file, or a dict of the same tables; docs/training.md has all keys. Paths in a file begin at its
            folder, those in a dict at the current one.
        graph: what is trained, in place of the table [model]; with a loss of its own, or those of [[loss]]; default None.
        resume: True goes on with what is in the folder, which must be the same run; default False: the folder has none yet.
        callback: is called with every row of the log, a dict, when it has been written; default None.

    Returns:
        trained: the losses of all steps, the rows of validations, the folder.

    Raises:
        ArgumentError: a table or key that is unknown, missing or out of range, files that do not fit together, a folder with
            a run in it, or of another run: all by name, before anything is written; a loss that is not a number.
        BudgetError, DtypeError, UnsupportedError: as `Graph.plan` and `ooc.open`.
        StoreError: a file that cannot be read, a folder that cannot be written.
    """
    from ooc.training.job import TrainingJob  # with all that it takes to read files

    return TrainingJob.of(config, graph).run(resume, callback)

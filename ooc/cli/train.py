"""`ooc train`: a network trained on volumes or pictures in files, as a TOML file tells."""

from __future__ import annotations

import argparse
import math
import sys
import time
from typing import Any

from ooc.networks.tensors import Role
from ooc.runtime.resident import most_resident
from ooc.schedule.budget import show_bytes
from ooc.training.job import TrainingJob

TENTHS = 10  # lines of progress in a log
INTERVAL = 0.5  # seconds between two reports on a terminal
WIDE = 78  # characters of a line that is written anew


def arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `ooc train`."""
    parser.add_argument(
        "config", metavar="CONFIG", help="a .toml file: [model], [[loss]], [optimizer], [data], [validation], [run]"
    )
    parser.add_argument("--resume", action="store_true", help="go on with the run in its folder, from the last checkpoint")
    parser.add_argument("--plan", action="store_true", help="check all, say how a step is computed, and write nothing")


def run(args: argparse.Namespace) -> int:
    """Do what the arguments say."""
    job = TrainingJob.of(args.config)
    if not args.plan:
        job.folder.check(args.resume)
    print(text(job), flush=True)
    if args.plan:
        return 0
    begin, progress = time.perf_counter(), TrainingProgress(job.config.run.steps)
    trained = job.run(args.resume, progress)
    progress.end()
    print("".join(f"note      {note}\n" for note in trained.notes), end="")
    best = "" if trained.best is None else f"; best.ooc is of step {trained.best.step}"
    seconds = time.perf_counter() - begin
    print(f"done      {seconds:.3g} s; last loss {trained.losses[-1]:.4g}; {show_bytes(most_resident())} resident at most")
    print(f"written   {trained.folder}{best}")
    return 0


def text(job: TrainingJob) -> str:
    """What is trained, on what, and how a step is computed."""
    graph, plan, data = job.network.graph, job.plan, job.config.data
    parameters = sum(t.nbytes for t in plan.network.tensors.values() if t.role is Role.PARAMETER)
    held = 0 if job.evaluation is None else len(job.evaluation.patches.samples.list)
    patch = "x".join(map(str, (job.network.pairing.channels, *job.network.patch)))
    return (
        f"network   {graph.name}: {len(graph.nodes)} layers, {show_bytes(parameters)} of parameters\n"
        f"data      {len(job.patches.samples.list)} samples to learn from, {held} to validate on; patches of {patch}, "
        f"{data.batch} in a step\n"
        f"{str(plan).partition(chr(10))[2]}"
    )


class TrainingProgress:
    """How far a run is: on a terminal in place, else a line for every tenth; a line for each validation.

    Parameters:
        steps: of the run.
    """

    def __init__(self, steps: int) -> None:
        self.steps, self.terminal = steps, sys.stdout.isatty()
        self.begin = self.told = time.perf_counter()
        self.first: int | None = None  # step of this process
        self.tenths = 0

    def __call__(self, row: dict[str, Any]) -> None:
        """A row of the log."""
        if "validation" in row:
            self.end()
            print(f"validated {validated(row)}", flush=True)
            return
        now, step = time.perf_counter(), row["step"]
        if self.first is None:
            self.first, self.tenths = step, (step - 1) * TENTHS // self.steps
        gone, steps = now - self.begin, step - self.first + 1
        line = (
            f"progress  {step / self.steps:4.0%} step {step}/{self.steps}, loss {row['loss']:.4g}, "
            f"{gone / steps * (self.steps - step):.0f} s left"
        )
        if self.terminal and now - self.told > INTERVAL:
            self.told = now
            print(f"\r{line:{WIDE}}", end="", flush=True)
        elif not self.terminal and self.tenths < step * TENTHS // self.steps:
            self.tenths = step * TENTHS // self.steps
            print(line, flush=True)

    def end(self) -> None:
        """Nothing is left of a line that is written anew."""
        if self.terminal:
            print(f"\r{'':{WIDE}}\r", end="", flush=True)


def validated(row: dict[str, Any]) -> str:
    """A validation in words."""
    values = row["validation"]
    numbers = {"loss": values["loss"], "accuracy": values["accuracy"], "mean Dice": values["mean_dice"]}
    told = ", ".join(f"{name} {math.nan if value is None else value:.4g}" for name, value in numbers.items())
    return f"step {row['step']}: {told}"

"""`ooc train`: a network trained on volumes or pictures in files, as a TOML file tells."""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import sys
import time
from collections.abc import Sequence
from typing import Any

from ooc.apply import page
from ooc.errors import ArgumentError
from ooc.networks.tensors import Role
from ooc.runtime.progress import Progress
from ooc.runtime.resident import most_resident
from ooc.schedule.budget import show_bytes
from ooc.training.job import TrainingJob
from ooc.training.outcome import Trained

CURVED = 200  # parts of a run over which losses are averaged


def arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `ooc train`."""
    parser.add_argument(
        "config", metavar="CONFIG", help="a .toml file: [model], [[loss]], [optimizer], [data], [validation], [run]"
    )
    parser.add_argument("--resume", action="store_true", help="go on with the run in its folder, from the last checkpoint")
    parser.add_argument("--plan", action="store_true", help="check all, say how a step is computed, and write nothing")
    parser.add_argument("--report", metavar="FILE", help="write a page of HTML here: losses, validations, time and memory of a "
                        "step as measured and predicted, kernels")  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="say nothing but errors")


def run(args: argparse.Namespace) -> int:
    """Do what the arguments say."""
    if args.report and args.plan:
        raise ArgumentError("--report: of a run; --plan makes none")
    if args.report:
        page.check(args.report)
    with contextlib.redirect_stdout(io.StringIO()) if args.quiet else contextlib.nullcontext():
        return trained_by(args)


def trained_by(args: argparse.Namespace) -> int:
    """Train, and tell."""
    job = TrainingJob.of(args.config)
    if not args.plan:
        job.folder.check(args.resume)
    print(text(job), flush=True)
    if args.plan:
        return 0
    begin = time.perf_counter()
    with Progress(job.config.run.steps, "step", sys.stdout, label="progress  ") as progress:

        def tell(row: dict[str, Any]) -> None:
            if "validation" in row:
                progress.say(f"validated {validated(row)}")
            else:
                progress.to(row["step"], f"loss {row['loss']:.4g}")

        trained = job.run(args.resume, tell, bool(args.report))
    print("".join(f"note      {note}\n" for note in trained.notes), end="")
    best = "" if trained.best is None else f"; best.ooc is of step {trained.best.step}"
    seconds = time.perf_counter() - begin
    done = f"{seconds:.3g} s; last loss {trained.losses[-1]:.4g}; {show_bytes(most_resident())} resident at most"
    print(f"done      {done}")
    print(f"written   {trained.folder}{best}")
    if args.report:
        page.write(args.report, job.plan, facts(job, trained, done))
    return 0


def facts(job: TrainingJob, trained: Trained, done: str) -> page.RunFacts:
    """What a page shows of a run."""
    told = [(name, value.strip()) for name, _, value in (line.partition(" ") for line in text(job).splitlines())]
    rows = [row.row() for row in trained.validations]
    curves = {
        "of a step": averaged(trained.losses),
        "of a validation": [(row["step"], value) for row in rows if (value := row["validation"]["loss"]) is not None],
    }
    table = [("step", "loss", "accuracy", "mean Dice"), *((str(row["step"]), *measures(row).values()) for row in rows)]
    title = f"{job.network.graph.name}, {len(trained.losses)} steps"
    return page.RunFacts(
        title, [*told, ("done", done), ("written", str(trained.folder))], trained.notes, job.profile,
        curves={name: points for name, points in curves.items() if points}, rows=table if rows else (),
    )  # fmt: skip


def averaged(losses: Sequence[float]) -> list[tuple[float, float]]:
    """Means of the losses of a few steps, at the last of them."""
    each = -(-len(losses) // CURVED)
    return [
        (min(i + each, len(losses)), math.fsum(losses[i : i + each]) / len(losses[i : i + each]))
        for i in range(0, len(losses), each)
    ]


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


def validated(row: dict[str, Any]) -> str:
    """A validation in words."""
    return f"step {row['step']}: {', '.join(f'{name} {value}' for name, value in measures(row).items())}"


def measures(row: dict[str, Any]) -> dict[str, str]:
    """What a validation measured."""
    values = row["validation"]
    numbers = {"loss": values["loss"], "accuracy": values["accuracy"], "mean Dice": values["mean_dice"]}
    return {name: f"{math.nan if value is None else value:.4g}" for name, value in numbers.items()}

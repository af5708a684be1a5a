"""`ooc apply` with several workers, or one that may be killed and goes on."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from ooc.apply import Application
from ooc.console import count, printable
from ooc.errors import ArgumentError
from ooc.files.whole import turns
from ooc.runtime.progress import Progress
from ooc.runtime.resident import most_resident
from ooc.schedule.budget import show_bytes
from ooc.workers import Task, run_tasks
from ooc.workers.begin import at_work, check_idle, run_folder
from ooc.workers.parts import Share, run_part
from ooc.workers.run import Told
from ooc.workers.where import Where, absolute


def arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of several workers."""
    parser.add_argument("--workers", type=count, default=0, metavar="N", help="start N processes, on GPUs one each, and share "
                        "the work among them; --budget is that of each (needs dask)")  # fmt: skip
    parser.add_argument("--dask", metavar="ADDRESS", help="share the work among the workers of a Dask scheduler")
    parser.add_argument("--parts", metavar="I/N", help="do the I-th of N shares, as others do theirs, in batch systems without a "
                        "scheduler: the same command but for I")  # fmt: skip
    parser.add_argument("--patience", type=float, metavar="S", help="seconds after which tasks of a worker that hangs or is "
                        "gone are done by others")  # fmt: skip
    parser.add_argument("--resume", action="store_true", help="go on with a run that was interrupted; one that can be is begun "
                        "with this, --workers, --dask or --parts")  # fmt: skip
    parser.add_argument("--work", default="", metavar="FOLDER", help="of such a run: its journal and tensors between levels, "
                        "where all workers see it; default: beside the output, for which s3:// has no place")  # fmt: skip


def asked(args: argparse.Namespace) -> bool:
    """Whether the work is shared or resumed. Raises ArgumentError."""
    ways = [name for name in ("workers", "dask", "parts") if getattr(args, name)]
    if len(ways) > 1:
        raise ArgumentError(f"--{ways[0]} and --{ways[1]}: expected one of them")
    if args.parts:
        Share.of(args.parts)
    if args.parts and args.overwrite:
        raise ArgumentError(
            "--parts: does not go with --overwrite, as every part would begin anew; remove the output, and the folder beside it"
        )
    if args.workers and not args.plan:
        from ooc.dask import certificates

        certificates()  # what is missing is told before anything is written
    if args.work and not ways and not args.resume:
        raise ArgumentError("--work: of a run that is shared or can be resumed; add --resume")
    return bool(ways) or args.resume


def run(args: argparse.Namespace, job: Application) -> int:
    """Do what the arguments say."""
    folder = run_folder(Where(absolute(args.output)), args.work)
    if folder is None:
        raise ArgumentError(f"--work: expected a folder for the journal and tensors between levels of {args.output}")
    with contextlib.ExitStack() as stack:
        with turns(folder.parent) if args.parts and folder.parent.is_dir() else contextlib.nullcontext():
            check_idle(folder, bool(args.parts))
            tasks = job.spread(args.resume or bool(args.parts))
            stack.enter_context(at_work(tasks[0].work.folder, bool(args.parts)))
        return computed(args, job, tasks)


def computed(args: argparse.Namespace, job: Application, tasks: list[Task]) -> int:
    """Compute the tasks, and tell."""
    told = about(job, tasks)
    if not args.json:
        print(printable(text(told)), flush=True)
    begin = time.perf_counter()
    with Progress(len(tasks), "task", None if args.json else sys.stdout, label="progress  ") as progress:
        reports = ways(args)(tasks, lambda finished, _: progress.to(finished))
    told |= {
        "seconds": time.perf_counter() - begin, "computed": sum(one["computed"] for one in reports),
        "notes": job.notes + [note for one in reports for note in one["notes"]],
        "resident_bytes": most_resident(),
    }  # fmt: skip
    if args.verify:
        told["verified"] = verified(job, args.output)
    if args.json:
        print(json.dumps(told))
        return 0
    for note in told["notes"]:
        print(f"note      {note}")
    print(f"done      {told['seconds']:.3g} s; {told['computed']} of {told['tasks']} tasks computed here")
    return 0


Way = Callable[[list[Task], Told], list[dict[str, Any]]]


def ways(args: argparse.Namespace) -> Way:
    """Who computes the tasks."""
    if args.parts:
        share = Share.of(args.parts)
        return lambda tasks, progress: run_part(tasks, share, patience=args.patience, progress=progress)
    if args.dask:
        return lambda tasks, progress: on_cluster(args, tasks, progress)
    if args.workers:
        return lambda tasks, progress: own_cluster(args, tasks, progress)
    return lambda tasks, progress: run_tasks(tasks, progress=progress)


def on_cluster(args: argparse.Namespace, tasks: list[Task], progress: Told) -> list[dict[str, Any]]:
    """By the workers of a scheduler."""
    from ooc.dask import connected, run

    with connected(args.dask) as client:
        return run(tasks, client, threads=args.threads, patience=args.patience, progress=progress)


def own_cluster(args: argparse.Namespace, tasks: list[Task], progress: Told) -> list[dict[str, Any]]:
    """By processes of our own, which end with us."""
    from ooc.dask import local, run

    gpus = tasks[0].work.about.fingerprint["backend"] == "cuda"
    with local(args.workers, gpus) as client:
        return run(tasks, client, threads=args.threads, patience=args.patience, progress=progress)


def about(job: Application, tasks: list[Task]) -> dict[str, Any]:
    """What the run comes to."""
    work = tasks[0].work
    return {
        "model": job.graph.name, "layers": len(job.graph.nodes), "input": list(job.source.shape), "output": list(job.made),
        "dtype": job.graph.dtypes[job.graph.outputs[0]], "budget": work.about.budget, "levels": len(work.levels()),
        "tasks": len(tasks), "finished": len(work.journal.finished()), "folder": str(work.folder),
        "predicted_seconds": sum(task.seconds for task in tasks),
    }  # fmt: skip


def text(told: dict[str, Any]) -> str:
    """The same in lines."""
    shapes = " -> ".join("x".join(map(str, told[key])) for key in ("input", "output"))
    limit = "no limit" if told["budget"] is None else f"budget {show_bytes(told['budget'])} each"
    return (
        f"network   {told['model']}: {told['layers']} layers\n"
        f"tensors   {shapes} {told['dtype']}\n"
        f"tasks     {told['tasks']} in {told['levels']} levels, {told['finished']} finished before, {limit}; {told['folder']}\n"
        f"predicted {told['predicted_seconds']:.4g} s by one worker"
    )


def verified(job: Application, output: str) -> dict[str, Any]:
    """What the windows say that are computed again."""
    with job.again() as sink:
        job.verified(sink)
    return {"windows": len(job.checked), "difference": max(window.difference for window in job.checked)}

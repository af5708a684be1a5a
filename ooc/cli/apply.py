"""`ooc apply`: a trained network on a tensor in a file, from path to path."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from ooc.apply import Application, page
from ooc.apply.packages import is_package, unpacked
from ooc.apply.reach import reach
from ooc.apply.recipe import AFTER, BEFORE
from ooc.cli import spread
from ooc.cli.streams import piped, threaded
from ooc.console import count
from ooc.errors import ArgumentError
from ooc.ir.op import INTEGERS
from ooc.networks.profile import Profile
from ooc.networks.session import Session
from ooc.networks.tensors import Role
from ooc.runtime.progress import Progress
from ooc.runtime.resident import most_resident
from ooc.schedule.budget import parse_bytes, show_bytes

READS = (
    "x.npy, x.zarr[/path], x.ome.zarr:level, x.tif[:series/level], x.h5:/dataset, x.nii[.gz], x.mrc, x.ims[:level], x.png, "
    "x.jpg; of .zarr s3://bucket/ and https://host/, too; slices may follow, as in x.zarr::0,:,10:20"
)
TERABYTE, MOST = 10**12, 1 << 63
INTERVAL = 0.5  # seconds between two looks at progress


def arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `ooc apply`."""
    parser.add_argument("model", metavar="MODEL", help="an .onnx file, a .pt2 file of torch.export.save, or a package of "
                        "bioimage.io, .zip or rdf.yaml: axes, --pre, --post and --pad-to are its own then")  # fmt: skip
    parser.add_argument("--input", required=True, metavar="IN", help=f"{READS}; - reads a .npy from standard input")
    parser.add_argument(
        "--output",
        metavar="OUT",
        help="x.npy, x.zarr[/path], x.ome.zarr[/labels/name], x.h5:/dataset, x.tif, x.ome.tif, x.nii[.gz] or x.png; of .zarr "
        "s3://bucket/, too; - writes a .npy to standard output",
    )
    parser.add_argument("--budget", metavar="B", help='memory: bytes, "512 MiB", "2 GB"; default: the device\'s, else no limit')
    parser.add_argument("--axes", default="", metavar="LETTERS", help="of the input's axes, of n, c, z, y, x; default: as the "
                        "file tells, else as the model has them")  # fmt: skip
    parser.add_argument("--pre", default="", metavar="STEPS", help=f'such as "/ 255, mean 0.5"; of {", ".join(BEFORE)}')
    parser.add_argument("--post", default="", metavar="STEPS", help=f'such as "sigmoid, > 0.5"; of {", ".join(AFTER)}')
    parser.add_argument("--outputs", default="", metavar="NAME", help="the tensor that is wanted; default: the first output")
    parser.add_argument("--pad-to", type=count, default=1, metavar="N", help="mirror the input to multiples of N, and cut back")
    parser.add_argument("--semantics", default="whole", metavar="HOW", help='"whole" (default): the network sees all; '
                        '"window=96,overlap=0.25,blend=gaussian": windows, blended as MONAI does')  # fmt: skip
    parser.add_argument("--device", metavar="NAME", help="a device; default: the one of OOC_BACKEND, else auto")
    parser.add_argument("--threads", type=count, metavar="N", help="threads that compute, of each process; default: all")
    parser.add_argument("--verify", type=count, default=0, metavar="K", help="compute K windows again, corners first, with ONNX "
                        "Runtime (.pt2: PyTorch), and print the largest difference")  # fmt: skip
    parser.add_argument("--plan", action="store_true", help="say how, from the shapes alone, and write nothing")
    parser.add_argument("--trace", metavar="FILE", help="write the timeline here, predicted and measured, for ui.perfetto.dev")
    parser.add_argument("--report", metavar="FILE", help="write a page of HTML here: time and memory as measured and predicted, "
                        "kernels, the result with its tiles")  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="replace an output that is there")
    parser.add_argument("--trust", action="store_true", help="the files are from someone you trust: a .pt2 model may run code, "
                        "an input lead to files elsewhere")  # fmt: skip
    parser.add_argument("--ome", default="", metavar="V", help='version of an OME-Zarr output, "0.5" (default; of labels that of '
                        'their image) or "0.4"')  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="say nothing but errors")
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of text")
    spread.arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Do what the arguments say."""
    if not args.plan and not args.output:
        raise ArgumentError("--output: expected a file to write; --plan alone writes nothing")
    if (parse_bytes(args.budget, TERABYTE) or 0) >= MOST:  # of a device that is not known yet
        raise ArgumentError(f"budget={args.budget!r}: expected less than 2^63 bytes")
    shared = spread.asked(args)
    if args.report and (shared or args.plan or args.output == "-"):
        raise ArgumentError(
            "--report: of one process that writes a file: not with --workers, --dask, --parts, --resume, --plan, -"
        )
    if args.report:
        page.check(args.report)
    with piped(args, not shared) as given, threaded(args) as device, described(given):
        job = Application(
            given.model, given.input, given.output or "", given.budget, given.axes, given.pre, given.post, given.outputs, device,
            given.pad_to, given.overwrite, given.semantics, given.verify, apart=not given.plan, trust=given.trust, ome=given.ome,
            work=given.work,
        )  # fmt: skip
        return spread.run(given, job) if shared and not given.plan else at_once(given, job)


@contextlib.contextmanager
def described(args: argparse.Namespace) -> Iterator[None]:
    """A package of bioimage.io in the place of a model: what the arguments do not say, it says, while the block lasts."""
    if not is_package(args.model):
        yield
        return
    with unpacked(args.model) as package:
        args.model, args.pad_to = package.model, args.pad_to if args.pad_to > 1 else package.pad_to
        args.pre, args.post = args.pre or package.before, args.post or package.after
        yield


def at_once(args: argparse.Namespace, job: Application) -> int:
    """Do it in this process."""
    job.prepare()
    told = about(job)
    if args.trace:
        job.plan.trace(args.trace)
    if args.plan:
        job.close()
        print(json.dumps(told) if args.json else text(job, told))
        return 0
    if not args.json:
        print(text(job, told), flush=True)
    begin = time.perf_counter()
    profiles: list[Profile] = []
    job.run(watching(not args.json, profiles if args.report or args.trace else None, bool(args.trace)))
    if args.trace:
        job.plan.trace(args.trace, profiles[0])
    resident = most_resident()
    told |= {"seconds": time.perf_counter() - begin, "resident_bytes": resident}
    if args.verify:
        told["verified"] = {"windows": len(job.checked), "difference": max(f.difference for f in job.checked)}
    print(json.dumps(told) if args.json else f"done      {told['seconds']:.3g} s; {show_bytes(resident)} resident at most")
    if args.verify and not args.json:
        what = "as integers" if job.made_dtype in INTEGERS else "of the largest value"
        print(f"verified  {len(job.checked)} windows; largest difference {told['verified']['difference']:.2g} {what}")
    if args.report:
        with job.again() as result:
            title = f"{told['model']}: {job.input} to {job.output}"
            page.write(args.report, job.plan, page.RunFacts(title, facts(job, told), job.notes, profiles[0], result, job.checked))
    return 0


def facts(job: Application, told: dict[str, Any]) -> list[tuple[str, str]]:
    """The same for a page."""
    lines = [line.partition(" ") for line in text(job, told).splitlines()]
    done = f"{told['seconds']:.3g} s; {show_bytes(told['resident_bytes'])} resident at most"
    return [*((name, value.strip()) for name, _, value in lines if name != "note"), ("done", done)]


def about(job: Application) -> dict[str, Any]:
    """What the plan comes to."""
    plan, graph = job.plan, job.graph
    parameters = sum(t.nbytes for t in plan.network.tensors.values() if t.role is Role.PARAMETER)
    return {
        "model": graph.name, "layers": len(graph.nodes), "parameter_bytes": parameters,
        "flops": sum(graph.flops.values()) * plan.batch, "input": list(job.source.shape), "output": list(job.made),
        "dtype": job.made_dtype, "reach": reach(plan.network), "windows": job.window_count, "why": plan.why,
        "budget": plan.budget, "peaks": plan.peaks, "decoding": job.source.buffer_bytes, "smallest_bytes": plan.smallest_bytes,
        "moves": plan.lane_bytes, "predicted_seconds": job.predicted_seconds, "bound_seconds": plan.bound_seconds,
        "binds": plan.binds, "notes": job.notes,
    }  # fmt: skip


def text(job: Application, told: dict[str, Any]) -> str:
    """The same in lines."""
    far = "sees {} positions along each axis".format(", ".join("all" if r is None else f"{r}" for r in told["reach"]))
    if job.windows:  # of one of which the plan is
        size, seconds = "x".join(map(str, job.windows.along(job.source.shape[2:]))), f"{told['predicted_seconds']:.3g} s"
        far = f"sees windows of {size}, {told['windows']} in all, predicted {seconds}"
    shapes = " -> ".join("x".join(map(str, told[key])) for key in ("input", "output"))
    return (
        f"network   {told['model']}: {told['layers']} layers, {show_bytes(told['parameter_bytes'])} of parameters, "
        f"{told['flops']:.3g} operations\n"
        f"tensors   {shapes} {told['dtype']}; a result {far}\n"
        f"{str(job.plan).partition(chr(10))[2]}"
        f"{''.join(f'{chr(10)}note      {note}' for note in told['notes'])}"
    )


def watching(
    tells: bool, profiles: list[Profile] | None, trace: bool
) -> Callable[[Session], contextlib.AbstractContextManager[None]]:
    """What is done while a session runs: progress is told; what it takes goes to `profiles`, if they are wanted, with every step
    for a trace."""

    @contextlib.contextmanager
    def watch(session: Session) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if profiles is not None:
                profiles.append(stack.enter_context(session.profile(trace)))
            if tells:
                stack.enter_context(watched(session))
            yield

    return watch


@contextlib.contextmanager
def watched(session: Session) -> Iterator[None]:
    """Progress of a session is told meanwhile."""
    stop = threading.Event()

    def tell(progress: Progress) -> None:
        while not stop.wait(INTERVAL):
            progress.to(session.progress)

    with Progress(1, "", sys.stdout, label="progress  ") as progress:
        teller = threading.Thread(target=tell, args=(progress,), daemon=True)
        teller.start()
        try:
            yield
        finally:
            stop.set()
            teller.join()

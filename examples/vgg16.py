"""One training step of VGG16, forward and backward, on a device that holds a fraction of it: layer by layer, or as a whole.

python examples/vgg16.py --batch 16 --budget 512MiB [--spill DIR]
python examples/vgg16.py --batch 256 --budget 2GiB --policy auto [--train] [--compare all] [--trace t.json]

With --policy, --train or --compare the network is planned as a whole, see whole.py. Without them every layer is a call of its
own: every activation and gradient lives in host memory or, with --spill, in files; the device sees tiles of them. Of the first
pictures each layer's results are then compared with NumPy's, and two runs with deterministic=True with each other, bit by bit.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import numpy as np
import whole
from checking import TOLERANCE, Comparison
from models import VGG16, Shapes, layers_of
from training import Array, Row, Seen, Step, Storage, Weights, make_weights, pictures

import ooc
from ooc.networks import POLICIES
from ooc.runtime.resident import ResidentMemory
from ooc.schedule.budget import show_bytes

SHARE = 32  # of the budget is the check's, whose few pictures are then cut into tiles too
MORE = 4  # times that is its other budget
LEAST_BUDGET, USUAL_BUDGET = 1 << 20, 16 << 20  # where the share would be less, which takes long, or no budget was given
DISK_MARGIN = 64 << 20
FAILED, USAGE, INTERRUPTED = 1, 2, 130


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ooc.ShapeError(f"{message}; try --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the example. 0: all is well; 1: a gradient is wrong or the budget was exceeded; 2: an error, told in one line."""
    try:
        return _run(_parse(argv))
    except KeyboardInterrupt:
        return _complain("interrupted", INTERRUPTED)
    except ooc.OocError as error:
        return _complain(str(error), USAGE)
    except OSError as error:
        return _complain(f"{error.filename}: {error.strerror}" if error.filename else str(error), USAGE)


def _complain(message: str, status: int) -> int:
    print("vgg16: " + " ".join(message.split()), file=sys.stderr)
    return status


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = _Parser(prog="vgg16", description="One training step of VGG16, out of core.")
    parser.add_argument("--batch", type=int, default=16, metavar="N", help="pictures of a step; default %(default)s")
    parser.add_argument("--budget", default="512 MiB", metavar="B", help="memory of the device; default %(default)s")
    parser.add_argument("--backend", type=str.lower, default="auto", metavar="NAME",
                        help="auto (default), cpu, cuda or null: predict, compute nothing; of a whole network also a device that "
                        "need not be here: p100, h200, ...")  # fmt: skip
    parser.add_argument("--images", type=int, metavar="SIDE", help="pixels per side; default 224, with --train 32")
    parser.add_argument("--classes", type=int, metavar="K", help="default 1000, with --train 10")
    parser.add_argument("--spill", type=Path, metavar="DIR", help="keep activations and gradients in files here, not in memory")
    parser.add_argument("--seed", type=int, default=0, help="of weights, crops and dropout; default %(default)s")
    parser.add_argument("--check", type=int, metavar="N", help="pictures of the comparison; default 2, 0: none")
    whole = parser.add_argument_group("as a whole network, with --policy, --train or --compare")
    whole.add_argument("--policy", metavar="NAME", help=f"auto, or one of {', '.join(POLICIES)}")
    whole.add_argument("--train", action="store_true", help="on scikit-learn's handwritten digits, an eighth as wide")
    whole.add_argument("--compare", metavar="all|A,B", help="a table of policies, simulated and measured, and a picture")
    whole.add_argument("--plot", type=Path, metavar="PNG", help="of --compare; default docs/vgg16_policies.png")
    whole.add_argument("--trace", type=Path, metavar="JSON", help="write the predicted steps here")
    whole.add_argument("--home", choices=("pinned", "host", "disk"), help="of what leaves the device; default: the device's")
    whole.add_argument("--width", type=float, metavar="W", help="channels, times W; default 1, with --train 1/8")
    whole.add_argument("--epochs", type=int, default=8, metavar="E", help="of --train; default %(default)s")
    whole.add_argument("--rate", type=float, default=5e-4, metavar="LR", help="of Adam, of --train; default %(default)s")
    args = parser.parse_args(argv)
    args.whole = bool(args.policy or args.train or args.compare)
    args.policy = args.policy or "auto"
    args.images = args.images or (32 if args.train else 224)
    args.classes = args.classes or (10 if args.train else 1000)
    args.width = args.width or (1 / 8 if args.train else 1)
    if args.seed < 0 or (args.check or 0) < 0:
        raise ooc.ShapeError("--seed and --check: expected 0 or more")
    args.check = min(args.batch, 2 if args.check is None else args.check)
    return args


def _run(args: argparse.Namespace) -> int:
    if args.whole:
        return whole.run(args)
    layers = _layers(args, args.batch)
    device = ooc.device(args.backend, args.budget)
    computes = device.backend.name != "null"
    with ExitStack() as stack:
        folder = stack.enter_context(_folder(args.spill, _spilled(layers) if computes else 0)) if args.spill else None
        weights = make_weights(layers, args.seed, computes)
        x, labels = pictures(args.batch, args.images, args.classes, args.seed, computes)
        _show_head(args, device, layers)
        job = Job(weights, x, labels, device, folder, args.seed)
        fits = _whole_step(layers, job)
        if not computes or not args.check:
            print("check     none" + ("" if computes else ": the null backend knows sizes only, nothing was computed"))
            return 0 if fits else FAILED
        right = _check(args, job)
    return 0 if fits and right else FAILED


def _layers(args: argparse.Namespace, batch: int) -> tuple[Shapes, ...]:
    try:
        return layers_of(VGG16, args.images, batch, args.classes)
    except ValueError as error:
        raise ooc.ShapeError(str(error)) from None


@dataclass(frozen=True)
class Job:
    """What a step computes from, where, and which folder its files go to (None: memory)."""

    weights: Weights
    x: Array
    labels: Array
    device: ooc.Device
    folder: Path | None
    seed: int


# ---- files


@contextmanager
def _folder(parent: Path, need: int) -> Iterator[Path]:
    """A directory of our own in `parent`, which is made when it is not there; what was made is removed at the end."""
    made = not parent.exists()
    if made:
        parent.mkdir()
    folder = None
    try:
        free = shutil.disk_usage(parent).free
        if free < need:
            raise ooc.StoreError(
                f"{parent}: the step needs {show_bytes(need)} of disk but {show_bytes(free)} are free; "
                "give another --spill directory or a smaller --batch"
            )
        folder = Path(tempfile.mkdtemp(prefix="ooc-vgg16-", dir=parent))
        yield folder
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
        if made:
            with suppress(OSError):
                parent.rmdir()


def _spilled(layers: Sequence[Shapes]) -> int:
    """Bytes of the files at most: activations, gradients of parameters, and two gradients of activations."""
    largest = max(math.prod(s.y) for s in layers)
    return 4 * (sum(s.kept + s.parameters for s in layers) + math.prod(layers[0].x) + 2 * largest) + DISK_MARGIN


# ---- the step


def _whole_step(layers: Sequence[Shapes], job: Job) -> bool:
    """Run and tell; whether the budget was kept."""
    computes, limit = job.device.backend.name != "null", job.device.device_bytes
    with _storage(job.folder, "step") as storage:
        step = Step(layers, job.weights, storage, job.seed, partial(_show_row, computes=computes))
        memory = ResidentMemory()
        begin = time.perf_counter()
        with memory, job.device:
            loss = step.run(storage.holding("x", job.x), job.labels)
        seconds = time.perf_counter() - begin
    for passing in ("forward", "backward"):
        _show_pass(step, passing, computes)
    if computes:
        _show_speed(step, loss, seconds, len(job.labels))
        _show_process(storage, memory.grown_bytes)
    _show_peak(step.rows, limit)
    return limit is None or max(row.peak for row in step.rows) <= limit


@contextmanager
def _storage(folder: Path | None, name: str) -> Iterator[Storage]:
    own = None if folder is None else folder / name
    if own:
        own.mkdir()
    try:
        yield Storage(own)
    finally:
        if own:
            shutil.rmtree(own, ignore_errors=True)


def _check(args: argparse.Namespace, job: Job) -> bool:
    """A few pictures once more: whether every layer is right, and of one picture whether the bits depend on the budget."""
    limit = job.device.device_bytes
    budget = USUAL_BUDGET if limit is None else max(limit // SHARE, min(limit, LEAST_BUDGET))
    few = _part(job, args.check, replace(job.device, device_bytes=budget))
    tight = _part(few, 1, replace(few.device, deterministic=True))
    roomy = _part(few, 1, replace(tight.device, device_bytes=MORE * budget))
    right = right_layers(_layers(args, args.check), few)
    return same_bits(_layers(args, 1), tight, roomy) and right


def _part(job: Job, pictures: int, device: ooc.Device) -> Job:
    return replace(job, x=job.x[:pictures], labels=job.labels[:pictures], device=device)


def right_layers(layers: Sequence[Shapes], job: Job) -> bool:
    """Whether every layer makes of what it reads what NumPy makes of it; tells."""
    compare = Comparison(job.weights, job.seed)
    with _gradients(layers, job, compare.see):
        pass
    print(
        f"check     {_verdict(compare.right)}: every layer of {_count(job.x)}, forward and backward, against NumPy on the same "
        f"inputs: largest difference {compare.worst:.1e} of the largest value ({compare.where}; allowed {TOLERANCE:.0e})",
        flush=True,
    )
    return compare.right


def same_bits(layers: Sequence[Shapes], job: Job, other: Job) -> bool:
    """Whether a step has the same bits on the devices of two jobs, which differ in their budgets; tells."""
    one, two = _bits(layers, job), _bits(layers, other)
    differ = [name for name in one if one[name] != two[name]]
    under = " and ".join(show_bytes(j.device.device_bytes) for j in (job, other))
    found = f"other bits under {under}: {', '.join(differ[:3])}" if differ else f"the same bits under {under}"
    print(f"check     {_verdict(not differ)}: deterministic=True, {len(one)} results of {_count(job.x)} have {found}")
    return not differ


def _bits(layers: Sequence[Shapes], job: Job) -> dict[str, bytes]:
    """What tells the bits of one run's results from another's, which need not be kept side by side."""
    with _gradients(layers, job) as found:
        return {name: hashlib.sha256(array).digest() for name, array in found.items()}


@contextmanager
def _gradients(layers: Sequence[Shapes], job: Job, seen: Seen | None = None) -> Iterator[dict[str, Array]]:
    """The loss and all gradients of a step, which last as long as the `with`."""
    with _storage(job.folder, "check") as storage:
        step = Step(layers, job.weights, storage, job.seed, seen=seen)
        with job.device:
            loss = step.run(storage.holding("x", job.x), job.labels)
        yield {"loss": np.asarray(loss), **step.gradients}


def _count(pictures: Array) -> str:
    return f"{len(pictures)} picture{'s' * (len(pictures) != 1)}"


def _verdict(right: bool) -> str:
    return "ok" if right else "FAILED"


# ---- what is told


def _show_head(args: argparse.Namespace, device: ooc.Device, layers: Sequence[Shapes]) -> None:
    where = "in memory" if args.spill is None else f"in files in {args.spill}"
    limit = "none" if device.device_bytes is None else show_bytes(device.device_bytes)
    kept, learned = (show_bytes(4 * sum(numbers)) for numbers in zip(*((s.kept, s.parameters) for s in layers)))
    print(f"vgg16     {args.batch} pictures of {args.images} x {args.images}, {device.backend.name} backend, budget {limit}")
    print(f"tensors   {kept} of activations and {learned} of filters' gradients {where}")
    print(
        f"{'layer':<14} {'pass':<8} {'result':<16} {'tiles':>6} {'predicted':>10} {'measured':>10} {'moved':>9} {'of bound':>8}",
        flush=True,
    )


def _show_row(row: Row, computes: bool) -> None:
    shape = " x ".join(map(str, row.shape)) if len(row.shape) < 3 else "x".join(map(str, row.shape))
    measured = f"{row.seconds:>8.3f} s {show_bytes(row.moved):>9} {row.share:>8.0%}"
    unknown = f"{'-':>10} {show_bytes(row.moved):>9} {'-':>8}"
    print(
        f"{row.name:<14} {row.passing:<8} {shape:<16} {row.tiles:>6} {row.predicted:>8.3f} s {measured if computes else unknown}",
        flush=True,
    )


def _show_pass(step: Step, passing: str, computes: bool) -> None:
    rows = [r for r in step.rows if r.passing == passing]
    flops = 2 * sum(s.macs for s in step.layers) * (1 if passing == "forward" else 2)
    spent = sum(r.seconds for r in rows)
    measured = f"{spent:.2f} s measured ({flops / spent / 1e9:.0f} GFLOP/s), " if computes else ""
    print(
        f"{passing:<9} {measured}{sum(r.predicted for r in rows):.2f} s predicted; "
        f"{flops / 1e9:.1f} GFLOP; {show_bytes(sum(r.moved for r in rows))} moved"
    )


def _show_speed(step: Step, loss: float, seconds: float, batch: int) -> None:
    """A step plans every call; the next one on the same device would remember the plans."""
    ran, predicted = sum(r.seconds for r in step.rows), sum(r.predicted for r in step.rows)
    print(f"step      {ran:.2f} s measured, {predicted:.2f} s predicted; and {seconds - ran:.2f} s of planning, once per device")
    print(f"speed     {ran / batch:.3f} s per image, {batch / ran:.2f} images/s; with planning {batch / seconds:.2f} images/s")
    print(f"loss      {loss:.4f}")


def _show_peak(rows: Sequence[Row], limit: int | None) -> None:
    worst = max(rows, key=lambda row: row.peak)
    allowed = "no budget" if limit is None else f"budget {show_bytes(limit)} ({limit} B)"
    print(f"device    peak {show_bytes(worst.peak)} ({worst.peak} B, {worst.name} {worst.passing}), {allowed}", flush=True)


def _show_process(storage: Storage, grown: int) -> None:
    kept = "in files" if storage.folder else "in memory"
    print(f"process   resident memory grew by {show_bytes(grown)}; activations and gradients {kept}: {show_bytes(storage.most)}")


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupt)  # files of gigabytes never stay behind
    sys.exit(main())

"""The commands of `python -m perfmodel`, and of `ooc` too where they are of everyday use: an entry of `COMMANDS` each."""

from __future__ import annotations

import argparse
import importlib.util
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ooc.console import Command, count
from ooc.runtime.target import target, targets
from perfmodel.rows import write_rows

CUDA_STEPS = None  # what a calibration announces is not known before


# ---- calibrate


def _calibrate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backend", type=str.lower, choices=("cpu", "cuda"), default="cpu", help="what to measure (default %(default)s)"
    )
    parser.add_argument("--device", type=int, default=0, help="index of the CUDA device (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="measure fewer shapes")
    parser.add_argument("--out", metavar="FILE", help="file to write (default: the backend's name and .json)")
    parser.add_argument("--threads", type=int, help="threads that compute, or that copy to and from a GPU (default: all, or 8)")
    parser.add_argument("--dir", help="where to measure the disk, for the CPU (default: the temporary directory)")


def _calibrate(args: argparse.Namespace) -> int:
    from perfmodel.calibrate.entries import write_calibration

    out = args.out or f"{args.backend}.json"
    calibration = _measure_cuda(args) if args.backend == "cuda" else _measure_cpu(args)
    write_calibration(calibration, Path(out))
    worst = max(calibration["fit_error"].items(), key=lambda item: item[1])
    print(f"{out}: {calibration['name']}; worst median fit error {worst[1]:.0%} ({worst[0]})")
    return 0


def _measure_cpu(args: argparse.Namespace) -> dict[str, Any]:
    from perfmodel.calibrate.cpu import announced, calibrate_cpu
    from perfmodel.calibrate.progress import CalibrationProgress

    with CalibrationProgress(announced(args.quick)) as progress:
        return calibrate_cpu(args.threads, args.dir, progress.step, args.quick)


def _measure_cuda(args: argparse.Namespace) -> dict[str, Any]:
    from ooc.backends.cuda.backend import CudaBackend
    from perfmodel.calibrate.cuda import calibrate_cuda
    from perfmodel.calibrate.progress import CalibrationProgress

    backend = CudaBackend(threads=args.threads, index=args.device)
    with CalibrationProgress(CUDA_STEPS) as progress:
        return calibrate_cuda(backend, progress.step, args.quick)


# ---- show


def _show_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("calibration", metavar="FILE|NAME", help="a calibration file, or the name of a shipped one")
    parser.add_argument("--plot", metavar="PNG", help="draw the bandwidth of its lanes and its roofline here")


def _show(args: argparse.Namespace) -> int:
    from perfmodel.report import show

    calibration = show.read(args.calibration)
    print(show.show(calibration))
    if args.plot:
        from perfmodel.report.plots import draw

        draw(calibration, args.plot)
    return 0


# ---- predict


def _predict_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("problems", nargs="+", metavar="DESCRIPTOR|FILE|SET",
                        help="descriptors as of ooc plan, .txt files with one a line, or sets such as vgg16")  # fmt: skip
    parser.add_argument("--device", metavar="NAME|FILE", help=f"{targets()}; default: as of ooc plan")
    parser.add_argument("--tf32", action="store_true", help="f32 convolutions of a GPU may round their factors to TF32")
    parser.add_argument(
        "--budget", metavar="B", help='device memory: bytes, "256 MiB", "80%%" or 0.8; default: 90%% of a described device'
    )
    parser.add_argument("--place", action="extend", nargs="+", default=[], metavar="NAME=PLACE",
                        help="where operands live, as in x=disk y=disk, after the problems; default: host")  # fmt: skip
    _batch_argument(parser)
    parser.add_argument("--json", action="store_true", help="a line of JSON per problem, and one of totals")


def _batch_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--n", "--batch", type=count, metavar="N", help="instead of the batch of these problems; equal ones count once"
    )


def _predict(args: argparse.Namespace) -> int:
    from ooc.api.plan_query import parse_places
    from perfmodel.problems.sets import collect
    from perfmodel.report.predict import budgeted, predict, show, to_json

    ops, places = collect(args.problems, args.n), parse_places(args.place)
    device = budgeted(target(args.device, args.tf32), args.budget)
    predictions = predict(ops, device, places)
    print(to_json(predictions, device) if args.json else show(predictions, device))
    return 0


# ---- check


def _check_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backend", type=str.lower, choices=("cpu", "cuda"), default="cpu", help="what computes (default %(default)s)"
    )
    parser.add_argument("--device", metavar="NAME|FILE", help="a calibration (default: the one that is used by itself)")
    parser.add_argument(
        "only",
        nargs="*",
        metavar="PROBLEMFILE|SET|DESCRIPTOR",
        help="these, not random ones, under 1/2 to 1/50 of their size",
    )
    _batch_argument(parser)
    parser.add_argument("--problems", type=count, help="so many at random (default: 40, or all that are given)")
    parser.add_argument("--ranked", type=count, help="problems of which other plans are run (default: 6, or all that are given)")
    parser.add_argument("--plans", type=count, default=20, help="random plans of each of those (default %(default)s)")
    parser.add_argument("--seed", type=int, help="of the problems (default: another one each time)")
    parser.add_argument("--dir", help="where to put the files (default: the temporary directory)")
    parser.add_argument("--out", help="write JSON lines with a system header here")


def _check(args: argparse.Namespace) -> int:
    from ooc.runtime.context import device
    from perfmodel.problems.sets import collect
    from perfmodel.report.check import check, questions_of, random_questions, simulated, summary

    seed = secrets.randbelow(1 << 31) if args.seed is None else args.seed
    questions = (
        questions_of(collect(args.only, args.n), args.problems, seed) if args.only
        else list(random_questions(args.problems or 40, seed))
    )  # fmt: skip
    ranked = args.ranked or (len(questions) if args.only else 6)
    base = device(args.backend, calibration=args.device)
    rows = list(check(base, questions, ranked, args.plans, args.dir, print))
    if not rows:
        raise ValueError("check: no problem had a plan")
    told, (steps, seconds) = summary(rows), simulated()
    print(
        f"the machine: a run of a plan is {told.unsteady:.0%} off those at other moments, nine in ten {told.unsteady_ninth:.0%}"
    )
    print(f"simulator: {steps} steps in {seconds * 1e3:.0f} ms")
    if args.out:
        about = {"seed": seed, "calibration": args.device and Path(args.device).name}
        about |= {"simulated_steps": steps, "simulating_seconds": seconds}
        write_rows(args.out, [about | {"summary": str(told), **told._asdict()}, *rows])
    print(told)
    return 0 if told.good else 1


def _of_checkout() -> Mapping[str, Command]:
    """Those that measure this package itself, with problems and results of their own: a wheel has none of them."""
    if importlib.util.find_spec("perfmodel.bench") is None:
        return {}
    from perfmodel.bench.commands import COMMANDS

    return COMMANDS


COMMANDS: dict[str, Command] = {
    "calibrate": Command("Measure this machine's processors, memory and disk, or its GPU.", _calibrate_arguments, _calibrate),
    "show": Command("Print a calibration; draw its bandwidths and its roofline.", _show_arguments, _show),
    "predict": Command("Predict what problems take on a machine, and what binds them.", _predict_arguments, _predict),
    "check": Command("Hold predictions against measurements, on random problems.", _check_arguments, _check),
    **_of_checkout(),
}

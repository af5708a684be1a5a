"""`python -m perfmodel calibrate | bench | overhead | gpu`: measure this machine, measure the library on it."""
"""`python -m perfmodel calibrate | bench | figures | gpu`: measure this machine, measure the library on it."""

from __future__ import annotations

import argparse
import secrets
import sys
from pathlib import Path
from typing import Any

from ooc.errors import OocError


def main(argv: list[str] | None = None) -> int:
    """Parse the command line and run one command; returns the exit status."""
    args = _parser().parse_args(argv)
    try:
        return int(args.run(args))
    except (OocError, OSError, ValueError) as error:
        print(f"perfmodel: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="perfmodel", description="The performance model of ooc.")
    commands = parser.add_subparsers(dest="command", required=True)
    measure = commands.add_parser("calibrate", help="measure this machine's processors, memory and disk, or its GPU")
    measure.add_argument("--backend", choices=("cpu", "cuda"), default="cpu", help="what to measure (default %(default)s)")
    measure.add_argument("--device", type=int, default=0, help="index of the CUDA device (default %(default)s)")
    measure.add_argument("--quick", action="store_true", help="measure fewer shapes")
    measure.add_argument("--out", help="file to write (default: the backend's name and .json)")
    measure.add_argument("--threads", type=int, help="threads that compute, or that copy to and from a GPU (default: all, or 8)")
    measure.add_argument("--dir", help="where to measure the disk, for the CPU (default: the temporary directory)")
    measure.set_defaults(run=_calibrate)
    compare = commands.add_parser("bench", help="out of core against in memory and a peer")
    compare.add_argument("problems", nargs="?", default="vgg16", help="problem set or .txt file (default %(default)s)")
    compare.add_argument("--peer", choices=("torch",), help="also measure a peer, on in-memory tensors")
    compare.add_argument("--mib", type=int, default=800, help="MiB of x and y together (default %(default)s)")
    compare.add_argument("--ratio", type=float, default=10, help="tensors over budget (default %(default)s)")
    compare.add_argument("--rounds", type=int, default=5, help="measured rounds (default %(default)s)")
    compare.add_argument("--dir", help="where to put the files (default: the temporary directory)")
    compare.add_argument("--out", help="write JSON lines with a system header here")
    compare.set_defaults(run=_bench)
    predicted = commands.add_parser("check", help="predicted against measured seconds, on fresh random problems")
    predicted.add_argument("--backend", choices=("cpu", "cuda"), default="cpu", help="what computes (default %(default)s)")
    predicted.add_argument("--device", help="a shipped calibration or a JSON file (default: the one that is used by itself)")
    predicted.add_argument("--problems", type=int, default=40, help="problems (default %(default)s)")
    predicted.add_argument("--ranked", type=int, default=6, help="problems of which other plans are run (default %(default)s)")
    predicted.add_argument("--plans", type=int, default=20, help="random plans of each of those (default %(default)s)")
    predicted.add_argument("--seed", type=int, help="of the problems (default: another one each time)")
    predicted.add_argument("--dir", help="where to put the files (default: the temporary directory)")
    predicted.add_argument("--out", help="write JSON lines with a system header here")
    predicted.set_defaults(run=_check)
    small = commands.add_parser("overhead", help="what small calls cost beside their operation")
    small.add_argument("--repeats", type=int, default=400, help="measured calls of each function (default %(default)s)")
    small.add_argument("--only", default="", help="functions to measure: those whose name holds this text")
    small.add_argument("--out", help="write JSON lines with a system header here")
    small.set_defaults(run=_overhead)
    papers = commands.add_parser("figures", help="published figures beside what is predicted for the same devices")
    papers.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    papers.add_argument("--out", help="write JSON lines with a system header here")
    papers.set_defaults(run=_figures)
    everything = commands.add_parser("gpu", help="all that needs a GPU: tests, calibration, benchmark, sanitizer")
    everything.add_argument("--out", required=True, help="folder of the results")
    everything.add_argument("--only", default="", help="parts to run, even if complete: tests,calibrate,bench,sanitize")
    everything.add_argument("--minutes", type=float, default=9, help="time limit (default %(default)s)")
    everything.set_defaults(run=_gpu)
    return parser


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _calibrate(args: argparse.Namespace) -> int:
    from perfmodel.measuring import write_calibration

    out = args.out or f"{args.backend}.json"
    found = _measure_cuda(args) if args.backend == "cuda" else _measure_cpu(args)
    write_calibration(found, Path(out))
    worst = max(found["fit_error"].items(), key=lambda item: item[1])
    print(f"{out}: {found['name']}; worst median fit error {worst[1]:.0%} ({worst[0]})")
    return 0


def _measure_cpu(args: argparse.Namespace) -> dict[str, Any]:
    from perfmodel.calibrate import calibrate_cpu

    return calibrate_cpu(args.threads, args.dir, _say, args.quick)


def _measure_cuda(args: argparse.Namespace) -> dict[str, Any]:
    from ooc.backends.cuda import CudaBackend
    from perfmodel.calibrate_cuda import calibrate_cuda

    return calibrate_cuda(CudaBackend(threads=args.threads, index=args.device), _say, args.quick)


def _bench(args: argparse.Namespace) -> int:
    from perfmodel.bench import bench, overhead, problems, write_rows

    ops = problems(args.problems)
    python = overhead()
    print(
        "overhead  lowering {lower_microseconds_per_step:.1f} us, running {run_microseconds_per_step:.1f} us a step".format(
            **python
        )
    )
    rows = [python, *bench(ops, args.mib << 20, args.ratio, args.rounds, args.peer, args.dir, print)]
    if args.out:
        write_rows(args.out, rows)
    return 0


def _check(args: argparse.Namespace) -> int:
    from perfmodel.bench import write_rows
    from perfmodel.check import check, summary

    seed = secrets.randbelow(1 << 31) if args.seed is None else args.seed
    found = check(args.backend, args.device, args.problems, args.ranked, args.plans, seed, args.dir, print)
    rows = list(found)
    if not rows:
        raise ValueError("check: no problem had a plan")
    told = summary(rows)
    if args.out:
        write_rows(args.out, [{"seed": seed, "calibration": args.device, "summary": str(told), **told._asdict()}, *rows])
    print(told)
    return 0 if told.good else 1


def _overhead(args: argparse.Namespace) -> int:
    from perfmodel.bench import write_rows
    from perfmodel.overhead import line, overhead

    rows = []
    for row in overhead(args.repeats, args.only):
        print(line(row), flush=True)
        rows.append(row)
    if args.out:
        write_rows(args.out, rows)


def _figures(args: argparse.Namespace) -> int:
    from perfmodel.bench import write_rows
    from perfmodel.figures import figures, tables

    micro, networks = figures(_say)
    print(tables(micro, networks, args.markdown))
    if args.out:
        write_rows(args.out, [*micro, *networks])
    return 0


def _gpu(args: argparse.Namespace) -> int:
    from perfmodel.gpu import run_gpu

    return run_gpu(Path(args.out), [p for p in args.only.split(",") if p], args.minutes, _say)


if __name__ == "__main__":
    sys.exit(main())

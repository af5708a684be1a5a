"""The commands of `python -m perfmodel` for the development of this package: an entry of `COMMANDS` each."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ooc.console import Command, count
from perfmodel.rows import write_rows

Row = dict[str, Any]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _told(rows: Iterable[Row], line: Callable[[Row], str], out: str | None = None, each: bool = False) -> list[Row]:
    """Rows that are printed as they come, and at the end written to a file; each: after every one, where all take an hour."""

    printed: list[Row] = []
    for row in rows:
        print(line(row), flush=True)
        printed.append(row)
        if out and each:
            write_rows(out, printed)
    if out and not each:
        write_rows(out, printed)
    return printed


# ---- bench


def _bench_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("problems", nargs="*", default=["vgg16"], help="problem sets or .txt files (default vgg16)")
    peers = "torch, on in-memory tensors; naive, the same tiles one step after the other; pinned, so through a staging ring"
    parser.add_argument("--peer", default="", metavar="A,B", help=f"also measure peers: {peers}")
    parser.add_argument("--mib", type=count, default=800, help="MiB of x and y together (default %(default)s)")
    parser.add_argument("--ratio", type=float, default=10, help="tensors over budget (default %(default)s)")
    parser.add_argument("--rounds", type=count, default=7, help="measured rounds (default %(default)s)")
    parser.add_argument("--backward", action="store_true", help="all gradients of each convolution, in one pass over dy")
    parser.add_argument("--busy", action="store_true", help="beside a program that never sleeps on one of the processors")
    parser.add_argument("--dir", help="where to put the files (default: the temporary directory)")
    parser.add_argument("--out", help="write JSON lines with a system header here")


def _bench(args: argparse.Namespace) -> int:
    from perfmodel.bench.cpu import bench, gradients_of, measured_peak, overhead
    from perfmodel.bench.peers import chosen
    from perfmodel.problems.sets import problems

    if args.mib < 1 or args.rounds < 1 or not args.ratio > 0:
        raise ValueError("bench: expected --mib, --rounds and --ratio above 0")
    peers, named = chosen(args.peer), [(name, problems(name)) for name in args.problems]
    python = overhead()
    text = "overhead  lowering {lower_microseconds_per_step:.1f} us, running {run_microseconds_per_step:.1f} us a step"
    print(text.format(**python))
    rows = [python, measured_peak()]
    for name, ops in named:
        some = [gradients_of(op) for op in ops if op.kind == "conv.fprop"] if args.backward else ops
        set_rows = bench(some, args.mib << 20, args.ratio, args.rounds, peers, args.dir, print, args.busy)
        rows += [{"set": name, **r} for r in set_rows]
    if args.out:
        write_rows(args.out, rows)
    return 0


# ---- overhead


def _overhead_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=count, default=400, help="measured calls of each function (default %(default)s)")
    parser.add_argument("--only", default="", help="functions to measure: those whose name holds this text")
    parser.add_argument("--backend", choices=("cpu", "cuda-null"), default="cpu",
                        help="cuda-null: what the host does for each step on a GPU, on one that does nothing")  # fmt: skip
    parser.add_argument("--out", help="write JSON lines with a system header here")


def _overhead(args: argparse.Namespace) -> int:
    from perfmodel.bench.gpu import host
    from perfmodel.bench.overhead import line, overhead

    if args.backend == "cuda-null":
        _told(host.host_work(args.only), host.line, args.out)
    else:
        _told(overhead(args.repeats, args.only), line, args.out)
    return 0


# ---- where


def _where_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("problems", nargs="*", default=["vgg16"], help="problem sets or .txt files (default vgg16)")
    parser.add_argument("--mib", type=count, default=64, help="MiB of a problem's tensors (default %(default)s)")
    parser.add_argument("--dtype", choices=("f32", "bf16", "f16", "f64"), default="f32", help="(default %(default)s)")
    parser.add_argument("--out", help="write JSON lines with a system header here")


def _where(args: argparse.Namespace) -> int:
    from perfmodel.bench.where import line, where
    from perfmodel.problems.sets import problems

    _told(where([op for name in args.problems for op in problems(name)], args.mib << 20, args.dtype), line, args.out)
    return 0


# ---- filters


def _filters_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--side", type=count, default=1024, help="of pictures (default %(default)s)")
    parser.add_argument("--rounds", type=count, default=5, help="measured rounds (default %(default)s)")
    parser.add_argument("--share", type=count, default=0, help="x and y are files, tensors over budget (default: in memory)")
    parser.add_argument("--only", default="", metavar="TEXT", help="problems whose label holds this text")
    parser.add_argument("--dir", help="where to put the files (default: the temporary directory)")
    parser.add_argument("--out", help="write JSON lines with a system header here")


def _filters(args: argparse.Namespace) -> int:
    from perfmodel.bench.filters import filters, line, summary

    print(summary(_told(filters(args.side, args.rounds, args.share, args.only, args.dir), line, args.out, each=True)))
    return 0


# ---- instructions


def _instructions_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--arch", default="90", help="compute capability of the GPU (default %(default)s)")
    parser.add_argument("--out", help="write JSON lines with a system header here")


def _instructions(args: argparse.Namespace) -> int:
    from perfmodel.bench.gpu.instructions import instructions, line

    _told(instructions(args.arch), line, args.out)
    return 0


# ---- loop


def _loop_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--calls", type=count, default=100_000, help="calls to make (default %(default)s)")
    parser.add_argument("--shapes", type=count, default=2000, help="different shapes to go through (default %(default)s)")
    parser.add_argument("--plot", help="draw memory and time over the calls into this file")
    parser.add_argument("--out", help="write JSON lines with a system header here")


def _loop(args: argparse.Namespace) -> int:
    from perfmodel.bench.loop import line, loop, plot

    rows = _told(loop(args.calls, args.shapes), line, args.out)
    if args.plot:
        plot(rows, args.plot)
    return 0


# ---- networks


def _networks_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--network", default="vgg16", help="as `ooc network` names them (default %(default)s)")
    parser.add_argument("--batch", type=count, default=64, help="samples of a step (default %(default)s)")
    parser.add_argument("--side", type=count, default=224, help="side of the pictures (default %(default)s)")
    parser.add_argument("--width", type=float, default=0.25, help="factor on the channels (default %(default)s)")
    parser.add_argument("--share", type=count, default=8, help="activations by budget (default %(default)s)")
    parser.add_argument("--only", nargs="+", default=[], metavar="POLICY", help="policies to measure (default: all that fit)")
    parser.add_argument("--repeats", type=count, default=3, help="measured steps of each (default %(default)s)")
    parser.add_argument("--check", type=count, metavar="N", help="instead: N plans of some networks, predicted and measured")
    parser.add_argument("--calibration", metavar="NAME|FILE", help="of --check (default: the one that is used by itself)")
    parser.add_argument("--out", help="write JSON lines with a system header here")


def _networks(args: argparse.Namespace) -> int:
    from perfmodel.bench.networks import line, measure

    if args.check:
        return _check_networks(args)
    _told(measure(args.network, args.batch, args.side, args.width, args.share, args.only, args.repeats), line, args.out)
    return 0


def _check_networks(args: argparse.Namespace) -> int:
    from perfmodel.bench.network_check import check, line, summary

    rows = _told(check(args.check, args.calibration), line)
    told = summary(rows)
    if args.out:
        about = {"calibration": args.calibration and Path(args.calibration).name}
        write_rows(args.out, [{**about, "summary": str(told), **told._asdict()}, *rows])
    print(told)
    return 0 if told.good else 1


# ---- policies


def _policies_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--network", nargs="+", default=[], help="networks (default: all of the papers)")
    parser.add_argument("--device", nargs="+", default=[], help="shipped calibrations (default: all)")
    parser.add_argument("--out", help="write JSON lines with a system header here")


def _policies(args: argparse.Namespace) -> int:
    from perfmodel.bench.policies import compare, line, summary

    print(summary(_told(compare(args.network, args.device), line, args.out, each=True)))
    return 0


# ---- yardstick


def _yardstick_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="p100", metavar="NAME|FILE", help="a calibration (default %(default)s)")
    parser.add_argument("--out", help="write JSON lines with a system header here")


def _yardstick(args: argparse.Namespace) -> int:
    from perfmodel.bench.yardstick import line, measure

    _told(measure(args.device), line, args.out)
    return 0


# ---- scale


def _scale_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", choices=("simulate", "measure"), help="simulate: 1 to 64 GPUs; measure: processes on this machine"
    )
    parser.add_argument("--device", default="h200", metavar="NAME|FILE", help="of simulate: a calibration (default %(default)s)")
    parser.add_argument("--processes", type=count, nargs="+", default=[1, 2, 4], help="of measure (default %(default)s)")
    parser.add_argument("--repeats", type=count, default=3, help="of measure: runs of each, interleaved (default %(default)s)")
    parser.add_argument("--dir", help="of measure: where to put the files (default: the temporary directory)")
    parser.add_argument("--out", help="write JSON lines with a system header here")


def _scale(args: argparse.Namespace) -> int:
    from perfmodel.bench.scale import line, measure, simulate

    rows = simulate(args.device) if args.what == "simulate" else measure(args.processes, args.repeats, args.dir)
    _told(rows, line, args.out)
    return 0


# ---- figures


def _figures_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", nargs="?", choices=("calls", "networks"), default="calls",
                        help="calls (default): of two papers, call by call; networks: of all papers, whole")  # fmt: skip
    parser.add_argument("--row", default="", metavar="NAME", help="of networks: those of one paper")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    parser.add_argument("--out", help="write JSON lines with a system header here")


def _figures(args: argparse.Namespace) -> int:
    from perfmodel.bench.figures import figures, tables

    if args.what == "networks":
        return _headlines(args)
    micro, networks = figures(_say)
    print(tables(micro, networks, args.markdown))
    if args.out:
        write_rows(args.out, [*micro, *networks])
    return 0


def _headlines(args: argparse.Namespace) -> int:
    from perfmodel.bench.figures import table
    from perfmodel.bench.headlines import HEAD, cells, headlines

    rows = []
    for row in headlines(args.row):
        _say(f"{row['paper']}: {row['setup']}: {row['ours']}; auto {row['auto']}")
        rows.append(row)
    print(table(HEAD, [cells(row) for row in rows], args.markdown))
    if args.out:
        write_rows(args.out, rows)
    return 0


# ---- gpu


def _gpu_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", required=True, help="folder of the results")
    parser.add_argument(
        "--only", default="", help="parts to run, even if complete: first,probe,rows,tests,sanitize,calibrate,peers,bench"
    )
    parser.add_argument("--resume", metavar="FOLDER", help="results of an earlier call, to go on from")
    parser.add_argument("--minutes", type=float, default=9, help="time limit (default %(default)s)")


def _gpu(args: argparse.Namespace) -> int:
    from perfmodel.bench.gpu.run import run_gpu

    return run_gpu(
        Path(args.out), [p for p in args.only.split(",") if p], args.minutes, _say, Path(args.resume) if args.resume else None
    )


COMMANDS: dict[str, Command] = {
    "bench": Command("Measure out of core against in memory and against peers.", _bench_arguments, _bench),
    "figures": Command(
        "Published figures beside what is predicted for their devices.", _figures_arguments, _figures, everyday=False
    ),
    "overhead": Command("What small calls cost beside their operation.", _overhead_arguments, _overhead, everyday=False),
    "where": Command("Where a convolution's time goes on this machine's processors.", _where_arguments, _where, everyday=False),
    "filters": Command(
        "Filters of few and many taps beside SciPy's transforms and PyTorch.", _filters_arguments, _filters, everyday=False
    ),
    "instructions": Command(
        "Machine instructions of our CUDA kernels for each element.", _instructions_arguments, _instructions, everyday=False
    ),
    "networks": Command(
        "Training steps of a network on disk beside the same in memory, ours and PyTorch's.",
        _networks_arguments,
        _networks,
        everyday=False,
    ),
    "policies": Command(
        "auto beside every policy in simulation, on all devices.", _policies_arguments, _policies, everyday=False
    ),
    "yardstick": Command(
        "auto beside an integer program's optimum, in simulation.", _yardstick_arguments, _yardstick, everyday=False
    ),
    "scale": Command(
        "Tasks by many workers: simulated on GPUs, measured in processes here.", _scale_arguments, _scale, everyday=False
    ),
    "loop": Command("Memory and time of a long loop of small calls.", _loop_arguments, _loop, everyday=False),
    "gpu": Command("All that needs a GPU: tests, calibration, benchmark, sanitizer.", _gpu_arguments, _gpu, everyday=False),
}

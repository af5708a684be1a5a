"""The `ooc` command: plan, apply, train, network, demo, doctor, and what perfmodel measures and predicts. Each subcommand is
one entry of a table.

Errors of ooc, of the arguments and of the file system are one line on stderr and exit status 2.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from ooc import __version__
from ooc.api.plan_query import parse_places
from ooc.api.plan_query import plan as make_plan
from ooc.cli import apply, network, train
from ooc.cli.ending import ending_cleanly
from ooc.console import FAILED, Command, count, parser_of, run_program
from ooc.errors import UnsupportedError
from ooc.ir.op import Op
from ooc.planner.basis import PlannedOp, Planning, change, enough_of_disk
from ooc.runtime.target import target, targets
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan
from perfmodel.commands import COMMANDS as MEASURING

PLACES = ", ".join(p.value for p in Place)
SHELLS = ("bash", "zsh")


DESCRIPTION = "Out-of-core convolution: operations on arrays larger than the device."


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line (default: this process's) and return the exit status, see `run_program`."""
    return run_program("ooc", DESCRIPTION, __version__, COMMANDS, argv)


# ---- ooc plan


def _plan_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("descriptor", nargs="+", metavar="DESCRIPTOR",
                        help='what to compute, such as "conv.fprop n=32 c=64 h=224 w=224 k=64 r=3 s=3 pad=1 dtype=f32"; '
                        'stages of a chain are separated by " | "')  # fmt: skip
    budget = 'device memory: bytes, "256 MiB", "5 GB", "80%%" or 0.8; default: OOC_DEVICE_BUDGET of that device, else no limit'
    parser.add_argument("--budget", metavar="B", help=budget)
    parser.add_argument("--device", metavar="NAME|FILE", help=f"{targets()}; default: the one of OOC_BACKEND, else auto")
    parser.add_argument("--tf32", action="store_true", help="f32 convolutions of a GPU may round their factors to TF32")
    parser.add_argument("--calibration", metavar="NAME|FILE", help="a shipped calibration or a JSON file")
    parser.add_argument("--place", action="extend", nargs="+", default=[], metavar="NAME=PLACE",
                        help=f"where operands live, as in x=disk y=disk, after DESCRIPTOR: {PLACES}; default: host")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON, one line for the plan and one for each step")
    parser.add_argument("--steps", type=count, default=0, metavar="N", help="print the first N steps too")


def _plan(args: argparse.Namespace) -> int:
    descriptor, where = " ".join(args.descriptor), target(args.device, args.tf32)

    def planned(work: str | Op, places: Mapping[str, Place]) -> Plan:
        with where:
            return make_plan(work, args.budget, places=places, calibration=args.calibration)

    plan = planned(descriptor, parse_places(args.place))
    print(plan.to_json() if args.json else plan)
    if not args.json:
        _print_changes([PlannedOp(plan.op, dict(plan.places), [plan])], lambda op, places: [planned(op, places)])
    _print_steps(plan, args.steps, args.json)
    return 0


def _print_changes(cases: Sequence[PlannedOp], plan: Planning) -> None:
    """What would change the outcome, as planned."""
    if other := change(cases, plan):
        print(f"with      {other}: {other.seconds:.4g} s")
    if disk := enough_of_disk(cases, plan):
        print(f"disk      {disk}")


def _print_steps(plan: Plan, count: int, as_json: bool) -> None:
    from ooc.schedule.arena import pack_in_sequence
    from ooc.schedule.emit import emit
    from ooc.schedule.link import link

    if not count:
        return
    # Waits look back only: the first steps can be linked without the rest, however many there are.
    layout = pack_in_sequence((*plan.buffers, *plan.spill_buffers))
    for i, step in enumerate(link(islice(emit(plan), count), layout)):
        fields: dict[str, Any] = {"step": i, "lane": step.lane, "kind": step.kind, "what": step.what, "bytes": step.nbytes}
        print(json.dumps({**fields, "after": step.after}) if as_json else f"{i:6} {step}")


# ---- ooc demo


def _demo_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--large", action="store_true", help="VGG16's first block on 3 GB instead, with matplotlib")
    parser.add_argument("--size", metavar="S", help="of --large: side of the image in pixels, or WIDTHxHEIGHT; default 6336")
    parser.add_argument("--budget", metavar="B", help="memory for the computation; default 16 MiB, of --large 256 MiB")
    parser.add_argument("--keep", action="store_true", help="of --large: keep the input and output files")
    parser.add_argument("--dir", metavar="DIR", help="where to put the files; default: the system's temporary directory")
    parser.add_argument("--threads", type=count, metavar="N", help="threads that compute; default: all")
    parser.add_argument("--png", metavar="FILE", help="the picture, default ooc-demo.png: before, after, tiles; of --large "
                        "the timeline, default ooc-demo-timeline.png")  # fmt: skip
    parser.add_argument("--trace", metavar="FILE", help="of --large: write a Chrome/Perfetto trace here")


def _demo(args: argparse.Namespace) -> int:
    where = {"directory": args.dir, "threads": args.threads}
    with ending_cleanly():
        if args.large or args.size or args.keep or args.trace:
            from ooc.cli.demo.run import run_demo

            more = {"keep": args.keep, "png": args.png or "ooc-demo-timeline.png", "trace": args.trace}
            return 0 if run_demo(args.size, args.budget or "256 MiB", **where, **more).ok else FAILED
        from ooc.cli.demo.denoise import run_denoise

        return 0 if run_denoise(args.budget or "16 MiB", **where, png=args.png or "ooc-demo.png").ok else FAILED


# ---- ooc doctor


def _doctor_arguments(parser: argparse.ArgumentParser) -> None:
    """No arguments."""


def _doctor(args: argparse.Namespace) -> int:
    from ooc.cli.doctor import examine, show

    print(show(examine()))
    return 0


# ---- ooc completion


def _completion_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=f"of {', '.join(SHELLS)}; as in: "
                        'eval "$(ooc completion bash)"')  # fmt: skip


def _completion(args: argparse.Namespace) -> int:
    try:
        import shtab
    except ImportError:
        raise UnsupportedError('ooc completion needs shtab; pip install "ooc[completion]"') from None
    print(shtab.complete(parser_of("ooc", DESCRIPTION, __version__, COMMANDS), args.shell))
    return 0


OWN: dict[str, Command] = {
    "plan": Command("Print the plan for an operation: no arrays and no device needed.", _plan_arguments, _plan),
    "apply": Command("Apply a trained network to a tensor in a file.", apply.arguments, apply.run),
    "train": Command("Train a network on volumes or pictures in files.", train.arguments, train.run),
    "network": Command("Plan a whole network, by one policy or by all of them side by side.", network.arguments, network.run),
    "demo": Command(
        "Take the noise off a picture in a file by a trained network, under a small memory budget.", _demo_arguments, _demo
    ),
    "completion": Command("Print what completes commands and options in a shell.", _completion_arguments, _completion),
    "doctor": Command("Tell what was found on this machine, and what to do about what was not.", _doctor_arguments, _doctor),
}
COMMANDS = OWN | {name: command for name, command in MEASURING.items() if command.everyday}

if __name__ == "__main__":
    sys.exit(main())

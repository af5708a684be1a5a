"""The `ooc` command: plan, demo, doctor. Each subcommand is one entry of `COMMANDS`.

Errors of ooc, of the arguments and of the file system are one line on stderr and exit status 2.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, NoReturn

from ooc import __version__
from ooc.device import BACKENDS
from ooc.errors import OocError, ShapeError
from ooc.plan import Place, Plan
from ooc.planning import plan as make_plan
from perfmodel.model import DEVICES

FAILED, USAGE, INTERRUPTED, BROKEN_PIPE = 1, 2, 130, 141
PLACES = ", ".join(p.value for p in Place)


class _Usage(Exception):
    """The arguments do not make sense."""


class _Parser(argparse.ArgumentParser):
    """Reports mistakes by an exception, so that `main` prints every error the same way."""

    def error(self, message: str) -> NoReturn:
        raise _Usage(f"{message}; try: {self.prog} --help")


class Command(NamedTuple):
    """A subcommand: one line of help, its arguments, and what it does (returns the exit status)."""

    help: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line (default: this process's) and return the exit status.

    0: done, 1: the demo found a wrong result, 2: an error, told in one line, 130: interrupted.
    """
    try:
        status = _run(argv)
        sys.stdout.flush()  # a closed pipe shows itself here, not at exit
        return status
    except BrokenPipeError:
        # What reads our output has enough. Nothing more can be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return _complain("interrupted", INTERRUPTED)
    except (OocError, _Usage) as error:
        return _complain(str(error), USAGE)
    except OSError as error:
        return _complain(f"{error.filename}: {error.strerror}" if error.filename else str(error), USAGE)


def _run(argv: Sequence[str] | None) -> int:
    args = _parser().parse_args(argv)
    return COMMANDS[args.command].run(args)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="ooc", description="Out-of-core convolution: operations on arrays larger than the device.")
    parser.add_argument("--version", action="version", version=f"ooc {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    for name, command in COMMANDS.items():
        command.arguments(commands.add_parser(name, help=command.help, description=command.help))
    return parser


def _complain(message: str, status: int) -> int:
    with contextlib.suppress(OSError):  # stderr may be closed too
        print("ooc: " + " ".join(message.split()), file=sys.stderr)
    return status


# ---- ooc plan


def _plan_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("descriptor", nargs="+", metavar="DESCRIPTOR",
                        help='what to compute, such as "conv.fprop n=32 c=64 h=224 w=224 k=64 r=3 s=3 pad=1 dtype=f32"; '
                        'stages of a chain are separated by " | "')  # fmt: skip
    parser.add_argument("--budget", metavar="B", help='device memory: bytes, "256 MiB", "5 GB", "80%%"; default: no limit')
    parser.add_argument("--device", metavar="NAME", help=f"{_devices()}; default: the one of OOC_BACKEND, else auto")
    parser.add_argument("--calibration", metavar="NAME|FILE", help="a shipped calibration or a JSON file")
    parser.add_argument("--place", action="extend", nargs="+", default=[], metavar="NAME=PLACE",
                        help=f"where operands live, as in x=disk y=disk, after DESCRIPTOR: {PLACES}; default: host")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON, one line for the plan and one for each step")
    parser.add_argument("--steps", type=_count, default=0, metavar="N", help="print the first N steps too")


def _plan(args: argparse.Namespace) -> int:
    device, calibration = _device(args.device, args.calibration)
    descriptor = " ".join(args.descriptor)
    plan = make_plan(descriptor, args.budget, device=device, places=_places(args.place), calibration=calibration)
    print(plan.to_json() if args.json else plan)
    _print_steps(plan, args.steps, args.json)
    return 0


def _device(name: str | None, calibration: str | None) -> tuple[str | None, str | None]:
    """Backend and calibration: the name of a shipped calibration stands for a device that is not here."""
    if name is None or name.split(":")[0] in BACKENDS:
        return name, calibration
    if name in _calibrations():
        return "null", calibration or name
    raise ShapeError(f"device {name!r}: expected one of {_devices()}")


def _devices() -> str:
    return f"{', '.join(BACKENDS)}, or a shipped calibration: {', '.join(_calibrations())}"


def _calibrations() -> list[str]:
    return sorted(p.stem for p in DEVICES.glob("*.json"))


def _places(pairs: Sequence[str]) -> dict[str, Place]:
    places = {}
    for pair in pairs:
        name, _, where = pair.partition("=")
        try:
            places[name] = Place(where)
        except ValueError:
            raise ShapeError(f"--place {pair}: expected NAME=PLACE with one of {PLACES}") from None
    return places


def _print_steps(plan: Plan, count: int, as_json: bool) -> None:
    from ooc.arena import pack_in_sequence
    from ooc.steps import emit, link

    if not count:
        return
    # Waits look back only: the first steps can be linked without the rest, however many there are.
    layout = pack_in_sequence((*plan.buffers, *plan.spill_buffers))
    for i, step in enumerate(link(islice(emit(plan), count), layout)):
        fields: dict[str, Any] = {"step": i, "lane": step.lane, "kind": step.kind, "what": step.what, "bytes": step.nbytes}
        print(json.dumps({**fields, "after": step.after}) if as_json else f"{i:6} {step}")


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}")
    return int(text)


# ---- ooc demo


def _demo_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", metavar="S", help="side of the image in pixels, or WIDTHxHEIGHT; default 6336: 3 GB of files")
    parser.add_argument("--budget", default="256 MiB", metavar="B", help="memory for the computation; default 256 MiB")
    parser.add_argument("--keep", action="store_true", help="keep the input and output files")
    parser.add_argument("--dir", metavar="DIR", help="where to put the files; default: the system's temporary directory")
    parser.add_argument("--threads", type=_count, metavar="N", help="threads that compute; default: all")
    parser.add_argument(
        "--png", default="ooc-demo-timeline.png", metavar="FILE", help="picture of the timeline; default %(default)s"
    )
    parser.add_argument("--trace", metavar="FILE", help="write a Chrome/Perfetto trace here")


def _demo(args: argparse.Namespace) -> int:
    from ooc.demo import run_demo

    options = {"keep": args.keep, "directory": args.dir, "threads": args.threads, "png": args.png, "trace": args.trace}
    with _ending_cleanly():
        return 0 if run_demo(args.size, args.budget, **options).ok else FAILED


@contextlib.contextmanager
def _ending_cleanly() -> Iterator[None]:
    """`kill` and a closed terminal act as Ctrl-C does, so that gigabytes of files never stay behind."""
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    if threading.current_thread() is not threading.main_thread():
        numbers = []  # only the main thread may ask for signals
    before = [(number, signal.signal(number, _interrupt)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


# ---- ooc doctor


def _doctor_arguments(parser: argparse.ArgumentParser) -> None:
    """No arguments."""


def _doctor(args: argparse.Namespace) -> int:
    from ooc.doctor import examine, show

    print(show(examine()))
    return 0


COMMANDS: dict[str, Command] = {
    "plan": Command("Print the plan for an operation: no arrays and no device needed.", _plan_arguments, _plan),
    "demo": Command("Run VGG16's first block on an image of several GB under a small memory budget.", _demo_arguments, _demo),
    "doctor": Command("Tell what was found on this machine, and what to do about what was not.", _doctor_arguments, _doctor),
}

if __name__ == "__main__":
    sys.exit(main())

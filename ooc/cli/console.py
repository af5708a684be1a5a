"""What the programs of this package share: subcommands as entries of a table, every error as one line, and exit statuses."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, NoReturn

from ooc.errors import OocError

FAILED, USAGE, INTERRUPTED, BROKEN_PIPE = 1, 2, 130, 141
MOST_MESSAGE = 4000  # characters of an error that are shown


class Command(NamedTuple):
    """A subcommand: one line of help, its arguments, and what it does (returns the exit status).

    everyday: of use beyond the development of this package.
    """

    help: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    everyday: bool = True


class _Usage(Exception):
    """The arguments do not make sense."""


class _Parser(argparse.ArgumentParser):
    """Reports mistakes by an exception, so that every error is printed the same way."""

    def error(self, message: str) -> NoReturn:
        raise _Usage(f"{message}; try: {self.prog} --help")


def run_program(name: str, description: str, version: str, commands: Mapping[str, Command], argv: Sequence[str] | None) -> int:
    """Run a command line (None: this process's) and return the exit status.

    0: done, 1: what was checked is wrong, 2: an error, told in one line, 130: interrupted, 141: nobody reads the output.
    """
    try:
        args = _parser(name, description, version, commands).parse_args(argv)
        status = commands[args.command].run(args)
        sys.stdout.flush()  # a closed pipe shows itself here, not at exit
        return status
    except BrokenPipeError:
        # What reads our output has enough. Nothing more can be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return _complain(name, "interrupted", INTERRUPTED)
    except OSError as error:
        text = f"{error.filename}: {error.strerror}" if error.filename and not isinstance(error, OocError) else str(error)
        return _complain(name, text, USAGE)
    except (OocError, _Usage, ValueError) as error:
        return _complain(name, str(error), USAGE)


def printable(text: str) -> str:
    """A text as standard output takes it: names of files are bytes, and not in every encoding."""
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def count(text: str) -> int:
    """A whole number, as the type of an argument."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}")
    return int(text)


def _parser(name: str, description: str, version: str, commands: Mapping[str, Command]) -> argparse.ArgumentParser:
    parser = _Parser(prog=name, description=description)
    parser.add_argument("--version", action="version", version=f"{name} {version}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    for word, command in commands.items():
        command.arguments(subparsers.add_parser(word, help=command.help, description=command.help))
    return parser


def _complain(name: str, message: str, status: int) -> int:
    """One line on stderr, without characters that would steer a terminal."""
    line = " ".join(message.split())[:MOST_MESSAGE]
    with contextlib.suppress(OSError):  # stderr may be closed too
        print(f"{name}: " + "".join(c if c.isprintable() else "?" for c in line), file=sys.stderr)
    return status

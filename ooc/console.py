"""What the programs of this package share: subcommands as entries of a table, every error as one line, and exit statuses."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

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


STATUSES = """\
exit status: 0 done; 1 what was checked is wrong; 2 an error, told in one line on stderr; 130 interrupted; 141 nobody reads the
output"""


class _Parser(argparse.ArgumentParser):
    """Reports mistakes by an exception, so that every error is printed the same way. options: its long ones of more than a
    letter. parsers: those of its commands. command: the one that is called."""

    def __init__(self, **kwargs: Any) -> None:
        self.options: list[str] = []
        self.parsers: dict[str, _Parser] = {}
        self.command = ""
        super().__init__(**{"epilog": STATUSES, **kwargs})

    def add_argument(self, *names: Any, **kwargs: Any) -> argparse.Action:
        self.options += [name for name in names if name.startswith("--") and len(name) > 3]
        return super().add_argument(*names, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise _Usage(f"{message}{self._meant(message)}; try: {self.prog} --help")

    def _meant(self, message: str) -> str:
        """What a word that is none may have been meant to be."""
        if wrong := re.search(r"invalid choice: '([^']*)'", message):
            word, known = wrong[1], list(self.parsers) or re.findall(r"'?([^\s',()]+)'?", message.partition("choose from")[2])
        elif wrong := re.search(r"unrecognized arguments:.*?(--[^\s=]+)", message):
            parser = self.parsers.get(self.command, self)
            word, known = wrong[1], [option for option in parser.options if option != wrong[1]]
        else:
            return ""
        near = difflib.get_close_matches(word, known, 1)
        return f"; did you mean {near[0]}?" if near else ""


def run_program(name: str, description: str, version: str, commands: Mapping[str, Command], argv: Sequence[str] | None) -> int:
    """Run a command line (None: this process's) and return the exit status.

    0: done, 1: what was checked is wrong, 2: an error, told in one line, 130: interrupted, 141: nobody reads the output.
    """
    _open_standard_streams()
    options: list[str] = []
    try:
        parser = parser_of(name, description, version, commands)
        parser.command = next((word for word in (sys.argv[1:] if argv is None else argv) if word in parser.parsers), "")
        args = parser.parse_args(argv)
        options = parser.parsers[args.command].options
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
        told = f"{error.filename}: {error.strerror}" if error.filename and not isinstance(error, OocError) else error.strerror
        text = str(told or error)  # which begins with a number that nobody knows
        return _complain(name, spoken(text, options), USAGE)
    except (OocError, _Usage, ValueError) as error:
        return _complain(name, spoken(str(error), options), USAGE)


def spoken(message: str, options: Sequence[str]) -> str:
    """A message of the library in the words of a command line: keywords that it advises are written as options of the command;
    what was given stays as it is.

    >>> spoken("y.npy: exists already; pass overwrite=True to replace it", ["--overwrite"])
    'y.npy: exists already; pass --overwrite to replace it'
    >>> spoken("batch=0: raise budget= above that", ["--budget", "--batch"])
    'batch=0: raise --budget above that'
    """
    words = {option[2:].replace("-", "_"): option for option in options}
    if not words:
        return message
    pattern = rf"(?<![\w-])({'|'.join(words)})=(?:True\b|(?=[\s,;.:)]|$))"
    return re.sub(pattern, lambda match: words[match[1]], message)


def _open_standard_streams() -> None:
    """Streams that whoever started us has closed lead nowhere: else Python has none to print to, and the next file that is opened
    would be what libraries print into."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def printable(text: str) -> str:
    """A text as standard output takes it: names of files are bytes, and not in every encoding."""
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def count(text: str) -> int:
    """A whole number, as the type of an argument."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}")
    return int(text)


def parser_of(name: str, description: str, version: str, commands: Mapping[str, Command]) -> _Parser:
    """A program's parser, with those of its commands."""
    parser = _Parser(prog=name, description=description)
    parser.add_argument("--version", action="version", version=f"{name} {version}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    for word, command in commands.items():
        one = subparsers.add_parser(word, help=command.help, description=command.help)
        command.arguments(one)
        parser.parsers[word] = one
    return parser


def _complain(name: str, message: str, status: int) -> int:
    """One line on stderr, without characters that would steer a terminal."""
    line = " ".join(message.split())[:MOST_MESSAGE]
    with contextlib.suppress(OSError):  # stderr may be closed too
        print(f"{name}: " + "".join(c if c.isprintable() else "?" for c in line), file=sys.stderr)
    return status

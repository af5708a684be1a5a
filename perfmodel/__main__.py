"""`python -m perfmodel COMMAND`: measure this machine, measure the library on it, predict for others."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ooc import __version__
from ooc.console import run_program
from perfmodel.commands import COMMANDS


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and run one command; returns the exit status, see `run_program`."""
    return run_program("perfmodel", "The performance model of ooc.", __version__, COMMANDS, argv)


if __name__ == "__main__":
    sys.exit(main())

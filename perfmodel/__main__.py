"""`python -m perfmodel calibrate`: measure this machine and keep the result as JSON."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def main(argv: list[str] | None = None) -> int:
    """Parse the command line and run one command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="perfmodel", description="The performance model of ooc.")
    commands = parser.add_subparsers(dest="command", required=True)
    measure = commands.add_parser("calibrate", help="measure this machine's processors")
    measure.add_argument("--out", default="cpu.json", help="file to write (default %(default)s)")
    measure.add_argument("--threads", type=int, help="threads that compute (default: all)")
    measure.add_argument("--dir", help="where to measure the disk (default: the temporary directory)")
    args = parser.parse_args(argv)
    from perfmodel.calibrate import calibrate_cpu, write_calibration

    found = calibrate_cpu(args.threads, args.dir, lambda text: print(text, file=sys.stderr, flush=True))
    write_calibration(found, Path(args.out))
    worst = max(found["fit_error"].items(), key=lambda item: item[1])
    print(f"{args.out}: {found['name']}; worst median fit error {worst[1]:.0%} ({worst[0]})")
    return 0


if __name__ == "__main__":
    sys.exit(main())

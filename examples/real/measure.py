"""Run a command and add what it took to results.jsonl: seconds, and the most memory that it held.

python examples/real/measure.py "HED on the relief" -- python -m ooc apply ...     (--to FILE; default: results.jsonl beside this)
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from running import commit, machine

RESULTS = Path(__file__).parent / "results.jsonl"


def main(arguments: list[str]) -> int:
    """Run it; its exit status."""
    parser = argparse.ArgumentParser(description="Seconds and peak memory of a command.")
    parser.add_argument("what", help="a name for it")
    parser.add_argument("--to", type=Path, default=RESULTS, metavar="FILE", help="a line of JSON is added; default: beside this")
    parser.add_argument("command", nargs="+", help="behind --")
    asked = parser.parse_args(arguments)
    begin, version = time.time(), commit()
    child = subprocess.Popen(asked.command)
    _, status, used = os.wait4(child.pid, 0)
    told = {
        "what": asked.what,
        "command": " ".join(Path(word).name if word.startswith("/") else word for word in asked.command),
        "machine": machine(),
        "commit": version,
        "status": os.waitstatus_to_exitcode(status),
        "seconds": round(time.time() - begin, 1),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "peak_resident_bytes": used.ru_maxrss * 1024,
    }
    print(json.dumps(told))
    if told["status"] == 0:
        with asked.to.open("a") as file:
            file.write(json.dumps(told) + "\n")
    return int(str(told["status"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What ONNX Runtime takes of HED at growing crops of the relief, and what it would take of all of it.

python examples/real/memory.py [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from cases import hed, stored
from networks import DATA
from running import by_runtime, commit, machine

SIDES = ((337, 675), (675, 1350), (955, 1909), (1350, 2700))  # crops of the relief's own form: 1/256 to 1/16 of it


def main(arguments: list[str]) -> int:
    """Measure, fit a line, tell; the exit status."""
    parser = argparse.ArgumentParser(description="Memory of ONNX Runtime against the size of a picture.")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of fetch.py")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append a line of JSON")
    asked = parser.parse_args(arguments)
    relief = stored(asked.data / "relief.jpg")
    pixels, grown, seconds = [], [], []
    for height, width in SIDES:
        ran = by_runtime(asked.data / "hed.onnx", hed(relief[:height, :width]), 2, optimized=True)
        pixels.append(height * width)
        grown.append(ran.resident - ran.before)
        seconds.append(round(ran.seconds, 2))
        print(f"{height}x{width}: {grown[-1] / 2**20:.0f} MiB, {seconds[-1]} s", flush=True)
    slope, fixed = np.polyfit(pixels, grown, 1)
    whole = relief.shape[0] * relief.shape[1]
    needs = int(slope * whole + fixed)
    print(
        f"{slope:.0f} bytes a pixel and {fixed / 2**20:.0f} MiB: {needs / 2**30:.1f} GiB for {relief.shape[0]}x{relief.shape[1]}"
    )
    if asked.json:
        told = {
            "what": "HED by ONNX Runtime, memory",
            "machine": machine(),
            "commit": commit(),
            "pixels": pixels,
            "grown_bytes": grown,
            "seconds": seconds,
            "bytes_per_pixel": round(slope),
            "whole_bytes": needs,
        }
        with asked.json.open("a") as file:
            file.write(json.dumps(told) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

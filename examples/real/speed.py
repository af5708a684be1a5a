"""Seconds of the real networks by ooc, ONNX Runtime and PyTorch on sizes that fit them all, in turn, medians.

python examples/real/speed.py [NAME ...] [--rounds N] [--json FILE]     (after fetch.py; PyTorch and MONAI as far as installed)
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from cases import CASES, Array
from networks import DATA
from running import commit, machine

import ooc

SIZES = {"hed": (512, 768), "topaz2d": (512, 768), "esrgan": (192, 256), "topaz3d": (96, 96, 96), "ppocr": (512, 768)}
SHARE = 8  # the budget is such a part of the peak without one
WINDOW, OVERLAP = 64, 0.25  # of MONAI's sliding window, in 3-D
Run = Callable[[], Array]


def sized(name: str) -> Array:
    """A tensor as the network takes it, repeated to the size."""
    x = CASES[name](DATA)[0].x
    size = SIZES[name]
    times = [-(-s // e) for s, e in zip(size, x.shape[2:], strict=True)]
    return np.ascontiguousarray(np.tile(x, (1, 1, *times))[(..., *(slice(s) for s in size))])


@contextlib.contextmanager
def contestants(name: str, x: Array, threads: int) -> Iterator[dict[str, Run]]:
    """Who computes it, each with all that can be done before."""
    model = DATA / f"{name}.onnx"
    graph = ooc.onnx.load(model, input_shape=x.shape)
    with contextlib.ExitStack() as stack:
        free = graph.plan(batch=1, train=False, device="cpu")
        tight = graph.plan(batch=1, train=False, device="cpu", budget=free.peaks["device"] // SHARE)
        one, other = (stack.enter_context(plan.session()) for plan in (free, tight))
        y = one.forward(x).copy()
        found: dict[str, Run] = {
            "ooc": lambda: one.forward(x, y),
            f"ooc, 1/{SHARE} of its memory": lambda: other.forward(x, y),
            "ONNX Runtime": by_runtime(model, x, threads),
        }
        with contextlib.suppress(ImportError):
            found["PyTorch"] = by_torch(model, x, threads)
            if x.ndim == 5:
                found["MONAI's window"] = by_window(model, x, threads)
        yield found


def by_runtime(model: Path, x: Array, threads: int) -> Run:
    """ONNX Runtime, as it comes."""
    import onnxruntime  # type: ignore[import-untyped]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {session.get_inputs()[0].name: x})[0]  # type: ignore[no-any-return]


def by_torch(model: Path, x: Array, threads: int) -> Run:
    """PyTorch, node by node."""
    import torch
    from as_torch import OfFile

    torch.set_num_threads(threads)
    module, given = OfFile(model).eval(), torch.from_numpy(x)

    def run() -> Array:
        with torch.inference_mode():
            found: Array = module(given).numpy()
        return found

    return run


def by_window(model: Path, x: Array, threads: int) -> Run:
    """MONAI's sliding window over PyTorch: another result, with seams."""
    import torch
    from as_torch import OfFile
    from monai.inferers import sliding_window_inference  # type: ignore[import-not-found]

    module, given = OfFile(model).eval(), torch.from_numpy(x)

    def run() -> Array:
        with torch.inference_mode():
            found: Array = sliding_window_inference(given, WINDOW, 1, module, OVERLAP).numpy()
        return found

    return run


def timed(name: str, rounds: int, threads: int) -> list[dict[str, Any]]:
    """Everybody's seconds and distance from ONNX Runtime, told as they come."""
    x = sized(name)
    rows = []
    with contestants(name, x, threads) as runs:
        wanted = runs["ONNX Runtime"]()
        largest = np.abs(wanted).max()
        off = {who: float(np.abs(run() - wanted).max() / largest) for who, run in runs.items()}
        taken: dict[str, list[float]] = {who: [] for who in runs}
        for _ in range(rounds):
            for who, run in runs.items():
                begin = time.perf_counter()
                run()
                taken[who].append(time.perf_counter() - begin)
    base = statistics.median(taken["ONNX Runtime"])
    for who, seconds in taken.items():
        middle = statistics.median(seconds)
        rows.append({
            "what": "speed", "network": name, "shape": list(x.shape), "who": who, "seconds": round(middle, 4),
            "fastest": round(min(seconds), 4), "rounds": rounds, "threads": threads, "of_runtime": round(middle / base, 3),
            "difference": off[who], "machine": machine(), "commit": commit(),
        })  # fmt: skip
        print(f"{name:8} {'x'.join(map(str, x.shape)):15} {who:24} {middle:7.3f} s  {middle / base:5.2f} x ONNX Runtime  "
              f"off {off[who]:.1e}", flush=True)  # fmt: skip
    return rows


def main(arguments: list[str]) -> int:
    """Time what was asked for; the exit status."""
    parser = argparse.ArgumentParser(description="Seconds of real networks by ooc and by others.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SIZES)}; default: all")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE", help="append a line of JSON per contestant")
    asked = parser.parse_args(arguments)
    rows = [row for name in asked.names or SIZES for row in timed(name, asked.rounds, asked.threads)]
    if asked.json:
        with asked.json.open("a") as file:
            file.writelines(json.dumps(told) + "\n" for told in rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""One op in memory again and again, for somebody who watches: `python -m perfmodel.bench.again DESCRIPTOR SECONDS`.

Says that it is ready, waits for a line, and says at its end: median seconds of a run, processors used, the kernel.
"""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np
from numpy.random import default_rng

import ooc
from ooc.ir.op import numpy_dtype
from ooc.ops.descriptor import parse
from ooc.runtime.engine import execute


def main(descriptor: str, seconds: float) -> None:
    op, numbers = parse(descriptor), default_rng(0)
    arrays = {o.name: numbers.standard_normal(o.shape, np.float32).astype(numpy_dtype(o.dtype)) for o in op.inputs}
    outs = {o.name: np.zeros(o.shape, numpy_dtype(o.dtype)) for o in op.outputs}
    for _ in range(2):
        execute(op, arrays, outs)
    print("ready", flush=True)
    sys.stdin.readline()
    runs, begin, busy = list[float](), time.perf_counter(), time.process_time()
    while time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        execute(op, arrays, outs)
        runs.append(time.perf_counter() - start)
    used = (time.process_time() - busy) / (time.perf_counter() - begin)
    report = ooc.last_report()
    assert report is not None
    print(statistics.median(runs), used, " ".join(plan.kernel for plan in report.plans))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))

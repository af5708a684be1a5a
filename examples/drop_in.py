"""A program written for CuPy 13's cudnn module, on arrays that are larger than the budget.

Before:  import cupy as xp;   from cupy import cudnn
After:   import numpy as xp;  import ooc.cudnn as cudnn      (or CuPy's arrays, or files: anything that ooc takes)

Nothing else changes. A program that cannot be edited is started with `python -m ooc.run program.py`.
"""

from __future__ import annotations

import numpy as xp

import ooc
import ooc.cudnn as cudnn
from ooc.libcudnn import CUDNN_ACTIVATION_RELU, CUDNN_POOLING_MAX


def main() -> None:
    rng = xp.random.default_rng(0)
    x = rng.standard_normal((4, 16, 256, 256), xp.float32)
    w = rng.standard_normal((32, 16, 3, 3), xp.float32)
    b = rng.standard_normal(32, xp.float32)
    y = xp.empty((4, 32, 256, 256), xp.float32)
    pad, one = (1, 1), (1, 1)

    cudnn.convolution_forward(x, w, b, y, pad, one, one, 1, auto_tune=False, tensor_core="auto")
    act = cudnn.activation_forward(y, CUDNN_ACTIVATION_RELU)
    z = xp.empty((4, 32, 128, 128), xp.float32)
    cudnn.pooling_forward(act, z, (2, 2), (2, 2), (0, 0), CUDNN_POOLING_MAX)
    report = ooc.last_report()
    print(f"three calls: {z.shape}; the last one held {report.peak_bytes / 2**20:.1f} MiB" if report else z.shape)

    # The same in one pass, which CuPy never had: neither y nor the activation's result exists as a whole.
    fused = xp.empty_like(z)
    cudnn.convolution_bias_activation_pooling_forward(
        x, w, b, None, fused, pad, one, one, 1, CUDNN_ACTIVATION_RELU, 0.0, (2, 2), (2, 2), (0, 0), CUDNN_POOLING_MAX
    )
    print(f"one call: differs by at most {float(abs(fused - z).max()):.1e}")


if __name__ == "__main__":
    with ooc.device(budget="8 MiB"):
        main()

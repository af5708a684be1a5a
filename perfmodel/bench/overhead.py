"""What a small call costs beside its operation: every function of `ooc.cudnn` and of `ooc`, on arrays of a few KiB.

The operation is what the backend's compute steps take, by the call's own report; the rest of the call is above it. Calls
are repeated, so that plans and steps are remembered, as in a training loop. Medians are taken over rounds of calls, of all
functions in turn; the round with the least stands for all, since what else a machine does only adds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.random import default_rng

import ooc
import ooc.cudnn as cudnn
import ooc.libcudnn as lib

MIB = 1 << 20
BUDGETS: dict[str, int | None] = {"no_budget": None, "1_MiB": MIB}
ROUNDS = 10


def overhead(repeats: int = 400, only: str = "") -> Iterator[dict[str, Any]]:
    """Rows of results, one per function: median microseconds of a call, of its compute steps, and of what is above."""
    work = {name: call for name, call in calls().items() if only in name}
    devices = {label: ooc.device("cpu", limit) for label, limit in BUDGETS.items()}
    rounds: dict[tuple[str, str], list[dict[str, float]]] = {}
    for _ in range(ROUNDS + 1):
        for name, call in work.items():
            for label, device in devices.items():
                rounds.setdefault((name, label), []).append(_round(call, device, max(1, repeats // ROUNDS)))
    for name in work:
        least = {label: min(rounds[name, label][1:], key=itemgetter("above")) for label in devices}  # the first one warmed up
        yield {"function": name, "repeats": repeats, "microseconds": least}


def line(row: dict[str, Any]) -> str:
    """A row as a line of text."""
    columns = (
        f"{label} {t['total']:6.0f} us, kernel {t['kernel']:5.0f}, above {t['above']:5.0f}"
        for label, t in row["microseconds"].items()
    )
    return f"{row['function']:62} {'   '.join(columns)}"


def _round(work: Callable[[], Any], device: ooc.Device, repeats: int) -> dict[str, float]:
    totals, kernels = [], []
    with device:
        for _ in range(repeats):
            begin = time.perf_counter()
            work()
            totals.append(time.perf_counter() - begin)
            report = ooc.last_report()
            assert report is not None
            kernels.append(report.lane_seconds["compute"])
    above = [t - k for t, k in zip(totals, kernels, strict=True)]
    times = {"total": totals, "kernel": kernels, "above": above}
    return {name: round(statistics.median(seconds) * 1e6, 1) for name, seconds in times.items()}


def calls() -> dict[str, Callable[[], Any]]:
    """The functions, each ready to be called with arrays of its own."""
    return {**_drop_in(), **_own()}


def _arrays() -> dict[str, Any]:
    """Random arrays: x, filters, what a padded 3 x 3 convolution makes of x, that pooled, values per channel."""
    numbers = default_rng(0)
    shapes = {
        "x": (1, 3, 8, 8), "w": (4, 3, 3, 3), "b": (4,), "y": (1, 4, 8, 8), "gy": (1, 4, 8, 8), "r": (1, 4, 8, 8),
        "gx": (1, 3, 8, 8), "gw": (4, 3, 3, 3), "gb": (4,), "z": (1, 4, 4, 4), "px": (1, 3, 4, 4), "gpx": (1, 3, 4, 4),
    }  # fmt: skip
    arrays: dict[str, Any] = {n: numbers.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    statistics_of_x = {n: np.ones((1, 3, 1, 1), np.float32) for n in ("scale", "shift", "mean", "var")}
    return arrays | statistics_of_x | {"labels": np.zeros((1, 8, 8), np.int64)}


def _drop_in() -> dict[str, Callable[[], Any]]:
    a = _arrays()
    x, w, b, y, gy, r, gx, gw, gb, z = (a[n] for n in ("x", "w", "b", "y", "gy", "r", "gx", "gw", "gb", "z"))
    px, gpx, scale, shift, mean, var = (a[n] for n in ("px", "gpx", "scale", "shift", "mean", "var"))
    conv, window = ((1, 1), (1, 1), (1, 1), 1), ((2, 2), (2, 2), (0, 0))
    plain: dict[str, Any] = {"auto_tune": False, "tensor_core": "auto"}
    exact: dict[str, Any] = {"deterministic": False, **plain}
    relu, largest, soft = lib.CUDNN_ACTIVATION_RELU, lib.CUDNN_POOLING_MAX, lib.CUDNN_SOFTMAX_ACCURATE
    norm = (1e-5, True, lib.CUDNN_BATCHNORM_SPATIAL)
    train = (1e-5, 0.9, True, lib.CUDNN_BATCHNORM_SPATIAL, False)
    functions: dict[str, Callable[[], Any]] = {
        "convolution_forward": lambda: cudnn.convolution_forward(x, w, None, y, *conv, **plain),
        "convolution_forward with b": lambda: cudnn.convolution_forward(x, w, b, y, *conv, **plain),
        "convolution_backward_data": lambda: cudnn.convolution_backward_data(w, gy, None, gx, *conv, **exact),
        "convolution_backward_filter": lambda: cudnn.convolution_backward_filter(x, gy, gw, *conv, **exact),
        "pooling_forward": lambda: cudnn.pooling_forward(x, px, *window, largest),
        "pooling_backward": lambda: cudnn.pooling_backward(x, px, gpx, *window, largest),
        "activation_forward": lambda: cudnn.activation_forward(x, relu),
        "activation_backward": lambda: cudnn.activation_backward(x, x, gx, relu),
        "softmax_forward": lambda: cudnn.softmax_forward(x, 1, soft),
        "softmax_backward": lambda: cudnn.softmax_backward(x, gx, 1, soft),
        "batch_normalization_forward_training": lambda: cudnn.batch_normalization_forward_training(
            x, scale, shift, mean, var, None, None, *train),
        "batch_normalization_forward_inference": lambda: cudnn.batch_normalization_forward_inference(
            x, scale, shift, mean, var, *norm),
        "batch_normalization_backward": lambda: cudnn.batch_normalization_backward(x, scale, gx, mean, var, *norm, False),
        "add_tensor": _add_tensor(r, y),
        "convolution_bias_activation_forward": lambda: cudnn.convolution_bias_activation_forward(x, w, b, y, *conv, relu),
        "convolution_bias_activation_forward with z": lambda: cudnn.convolution_bias_activation_forward(
            x, w, b, y, *conv, relu, z=r),
        "convolution_bias_activation_pooling_forward": lambda: cudnn.convolution_bias_activation_pooling_forward(
            x, w, b, None, z, *conv, relu, 0.0, *window, largest),
        "convolution_bias_activation_pooling_forward with y": lambda: cudnn.convolution_bias_activation_pooling_forward(
            x, w, b, y, z, *conv, relu, 0.0, *window, largest),
        "deconvolution_bias_activation_forward": lambda: cudnn.deconvolution_bias_activation_forward(
            w, gy, a["shift"].reshape(-1), gx, *conv, relu),
        "convolution_backward_data_filter_bias": lambda: cudnn.convolution_backward_data_filter_bias(
            x, w, gy, gx, gw, gb, *conv),
        "activation_convolution_backward_data_filter_bias": lambda: cudnn.activation_convolution_backward_data_filter_bias(
            x, w, r, gy, gx, gw, gb, *conv, relu),
        "pooling_activation_convolution_backward_data_filter_bias": lambda: (
            cudnn.pooling_activation_convolution_backward_data_filter_bias(
                x, w, r, z, gx, gw, gb, *conv, relu, 0.0, *window, largest)),
    }  # fmt: skip
    return {f"ooc.cudnn.{name}": work for name, work in functions.items()}


def _add_tensor(source: Any, target: Any) -> Callable[[], Any]:
    """alpha * source + beta * target into target, by number and address, as cuDNN takes it."""
    handle, tensor = lib.create(), cudnn.create_tensor_descriptor(source)
    factors = np.array([0.5, 0.25], np.float32)
    at = factors.ctypes.data

    def work(held: Any = (factors, tensor)) -> None:
        cudnn.add_tensor(handle, at, tensor.value, source.ctypes.data, at + 4, tensor.value, target.ctypes.data)

    return work


def _own() -> dict[str, Callable[[], Any]]:
    a = _arrays()
    x, w, b, y, gy, r, gx = (a[n] for n in ("x", "w", "b", "y", "gy", "r", "gx"))
    statistic = {n: a[n].reshape(-1).astype(np.float64) for n in ("scale", "shift", "mean", "var")}
    scale, shift, mean, var = statistic.values()
    layers = (ooc.Conv(w, b, padding=1), ooc.Activation("relu"), ooc.Pool("max", 2))
    functions: dict[str, Callable[[], Any]] = {
        "conv": lambda: ooc.conv(x, w, b, padding=1),
        "conv with beta": lambda: ooc.conv(x, w, b, padding=1, alpha=0.5, beta=0.5, out=y),
        "conv with pool": lambda: ooc.conv(x, w, b, padding=1, activation="relu", pool=2),
        "conv with residual": lambda: ooc.conv(x, w, b, padding=1, activation="relu", residual=r),
        "chain": lambda: ooc.chain(x, *layers),
        "conv_transpose": lambda: ooc.conv_transpose(gy, w, padding=1),
        "linear": lambda: ooc.linear(x.reshape(3, 64), a["y"].reshape(4, 64)),
        "max_pool": lambda: ooc.max_pool(x, 2),
        "avg_pool": lambda: ooc.avg_pool(x, 2),
        "global_avg_pool": lambda: ooc.global_avg_pool(x),
        "activation": lambda: ooc.activation(x, "relu"),
        "softmax": lambda: ooc.softmax(x),
        "softmax log": lambda: ooc.softmax(x, log=True),
        "cross_entropy": lambda: ooc.cross_entropy(x, a["labels"]),
        "lrn": lambda: ooc.lrn(x),
        "dropout": lambda: ooc.dropout(x, 0.5, 1),
        "add": lambda: ooc.add(x, gx),
        "scale": lambda: ooc.scale(x, 2.0),
        "upsample": lambda: ooc.upsample(x, 16),
        "batch_norm inference": lambda: ooc.batch_norm(x, scale, shift, mean, var),
        "batch_norm training": lambda: ooc.batch_norm(x, scale, shift, training=True),
        "batch_norm_backward": lambda: ooc.batch_norm_backward(x, gx, scale, mean, var),
        "conv_backward": lambda: ooc.conv_backward(x, w, gy, padding=1),
        "max_pool_backward": lambda: ooc.max_pool_backward(x, a["px"], 2),
        "avg_pool_backward": lambda: ooc.avg_pool_backward(a["px"], x.shape, 2),
        "activation_backward": lambda: ooc.activation_backward(x, gx, "relu"),
        "softmax_backward": lambda: ooc.softmax_backward(x, gx),
        "bias_backward": lambda: ooc.bias_backward(gy),
        "chain_backward": lambda: ooc.chain_backward(x, a["z"], *layers),
    }
    return {f"ooc.{name}": work for name, work in functions.items()}

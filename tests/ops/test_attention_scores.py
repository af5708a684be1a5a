"""Attention with scores of any size, in one tile and with its keys cut: the same bits, and weights as by the formula."""

from __future__ import annotations

import random
import warnings
from typing import Any

import cuda_running
import numpy as np
import pytest
from cases import reference_offer
from emulated_driver import emulated
from running import execute

from ooc.backends.cpu.backend import CpuBackend
from ooc.ops import Attention
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan

INF, LOWEST, KEYS = np.inf, float(np.finfo("f4").min), 12
ROWS = np.repeat(np.array([
    [LOWEST, LOWEST, LOWEST, LOWEST], [-1e9, -1e9, -1e9, -1e9], [1, 2, 3, 4], [-INF, 0, 0, -INF], [-INF, -INF, -INF, -INF],
    [-INF, -INF, -INF, 5], [3e38, -3e38, 0, 0], [4999, 5001, 4998, 5000], [1e5, 1e5 - 1, 0, 1e5 - 3],
    [-9000, -8999, LOWEST, -9002],
    [-1e9, 0.5, -0.25, -1e9], [-30, 70, -100, 69.5], [2e6, 2e6 - 1, 2e6 - 2, -2e6], [0, 0, 0, 0],
]), KEYS // 4, axis=1).astype("f4")  # fmt: skip


def weights() -> Any:
    """Of each key for each query; 0 where all are masked."""
    with np.errstate(invalid="ignore"):
        terms = np.exp(ROWS.astype("f8") - np.maximum(ROWS.max(axis=1, keepdims=True), LOWEST))
    return terms / np.maximum(terms.sum(axis=1, keepdims=True), 1e-300)


def computed(op: Attention, arrays: dict[str, Any], kernel: str, sizes: dict[str, int]) -> dict[str, Any]:
    """The outputs of tiles of these sizes."""
    on_cpu = kernel in ("native", "reference")
    backend: Any = CpuBackend(2) if on_cpu else emulated(0, cudnn=True)
    offer = reference_offer(op) if kernel == "reference" else next(o for o in backend.offers(op) if o.name == kernel)
    whole = op.legal({**op.dims, **sizes})
    places = () if on_cpu else tuple((o.name, Place.DEVICE) for o in op.operands)
    plan = Plan(op, tuple(whole.items()), tuple(op.dims), 1, places, not on_cpu, on_cpu, kernel=offer.name,
                workspace_bytes=int(offer.workspace(whole)))  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of NumPy's meaning, where compiled kernels serve
        if on_cpu:
            return execute(plan, arrays, backend, None)
        return cuda_running.execute(plan, arrays, backend, random.Random(0), backend.place_copy, backend.peek)


@pytest.mark.parametrize("kernel", ["native", "reference", "plain", "cublas"])
def test_scores_of_any_size(kernel: str) -> None:
    draw, (queries, keys) = np.random.default_rng(0), ROWS.shape
    shape = (1, 1, (queries, keys), 1, 3)
    q, k = np.zeros((1, 1, queries, 1), "f4"), np.ones((1, 1, keys, 1), "f4")
    v, dy = (draw.standard_normal((1, 1, extent, 3)).astype("f4") for extent in (keys, queries))
    arrays = {"q": q, "k": k, "v": v, "bias": ROWS[None, None]}
    forward = Attention("forward", *shape, by="hw")
    whole = computed(forward, arrays, kernel, {})
    np.testing.assert_allclose(whole["y"][0, 0], weights() @ v[0, 0].astype("f8"), rtol=2e-6, atol=1e-6)
    for size in (1, 5):
        cut = computed(forward, arrays, kernel, {"q": size})
        if kernel == "cublas":  # whose sums have an order of their own
            np.testing.assert_allclose(cut["y"], whole["y"], rtol=2e-6, atol=1e-6)
            continue
        for name, values in cut.items():
            np.testing.assert_array_equal(values.view(np.uint8), whole[name].view(np.uint8), err_msg=f"{name} {size}")
    gradient = computed(Attention("v", *shape, by="hw"), {**arrays, "dy": dy, "sums": whole["sums"]}, kernel, {})["dx"]
    np.testing.assert_allclose(gradient[0, 0], weights().T @ dy[0, 0].astype("f8"), rtol=2e-6, atol=2e-6)

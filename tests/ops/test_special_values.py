"""What functions make of NaN, infinities, signed zeros and the ends of their domains: the kernels' as NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ooc
from ooc.ops.binary import BINARIES
from ooc.ops.function import FUNCTIONS

pytestmark = pytest.mark.quick

VALUES = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 0.25, 1e-30, 1e30])
DTYPES = {"f32": np.float32, "f64": np.float64}


def forward(graph: ooc.Graph, made: str, *given: Any) -> Any:
    graph.output(made)
    arrays = dict(zip(graph.inputs, given, strict=True))
    with graph.plan(batch=1, train=False, device="cpu").session() as session:
        return session.forward(arrays if len(given) > 1 else given[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("how", FUNCTIONS)
def test_functions(how: str, dtype: str) -> None:
    x = VALUES.astype(DTYPES[dtype])[None]
    graph = ooc.Graph("one")
    y = forward(graph, graph.function(graph.input("x", x.shape[1:], dtype), how, 0.25, 0.5), x)
    with np.errstate(all="ignore"):
        expected = FUNCTIONS[how](x, x.dtype.type(0.25), x.dtype.type(0.5))
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("how", ["exp", "erf", "softplus", "celu", "gelu", "gelu_tanh", "gelu_slope", "gelu_tanh_slope", "pow"])
def test_functions_in_f32_are_within_two_roundings(how: str) -> None:
    """Of the largest of what is near; the kernels have their own exponentials."""
    x = np.concatenate([np.linspace(-20, 20, 20001), np.geomspace(1e-30, 1, 5000), -np.geomspace(1e-30, 1, 5000)]).astype("f4")
    graph, coef = ooc.Graph("one"), 3.0 if how == "pow" else 1.3
    y = forward(graph, graph.function(graph.input("x", x.shape, "f32"), how, coef, 0.5), x[None])[0]
    expected = FUNCTIONS[how](x.astype("f8"), coef, 0.5)
    size = np.maximum(np.abs(x), 1.0) if "gelu" in how else np.maximum(np.abs(expected), 1e-37)
    assert np.max(np.abs(y - expected) / size) <= 2.5e-7


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("how", BINARIES)
def test_functions_of_two(how: str, dtype: str) -> None:
    """Of every pair of values."""
    x, z = (np.ravel(v)[None] for v in np.meshgrid(VALUES.astype(DTYPES[dtype]), VALUES.astype(DTYPES[dtype])))
    graph = ooc.Graph("two")
    reads = [graph.input(name, x.shape[1:], dtype) for name in ("x", "z")]
    y = forward(graph, graph.binary(*reads, how), x, z)
    with np.errstate(all="ignore"):
        expected = BINARIES[how](x, z)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_with_masks(dtype: str) -> None:
    """Keys that are masked do not count, a query that all are masked for is 0, NaN stays NaN."""
    rng, inf = np.random.default_rng(0), np.inf
    q, k, v = (rng.standard_normal((1, 2, n, 3)).astype(DTYPES[dtype]) for n in (4, 5, 5))
    bias = np.zeros((1, 1, 4, 5), DTYPES[dtype])
    bias[0, 0, 0, 2], bias[0, 0, 1], bias[0, 0, 2, 0], bias[0, 0, 3, 4] = -inf, -inf, np.nan, 80.0
    graph = ooc.Graph("masked")
    reads = [graph.input(name, x.shape[1:], dtype) for name, x in zip("qkvb", (q, k, v, bias), strict=True)]
    y = forward(graph, graph.attention(*reads, scale=1.0), q, k, v, bias)
    scores = np.einsum("nkic,nkjc->nkij", q, k) + bias
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(axis=3, keepdims=True))
        weights = weights / weights.sum(axis=3, keepdims=True)
    weights[:, :, 1] = 0
    np.testing.assert_allclose(y, np.einsum("nkij,nkjc->nkic", weights, v), rtol=1e-5, atol=1e-6)

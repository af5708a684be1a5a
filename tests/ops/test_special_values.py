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

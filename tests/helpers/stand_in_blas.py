"""What stands in for cuBLAS: products of matrices as it is told of them, by NumPy in f64, where the device has the memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from ooc.backends.cuda.blas import TYPES, Product
from ooc.backends.device_array import host_array
from ooc.ir.op import numpy_dtype


class StandInBlas:
    """cuBLAS of an emulated device."""

    own_bytes = 0

    def __init__(self, driver: Any, stream: int) -> None:
        self.driver, self.stream = driver, stream

    def run(self, product: Product) -> None:
        self.refuse(product)
        self.driver.work("gemm", self.stream, lambda: compute(product))

    def refuse(self, p: Product) -> None:
        """What cuBLAS refuses: rows that overlap, mixed types that it has no kernel for."""
        m, n, k = p.extents
        for turned, (rows, columns), (_, dtype, ld, _) in (
            (p.turned[0], (m, k), p.first), (p.turned[1], (k, n), p.second), (False, (m, n), p.result)
        ):  # fmt: skip
            assert ld >= max(1, columns if turned else rows), "CUBLAS_STATUS_INVALID_VALUE: a leading dimension"
            assert dtype in TYPES
        assert p.first[1] == p.second[1], "CUBLAS_STATUS_NOT_SUPPORTED: factors of two types"
        assert p.result[1] in (p.first[1], "f32" if p.first[1] != "f64" else "f64"), (
            "CUBLAS_STATUS_NOT_SUPPORTED: the result's type"
        )


def matrices(of: tuple[int, str, int, int], rows: int, columns: int, count: int) -> Any:
    """Matrices whose columns lie one after the other."""
    address, name, ld, step = of
    dtype = numpy_dtype(name)
    strides = tuple(dtype.itemsize * s for s in (step, 1, ld))
    return host_array(address, (count, rows, columns), dtype, strides)


def compute(p: Product) -> None:
    """The product."""
    m, n, k = p.extents
    a = matrices(p.first, *((k, m) if p.turned[0] else (m, k)), p.matrices).astype(np.float64)
    b = matrices(p.second, *((n, k) if p.turned[1] else (k, n)), p.matrices).astype(np.float64)
    y = matrices(p.result, m, n, p.matrices)
    with np.errstate(all="ignore"):
        total = (a.swapaxes(1, 2) if p.turned[0] else a) @ (b.swapaxes(1, 2) if p.turned[1] else b) * p.alpha
        y[...] = (total + y.astype(np.float64) * p.beta if p.beta else total).astype(y.dtype)

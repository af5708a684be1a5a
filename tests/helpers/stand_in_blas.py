"""What stands in for cuBLAS: products of matrices as it is told of them, by NumPy in f64, where the device has the memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from ooc.backends.cuda.blas import AS_IT_IS, CONJUGATED, TYPES, Product
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
        wide = p.first[1] if p.first[1] in ("f64", *COMPLEX) else "f32"
        assert p.result[1] in (p.first[1], wide), "CUBLAS_STATUS_NOT_SUPPORTED: the result's type"
        assert p.matrices <= 65535, "more matrices than a grid has layers"


COMPLEX = {"c64": np.dtype(np.complex64), "c128": np.dtype(np.complex128)}


def matrices(of: tuple[int, str, int, int], rows: int, columns: int, count: int) -> Any:
    """Matrices whose columns lie one after the other."""
    address, name, ld, step = of
    dtype = COMPLEX.get(name) or numpy_dtype(name)
    strides = tuple(dtype.itemsize * s for s in (step, 1, ld))
    return host_array(address, (count, rows, columns), dtype, strides)


def compute(p: Product) -> None:
    """The product."""
    m, n, k = p.extents
    a = factor(matrices(p.first, *((k, m) if p.turned[0] else (m, k)), p.matrices), p.turned[0])
    b = factor(matrices(p.second, *((n, k) if p.turned[1] else (k, n)), p.matrices), p.turned[1])
    y = matrices(p.result, m, n, p.matrices)
    with np.errstate(all="ignore"):
        total = a @ b * p.alpha
        y[...] = (total + y.astype(total.dtype) * p.beta if p.beta else total).astype(y.dtype)


def factor(matrices: Any, how: int) -> Any:
    """In double precision, turned and conjugated as cuBLAS is told."""
    wide = matrices.astype(np.complex128 if matrices.dtype.kind == "c" else np.float64)
    turned = wide if how == AS_IT_IS else wide.swapaxes(1, 2)
    return turned.conj() if how == CONJUGATED else turned

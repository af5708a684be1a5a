"""cuBLAS, through CuPy's binding: products of matrices of a batch, whatever way their rows lie in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ooc.backends.device_array import at
from ooc.errors import UnsupportedError
from ooc.ir.op import dtype_name

# cudaDataType of each type, cublasOperation_t, and cublasComputeType of a sum in f64, in f32, and of factors rounded to TF32.
TYPES = {"f32": 0, "f64": 1, "f16": 2, "bf16": 14, "c64": 4, "c128": 5}
AS_IT_IS, TURNED, CONJUGATED = range(3)  # the last is turned, too
IN_F64, IN_F32, IN_TF32 = 70, 68, 77
# Of factors and sums of results of these types.
SUMS: dict[str, tuple[Any, int]] = {"f64": (np.float64, IN_F64), "c64": (np.complex64, IN_F32), "c128": (np.complex128, IN_F64)}
USUAL = -1  # CUBLAS_GEMM_DEFAULT
MOST = 2**31  # from here on an extent or a distance between rows is refused


class Product(NamedTuple):
    """A call of cublasGemmStridedBatchedEx, which counts rows and columns the other way round: of y^T = b^T a^T. Addresses,
    distances between rows and between matrices in elements."""

    turned: tuple[int, int]
    extents: tuple[int, int, int]
    alpha: float
    first: tuple[int, str, int, int]
    second: tuple[int, str, int, int]
    beta: float
    result: tuple[int, str, int, int]
    matrices: int
    tf32: bool


class CupyBlas:
    """cuBLAS on one device. stream: on which it computes; free: bytes free on the device, of which it takes some for itself."""

    def __init__(self, stream: int, free: Callable[[], int]) -> None:
        import cupy
        from cupy_backends.cuda.libs import cublas

        before = free()
        self.cublas, self.handle = cublas, cublas.create()
        self.stream, self.on = stream, cupy.cuda.ExternalStream
        self.own_bytes = max(0, before - free())

    def run(self, product: Product) -> None:
        """Compute a product; the call returns before it is done."""
        p = product
        kind, how = SUMS.get(p.result[1], (np.float32, IN_TF32 if p.tf32 else IN_F32))
        alpha, beta = np.array(p.alpha, kind), np.array(p.beta, kind)  # read before the call returns
        (a, a_type, a_rows, a_step), (b, b_type, b_rows, b_step), (y, y_type, y_rows, y_step) = p.first, p.second, p.result
        with self.on(self.stream):  # CuPy has cuBLAS work on its current stream, whatever a handle was told before
            self.cublas.gemmStridedBatchedEx(
                self.handle, *map(int, p.turned), *p.extents, alpha.ctypes.data, a, TYPES[a_type], a_rows, a_step,
                b, TYPES[b_type], b_rows, b_step, beta.ctypes.data, y, TYPES[y_type], y_rows, y_step, p.matrices,
                how, USUAL,
            )  # fmt: skip


def multiply(blas: Any, y: Any, a: Any, b: Any, alpha: float = 1.0, beta: float = 0.0, tf32: bool = False) -> None:
    """y = alpha * a b + beta * y, of arrays (n, heads, rows, columns) in the memory of a device. Raises UnsupportedError where
    neither rows nor columns lie one element after the other."""
    for product in products(y, a, b, alpha, beta, tf32):
        blas.run(product)


def products(y: Any, a: Any, b: Any, alpha: float = 1.0, beta: float = 0.0, tf32: bool = False) -> list[Product]:
    """The calls that `multiply` makes, which raise nothing any more."""
    return list(_products(y, a, b, alpha, beta, tf32)) if y.size else []


def _products(y: Any, a: Any, b: Any, alpha: float, beta: float, tf32: bool) -> Iterator[Product]:
    turned, rows = _leading(y)
    if turned:
        yield from _products(y.swapaxes(2, 3), b.swapaxes(2, 3), a.swapaxes(2, 3), alpha, beta, tf32)
        return
    (a_turned, a_rows), (b_turned, b_rows) = _leading(a), _leading(b)
    extents = (y.shape[3], y.shape[2], a.shape[3])
    if max(*extents, rows, a_rows, b_rows) >= MOST:
        raise UnsupportedError("cuBLAS: an extent of 2^31")
    for one, count in _batches((y, a, b)):
        ys, bs, xs = (
            (at(array), dtype_name(array.dtype), ld, step) for (array, step), ld in zip(one, (rows, a_rows, b_rows), strict=True)
        )
        yield Product((b_turned, a_turned), extents, alpha, xs, bs, beta, ys, count, tf32)


def _leading(array: Any) -> tuple[bool, int]:
    """Whether columns, not rows, lie one element after the other, and elements from one to the next."""
    rows, columns = array.shape[2:]
    far, near = (s // array.itemsize for s in array.strides[2:])
    if columns == 1 or near == 1:
        far = far if rows > 1 else columns
        if far >= columns:
            return False, max(far, 1)
    elif (rows == 1 or far == 1) and near >= rows:
        return True, near
    raise UnsupportedError("cuBLAS: neither rows nor columns of a matrix are contiguous")


def _batches(arrays: tuple[Any, ...]) -> Iterator[tuple[list[tuple[Any, int]], int]]:
    """Arrays with the elements between their matrices, and how many there are; one after the other for each sample where one
    distance does not tell."""
    samples, heads = arrays[0].shape[:2]
    steps = [tuple(s // a.itemsize for s in a.strides[:2]) for a in arrays]
    if heads == 1:
        yield [(a, s[0]) for a, s in zip(arrays, steps, strict=True)], samples
    elif samples == 1 or all(s[0] == heads * s[1] for s in steps):
        yield [(a, s[1]) for a, s in zip(arrays, steps, strict=True)], samples * heads
    else:
        for i in range(samples):
            yield [(a[i : i + 1], s[1]) for a, s in zip(arrays, steps, strict=True)], heads

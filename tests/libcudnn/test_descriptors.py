"""Descriptors of ooc.libcudnn: what they keep, what they refuse; compared with the real library's where there is one."""

from __future__ import annotations

import ctypes
import pickle
import random
from typing import Any

import numpy as np
import pytest

import ooc.libcudnn as cudnn
from ooc.backends.cuda.cudnn import open_cudnn
from ooc.libcudnn import CuDNNError

pytestmark = pytest.mark.quick

needs_library = pytest.mark.skipif(open_cudnn() is None, reason="install nvidia-cudnn-cu13 or run make test-cudnn")
KINDS = ("Tensor", "Filter", "Convolution", "Pooling", "Activation", "Dropout")
BAD, UNSUPPORTED = cudnn.CUDNN_STATUS_BAD_PARAM, cudnn.CUDNN_STATUS_NOT_SUPPORTED


def create(kind: str) -> int:
    return int(getattr(cudnn, f"create{kind}Descriptor")())


def refused(status: int, call: Any, *args: Any) -> None:
    with pytest.raises(CuDNNError) as error:
        call(*args)
    assert error.value.status == status
    assert len(str(error.value).splitlines()) > 1  # says why


# ---- lives


@pytest.mark.parametrize("kind", KINDS)
def test_created_and_destroyed(kind: str) -> None:
    destroy = getattr(cudnn, f"destroy{kind}Descriptor")
    one, two = create(kind), create(kind)
    assert isinstance(one, int) and one > 0 and one != two
    destroy(one)
    refused(BAD, destroy, one)
    destroy(two)
    destroy(0)  # as cuDNN does
    refused(BAD, destroy, 7)
    for other in KINDS:
        if other != kind:
            wrong = create(other)
            refused(BAD, destroy, wrong)


def test_handles() -> None:
    handle = cudnn.create()
    assert cudnn.getStream(handle) == 0
    cudnn.setStream(handle, 123)
    assert cudnn.getStream(handle) == 123
    assert cudnn.queryRuntimeError(handle, cudnn.CUDNN_ERRQUERY_RAWCODE) == cudnn.CUDNN_STATUS_SUCCESS
    cudnn.destroy(handle)
    for call in (cudnn.getStream, cudnn.destroy, cudnn.dropoutGetStatesSize):
        refused(BAD, call, handle)


def test_status_and_version() -> None:
    cudnn.check_status(0)
    with pytest.raises(CuDNNError, match=r"^cuDNN Error: CUDNN_STATUS_BAD_PARAM$") as error:
        cudnn.check_status(2000)
    assert pickle.loads(pickle.dumps(error.value)).status == 2000
    assert 90000 <= cudnn.get_build_version() < 100000
    library = open_cudnn()
    assert cudnn.getVersion() == (92000 if library is None else library.version)


# ---- what they keep


def test_tensors() -> None:
    desc = create("Tensor")
    refused(BAD, cudnn.getTensor4dDescriptor, desc)  # never set
    cudnn.setTensor4dDescriptor(desc, cudnn.CUDNN_TENSOR_NCHW, cudnn.CUDNN_DATA_HALF, 2, 3, 4, 5)
    assert cudnn.getTensor4dDescriptor(desc) == (2, 2, 3, 4, 5, 60, 20, 5, 1)
    cudnn.setTensor4dDescriptor(desc, cudnn.CUDNN_TENSOR_NHWC, cudnn.CUDNN_DATA_FLOAT, 2, 3, 4, 5)
    assert cudnn.getTensor4dDescriptor(desc) == (0, 2, 3, 4, 5, 60, 1, 15, 3)
    cudnn.setTensor4dDescriptorEx(desc, cudnn.CUDNN_DATA_DOUBLE, 2, 3, 4, 5, 200, 60, 12, -2)
    assert cudnn.getTensor4dDescriptor(desc) == (1, 2, 3, 4, 5, 200, 60, 12, -2)
    dims, strides = np.array([2, 3, 4, 5], np.int32), (60, 20, 5, 1)
    cudnn.setTensorNdDescriptor(desc, 0, 4, dims.ctypes.data, strides)
    assert cudnn.getTensor4dDescriptor(desc) == (0, 2, 3, 4, 5, *strides)
    refused(BAD, cudnn.setTensor4dDescriptor, desc, 0, 0, 2, 0, 4, 5)
    assert cudnn.getTensor4dDescriptor(desc) == (0, 2, 3, 4, 5, *strides)  # as it was
    cudnn.setTensorNdDescriptor(desc, 0, 3, (2, 3, 4), (12, 4, 1))
    assert cudnn.getTensor4dDescriptor(desc) == (0, 2, 3, 4, 0, 12, 4, 1, 0)
    cudnn.setTensorNdDescriptor(desc, 2, 5, (2, 3, 4, 5, 6), (360, 120, 30, 6, 1))
    assert cudnn.getTensor4dDescriptor(desc) == (2, 2, 3, 4, 5, 360, 120, 30, 6)
    cudnn.setTensor4dDescriptor(desc, 0, 0, 1 << 20, 1 << 10, 64, 64)  # cuDNN: NOT_SUPPORTED
    assert cudnn.getTensor4dDescriptor(desc)[5] == 1 << 22


def test_filters() -> None:
    desc = create("Filter")
    refused(BAD, cudnn.getFilterNdDescriptor, desc, 4)
    cudnn.setFilter4dDescriptor_v4(desc, cudnn.CUDNN_DATA_HALF, cudnn.CUDNN_TENSOR_NHWC, 6, 3, 2, 1)
    assert cudnn.getFilterNdDescriptor(desc, 4) == (2, 1, 4, (6, 3, 2, 1))
    assert cudnn.getFilterNdDescriptor(desc, 2) == (2, 1, 4, (6, 3))
    assert cudnn.getFilterNdDescriptor(desc, 6) == (2, 1, 4, (6, 3, 2, 1, 0, 0))
    cudnn.setFilterNdDescriptor_v4(desc, 0, 0, 5, np.array([6, 3, 2, 1, 4], np.int32).ctypes.data)
    assert cudnn.getFilterNdDescriptor(desc, 5) == (0, 0, 5, (6, 3, 2, 1, 4))


def test_convolutions() -> None:
    desc = create("Convolution")
    assert (cudnn.getConvolutionGroupCount(desc), cudnn.getConvolutionMathType(desc)) == (1, cudnn.CUDNN_DEFAULT_MATH)
    cudnn.setConvolutionGroupCount(desc, 3)
    cudnn.setConvolutionMathType(desc, cudnn.CUDNN_TENSOR_OP_MATH)
    cudnn.setConvolution2dDescriptor_v4(desc, 1, 0, 2, 1, 1, 1, cudnn.CUDNN_CROSS_CORRELATION)
    assert (cudnn.getConvolutionGroupCount(desc), cudnn.getConvolutionMathType(desc)) == (3, cudnn.CUDNN_TENSOR_OP_MATH)
    x, w = create("Tensor"), create("Filter")
    cudnn.setTensor4dDescriptor(x, 0, 0, 2, 9, 8, 9)
    cudnn.setFilter4dDescriptor_v4(w, 0, 0, 6, 3, 3, 3)
    assert cudnn.getConvolution2dForwardOutputDim(desc, x, w) == (2, 6, 4, 7)
    assert cudnn.getConvolutionNdForwardOutputDim(desc, x, w, 3) == (2, 6, 4)
    refused(BAD, cudnn.getConvolutionNdForwardOutputDim, desc, x, w, 5)
    refused(BAD, cudnn.getConvolution2dForwardOutputDim, create("Convolution"), x, w)


def test_derived_batch_norm_descriptors() -> None:
    x, derived = create("Tensor"), create("Tensor")
    for code, own in ((0, 0), (1, 1), (2, 0), (9, 0)):
        cudnn.setTensor4dDescriptor(x, cudnn.CUDNN_TENSOR_NHWC, code, 2, 3, 4, 5)
        cudnn.deriveBNTensorDescriptor(derived, x, cudnn.CUDNN_BATCHNORM_SPATIAL)
        assert cudnn.getTensor4dDescriptor(derived) == (own, 1, 3, 1, 1, 3, 1, 1, 1)
        cudnn.deriveBNTensorDescriptor(derived, x, cudnn.CUDNN_BATCHNORM_PER_ACTIVATION)
        assert cudnn.getTensor4dDescriptor(derived) == (own, 1, 3, 4, 5, 60, 20, 5, 1)
    refused(BAD, cudnn.deriveBNTensorDescriptor, derived, x, 3)


def test_lists_of_integers() -> None:
    desc = create("Tensor")
    for wrong in ((2, 3), 0, 5):
        refused(BAD, cudnn.setTensorNdDescriptor, desc, 0, 4, wrong, (60, 20, 5, 1))
    for wrong in ("2345", 2.5, None):
        with pytest.raises(TypeError):
            cudnn.setTensorNdDescriptor(desc, 0, 4, wrong, (60, 20, 5, 1))  # type: ignore[arg-type]


# ---- against the real library -----------------------------------------------------------------


class Real:
    """The descriptor layer of the real library."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(open_cudnn().path)  # type: ignore[union-attr]

    def make(self, kind: str) -> Any:
        made = ctypes.c_void_p()
        assert self.library[f"cudnnCreate{kind}Descriptor"](ctypes.byref(made)) == 0
        return made

    def read(self, desc: Any) -> tuple[int, ...]:
        found = [ctypes.c_int() for _ in range(9)]
        assert self.library.cudnnGetTensor4dDescriptor(desc, *map(ctypes.byref, found)) == 0
        return tuple(f.value for f in found)

    def __call__(self, name: str, desc: Any, *args: Any) -> int:
        return int(self.library[name](desc, *(ctypes.c_double(a) if isinstance(a, float) else _ints(a) for a in args)))


def _ints(value: Any) -> Any:
    return (ctypes.c_int * len(value))(*value) if isinstance(value, (tuple, list)) else value


@pytest.fixture(scope="module")
def real() -> Real:
    return Real()


def ours(call: Any, *args: Any) -> int:
    try:
        call(*args)
    except CuDNNError as error:
        return error.status
    return 0


CALLS = {  # name here and in cuDNN 9, kind, usual arguments, further values of each argument
    "setTensor4dDescriptor": ("cudnnSetTensor4dDescriptor", "Tensor", (0, 0, 2, 3, 4, 5), (0, 1, -1, *range(3, 14), 50)),
    "setTensor4dDescriptorEx": (
        "cudnnSetTensor4dDescriptorEx", "Tensor", (0, 2, 3, 4, 5, 60, 20, 5, 1), (0, 1, -1, 2, 7, 59, 100),
    ),
    "setFilter4dDescriptor_v4": ("cudnnSetFilter4dDescriptor", "Filter", (0, 0, 2, 3, 4, 5), (0, 1, -1, *range(3, 14), 50)),
    "setConvolution2dDescriptor_v5": (
        "cudnnSetConvolution2dDescriptor", "Convolution", (0, 0, 1, 1, 1, 1, 1, 0), (0, 1, -1, 2, 3, 4, 5, 9, 50),
    ),
    "setConvolutionGroupCount": ("cudnnSetConvolutionGroupCount", "Convolution", (1,), (0, -1, 2, 100)),
    "setConvolutionMathType": ("cudnnSetConvolutionMathType", "Convolution", (0,), (-1, 1, 2, 3, 4)),
    "setPooling2dDescriptor_v4": (
        "cudnnSetPooling2dDescriptor", "Pooling", (0, 0, 2, 2, 0, 0, 2, 2), (-1, 0, 1, 2, 3, 4),
    ),
    "setActivationDescriptor": ("cudnnSetActivationDescriptor", "Activation", (1, 0, 0.0), (-1, 0, 1, 2, 3, 4, 5, 6, 7)),
}  # fmt: skip


@needs_library
@pytest.mark.parametrize("name", CALLS)
def test_the_same_is_refused(real: Real, name: str) -> None:
    """One argument after the other takes other values."""
    theirs, kind, usual, values = CALLS[name]
    desc, held, seen = create(kind), real.make(kind), {True: 0, False: 0}
    if kind == "Convolution" and len(usual) == 1:
        cudnn.setConvolution2dDescriptor_v4(desc, 0, 0, 1, 1, 1, 1, 1)
    for i, value in [(0, usual[0]), *((i, v) for i in range(len(usual)) for v in values)]:
        args = (*usual[:i], float(value) if isinstance(usual[i], float) else value, *usual[i + 1 :])
        wanted = real(theirs, held, *args)
        assert ours(getattr(cudnn, name), desc, *args) == wanted, (name, args)
        seen[wanted == 0] += 1
    assert min(seen.values()) > 0


@needs_library
def test_the_same_numbers_of_axes_are_refused(real: Real) -> None:
    tensor, filters, conv, pool = map(create, ("Tensor", "Filter", "Convolution", "Pooling"))
    held = {kind: real.make(kind) for kind in KINDS}
    for count in range(12):
        twos, zeros = (2,) * 12, (0,) * 12
        strides = [1 << max(0, count - 1 - i) for i in range(12)]
        pairs = [
            (real("cudnnSetTensorNdDescriptor", held["Tensor"], 0, count, twos, strides),
             ours(cudnn.setTensorNdDescriptor, tensor, 0, count, twos, strides)),
            (real("cudnnSetFilterNdDescriptor", held["Filter"], 0, 0, count, twos),
             ours(cudnn.setFilterNdDescriptor_v4, filters, 0, 0, count, twos)),
            (real("cudnnSetConvolutionNdDescriptor", held["Convolution"], count, zeros, twos, twos, 1, 0),
             ours(cudnn.setConvolutionNdDescriptor_v3, conv, count, zeros, twos, twos, 1, 0)),
            (real("cudnnSetPoolingNdDescriptor", held["Pooling"], 0, 0, count, twos, zeros, twos),
             ours(cudnn.setPoolingNdDescriptor_v4, pool, 0, 0, count, twos, zeros, twos)),
        ]  # fmt: skip
        assert all(theirs == own for theirs, own in pairs), (count, pairs)


@needs_library
def test_tensors_are_laid_out_alike(real: Real) -> None:
    rng, desc, held = random.Random(1), create("Tensor"), real.make("Tensor")
    for _ in range(100):
        args = (rng.choice((0, 1)), rng.choice((0, 1, 2, 9)), *(rng.randint(1, 9) for _ in range(4)))
        assert real("cudnnSetTensor4dDescriptor", held, *args) == 0
        cudnn.setTensor4dDescriptor(desc, *args)
        assert cudnn.getTensor4dDescriptor(desc) == real.read(held)


@needs_library
def test_tensors_of_other_ranks_are_read_alike(real: Real) -> None:
    desc, held = create("Tensor"), real.make("Tensor")
    for rank in range(2, 9):
        dims = list(range(2, 2 + rank))
        strides = [int(np.prod(dims[i + 1 :])) for i in range(rank)]
        assert real("cudnnSetTensorNdDescriptor", held, 0, rank, dims, strides) == 0
        cudnn.setTensorNdDescriptor(desc, 0, rank, dims, strides)
        assert cudnn.getTensor4dDescriptor(desc) == real.read(held)


@needs_library
def test_derived_alike(real: Real) -> None:
    desc, made, held, derived = create("Tensor"), create("Tensor"), real.make("Tensor"), real.make("Tensor")
    for code in (0, 1, 2, 9):
        for mode in (0, 1, 2, 3):
            args = (1, code, 2, 3, 4, 5)
            assert real("cudnnSetTensor4dDescriptor", held, *args) == 0
            cudnn.setTensor4dDescriptor(desc, *args)
            status = real("cudnnDeriveBNTensorDescriptor", derived, held, mode)
            assert ours(cudnn.deriveBNTensorDescriptor, made, desc, mode) == status
            if status == 0:
                assert cudnn.getTensor4dDescriptor(made) == real.read(derived)


@needs_library
def test_results_have_the_same_extents(real: Real) -> None:
    """Random convolutions in two and three dimensions: the same extents, or refused with the same number."""
    rng, seen = random.Random(2), {0: 0, BAD: 0}
    mine, held = {k: create(k) for k in KINDS[:3]}, {k: real.make(k) for k in KINDS[:3]}
    for _ in range(600):
        rank, groups = rng.choice((2, 3)), rng.choice((1, 1, 2, 3))
        channels = rng.randint(1, 3)
        x = (rng.randint(1, 3), channels * groups + rng.choice((0, 0, 0, 0, 1)), *(rng.randint(1, 9) for _ in range(rank)))
        w = (groups * rng.randint(1, 3), channels, *(rng.randint(1, 4) for _ in range(rank)))
        pad, stride, dilation = (tuple(rng.randint(lo, hi) for _ in range(rank)) for lo, hi in ((0, 2), (1, 3), (1, 3)))
        strides = [int(np.prod(x[i + 1 :])) for i in range(rank + 2)]
        assert real("cudnnSetTensorNdDescriptor", held["Tensor"], 0, rank + 2, x, strides) == 0
        assert real("cudnnSetFilterNdDescriptor", held["Filter"], 0, 0, rank + 2, w) == 0
        assert real("cudnnSetConvolutionNdDescriptor", held["Convolution"], rank, pad, stride, dilation, 1, 0) == 0
        assert real("cudnnSetConvolutionGroupCount", held["Convolution"], groups) == 0
        cudnn.setTensorNdDescriptor(mine["Tensor"], 0, rank + 2, x, strides)
        cudnn.setFilterNdDescriptor_v4(mine["Filter"], 0, 0, rank + 2, w)
        cudnn.setConvolutionNdDescriptor_v3(mine["Convolution"], rank, pad, stride, dilation, 1, 0)
        cudnn.setConvolutionGroupCount(mine["Convolution"], groups)
        made = (ctypes.c_int * (rank + 2))()
        args = (held["Convolution"], held["Tensor"], held["Filter"], rank + 2, made)
        status = int(real.library.cudnnGetConvolutionNdForwardOutputDim(*args))
        given = (mine["Convolution"], mine["Tensor"], mine["Filter"], rank + 2)
        assert ours(cudnn.getConvolutionNdForwardOutputDim, *given) == status, (x, w, pad, stride, dilation, groups)
        if status == 0:
            assert cudnn.getConvolutionNdForwardOutputDim(*given) == tuple(made)
        seen[status] += 1
    assert min(seen.values()) > 50

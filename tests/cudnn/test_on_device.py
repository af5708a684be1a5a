"""ooc.cudnn on arrays of another library in the memory of a device, on an emulated device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import formulas as f
import numpy as np
import pytest
from emulated_device import on, read, results_beside_foreign_arrays, theirs  # noqa: F401
from emulated_driver import emulated

import ooc.cudnn as cudnn
from ooc.libcudnn import CUDNN_TENSOR_NHWC, CuDNNError
from ooc.runtime.device import Device

RNG = np.random.default_rng(3)
X, W, B = (RNG.standard_normal(s).astype(np.float32) for s in ((2, 4, 7, 6), (6, 4, 3, 3), (6,)))
PLACE = ((0, 0), (1, 1), None, 1)
HOW: dict[str, Any] = {"auto_tune": False, "tensor_core": "auto"}


@pytest.fixture(params=[None, "64 KiB"], ids=str)
def gpu(request: pytest.FixtureRequest) -> Iterator[Device]:
    with on(emulated(7, cudnn=True), request.param) as device:
        yield device


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(read(found), expected, 1e-4, 1e-4)


def test_convolutions(gpu: Device) -> None:
    def there(a: Any) -> Any:
        return theirs(gpu.backend, a)

    x, w, b, y = there(X), there(W), there(B), there(np.full((2, 6, 5, 4), np.nan, np.float32))
    cudnn.convolution_forward(x, w, b, y, *PLACE, **HOW)
    made = f.conv(X, W, B)
    close(y, made)
    gx, gw = there(np.full_like(X, np.nan)), there(np.full_like(W, np.nan))
    cudnn.convolution_backward_data(w, y, None, gx, *PLACE, **HOW, deterministic=False)
    close(gx, f.conv_dx(made, W, X.shape))
    cudnn.convolution_backward_filter(x, y, gw, *PLACE, **HOW, deterministic=True)
    np.testing.assert_allclose(read(gw), f.conv_dw(X, made, W.shape), 1e-3, 1e-3)
    last = [there(np.ascontiguousarray(np.moveaxis(a, 1, -1))) for a in (X, W, np.full_like(made, np.nan, np.float32))]
    cudnn.convolution_forward(last[0], last[1], B, last[2], *PLACE, **HOW, d_layout=CUDNN_TENSOR_NHWC, w_layout=CUDNN_TENSOR_NHWC)
    close(last[2], np.moveaxis(made, 1, -1))


def test_results_lie_beside_the_first_array(gpu: Device) -> None:
    x = theirs(gpu.backend, X)
    y = cudnn.activation_forward(x, 1)
    close(y, np.maximum(X, 0))
    close(cudnn.activation_backward(x, y, x, 1), np.where(X > 0, X, 0))
    s = cudnn.softmax_forward(x, -1, 1)
    close(s, f.softmax(X, -1))
    close(cudnn.softmax_backward(s, x, -1, 1), f.softmax_dx(f.softmax(X, -1), X, -1))
    z = np.empty((2, 4, 3, 3), np.float32)
    assert cudnn.pooling_forward(x, z, (2, 2), (2, 2), (0, 0), 0) is z
    close(z, f.pool("max", X, 2))
    close(cudnn.pooling_backward(x, z, z, (2, 2), (2, 2), (0, 0), 0), f.pool_dx("max", X, z, 2))
    reserve, y = cudnn.DropoutStates(None, 1).forward(None, x, 0.5)
    assert reserve.nbytes == 8 and type(y) is type(s) is type(x)


def test_batch_norm(gpu: Device) -> None:
    x, ones, zeros = (theirs(gpu.backend, a) for a in (X, np.ones(4, np.float32), np.zeros(4, np.float32)))
    mean, var = (theirs(gpu.backend, np.ones(4, np.float32)) for _ in range(2))
    y, saved, inverse = cudnn.batch_normalization_forward_training(
        x, ones, zeros, mean, var, None, None, 1e-3, 0.75, True, 1, False
    )
    own, spread = X.mean((0, 2, 3), keepdims=True), X.var((0, 2, 3), keepdims=True)
    close(y, (X - own) / np.sqrt(spread + 1e-3))
    close(mean, 0.75 + 0.25 * own.reshape(-1))
    close(saved, own.reshape(-1))
    gx, ggamma, _ = cudnn.batch_normalization_backward(x, ones, x, saved, inverse, 1e-3, True, 1, False)
    expected = f.batch_norm_dx(X, X, 1.0, False, 1e-3)
    close(gx, expected[0])
    close(ggamma, expected[1].reshape(-1))


def test_errors(gpu: Device) -> None:
    x, y = theirs(gpu.backend, X), theirs(gpu.backend, np.full((2, 6, 5, 5), np.nan, np.float32))
    with pytest.raises(CuDNNError, match="x: shape="):
        cudnn.convolution_forward(x, W, None, y, *PLACE, **HOW)
    assert np.isnan(read(y)).all()

"""Arrays of other libraries on the host, and what is not accepted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ooc
from ooc.api.foreign import empty_beside, known
from ooc.backends.device_array import DeviceArray
from ooc.errors import DtypeError, ShapeError, UnsupportedError

pytestmark = pytest.mark.quick


class Cuda:
    """An array that says it lies on a device."""

    def __init__(self, **more: Any) -> None:
        self.__cuda_array_interface__ = {
            "data": (1 << 30, False), "shape": (2, 3), "typestr": "<f4", "strides": None, "version": 3, **more,
        }  # fmt: skip


def test_the_cuda_array_interface() -> None:
    seen = known("x", Cuda())
    assert isinstance(seen, DeviceArray) and (seen.shape, seen.dtype, seen.strides) == ((2, 3), np.float32, (12, 4))
    assert known("x", Cuda(strides=(4, 8))).strides == (4, 8)
    assert not known("x", Cuda(data=(1 << 30, True))).flags.writeable
    assert known("x", Cuda(shape=(0, 3), data=(0, False))).size == 0
    with pytest.raises(DtypeError, match="masked"):
        known("x", Cuda(mask=Cuda()))


def test_results_beside_the_hosts_arrays_are_the_hosts() -> None:
    assert type(empty_beside(np.zeros(3), (2,), np.float32)) is np.ndarray


def test_numpy_arrays_are_themselves() -> None:
    x = np.zeros((2, 3))
    assert known("x", x) is x


@pytest.mark.parametrize("name", ["cuda:x", "cuda:-1", "cpu:1", "gpu", "cuda:1.5"])
def test_bad_device_names(name: str) -> None:
    with pytest.raises(ShapeError, match="expected one of"):
        ooc.device(name)


def test_a_device_that_is_not_there() -> None:
    try:
        ooc.device("cuda:77")
    except UnsupportedError as error:
        assert str(error).startswith("device 'cuda")
    else:
        pytest.fail("77 devices?")


def test_torch_tensors_of_the_host() -> None:
    """Seen, not copied; half types included; outputs are written where they lie."""
    torch = pytest.importorskip("torch")
    x = torch.arange(64, dtype=torch.float32).reshape(1, 1, 8, 8)
    out = torch.empty(1, 1, 4, 4)
    assert ooc.max_pool(x, 2, out=out) is out
    np.testing.assert_array_equal(out.numpy(), ooc.max_pool(x.numpy(), 2))
    half = torch.empty(1, 1, 4, 4, dtype=torch.bfloat16)
    ooc.max_pool(x.to(torch.bfloat16), 2, out=half)
    torch.testing.assert_close(half, torch.nn.functional.max_pool2d(x.to(torch.bfloat16), 2), rtol=0, atol=0)
    weights = torch.nn.Parameter(torch.ones(1, 1, 3, 3))
    np.testing.assert_array_equal(ooc.conv(x, weights.detach()), torch.nn.functional.conv2d(x, weights).detach().numpy())
    with pytest.raises(UnsupportedError, match="requires a gradient"):
        ooc.conv(x, weights)

"""The calls of ooc.libcudnn have the names, parameters and order of CuPy v13's cupy.cuda.cudnn."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import ooc.libcudnn as libcudnn

pytestmark = pytest.mark.quick

LISTED = Path(__file__).with_name("cupy_v13_cudnn_low_level.txt")
V13 = {name: re.findall(r"\w+", given) for name, given in re.findall(r"^(\w+)\((.*)\)$", LISTED.read_text(), re.M)}
OUT_OF_SCOPE = re.compile(
    "OpTensor|opTensor|ReduceTensor|reduceTensor|getReduction|CTCLoss|RNN|SpatialTransformer|spatialTf|FusedOps|fusedOps"
)
LEFT_OUT = [name for name in V13 if OUT_OF_SCOPE.search(name)]
PROVIDED = [name for name in V13 if name not in LEFT_OUT]
NOT_IN_V13 = {
    "CuDNNAlgoPerf", "convolutionBiasActivationForward", "getConvolution2dForwardOutputDim", "getConvolutionNdForwardOutputDim",
}  # fmt: skip


def test_the_list_is_whole() -> None:
    assert len(V13) == 145
    assert (len(PROVIDED), len(LEFT_OUT)) == (82, 63)


@pytest.mark.parametrize("name", PROVIDED)
def test_parameters(name: str) -> None:
    assert list(inspect.signature(getattr(libcudnn, name)).parameters) == V13[name]


@pytest.mark.parametrize("name", PROVIDED)
def test_documented(name: str) -> None:
    assert getattr(libcudnn, name).__doc__


@pytest.mark.parametrize("name", LEFT_OUT)
def test_left_out(name: str) -> None:
    assert not hasattr(libcudnn, name)
    with pytest.raises(AttributeError, match=f"does not provide {name}: only the calls of a convolution program"):
        getattr(libcudnn, name)


def test_the_namespace() -> None:
    names = set(libcudnn.__all__)
    constants = {n for n in names if n.startswith("CUDNN_")}
    assert len(libcudnn.__all__) == len(names)
    assert names - constants == set(PROVIDED) | NOT_IN_V13 | {"CuDNNError", "available"}
    assert len(constants) > 195
    assert all(hasattr(libcudnn, n) for n in names)
    assert libcudnn.available is True


def test_import_star() -> None:
    seen: dict[str, object] = {}
    exec("from ooc.libcudnn import *", seen)
    assert set(libcudnn.__all__) <= set(seen)

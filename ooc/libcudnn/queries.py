"""Which algorithm, and how much workspace: one answer, since ooc plans each call within its own budget.

The answers have the forms that CuPy v13 returned: `find...Algorithm` a list of dicts, `...Ex` and `..._v7` lists of
CuDNNAlgoPerf, `..._v6` a number. Nothing is run to find out: the time is -1, as of cuDNN's heuristics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ooc.libcudnn.convolution import DATA_ALGOS, FILTER_ALGOS, FORWARD_ALGOS
from ooc.libcudnn.guard import refusal
from ooc.libcudnn.problem import ConvolutionProblem, check_algo

__all__ = [
    "CuDNNAlgoPerf", "findConvolutionBackwardDataAlgorithm", "findConvolutionBackwardDataAlgorithmEx",
    "findConvolutionBackwardDataAlgorithmEx_v7", "findConvolutionBackwardFilterAlgorithm",
    "findConvolutionBackwardFilterAlgorithmEx", "findConvolutionBackwardFilterAlgorithmEx_v7",
    "findConvolutionForwardAlgorithm", "findConvolutionForwardAlgorithmEx", "findConvolutionForwardAlgorithmEx_v7",
    "getConvolutionBackwardDataAlgorithm_v6", "getConvolutionBackwardDataAlgorithm_v7",
    "getConvolutionBackwardDataWorkspaceSize", "getConvolutionBackwardFilterAlgorithm_v6",
    "getConvolutionBackwardFilterAlgorithm_v7", "getConvolutionBackwardFilterWorkspaceSize",
    "getConvolutionForwardAlgorithm_v6", "getConvolutionForwardAlgorithm_v7", "getConvolutionForwardWorkspaceSize",
]  # fmt: skip

# The algorithms of cuDNN that come closest: implicit GEMM, and the gradients' deterministic ones.
FORWARD_ALGO, DATA_ALGO, FILTER_ALGO = 0, 1, 1
UNMEASURED = -1.0


@dataclass
class CuDNNAlgoPerf:
    """One answer of an algorithm query. Source: cudnnConvolutionFwdAlgoPerf_t and its like.

    algo: the algorithm, an int. status: 0. time: -1.0, nothing is run. memory: bytes of workspace, 0. determinism: 1, or -1
    where the call does not tell it. mathType: that of the convolution descriptor, or -1.
    """

    algo: int
    status: int
    time: float
    memory: int
    determinism: int
    mathType: int


def _answer(handle: int, x: int, w: int, y: int, conv: int, algo: int, requested: int, told: bool) -> list[CuDNNAlgoPerf]:
    """The list for a problem. told: with determinism and math type."""
    problem = ConvolutionProblem.of(handle, x, w, y, conv)
    if requested < 1:
        raise refusal(f"requestedAlgoCount: expected at least 1, got {requested}")
    return [CuDNNAlgoPerf(algo, 0, UNMEASURED, 0, *((1, problem.conv.math) if told else (-1, -1)))]


def _dicts(answers: list[CuDNNAlgoPerf]) -> list[dict[str, Any]]:
    return [{"algo": a.algo, "status": a.status, "time": a.time, "memory": a.memory} for a in answers]


def _workspace(handle: int, x: int, w: int, y: int, conv: int, algo: int, count: int) -> int:
    ConvolutionProblem.of(handle, x, w, y, conv)
    check_algo(algo, count)
    return 0


# ---- forward


def findConvolutionForwardAlgorithm(
    handle: int, xDesc: int, wDesc: int, convDesc: int, yDesc: int, requestedAlgoCount: int
) -> list[dict[str, Any]]:
    """The one answer, as a list of a dict: algo, status, time (-1.0: nothing is run), memory (0)."""
    return _dicts(_answer(handle, xDesc, wDesc, yDesc, convDesc, FORWARD_ALGO, requestedAlgoCount, False))


def findConvolutionForwardAlgorithmEx(
    handle: int, xDesc: int, x: Any, wDesc: int, w: Any, convDesc: int, yDesc: int, y: Any, requestedAlgoCount: int,
    workSpace: Any, workSpaceSizeInBytes: int,
) -> list[CuDNNAlgoPerf]:  # fmt: skip
    """The one answer, as a list of a `CuDNNAlgoPerf` without determinism and math type; nothing is run."""
    return _answer(handle, xDesc, wDesc, yDesc, convDesc, FORWARD_ALGO, requestedAlgoCount, False)


def findConvolutionForwardAlgorithmEx_v7(
    handle: int, xDesc: int, x: Any, wDesc: int, w: Any, convDesc: int, yDesc: int, y: Any, requestedAlgoCount: int,
    workSpace: Any, workSpaceSizeInBytes: int,
) -> list[CuDNNAlgoPerf]:  # fmt: skip
    """The one answer, as a list of a `CuDNNAlgoPerf` with determinism and math type; nothing is run."""
    return _answer(handle, xDesc, wDesc, yDesc, convDesc, FORWARD_ALGO, requestedAlgoCount, True)


def getConvolutionForwardAlgorithm_v6(
    handle: int, srcDesc: int, filterDesc: int, convDesc: int, destDesc: int, preference: int, memoryLimitInbytes: int
) -> int:
    """The number of the algorithm that comes closest to what is computed.

    Source: cudnnGetConvolutionForwardAlgorithm of cuDNN 6.
    """
    return _answer(handle, srcDesc, filterDesc, destDesc, convDesc, FORWARD_ALGO, 1, False)[0].algo


def getConvolutionForwardAlgorithm_v7(
    handle: int, srcDesc: int, filterDesc: int, convDesc: int, destDesc: int, requestedAlgoCount: int
) -> list[CuDNNAlgoPerf]:
    """The one answer, as a list of a `CuDNNAlgoPerf` with determinism and math type; nothing is run."""
    return _answer(handle, srcDesc, filterDesc, destDesc, convDesc, FORWARD_ALGO, requestedAlgoCount, True)


def getConvolutionForwardWorkspaceSize(
    handle: int, srcDesc: int, filterDesc: int, convDesc: int, destDesc: int, algo: int
) -> int:
    """0: the caller's workspace is not used."""
    return _workspace(handle, srcDesc, filterDesc, destDesc, convDesc, algo, FORWARD_ALGOS)


# ---- gradient of the filters


def findConvolutionBackwardFilterAlgorithm(
    handle: int, xDesc: int, dyDesc: int, convDesc: int, dwDesc: int, requestedAlgoCount: int
) -> list[dict[str, Any]]:
    """The one answer, as a list of a dict: algo, status, time (-1.0: nothing is run), memory (0)."""
    return _dicts(_answer(handle, xDesc, dwDesc, dyDesc, convDesc, FILTER_ALGO, requestedAlgoCount, False))


def findConvolutionBackwardFilterAlgorithmEx(
    handle: int, xDesc: int, x: Any, dyDesc: int, dy: Any, convDesc: int, dwDesc: int, dw: Any, requestedAlgoCount: int,
    workSpace: Any, workSpaceSizeInBytes: int,
) -> list[CuDNNAlgoPerf]:  # fmt: skip
    """The one answer, as a list of a `CuDNNAlgoPerf` without determinism and math type; nothing is run."""
    return _answer(handle, xDesc, dwDesc, dyDesc, convDesc, FILTER_ALGO, requestedAlgoCount, False)


def findConvolutionBackwardFilterAlgorithmEx_v7(
    handle: int, xDesc: int, x: Any, dyDesc: int, dy: Any, convDesc: int, dwDesc: int, dw: Any, requestedAlgoCount: int,
    workSpace: Any, workSpaceSizeInBytes: int,
) -> list[CuDNNAlgoPerf]:  # fmt: skip
    """The one answer, as a list of a `CuDNNAlgoPerf` with determinism and math type; nothing is run."""
    return _answer(handle, xDesc, dwDesc, dyDesc, convDesc, FILTER_ALGO, requestedAlgoCount, True)


def getConvolutionBackwardFilterAlgorithm_v6(
    handle: int, srcDesc: int, diffDesc: int, convDesc: int, filterDesc: int, preference: int, memoryLimitInbytes: int
) -> int:
    """The number of the algorithm that comes closest to what is computed.

    Source: cudnnGetConvolutionBackwardFilterAlgorithm of cuDNN 6.
    """
    return _answer(handle, srcDesc, filterDesc, diffDesc, convDesc, FILTER_ALGO, 1, False)[0].algo


def getConvolutionBackwardFilterAlgorithm_v7(
    handle: int, srcDesc: int, diffDesc: int, convDesc: int, gradDesc: int, requestedAlgoCount: int
) -> list[CuDNNAlgoPerf]:
    """The one answer, as a list of a `CuDNNAlgoPerf` with determinism and math type; nothing is run."""
    return _answer(handle, srcDesc, gradDesc, diffDesc, convDesc, FILTER_ALGO, requestedAlgoCount, True)


def getConvolutionBackwardFilterWorkspaceSize(
    handle: int, srcDesc: int, diffDesc: int, convDesc: int, filterDesc: int, algo: int
) -> int:
    """0: the caller's workspace is not used."""
    return _workspace(handle, srcDesc, filterDesc, diffDesc, convDesc, algo, FILTER_ALGOS)


# ---- gradient of the data


def findConvolutionBackwardDataAlgorithm(
    handle: int, wDesc: int, dyDesc: int, convDesc: int, dxDesc: int, requestedAlgoCount: int
) -> list[dict[str, Any]]:
    """The one answer, as a list of a dict: algo, status, time (-1.0: nothing is run), memory (0)."""
    return _dicts(_answer(handle, dxDesc, wDesc, dyDesc, convDesc, DATA_ALGO, requestedAlgoCount, False))


def findConvolutionBackwardDataAlgorithmEx(
    handle: int, wDesc: int, w: Any, dyDesc: int, dy: Any, convDesc: int, dxDesc: int, dx: Any, requestedAlgoCount: int,
    workSpace: Any, workSpaceSizeInBytes: int,
) -> list[CuDNNAlgoPerf]:  # fmt: skip
    """The one answer, as a list of a `CuDNNAlgoPerf` without determinism and math type; nothing is run."""
    return _answer(handle, dxDesc, wDesc, dyDesc, convDesc, DATA_ALGO, requestedAlgoCount, False)


def findConvolutionBackwardDataAlgorithmEx_v7(
    handle: int, wDesc: int, w: Any, dyDesc: int, dy: Any, convDesc: int, dxDesc: int, dx: Any, requestedAlgoCount: int,
    workSpace: Any, workSpaceSizeInBytes: int,
) -> list[CuDNNAlgoPerf]:  # fmt: skip
    """The one answer, as a list of a `CuDNNAlgoPerf` with determinism and math type; nothing is run."""
    return _answer(handle, dxDesc, wDesc, dyDesc, convDesc, DATA_ALGO, requestedAlgoCount, True)


def getConvolutionBackwardDataAlgorithm_v6(
    handle: int, filterDesc: int, diffDesc: int, convDesc: int, gradDesc: int, preference: int, memoryLimitInbytes: int
) -> int:
    """The number of the algorithm that comes closest to what is computed.

    Source: cudnnGetConvolutionBackwardDataAlgorithm of cuDNN 6.
    """
    return _answer(handle, gradDesc, filterDesc, diffDesc, convDesc, DATA_ALGO, 1, False)[0].algo


def getConvolutionBackwardDataAlgorithm_v7(
    handle: int, filterDesc: int, diffDesc: int, convDesc: int, gradDesc: int, requestedAlgoCount: int
) -> list[CuDNNAlgoPerf]:
    """The one answer, as a list of a `CuDNNAlgoPerf` with determinism and math type; nothing is run."""
    return _answer(handle, gradDesc, filterDesc, diffDesc, convDesc, DATA_ALGO, requestedAlgoCount, True)


def getConvolutionBackwardDataWorkspaceSize(
    handle: int, filterDesc: int, diffDesc: int, convDesc: int, gradDesc: int, algo: int
) -> int:
    """0: the caller's workspace is not used."""
    return _workspace(handle, gradDesc, filterDesc, diffDesc, convDesc, algo, DATA_ALGOS)

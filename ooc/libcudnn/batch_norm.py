"""Batch normalisation. Arguments are as in `ooc.libcudnn.convolution`; a null pointer leaves an optional result out.

Statistics are those of the whole batch, exact although it is streamed. Of the `Ex` forms CUDNN_BATCHNORM_OPS_BN is
provided, which is the plain form.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ooc.api.arguments import on_host, put
from ooc.api.batch_norm import batch_norm, batch_norm_backward
from ooc.api.dispatch import compute, plain_result
from ooc.ir.op import dtype_name
from ooc.libcudnn.guard import NOT_SUPPORTED, guarded, refusal
from ooc.libcudnn.memory import Array, type_of, view
from ooc.libcudnn.problem import blend_small, blending, check_handle, laid_out
from ooc.libcudnn.registry import ActivationDescriptor, TensorDescriptor, find
from ooc.ops import BnMoments

__all__ = [
    "batchNormalizationBackward", "batchNormalizationBackwardEx", "batchNormalizationForwardInference",
    "batchNormalizationForwardTraining", "batchNormalizationForwardTrainingEx",
    "getBatchNormalizationBackwardExWorkspaceSize", "getBatchNormalizationForwardTrainingExWorkspaceSize",
    "getBatchNormalizationTrainingExReserveSpaceSize",
]  # fmt: skip

PER_ACTIVATION = 0  # CUDNN_BATCHNORM_PER_ACTIVATION


class _BatchNormCall:
    """What the calls have in common: the tensors' descriptors, and views of statistics."""

    def __init__(self, handle: int, mode: int, epsilon: float, x: int, statistics: int, *others: int) -> None:
        check_handle(handle)
        if mode not in (0, 1, 2):
            raise refusal(f"mode: expected 0 to 2, got {mode}")
        self.x, self.form = find(TensorDescriptor, x, "xDesc"), find(TensorDescriptor, statistics, "bnScaleBiasMeanVarDesc")
        self.eps, self.per_activation, dims = float(epsilon), mode == PER_ACTIVATION, self.x.dims
        if not 3 <= len(dims) <= 5:
            raise refusal(f"1 to 3 spatial axes expected, got a tensor {dims}", NOT_SUPPORTED)
        self.others = [find(TensorDescriptor, o, "yDesc, dyDesc, dxDesc") for o in others]
        for form in self.others:
            if (form.dims, form.dtype) != (dims, self.x.dtype):
                raise refusal(f"expected {dims} of type {self.x.dtype}, got {form.dims} of type {form.dtype}")
        derived_dims = (1, *dims[1:]) if self.per_activation else (1, dims[1], *(1,) * (len(dims) - 2))
        if self.form.dims != derived_dims or self.form.dtype != (1 if self.x.dtype == 1 else 0):
            raise refusal(f"bnScaleBiasMeanVarDesc: expected {derived_dims}, as derived from x; got {self.form.dims}")
        if not self.eps >= 0:
            raise refusal(f"epsilon: expected 0 or more, got {epsilon}")

    def statistic(self, name: str, data: Any, write: bool = False) -> Array:
        """Values per channel (c), or per activation (c x spatial)."""
        tensor = view(name, self.form, data, write)
        return tensor[0] if self.per_activation else tensor[(0, slice(None), *(0,) * (tensor.ndim - 2))]

    def pair(self, names: tuple[str, str], data: tuple[Any, Any], write: bool = True) -> tuple[Array, Array] | None:
        """Two statistics, or None where both are null. Raises BAD_PARAM where one is."""
        null = [d is None or (isinstance(d, int) and d == 0) for d in data]
        if all(null):
            return None
        one, two = (self.statistic(n, d, write) for n, d in zip(names, data, strict=True))
        return one, two

    @property
    def how(self) -> dict[str, Any]:
        """The arguments of ooc's functions."""
        return {"eps": self.eps, "per_activation": self.per_activation}


@guarded
def batchNormalizationForwardTraining(
    handle: int, mode: int, alpha: Any, beta: Any, xDesc: int, x: Any, yDesc: int, y: Any, bnScaleBiasMeanVarDesc: int,
    bnScale: Any, bnBias: Any, exponentialAverageFactor: float, resultRunningMean: Any, resultRunningVariance: Any,
    epsilon: float, resultSaveMean: Any, resultSaveInvVariance: Any,
) -> None:  # fmt: skip
    """y = alpha * ((x - mean) / sqrt(variance + epsilon) * scale + bias) + beta * y, with the statistics of the batch."""
    call = _BatchNormCall(handle, mode, epsilon, xDesc, bnScaleBiasMeanVarDesc, yDesc)
    factor = float(exponentialAverageFactor)
    scale, b = call.statistic("bnScale", bnScale), call.statistic("bnBias", bnBias)
    running = call.pair(("resultRunningMean", "resultRunningVariance"), (resultRunningMean, resultRunningVariance))
    saved = call.pair(("resultSaveMean", "resultSaveInvVariance"), (resultSaveMean, resultSaveInvVariance))
    layout, (source, target) = laid_out(view("x", call.x, x), view("y", call.others[0], y, write=True))
    how = {**call.how, **blending(alpha, beta, target)}
    batch = batch_norm(source, scale, b, training=True, layout=layout, out=target, **how)
    count = call.x.dims[0] * (1 if call.per_activation else int(np.prod(call.x.dims[2:])))
    if running is not None:
        blend_small(running[0], batch.mean, factor, 1 - factor)
        blend_small(running[1], batch.var * (count / max(1, count - 1)), factor, 1 - factor)
    if saved is not None:
        put(saved[0], batch.mean)
        put(saved[1], 1 / np.sqrt(batch.var + call.eps))


@guarded
def batchNormalizationForwardInference(
    handle: int, mode: int, alpha: Any, beta: Any, xDesc: int, x: Any, yDesc: int, y: Any, bnScaleBiasMeanVarDesc: int,
    bnScale: Any, bnBias: Any, estimatedMean: Any, estimatedVariance: Any, epsilon: float,
) -> None:  # fmt: skip
    """y = alpha * ((x - mean) / sqrt(variance + epsilon) * scale + bias) + beta * y, with the statistics given."""
    call = _BatchNormCall(handle, mode, epsilon, xDesc, bnScaleBiasMeanVarDesc, yDesc)
    statistics = {"bnScale": bnScale, "bnBias": bnBias, "estimatedMean": estimatedMean, "estimatedVariance": estimatedVariance}
    scale, b, mean, var = (call.statistic(name, data) for name, data in statistics.items())
    layout, (source, target) = laid_out(view("x", call.x, x), view("y", call.others[0], y, write=True))
    batch_norm(source, scale, b, mean, var, layout=layout, out=target, **call.how, **blending(alpha, beta, target))


@guarded
def batchNormalizationBackward(
    handle: int, mode: int, alphaDataDiff: Any, betaDataDiff: Any, alphaParamDiff: Any, betaParamDiff: Any, xDesc: int, x: Any,
    dyDesc: int, dy: Any, dxDesc: int, dx: Any, dBnScaleBiasDesc: int, bnScale: Any, dBnScaleResult: Any, dBnBiasResult: Any,
    epsilon: float, savedMean: Any, savedInvVariance: Any,
) -> None:  # fmt: skip
    """Gradients of x, scale and bias, each alpha * gradient + beta * what is there (DataDiff: of x, ParamDiff: of the others)."""
    call = _BatchNormCall(handle, mode, epsilon, xDesc, dBnScaleBiasDesc, dyDesc, dxDesc)
    scale = call.statistic("bnScale", bnScale)
    dscale, db = call.statistic("dBnScaleResult", dBnScaleResult, True), call.statistic("dBnBiasResult", dBnBiasResult, True)
    saved = call.pair(("savedMean", "savedInvVariance"), (savedMean, savedInvVariance), write=False)
    views = view("dy", call.others[0], dy), view("dx", call.others[1], dx, write=True)
    layout, (source, gradient, target) = laid_out(view("x", call.x, x), *views)
    data, param = blending(alphaDataDiff, betaDataDiff, target), blending(alphaParamDiff, betaParamDiff, target)
    if saved is None:
        mean, var = _moments(source, layout, call)
    else:
        mean = on_host(saved[0]).astype(np.float64)
        var = on_host(saved[1]).astype(np.float64) ** -2 - call.eps  # only var + eps is used
    gradients = batch_norm_backward(source, gradient, scale, mean, var, layout=layout, dx=target, **call.how, **data)
    blend_small(dscale, gradients.dscale, **param)
    blend_small(db, gradients.db, **param)


def _moments(x: Array, layout: str, call: _BatchNormCall) -> tuple[Array, Array]:
    """Mean and variance of a batch."""
    batch = np.moveaxis(x, -1, 1) if layout == "channels_last" else x
    n, k, *extent = batch.shape
    per = "activation" if call.per_activation else "channel"
    op = BnMoments(n, k, tuple(extent), per, dtype_name(x.dtype), layout)
    moments = [np.empty(o.shape, type_of("mean", 1)) for o in op.outputs]
    compute(op, {"x": batch}, [plain_result(o, a) for o, a in zip(op.outputs, moments, strict=True)])
    shape = tuple(extent) if call.per_activation else ()
    return moments[0].reshape(k, *shape), moments[1].reshape(k, *shape)


# ---- the Ex forms


def _check_ops(ops: int) -> None:
    if ops != 0:
        raise refusal(
            f"bnOps {ops}: only CUDNN_BATCHNORM_OPS_BN is provided; add and activate by calls of their own", NOT_SUPPORTED
        )


def batchNormalizationForwardTrainingEx(
    handle: int, mode: int, bnOps: int, alpha: Any, beta: Any, xDesc: int, x: Any, zDesc: int, z: Any, yDesc: int, y: Any,
    bnScaleBiasMeanVarDesc: int, bnScale: Any, bnBias: Any, exponentialAverageFactor: float, resultRunningMean: Any,
    resultRunningVariance: Any, epsilon: float, resultSaveMean: Any, resultSaveInvVariance: Any, activationDesc: int,
    workSpace: Any, workSpaceSizeInBytes: int, reserveSpace: Any, reserveSpaceSizeInBytes: int,
) -> None:  # fmt: skip
    """`batchNormalizationForwardTraining`: y = alpha * ((x - mean) / sqrt(variance + epsilon) * scale + bias) + beta * y, with
    the statistics of the batch."""
    _check_ops(bnOps)
    batchNormalizationForwardTraining(
        handle, mode, alpha, beta, xDesc, x, yDesc, y, bnScaleBiasMeanVarDesc, bnScale, bnBias, exponentialAverageFactor,
        resultRunningMean, resultRunningVariance, epsilon, resultSaveMean, resultSaveInvVariance,
    )  # fmt: skip


def batchNormalizationBackwardEx(
    handle: int, mode: int, bnops: int, alphaDataDiff: Any, betaDataDiff: Any, alphaParamDiff: Any, betaParamDiff: Any,
    xDesc: int, x: Any, yDesc: int, y: Any, dyDesc: int, dy: Any, dzDesc: int, dz: Any, dxDesc: int, dx: Any,
    dBnScaleBiasDesc: int, bnScaleData: Any, bnBiasData: Any, dBnScaleData: Any, dBnBiasData: Any, epsilon: float,
    savedMean: Any, savedInvVariance: Any, activationDesc: int, workSpace: Any, workSpaceSizeInBytes: int, reserveSpace: Any,
    reserveSpaceSizeInBytes: int,
) -> None:  # fmt: skip
    """`batchNormalizationBackward`: gradients of x, scale and bias, each alpha * gradient + beta * what is there (DataDiff: of x,
    ParamDiff: of the others).
    """
    _check_ops(bnops)
    batchNormalizationBackward(
        handle, mode, alphaDataDiff, betaDataDiff, alphaParamDiff, betaParamDiff, xDesc, x, dyDesc, dy, dxDesc, dx,
        dBnScaleBiasDesc, bnScaleData, dBnScaleData, dBnBiasData, epsilon, savedMean, savedInvVariance,
    )  # fmt: skip


def getBatchNormalizationForwardTrainingExWorkspaceSize(
    handle: int, mode: int, bnOps: int, xDesc: int, zDesc: int, yDesc: int, bnScaleBiasMeanVarDesc: int, activationDesc: int
) -> int:
    """0: no workspace is used."""
    _check_ops(bnOps)
    _BatchNormCall(handle, mode, 0.0, xDesc, bnScaleBiasMeanVarDesc, yDesc)
    return 0


def getBatchNormalizationBackwardExWorkspaceSize(
    handle: int, mode: int, bnOps: int, xDesc: int, yDesc: int, dyDesc: int, dzDesc: int, dxDesc: int, dBnScaleBiasDesc: int,
    activationDesc: int,
) -> int:  # fmt: skip
    """0: no workspace is used."""
    _check_ops(bnOps)
    _BatchNormCall(handle, mode, 0.0, xDesc, dBnScaleBiasDesc, dyDesc, dxDesc)
    return 0


def getBatchNormalizationTrainingExReserveSpaceSize(handle: int, mode: int, bnOps: int, activationDesc: int, xDesc: int) -> int:
    """0: no reserve space is used.

    activationDesc: an activation descriptor; null: none.
    """
    check_handle(handle)
    _check_ops(bnOps)
    if activationDesc:
        find(ActivationDescriptor, activationDesc, "activationDesc")
    find(TensorDescriptor, xDesc, "xDesc")
    return 0

"""The fused calls of `ooc.cudnn`, which CuPy never had; each is one pass over its arrays. Source: ooc_cuDNN's functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ooc.api.arguments import Array, put
from ooc.api.backward import conv_backward
from ooc.api.forward import conv, conv_transpose
from ooc.api.layers import Activation, Pool
from ooc.cudnn.checks import (
    Checking,
    ConvolutionGeometry,
    Shape,
    array,
    first,
    geometry,
    layout_of,
    one_type,
    windows_of,
    writable,
)
from ooc.cudnn.conv import SIZES, sized, whole_bias
from ooc.cudnn.layers import activation_name
from ooc.cudnn.options import documented
from ooc.cudnn.pool import pool_name, pool_pads
from ooc.cudnn.state import limited
from ooc.ir.op import compute_dtype, numpy_dtype
from ooc.libcudnn import CUDNN_TENSOR_NCHW
from ooc.libcudnn.guard import refusal
from ooc.ops import ConvDgrad, ConvFprop

GRADIENTS = ("gx", "gW", "gb")


@documented
def convolution_bias_activation_forward(
    x: Array, W: Array, b: Array | None, y: Array, pad: Shape, stride: Shape, dilation: Shape | None, groups: int,
    activation_mode: int, coef: float = 0.0, *, z: Array | None = None, auto_tune: bool = False, tensor_core: str = "auto",
    d_layout: int = CUDNN_TENSOR_NCHW, w_layout: int = CUDNN_TENSOR_NCHW,
) -> None:  # fmt: skip
    """y = activation(convolution of x and W + b + z).

    y: n x k x spatial, C-contiguous; overwritten.
    z: a residual like y; default None: none.

    Source: cudnnConvolutionBiasActivationForward; ooc_cudnnConvolutionBiasActivationForward.
    """
    call = _FusedCall("ConvolutionBiasActivationForward", {"x": x, "W": W, "y": y, "z": z}, b, ("z",), tensor_core)
    call.sizes(x, (pad, stride, dilation, groups), (d_layout, w_layout))
    call.outputs("y")
    with call.checks:
        act = Activation(activation_name(activation_mode), float(coef))
        bias = call.fits("x", "W", "y", ConvFprop)
        if z is not None and call.arrays["z"].shape != call.arrays["y"].shape:
            raise refusal("z must have the shape of y")
    call.run(lambda: conv(call["x"], call["W"], bias, activation=act, residual=call.get("z"), out=call["y"], **call.options))


@documented
def convolution_bias_activation_pooling_forward(
    x: Array, W: Array, b: Array | None, y: Array | None, z: Array, pad: Shape, stride: Shape, dilation: Shape | None,
    groups: int, activation_mode: int, coef: float, ksize: Shape, pool_stride: Shape, pool_pad: Shape, pool_mode: int, *,
    auto_tune: bool = False, tensor_core: str = "auto", d_layout: int = CUDNN_TENSOR_NCHW, w_layout: int = CUDNN_TENSOR_NCHW,
) -> None:  # fmt: skip
    """y = activation(convolution of x and W + b), z = y pooled, both in one pass.

    y: n x k x spatial, C-contiguous; overwritten. None: it is never stored.
    z: n x k x spatial, C-contiguous; overwritten. Its extents are those of whole windows on y, or one more (cover_all).

    Source: ooc_cudnnConvolutionBiasActivationPoolingForward.
    """
    call = _FusedCall("ConvolutionBiasActivationPoolingForward", {"x": x, "W": W, "y": y, "z": z}, b, ("y",), tensor_core)
    call.sizes(x, (pad, stride, dilation, groups), (d_layout, w_layout))
    call.outputs("z", *(("y",) if y is not None else ()))
    with call.checks:
        act = Activation(activation_name(activation_mode), float(coef))
        bias = call.fits("x", "W", "y", ConvFprop)
        pool = call.pool("z", ksize, pool_stride, pool_pad, pool_mode)
    out = call["z"] if y is None else (call["y"], call["z"])
    both: dict[str, Any] = {"with_unpooled": True} if y is not None else {}
    call.run(lambda: conv(call["x"], call["W"], bias, activation=act, pool=pool, out=out, **both, **call.options))


@documented
def deconvolution_bias_activation_forward(
    W: Array, x: Array, b: Array | None, y: Array, pad: Shape, stride: Shape, dilation: Shape | None, groups: int,
    activation_mode: int, coef: float = 0.0, *, deterministic: bool = False, auto_tune: bool = False,
    tensor_core: str = "auto", d_layout: int = CUDNN_TENSOR_NCHW, w_layout: int = CUDNN_TENSOR_NCHW,
) -> None:  # fmt: skip
    """y = activation(deconvolution of x by W + b).

    W: k x c/groups x taps, the filters as of the convolution that is transposed.
    x: n x k x spatial.
    y: n x c x spatial, C-contiguous; overwritten. Its extents are any whose convolution has those of x.

    Source: ooc_cudnnDeconvolutionBiasActivationForward.
    """
    call = _FusedCall("DeconvolutionBiasActivationForward", {"W": W, "x": x, "y": y}, b, (), tensor_core, deterministic)
    call.sizes(x, (pad, stride, dilation, groups), (d_layout, w_layout))
    call.outputs("y")
    with call.checks:
        act = Activation(activation_name(activation_mode), float(coef))
        bias = call.fits("y", "W", "x", ConvDgrad)
        extra = call.extra()
    call.run(lambda: conv_transpose(
        call["x"], call["W"], bias, output_padding=extra, activation=act, out=call["y"], **call.options))  # fmt: skip


@documented
def convolution_backward_data_filter_bias(
    x: Array, W: Array, gy: Array, gx: Array | None, gW: Array | None, gb: Array | None, pad: Shape, stride: Shape,
    dilation: Shape | None, groups: int, *, deterministic: bool = False, auto_tune: bool = False, tensor_core: str = "auto",
    d_layout: int = CUDNN_TENSOR_NCHW, w_layout: int = CUDNN_TENSOR_NCHW,
) -> None:  # fmt: skip
    """gx, gW, gb = the gradients of a convolution's x, W and b from the gradient gy of its result, in one pass over gy.

    gy: n x k x spatial, the gradient of the result.

    Source: ooc_cudnnConvolutionBackwardDataFilterBias.
    """
    arrays = {"x": x, "W": W, "gy": gy, "gx": gx, "gW": gW, "gb": gb}
    call = _FusedCall("ConvolutionBackwardDataFilterBias", arrays, None, GRADIENTS, tensor_core, deterministic)
    call.sizes(gy, (pad, stride, dilation, groups), (d_layout, w_layout))
    _gradients(call, "gy", None, 0.0, None)


@documented
def activation_convolution_backward_data_filter_bias(
    x: Array, W: Array, y: Array, gy: Array, gx: Array | None, gW: Array | None, gb: Array | None, pad: Shape,
    stride: Shape, dilation: Shape | None, groups: int, activation_mode: int, coef: float = 0.0, *,
    deterministic: bool = False, auto_tune: bool = False, tensor_core: str = "auto", d_layout: int = CUDNN_TENSOR_NCHW,
    w_layout: int = CUDNN_TENSOR_NCHW,
) -> None:  # fmt: skip
    """gx, gW, gb = the gradients of y = activation(convolution of x and W + b) from y and its gradient gy, in one pass.

    y: n x k x spatial, the forward call's result.
    gy: like y, its gradient.

    Source: ooc_cudnnActivationConvolutionBackwardDataFilterBias.
    """
    arrays = {"x": x, "W": W, "y": y, "gy": gy, "gx": gx, "gW": gW, "gb": gb}
    call = _FusedCall("ActivationConvolutionBackwardDataFilterBias", arrays, None, GRADIENTS, tensor_core, deterministic)
    call.sizes(gy, (pad, stride, dilation, groups), (d_layout, w_layout))
    _gradients(call, "gy", activation_mode, coef, None)


@documented
def pooling_activation_convolution_backward_data_filter_bias(
    x: Array, W: Array, y: Array, gz: Array, gx: Array | None, gW: Array | None, gb: Array | None, pad: Shape,
    stride: Shape, dilation: Shape | None, groups: int, activation_mode: int, coef: float, ksize: Shape,
    pool_stride: Shape, pool_pad: Shape, pool_mode: int, *, deterministic: bool = False, auto_tune: bool = False,
    tensor_core: str = "auto", d_layout: int = CUDNN_TENSOR_NCHW, w_layout: int = CUDNN_TENSOR_NCHW,
) -> None:  # fmt: skip
    """gx, gW, gb = the gradients of z = pooling(y), y = activation(convolution of x and W + b), from y and the gradient gz of z.

    All in one pass.

    y: n x k x spatial, the forward call's result before pooling.
    gz: the gradient of its pooled result, of that shape.

    Source: ooc_cudnnPoolingActivationConvolutionBackwardDataFilterBias.
    """
    arrays = {"x": x, "W": W, "y": y, "gz": gz, "gx": gx, "gW": gW, "gb": gb}
    call = _FusedCall("PoolingActivationConvolutionBackwardDataFilterBias", arrays, None, GRADIENTS, tensor_core, deterministic)
    call.sizes(gz, (pad, stride, dilation, groups), (d_layout, w_layout))
    _gradients(call, "gz", activation_mode, coef, (ksize, pool_stride, pool_pad, pool_mode))


def _gradients(call: _FusedCall, last: str, mode: int | None, coef: float, pooling: tuple[Any, ...] | None) -> None:
    """The wanted gradients of a convolution, with what follows it."""
    gradients = {want: name for want, name in (("dx", "gx"), ("dw", "gW"), ("db", "gb")) if name in call.arrays}
    call.outputs(*gradients.values())
    if not gradients:
        raise ValueError("none of gx, gW and gb is wanted")
    with call.checks:
        act = None if mode is None else Activation(activation_name(mode), float(coef))
        result = "y" if "y" in call.arrays else last
        call.fits("x", "W", result, ConvFprop)
        call.alike(("gx", "x"), ("gW", "W"), *((("gy", "y"),) if last == "gy" and result == "y" else ()))
        pool = None if pooling is None else call.pool(last, *pooling)
        outs = {want: call[name] for want, name in gradients.items() if want != "db"}
        if "db" in gradients:
            outs["db"] = call.sums()
    call.run(lambda: conv_backward(
        call["x"], call["W"], call[last], y=call.get("y"), want=tuple(gradients), activation=act, pool=pool, **outs,
        **call.options))  # fmt: skip
    if "db" in gradients and outs["db"] is not call.arrays["gb"]:
        put(call.arrays["gb"], outs["db"].reshape(call.arrays["gb"].shape).astype(call.arrays["gb"].dtype))


class _FusedCall:
    """A fused call: its arrays as ooc sees them, its geometry."""

    def __init__(
        self, name: str, arrays: Mapping[str, Any], b: Any, optional: tuple[str, ...], tensor_core: Any,
        deterministic: bool = False,
    ) -> None:  # fmt: skip
        self.name, self.given, self.tensor_core = name, {**arrays, "b": b}, tensor_core
        self.arrays = {key: array(key, a) for key, a in arrays.items() if a is not None or key not in optional}
        self.bias = None if b is None else array("b", b)
        self.deterministic = bool(deterministic)
        self.how: ConvolutionGeometry
        self.options: dict[str, Any] = {}

    def sizes(self, like: Any, sizes: tuple[Any, ...], layouts: tuple[int, int]) -> None:
        """Check what all convolutions share; like: an array with the axes of all."""
        self.how = how = geometry(array("x", like).ndim, sizes, self.tensor_core, layouts)
        self.checks = Checking(f"ooc_cudnn{self.name}", self.given, **dict(zip(SIZES, sizes, strict=True)))
        self.options = {
            "stride": how.stride, "padding": how.pad, "dilation": how.dilation, "groups": how.groups,
            "layout": layout_of(how.last), "filter_layout": layout_of(how.filters_last), "deterministic": self.deterministic,
        }  # fmt: skip

    def outputs(self, *names: str) -> None:
        for name in names:
            writable(name, self.arrays[name])

    def run(self, work: Callable[[], Any]) -> None:
        with limited():
            work()

    def get(self, name: str) -> Any:
        return self[name] if name in self.arrays else None

    def __getitem__(self, name: str) -> Any:
        return self.arrays[name]

    def fits(self, big: str, filters: str, small: str, kind: Any) -> Any:
        """Check that arrays are those of a convolution; returns the bias, a value per channel."""
        one_type(self.arrays if self.bias is None else {**self.arrays, "b": self.bias})
        op = sized(kind, {n: self.arrays[n] for n in (big, filters, small) if n in self.arrays}, self.bias, self.how)
        self.result = op.outputs[0].shape if kind is ConvFprop else op.inputs[0].shape
        return None if self.bias is None else whole_bias(self.bias, op.inputs[-1].shape[0])

    def extra(self) -> Shape:
        """What the deconvolution's result has beyond the least extents that make x."""
        y, x, w = (first(self.arrays[n].shape, last) for n, last in
                   (("y", self.how.last), ("x", self.how.last), ("W", self.how.filters_last)))  # fmt: skip
        axes = zip(y[2:], x[2:], w[2:], self.how.stride, self.how.pad, self.how.dilation, strict=True)
        return tuple(e - ((i - 1) * s - 2 * p + d * (t - 1) + 1) for e, i, t, s, p, d in axes)

    def pool(self, name: str, ksize: Any, stride: Any, pad: Any, mode: Any) -> Pool:
        """The pooling from the convolution's result to an array."""
        windows = windows_of(ksize, stride, pad)
        pads = pool_pads(self.result, first(self.arrays[name].shape, self.how.last), *windows)
        return Pool(pool_name(mode), windows[0], windows[1], pads)

    def alike(self, *pairs: tuple[str, str]) -> None:
        for one, other in pairs:
            if one in self.arrays and self.arrays[one].shape != self.arrays[other].shape:
                raise refusal(f"{one} must have the shape of {other}")

    def sums(self) -> Any:
        """Where gb is summed: itself, or an array of the type that is computed in."""
        gb, channels = self.arrays["gb"], self.result[1]
        if gb.size != channels:
            raise refusal(f"gb has {gb.size} values, expected {channels}")
        wide = numpy_dtype(compute_dtype(one_type({"gb": gb})))
        return gb.reshape(-1) if gb.dtype == wide else np.empty(channels, wide)

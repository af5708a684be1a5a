"""Convolutions, their transposes, and fully connected layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ooc.errors import ArgumentError, ShapeError
from ooc.networks.calls import Along, LayerNode
from ooc.networks.layers.base import Layer, N, Shape, Weights, bias_of, bias_weights, spatial, through_activation
from ooc.networks.tensors import Role
from ooc.networks.writer import Writer
from ooc.ops import ConvDgrad, ConvFprop, Convolution, ConvWgrad, Reduce

Pads = tuple[tuple[int, int], ...]


def sink(writer: Writer, op: Any, reads: Sequence[str], parameter: str, along: Along | None) -> None:
    """The call that makes the gradient of a parameter, which sums over the batch."""
    writer.call(op, reads, (writer.sink(parameter),), along, Role.GRADIENT_SUM)


def bias_gradient(writer: Writer, node: LayerNode, dz: str) -> None:
    """db, where the layer has a bias."""
    for b in bias_of(writer, node):
        k, extent = writer.shape(node.made)
        sink(writer, Reduce("bias", writer.batch, k, extent, dtype=writer.dtype(node.made)), (dz,), b, N)


class Filtered(Layer):
    """Base of layers with filters w, perhaps with a bias and an activation behind them: both passes, from the op of each.

    forth, back: the passes of a convolution that make y of x, and dx of dz.
    """

    forth: ClassVar[type[Convolution]] = ConvFprop
    back: ClassVar[type[Convolution]] = ConvDgrad
    bias: bool
    act: str
    coef: float

    def op(self, passing: Any, writer: Writer, node: LayerNode, **epilogue: Any) -> tuple[Any, Along]:
        """A pass of the convolution, and how it follows the batch."""
        raise NotImplementedError

    def forward(self, writer: Writer, node: LayerNode) -> None:
        (x,) = node.reads
        op, along = self.op(self.forth, writer, node, bias=self.bias, act=self.act, coef=self.coef)
        writer.call(op, (x, f"{node.name}.w", *bias_of(writer, node)), (node.made,), along)

    def backward(self, writer: Writer, node: LayerNode, dy: str) -> tuple[str | None, ...]:
        (x,), w = node.reads, f"{node.name}.w"
        dz = through_activation(writer, node, self.act, self.coef, dy)
        bias_gradient(writer, node, dz)
        op, along = self.op(ConvWgrad, writer, node)
        sink(writer, op, (x, dz) if self.forth is ConvFprop else (dz, x), w, along)
        if x not in writer.wanted:
            return (None,)
        dx = writer.gradient_name(x)
        op, along = self.op(self.back, writer, node)
        writer.call(op, (dz, w), (dx,), along)
        return (dx,)


@dataclass(frozen=True)
class ConvLayer(Filtered):
    """y = act(conv(x, w) + b)."""

    k: int
    taps: Shape
    stride: Shape
    pad: Pads
    dilation: Shape
    groups: int = 1
    bias: bool = False
    act: str = "identity"
    coef: float = 0.0

    kind = "conv"

    def _sized(self, passing: Any, n: int, x: Shape, dtype: str, **more: Any) -> Any:
        c, extent = spatial(self.kind, x)
        return passing(
            n, c, extent, self.k, self.taps, self.stride, self.dilation, self.pad, groups=self.groups, dtype=dtype, **more
        )

    def op(self, passing: Any, writer: Writer, node: LayerNode, **epilogue: Any) -> tuple[Any, Along]:
        (x,) = node.reads
        return self._sized(passing, writer.batch, writer.graph.shapes[x], writer.dtype(x), **epilogue), N

    def shape(self, reads: Sequence[Shape]) -> Shape:
        shape: Shape = self._sized(ConvFprop, 1, reads[0], "f32").outputs[0].shape
        return shape[1:]

    def parameters(self, reads: Sequence[Shape], dtype: str) -> dict[str, Weights]:
        shape = (self.k, reads[0][0] // self.groups, *self.taps)
        return {"w": Weights(shape, dtype, fan_in=math.prod(shape[1:]))} | (bias_weights(self.k, dtype) if self.bias else {})


@dataclass(frozen=True)
class ConvTranspose(Filtered):
    """y = act(the gradient of a convolution's input, used forward, + b)."""

    forth, back = ConvDgrad, ConvFprop

    k: int
    taps: Shape
    stride: Shape
    pad: Pads
    output_padding: Shape
    dilation: Shape
    groups: int = 1
    bias: bool = False
    act: str = "identity"
    coef: float = 0.0

    kind = "conv_transpose"

    def _sized(self, passing: Any, n: int, x: Shape, y: Shape, dtype: str, **more: Any) -> Any:
        """A pass of the convolution whose input gradient this is: it goes from y to x."""
        return passing(
            n, self.k, y[1:], x[0], self.taps, self.stride, self.dilation, self.pad, groups=self.groups, dtype=dtype, **more
        )

    def op(self, passing: Any, writer: Writer, node: LayerNode, **epilogue: Any) -> tuple[Any, Along]:
        (x,) = node.reads
        return self._sized(passing, writer.batch, writer.graph.shapes[x], node.shape, writer.dtype(x), **epilogue), N

    def shape(self, reads: Sequence[Shape]) -> Shape:
        _, extent = spatial(self.kind, reads[0])
        axes = zip(extent, self.taps, self.stride, self.pad, self.dilation, self.output_padding, strict=True)
        out = tuple((e - 1) * s - a - b + d * (t - 1) + o + 1 for e, t, s, (a, b), d, o in axes)
        if any(not 0 <= o < s for o, s in zip(self.output_padding, self.stride, strict=True)):
            raise ShapeError(f"{self.kind}: output_padding {self.output_padding}: expected from 0 to stride - 1")
        op = self._sized(ConvDgrad, 1, reads[0], (self.k, *out), "f32")
        if op.out != extent:
            raise ShapeError(f"{self.kind}: {reads[0]} has no transposed convolution with taps {self.taps}, padding {self.pad}")
        return (self.k, *out)

    def parameters(self, reads: Sequence[Shape], dtype: str) -> dict[str, Weights]:
        shape = (reads[0][0], self.k // self.groups, *self.taps)
        fan_in = max(1, reads[0][0] // self.groups * math.prod(self.taps) // math.prod(self.stride))
        return {"w": Weights(shape, dtype, fan_in=fan_in)} | (bias_weights(self.k, dtype) if self.bias else {})


@dataclass(frozen=True)
class Linear(Filtered):
    """y = act(w @ x + b): a pointwise convolution. The samples are its positions, which kernels take together; where sums
    must not depend on the plan they are its images, which may be summed over in parts."""

    k: int
    bias: bool = False
    act: str = "identity"
    coef: float = 0.0

    kind = "linear"

    def shape(self, reads: Sequence[Shape]) -> Shape:
        if len(reads[0]) != 1:
            raise ShapeError(f"{self.kind}: expected a tensor without spatial axes, got shape {reads[0]}; flatten it first")
        if self.k < 1:
            raise ArgumentError(f"{self.kind}: k must be at least 1, got {self.k}")
        return (self.k,)

    def parameters(self, reads: Sequence[Shape], dtype: str) -> dict[str, Weights]:
        shape = (self.k, *reads[0])
        return {"w": Weights(shape, dtype, fan_in=shape[1])} | (bias_weights(self.k, dtype) if self.bias else {})

    def op(self, passing: Any, writer: Writer, node: LayerNode, **epilogue: Any) -> tuple[Any, Along]:
        (x,) = node.reads
        (c,), dtype = writer.graph.shapes[x], writer.dtype(x)
        if writer.deterministic:
            return passing(writer.batch, c, (1,), self.k, (1,), dtype=dtype, **epilogue), N
        op = passing(1, c, (writer.batch,), self.k, (1,), dtype=dtype, layout="channels_last", **epilogue)
        return op, ("w" if passing is ConvDgrad else "q", 1)

"""Normalisations: over the batch, over groups of channels of a sample, across neighbouring channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ooc.errors import ArgumentError, ShapeError
from ooc.networks.calls import Along, LayerNode
from ooc.networks.layers.base import Layer, Shape, Weights, spatial, through_activation
from ooc.networks.tensors import Role
from ooc.networks.writer import Writer
from ooc.ops import BnApply, BnMoments, BnPull, BnSums, LrnBackward, LrnForward, Pointwise

ZEROS, ONES = "zeros", "ones"  # inputs that never change


def scale_and_bias(k: int) -> dict[str, Weights]:
    return {"scale": Weights((k,), "f64", value=1.0), "b": Weights((k,), "f64", value=0.0)}


def plain(writer: Writer, k: int) -> tuple[str, str]:
    """Mean 0 and variance 1, or bias 0 and scale 1, for k channels."""
    zeros, ones = (writer.given(f"{what} of {k}", (k,), "f64", Role.INPUT) for what in (ZEROS, ONES))
    return zeros, ones


@dataclass(frozen=True)
class BatchNormLayer(Layer):
    """y = act((x - mean) / sqrt(var + eps) * scale + b), statistics over the batch and positions.

    frozen: they are always those that run, which do not move.
    """

    eps: float = 1e-5
    momentum: float = 0.1
    act: str = "identity"
    coef: float = 0.0
    frozen: bool = False

    kind = "batch_norm"

    def shape(self, reads: Sequence[Shape]) -> Shape:
        if not self.eps >= 0:
            raise ArgumentError(f"{self.kind}: eps must not be negative, got {self.eps}")
        return reads[0]

    def parameters(self, reads: Sequence[Shape], dtype: str) -> dict[str, Weights]:
        k = reads[0][0]
        running = {
            "mean": Weights((k,), "f64", Role.STATISTIC, value=0.0),
            "var": Weights((k,), "f64", Role.STATISTIC, value=1.0),
        }
        return scale_and_bias(k) | running

    def _op(self, passing: Any, writer: Writer, x: str, **more: Any) -> Any:
        k, extent = writer.shape(x)
        return passing(writer.batch, k, extent, dtype=writer.dtype(x), **more)

    def forward(self, writer: Writer, node: LayerNode) -> None:
        (x,), name = node.reads, node.name
        mean, var = self._statistics(writer, node)
        if writer.mode.trains and not self.frozen:
            moments = self._op(BnMoments, writer, x)
            writer.call(moments, (x,), (mean, var), None)
            writer.updates.append(lambda: self._run(writer, node, moments.count))
        op = self._op(BnApply, writer, x, eps=self.eps, act=self.act, coef=self.coef)
        writer.call(op, (x, mean, var, f"{name}.scale", f"{name}.b"), (node.made,))

    def _statistics(self, writer: Writer, node: LayerNode) -> tuple[str, str]:
        """Mean and variance that x is normalised by."""
        of = " of batch" if writer.mode.trains and not self.frozen else ""
        return f"{node.name}.mean{of}", f"{node.name}.var{of}"

    def _run(self, writer: Writer, node: LayerNode, count: int) -> None:
        """Move the running statistics, once a step."""
        k, _ = writer.shape(node.made)
        for name, share in (("mean", 1.0), ("var", count / max(1, count - 1))):
            running = f"{node.name}.{name}"
            op = Pointwise(1, k, (1,), alpha=1 - self.momentum, beta=self.momentum * share, add="nkw", dtype="f64")
            writer.update(op, (running, f"{running} of batch"), (running,))

    def backward(self, writer: Writer, node: LayerNode, dy: str) -> tuple[str | None, ...]:
        (x,), name = node.reads, node.name
        statistics = self._statistics(writer, node)
        dz = through_activation(writer, node, self.act, self.coef, dy)
        sums = (writer.sink(f"{name}.scale"), writer.sink(f"{name}.b"))
        along = ("n", 1) if self.frozen else None
        writer.call(self._op(BnSums, writer, x, eps=self.eps), (x, dz, *statistics), sums, along, Role.GRADIENT_SUM)
        if x not in writer.wanted:
            return (None,)
        dx = writer.gradient_name(x)
        if self.frozen:
            zeros = plain(writer, writer.shape(x)[0])[0]
            scaled = self._op(BnApply, writer, x, eps=self.eps)
            writer.call(scaled, (dz, zeros, statistics[1], f"{name}.scale", zeros), (dx,), over=((dz, dx),))
            return (dx,)
        pull = self._op(BnPull, writer, x, eps=self.eps)
        writer.call(pull, (x, dz, *statistics, f"{name}.scale", *sums), (dx,), over=((dz, dx),))
        return (dx,)


@dataclass(frozen=True)
class GroupNorm(Layer):
    """As batch normalisation, with statistics over the positions of `groups` groups of channels of each sample; 0: of each
    channel. The groups of all samples are the channels of one batch normalisation. affine: with a scale and a bias."""

    groups: int
    eps: float = 1e-5
    act: str = "identity"
    coef: float = 0.0
    affine: bool = True

    kind = "group_norm"

    def shape(self, reads: Sequence[Shape]) -> Shape:
        k, _ = spatial(self.kind, reads[0])
        if self.groups < 0 or (self.groups and k % self.groups):
            raise ShapeError(f"{self.kind}: groups={self.groups} must divide {k} channels")
        if not self.eps >= 0:
            raise ArgumentError(f"{self.kind}: eps must not be negative, got {self.eps}")
        return reads[0]

    def parameters(self, reads: Sequence[Shape], dtype: str) -> dict[str, Weights]:
        return scale_and_bias(reads[0][0]) if self.affine else {}

    def _sizes(self, writer: Writer, x: str) -> tuple[dict[str, Any], Along]:
        k, extent = writer.shape(x)
        groups = self.groups or k
        positions = (k // groups * extent[0], *extent[1:])
        sizes = {"n": 1, "k": writer.batch * groups, "extent": positions, "dtype": writer.dtype(x)}
        return sizes, ("k", groups)

    def _in_bands(self, writer: Writer, x: str) -> bool:
        """Whether tiles of space sum what statistics are of, in a training step: of single channels."""
        return writer.mode.has_gradients and self.groups in (0, writer.shape(x)[0])

    def forward(self, writer: Writer, node: LayerNode) -> None:
        (x,), name = node.reads, node.name
        sizes, along = self._sizes(writer, x)
        mean, var, unit = f"{name}.mean", f"{name}.var", f"{name}.unit" if self.affine else node.made
        writer.call(BnMoments(**sizes), (x,), (mean, var), along, cut=not self._in_bands(writer, x))
        zeros, ones = plain(writer, sizes["k"])
        k, extent = writer.shape(x)
        act, coef = ("identity", 0.0) if self.affine else (self.act, self.coef)
        op = BnApply(**sizes, eps=self.eps, act=act, coef=coef)
        writer.call(op, (x, mean, var, ones, zeros), (unit,), along, shape=(writer.batch, k, *extent))
        if not self.affine:
            return
        op = BnApply(writer.batch, k, extent, 0.0, self.act, self.coef, dtype=writer.dtype(x))
        writer.call(op, (unit, *plain(writer, k), f"{name}.scale", f"{name}.b"), (node.made,))

    def backward(self, writer: Writer, node: LayerNode, dy: str) -> tuple[str | None, ...]:
        (x,), name = node.reads, node.name
        dz = through_activation(writer, node, self.act, self.coef, dy)
        k, extent = writer.shape(x)
        scaled = self._scaled(writer, node, dz) if self.affine else dz
        if x not in writer.wanted:
            return (None,)
        dx = writer.gradient_name(x)
        sizes, along = self._sizes(writer, x)
        inner = {**sizes, "eps": self.eps}
        statistics = (f"{name}.mean", f"{name}.var")
        each = (f"d.{name}.s1", f"d.{name}.s2")
        writer.call(BnSums(**inner), (x, scaled, *statistics), each, along, cut=not self._in_bands(writer, x))
        _, ones = plain(writer, sizes["k"])
        reads, shape = (x, scaled, *statistics, ones, *each), (writer.batch, k, *extent)
        writer.call(BnPull(**inner), reads, (dx,), along, over=((scaled, dx),), shape=shape)
        return (dx,)

    def _scaled(self, writer: Writer, node: LayerNode, dz: str) -> str:
        """The gradient before scale and bias, whose own are written; dz itself where nobody reads it."""
        (x,), name = node.reads, node.name
        k, extent = writer.shape(x)
        outer: dict[str, Any] = {"n": writer.batch, "k": k, "extent": extent, "eps": 0.0, "dtype": writer.dtype(x)}
        sums = (writer.sink(f"{name}.scale"), writer.sink(f"{name}.b"))
        writer.call(BnSums(**outer), (f"{name}.unit", dz, *plain(writer, k)), sums, ("n", 1), Role.GRADIENT_SUM)
        if x not in writer.wanted:
            return dz
        scaled, (zeros, ones) = f"d.{name}.unit", plain(writer, k)
        writer.call(BnApply(**outer), (dz, zeros, ones, f"{name}.scale", zeros), (scaled,), over=((dz, scaled),))
        return scaled


@dataclass(frozen=True)
class LrnLayer(Layer):
    """Local response normalisation across channels."""

    size: int = 5
    alpha: float = 1e-4
    beta: float = 0.75
    base: float = 2.0

    kind = "lrn"

    def _op(self, passing: Any, n: int, shape: tuple[int, Shape], dtype: str) -> Any:
        k, extent = shape
        return passing(n, k, extent, self.size, (self.size - 1) // 2, self.alpha, self.beta, self.base, dtype=dtype)

    def shape(self, reads: Sequence[Shape]) -> Shape:
        self._op(LrnForward, 1, spatial(self.kind, reads[0]), "f32")
        return reads[0]

    def forward(self, writer: Writer, node: LayerNode) -> None:
        (x,) = node.reads
        writer.call(self._op(LrnForward, writer.batch, writer.shape(x), writer.dtype(x)), (x,), (node.made,))

    def backward(self, writer: Writer, node: LayerNode, dy: str) -> tuple[str | None, ...]:
        (x,) = node.reads
        dx = writer.gradient_name(x)
        writer.call(self._op(LrnBackward, writer.batch, writer.shape(x), writer.dtype(x)), (x, dy), (dx,))
        return (dx,)

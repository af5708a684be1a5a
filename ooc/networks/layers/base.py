"""What a layer is: shapes, parameters, and the calls of its two passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ooc.errors import DtypeError, ShapeError, UnsupportedError
from ooc.files.records import plain
from ooc.ir.op import DTYPES, compute_dtype
from ooc.networks.calls import Along, LayerNode
from ooc.networks.tensors import Weights as Weights
from ooc.networks.writer import Writer
from ooc.ops import ActivationBackward

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layer:
    """Base of the layers: frozen dataclasses of what the user said. takes: how many tensors it reads; None: any number.
    without_channels: whether it reads one number of each sample."""

    kind: ClassVar[str]
    takes: ClassVar[int | None] = 1
    is_loss: ClassVar[bool] = False
    without_channels: ClassVar[bool] = False

    def fields(self) -> dict[str, Any]:
        """What makes it again, for JSON."""
        return plain(self)

    def shape(self, reads: Sequence[Shape]) -> Shape:
        """Shape of the result, per sample. Raises ShapeError for shapes that it does not take."""
        raise NotImplementedError

    def made_dtype(self, read: str) -> str:
        """The dtype of the result, from that of what is read. Raises DtypeError for one that it does not take."""
        if read not in DTYPES:
            raise DtypeError(f"{self.kind}: reads {read}; convert it with g.convert(...) first")
        return read

    def parameters(self, reads: Sequence[Shape], dtype: str) -> dict[str, Weights]:
        """What it has of its own, by short name."""
        return {}

    @property
    def passes(self) -> bool:
        """Whether gradients pass it."""
        return True

    def forward(self, writer: Writer, node: LayerNode) -> None:
        """Write the calls that make the result."""
        raise NotImplementedError

    def backward(self, writer: Writer, node: LayerNode, dy: str) -> tuple[str | None, ...]:
        """Write the calls of its gradients: of its parameters, and of each tensor that it reads, whose name is returned."""
        raise UnsupportedError(f"{node}: ooc has no gradient of this layer; plan with train=False")


def spatial(kind: str, shape: Shape) -> tuple[int, Shape]:
    """Channels and extents of a tensor that has positions."""
    if len(shape) < 2:
        raise ShapeError(f"{kind}: expected a tensor with spatial axes, got shape {shape}")
    return shape[0], shape[1:]


def through_activation(writer: Writer, node: LayerNode, act: str, coef: float, dy: str) -> str:
    """The gradient before an activation, from that behind it; dy itself where there is none."""
    if act == "identity":
        return dy
    k, extent = writer.shape(node.made)
    op = ActivationBackward(writer.batch, k, extent, act, coef, dtype=writer.dtype(node.made))
    dz = f"d.{node.made}/act"
    writer.call(op, (node.made, dy), (dz,), over=((dy, dz),))
    return dz


def bias_of(writer: Writer, node: LayerNode) -> tuple[str, ...]:
    """The bias of a layer, if it has one."""
    return tuple(name for name in node.parameters if name == f"{node.name}.b")


def bias_weights(k: int, dtype: str) -> dict[str, Weights]:
    return {"b": Weights((k,), compute_dtype(dtype), value=0.0)}


N: Along = ("n", 1)

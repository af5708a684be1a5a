"""Arrays of integers around an op: what is read becomes floating in front of the stage that reads it, what is written is
rounded by one more stage. Both happen tile by tile; the integers are what moves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ooc.api.arguments import Array, on_host
from ooc.api.foreign import known
from ooc.errors import ArgumentError, ShapeError
from ooc.ir.bounds import Node
from ooc.ir.fused import Fused
from ooc.ir.op import LAYOUTS, Operand, integer_name, numpy_dtype
from ooc.ops import ConvertIn, ConvertOut

Numbers = tuple[Any, Any]  # scale and offset, None where not given


def converted(
    nodes: Sequence[Node], results: Iterable[str], inputs: Mapping[str, Array], numbers: Mapping[str, Numbers]
) -> tuple[Fused, dict[str, Array]]:
    """An op that reads the integers among its inputs as they are, and its inputs. numbers: scale and offset of some of them.

    Every stage that reads integers has a conversion of its own: so it reads no more than it needs, and where the op is cut
    into parts, each can read the integers again instead of a floating copy. Values per channel, as a bias, are few and are
    converted here. Raises ShapeError for a scale or an offset that does not fit.
    """
    stages: list[Node] = []
    arrays = dict(inputs)
    for i, node in enumerate(nodes):
        reads: dict[str, str] = {}
        for operand, tensor in zip(node.op.inputs, node.reads, strict=True):
            store = integer_name(inputs[tensor].dtype) if tensor in inputs else None
            if store is None or operand.dtype == store or tensor in reads:
                continue
            if len(operand.shape) < 3:
                arrays[tensor] = on_host(inputs[tensor]).astype(numpy_dtype(operand.dtype))
                continue
            reads[tensor] = f"{tensor}@{i}"
            more, values = _numbers(tensor, operand, numbers.get(tensor, (None, None)))
            conversion = reading(operand, store, **more)
            stages.append(Node(conversion, (tensor, *values), (reads[tensor],)))
            arrays |= values
        stages.append(node._replace(reads=tuple(reads.get(t, t) for t in node.reads)))
    return Fused(stages, tuple(results)), arrays


def reading(operand: Operand, store: str, **numbers: Any) -> ConvertIn:
    """The conversion of integers to an operand of an op."""
    n, k, *extent = operand.shape
    return ConvertIn(n, k, tuple(extent), store, **numbers, dtype=operand.dtype, layout=layout_of(operand))


def writing(operand: Operand, store: str, groups: int) -> ConvertOut:
    """The rounding of an op's result to integers. groups: those of its channels."""
    n, k, *extent = operand.shape
    return ConvertOut(n, k, tuple(extent), store, groups, operand.dtype, layout_of(operand))


def layout_of(operand: Operand) -> str:
    """The layout in whose order the axes of an operand lie."""
    return LAYOUTS[operand.memory_order[-1] == 1]


def check_scalable(x: Array, scale: Any, offset: Any) -> None:
    """Raise ArgumentError for a scale or an offset beside an x that is not converted."""
    if (scale is not None or offset is not None) and integer_name(x.dtype) is None:
        raise ArgumentError(f"scale, offset: they convert an x of integers, got {x.dtype}; multiply beforehand, or use ooc.scale")


def _numbers(tensor: str, operand: Operand, numbers: Numbers) -> tuple[dict[str, Any], dict[str, Array]]:
    """Scale and offset as fields of a conversion, or as its operands where one of them is a value per channel."""
    count = operand.shape[1]
    usual = zip(("scale", "offset"), numbers, (1.0, 0.0), strict=True)
    coefs = {name: _values(name, default if number is None else number, count) for name, number, default in usual}
    if all(v.ndim == 0 for v in coefs.values()):
        return {name: float(v) for name, v in coefs.items()}, {}
    each = {f"{tensor}.{name}": np.ascontiguousarray(np.broadcast_to(v, (count,))) for name, v in coefs.items()}
    return {"channelwise": True}, each


def _values(name: str, number: Any, count: int) -> Any:
    try:
        values = np.asarray(on_host(known(name, number)))
        if values.dtype.kind == "c":
            raise TypeError
        values = values.astype(np.float64) + 0.0  # -0.0 is the 0.0 that it equals, as in `as_float`
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError(f"{name}: expected a number or one per channel of x, got {type(number).__name__}") from None
    if values.ndim and values.shape != (count,):
        raise ShapeError(f"{name}: expected a number or {count}, one per channel of x; got shape {values.shape}")
    return values

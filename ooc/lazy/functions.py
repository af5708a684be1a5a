"""Functions of ooc on dask arrays, whose results are dask arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import dask.array
import numpy as np

from ooc.api.arguments import Array
from ooc.api.deferred import Result, renamed
from ooc.api.foreign import labels_of
from ooc.api.labelled import is_labelled, labelled
from ooc.backends.device_array import owner_of
from ooc.errors import BudgetError
from ooc.ir.fused import Fused
from ooc.ir.op import Op, numpy_dtype
from ooc.lazy.blocks import arrays_of
from ooc.networks.calls import FORWARD, Call, Network
from ooc.networks.chains import chainable
from ooc.networks.segments import Border
from ooc.networks.tensors import Mode, Role, Slot, Weights
from ooc.runtime.context import current_device
from ooc.runtime.stored import Stored, StoredArray, array_of, stored_in
from ooc.sources.arrays import ArraySource


def defer(op: Op, inputs: Mapping[str, Array], results: Sequence[Result], deterministic: bool) -> list[Any] | None:
    """What an op will make of its inputs, for each result: dask arrays, in xarray's where one of them is. None where a block of a
    result needs all of what it is made of, or with all of its channels more than the budget."""
    stored = {name: owner_of(array) for name, array in inputs.items() if isinstance(array, StoredArray)}
    if not op.parameters.isdisjoint(stored) or not all(map(_is_chunked, stored.values())):
        return None
    label, device = f"ooc-{op.stages[0].kind.split('.')[0]}", current_device()
    arrays = []
    for name, shape, see in results:
        net = _network(_channels_first(op.only((name,)) if isinstance(op, Fused) else op), inputs, name)
        if not all(chainable(net, call) for call in net.calls):
            return None
        lazy = {x: _seen(inputs[x], net.tensors[x].shape) for x in net.graph.inputs}
        try:
            y = arrays_of(net, lazy, label, device.device_bytes, device.backend.name, deterministic or device.deterministic)
        except BudgetError:
            return None
        y = _as_caller(y, shape, see)
        (operand,) = (o for o in op.outputs if o.name == name)
        told = (labels_of(inputs[o.name]) for o in op.inputs if o.name not in op.parameters)
        labels = next((labels for labels in told if labels is not None), None)
        arrays.append(y if labels is None else labelled(labels, y, renamed(op, operand, len(shape))))
    return arrays


def _is_chunked(source: Any) -> bool:
    """Whether a source is a dask array, or one of xarray around one, without chunks that are empty."""
    array = _chunked(source.array) if isinstance(source, ArraySource) else None
    return isinstance(array, dask.array.Array) and all(0 not in along for along in array.chunks)


def _chunked(array: Any) -> Any:
    return array.data if is_labelled(array) else array


def _channels_first(op: Op) -> Op:
    """The same op on tensors in C order: blocks are read by region, whatever lies in memory."""
    if isinstance(op, Fused):
        return Fused([node._replace(op=_channels_first(node.op)) for node in op.nodes], [o.name for o in op.outputs])
    return replace(op, layout="channels_first") if hasattr(op, "layout") else op  # type: ignore[type-var]


def _network(op: Op, inputs: Mapping[str, Array], result: str) -> Network:
    """An op as a network of one call, of whose outputs one is wanted: what follows the batch is its input, else a parameter."""
    (batch,) = {o.shape[0] for o in op.outputs if o.name == result}
    tensors, weights, values = dict[str, Slot](), dict[str, Weights](), dict[str, Any]()
    for o in op.inputs:
        follows = o.name not in op.parameters
        tensors[o.name] = Slot(o.name, o.shape, o.dtype, Role.INPUT if follows else Role.PARAMETER, follows)
        if not follows:
            weights[o.name] = Weights(o.shape, o.dtype)
            values[o.name] = np.array(inputs[o.name], numpy_dtype(o.dtype)).reshape(o.shape)
    for o in op.outputs:
        tensors[o.name] = Slot(o.name, o.shape, o.dtype, Role.OUTPUT, True)
    crossing = [t for t in tensors.values() if t.role is not Role.PARAMETER]
    shapes, dtypes = {t.name: t.shape[1:] for t in crossing}, {t.name: t.dtype for t in crossing}
    entering = {t.name: t.shape[1:] for t in crossing if t.role is Role.INPUT}
    reads, makes = tuple(o.name for o in op.inputs), tuple(o.name for o in op.outputs)
    call = Call(0, FORWARD, op.kind, op.kind, op, reads, makes, ("n", 1) if "n" in op.dims else None)
    border = Border(str(op), entering, (result,), shapes, dtypes, weights, values)
    return Network(border, batch, Mode.INFER, tensors, (call,), {}, (result,))


def _seen(array: Array, shape: tuple[int, ...]) -> Any:
    """An input of the op as a dask array with the op's axes."""
    stored = stored_in(array)
    if stored is None:
        return dask.array.from_array(np.ascontiguousarray(array))
    assert isinstance(stored.source, ArraySource)
    x = _chunked(stored.source.array)
    axes = [a for run in stored.runs for a in run]
    size = dict.fromkeys(range(x.ndim), 1)
    for run, extent in zip(stored.runs, shape, strict=True):
        size |= _extents(run, extent, x.shape)
    x = x[tuple(slice(lo, lo + size[a]) for a, lo in enumerate(stored.start))]
    others = [a for a in range(x.ndim) if a not in axes]
    return _arranged(x, [*axes, *others], shape)


def _extents(run: Sequence[int], extent: int, shape: Sequence[int]) -> dict[int, int]:
    """Of the axes that are seen as one of some extent: the inner ones are whole."""
    size = {}
    for a in run[:0:-1]:
        size[a], extent = shape[a], extent // shape[a]
    return size | dict.fromkeys(run[:1], extent)


def _as_caller(y: Any, shape: tuple[int, ...], see: Any) -> Any:
    """A result of the op as the caller sees it."""
    whole = ArraySource(dask.array.empty(shape, dtype=y.dtype))
    stored = stored_in(see(array_of("y", whole)))
    assert isinstance(stored, Stored)
    if tuple(y.shape) == shape and sorted(stored.runs) == list(stored.runs):
        return y
    axes = [a for run in stored.runs for a in run]
    y = y.reshape([shape[a] for a in axes])
    return _arranged(y, [axes.index(a) for a in sorted(axes)], shape)


def _arranged(x: Any, order: list[int], shape: tuple[int, ...]) -> Any:
    """A dask array with its axes in another order, and then of another shape of as many numbers."""
    return (x if order == sorted(order) else x.transpose(order)).reshape(shape)

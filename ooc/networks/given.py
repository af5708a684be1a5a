"""Arrays of the caller's: inputs, labels, and where outputs go; checked before anything is computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ooc.api.arguments import as_array
from ooc.errors import DtypeError, ShapeError
from ooc.ir.op import INTEGERS, numpy_dtype
from ooc.networks.calls import Network
from ooc.networks.layers.loss import LABELS
from ooc.runtime.aliasing import overlap
from ooc.sources.base import Source


def inputs_of(net: Network, x: Any) -> dict[str, Any]:
    """The inputs of a network by name. Raises ShapeError, DtypeError."""
    graph = net.graph
    found: dict[str, Any] = {}
    for name, array in _by_name("x", x, tuple(graph.inputs)).items():
        if isinstance(array, Source):
            _check(net, name, array)
            found[name] = array
            continue
        seen = as_array(name, array, integers=graph.dtypes[name] in INTEGERS)
        _check(net, name, seen)
        found[name] = seen if seen.flags.c_contiguous else np.ascontiguousarray(seen)
    return found


def outputs_of(net: Network, out: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Where the outputs of a graph go, by name: arrays of the caller's, which share nothing, or new ones. Raises ShapeError,
    DtypeError."""
    graph, batch = net.graph, net.batch
    if not graph.outputs:
        raise ShapeError(f"forward: the graph {graph.name} has no output; add g.output(...) before planning")
    if out is None:
        return {o: np.empty((batch, *graph.shapes[o]), numpy_dtype(graph.dtypes[o])) for o in graph.outputs}
    found = _by_name("out", out, graph.outputs)
    for name, array in found.items():
        if not isinstance(array, np.ndarray | Source):
            raise ShapeError(f"out: {name}: expected a NumPy array or a source of ooc.create, got {type(array).__name__}")
        _check(net, name, array)
        if isinstance(array, Source):
            continue
        if not array.flags.writeable or not array.flags.c_contiguous:
            raise ShapeError(f"out: {name}: expected an array in C order that can be written")
        others = {**given, **{o: a for o, a in found.items() if o != name}}
        shared = next((o for o, a in others.items() if not isinstance(a, Source) and overlap(array, a)), None)
        if shared is not None:
            raise ShapeError(f"out: {name} shares memory with {shared}; pass an array of its own")
    return found


def labels_of(net: Network, given: Any) -> Any:
    """The labels of a step. Raises ShapeError, DtypeError."""
    tensor, graph = net.tensors[LABELS], net.graph
    try:
        seen = np.asarray(given)
    except ValueError:
        raise ShapeError(f"labels: expected shape {tensor.shape}, got rows of several lengths") from None
    if seen.dtype.kind not in "iu":
        raise DtypeError(f"labels: expected integers, got {seen.dtype}")
    if seen.shape != tensor.shape:
        raise ShapeError(f"labels: expected shape {tensor.shape}, got {seen.shape}")
    loss = next(n for n in graph.nodes if n.layer.kind == "cross_entropy")
    classes = graph.shapes[loss.reads[0]][0]
    if seen.size and int(seen.max()) >= classes:
        raise ShapeError(f"labels: {int(seen.max())} is no class; expected less than {classes}, or negative: left out")
    return np.ascontiguousarray(seen.astype(np.int64))


def _by_name(what: str, given: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Arrays by name; where there is one name, the array alone will do."""
    if not isinstance(given, Mapping):
        if len(names) != 1:
            raise ShapeError(f"{what}: expected a dict of arrays by name: {', '.join(names)}")
        return {names[0]: given}
    if set(given) != set(names):
        expected = "the inputs" if what == "x" else "the outputs"
        raise ShapeError(f"{what}: expected {expected} {', '.join(names)}, got {', '.join(map(str, given))}")
    return dict(given)


def _check(net: Network, name: str, seen: Any) -> None:
    """Raise ShapeError, DtypeError where an array is not as the graph has it."""
    expected, dtype = (net.batch, *net.graph.shapes[name]), numpy_dtype(net.graph.dtypes[name])
    if tuple(seen.shape) != expected:
        raise ShapeError(f"{name}: expected shape {expected}, got {tuple(seen.shape)}")
    if seen.dtype != dtype:
        raise DtypeError(f"{name}: expected {dtype}, got {seen.dtype}; convert it")

"""Arrays of the caller's: inputs, labels, and where outputs go; checked before anything is computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ooc.api.arguments import as_array
from ooc.api.foreign import empty_beside, is_lazy, known, lies_on_device
from ooc.backends.base import Backend
from ooc.errors import ArgumentError, DtypeError, ShapeError, StoreError, UnsupportedError
from ooc.ir.op import INTEGERS, numpy_dtype
from ooc.networks.calls import Network, given_gradient
from ooc.networks.layers.loss import losses_of
from ooc.runtime import tensors
from ooc.runtime.aliasing import overlap
from ooc.runtime.stored import viewed
from ooc.sources.around import innermost
from ooc.sources.arrays import ArraySource, source_of
from ooc.sources.protocol import Source, is_source


def inputs_of(net: Network, x: Any, backend: Backend) -> dict[str, Any]:
    """The inputs of a network by name. Raises ShapeError, DtypeError, UnsupportedError."""
    names = (*net.graph.inputs, *(t.name for t in net.lasting if t.name in net.borrowed))
    return {name: _seen(name, array, *net.size_of(name), backend) for name, array in _by_name("x", x, names).items()}


def gradients_of(net: Network, dy: Any, backend: Backend) -> dict[str, Any]:
    """Gradients of the outputs, by the input that each is. Raises ShapeError, DtypeError, UnsupportedError."""
    graph, gradients = net.graph, {}
    for name, array in _by_name("dy", dy, graph.outputs).items():
        if given_gradient(name) in net.tensors:
            shape = (net.batch, *graph.shapes[name])
            gradients[given_gradient(name)] = _seen(f"dy: {name}", array, shape, graph.dtypes[name], backend)
    return gradients


def fetched(name: str, array: Any, backend: Backend) -> Any:
    """An array's values on the host: itself, or a copy where it lies in the memory of the device, or in a file read by region.
    Raises UnsupportedError, StoreError."""
    try:
        return tensors.fetched(array, backend)
    except UnsupportedError as error:
        raise UnsupportedError(f"{name}: {error}") from None


def _seen(name: str, array: Any, shape: tuple[int, ...], dtype: str, backend: Backend) -> Any:
    """An array of the caller's on the host, or a source. Raises ShapeError, DtypeError, UnsupportedError."""
    array = source_of(name, array) if is_lazy(array) else array
    if is_source(array):
        _check(name, array, shape, dtype)
        _check_open(name, array)
        return array
    values = as_array(name, array, integers=dtype in INTEGERS)
    _check(name, values, shape, dtype)
    return fetched(name, values, backend)


def outputs_of(net: Network, out: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Where the outputs of a graph go, by name: arrays of the caller's, which share nothing, or new ones. Raises ArgumentError,
    DtypeError."""
    graph, batch = net.graph, net.batch
    if not graph.outputs:
        raise ArgumentError(f"forward: the graph {graph.name} has no output; add g.output(...) before planning")
    sizes = {o: ((batch, *graph.shapes[o]), graph.dtypes[o]) for o in graph.outputs}
    if out is None:
        return {o: empty_beside(None, shape, numpy_dtype(dtype)) for o, (shape, dtype) in sizes.items()}
    outputs = _by_name("out", out, graph.outputs)
    _check_outputs("out", outputs, sizes, inputs)
    return outputs


def reached(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """How outputs are written: those of other libraries as sources."""
    return {name: source_of(name, array) if is_lazy(array) else array for name, array in outputs.items()}


def pulled_of(net: Network, dx: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Where gradients of inputs go, by the input; see `outputs_of`."""
    sizes = {name: net.size_of(name) for name in net.gradients}
    outputs = {} if dx is None else dict(dx)
    unknown = set(outputs) - set(sizes)
    if unknown:
        raise ArgumentError(f"dx: no gradient of {', '.join(map(str, sorted(unknown)))}; there are {', '.join(sizes)}")
    _check_outputs("dx", outputs, sizes, inputs)
    return {name: outputs[name] if name in outputs else empty_beside(None, s, numpy_dtype(d)) for name, (s, d) in sizes.items()}


def _check_outputs(
    what: str, outputs: Mapping[str, Any], sizes: Mapping[str, tuple[tuple[int, ...], str]], inputs: Mapping[str, Any]
) -> None:
    """Raise ArgumentError, DtypeError where arrays are not fit to be written to."""
    for name, array in reached(outputs).items():
        if isinstance(array, ArraySource) and not array.writable:
            raise DtypeError(f"{what}: {name}: a {array.path} is no memory, and takes nothing; pass a source of ooc.create")
        if not (isinstance(array, np.ndarray) or is_source(array)):
            raise ArgumentError(f"{what}: {name}: expected a NumPy array or a source of ooc.create, got {type(array).__name__}")
        _check(name, array, *sizes[name])
        if isinstance(array, np.ndarray):
            if not array.flags.writeable or not array.flags.c_contiguous:
                raise ArgumentError(f"{what}: {name}: expected an array in C order that can be written")
        else:
            _check_open(f"{what}: {name}", array)
            if not getattr(innermost(array), "writable", True):
                raise ArgumentError(f"{what}: {name}: opened for reading; open it with mode='r+', or create a new file")
        others = {**inputs, **{o: a for o, a in reached(outputs).items() if o != name}}
        shared = next((o for o, a in others.items() if overlap(*map(_as_array, (array, a)))), None)
        if shared is not None:
            raise ArgumentError(f"{what}: {name} shares memory with {shared}; pass an array of its own")


def _as_array(array: Any) -> Any:
    return viewed(array) if is_source(array) else array


def _check_open(name: str, source: Source) -> None:
    """Raise StoreError for a source that was closed."""
    if getattr(innermost(source), "closed", False):
        raise StoreError(f"{name}: the source is closed; open it again")


def targets_of(net: Network, labels: Any, backend: Backend) -> dict[str, Any]:
    """What the losses of a step compare, by the name of the loss: labels, or targets of the shape of what they read; one array
    for all of them where they take the same. Raises ArgumentError, ShapeError, DtypeError, UnsupportedError."""
    losses, by_name = losses_of(net.graph), isinstance(labels, Mapping)
    slots = {name: net.tensors[loss.inputs.target] for name, loss in losses.items()}
    if by_name and set(labels) != set(losses):
        raise ArgumentError(f"labels: expected the losses {', '.join(losses)}, got {', '.join(map(str, labels))}")
    if not by_name and len({(t.shape, t.dtype) for t in slots.values()}) > 1:
        raise ArgumentError(f"labels: the losses take several; expected a dict by the name of the loss: {', '.join(losses)}")
    targets, ready = dict[str, Any](), dict[Any, Any]()
    for name, tensor in slots.items():
        what, array = (f"labels: {name}", labels[name]) if by_name else ("labels", labels)
        classes = losses[name].layer.classes(net.graph.shapes[losses[name].x][0])
        key = id(array), tensor.shape, tensor.dtype, classes
        if key not in ready and tensor.dtype == "i64":
            ready[key] = _labels(what, array, tensor.shape, classes, backend)
        elif key not in ready:
            ready[key] = _seen(what, array, tensor.shape, tensor.dtype, backend)
        targets[name] = ready[key]
    return targets


def _labels(what: str, labels: Any, shape: tuple[int, ...], classes: int, backend: Backend) -> Any:
    """Labels on the host. Raises ShapeError, DtypeError, UnsupportedError."""
    elsewhere = lies_on_device(labels) or is_lazy(labels) or is_source(labels)
    try:
        array = np.asarray(fetched(what, known(what, labels), backend) if elsewhere else labels)
    except ValueError:
        raise ShapeError(f"{what}: expected shape {shape}, got rows of several lengths") from None
    if array.dtype.kind not in "iu":
        raise DtypeError(f"{what}: expected integers, got {array.dtype}")
    if array.shape != shape:
        raise ShapeError(f"{what}: expected shape {shape}, got {array.shape}")
    if array.size and int(array.max()) >= classes:
        raise ArgumentError(f"{what}: {int(array.max())} is no class; expected less than {classes}, or negative: left out")
    return np.ascontiguousarray(array.astype(np.int64))


def _by_name(what: str, arrays: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Arrays by name; where there is one name, the array alone will do."""
    if not isinstance(arrays, Mapping):
        if len(names) != 1:
            raise ArgumentError(f"{what}: expected a dict of arrays by name: {', '.join(names)}")
        return {names[0]: arrays}
    if set(arrays) != set(names):
        expected = "the inputs" if what == "x" else "the outputs"  # with what is lent
        raise ArgumentError(f"{what}: expected {expected} {', '.join(names)}, got {', '.join(map(str, arrays))}")
    return dict(arrays)


def _check(name: str, array: Any, expected: tuple[int, ...], dtype: str) -> None:
    """Raise ShapeError, DtypeError where an array is not as the graph has it."""
    if tuple(array.shape) != expected:
        raise ShapeError(f"{name}: expected shape {expected}, got {tuple(array.shape)}")
    if array.dtype != numpy_dtype(dtype):
        raise DtypeError(f"{name}: expected {numpy_dtype(dtype)}, got {array.dtype}; convert it")

"""Functions whose results are made later, block by block, by the library whose array they were given."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ooc.api.arguments import Array
from ooc.backends.device_array import owner_of
from ooc.ir.op import Op, Operand
from ooc.runtime.call_options import CallOptions
from ooc.runtime.stored import StoredArray
from ooc.sources.arrays import ArraySource

Result = tuple[str, tuple[int, ...], Callable[[Array], Array]]  # an output's name, its shape for the caller, how the op sees that
LIBRARIES = {"dask": "ooc.lazy.functions", "xarray": "ooc.lazy.functions"}  # by whose arrays, what makes results later


def deferred(op: Op, inputs: Mapping[str, Array], results: Sequence[Result], settings: CallOptions) -> list[Any] | None:
    """What an op will make of its inputs, for each result; None: nobody does that later, or this op not, it is computed now."""
    for array in inputs.values():
        owner = owner_of(array) if isinstance(array, StoredArray) else None
        library = LIBRARIES.get(owner.path.split(".")[0]) if isinstance(owner, ArraySource) else None
        if library is not None:
            arrays: list[Any] | None = importlib.import_module(library).defer(op, inputs, results, settings.deterministic)
            return arrays
    return None


def deferrable(outs: Iterable[Any], blend: tuple[float, float], settings: CallOptions) -> bool:
    """Whether a call has nothing that is done while it is computed."""
    watched = settings.progress or settings.callbacks or settings.trace is not None or settings.resume is not None
    return not watched and blend == (1.0, 0.0) and all(out is None for out in outs)


def renamed(op: Op, output: Operand, axes: int) -> int | None:
    """The axis of a result, which has so many for the caller, that is of other channels than the input's are; None: there is
    none."""
    x = op.inputs[0]
    if len(x.axes) < 2 or len(output.axes) < 2 or not set(x.axes[1].dims).isdisjoint(output.axes[1].dims):
        return None
    if not x.axes[1].dims and x.shape[1] == output.shape[1]:  # all channels are read for each, as by softmax
        return None
    return axes - 1 if output.memory_order[-1] == 1 else 1

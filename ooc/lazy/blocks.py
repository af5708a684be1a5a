"""Dask arrays whose blocks are tiles of a chain: each is computed from the region of the input that it needs, halo included."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import dask.array
import numpy as np
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph
from numpy.ma import MaskedArray, is_masked

from ooc.cache import Cache, lock_across_forks
from ooc.errors import BudgetError, DtypeError
from ooc.ir.op import Block, crop, numpy_dtype
from ooc.ir.region import Region, Span, extents, slices
from ooc.networks.calls import Network
from ooc.networks.chains import Grid, parts, share
from ooc.networks.costs import CallCosts
from ooc.networks.judge import Judge
from ooc.networks.plan import NetworkPlan
from ooc.networks.proposal import Proposal
from ooc.networks.scene import Scene
from ooc.runtime.context import device_here
from ooc.runtime.device import Device
from ooc.schedule.place import FILE
from ooc.sources.arrays import ArraySource
from ooc.sources.units import inside
from ooc.workers.tiles import fitted

PLANS = 1024  # of blocks of a chain, which a process keeps
_plans: Cache[NetworkPlan] = Cache(PLANS)
one = lock_across_forks()  # the budget of a worker is that of its process: one block or task at a time


class Piece(NamedTuple):
    """A part of a tensor that is in memory, as dask brings it.

    Fields:
        region: of the tensor.
        places: where in that region each array goes.
        arrays: the numbers.
    """

    region: Region
    places: tuple[Region, ...]
    arrays: tuple[Any, ...]


class Framed:
    """A tensor of which a region alone is there: what is asked for beyond it, and not needed, is zero."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, region: Region) -> None:
        self.shape, self.dtype, self.region = shape, dtype, region
        self.held = np.empty(extents(region), dtype)

    def __getitem__(self, at: tuple[slice, ...]) -> Any:
        block = Block(self.held, self.region)
        region = tuple(Span(s.start, s.stop) for s in at)
        part = crop(block, region)
        if part.region == region:
            return part.array
        values = np.zeros(extents(region), self.dtype)
        values[inside(part.region, region)] = part.array
        return values

    def __setitem__(self, at: tuple[slice, ...], values: Any) -> None:
        region = tuple(Span(s.start, s.stop) for s in at)
        crop(Block(self.held, self.region), region).array[...] = values


@dataclass(frozen=True, eq=False)
class Blocks:
    """What computes the blocks of one dask array; workers are sent it once.

    Fields:
        net: a chain with one output, its weights among the values of its graph.
        grid: parts of the output along the batch and every spatial axis.
        backend: name of the kind of device.
        budget: bytes, of a process; None: no limit.
        deterministic: whether sums are taken in one order.
        token: tells it from others.
    """

    net: Network
    grid: Grid
    backend: str
    budget: int | None
    deterministic: bool
    token: str

    def __call__(self, cell: Grid, *pieces: Piece) -> Any:
        """A block, from a piece of each input."""
        with one:
            net, sources = self.net, {}
            for name, piece in zip(net.graph.inputs, pieces, strict=True):
                tensor = net.tensors[name]
                sources[name] = ArraySource(framed := Framed(tensor.shape, numpy_dtype(tensor.dtype), piece.region))
                for place, array in zip(piece.places, piece.arrays, strict=True):
                    if isinstance(array, MaskedArray) and is_masked(array):
                        raise DtypeError(f"{name}: masked values; fill them first")
                    framed.held[slices(place)] = array
            (name,) = net.outputs
            out = net.tensors[name]
            block = Framed(out.shape, numpy_dtype(out.dtype), share(out.shape, self.grid, cell))
            with self.plan(cell, _threads()).session() as session:
                session.forward(sources, out={name: ArraySource(block)})
            return block.held

    def plan(self, cell: Grid, threads: int | None) -> NetworkPlan:
        """How a block is computed within the budget, by so many threads (None: the device's); kept. Raises BudgetError."""
        device = device_here(self.backend, self.deterministic, threads)
        return _plans.made((self.token, cell, device), lambda: self._planned(cell, device))

    def _planned(self, cell: Grid, device: Device) -> NetworkPlan:
        scene = Scene(CallCosts(device, self.deterministic), FILE)
        judge, proposal = Judge(self.net, scene, self.budget), Proposal("a block", grids=((0, self.grid),), cells=(cell,))
        try:
            return fitted(judge, proposal, self.net)
        except BudgetError:
            return fitted(judge, replace(proposal, kernels="lean"), self.net)


def _threads() -> int | None:
    """Of the worker of a cluster that this is; None: of the device."""
    try:
        from distributed import get_worker

        return int(get_worker().state.nthreads)
    except (ImportError, ValueError):
        return None


def arrays_of(net: Network, arrays: Mapping[str, Any], label: str, budget: int | None, backend: str, deterministic: bool) -> Any:
    """The output of a chain as a dask array. arrays: dask arrays by input; label: begins the names of tasks. It is cut as the
    first input is, its channels whole."""
    (name,) = net.outputs
    shape, dtype = net.tensors[name].shape, numpy_dtype(net.tensors[name].dtype)
    x = arrays[next(iter(net.graph.inputs))]
    grid = tuple(min(n, e) for n, e in zip((x.numblocks[0], *x.numblocks[2:]), (shape[0], *shape[2:]), strict=True))
    calls = [(str(call.op), call.reads, call.makes) for call in net.calls]
    token = tokenize(calls, net.graph.values, [a.name for a in arrays.values()], grid, budget, backend, deterministic)
    blocks = Blocks(net, grid, backend, budget, deterministic, token)
    key, name_of_blocks = f"ooc-weights-{token}", f"{label}-{token}"
    layer: dict[Any, Any] = {key: blocks}
    blocks.plan((0,) * len(grid), None)  # raises what there is to raise before anything is computed
    cells = list(itertools.product(*map(range, grid)))
    for cell, part in zip(cells, parts(net, net.calls, grid, net.outputs, cells), strict=True):
        pieces = [_piece(arrays[x], part.regions[x]) for x in net.graph.inputs]
        layer[(name_of_blocks, cell[0], 0, *cell[1:])] = (_computed, key, cell, *pieces)
    graph = HighLevelGraph.from_collections(name_of_blocks, layer, dependencies=list(arrays.values()))
    return dask.array.Array(graph, name_of_blocks, chunks_of(shape, grid), dtype=dtype)


def _computed(blocks: Blocks, cell: Grid, *pieces: tuple[Region, tuple[Region, ...], list[Any]]) -> Any:
    return blocks(cell, *(Piece(region, places, tuple(arrays)) for region, places, arrays in pieces))


def chunks_of(shape: Sequence[int], grid: Grid) -> tuple[tuple[int, ...], ...]:
    """The extents of all shares along each axis."""
    cuts = [[e * (i + 1) // n - e * i // n for i in range(n)] for e, n in zip((shape[0], *shape[2:]), grid, strict=True)]
    return (tuple(cuts[0]), (shape[1],), *map(tuple, cuts[1:]))


def _piece(array: Any, region: Region) -> Any:
    """A region of a dask array as a task has it: the parts of its chunks, each cut where the chunk lies."""
    places, tasks = [], []
    cuts = [list(_cut(span, chunks)) for span, chunks in zip(region, array.chunks, strict=True)]
    for combination in itertools.product(*cuts):
        at = tuple(number for number, _, _ in combination)
        places.append(tuple(place for _, _, place in combination))
        tasks.append((operator.getitem, (array.name, *at), tuple(inside for _, inside, _ in combination)))
    return (_listed, region, tuple(places), tasks)


def _listed(*entries: Any) -> tuple[Any, ...]:
    return entries


def _cut(span: Span, chunks: Sequence[int]) -> Iterator[tuple[int, slice, Span]]:
    """The chunks that a span of an axis lies in: which, what of each, and where in the span that is."""
    lo = 0
    for number, extent in enumerate(chunks):
        begin, end = max(lo, span.lo), min(lo + extent, span.hi)
        if begin < end:
            yield number, slice(begin - lo, end - lo), Span(begin - span.lo, end - span.lo)
        lo += extent

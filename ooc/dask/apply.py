"""A planned network on a dask array."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import uuid
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import dask.array
import distributed
import numpy as np
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

from ooc.api.labelled import is_labelled, labelled
from ooc.dask.running import run
from ooc.errors import BudgetError, DtypeError, ShapeError
from ooc.files.records import understood
from ooc.ir.op import numpy_dtype
from ooc.ir.region import Region, Span, extents
from ooc.lazy.blocks import arrays_of, chunks_of, one
from ooc.networks.build import Built
from ooc.networks.calls import Network
from ooc.networks.chains import chainable
from ooc.networks.plan import NetworkPlan
from ooc.networks.segments import Border, segment
from ooc.runtime.context import device_here
from ooc.sources import create
from ooc.sources import open as open_source
from ooc.sources.arrays import kind_of
from ooc.workers.begin import WorkRequest
from ooc.workers.run import run_tasks
from ooc.workers.tasks import check_inference, listed, result_of, run_of, values_of
from ooc.workers.where import Where

USERS = "users"  # a folder of files, one for each that uses what is beside it


def apply(
    plan: NetworkPlan, x: Any, *, parameters: Mapping[str, Any] | None = None, seed: int = 0,
    folder: str | os.PathLike[str] | None = None,
) -> Any:  # fmt: skip
    """The output of a network as a dask array: nothing is computed until it is asked for.

    A network whose results see their neighbourhood alone is computed block by block, in as many blocks as x has along the batch
    and every spatial axis: each reads the region of x that it needs, halo included, which its neighbours compute again. Any
    other (with instance norms or fully connected layers, say, or more in one position than the budget) passes through a folder
    of files, as `ooc.tasks` has it: x goes there chunk by chunk, the tasks run on the cluster that computes, or here, and
    blocks of the result are read from there.

    Parameters:
        plan: of an inference, `Graph.plan(..., train=False)`, with one input and one output; its budget is that of each process,
            beside the blocks that dask holds.
        x: a dask array, or an array of xarray around one: batch x the input's shape, in its dtype.
        parameters, seed: as of `NetworkPlan.session`.
        folder: where files go, which all workers see; default None: the system's folder of temporary files. They are gone when
            dask lets go of the result.

    Returns:
        y: batch x the output's shape; an array of xarray where x is one, with its dims, attributes and the coordinates of axes
            that are as long, channels apart.

    Raises:
        ArgumentError, ShapeError, DtypeError: what does not fit. UnsupportedError: a plan of another kind.
        BudgetError: when it is computed: a layer that no worker can compute within the budget.

    Example:
        >>> import dask.array, ooc, ooc.dask
        >>> g = ooc.Graph("edges")
        >>> g.output(g.conv(g.input("x", (1, 64, 64)), 4, 3, padding=1))
        >>> plan = g.plan(batch=1, train=False, budget="1 MiB")
        >>> y = ooc.dask.apply(plan, dask.array.ones((1, 1, 64, 64), chunks=(1, 1, 32, 32), dtype="float32"))
        >>> y.shape, y.numblocks
        ((1, 4, 64, 64), (1, 1, 2, 2))
    """
    check_inference(plan, "ooc.dask.apply")
    array = x.data if is_labelled(x) else x
    if not isinstance(array, dask.array.Array):
        raise DtypeError(f"x: expected a dask array, or one of xarray around one, got a {kind_of(array)}")
    graph, net = plan.network.graph, plan.network
    ((name, shape),) = graph.inputs.items()
    expected = (net.batch, *shape)
    if tuple(array.shape) != expected or array.dtype != numpy_dtype(graph.dtypes[name]):
        raise ShapeError(
            f"x: expected {expected} of {numpy_dtype(graph.dtypes[name])}, got {tuple(array.shape)} of {array.dtype}"
        )
    values = values_of(plan, parameters or {}, seed)
    y = _blockwise(plan, array, values) if _is_chain(net) else None
    y = _through_files(plan, array, values, folder) if y is None else y
    return labelled(x, y, 1) if is_labelled(x) else y


def _is_chain(net: Network) -> bool:
    (output,) = net.graph.outputs
    same = net.tensors[net.outputs[0]].shape == (net.batch, *net.graph.shapes[output])
    return same and all(chainable(net, call) for call in net.calls)


def _blockwise(plan: NetworkPlan, x: Any, values: Mapping[str, Any]) -> Any:
    """None where a single position, through all layers at once, is more than the budget."""
    chain = segment(plan.network, 0, len(plan.network.calls))
    assert isinstance(chain.graph, Border)
    chain = replace(chain, graph=replace(chain.graph, values={name: v for name, v in values.items() if name in chain.tensors}))
    (name,) = chain.graph.inputs
    exact = plan.scene.costs.deterministic
    with suppress(BudgetError):
        return arrays_of(chain, {name: x}, _label(plan), plan.budget, plan.device.backend.name, exact)
    return None


def _label(plan: NetworkPlan) -> str:
    return f"ooc-{plan.network.graph.name}".replace(" ", "_")


# ---------------------------------------------------------------- through files


class SharedFolder:
    """A folder of files, which goes with the last of these, in whatever process: each has a file in it, and so has each that is
    on its way to another process, or to the disk.

    Parameters:
        path: of the folder. user: name of a file that was made for this one, "": none was.
    """

    def __init__(self, path: str, user: str = "") -> None:
        self.path, self.user = path, user or _used(path)
        weakref.finalize(self, _left, path, self.user)

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedFolder, (self.path, _used(self.path))

    @property
    def x(self) -> str:
        """The file of the input."""
        return os.path.join(self.path, "x.npy")

    @property
    def y(self) -> str:
        """The file of the result."""
        return os.path.join(self.path, "y.npy")


def _used(path: str) -> str:
    """A new file that says that a folder is used."""
    user = uuid.uuid4().hex
    os.makedirs(os.path.join(path, USERS), exist_ok=True)
    with open(os.path.join(path, USERS, user), "xb"):
        return user


def _left(path: str, user: str) -> None:
    """A folder is used by one less; after the last one it goes."""
    with suppress(OSError):
        os.unlink(os.path.join(path, USERS, user))
        if not os.listdir(os.path.join(path, USERS)):
            shutil.rmtree(path, True)


@dataclass(frozen=True, eq=False)
class Inference:
    """What tasks compute; workers are sent it once.

    Fields:
        graph: the network, as JSON.
        batch, budget, deterministic, backend: of the plan.
        values: of parameters and statistics.
        shape, dtype: of the result; inner: its shape as the network has it.
    """

    graph: str
    batch: int
    budget: int | None
    deterministic: bool
    backend: str
    values: Mapping[str, Any]
    shape: tuple[int, ...]
    dtype: str
    inner: tuple[int, ...]

    def request(self, folder: SharedFolder) -> WorkRequest:
        """From file to file."""
        with understood("graph"):
            built = Built.from_json(self.graph)
        device = device_here(self.backend, self.deterministic, None)
        read, into = Where.of("x", folder.x), Where.of("y", folder.y)
        result = result_of(into, self.shape, self.dtype, self.inner)
        return WorkRequest(built, self.batch, device, self.budget, self.deterministic, self.values, read, result)


def _through_files(plan: NetworkPlan, x: Any, values: Mapping[str, Any], folder: str | os.PathLike[str] | None) -> Any:
    net, graph = plan.network, plan.network.graph
    (output,) = graph.outputs
    shape, dtype = (net.batch, *graph.shapes[output]), graph.dtypes[output]
    inference = Inference(
        graph.to_json(), net.batch, plan.budget, plan.scene.costs.deterministic, plan.device.backend.name, values, shape, dtype,
        net.tensors[net.outputs[0]].shape,
    )  # fmt: skip
    parent = None if folder is None else os.fspath(folder)
    how = plan.budget, plan.scene.costs.deterministic, plan.device.backend.name, plan.batch
    token = tokenize(graph.to_json(), values, x.name, how, parent)
    begun, ran, label = f"ooc-folder-{token}", f"ooc-run-{token}", f"{_label(plan)}-{token}"
    layer: dict[Any, Any] = {begun: (_begin, parent, tuple(x.shape), x.dtype.str)}
    for at, region in _regions(x.chunks):
        layer[(f"ooc-spool-{token}", *at)] = (_put, begun, region, (x.name, *at))
    spools = [key for key in layer if isinstance(key, tuple)]
    layer |= {f"ooc-network-{token}": inference, ran: (_run, begun, f"ooc-network-{token}", spools)}
    chunks = _chunks_of_result(x, shape, dtype)
    for at, region in _regions(chunks):
        layer[(label, *at)] = (_get, begun, ran, region)
    return dask.array.Array(
        HighLevelGraph.from_collections(label, layer, dependencies=[x]), label, chunks, dtype=numpy_dtype(dtype)
    )


def _chunks_of_result(x: Any, shape: tuple[int, ...], dtype: str) -> tuple[tuple[int, ...], ...]:
    """As many as x has along the batch and space, where the result has these."""
    if len(shape) == x.ndim > 2:
        space = zip((x.numblocks[0], *x.numblocks[2:]), (shape[0], *shape[2:]), strict=True)
        return chunks_of(shape, tuple(min(n, e) for n, e in space))
    chunks: tuple[tuple[int, ...], ...] = dask.array.core.normalize_chunks("auto", shape, dtype=numpy_dtype(dtype))
    return chunks


def _regions(chunks: Sequence[Sequence[int]]) -> list[tuple[tuple[int, ...], Region]]:
    """The places of chunks, and their regions."""
    edges = [[0, *itertools.accumulate(axis)] for axis in chunks]
    places = itertools.product(*(range(len(axis)) for axis in chunks))
    return [(at, tuple(Span(edges[a][i], edges[a][i + 1]) for a, i in enumerate(at))) for at in places]


def _begin(parent: str | None, shape: tuple[int, ...], dtype: str) -> SharedFolder:
    folder = SharedFolder(tempfile.mkdtemp(prefix="ooc-", dir=parent))
    create(folder.x, shape, np.dtype(dtype)).close()
    return folder


def _put(folder: SharedFolder, region: Region, chunk: Any) -> None:
    with open_source(folder.x, "r+") as x:
        x.write(region, np.ascontiguousarray(chunk))


def _run(folder: SharedFolder, inference: Inference, spools: Sequence[None]) -> None:
    """All tasks: by the workers of the cluster that this is one of, or here."""
    try:
        distributed.get_worker()
    except ValueError:
        with one:
            run_tasks(listed(run_of(inference.request(folder), None, False)))
        return
    with distributed.worker_client() as client:
        run(listed(run_of(inference.request(folder), None, False)), client)


def _get(folder: SharedFolder, ran: None, region: Region) -> Any:
    with open_source(folder.y) as y:
        block = np.empty(extents(region), y.dtype)
        y.read(region, block)
    return block

"""The backend protocol, and the one kernel that every backend shares: fused stages on one tile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from ooc.ir.bounds import Node
from ooc.ir.fused import Fused
from ooc.ir.op import Block, Op, Operand, aligned, crop
from ooc.ir.region import Sizes, Tile, extents

# kernel(tile, blocks by operand name, first, last): computes one tile of an op. `first` and `last` tell where the tile
# stands in its reduction; between them the partial sum is in the block of the op's state operand.
Kernel = Callable[[Tile, Mapping[str, Block], bool, bool], None]


def algorithms_of(kernel: Kernel) -> Mapping[str, int]:
    """How many tiles each algorithm of a library has computed so far, by its name, of kernels that choose among some (`ran`)."""
    return getattr(kernel, "ran", {})


class Offer(NamedTuple):
    """One way to compute an op: its name, and the workspace bytes for tiles of given sizes (ints or arrays). ordered: each
    result's bits depend on its own terms alone, not on the tile. serving: the kernels that compute the stages, each this one or
    one that it passes the stage on to; empty: this one computes all. rounds: results of exact numbers are rounded, too."""

    name: str
    workspace: Callable[[Sizes], Any]
    ordered: bool = False
    serving: tuple[str, ...] = ()
    rounds: bool = False

    def kernels(self, op: Op) -> tuple[str, ...]:
        """The kernel of each stage."""
        return self.serving or (self.name,) * len(op.stages)


class Backend(Protocol):
    """What the executor and the planner need of a place that computes."""

    name: str
    staged: bool  # reaches only pinned host memory: other operands pass a staging ring
    shared: bool  # its memory is the host's memory
    total_bytes: int
    streaming_bytes: int  # what is used of it to stream when no budget is given
    processor: str  # what computes: cpu, or the name of a GPU
    copy_threads: int  # for copies between pageable memory and the staging ring
    index: int  # of the device among those of its kind
    capability: str  # of a CUDA device, such as 9.0; empty elsewhere
    parts_filters: bool  # its kernels serve tiles of some of a filter's taps
    behind: frozenset[str]  # lanes whose steps are issued at once and done later

    def bare(self) -> Backend | None:
        """An equal backend that holds no memory, whose answers to sizes are the same; None where there is none: a GPU's depend on
        what is free of it."""

    @property
    def turn_threads(self) -> int:
        """Threads for reads and writes of files while nothing else runs."""

    @property
    def own_bytes(self) -> int:
        """Device memory that libraries took for themselves, beside any arena."""

    def offers(self, op: Op, in_place: frozenset[str] = frozenset()) -> tuple[Offer, ...]:
        """The ways this backend can compute an op, best first; empty when it cannot. in_place: the operands that are used in
        place, as the caller has them."""

    def why_not(self, op: Op) -> dict[str, str]:
        """For every kernel family that refuses the op, the reason."""

    def place(self, array: Any) -> str:
        """Where an array in memory lies, as the backend sees it: `device` (used in place), `pinned` or `host`. Raises
        UnsupportedError for memory that it does not reach."""

    def allocate(self, space: str, nbytes: int) -> Any:
        """Memory for one space (device, staging, spill): once per run, never inside it."""

    def release(self, space: str, memory: Any) -> None:
        """Take back the memory of a finished run."""

    @property
    def workspace_bytes(self) -> int:
        """Bytes that kernels may work in where all operands are used in place and nothing is limited."""

    def idle(self) -> None:
        """A device was left: memory that is kept for later runs may be wanted by others. Runs of other threads may go on."""

    def view(self, memory: Any, offset: int, shape: tuple[int, ...], dtype: str, order: tuple[int, ...]) -> Any:
        """An array with these axes over a piece of that memory; `order` lists the axes from slowest to fastest."""

    def copy(self, lane: str, target: Any, source: Any) -> None:
        """Copy an array of any strides on a lane."""

    def fetch(self, array: Any) -> Any:
        """The values of an array of the caller's, on the host. Raises UnsupportedError for memory that it does not reach."""

    def put(self, array: Any, values: Any) -> None:
        """Write values of the host into an array of the caller's. Raises UnsupportedError as `fetch` does."""

    def walks(self, array: Any) -> bool:
        """Whether the device could copy from and to an array of the host by itself, were it pinned."""

    def pin(self, array: Any) -> AbstractContextManager[None]:
        """Pin an array of the host for a while. Raises BackendError where the system refuses."""

    def kernel(
        self, op: Op, name: str, sizes: Mapping[str, int], workspace: Any, in_place: frozenset[str] = frozenset()
    ) -> Kernel:
        """Prepare a kernel for tiles up to these sizes, with its workspace. in_place: as for `offers`."""

    def begin(self) -> None:
        """A run begins: what follows on any lane comes after what the calling thread has asked of the device."""

    def lane(self, name: str) -> AbstractContextManager[None]:
        """The calling thread issues the steps of a lane; when this ends, however it does, all of them are complete."""

    def record(self, lane: str) -> Any:
        """A token for everything issued on a lane so far; None when that is already complete."""

    def wait(self, lane: str, token: Any) -> None:
        """Make a lane wait for a token of another lane."""

    def ended(self, token: Any) -> float:
        """When a token of a lane that has ended was complete, on the clock of time.perf_counter."""


def fused_workspace(op: Op, sizes: Sizes, rooms: Sequence[Callable[[Sizes], Any]], keeping: Sequence[bool] | None = None) -> Any:
    """Workspace of a fused op: what stages keep between tiles each for itself, what the others need in turn, and bins for
    the intermediates. keeping: which keep something; default: those with fixed inputs."""
    total: Any = 0
    shared: Any = 0
    keeping = [bool(stage.fixed) for stage in op.stages] if keeping is None else keeping
    for kept, workspace, z in zip(keeping, rooms, op.stage_sizes(sizes), strict=True):
        nbytes = aligned(workspace(z))
        if kept:
            total = total + nbytes
        else:
            shared = nbytes * (nbytes >= shared) + shared * (nbytes < shared)
    return total + shared + sum(bin_bytes(op, sizes)) if isinstance(op, Fused) else total + shared


def bin_bytes(op: Fused, sizes: Sizes) -> list[Any]:
    """Bytes of each bin for intermediates: the largest of those that take turns in it."""
    bins: dict[int, Any] = {}
    tiles = op.stage_sizes(sizes)  # upper bounds: what the stages' maps over the loop give, clipped to their extents
    for tensor, number in op.intermediates:
        stage, operand = op.makers[tensor]
        nbytes = aligned(operand.block_bytes(tiles[stage]))
        have = bins.get(number, 0)
        bins[number] = nbytes * (nbytes >= have) + have * (nbytes < have)
    return [bins[n] for n in sorted(bins)]


class Views(Protocol):
    """What fused stages need of a backend."""

    def view(self, memory: Any, offset: int, shape: tuple[int, ...], dtype: str, order: tuple[int, ...]) -> Any: ...

    def copy(self, lane: str, target: Any, source: Any) -> None: ...


class FusedKernel:
    """Runs the stages of a fused op on one tile, each where and when its results are needed. `bare`: for each stage, what
    serves a tile of it that holds nothing to sum."""

    def __init__(
        self, op: Fused, backend: Views, kernels: Sequence[Kernel], bare: Sequence[Kernel], workspace: Any, offsets: Sequence[int]
    ) -> None:
        self.op, self.backend, self.kernels, self.bare, self.workspace = op, backend, kernels, bare, workspace
        self.offsets = {tensor: offsets[number] for tensor, number in op.intermediates}
        self.fold_of = op.fold_of

    @property
    def ran(self) -> Mapping[str, int]:
        """Of all stages: see `algorithms_of`."""
        total: dict[str, int] = {}
        for kernel in self.kernels:
            for name, tiles in algorithms_of(kernel).items():
                total[name] = total.get(name, 0) + tiles
        return total

    def __call__(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        op, held = self.op, dict(blocks)
        active = [not fold.idle or all(tile[d].lo == 0 for d in fold.idle) for fold in op.folds]
        tiles, none_idle = op.stage_tiles(tile), all(active)
        for i, node in enumerate(op.nodes):
            if op.runs(i, last) and (none_idle or any(active[f] for f in op.feeds[i] or (0,))):
                self._run(i, node, tiles[i], held, blocks, tile)

    def _run(self, i: int, node: Node, stage_tile: Tile, held: dict[str, Block], blocks: Mapping[str, Block], tile: Tile) -> None:
        op, fold = self.op, self.fold_of.get(i)
        bound = {o.name: held[t] for o, t in zip(node.op.inputs, node.reads, strict=True)}
        first = last = True
        if fold is not None:
            first = all(tile[d].lo == 0 for d in fold.reduce)
            last = all(tile[d].hi == op.dims[d] for d in fold.reduce)
            state = zip(node.op.state, fold.state) if fold.state else ()
            bound |= {o.name: blocks[s.name] for o, s in state if s.name in blocks}
        for operand, tensor in zip(node.op.outputs, node.makes, strict=True):
            if operand.name in bound:
                block = bound[operand.name]
            elif tensor in self.offsets:
                block = bound[operand.name] = self._room(tensor, operand, stage_tile)
            elif tensor in blocks:
                block = bound[operand.name] = blocks[tensor]
            else:
                continue
            held[tensor] = block
        if not node.op.empty(stage_tile):
            self.kernels[i](stage_tile, bound, first, last)
        elif fold is not None and fold.reduce and any(bound[o.name].array.size for o in node.op.state if o.name in bound):
            self.bare[i](stage_tile, bound, first, last)  # a part of the reduction may be empty, its result is not
        for tensor in node.makes:
            stored = blocks.get(tensor)
            if last and stored is not None and held[tensor].array is not stored.array:
                self.backend.copy("compute", stored.array, crop(held[tensor], stored.region).array)

    def _room(self, tensor: str, operand: Operand, tile: Tile) -> Block:
        region = operand.region(tile)
        at = self.offsets[tensor]
        return Block(self.backend.view(self.workspace, at, extents(region), operand.dtype, operand.memory_order), region)

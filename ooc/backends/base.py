"""The backend protocol, and the one kernel that every backend shares: a chain of stages on one tile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from ooc.op import ITEM_BYTES, Block, Chain, Op, Operand
from ooc.region import Sizes, Tile, extents

ALIGN = 64

# kernel(tile, blocks by operand name, first, last): computes one tile of an op. `first` and `last` tell where the tile
# stands in its reduction; between them the partial sum is in the block of the op's state operand.
Kernel = Callable[[Tile, Mapping[str, Block], bool, bool], None]


class Offer(NamedTuple):
    """One way to compute an op: its name, and the workspace bytes for tiles of given sizes (ints or arrays)."""

    name: str
    workspace: Callable[[Sizes], Any]


class Backend(Protocol):
    """What the executor and the planner need of a place that computes."""

    name: str
    staged: bool  # reaches only pinned host memory: other operands pass a staging ring
    shared: bool  # its memory is the host's memory
    total_bytes: int

    def offers(self, op: Op) -> tuple[Offer, ...]:
        """The ways this backend can compute an op, best first; empty when it cannot."""

    def why_not(self, op: Op) -> dict[str, str]:
        """For every kernel family that refuses the op, the reason."""

    def allocate(self, space: str, nbytes: int) -> Any:
        """Memory for one space (device, staging, spill): once per run, never inside it."""

    def release(self, space: str, memory: Any) -> None:
        """Take back the memory of a finished run."""

    def view(self, memory: Any, offset: int, shape: tuple[int, ...], dtype: str, order: tuple[int, ...]) -> Any:
        """An array with these axes over a piece of that memory; `order` lists the axes from slowest to fastest."""

    def copy(self, lane: str, target: Any, source: Any) -> None:
        """Copy an array of any strides on a lane."""

    def kernel(self, op: Op, name: str, sizes: Mapping[str, int], workspace: Any) -> Kernel:
        """Prepare a kernel for tiles up to these sizes, with its workspace."""

    def record(self, lane: str) -> Any:
        """A token for everything issued on a lane so far; None when that is already complete."""

    def wait(self, lane: str, token: Any) -> None:
        """Make a lane wait for a token of another lane."""


def padded(nbytes: Any) -> Any:
    """Bytes rounded up to the alignment of a block (ints or arrays)."""
    return -(-nbytes // ALIGN) * ALIGN


def made_bytes(stage: Op, sizes: Sizes) -> Any:
    """Bytes of what a stage makes from one tile."""
    return padded(stage.outputs[0].count(sizes) * ITEM_BYTES[stage.dtype])


def chain_workspace(chain: Op, sizes: Sizes, own: Sequence[Callable[[Sizes], Any]]) -> Any:
    """Workspace of a chain: its intermediates (two take turns) and the workspace of every stage."""
    stage_sizes = chain.stage_sizes(sizes)
    total: Any = 0
    for workspace, z in zip(own, stage_sizes, strict=True):
        total = total + padded(workspace(z))
    made = [made_bytes(s, z) for s, z in zip(chain.stages[:-1], stage_sizes[:-1], strict=True)]
    for turn in (0, 1):
        total = total + _largest(made[turn::2])
    return total


def _largest(values: list[Any]) -> Any:
    best: Any = 0
    for v in values:
        best = v * (v >= best) + best * (v < best)
    return best


class ChainKernel:
    """Runs the stages of a chain on one tile; intermediates live in two workspace buffers that take turns."""

    def __init__(
        self, chain: Chain, backend: Backend, kernels: Sequence[Kernel], workspace: Any, offsets: tuple[int, int]
    ) -> None:
        self.chain, self.backend, self.kernels = chain, backend, kernels
        self.workspace, self.offsets = workspace, offsets

    def __call__(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        made: Block | None = None
        final = len(self.kernels) - 1
        for i, (stage, kernel, own) in enumerate(zip(self.chain.stages, self.kernels, self.chain.stage_tiles(tile), strict=True)):
            given = {o.name: blocks[self.chain.stage_operands[i][o.name].name] for o in stage.inputs[1 if i else 0 :]}
            if made is not None:
                given[stage.inputs[0].name] = made
            if i == 0 and "acc" in blocks:
                given[stage.state[0].name] = blocks["acc"]
            out = stage.outputs[0]
            if out.name not in given:
                given[out.name] = blocks[out.name] if i == final else self._intermediate(i, out, own)
            if all(span.hi > span.lo for span in own.values()):  # a window may lie wholly in padding
                kernel(own, given, first if i == 0 else True, last if i == 0 else True)
            if not last:
                return
            made = given[out.name]

    def _intermediate(self, stage: int, operand: Operand, tile: Tile) -> Block:
        region = operand.region(tile)
        at = self.offsets[stage % 2]
        return Block(self.backend.view(self.workspace, at, extents(region), operand.dtype, operand.memory_order), region)

"""What backends with several kernel families share: which serves an op, what it needs, and fused ops stage by stage."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from ooc.backends.base import FusedKernel, Kernel, Offer, bin_bytes, fused_workspace
from ooc.cache import lock_across_forks
from ooc.ir.fused import Fused
from ooc.ir.op import Op, aligned
from ooc.ir.region import Sizes

Names = frozenset[str]
NOWHERE: Names = frozenset()


def never(op: Op) -> bool:
    """Sums depend on the tiling."""
    return False


def ever(op: Op) -> bool:
    """No sum depends on the tiling."""
    return True


def nothing_beside(op: Op, sizes: Sizes, in_place: Names) -> Any:
    """Operands that are used in place are as good as any."""
    return 0


class Family(NamedTuple):
    """One way to compute single ops: whether it can, the workspace it needs, and how to prepare it. The last argument of
    each is what the backend computes with: the number of threads, or the device.

    empty: its kernels also serve tiles that hold nothing to sum. beside: workspace that it wants on top where these operands are
    used in place, as the caller has them. keeps: what it makes of fixed inputs lasts in the workspace from tile to tile. ordered:
    whether the sums of an op do not depend on the tiling. rounds: whether results of exact numbers are rounded, too."""

    why_not: Callable[[Op], str | None]
    workspace: Callable[[Op, Sizes, Any], Any]
    prepare: Callable[[Op, Sizes, Any, Any], Kernel]
    empty: bool = False
    beside: Callable[[Op, Sizes, Names], Any] = nothing_beside
    keeps: bool = True
    ordered: Callable[[Op], bool] = never
    rounds: bool = False

    def need(self, op: Op, sizes: Sizes, means: Any, in_place: Names) -> Any:
        """All the workspace that it wants."""
        return aligned(self.workspace(op, sizes, means)) + self.beside(op, sizes, in_place)


class Recipe(NamedTuple):
    """How a kernel is put together: for each stage its family, the sizes of its tiles and its piece of the workspace; and
    where the bins of the intermediates begin there."""

    families: tuple[Family, ...]
    tiles: tuple[Sizes, ...]
    pieces: tuple[tuple[int, int], ...]
    offsets: tuple[int, ...]


NO_ROOM = np.empty(0, np.uint8)


def always(op: Op) -> None:
    """Nothing is refused."""


def no_workspace(op: Op, sizes: Sizes, means: Any) -> Any:
    return 0


class FamilyBackend:
    """Base of backends whose kernels come in families, best first; the last one serves every op.

    families: by name. means: what they compute with.
    """

    families: Mapping[str, Family]
    means: Any
    parts_filters = False

    def offers(self, op: Op, in_place: Names = NOWHERE) -> tuple[Offer, ...]:
        """The ways to compute an op, best first. in_place: the operands that are used in place."""
        refused = self.why_not(op)
        offers = []
        for family in self.families:
            if family not in refused:
                serving = tuple(self._serving(s, family) for s in op.stages)
                families = [self.families[name] for name in serving]
                ordered = all(f.ordered(s) for f, s in zip(families, op.stages, strict=True))
                rounds = any(f.rounds for f in families)
                offers.append(Offer(family, _workspace(op, families, self.means, in_place), ordered, serving, rounds))
        return tuple(offers)

    def why_not(self, op: Op) -> dict[str, str]:
        """A family serves an op when it serves at least one of its stages; the others fall through to the next."""
        reasons = {}
        for family in self.families:
            refusals = [self.families[family].why_not(s) for s in op.stages]
            if all(refusals):
                reasons[family] = "; ".join(dict.fromkeys(r for r in refusals if r))
        return reasons

    def _serving(self, stage: Op, family: str) -> str:
        """The first family from this one on that serves a stage; the last serves every one."""
        names = list(self.families)
        following = names[names.index(family) :]
        return next((n for n in following if not self.families[n].why_not(stage)), names[-1])

    def recipe(self, op: Op, name: str, sizes: Mapping[str, int], in_place: Names = NOWHERE) -> Recipe:
        """What serves the stages of an op in tiles up to these sizes, and how they share the workspace."""
        families = [self.families[self._serving(s, name)] for s in op.stages]
        tiles = op.stage_sizes(sizes)
        parts = zip(families, op.stages, tiles, stage_names(op, in_place), strict=True)
        need = [int(aligned(family.need(stage, z, self.means, names))) for family, stage, z, names in parts]
        # Prepared filters stay in their place from tile to tile; other stages take turns in one.
        keeping = keepers(op, families)
        at = max((n for n, kept in zip(need, keeping, strict=True) if not kept), default=0)
        pieces = []
        for nbytes, kept in zip(need, keeping, strict=True):
            pieces.append((at, at + nbytes) if kept else (0, nbytes))
            at += nbytes if kept else 0
        bins = [int(n) for n in bin_bytes(op, sizes)] if isinstance(op, Fused) else []
        offsets = list(itertools.accumulate(bins, initial=at))[:-1]
        return Recipe(tuple(families), tuple(tiles), tuple(pieces), tuple(offsets))

    def kernel(self, op: Op, name: str, sizes: Mapping[str, int], workspace: Any, in_place: Names = NOWHERE) -> Kernel:
        """Prepare a kernel for tiles up to these sizes, with its workspace. in_place: the operands that are used in place."""
        families, tiles, pieces, offsets = self.recipe(op, name, sizes, in_place)
        room = workspace if workspace is not None else NO_ROOM
        kernels = [
            family.prepare(stage, z, room[lo:hi], self.means)
            for family, stage, z, (lo, hi) in zip(families, op.stages, tiles, pieces, strict=True)
        ]
        if not isinstance(op, Fused):
            return kernels[0]
        bare = [k if f.empty else s.reference for k, s, f in zip(kernels, op.stages, families, strict=True)]
        return FusedKernel(op, self, kernels, bare, workspace, offsets)

    def view(self, memory: Any, offset: int, shape: tuple[int, ...], dtype: str, order: tuple[int, ...]) -> Any:
        raise NotImplementedError

    def copy(self, lane: str, target: Any, source: Any) -> None:
        raise NotImplementedError


_taking = lock_across_forks()


class Spare:
    """Memory of finished runs, one piece per space, kept for the next: fresh memory is dear. lasting: for some spaces, up to how
    many bytes their piece stays when nothing runs."""

    def __init__(self, most_bytes: float, lasting: Mapping[str, int] = MappingProxyType({})) -> None:
        self.most_bytes, self.lasting = most_bytes, lasting
        self._kept: dict[str, Any] = {}

    def take(self, space: str, nbytes: int) -> Any | None:
        """The piece of a space, if it is large enough; what is too small is let go of, before more is allocated: the two
        together may be more than the budget. Taken away: runs of other threads must not share it."""
        with _taking:
            kept = self._kept.pop(space, None)
        return kept if kept is not None and kept.nbytes >= nbytes else None

    def nbytes(self, space: str) -> int:
        """Bytes of the piece that is kept for a space."""
        kept = self._kept.get(space)
        return 0 if kept is None else int(kept.nbytes)

    def empty(self) -> None:
        """Let go of all that is kept."""
        with _taking:
            self._kept.clear()

    def rest(self) -> None:
        """Nothing runs: let go of all but what lasts."""
        with _taking:
            for space in [s for s, kept in self._kept.items() if kept.nbytes > self.lasting.get(s, 0)]:
                del self._kept[space]

    def give(self, space: str, memory: Any) -> None:
        """Take back the memory of a run, if it is not too large to keep; of two pieces the larger is kept."""
        with _taking:
            if self.nbytes(space) <= memory.nbytes <= self.most_bytes:
                self._kept[space] = memory


def stage_names(op: Op, in_place: Names) -> list[Names]:
    """Of each stage the operands that may have gaps: those among some of the op's, and parts of what several stages use."""
    if not isinstance(op, Fused):
        return [in_place]
    uses = Counter((*(o.name for o in op.outputs), *(tensor for node in op.nodes for tensor in node.reads)))
    loose, names = in_place | {tensor for tensor, count in uses.items() if count > 1}, []
    for node in op.nodes:
        tensors = zip((*node.op.inputs, *node.op.outputs), (*node.reads, *node.makes), strict=True)
        names.append(frozenset(operand.name for operand, tensor in tensors if tensor in loose))
    return names


def _workspace(op: Op, families: list[Family], means: Any, in_place: Names) -> Callable[[Sizes], Any]:
    parts = [_bound(f, s, means, names) for f, s, names in zip(families, op.stages, stage_names(op, in_place), strict=True)]
    keeping = keepers(op, families)
    return lambda sizes: fused_workspace(op, sizes, parts, keeping)


def keepers(op: Op, families: Sequence[Family]) -> list[bool]:
    """Which stages keep something in the workspace from tile to tile."""
    return [bool(stage.fixed) and family.keeps for stage, family in zip(op.stages, families, strict=True)]


def _bound(family: Family, stage: Op, means: Any, in_place: Names) -> Callable[[Sizes], Any]:
    return lambda sizes: family.need(stage, sizes, means, in_place)

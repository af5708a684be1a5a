"""Several operations fused: a graph of stages computed on one tile while it is resident.

A consumer's input region is its producer's tile, so fusion is composition of index maps, walked from the last stage
back. Tensors that leave half-way, several results, shared inputs and recomputed stages are all the same thing: a
tensor is used by some stages, perhaps stored, and its region is the hull of those uses.
Sources: Halide's bounds inference; cubed's `primitive/DESIGN.md`.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ooc.cache import Cache, cached_property
from ooc.errors import ArgumentError, ShapeError
from ooc.ir.axis_maps import compose, hull, owned
from ooc.ir.bounds import Node, trace_stages
from ooc.ir.op import Fold, Op, Operand, StageMaps
from ooc.ir.region import FEW, Sizes, Span, Tile, least


class Fused(Op):
    """Stages in an order in which each comes after what it reads. `results` are the tensors that leave.

    The last stage's dims are the loop dims. Where the stages form a chain whose first op reduces (behind those that only make
    ready what it reads), its reduction is split and the others run when it is complete; otherwise stages that reduce and
    whose result leaves accumulate it over the loop. Reductions elsewhere happen whole inside a tile. Intermediates live in
    the workspace, clipped to their own extent and padded by their consumer; what neighbouring tiles both need is computed
    by both.
    """

    kind = "fused"

    def __init__(self, nodes: Sequence[Node], results: Sequence[str]) -> None:
        self.nodes = tuple(nodes)
        self.makers: dict[str, tuple[int, Operand]] = {}
        _check(self.nodes, results, self.makers)
        self.results = tuple(t for node in self.nodes for t in node.makes if t in results)
        self.dtype = self.nodes[0].op.dtype

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Fused) and (self.nodes, self.results) == (other.nodes, other.results))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return Fused, (self.nodes, self.results)

    @cached_property
    def stages(self) -> tuple[Op, ...]:  # type: ignore[override]
        return tuple(node.op for node in self.nodes)

    # ---- the loop

    @cached_property
    def head_stage(self) -> int:
        """Where a chain begins: behind the stages that only make ready what it reads."""
        return next((i for i, node in enumerate(self.nodes) if not node.op.inward), 0)

    @cached_property
    def head(self) -> Op | None:
        """The first op of a chain, where it is its reduction that may be split."""
        chain, ready = self.nodes[self.head_stage :], self.nodes[: self.head_stage]
        kept = any(t in self.results for node in ready for t in node.makes)
        return chain[0].op if chain[0].op.reduce and _linear(chain) and not kept else None

    @cached_property
    def head_dims(self) -> dict[str, str]:
        """The reduced dims of the head, each with its name as a loop dim."""
        last = self.nodes[-1].op
        taken = set(last.dims) - set(last.reduce)
        return {d: f"{d}0" if d in taken else d for d in self.head.reduce} if self.head is not None else {}

    @cached_property
    def dims(self) -> dict[str, int]:  # type: ignore[override]
        last = self.nodes[-1].op
        if self.head is None:
            return last.dims
        outer = {d: e for d, e in last.dims.items() if d not in last.reduce}
        return {**outer, **{loop: self.head.dims[d] for d, loop in self.head_dims.items()}}

    @cached_property
    def whole(self) -> frozenset[str]:  # type: ignore[override]
        # The groups of the first op may follow other dims than its channels: keep its reduction whole then.
        grouped = self.head is not None and "g" in self.head.dims
        held = self.nodes[-1].op.whole & frozenset(self.dims)
        return held | (frozenset(self.head_dims.values()) if grouped else frozenset())

    @cached_property
    def stage_maps(self) -> tuple[StageMaps, ...]:  # type: ignore[override]
        return trace_stages(self.nodes, self.results, self.dims, self.head_dims, self.head_stage)

    @cached_property
    def folds(self) -> tuple[Fold, ...]:  # type: ignore[override]
        outputs = {o.name: o for o in self.outputs}
        if self.head is not None:
            # Neighbouring tiles share halo in the first op's output, so it can never be the chain's own output.
            state = tuple(self._seen(o, self.head_stage, "acc") for o in self.head.state)
            return (Fold(state, tuple(self.head_dims.values()), (), tuple(outputs)),)
        return tuple(self._fold(i, outputs) for i in self.fold_stages)

    @cached_property
    def reduce(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(dict.fromkeys(d for fold in self.folds for d in fold.reduce))

    @cached_property
    def state(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return tuple(o for fold in self.folds for o in fold.state)

    @cached_property
    def fold_stages(self) -> tuple[int, ...]:
        """The stage behind each fold: the last one of a chain, or every one whose output leaves."""
        if self.head is not None:
            return (self.head_stage,)
        return tuple(dict.fromkeys(self.makers[t][0] for t in self.results))

    @cached_property
    def fold_of(self) -> dict[int, Fold]:
        """The fold that a stage is behind, if it is."""
        return dict(zip(self.fold_stages, self.folds, strict=True))

    def _fold(self, stage: int, outputs: dict[str, Operand]) -> Fold:
        node, maps = self.nodes[stage], self.stage_maps[stage]
        makes = tuple(t for t in node.makes if t in outputs)
        reduce = tuple(dict.fromkeys(d for r in node.op.reduce for d in maps[r][0].dims))
        moving = {d for t in makes for d in outputs[t].dims}
        tensors = dict(zip((o.name for o in node.op.outputs), node.makes, strict=True))
        state = [self._seen(o, stage, tensors.get(o.name, f"acc.{makes[0]}")) for o in node.op.state] if reduce else []
        return Fold(tuple(state), reduce, tuple(d for d in self.dims if d not in moving | set(reduce)), makes)

    @cached_property
    def ordered_folds(self) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:  # type: ignore[override]
        ordered, ones = [], dict.fromkeys(self.dims, 1)
        for fold, stage in zip(self.folds, self.fold_stages, strict=True):
            maps, op, splits = self.stage_maps[stage], self.nodes[stage].op, dict[str, None]()
            for o in (o for o in op.ordered if o not in op.ordered_steps):  # a loop dim may stand for several of a step
                splits |= dict.fromkeys(maps[o][0].dims)
                if int(maps[o][0].extent(ones)) > 1:
                    break  # the sum takes several at once, as windows reach over them: what lies within these stays whole
            ordered.append((fold.reduce, tuple(splits)))
        return tuple(ordered)

    @cached_property
    def feeds(self) -> tuple[tuple[int, ...], ...]:
        """For each stage, the folds that need it."""
        folds: list[set[int]] = [set() for _ in self.nodes]
        for i in reversed(range(len(self.nodes))):
            if i in self.fold_stages:
                folds[i].add(self.fold_stages.index(i))
            for tensor in self.nodes[i].reads:
                if tensor in self.makers:
                    folds[self.makers[tensor][0]] |= folds[i]
        return tuple(tuple(sorted(f)) for f in folds)

    def stage_idle(self, stage: int) -> tuple[str, ...]:
        if self.head is not None:
            return ()
        idle = [set(self.folds[f].idle) for f in self.feeds[stage]]
        return tuple(d for d in self.dims if all(d in i for i in idle))

    @cached_property
    def fixed(self) -> tuple[str, ...]:  # type: ignore[override]
        pairs = ((n.op, t, o.name) for n in self.nodes for o, t in zip(n.op.inputs, n.reads, strict=True))
        return tuple(dict.fromkeys(t for op, t, name in pairs if name in op.fixed))

    @cached_property
    def preparing(self) -> int:  # type: ignore[override]
        return next((i for i, stage in enumerate(self.stages) if stage.fixed), 0)

    def runs(self, stage: int, complete: bool) -> bool:
        return self.head is None or stage <= self.head_stage or complete

    # ---- operands

    def _seen(self, operand: Operand, stage: int, name: str) -> Operand:
        maps = self.stage_maps[stage]
        return replace(operand, name=name, axes=tuple(compose(a, maps) for a in operand.axes))

    @cached_property
    def computed(self) -> dict[str, Operand]:
        """Every tensor that a stage makes, as an operand of the loop: the region computed in a tile."""
        return {t: self._seen(o, stage, t) for t, (stage, o) in self.makers.items()}

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        uses: dict[str, list[Operand]] = {}
        for i, node in enumerate(self.nodes):
            for operand, tensor in zip(node.op.inputs, node.reads, strict=True):
                if tensor not in self.makers:
                    uses.setdefault(tensor, []).append(self._seen(operand, i, tensor))
        return tuple(self._around(operands) for operands in uses.values())

    def _around(self, uses: list[Operand]) -> Operand:
        axes = zip(*(o.axes for o in uses), strict=True)
        return replace(uses[0], axes=tuple(hull(a, self.dims, s) for a, s in zip(axes, uses[0].shape, strict=True)))

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        used = {t for node in self.nodes for t in node.reads}
        return tuple(self._stored(t) if t in used else self.computed[t] for t in self.results)

    def _stored(self, tensor: str) -> Operand:
        """A tensor that leaves and is used: each tile stores what it owns of what it computes."""
        stage, operand = self.makers[tensor]
        maps = {d: (owned(m, self.dims, e), e) for d, (m, e) in self.stage_maps[stage].items()}
        return replace(operand, name=tensor, axes=tuple(compose(a, maps) for a in operand.axes))

    @cached_property
    def intermediates(self) -> tuple[tuple[str, int], ...]:
        """Tensors that need room in the workspace, each with the number of its bin there; bins are used in turn."""
        direct = {o.name for o in self.outputs if self._direct(o)}
        last_use = {t: i for i, node in enumerate(self.nodes) for t in (*node.makes, *node.reads)}
        busy: dict[int, str] = {}
        bins = []
        for i, node in enumerate(self.nodes):
            for tensor in node.makes:
                if tensor not in direct:
                    number = next(n for n in itertools.count() if n not in busy)
                    busy[number] = tensor
                    bins.append((tensor, number))
            busy = {p: t for p, t in busy.items() if last_use[t] > i}
        return tuple(bins)

    def _direct(self, result: Operand) -> bool:
        """Whether a result is computed where it is stored from: always there, and no more of it than is stored."""
        if not any(result.name in node.reads for node in self.nodes):
            return True
        fold = next(f for f in self.folds if result.name in f.makes)
        same = result.axes == self.computed[result.name].axes
        return same and not fold.idle and not (self.head is not None and result.name in self.nodes[self.head_stage].makes)

    # ---- tiles

    def stage_tiles(self, tile: Tile) -> Sequence[Mapping[str, Span]]:
        """The tile of every stage, first to last."""
        key = tuple([tile[d] for d in self.dims])
        stage_tiles = self._stage_tiles.get(key)
        if stage_tiles is None:
            tiles = tuple({d: m.span(tile).clip(e) for d, (m, e) in maps.items()} for maps in self.stage_maps)
            stage_tiles = self._stage_tiles.keep(key, tiles)
        return stage_tiles

    @cached_property
    def _stage_tiles(self) -> Cache[Sequence[Mapping[str, Span]]]:
        return Cache(FEW)

    def stage_sizes(self, sizes: Sizes) -> list[Sizes]:
        return [{d: least(m.extent(sizes), e) for d, (m, e) in maps.items()} for maps in self.stage_maps]

    def reads_before_writing(self, read: str, output: str) -> bool:
        maker, fold = self.makers[output][0], next(f for f in self.folds if output in f.makes)
        # What a later stage makes of a complete sum is written once; the sum itself is written in every tile.
        if fold.idle or (fold.reduce and self.nodes[maker].op.reduce):
            return False
        return all(i <= maker for i, node in enumerate(self.nodes) if read in node.reads)

    def flops(self, sizes: Sizes) -> Any:
        return sum(s.flops(z) for s, z in zip(self.stages, self.stage_sizes(sizes), strict=True))

    def part(self, first: int, end: int) -> Op:
        """Stages first to end alone: what later stages or the caller need of them are its results."""
        nodes, after = self.nodes[first:end], {t for node in self.nodes[end:] for t in node.reads}
        results = [t for node in nodes for t in node.makes if t in after or t in self.results]
        return graph(nodes, results)

    def only(self, results: Sequence[str]) -> Op:
        """What some of the results need, and no other stage."""
        return needed(self.nodes, results)

    def describe(self) -> str:
        if self._is_chain:
            return " | ".join(node.op.describe() for node in self.nodes)
        return " | ".join(f"{self._wiring(node)} {node.op.describe()}" for node in self.nodes)

    @property
    def _is_chain(self) -> bool:
        return list(self.nodes) == _in_a_row(self.stages) and self.results == self.nodes[-1].makes

    def _wiring(self, node: Node) -> str:
        makes = ",".join(t + "!" * (t in self.results) for t in node.makes)
        return f"{','.join(node.reads)}>{makes}"


def _linear(nodes: Sequence[Node]) -> bool:
    """Whether each stage reads just its predecessor's output, in first place."""
    outputs = {t for node in nodes for t in node.makes}
    inner = [[t for t in node.reads if t in outputs] for node in nodes]
    single = all(len(node.makes) == 1 for node in nodes)
    return (
        single
        and len(nodes) > 1
        and not inner[0]
        and all(uses == [before.makes[0]] and node.reads[0] == uses[0] for uses, node, before in zip(inner[1:], nodes[1:], nodes))
    )


def _check(nodes: Sequence[Node], results: Sequence[str], makers: dict[str, tuple[int, Operand]]) -> None:
    """Fill `makers`; raise ShapeError where tensors do not fit together."""
    known: dict[str, Operand] = {}
    if not nodes or not results:
        raise ArgumentError("fused: at least one stage and one result expected")
    for i, (op, reads, makes) in enumerate(nodes):
        if len(reads) != len(op.inputs) or len(makes) != len(op.outputs):
            raise ShapeError(f"fused: {op} has {len(op.inputs)} inputs and {len(op.outputs)} outputs, got {reads} and {makes}")
        for operand, tensor in zip(op.inputs, reads, strict=True):
            have = known.setdefault(tensor, operand)
            if (have.shape, have.dtype, have.memory_order) != (operand.shape, operand.dtype, operand.memory_order):
                maker = f"{nodes[makers[tensor][0]].op} gives" if tensor in makers else f"{tensor} is"
                raise ShapeError(f"fused: {maker} {have.shape} {have.dtype} but {op} takes {operand.shape} {operand.dtype}")
        for operand, tensor in zip(op.outputs, makes, strict=True):
            if tensor in known:
                raise ArgumentError(f"fused: {tensor} is made after it is used, or twice")
            known[tensor], makers[tensor] = operand, (i, operand)
    live = set(results)
    for op, reads, makes in reversed(nodes):
        if not live & set(makes):
            raise ArgumentError(f"fused: nothing needs what {op} makes")
        live |= set(reads)
    missing = [t for t in results if t not in makers]
    if missing or len(set(results)) != len(results):
        raise ArgumentError(f"fused: results {', '.join(results)}: each once, and made by a stage")


def named_as_chain(nodes: Sequence[Node]) -> tuple[list[Node], dict[str, str]]:
    """Nodes whose tensors have the names of a chain's, and the tensor behind each name: x, w, b of the first op, w.1, b.1 of the
    second, and so on, y:0, y:1 between them; the last makes y."""
    names: dict[str, str] = {}
    for i, (op, reads, makes) in enumerate(nodes):
        for operand, tensor in zip(op.inputs, reads, strict=True):
            names.setdefault(tensor, f"{operand.name}.{i}" if i else operand.name)
        for operand, tensor in zip(op.outputs, makes, strict=True):
            inner = i < len(nodes) - 1 or operand.name in names.values()
            names[tensor] = f"{operand.name}:{i}" if inner else operand.name
    renamed = [Node(op, *(tuple([names[t] for t in tensors]) for tensors in (reads, makes))) for op, reads, makes in nodes]
    return renamed, {name: tensor for tensor, name in names.items()}


def joined(nodes: Sequence[Node], results: Collection[str]) -> tuple[Op, tuple[str, ...], tuple[str, ...]]:
    """Nodes as one op, some of whose tensors leave, and the tensor behind each of its inputs and outputs. Operands are named as
    those of a chain are, so that equal nodes make equal ops."""
    renamed, tensor_of = named_as_chain(nodes)
    op = graph(renamed, [name for node in renamed for name in node.makes if tensor_of[name] in results])
    reads, makes = (tuple(tensor_of[o.name] for o in operands) for operands in (op.inputs, op.outputs))
    return op, reads, makes


def _in_a_row(ops: Sequence[Op]) -> list[Node]:
    """Ops each of which reads what the one before it makes, as nodes."""
    nodes: list[Node] = []
    before: tuple[str, ...] = ()
    for i, op in enumerate(ops):
        reads = (*before, *(f"{i}<{o.name}" for o in op.inputs[len(before) :]))
        nodes.append(Node(op, reads, tuple(f"{i}>{o.name}" for o in op.outputs)))
        before = nodes[-1].makes[:1]
    return named_as_chain(nodes)[0]


def fuse(*ops: Op) -> Op:
    """A chain of ops, each reading the one before it; a chain inside is flattened, and one op alone stays itself."""
    flat = tuple(s for op in ops for s in op.stages)
    if len(flat) == 1:
        return flat[0]
    nodes = _in_a_row(flat)
    return Fused(nodes, nodes[-1].makes)


def graph(nodes: Sequence[Node], results: Sequence[str]) -> Op:
    """A fused op, or the op itself where a single one keeps its own names."""
    if len(nodes) == 1 and nodes[0].reads == tuple(o.name for o in nodes[0].op.inputs):
        op = nodes[0].op
        if nodes[0].makes == tuple(o.name for o in op.outputs) == tuple(results):
            return op
    return Fused(nodes, results)


def needed(nodes: Sequence[Node], results: Sequence[str]) -> Op:
    """The stages that some results need, and no other."""
    live, kept = set(results), []
    for node in reversed(nodes):
        if live & set(node.makes):
            live |= set(node.reads)
            kept.append(node)
    return graph(kept[::-1], results)


def wired(texts: Sequence[tuple[str, Op]]) -> Op:
    """A fused op from descriptors' wiring: `x,w>y!` lists what an op reads and makes, `!` marks what leaves."""
    nodes, results = [], []
    for wiring, op in texts:
        reads, _, makes = wiring.partition(">")
        outputs = makes.split(",")
        results += [t[:-1] for t in outputs if t.endswith("!")]
        nodes.append(Node(op, tuple(reads.split(",")), tuple(t.rstrip("!") for t in outputs)))
    return Fused(nodes, results)

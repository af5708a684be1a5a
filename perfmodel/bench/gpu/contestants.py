"""Who takes part in the benchmarks on a GPU: ooc in core and out of core, PyTorch in core, and loops that people write by hand.

Memory is never managed memory. No library can cap everything that is allocated: each says what holds it back (`cap`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import Any, NamedTuple

import numpy as np

import ooc
from ooc.api.dispatch import nodes_of
from ooc.ir.op import Op, Operand, numpy_dtype
from ooc.ir.region import Region, slices
from ooc.ops import Convolution, PoolForward
from ooc.runtime.engine import execute
from ooc.schedule.place import Place
from perfmodel.bench.gpu.problem import Arrays, Problem

CAPS = {
    "ooc": "the plan's budget", "in_core": "none", "torch_in_core": "none", "copy_all": "none",
    "loop": "chunks of the budget; PyTorch's allocator limited to it",
}  # fmt: skip


TRIED = 4  # algorithms that PyTorch measures: all of them took a minute and a half for the first layer on an H200


def tuned(torch: Any, tf32: bool) -> None:
    """Have PyTorch measure some of cuDNN's algorithms, with TF32 or without."""
    torch.backends.cudnn.benchmark, torch.backends.cudnn.benchmark_limit = True, TRIED
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32


def held_to(torch: Any, budget: int) -> None:
    """Limit PyTorch's allocator on the GPU to a budget; `forget` lifts it."""
    torch.cuda.set_per_process_memory_fraction(min(1.0, budget / torch.cuda.mem_get_info()[1]))


class Contestant(NamedTuple):
    """cap: what limits its memory. ours: whether `run` gives reports of ooc. close: after the last run."""

    run: Callable[[], Any]
    read: Callable[[Region], Any]
    cap: str
    peak: Callable[[], int | None] = lambda: None
    ours: bool = False
    close: Callable[[], None] = lambda: None


def _ooc(problem: Problem, arrays: Arrays, budget: int | None, kind: str) -> Contestant:
    """ooc under a budget from `numpy` or `pinned` memory, stage by stage (`unfused`), or in core (`device`)."""
    where = arrays.where(budget)
    op, inputs = problem.op, dict(problem.inputs)
    if kind == "pinned":
        outs = {o.name: problem.pinned(arrays, o.name) for o in op.outputs}
        inputs = {o.name: problem.pinned(arrays, o.name) for o in op.inputs}
    elif kind == "device":
        outs = {o.name: arrays.device(o.shape, o.dtype) for o in op.outputs}
        inputs = {o.name: arrays.device(o.shape, o.dtype, _reachable(problem, arrays, o)) for o in op.inputs}
    else:
        outs = problem.outputs()
    name, entered = op.outputs[0].name, ExitStack()
    entered.enter_context(where)  # once, as programs do: memory of the device is kept from call to call

    def run() -> Any:
        if kind != "unfused":
            execute(op, inputs, outs)
            return [ooc.last_report()]
        return _unfused(op, inputs, outs)

    def read(region: Region) -> Any:
        part = outs[name][slices(region)]
        if kind != "device":
            return part
        host = arrays.pinned(part.shape, op.outputs[0].dtype)
        arrays.copy("d2h", host, part)
        return host

    return Contestant(run, read, CAPS["in_core" if kind == "device" else "ooc"], ours=True, close=entered.close)


def _copy_all(problem: Problem, arrays: Arrays) -> Contestant:
    """Everything to the device, computed in core, everything back, one after the other: no prefetching of managed memory can be
    faster than these copies."""
    where = arrays.where()
    op, (y,) = problem.op, problem.op.outputs
    hosts = {o.name: problem.pinned(arrays, o.name) for o in op.operands}
    there, entered = {o.name: arrays.device(o.shape, o.dtype) for o in op.operands}, ExitStack()
    entered.enter_context(where)

    def run() -> None:
        for o in op.inputs:
            arrays.copy("h2d", there[o.name], hosts[o.name])
        execute(op, {o.name: there[o.name] for o in op.inputs}, {y.name: there[y.name]})
        arrays.copy("d2h", hosts[y.name], there[y.name])

    return Contestant(run, lambda region: hosts[y.name][slices(region)], CAPS["copy_all"], close=entered.close)


def planned(problem: Problem, arrays: Arrays, budget: int, kind: str) -> list[tuple[Any, ...]]:
    """How ooc cuts a problem from `numpy` or `pinned` memory under a budget."""
    where = arrays.where(budget)
    place = Place.PINNED if kind == "pinned" else Place.HOST
    first = problem.op.inputs[0].name
    places = {o.name: Place.DISK if problem.work.file and o.name == first else place for o in problem.op.operands}
    return [(p.tile, p.order, p.depth, p.kernel) for p in where.planner.plans(problem.op, places)]


def _reachable(problem: Problem, arrays: Arrays, operand: Operand) -> Any:
    """Pinned memory with an operand's values: what a device copies from."""
    host = problem.pinned(arrays, operand.name)
    if isinstance(host, np.memmap):
        host = arrays.pinned(operand.shape, operand.dtype)
        host[...] = problem.inputs[operand.name]
    return host


def _unfused(op: Op, inputs: dict[str, Any], outs: dict[str, Any]) -> list[Any]:
    """One call per stage, everything between them in memory of the host."""
    known, reports, nodes = dict(inputs), [], nodes_of(op)
    for node in nodes:
        outputs = {o.name: outs[t] if t in outs else np.empty(o.shape, numpy_dtype(o.dtype))
                   for o, t in zip(node.op.outputs, node.makes, strict=True)}  # fmt: skip
        execute(node.op, {o.name: known[t] for o, t in zip(node.op.inputs, node.reads, strict=True)}, outputs)
        known |= {t: outputs[o.name] for o, t in zip(node.op.outputs, node.makes, strict=True)}
        reports.append(ooc.last_report())
    return reports


class _Torch:
    """The stages of an op in PyTorch, on rows of the first spatial axis."""

    def __init__(self, problem: Problem, arrays: Arrays) -> None:
        self.torch, self.device, self.problem = arrays.torch, arrays.torch_device, problem
        self.nodes = nodes_of(problem.op)
        self.cuda = self.device == "cuda"
        tuned(self.torch, problem.tf32)
        if any(not isinstance(n.op, (Convolution, PoolForward)) or n.op.kind == "conv.wgrad" for n in self.nodes):
            raise NotImplementedError("no such loop in PyTorch")
        self.weights = {
            t: self.torch.from_numpy(problem.inputs[t]).to(self.device)
            for node in self.nodes for t in node.reads[1:] if t in problem.inputs
        }  # fmt: skip

    def rows(self, lo: int, hi: int) -> list[tuple[int, int, int, int]]:
        """For each stage, the rows that it reads for these rows of the last one, and the padding before and after."""
        rows = []
        for node in reversed(self.nodes):
            op: Any = node.op
            taps = (op.window if isinstance(op, PoolForward) else op.taps)[0]
            first, reach = lo * op.stride[0] - op.pad[0][0], (taps - 1) * (1 if isinstance(op, PoolForward) else op.dilation[0])
            last = (hi - 1) * op.stride[0] - op.pad[0][0] + reach + 1
            extent = op.extent[0]
            lo, hi = max(0, first), min(extent, last)
            rows.append((lo, hi, lo - first, last - hi))
        return rows[::-1]

    def compute(self, x: Any, rows: list[tuple[int, int, int, int]]) -> Any:
        """The last stage's rows from those of x."""
        torch, functional = self.torch, self.torch.nn.functional
        for node, (_, _, before, after) in zip(self.nodes, rows, strict=True):
            op: Any = node.op
            rank, pads = len(op.extent), [0, *(p for p, _ in op.pad[1:])]
            if before or after:
                fill = -math.inf if isinstance(op, PoolForward) else 0.0
                x = functional.pad(x, [0, 0] * (rank - 1) + [before, after], value=fill)
            if isinstance(op, PoolForward):
                x = getattr(functional, f"max_pool{rank}d")(x, op.window, op.stride, pads)
                continue
            w, *b = (self.weights[t] for t in node.reads[1:])
            x = getattr(functional, f"conv{rank}d")(x, w, b[0] if b else None, op.stride, pads, op.dilation, op.groups)
            x = torch.relu_(x) if op.act == "relu" else x
        return x

    def whole(self, x: Any) -> Any:
        """The whole op on tensors on the device."""
        op: Any = self.problem.op
        if op.kind != "conv.dgrad":
            return self.compute(x, self.rows(0, op.outputs[0].shape[2]))
        extra = (op.extent[i] - ((op.out[i] - 1) * op.stride[i] - 2 * op.pad[i][0] + op.taps[i]) for i in range(op.rank))
        transpose = getattr(self.torch.nn.functional, f"conv_transpose{op.rank}d")
        return transpose(x, self.weights["w"], None, op.stride, [p for p, _ in op.pad], list(extra), op.groups, op.dilation)

    def finish(self) -> None:
        if self.cuda:
            self.torch.cuda.synchronize()

    def peak(self) -> int | None:
        return int(self.torch.cuda.max_memory_allocated()) if self.cuda else None


def _torch_in_core(problem: Problem, arrays: Arrays) -> Contestant:
    torch, stages = arrays.torch, _Torch(problem, arrays)
    source = problem.inputs[problem.op.inputs[0].name]
    x = torch.from_numpy(np.array(source)).to(arrays.torch_device)
    held: dict[str, Any] = {}

    def run() -> None:
        held.clear()
        with torch.no_grad():
            held["y"] = stages.whole(x)
        stages.finish()

    return Contestant(run, lambda r: held["y"][slices(r)].cpu().numpy(), CAPS["torch_in_core"], stages.peak)


def _loop(problem: Problem, arrays: Arrays, budget: int, how: str) -> Contestant:
    """Rows by rows: `naive` from pageable memory, one thing after the other; `pinned` the same from pinned memory; `split`
    pinned, with copies that do not block on streams of their own, two chunks in flight."""
    torch, stages, op = arrays.torch, _Torch(problem, arrays), problem.op
    if op.kind == "conv.dgrad":
        raise NotImplementedError("no loop over a transposed convolution")
    first, output, depth = op.inputs[0], op.outputs[0], 2 if how == "split" else 1
    per_row = sum(math.prod(n.op.outputs[0].shape) * numpy_dtype(op.dtype).itemsize for n in stages.nodes) + first.nbytes
    step = max(1, int(budget / 4 / depth * output.shape[2] / per_row))  # cuDNN wants room beside it
    x, y = problem.inputs[first.name], problem.outputs()[output.name]
    if how != "naive":
        x, y = problem.pinned(arrays, first.name), problem.pinned(arrays, output.name)
    to, of = torch.from_numpy(y), torch.from_numpy(x) if x.flags.writeable else None
    streams = [torch.cuda.Stream() for _ in range(depth)] if stages.cuda and how == "split" else [None] * depth
    if stages.cuda:
        held_to(torch, budget)
        torch.cuda.reset_peak_memory_stats()

    def run() -> None:
        with torch.no_grad():
            for i, lo in enumerate(range(0, output.shape[2], step)):
                hi = min(lo + step, output.shape[2])
                rows = stages.rows(lo, hi)
                stream = streams[i % depth]
                with torch.cuda.stream(stream) if stream is not None else nullcontext():
                    if stream is not None:
                        stream.synchronize()  # what it did two chunks ago is done: its memory may be used again
                    a, b = rows[0][:2]
                    part = of[:, :, a:b] if of is not None else torch.from_numpy(np.array(x[:, :, a:b]))
                    there = _moved(torch, part, arrays.torch_device, stream is not None)
                    result = stages.compute(there, rows)
                    _back(to[:, :, lo:hi], result, stream is not None)
        stages.finish()

    return Contestant(run, lambda r: y[slices(r)], CAPS["loop"], stages.peak)


def _moved(torch: Any, part: Any, device: str, behind: bool) -> Any:
    """Rows of a tensor on the device, channel by channel: each is contiguous, so that no copy is made on the host."""
    there = torch.empty(part.shape, dtype=part.dtype, device=device)
    for n in range(part.shape[0]):
        for c in range(part.shape[1]):
            there[n, c].copy_(part[n, c], non_blocking=behind)
    return there


def _back(target: Any, result: Any, behind: bool) -> None:
    for n in range(result.shape[0]):
        for c in range(result.shape[1]):
            target[n, c].copy_(result[n, c], non_blocking=behind)


def contestants(
    problem: Problem, arrays: Arrays, budget: int, earlier: int, who: str = "ours"
) -> dict[str, Callable[[], Contestant]]:
    """Who takes part, ours or peers, each made when it is its turn; in core first, because the bound needs its time. earlier: the
    budget under which they were measured, or 0: what has another plan under a further budget is measured once more."""
    if who == "peers":
        return {} if earlier or arrays.torch is None else peers(problem, arrays, budget)
    ooc_alone: dict[str, Callable[[], Contestant]] = {
        f"ooc_{kind}": lambda kind=kind: _ooc(problem, arrays, budget, kind)  # type: ignore[misc]
        for kind in ("pinned", "numpy")
        if not earlier or planned(problem, arrays, budget, kind) != planned(problem, arrays, earlier, kind)
    }
    if earlier:
        return ooc_alone
    makers = {"in_core": lambda: _ooc(problem, arrays, None, "device"), **ooc_alone}
    if who == "micro":
        makers = {name: makers[name] for name in ("in_core", "ooc_pinned")}
        makers["copy_all"] = lambda: _copy_all(problem, arrays)
        return makers | ({} if arrays.torch is None else {"torch_split": lambda: _loop(problem, arrays, budget, "split")})
    if who == "decisive":
        return {name: makers[name] for name in ("in_core", "ooc_pinned")}
    if len(problem.op.stages) > 1:
        makers["ooc_unfused"] = lambda: _ooc(problem, arrays, budget, "unfused")
    return makers


def peers(problem: Problem, arrays: Arrays, budget: int) -> dict[str, Callable[[], Contestant]]:
    """PyTorch in core, and its loops."""
    makers = {"torch_in_core": lambda: _torch_in_core(problem, arrays)}
    for how in ("naive", "pinned", "split"):
        makers[f"torch_{how}"] = lambda how=how: _loop(problem, arrays, budget, how)  # type: ignore[misc]
    return makers

"""Benchmarks on a GPU: out of core from host memory, beside the same work in core and loops that people write by hand.

Workloads are single layers and short chains whose tensors exceed a device budget. Every contestant's result is compared with
the CPU's at sampled places. Memory is never managed memory. No library can cap everything that is allocated: each row says
what held its contestant back (`cap`).
"""

from __future__ import annotations

import gc
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator, default_rng  # at once: an interrupt is lost while NumPy does it later

import ooc
from ooc.backends.cpu import CpuBackend
from ooc.calls import nodes_of
from ooc.descriptor import parse
from ooc.device import Device
from ooc.engine import execute
from ooc.op import Block, Op, Operand, numpy_dtype
from ooc.ops import Convolution, Pool
from ooc.region import Region, Span, slices
from perfmodel.reading import closest, load_device

GIB = 1 << 30
Say = Callable[[str], None]
Row = dict[str, Any]


class Workload(NamedTuple):
    """A problem with one size per scale: tiny (tests), small, full. file: x is mapped from a file."""

    name: str
    problem: str
    sizes: tuple[int, int, int]
    tf32: tuple[bool, ...] = (False,)
    file: bool = False

    def op(self, scale: int) -> Op:
        """`S` stands for the size, `H` for half of it."""
        size = self.sizes[scale]
        return parse(self.problem.replace("S", str(size)).replace("H", str(size // 2)).replace("C", str((16, 2048, 2048)[scale])))


WORKLOADS = (
    Workload("W1", "conv.fprop n=1 c=C h=S w=S k=C r=3 s=3 pad=1", (16, 512, 1024), (False, True)),
    Workload("W2", "conv.fprop n=1 c=32 d=S h=S w=S k=32 t=3 r=3 s=3 pad=1", (8, 320, 512), (True,)),
    Workload("W3", "conv.fprop n=1 c=3 h=S w=S k=32 r=7 s=7 stride=2 pad=3 dtype=f16", (64, 16384, 32768), (False,), True),
    Workload(
        "W4", "conv.fprop n=1 c=64 h=S w=S k=64 r=3 s=3 pad=1 bias=1 act=relu | pool.max n=1 k=64 h=S w=S window=2",
        (14, 3072, 6144), (True,),
    ),
    Workload(
        "W4 stem", "conv.fprop n=1 c=1 d=S h=S w=S k=32 t=3 r=3 s=3 pad=1 bias=1 act=relu | conv.fprop n=1 c=32 d=S h=S w=S k=32 "
        "t=3 r=3 s=3 pad=1 bias=1 act=relu | pool.max n=1 k=32 d=S h=S w=S window=2", (8, 320, 512), (True,),
    ),
    Workload("W7 depthwise", "conv.fprop n=1 c=64 h=S w=S k=64 r=3 s=3 pad=1 groups=64", (14, 2048, 6144)),
    Workload("W7 grouped", "conv.fprop n=1 c=64 h=S w=S k=64 r=3 s=3 pad=1 groups=4", (14, 2048, 6144)),
    Workload("W7 dilated", "conv.fprop n=1 c=64 h=S w=S k=64 r=3 s=3 pad=4 dilation=4", (14, 2048, 6144)),
    Workload("W7 stride 2, odd", "conv.fprop n=1 c=33 h=S w=S k=65 r=5 s=5 pad=2 stride=2", (15, 2047, 6143)),
    Workload("W7 transposed", "conv.dgrad n=1 c=64 h=S w=S k=64 r=3 s=3 pad=1 stride=2", (14, 2048, 6144)),
)  # fmt: skip
BUDGETS = (4 * GIB, 16 * GIB)
TINY_BUDGETS = (64 << 10, 192 << 10)
TOLERANCE = {"f64": 1e-9, "f32": 1e-4, "f16": 1e-2, "bf16": 5e-2}
CAPS = {
    "ooc": "the plan's budget", "in_core": "none", "torch_in_core": "none",
    "loop": "chunks of the budget; PyTorch's allocator limited to it",
}  # fmt: skip


class Arrays:
    """Where a contestant's tensors are, on a device: pageable, pinned, or in the device's memory."""

    def __init__(self, backend: Any, torch: Any = None, torch_device: str = "cuda") -> None:
        self.backend, self.torch, self.torch_device = backend, torch, torch_device

    def pinned(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Pinned memory of the host."""
        memory = self.backend._fresh("staging", math.prod(shape) * numpy_dtype(dtype).itemsize)
        return self.backend.view(memory, 0, shape, dtype, tuple(range(len(shape))))

    def device(self, shape: tuple[int, ...], dtype: str, values: Any = None) -> Any:
        """Memory of the device, with values."""
        memory = self.backend._fresh("device", math.prod(shape) * numpy_dtype(dtype).itemsize)
        array = self.backend.view(memory, 0, shape, dtype, tuple(range(len(shape))))
        if values is not None:
            self.backend.begin()
            with self.backend.lane("h2d"):
                self.backend.copy("h2d", array, values)
        return array

    def link(self, nbytes: int = GIB) -> dict[str, float]:
        """Bytes per second between pinned memory and the device, each way alone; the best of three."""
        host, there = self._pair(nbytes)
        found = {}
        for lane, target, source in (("h2d", there, host), ("d2h", host, there)):
            seconds = []
            for _ in range(3):
                self.backend.begin()
                begin = time.perf_counter()
                with self.backend.lane(lane):
                    self.backend.copy(lane, target, source)
                seconds.append(time.perf_counter() - begin)
            found[lane] = host.nbytes / min(seconds)
        return found

    def _pair(self, nbytes: int) -> tuple[Any, Any]:
        shape = (nbytes // 4,)
        host = self.pinned(shape, "f32")
        host[...] = 1
        return host, self.device(shape, "f32")


class Problem:
    """An op with its data in pageable memory (x perhaps in a file), and what its result is at sampled places."""

    def __init__(self, work: Workload, op: Op, folder: Path, tf32: bool) -> None:
        self.work, self.op, self.tf32, self.folder = work, op, tf32, folder
        rng = default_rng(0)
        self.inputs = {o.name: _noise(rng, o.shape, o.dtype) for o in op.inputs}
        if work.file:
            x = self.inputs["x"]
            mapped = np.lib.format.open_memmap(folder / "x.npy", "w+", x.dtype, x.shape)
            mapped[...] = x
            mapped.flush()
            self.inputs["x"] = np.load(folder / "x.npy", mmap_mode="r")
        self.samples = list(sampled(op, self.inputs, rng))
        self.in_core_seconds = math.nan
        self._pinned: dict[str, Any] = {}

    def pinned(self, arrays: Arrays, name: str) -> Any:
        """An operand in pinned memory: made once, for pinning takes longer than most measurements. x in a file stays there."""
        if self.work.file and name in self.inputs and name == self.op.inputs[0].name:
            return self.inputs[name]
        if name not in self._pinned:
            operand = next(o for o in self.op.operands if o.name == name)
            self._pinned[name] = arrays.pinned(operand.shape, operand.dtype)
            if name in self.inputs:
                self._pinned[name][...] = self.inputs[name]
        return self._pinned[name]

    def outputs(self) -> dict[str, Any]:
        return {o.name: np.empty(o.shape, numpy_dtype(o.dtype)) for o in self.op.outputs}

    def check(self, fetch: Callable[[Region], Any]) -> None:
        """Raise unless a result is right at every sampled place."""
        bound = max(TOLERANCE[self.op.dtype], 5e-3 if self.tf32 else 0)
        for region, wanted in self.samples:
            error = np.max(np.abs(np.asarray(fetch(region), np.float64) - wanted))
            if not error <= bound * max(1.0, float(np.max(np.abs(wanted)))):
                raise RuntimeError(f"wrong by {error:.3g} at {region}")


def _noise(rng: Generator, shape: tuple[int, ...], dtype: str) -> Any:
    """Random numbers, the same few millions over and over: drawing billions would take minutes."""
    count = math.prod(shape)
    block = (rng.standard_normal(min(count, 1 << 22), np.float32) / 4).astype(numpy_dtype(dtype))
    found = np.empty(count, numpy_dtype(dtype))
    for at in range(0, count, block.size):
        found[at : at + block.size] = block[: count - at]
    return found.reshape(shape)


def sampled(op: Op, inputs: dict[str, Any], rng: Generator, count: int = 4) -> Iterator[tuple[Region, Any]]:
    """Random regions of the output and what they should hold: the op on the CPU, in tiles of a few elements."""
    made, backend = op.outputs[0], CpuBackend(1)
    sizes = op.legal({d: e if d in op.reduce else min(e, 3) for d, e in op.dims.items()})
    offer = backend.offers(op)[0]
    nbytes = int(offer.workspace(sizes))
    kernel = backend.kernel(op, offer.name, sizes, backend.allocate("workspace", nbytes)[:nbytes] if nbytes else None)
    for _ in range(count):
        tile = {}
        for d, e in op.dims.items():
            lo = sizes[d] * int(rng.integers(-(-e // sizes[d])))
            tile[d] = Span(lo, min(lo + sizes[d], e))
        blocks = {o.name: Block(np.ascontiguousarray(inputs[o.name][slices(o.region(tile))]), o.region(tile)) for o in op.inputs}
        region = made.region(tile)
        held = np.zeros([s.extent for s in region], numpy_dtype(made.dtype))
        order = np.argsort(made.memory_order)
        result = np.ascontiguousarray(held.transpose(made.memory_order)).transpose(order)
        kernel(tile, {**blocks, made.name: Block(result, region)}, True, True)
        yield region, result.astype(np.float64)


# ---- contestants: each a function that does the work once, and one that reads a region of the result


class Contestant(NamedTuple):
    """cap: what limits its memory. report: of ooc's last run."""

    run: Callable[[], Any]
    read: Callable[[Region], Any]
    cap: str
    peak: Callable[[], int | None] = lambda: None
    ours: bool = False


def _ooc(problem: Problem, arrays: Arrays, budget: int | None, kind: str) -> Contestant:
    """ooc under a budget from `numpy` or `pinned` memory, stage by stage (`unfused`), or in core (`device`)."""
    where = Device(arrays.backend, load_device(closest(arrays.backend.processor)), budget)
    op, inputs = problem.op, dict(problem.inputs)
    if kind == "pinned":
        outs = {o.name: problem.pinned(arrays, o.name) for o in op.outputs}
        inputs = {o.name: problem.pinned(arrays, o.name) for o in op.inputs}
    elif kind == "device":
        outs = {o.name: arrays.device(o.shape, o.dtype) for o in op.outputs}
        inputs = {o.name: arrays.device(o.shape, o.dtype, _reachable(problem, arrays, o)) for o in op.inputs}
    else:
        outs = problem.outputs()
    name = op.outputs[0].name

    def run() -> Any:
        with where:
            if kind != "unfused":
                execute(op, inputs, outs)
                return [ooc.last_report()]
            return _unfused(op, inputs, outs)

    def read(region: Region) -> Any:
        part = outs[name][slices(region)]
        if kind != "device":
            return part
        host = arrays.pinned(part.shape, op.outputs[0].dtype)
        arrays.backend.begin()
        with arrays.backend.lane("d2h"):
            arrays.backend.copy("d2h", host, part)
        return host

    return Contestant(run, read, CAPS["in_core" if kind == "device" else "ooc"], ours=True)


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
        made = {o.name: outs[t] if t in outs else np.empty(o.shape, numpy_dtype(o.dtype))
                for o, t in zip(node.op.outputs, node.makes, strict=True)}  # fmt: skip
        execute(node.op, {o.name: known[t] for o, t in zip(node.op.inputs, node.reads, strict=True)}, made)
        known |= {t: made[o.name] for o, t in zip(node.op.outputs, node.makes, strict=True)}
        reports.append(ooc.last_report())
    return reports


class _Torch:
    """The stages of an op in PyTorch, on rows of the first spatial axis."""

    def __init__(self, problem: Problem, arrays: Arrays) -> None:
        self.torch, self.device, self.problem = arrays.torch, arrays.torch_device, problem
        self.nodes = nodes_of(problem.op)
        self.cuda = self.device == "cuda"
        self.torch.backends.cudnn.benchmark = True
        self.torch.backends.cudnn.allow_tf32 = self.torch.backends.cuda.matmul.allow_tf32 = problem.tf32
        if any(not isinstance(n.op, (Convolution, Pool)) or n.op.kind == "conv.wgrad" for n in self.nodes):
            raise NotImplementedError("no such loop in PyTorch")
        self.weights = {
            t: self.torch.from_numpy(problem.inputs[t]).to(self.device)
            for node in self.nodes for t in node.reads[1:] if t in problem.inputs
        }  # fmt: skip

    def rows(self, lo: int, hi: int) -> list[tuple[int, int, int, int]]:
        """For each stage, the rows that it reads for these rows of the last one, and the padding before and after."""
        found = []
        for node in reversed(self.nodes):
            op: Any = node.op
            taps = (op.window if isinstance(op, Pool) else op.taps)[0]
            first, reach = lo * op.stride[0] - op.pad[0][0], (taps - 1) * (1 if isinstance(op, Pool) else op.dilation[0])
            last = (hi - 1) * op.stride[0] - op.pad[0][0] + reach + 1
            extent = op.extent[0]
            lo, hi = max(0, first), min(extent, last)
            found.append((lo, hi, lo - first, last - hi))
        return found[::-1]

    def compute(self, x: Any, rows: list[tuple[int, int, int, int]]) -> Any:
        """The last stage's rows from those of x."""
        torch, functional = self.torch, self.torch.nn.functional
        for node, (_, _, before, after) in zip(self.nodes, rows, strict=True):
            op: Any = node.op
            rank, pads = len(op.extent), [0, *(p for p, _ in op.pad[1:])]
            if before or after:
                fill = -math.inf if isinstance(op, Pool) else 0.0
                x = functional.pad(x, [0, 0] * (rank - 1) + [before, after], value=fill)
            if isinstance(op, Pool):
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
        made = (op.extent[i] - ((op.out[i] - 1) * op.stride[i] - 2 * op.pad[i][0] + op.taps[i]) for i in range(op.rank))
        transpose = getattr(self.torch.nn.functional, f"conv_transpose{op.rank}d")
        return transpose(x, self.weights["w"], None, op.stride, [p for p, _ in op.pad], list(made), op.groups, op.dilation)

    def finish(self) -> None:
        if self.cuda:
            self.torch.cuda.synchronize()

    def peak(self) -> int | None:
        return int(self.torch.cuda.max_memory_allocated()) if self.cuda else None


def _torch_in_core(problem: Problem, arrays: Arrays) -> Contestant:
    torch, own = arrays.torch, _Torch(problem, arrays)
    source = problem.inputs[problem.op.inputs[0].name]
    x = torch.from_numpy(np.array(source)).to(arrays.torch_device)
    held: dict[str, Any] = {}

    def run() -> None:
        held.clear()
        with torch.no_grad():
            held["y"] = own.whole(x)
        own.finish()

    return Contestant(run, lambda r: held["y"][slices(r)].cpu().numpy(), CAPS["torch_in_core"], own.peak)


def _loop(problem: Problem, arrays: Arrays, budget: int, how: str) -> Contestant:
    """Rows by rows: `naive` from pageable memory, one thing after the other; `pinned` the same from pinned memory; `split`
    pinned, with copies that do not block on streams of their own, two chunks in flight."""
    torch, own, op = arrays.torch, _Torch(problem, arrays), problem.op
    if op.kind == "conv.dgrad":
        raise NotImplementedError("no loop over a transposed convolution")
    first, made, depth = op.inputs[0], op.outputs[0], 2 if how == "split" else 1
    per_row = sum(math.prod(n.op.outputs[0].shape) * numpy_dtype(op.dtype).itemsize for n in own.nodes) + first.nbytes
    step = max(1, int(budget / 2 / depth * made.shape[2] / per_row))
    x, y = problem.inputs[first.name], problem.outputs()[made.name]
    if how != "naive":
        x, y = problem.pinned(arrays, first.name), problem.pinned(arrays, made.name)
    to, of = torch.from_numpy(y), torch.from_numpy(x) if x.flags.writeable else None
    streams = [torch.cuda.Stream() for _ in range(depth)] if own.cuda and how == "split" else [None] * depth
    if own.cuda:
        torch.cuda.set_per_process_memory_fraction(min(1.0, budget / torch.cuda.mem_get_info()[1]))
        torch.cuda.reset_peak_memory_stats()

    def run() -> None:
        with torch.no_grad():
            for i, lo in enumerate(range(0, made.shape[2], step)):
                hi = min(lo + step, made.shape[2])
                rows = own.rows(lo, hi)
                stream = streams[i % depth]
                with torch.cuda.stream(stream) if stream is not None else nullcontext():
                    if stream is not None:
                        stream.synchronize()  # what it did two chunks ago is done: its memory may be used again
                    a, b = rows[0][:2]
                    part = of[:, :, a:b] if of is not None else torch.from_numpy(np.array(x[:, :, a:b]))
                    there = _moved(torch, part, arrays.torch_device, stream is not None)
                    result = own.compute(there, rows)
                    _back(to[:, :, lo:hi], result, stream is not None)
        own.finish()

    return Contestant(run, lambda r: y[slices(r)], CAPS["loop"], own.peak)


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


def contestants(problem: Problem, arrays: Arrays, budget: int, again: bool) -> dict[str, Callable[[], Contestant]]:
    """Who takes part, each made when it is its turn; in core first, because the bound needs its time. again: under a further
    budget, where only what depends on it most is measured once more."""
    ooc_alone: dict[str, Callable[[], Contestant]] = {
        "ooc_numpy": lambda: _ooc(problem, arrays, budget, "numpy"),
        "ooc_pinned": lambda: _ooc(problem, arrays, budget, "pinned"),
    }
    if again:
        return ooc_alone
    found = {"in_core": lambda: _ooc(problem, arrays, None, "device"), **ooc_alone}
    if len(problem.op.stages) > 1:
        found["ooc_unfused"] = lambda: _ooc(problem, arrays, budget, "unfused")
    if arrays.torch is not None:
        found["torch_in_core"] = lambda: _torch_in_core(problem, arrays)
        for how in ("naive", "pinned", "split"):
            found[f"torch_{how}"] = lambda how=how: _loop(problem, arrays, budget, how)  # type: ignore[misc]
    return found


# ---- rows


def bench_gpu(
    make: Callable[[bool], Arrays], say: Say, done: Callable[[str], bool] = lambda key: False, seconds: float = 300.0,
    rounds: int = 3, tiny: bool = False, directory: str | None = None,
) -> Iterator[Row]:  # fmt: skip
    """Rows of results, as soon as each is measured. make: the arrays of a device that may use TF32 or not. done: whether the
    row of a key is there already. Small problems come first, full ones while there is time."""
    end, link = time.perf_counter() + seconds, make(False).link(1 << 22 if tiny else GIB)
    yield {"key": "link", "bytes_per_second": link}
    made: dict[bool, Arrays] = {}
    for scale, work, tf32 in ((s, w, t) for s in ((0,) if tiny else (1, 2)) for w in WORKLOADS for t in w.tf32):
        if time.perf_counter() > end:
            break
        arrays = made[tf32] = made.get(tf32) or make(tf32)
        with tempfile.TemporaryDirectory(dir=directory) as folder:
            problem = Problem(work, work.op(scale), Path(folder), tf32)
            for turn, budget in enumerate((TINY_BUDGETS if tiny else BUDGETS)[: 1 if work.name.startswith("W7") else 2]):
                for name, enter in contestants(problem, arrays, budget, turn > 0).items():
                    key = f"{work.name} {work.sizes[scale]} {budget} {'tf32' if tf32 else 'fma'} {name}"
                    if (done(key) and name != "in_core") or time.perf_counter() > end:
                        continue
                    row = _row(key, problem, enter, name, budget, link, rounds, end)
                    say(_line(row))
                    yield row
        del problem
        _forget()


def _row(
    key: str, problem: Problem, enter: Callable[[], Contestant], name: str, budget: int, link: dict[str, float], rounds: int,
    end: float,
) -> Row:  # fmt: skip
    op = problem.op
    given, made = sum(o.nbytes for o in op.inputs), sum(o.nbytes for o in op.outputs)
    row: Row = {
        "key": key, "workload": problem.work.name, "problem": str(op), "dtype": op.dtype, "tf32": problem.tf32,
        "contestant": name, "budget_bytes": budget, "compulsory_bytes": given + made, "x_in_a_file": problem.work.file,
    }  # fmt: skip
    try:
        row |= _measured(enter, problem, name, rounds, end)
    except Exception as error:
        return row | {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"}
    finally:
        _forget()
    median = row["seconds"]["median"]
    if name == "in_core":
        problem.in_core_seconds = median
    in_core = problem.in_core_seconds
    copies = [given / link["h2d"], made / link["d2h"]]
    bound = max([*copies, *([in_core] if math.isfinite(in_core) else [])])
    if name not in ("in_core", "torch_in_core"):
        row |= {"bound_seconds": bound, "share_of_bound": bound / median, "bound_by": "compute" if bound == in_core else "link"}
    return row | {"slowdown_vs_in_core": median / in_core if math.isfinite(in_core) else None}


def _measured(enter: Callable[[], Contestant], problem: Problem, name: str, rounds: int, end: float) -> Row:
    """Warm up, check, measure."""
    one = enter()
    begin = time.perf_counter()
    one.run()
    first, found = time.perf_counter() - begin, None
    times: list[float] = []
    problem.check(one.read)
    while len(times) < rounds and (len(times) < 1 or time.perf_counter() + times[-1] < end):
        begin = time.perf_counter()
        found = one.run()
        times.append(time.perf_counter() - begin)
    row: Row = {
        "seconds": {"median": statistics.median(times), "min": min(times), "max": max(times), "rounds": times, "first": first},
        "cap": one.cap, "peak_bytes": one.peak(), "predicted_seconds": None, "moved_bytes": None, "plans": None,
    }  # fmt: skip
    if one.ours and found:
        moved: dict[str, int] = {}
        for report in found:
            for lane, nbytes in report.lane_bytes.items():
                moved[lane] = moved.get(lane, 0) + nbytes
        crossing = moved.get("h2d", 0) + moved.get("d2h", 0)
        lanes = [r.lane_seconds for r in found]
        row |= {
            "predicted_seconds": sum(r.predicted_seconds for r in found), "peak_bytes": max(r.peak_bytes for r in found),
            "moved_bytes": moved, "moved_over_compulsory": crossing / sum(o.nbytes for o in problem.op.operands),
            "lane_seconds": {lane: sum(s.get(lane, 0.0) for s in lanes) for lane in {k for s in lanes for k in s}},
            "plans": [str(p) for r in found for p in r.plans],
        }  # fmt: skip
    return row


def _forget() -> None:
    """Memory of the last contestant goes back to the device before the next one comes."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _line(row: Row) -> str:
    if "error" in row:
        return f"{row['key']}: {row['error']}"
    share = f"  {row['share_of_bound']:.0%} of the bound" if "share_of_bound" in row else ""
    return f"{row['key']}: {row['seconds']['median']:.4f} s{share}"

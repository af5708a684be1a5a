"""What tells most of a GPU in the least time: whether every family of kernels is right; how fast the link is, cuDNN's algorithms,
kernels of our own, and tiles that stream."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.random import default_rng

from ooc.backends.base import Backend
from ooc.backends.cpu.backend import CpuBackend
from ooc.backends.cuda.conv import usual
from ooc.ir.op import Op, numpy_dtype
from ooc.native import DTYPE_CODES
from ooc.ops import Convolution
from ooc.ops.descriptor import parse
from ooc.runtime.executor import run
from ooc.runtime.store import open_store
from ooc.schedule.lowering import lower
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan
from perfmodel.calibrate.cuda_link import Link
from perfmodel.calibrate.cuda_timing import BoundKernel, CudaBench, Effort
from perfmodel.calibrate.entries import MIB, MOST_ROWS, Say, copy_points, whole_kernel, workspace_bytes

Row = dict[str, Any]
DTYPES = ("f32", "f16", "bf16", "f64")
CONV = "n=2 c=8 h=12 w=12 k=8 r=3 s=3 pad=1"
PLANES = "n=2 k=8 h=12 w=12"
RIGHT = (
    *(f"conv.{way} {CONV}" for way in ("fprop", "dgrad", "wgrad")),
    f"pool.max {PLANES} window=2", f"pointwise {PLANES} act=relu", f"bn.apply {PLANES}", f"bn.moments {PLANES}",
    f"softmax.sum {PLANES}", f"reduce.bias {PLANES}", f"pool_backward.max {PLANES} window=3 stride=2 pad=1",
    "matmul.nn n=2 k=2 h=12 w=12 c=8",
    "attention.forward n=2 k=2 h=12 w=12 c=8 depth=8 scale=0.1",
)  # fmt: skip
CLOSE = {"f64": 1e-9, "f32": 1e-5, "f16": 1e-2, "bf16": 5e-2}  # of the largest value; TF32: as f16
LENGTHS = (64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, MIB)  # bytes of rows
SHAPES = (
    "n=32 c=64 h=224 w=224 k=64 r=3 s=3 pad=1", "n=32 c=256 h=56 w=56 k=256 r=3 s=3 pad=1",
    "n=32 c=512 h=14 w=14 k=512 r=3 s=3 pad=1", "n=1 c=32 d=128 h=128 w=128 k=32 t=3 r=3 s=3 pad=1",
)  # fmt: skip
KERNELS = (
    "pointwise {} act=relu", "bn.apply {}", "pool.max {} window=2", "pool_backward.max {} window=2", "bn.moments {}",
    "softmax.plain {}", "reduce.bias {}",
)  # fmt: skip
LARGE = "n=32 k=64 h=224 w=224"
TILES, TILE_BYTES = 24, (MIB, 4 * MIB, 16 * MIB, 64 * MIB)


class Scale(NamedTuple):
    """How large problems are: on a GPU, and where only the way is tried."""

    effort: Effort = Effort(4 << 30, 256 * MIB, 1, 5, 2e-3, 1.0)
    shapes: tuple[str, ...] = SHAPES
    planes: str = LARGE
    tile_bytes: tuple[int, ...] = TILE_BYTES


TINY = Scale(
    Effort(1 << 20, 64 << 10, 1, 2, 0.0, 1.0), ("n=2 c=4 h=8 w=8 k=4 r=3 s=3 pad=1",), PLANES, (1 << 10, 4 << 10)
)  # fmt: skip


def first(
    backend: Any, say: Say, done: Callable[[str], bool] = lambda key: False, torch: Any = None, scale: Scale | None = None
) -> Iterator[Row]:
    """A row for each thing that is looked at, as soon as it is known; what goes wrong is in its row. done: whether a row is there
    already."""
    yield from looked(_looks(backend, say, torch, scale or Scale()), done)


def looked(looks: Iterable[tuple[str, Callable[[], Row]]], done: Callable[[str], bool]) -> Iterator[Row]:
    """A row for each thing to look at that is not done, as soon as it is known; what goes wrong is in its row."""
    for key, look in looks:
        if done(key):
            continue
        begin = time.perf_counter()
        try:
            row = {"key": key, **look()}
        except Exception as error:
            row = {"key": key, "error": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"}
        yield row | {"took": time.perf_counter() - begin}


def _looks(backend: Any, say: Say, torch: Any, scale: Scale) -> Iterator[tuple[str, Callable[[], Row]]]:
    for dtype in DTYPES:
        for text in RIGHT:
            op = parse(f"{text} dtype={dtype}")
            for offer in backend.offers(op):
                yield f"right {op.kind} {dtype} {offer.name}", functools.partial(_right, backend, op, offer.name)
    bench = CudaBench(backend, scale.effort, {}, say)
    link = Link(bench)
    yield "link", functools.partial(_link, bench, link)
    yield "duplex", lambda: {"lost": link.duplex()}
    for length in LENGTHS:
        yield f"rows {length}", functools.partial(_rows, bench, link, length)
    for text in scale.shapes:
        for dtype, how in (("f32", "fma"), ("f32", "tf32"), ("f16", "tensor"), ("bf16", "tensor")):
            op = parse(f"conv.fprop {text} dtype={dtype}")
            yield f"cudnn {text} {dtype} {how}", functools.partial(_algorithms, bench, op, how)
            if torch is not None:
                yield f"torch {text} {dtype} {how}", functools.partial(_torch, torch, op, how == "tf32")
    for text in KERNELS:
        for dtype in ("f32", "f16"):
            op = parse(f"{text.format(scale.planes)} dtype={dtype}")
            yield f"kernel {op.kind} {dtype}", functools.partial(_kernel, bench, op)
    for nbytes in scale.tile_bytes:
        yield f"tiles {nbytes}", functools.partial(_tiles, backend, nbytes)


# ---- right


def _right(backend: Any, op: Op, family: str) -> Row:
    """The largest difference from the CPU's result, and whether it is small enough."""
    inputs = {o.name: _values(o.shape, o.dtype, i) for i, o in enumerate(op.inputs)}
    host = CpuBackend(1)
    have, expected = computed(backend, op, family, inputs), computed(host, op, host.offers(op)[-1].name, inputs)
    worst = 0.0
    for name, values in expected.items():
        result, exact = have[name].astype(np.float64), values.astype(np.float64)
        if not np.all(np.isfinite(result)):
            return {"worst": math.inf, "right": False}
        worst = max(worst, float(np.max(np.abs(result - exact))) / max(1.0, float(np.max(np.abs(exact)))))
    close = CLOSE["f16" if "tf32" in family and op.dtype == "f32" else op.dtype]
    return {"worst": worst, "right": worst <= close}


def _values(shape: tuple[int, ...], dtype: str, seed: int) -> Any:
    """Positive, as variances and sums are."""
    return (default_rng(seed).random(shape, np.float32) + 0.5).astype(numpy_dtype(dtype))


def computed(backend: Any, op: Op, family: str, inputs: dict[str, Any]) -> dict[str, Any]:
    """The results of an op as one tile on a device, from arrays of the host."""
    arrays = {}
    for o in op.operands:
        memory = backend.allocate("device", max(o.nbytes, 1))[: o.nbytes]
        arrays[o.name] = backend.view(memory, 0, o.shape, o.dtype, o.memory_order)
        if o.name in inputs:
            backend.put(arrays[o.name], inputs[o.name])
    need = workspace_bytes(backend, op, family)
    workspace = backend.allocate("device", need)[:need] if need else None  # kernels know its address alone
    kernel = backend.kernel(op, family, op.dims, workspace)
    work = whole_kernel(kernel, op, arrays)
    backend.begin()
    with backend.lane("compute"):
        work()
    return {o.name: np.array(backend.fetch(arrays[o.name])) for o in op.outputs}


# ---- speed


def _link(bench: CudaBench, link: Link) -> Row:
    copy, nbytes = bench.backend.copy, link.nbytes
    up = bench.time("h2d", lambda: copy("h2d", link.device, link.pinned))
    down = bench.time("d2h", lambda: copy("d2h", link.pinned, link.device))
    return {"bytes": nbytes, "h2d_bytes_per_second": nbytes / up, "d2h_bytes_per_second": nbytes / down}


def _rows(bench: CudaBench, link: Link, length: int) -> Row:
    """Rows of this many bytes, half as far apart again, from pinned memory."""
    total = min(link.nbytes // 2, length * MOST_ROWS)
    point = next(copy_points(link.pinned, link.device, (total,), (length,)))
    copy = bench.backend.copy
    seconds = {
        "h2d": bench.time("h2d", lambda: copy("h2d", point.dense, next(point.blocks))),
        "d2h": bench.time("d2h", lambda: copy("d2h", next(point.blocks), point.dense)),
    }
    return {"bytes": point.features[2], "rows": point.features[1]} | {
        f"{lane}_bytes_per_second": point.features[2] / each for lane, each in seconds.items()
    }


def _algorithms(bench: CudaBench, op: Op, how: str) -> Row:
    """All that cuDNN has for a convolution, as it measures them, with their workspaces."""
    assert isinstance(op, Convolution)
    backend, g = bench.backend, usual(op, op.dims, how)
    cudnn = backend.cudnn
    room = max(1 << 20, min(2 << 30, backend.driver.free_bytes // 8))
    buffers = [backend.allocate("device", o.nbytes) for o in op.operands]
    workspace = backend.allocate("device", room)
    for memory in buffers:
        bench.fill(memory, op.dtype)
    conv = cudnn.library.conv(
        g.direction, DTYPE_CODES[g.dtype], g.x, g.x_strides, g.w, g.channels_last, g.y, g.y_strides, g.pad, g.stride, g.dilation,
        g.groups, g.math,
    )  # fmt: skip
    with backend.lane("compute"):
        timings = conv.measure(cudnn.handle, cudnn.stream, *map(_address, (*buffers, workspace)), room)
        expected = conv.heuristics(cudnn.handle)
    flops = float(op.effort(op.dims))
    return {
        "flops": flops, "expected": [list(e) for e in expected][:3],
        "measured": [{"seconds": s, "algorithm": a, "math": m, "workspace_bytes": w, "flops_per_second": flops / s}
                     for s, a, m, w, _ in timings],
    }  # fmt: skip


def _address(memory: Any) -> int:
    return int(memory.__array_interface__["data"][0])


def _torch(torch: Any, op: Any, tf32: bool) -> Row:
    """PyTorch's own convolution, in both layouts, with its algorithms measured."""
    torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = True, tf32
    kind = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[op.dtype]
    convolve = getattr(torch.nn.functional, f"conv{op.rank}d")
    row: Row = {}
    for name, layout in (("first", torch.contiguous_format), ("last", torch.channels_last if op.rank == 2 else None)):
        if layout is None:
            continue
        x, w = (torch.rand(o.shape, device="cuda", dtype=kind).contiguous(memory_format=layout) for o in op.inputs[:2])
        with torch.no_grad():
            row[f"channels_{name}_seconds"] = _timed(torch, lambda x=x, w=w: convolve(x, w, padding=1))  # type: ignore[misc]
    return row | {"flops": float(op.effort(op.dims))}


def _timed(torch: Any, work: Callable[[], Any], rounds: int = 5) -> float:
    """Median seconds of a call, by events."""
    for _ in range(3):
        work()
    times = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3)
    return float(np.median(times))


def _kernel(bench: CudaBench, op: Op) -> Row:
    """A kernel of our own, and the bytes that it has to touch."""
    with BoundKernel(bench, op, "cuda") as (work, _):
        seconds = bench.time("compute", work)
    nbytes = float(op.touched_bytes(op.dims))
    return {"seconds": seconds, "bytes": nbytes, "bytes_per_second": nbytes / seconds}


def _tiles(backend: Backend, nbytes: int) -> Row:
    """Tiles that stream through from pinned memory to pinned memory: what each takes, three deep."""
    count = nbytes // 4
    op = parse(f"pointwise n={TILES} k=1 h=1 w={count} act=relu dtype=f32")
    names = [o.name for o in op.operands]
    places = tuple((name, Place.PINNED) for name in names)
    plan = Plan(op, (("n", 1), *((d, e) for d, e in op.dims.items() if d != "n")), tuple(op.dims), 3, places, True, False,
                kernel="cuda")  # fmt: skip
    held = [backend.allocate("staging", TILES * nbytes) for _ in names]
    arrays = {n: backend.view(m, 0, op.inputs[0].shape, "f32", (0, 1, 2, 3)) for n, m in zip(names, held, strict=True)}
    for array in arrays.values():
        array[...] = 1
    outputs = {o.name for o in op.outputs}
    todo, times = lower(plan), []
    for _ in range(4):
        stores = {name: open_store(array, writable=name in outputs) for name, array in arrays.items()}
        begin = time.perf_counter()
        run(todo, stores, backend)
        times.append(time.perf_counter() - begin)
    best = min(times[1:])
    return {
        "tiles": TILES,
        "tile_bytes": nbytes,
        "seconds_per_tile": best / TILES,
        "each_way_bytes_per_second": TILES * nbytes / best,
    }

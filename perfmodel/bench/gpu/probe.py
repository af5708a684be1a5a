"""What a card has to tell before ooc can be right about it: what pinning costs by size, round trips of events, host copies and
file reads by threads, and all of cuDNN's algorithms for each pass, type and layout, with what they want beyond x, w and y."""

from __future__ import annotations

import functools
import math
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.random import default_rng

from ooc import native
from ooc.backends.cuda.conv import usual
from ooc.backends.cuda.geometry import Geometry
from ooc.backends.device_array import at
from ooc.ir.op import ITEM_BYTES
from ooc.native import DTYPE_CODES
from ooc.ops.descriptor import parse

MIB = 1 << 20
Row = dict[str, Any]
SHAPES = (  # those first that planes have
    "n=32 c=256 h=56 w=56 k=256 r=3 s=3 pad=1", "n=32 c=64 h=224 w=224 k=64 r=3 s=3 pad=1",
    "n=32 c=512 h=14 w=14 k=512 r=3 s=3 pad=1", "n=1 c=2048 h=24 w=512 k=2048 r=3 s=3 pad=1",
    "n=32 c=256 h=56 w=56 k=64 r=1 s=1", "n=8 c=3 h=512 w=512 k=32 r=7 s=7 stride=2 pad=3",
    "n=1 c=32 d=128 h=128 w=128 k=32 t=3 r=3 s=3 pad=1", "n=8 c=128 h=112 w=112 k=128 r=3 s=3 stride=2 pad=1",
)  # fmt: skip
TINY_SHAPES = ("n=1 c=4 h=8 w=8 k=4 r=3 s=3 pad=1",)
MATHS = (("f32", "fma"), ("f32", "tf32"), ("f16", "tensor"))
LAYOUTS = (("channels_first", False), ("channels_last", False), ("channels_first", True))
ROOM, TINY_ROOM = 8 << 30, MIB  # bytes of workspace
STAGED, TINY_STAGED = 305 * MIB, MIB  # bytes that are pinned and copied, as a large layer's ring once had
TRIPS = 200  # of an event


def probe(backend: Any, torch: Any, tiny: bool = False) -> Iterator[tuple[str, Callable[[], Row]]]:
    """What to look at, by value, each with its key."""
    nbytes = TINY_STAGED if tiny else STAGED
    for size in (nbytes // 8, nbytes, 3 * nbytes):
        yield f"pin {size}", functools.partial(pinning, backend, size)
    yield "events", functools.partial(events, backend)
    for threads in (8, 16):
        yield f"host copies {threads}", functools.partial(host_copies, backend, nbytes // 4, threads)
    for threads in (1, 4, 8):
        yield f"file {threads}", functools.partial(file_reads, backend, nbytes, threads)
    for text in TINY_SHAPES if tiny else SHAPES:
        for dtype, how in MATHS:
            for kind in ("conv.fprop", "conv.dgrad", "conv.wgrad"):
                for layout, strided in LAYOUTS:
                    if how != "fma" or layout == "channels_first":
                        op = parse(f"{kind} {text} dtype={dtype} layout={layout}")
                        key = f"algorithms {kind} {text} {dtype} {how} {layout}{' strided' if strided else ''}"
                        yield key, functools.partial(algorithms, backend, op, how, strided, TINY_ROOM if tiny else ROOM)
    if torch is not None and not tiny:
        for n, c, side in ((32, 64, 224), (32, 256, 56)):
            for dtype in ("float16", "float32"):
                yield f"transpose {n} {c} {side} {dtype}", functools.partial(transposes, torch, n, c, side, dtype)


# ---- the host


def pinning(backend: Any, nbytes: int) -> Row:
    """Seconds of taking and freeing pinned memory and device memory, and of registering memory that was touched."""
    driver, memory, row = backend.driver, np.ones(nbytes, np.uint8), {}

    def timed(name: str, work: Callable[..., Any], *arguments: Any) -> Any:
        begin = time.perf_counter()
        address = work(*arguments)
        row[f"{name}_seconds"] = time.perf_counter() - begin
        return address

    with driver.current():
        timed("host_free", driver.host_free, timed("host_malloc", driver.host_malloc, nbytes))
        timed("register", driver.register, native.address(memory), nbytes)
        timed("unregister", driver.unregister, native.address(memory))
        timed("free", driver.free, timed("malloc", driver.malloc, nbytes))
    return row


def events(backend: Any) -> Row:
    """Microseconds of a round trip of an event on an idle stream, in the best tenth, the middle and the worst, and of beginning a
    run."""
    driver, stream, times = backend.driver, backend.streams["h2d"], []
    with driver.current():
        event = driver.event()
        for _ in range(TRIPS):
            begin = time.perf_counter()
            driver.record(event, stream)
            driver.finish(event)
            times.append(time.perf_counter() - begin)
    begin = time.perf_counter()
    backend.begin()
    return {
        "trip_us": [1e6 * float(np.percentile(times, p)) for p in (10, 50, 90)],
        "begin_us": 1e6 * (time.perf_counter() - begin),
    }


def host_copies(backend: Any, nbytes: int, threads: int) -> Row:
    """Bytes per second between pageable and pinned memory, whole and in rows of 12 KiB and 692 bytes, as tiles have them."""
    pinned, pageable, row = backend.allocate("staging", nbytes)[:nbytes], np.ones(8 * nbytes, np.uint8), {}
    pinned[...] = 1
    for width in (nbytes, 12288, 692):
        count = nbytes // width
        far = np.lib.stride_tricks.as_strided(pageable, (count, width), (width if count == 1 else 2 * width, 1))
        near = pinned[: count * width].reshape(count, width)
        for way, target, source in (("read", near, far), ("write", far, near)):
            best = min(_seconds(lambda t=target, s=source: native.copy(t, s, threads)) for _ in range(5))  # type: ignore[misc]
            row[f"{way}_{'whole' if count == 1 else width}_bytes_per_second"] = count * width / best
    return row


def file_reads(backend: Any, nbytes: int, threads: int) -> Row:
    """Bytes per second from the page cache to pinned memory."""
    view, share = memoryview(backend.allocate("staging", nbytes)[:nbytes]), -(-nbytes // threads)
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"\1" * nbytes)
        file.flush()

        def read(lo: int) -> None:
            hi = min(lo + share, nbytes)
            while lo < hi:
                lo += os.preadv(file.fileno(), [view[lo : min(hi, lo + 8 * MIB)]], lo)

        def together() -> None:
            workers = [threading.Thread(target=read, args=(i * share,)) for i in range(threads)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()

        return {"bytes_per_second": nbytes / min(_seconds(together) for _ in range(3))}


def _seconds(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


# ---- the device


def algorithms(backend: Any, op: Any, how: str, strided: bool, room: int) -> Row:
    """All that cuDNN has for a convolution, as it measures them. strided: of tensors that lie as tiles of half the rows of
    resident ones do."""
    g, cudnn, item = usual(op, op.dims, how), backend.cudnn, ITEM_BYTES[op.dtype]
    x_strides, y_strides = (_far(s) if strided else s for s in (g.x_strides, g.y_strides))
    sizes = {"x": _span(g.x, x_strides), "w": math.prod(g.w), "y": _span(g.y, y_strides)}
    held = {name: backend._fresh("device", count * item) for name, count in sizes.items()}
    _fill(backend, list(held.values()), op.dtype)
    work = backend._fresh("device", room)
    conv = cudnn.library.conv(
        g.direction, DTYPE_CODES[op.dtype], g.x, x_strides, g.w, g.channels_last, g.y, y_strides, g.pad, g.stride, g.dilation,
        g.groups, g.math,
    )  # fmt: skip
    order = [at(held[name]) for name in {"fprop": "xwy", "dgrad": "wyx", "wgrad": "xyw"}[g.direction]]
    with backend.lane("compute"):
        conv.measure(cudnn.handle, cudnn.stream, *order, at(work), room)  # loads libraries
        timings = conv.measure(cudnn.handle, cudnn.stream, *order, at(work), room)
    flops, whole = float(op.effort(op.dims)), _whole(g, item)
    return {
        "flops": flops, "operand_bytes": whole,
        "measured": [{"seconds": s, "algorithm": a, "math": m, "workspace_bytes": w, "beyond_operands": w - whole,
                      "deterministic": same, "flops_per_second": flops / s} for s, a, m, w, same in timings],
    }  # fmt: skip


def _whole(g: Geometry, item: int) -> int:
    """Bytes of x, w and y."""
    return item * (math.prod(g.x) + math.prod(g.w) + math.prod(g.y))


def _far(strides: tuple[int, ...]) -> tuple[int, ...]:
    """Of a tile of half the rows: images and channels are twice as far apart."""
    return (2 * strides[0], 2 * strides[1], *strides[2:])


def _span(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    return sum((e - 1) * s for e, s in zip(shape, strides, strict=True)) + 1


def _fill(backend: Any, pieces: list[Any], dtype: str) -> None:
    """Write random numbers: power, and so clocks, depend on them."""
    kind = {"f32": np.float32, "f16": np.float16}[dtype]
    noise = backend.allocate("staging", 16 * MIB)[: 16 * MIB]
    noise[...] = default_rng(0).standard_normal(noise.nbytes // np.dtype(kind).itemsize).astype(kind).view(np.uint8)
    backend.begin()
    with backend.lane("h2d"):
        for memory in pieces:
            for lo in range(0, memory.nbytes, noise.nbytes):
                piece = memory[lo : lo + noise.nbytes]
                backend.copy("h2d", piece, noise[: piece.nbytes])


def transposes(torch: Any, n: int, c: int, side: int, dtype: str) -> Row:
    """Bytes per second of PyTorch's change of layout: what a conversion for each tile costs beside a convolution."""
    x = torch.rand(n, c, side, side, device="cuda", dtype=getattr(torch, dtype))
    y, row = x.contiguous(memory_format=torch.channels_last), {}
    ways = {"to_last": lambda: x.contiguous(memory_format=torch.channels_last), "to_first": lambda: y.contiguous()}
    for name, work in ways.items():
        for _ in range(3):
            work()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(10):
            work()
        end.record()
        torch.cuda.synchronize()
        row[f"{name}_bytes_per_second"] = 20 * x.nbytes / (begin.elapsed_time(end) * 1e-3)
    return row

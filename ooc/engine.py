"""From ops and arrays to a result: checks, plans (one fused, or the chain cut where that is better), runs, reports."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from ooc.backends.null import NullStore
from ooc.cutting import Segment, between, cut
from ooc.device import Device, current_device
from ooc.errors import ShapeError, StoreError
from ooc.op import Op, fuse, numpy_dtype
from ooc.plan import Place, Plan
from ooc.run import run, schedule
from ooc.store import Store, file_behind, open_store
from ooc.trace import Part, Report, write_trace
from perfmodel.simulate import simulate

_last = threading.local()


def last_report() -> Report | None:
    """The report of this thread's last call, or None before the first."""
    return getattr(_last, "report", None)


def execute(
    stages: Sequence[Op],
    operands: Mapping[str, Any],
    target: Any,
    progress: bool = False,
    callbacks: Sequence[Callable[[int, int], None]] = (),
    trace: str | None = None,
) -> Report:
    """Compute a chain of stages into `target`. Operands are named as in a Chain: x, w, b, w.1, ...

    Raises before the first output byte when the arguments or the budget do not allow the work.
    """
    begin = time.perf_counter()
    device = current_device()
    op = fuse(*stages)
    _check_aliases(op, operands, target)
    places = {name: place_of(array, device) for name, array in operands.items()} | {"y": place_of(target, device)}
    segments = cut(stages, places, device)
    total = sum(s.plan.tiles for s in segments)
    parts: list[Part] = []
    with ExitStack() as stack:
        stores = _open_all(operands, target, device, stack)
        made = [*(_intermediate(stages[s.end - 1], places, target, device, stack) for s in segments[:-1]), stores["y"]]
        on_tile = stack.enter_context(_progress(total, progress, callbacks))
        source = stores["x"]
        for segment, result in zip(segments, made, strict=True):
            bound = {"x": source, "y": result} | _own(segment, stores)
            parts.append(_run(segment.plan, bound, device, on_tile, trace is not None))
            source = result
    peak = max(sum(b for s, b in p.measured.space_bytes.items() if device.backend.shared or s == "device") for p in parts)
    report = _last.report = Report(tuple(parts), time.perf_counter() - begin, peak)
    if trace is not None:
        write_trace(trace, parts)
    return report


def _run(plan: Plan, stores: Mapping[str, Store], device: Device, on_tile: Callable[[int], None] | None, predict: bool) -> Part:
    todo = schedule(plan)
    measured = run(todo, stores, device.backend, on_tile)
    return Part(todo, measured, simulate(todo.steps, device.model) if predict else None)


def _own(segment: Segment, stores: Mapping[str, Store]) -> dict[str, Store]:
    """The further operands of a segment, by the names they have inside it."""
    found = {}
    for name, store in stores.items():
        base, _, index = name.partition(".")
        stage = int(index or 0)
        if base not in ("x", "y") and segment.first <= stage < segment.end:
            local = stage - segment.first
            found[f"{base}.{local}" if local else base] = store
    return found


# ---- where operands live


def place_of(array: Any, device: Device) -> Place:
    """Where an array lives, seen from a device. Without a limit, host memory is the CPU's own: used in place."""
    if isinstance(array, np.ndarray) and file_behind(array) is not None:
        return Place.DISK
    in_place = device.backend.shared and device.device_bytes is None
    whole_items = all(s % array.itemsize == 0 for s in array.strides) and array.flags.aligned
    return Place.DEVICE if in_place and whole_items else Place.HOST


def _open_all(operands: Mapping[str, Any], target: Any, device: Device, stack: ExitStack) -> dict[str, Store]:
    """Stores for every array, closed at the end. Nothing is written while opening."""
    if device.backend.name == "null":
        return {name: NullStore(tuple(a.shape)) for name, a in {**operands, "y": target}.items()}
    stores: dict[str, Store] = {}
    for name, array in {**operands, "y": target}.items():
        stores[name] = open_store(array, writable=name == "y")
        stack.callback(stores[name].close)
    return stores


def _intermediate(stage: Op, places: Mapping[str, Place], target: Any, device: Device, stack: ExitStack) -> Store:
    """Room for what a segment hands to the next: a temporary file when the ends are files, else memory."""
    made = stage.outputs[0]
    if device.backend.name == "null":
        return NullStore(made.shape)
    dtype = numpy_dtype(made.dtype)
    if between(places) is not Place.DISK:
        return open_store(np.empty(made.shape, dtype))
    beside = file_behind(target)
    directory = os.path.dirname(os.path.abspath(beside[0])) if beside else None
    try:
        handle, path = tempfile.mkstemp(prefix=".ooc-", suffix=".part", dir=directory)
        stack.callback(os.unlink, path)
        os.close(handle)
        array = np.memmap(path, dtype, "w+", shape=made.shape)
    except OSError as error:
        raise StoreError(error.errno, f"intermediate file: {error}") from error
    store = open_store(array, writable=True)
    stack.callback(store.close)
    return store


# ---- checks


def _check_aliases(op: Op, operands: Mapping[str, Any], target: Any) -> None:
    """The output must not overlap an input, nor itself."""
    reach = target.itemsize
    for stride, extent in sorted((abs(s), e) for s, e in zip(target.strides, target.shape, strict=True) if e > 1):
        if stride < reach:
            raise ShapeError(f"{op}: out overlaps itself (strides {target.strides} of shape {target.shape}); pass a full array")
        reach += (extent - 1) * stride
    for name, array in operands.items():
        if np.may_share_memory(array, target) or _same_file(array, target):
            raise ShapeError(f"{op}: out overlaps {name}; pass an output of its own")


def _same_file(a: Any, b: Any) -> bool:
    """Whether two arrays map overlapping bytes of one file."""
    one, two = file_behind(a), file_behind(b)
    if one is None or two is None or not os.path.samefile(one[0], two[0]):
        return False
    (lo_a, hi_a), (lo_b, hi_b) = (_extent(x, at) for x, (_, at) in ((a, one), (b, two)))
    return lo_a < hi_b and lo_b < hi_a


def _extent(array: Any, offset: int) -> tuple[int, int]:
    reach = [(e - 1) * s for e, s in zip(array.shape, array.strides, strict=True)]
    return offset + sum(min(r, 0) for r in reach), offset + sum(max(r, 0) for r in reach) + array.itemsize


# ---- progress


@contextmanager
def _progress(total: int, show: bool, callbacks: Sequence[Callable[[int, int], None]]) -> Iterator[Callable[[int], None] | None]:
    """A function to call after every tile, driving a bar and the caller's callbacks; None when nobody listens."""
    if not show and not callbacks:
        yield None
        return
    bar = _bar(total) if show else None
    done = 0

    def on_tile(_: int) -> None:
        nonlocal done
        done += 1
        if bar is not None:
            bar(done)
        for callback in callbacks:
            callback(done, total)

    try:
        yield on_tile
    finally:
        if bar is not None:
            bar(-1)


def _bar(total: int) -> Callable[[int], None]:
    """A progress bar: tqdm when installed, a line of text otherwise. Call with the tiles done, -1 to finish."""
    try:
        from tqdm import tqdm
    except ImportError:
        return _plain_bar(total)
    bar = tqdm(total=total, unit="tile")

    def show(done: int) -> None:
        if done < 0:
            bar.close()
        else:
            bar.update(done - bar.n)

    return show


def _plain_bar(total: int) -> Callable[[int], None]:
    def show(done: int) -> None:
        if done < 0 or done * 20 // total != (done - 1) * 20 // total:
            end = "\n" if done < 0 else ""
            text = f"\r{max(done, 0) if done >= 0 else total}/{total} tiles"
            print(text, end=end, file=sys.stderr, flush=True)

    return show

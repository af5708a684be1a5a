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

from ooc import native
from ooc.backends.null import NullStore
from ooc.errors import ShapeError, StoreError
from ooc.ir.op import Op, Operand, numpy_dtype
from ooc.model.simulate import simulate
from ooc.runtime.cutting import between, cut
from ooc.runtime.device import Device, current_device
from ooc.runtime.executor import run
from ooc.runtime.pinning import pinned
from ooc.runtime.report import Part, Report, write_trace
from ooc.runtime.store import ArrayStore, Store, file_behind, open_store
from ooc.schedule.plan import Place, Plan

PLACES = {place.value: place for place in Place}

_last = threading.local()


def last_report() -> Report | None:
    """The report of this thread's last call, or None before the first."""
    return getattr(_last, "report", None)


def execute(
    op: Op,
    operands: Mapping[str, Any],
    targets: Mapping[str, Any],
    progress: bool = False,
    callbacks: Sequence[Callable[[int, int], None]] = (),
    trace: str | None = None,
    deterministic: bool = False,
) -> Report:
    """Compute an op: `operands` are its inputs by name, `targets` the arrays that receive its outputs.

    A target may be one of the inputs where each region is read before it is written and by nobody else (elementwise
    operations). deterministic: the same bits whatever the budget. Raises before the first output byte when the arguments
    or the budget do not allow the work.
    """
    begin = time.perf_counter()
    device = current_device()
    for target in targets.values():
        _check_itself(op, target)
    arrays = {**operands, **targets}
    places = {name: place_of(array, device) for name, array in arrays.items()}
    plans = cut(op, places, device, deterministic)
    _check_aliases(op, plans, operands, targets, places)
    parts: list[Part] = []
    with ExitStack() as stack:
        plans = pinned(op, arrays, places, plans, device, deterministic, stack)
        stores = _open_all(arrays, places, targets, device, stack)
        for made in [o for plan in plans for o in plan.op.outputs if o.name not in stores]:
            stores[made.name] = _intermediate(made, places, targets, device, stack)
        on_tile = None
        if progress or callbacks:
            on_tile = stack.enter_context(_progress(sum(plan.tiles for plan in plans), progress, callbacks))
        for plan in plans:
            bound = {o.name: stores[o.name] for o in plan.op.operands}
            parts.append(_run(plan, bound, device, on_tile, trace is not None))
    peak = max(sum(b for s, b in p.measured.space_bytes.items() if device.backend.shared or s == "device") for p in parts)
    report = _last.report = Report(tuple(parts), time.perf_counter() - begin, peak)
    if device.tiles is not None:
        for part in parts:
            device.learn(part.undisturbed())
    if trace is not None:
        write_trace(trace, parts)
    return report


def _run(plan: Plan, stores: Mapping[str, Store], device: Device, on_tile: Callable[[int], None] | None, predict: bool) -> Part:
    todo = device.schedule(plan)
    measured = run(todo, stores, device.backend, on_tile)
    return Part(todo, measured, simulate(todo.steps, device.model, todo.alone) if predict else None)


# ---- where operands live


def place_of(array: Any, device: Device) -> Place:
    """Where an array lives, seen from a device. What is the host's own memory counts as the device's only without a limit.

    Raises UnsupportedError for memory that the device does not reach.
    """
    if isinstance(array, np.ndarray) and file_behind(array) is not None:
        return Place.DISK
    found = PLACES[device.backend.place(array)]
    limited = device.backend.shared and device.device_bytes is not None
    return Place.HOST if limited and found is Place.DEVICE else found


def _open_all(
    arrays: Mapping[str, Any], places: Mapping[str, Place], targets: Mapping[str, Any], device: Device, stack: ExitStack
) -> dict[str, Store]:
    """Stores for every array, closed at the end. Nothing is written while opening."""
    if device.backend.name == "null":
        return {name: NullStore(tuple(a.shape)) for name, a in arrays.items()}
    stores: dict[str, Store] = {}
    for name, array in arrays.items():
        if places[name] is Place.DISK:
            stores[name] = open_store(array, writable=name in targets, threads=device.backend.copy_threads)
            stack.callback(stores[name].close)
        else:
            stores[name] = ArrayStore(array, device.backend.copy_threads)
    return stores


def _intermediate(
    made: Operand, places: Mapping[str, Place], targets: Mapping[str, Any], device: Device, stack: ExitStack
) -> Store:
    """Room for what one part hands to a later one: a temporary file where the caller's tensors are files, else memory."""
    if device.backend.name == "null":
        return NullStore(made.shape)
    dtype = numpy_dtype(made.dtype)
    if between(places, device.backend.shared) is not Place.DISK:
        return open_store(np.empty(made.shape, dtype), threads=device.backend.copy_threads)
    beside = next(filter(None, map(file_behind, targets.values())), None)
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


def _check_itself(op: Op, target: Any) -> None:
    """An output must not overlap itself."""
    if target.flags.c_contiguous:
        return
    reach = target.itemsize
    for stride, extent in sorted((abs(s), e) for s, e in zip(target.strides, target.shape, strict=True) if e > 1):
        if stride < reach:
            raise ShapeError(f"{op}: out overlaps itself (strides {target.strides} of shape {target.shape}); pass a full array")
        reach += (extent - 1) * stride


def _check_aliases(
    op: Op, plans: Sequence[Plan], operands: Mapping[str, Any], targets: Mapping[str, Any], places: Mapping[str, Place]
) -> None:
    """Outputs must not overlap each other, nor an input that is still read when they are written."""
    reach = {name: native.bounds(array) for name, array in (*operands.items(), *targets.items())}
    files = {name: array for name, array in (*operands.items(), *targets.items()) if places[name] is Place.DISK}
    for name, target in targets.items():
        lo, hi = reach[name]
        for other, (start, end) in reach.items():
            if (start < hi and lo < end) or (name in files and other in files and _same_file(files[other], target)):
                if other in targets and other > name:
                    raise ShapeError(f"{op}: the outputs {name} and {other} overlap; pass an array of its own for each")
                if other in operands and not _in_place(plans, other, name, _same(operands[other], target)):
                    raise ShapeError(f"{op}: out overlaps {other}; pass an output of its own")


def _in_place(plans: Sequence[Plan], read: str, made: str, same: bool) -> bool:
    """Whether no region of an input is read after the same memory was written as an output."""
    writing = next(i for i, plan in enumerate(plans) if any(o.name == made for o in plan.op.outputs))
    for i, plan in enumerate(plans):
        source = next((o for o in plan.op.inputs if o.name == read), None)
        target = next((o for o in plan.op.outputs if o.name == made), None)
        if source is None or i < writing:
            continue
        if i > writing or target is None or not same or source.axes != target.axes or not _settled(plan.op, read, made):
            return False
    return True


def _settled(op: Op, read: str, made: str) -> bool:
    """Whether an output region is written once, when every stage of the tile that reads the input's has done so."""
    fold = next(f for f in op.folds if made in f.makes)
    nodes = getattr(op, "nodes", ())
    maker = next((i for i, node in enumerate(nodes) if made in node.makes), 0)
    # What a later stage makes of a complete sum is written once; the sum itself is written in every tile.
    if fold.idle or (fold.reduce and (not nodes or nodes[maker].op.reduce)):
        return False
    return all(i <= maker for i, node in enumerate(nodes) if read in node.reads)


def _same(a: Any, b: Any) -> bool:
    """Whether two arrays are element by element the same memory."""
    return bool(a.shape == b.shape and a.strides == b.strides and native.address(a) == native.address(b))


def overlap(a: Any, b: Any) -> bool:
    """Whether two arrays share memory, or a file."""
    return bool(np.may_share_memory(a, b) or _same_file(a, b))


def _same_file(a: Any, b: Any) -> bool:
    """Whether two arrays map overlapping bytes of one file."""
    one, two = file_behind(a), file_behind(b)
    if one is None or two is None or not os.path.samefile(one[0], two[0]):
        return False
    (lo_a, hi_a), (lo_b, hi_b) = (
        [at - native.address(x) + end for end in native.bounds(x)] for x, (_, at) in ((a, one), (b, two))
    )
    return lo_a < hi_b and lo_b < hi_a


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

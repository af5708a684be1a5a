"""The published figures of ooc_cuDNN and vDNN beside what the planner and the simulator predict for the same devices.

Nothing is measured here: rates come from datasheets (`devices/*.json`), unified memory from a model of three lines
(`_unified`). No constant was chosen to meet a published number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ooc.backends.null import NullBackend
from ooc.ir.op import Op
from ooc.model.calibration import load_device
from ooc.model.cost import Model
from ooc.runtime.device import Device
from ooc.schedule.budget import show_bytes
from ooc.schedule.place import Place
from perfmodel.bench.vgg16 import SHARE, plans, vgg16
from perfmodel.problems.sets import problems

Say = Callable[[str], None]
Row = dict[str, Any]

# Migration by page faults: a kernel that walks 2147 MiB took 382.6 ms on a GTX 1080, on the same link as a P100
# (github.com/parallelArchitect/pascal-um-benchmark, README, "SQLite Query Examples").
FAULT_BYTES_PER_SECOND = 2147 * 2**20 / 0.3826
MICRO = {"unified": 1.45, "prefetch": 1.42}  # published: seconds over those of ooc, at 2048 channels
BATCHES = (256, 512, 1024)  # of VGG16, more than fits; published overhead over 128, which fits: 10 to 13 %
IN_CORE_BATCH = 128
CAP = 16 << 30  # bytes that a larger device may use, to be compared with a P100
SHARES = (0.5, 0.6, 0.9)  # of the f32 peak, other than what is assumed
ASSUMED, ASSUMED_TF32 = 0.75, 0.7  # what the calibrations assume of the peaks


class PublishedNetwork(NamedTuple):
    """One column of a figure: VGG16 on a device. memory_bytes: what it may use, None: all of its own."""

    figure: str
    calibration: str
    batches: tuple[int, ...]
    published: str
    memory_bytes: int | None = None
    tf32: bool = False
    share: float = ASSUMED  # of the f32 peak that convolutions reach
    hypothetical: bool = False  # compared with a device that holds the same batch, not with a smaller batch


OOC = "ooc_cuDNN, Figure 3"
NETWORKS = (
    PublishedNetwork(OOC, "p100", BATCHES, "+10 to 13 %"),
    *(PublishedNetwork(f"{OOC}: other rates", "p100", BATCHES[-1:], "", share=share) for share in SHARES),
    PublishedNetwork("vDNN (MICRO-49)", "titanx", BATCHES[:1], "+22 % (18 % loss)", hypothetical=True),
    PublishedNetwork("vDNN (arXiv v1)", "k40", BATCHES[:1], "+28 % (22 % loss)", hypothetical=True),
    PublishedNetwork("prediction", "h200", BATCHES[-1:], "", CAP),
    PublishedNetwork("prediction", "h200", BATCHES[-1:], "", CAP, tf32=True),
)


def figures(say: Say) -> tuple[list[Row], list[Row]]:
    """Rows of the micro-benchmark and of VGG16. say: told as they are known."""
    micro = [_told(row, say, "{figure}: {channels} channels") for row in _micro("p100")]
    networks = [_told(row, say, "{figure}: {device}, batch {batch}") for network in NETWORKS for row in _network(network)]
    return micro, networks


def _told(row: Row, say: Say, text: str) -> Row:
    say(text.format(**row))
    return row


def one_kernel(calibration: str) -> Device:
    """A device that computes all by one kernel, which is as fast as any and needs no workspace: papers do not tell more."""
    model = load_device(calibration)
    return Device(NullBackend(model.memory_bytes or 0), model)


# ---- ooc_cuDNN, Figure 2


def _micro(calibration: str) -> Iterator[Row]:
    """One convolution: seconds in core, in unified memory, and out of core.

    In core its tensors are on the device; otherwise x, w and y are in host memory before and after.
    """
    device = one_kernel(calibration)
    device = replace(device, device_bytes=int(SHARE * device.backend.total_bytes))
    for op in problems("micro"):
        plan = device.planner.plan(op, dict.fromkeys((o.name for o in op.operands), Place.PINNED))
        memory = device.backend.total_bytes
        in_core, unified, prefetch = _unified(op, device.model, memory)
        seconds = {"in_core": in_core, "unified": unified, "prefetch": prefetch, "ooc": plan.predicted_seconds}
        largest = op.dims["c"] == max(o.dims["c"] for o in problems("micro"))
        yield {
            "figure": "ooc_cuDNN, Figure 2", "device": device.model.name, "problem": str(op), "channels": op.dims["c"],
            "tensor_bytes": sum(o.nbytes for o in op.operands), "memory_bytes": memory, "seconds": seconds,
            "over_ooc": {"unified": unified / plan.predicted_seconds, "prefetch": prefetch / plan.predicted_seconds},
            "published_over_ooc": MICRO if largest else {}, "lane_seconds": dict(plan.lane_seconds),
        }  # fmt: skip


def _unified(op: Op, model: Model, memory_bytes: int) -> tuple[float | None, float, float]:
    """Seconds in core (None: does not fit) and in unified memory, by page faults and with cudaMemPrefetchAsync.

    Every page of x and w comes in once and every page of y, made on the device, goes out once; nothing overlaps. Faults
    bring pages in at FAULT_BYTES_PER_SECOND, prefetching at the rate of the link; both go out at the rate of the link. What
    does not fit is evicted once on top of that. That no page is needed twice is the best case.
    """
    inside = sum(o.nbytes for o in op.inputs)
    outside = sum(o.nbytes for o in op.outputs)
    stage = op.stages[0]
    computing = float(model.compute(f"{stage.kind}/{stage.dtype}/null").seconds(op.flops(op.dims), inside + outside))
    back = model.copy("d2h").seconds(outside + max(0, inside + outside - memory_bytes))
    return (
        computing if inside + outside <= memory_bytes else None,
        float(computing + inside / FAULT_BYTES_PER_SECOND + back),
        float(computing + model.copy("h2d").seconds(inside) + back),
    )


# ---- VGG16


def _network(network: PublishedNetwork) -> Iterator[Row]:
    """A training step at every batch, beside the one that is in core."""
    device = _device(network)
    memory = network.memory_bytes or device.backend.total_bytes
    small = _summary(device, IN_CORE_BATCH, memory)
    for batch in network.batches:
        in_core = _summary(device, batch, None) if network.hypothetical else small
        step = _summary(device, batch, memory)
        yield {
            "figure": network.figure, "device": device.model.name, "tf32": network.tf32,
            "share_of_peak": ASSUMED_TF32 if network.tf32 else network.share,
            "batch": batch, "memory_bytes": memory, "tensor_bytes": step["tensor_bytes"],
            "in_core_batch": in_core["batch"], "in_core_seconds_per_image": in_core["seconds"] / in_core["batch"],
            "seconds_per_image": step["seconds"] / batch, "busiest_lane_seconds_per_image": step["busiest"] / batch,
            "link_bytes_per_image": step["moved"] / batch, "published": network.published,
            "overhead": step["seconds"] / batch / (in_core["seconds"] / in_core["batch"]) - 1,
        }  # fmt: skip


def _device(network: PublishedNetwork) -> Device:
    """A device of sizes with the network's rates; what it computes is f32, so one rate stands for all."""
    device = one_kernel(network.calibration)
    model = device.model
    entry = model.compute("*/f32/cudnn_tf32" if network.tf32 else "*/f32/*")
    entry = replace(entry, flops_per_second=entry.flops_per_second * network.share / ASSUMED)
    name = model.name + (", TF32" if network.tf32 else ", f32")
    return replace(device, model=replace(model, name=name, computes={**model.computes, "*/f32/*": entry}))


def _summary(device: Device, batch: int, memory_bytes: int | None) -> Row:
    """Seconds of a step, those of every call's busiest lane, and bytes over the link."""
    step = vgg16(batch)
    all_plans = [plan for _, parts in plans(step, device, memory_bytes) for plan in parts]
    return {
        "batch": batch, "tensor_bytes": step.most_bytes, "seconds": sum(p.predicted_seconds for p in all_plans),
        "busiest": sum(max(p.lane_seconds.values()) for p in all_plans),
        "moved": sum(p.lane_bytes.get(lane, 0) for p in all_plans for lane in ("h2d", "d2h")),
    }  # fmt: skip


# ---- tables


def tables(micro: Sequence[Row], networks: Sequence[Row], markdown: bool) -> str:
    """The rows as text, or as Markdown."""
    head = ("channels", "tensors", "in core", "unified", "prefetch", "ooc", "unified/ooc", "prefetch/ooc", "published")
    first = table(head, [_micro_cells(row) for row in micro], markdown)
    columns = ("figure", "device", "peak", "batch", "in core", "out of core", "overhead", "overlap", "link/image", "published")
    second = table(columns, [_network_cells(row) for row in networks], markdown)
    titles = (
        "One convolution, 1 x C x 1024 x 1024, 3 x 3, C filters, f32, Tesla P100 16 GB",
        "VGG16, forward and backward, ms per image",
    )
    return "\n\n".join(_title(title, markdown) + table for title, table in zip(titles, (first, second), strict=True))


def _title(text: str, markdown: bool) -> str:
    return f"**{text}**\n\n" if markdown else f"{text}\n"


def _micro_cells(row: Row) -> tuple[str, ...]:
    published = "x and ".join(str(v) for v in row["published_over_ooc"].values())
    seconds = ["does not fit" if s is None else f"{s:.3g} s" for s in row["seconds"].values()]
    ratios = [f"{row['over_ooc'][k]:.2f}x" for k in MICRO]
    return str(row["channels"]), show_bytes(row["tensor_bytes"]), *seconds, *ratios, published and published + "x"


def _network_cells(row: Row) -> tuple[str, ...]:
    before, after = (1e3 * row[k] for k in ("in_core_seconds_per_image", "seconds_per_image"))
    return (
        row["figure"], f"{row['device']}, {show_bytes(row['memory_bytes'])}", f"{row['share_of_peak']:.0%}",
        str(row["batch"]), f"{before:.2f} (batch {row['in_core_batch']})", f"{after:.2f}", f"{row['overhead']:+.1%}",
        f"{row['busiest_lane_seconds_per_image'] / row['seconds_per_image']:.0%}", f"{row['link_bytes_per_image'] / 1e6:.0f} MB",
        row["published"] or "-",
    )  # fmt: skip


def table(head: Sequence[str], rows: Sequence[Sequence[str]], markdown: bool) -> str:
    """Rows as text, or as Markdown."""
    widths = [max(len(cells[i]) for cells in (head, *rows)) for i in range(len(head))]
    lines = [[c.ljust(w) for c, w in zip(cells, widths, strict=True)] for cells in (head, *rows)]
    if not markdown:
        return "\n".join("  ".join(line).rstrip() for line in lines)
    lines.insert(1, ["-" * w for w in widths])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

"""Seconds of a step, from the measured (or datasheet) curves of one machine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from ooc.cache import Cache
from ooc.errors import brief
from ooc.ops.transforms import KERNELS as TRANSFORMING
from ooc.schedule.steps import Step
from ooc.schedule.work import Moved, Work

MOST_LOST = 0.95  # share of its speed that a lane loses to one other
LARGE = (1e9, 1e7)  # operations and bytes of a tile that tells fast kernels from slow ones
REMEMBERED = 1 << 16  # steps whose seconds are kept
TRANSCENDENTAL = (
    "gelu_tanh", "erf", "softplus", "exp", "log", "pow", "celu", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh",
    "asinh", "acosh", "atanh",
)  # fmt: skip
# Kinds that no calibration measures, each with one alike; by their first word, or whole.
LIKE = {
    **dict.fromkeys(
        ("binary", "convert", "concat", "place", "permute", "spread", "multiply", "function", "sgd", "adam"), "pointwise"
    ),
    **dict.fromkeys(("argmax", "dice", "dice_backward", "distance", "distance_backward"), "softmax.sum"),
    "matmul": "matmul.nn", "matmul.nn": "conv.fprop", "attention.forward": "matmul.nn",
    "attention_backward.q": "attention.forward", "attention_backward": "attention_backward.q",
    "resize": "upsample.linear", "resize_backward": "upsample_backward.linear",
    "grid_sample": "upsample.linear", "grid_sample_backward": "upsample_backward.linear",
    "pointwise.accrue": "pointwise", "reduce.squares": "reduce.bias",
    **dict.fromkeys((f"function.{how}" for how in TRANSCENDENTAL), "function.gelu"),
}  # fmt: skip
# Kernels that no calibration measures, each as fast as another one: it serves large filters alone, and fits of different shapes
# cannot be compared. Packing filters again for each tile was measured to cost nothing that the room does not repay.
AS_FAST = {"native_lean": "native"}
NEAREST = {"native_bf16": "native"}  # kernels that older calibrations lack, each with one that is no faster
CACHED = "cached"  # of copies: reads of what the page cache holds, where the system reads ahead, with what that takes
AGAIN = "again"  # of copies: reads of what the page cache holds, once more into the same memory
FETCH = "fetch"  # of contention: the system at work on what will be read


@dataclass(frozen=True)
class Copy:
    """Cost of a copy on a lane.

    Fields:
        latency_seconds: of every copy.
        run_seconds: of every contiguous piece.
        bytes_per_second: the rate of what is copied.
    """

    latency_seconds: float
    run_seconds: float
    bytes_per_second: float = math.inf

    def seconds(self, nbytes: Any, runs: Any = 1) -> Any:
        """Seconds of a copy of so many bytes in so many contiguous pieces (numbers or arrays)."""
        return self.latency_seconds + runs * self.run_seconds + nbytes / self.bytes_per_second


@dataclass(frozen=True)
class Compute:
    """Cost of a kernel.

    Fields:
        latency_seconds: of every call.
        flops_per_second: the rate of floating-point operations.
        bytes_per_second: the rate of what the kernel walks through.
        error: share by which a measured tile is off, in the median; 0: nothing was measured.
        width: output channels that it computes at a time: fewer take as long.
    """

    latency_seconds: float
    flops_per_second: float
    bytes_per_second: float = math.inf
    error: float = 0.0
    width: int = 1

    def seconds(self, effort: Any, nbytes: Any = 0, calls: Any = 1, width: Any = math.inf) -> Any:
        """Seconds of `calls` calls with these totals (numbers or arrays), on tiles of so many output channels."""
        return calls * self.latency_seconds + self.at_best(effort, nbytes, width)

    def at_best(self, effort: Any, nbytes: Any, width: Any = math.inf) -> Any:
        """Seconds without what calls cost, which no number of calls goes below."""
        wasted = np.maximum(1.0, self.width / width) if self.width > 1 else 1
        return effort * wasted / self.flops_per_second + nbytes / self.bytes_per_second


def _alike(kind: str) -> list[str]:
    """A kind that no calibration need measure, and those that stand for it, the nearest first."""
    kinds = [kind]
    while (like := LIKE.get(kinds[-1], LIKE.get(kinds[-1].split(".")[0]))) is not None and like not in kinds:
        kinds.append(like)
    return kinds


def _moved(step: Step) -> Moved:
    return Moved(step.lane, step.nbytes, max(1, step.runs))


@dataclass(frozen=True)
class Model:
    """The calibrated costs of a machine.

    Fields:
        name: of the machine.
        copies: costs per lane, and of reads of what the page cache holds where the system reads ahead (`CACHED`, `AGAIN`).
        computes: costs of kernels by `kind/dtype/kernel`, with `*` for any.
        source: where the numbers come from, in words.
        contention: for a lane, the share of its speed that it loses while each other lane is busy; several others slow it as
            they would if all took turns: two that leave it half leave it a third. `FETCH` among the others: what a lane loses
            while the system fetches what will be read in turn.
        register: cost of pinning memory of the caller; None where that was not measured.
        memory_bytes: of the device; None where the calibration does not say.
        handoff_seconds: until a thread that sleeps goes on after what it waited for; None where lanes are queues of a device,
            which wake nobody.
        origins: where the numbers of a section (`copies`) or an entry (`copies.read`) are from: "datasheet" or "assumed"; what
            is not named was measured.
        known: answers given before.
    """

    name: str
    copies: dict[str, Copy]
    computes: dict[str, Compute]
    source: str = ""
    contention: dict[str, dict[str, float]] = field(default_factory=dict)
    register: Copy | None = None
    memory_bytes: int | None = None
    handoff_seconds: float | None = None
    origins: dict[str, str] = field(default_factory=dict)
    known: Cache[Any] = field(default_factory=lambda: Cache(REMEMBERED), init=False, compare=False, repr=False)

    def __repr__(self) -> str:
        """One line: the machine's name, and of how much the costs are known."""
        return f"<Model {brief(self.name, 200)}: {len(self.copies)} copies, {len(self.computes)} kernels>"

    def __hash__(self) -> int:
        return hash((self.name, self.source))

    def __reduce__(self) -> tuple[Any, ...]:
        """What makes it again: nothing that is remembered travels."""
        return type(self), tuple(getattr(self, f.name) for f in fields(self) if f.init)

    @property
    def is_gpu(self) -> bool:
        """Whether it describes a device that cuDNN computes on."""
        return any("/cudnn" in key for key in self.computes)

    def copy(self, lane: str) -> Copy:
        """Costs of a copy lane."""
        return self.copies[lane]

    def best_rate(self, lane: str, once: bool = False) -> float:
        """Bytes per second that a lane never exceeds: reads may find the page cache holding what they ask for. once: of what was
        neither read nor written before."""
        ways = {"read": (lane, CACHED) if once else (lane, CACHED, AGAIN)}.get(lane, (lane,))
        return max(self.copies[way].bytes_per_second for way in ways if way in self.copies)

    def compute(self, key: str) -> Compute:
        """Costs of a kernel: the entry itself, or the nearest one there is.

        A kernel that does not serve an op passes it on to another one of the list, so the next best guess is the first
        entry of the same kind and dtype. A backend that stands for the machine (`null`) has its fastest one, TF32 left out.
        """
        entry: Compute | None = self.known.get(key)
        if entry is None:
            entry = self.known.keep(key, self.computes[self.entry(key)])
        return entry

    def entry(self, key: str) -> str:
        """The entry of the calibration that tells what a kernel costs, see `compute`."""
        kind, dtype, kernel = key.split("/")
        kernel = AS_FAST.get(kernel, kernel)
        kinds = _alike(kind)
        near = [key, *(near for kind in kinds for near in self._near(kind, dtype, kernel))]
        general = (f"*/{dtype}/{kernel}", f"*/*/{kernel}", f"*/{dtype}/*", "*/*/*")
        nearest = next((k for k in (*near, *general) if k in self.computes), None)
        if nearest is None:
            raise KeyError(f"calibration {self.name}: no compute entry for {key}")
        return nearest

    def _near(self, kind: str, dtype: str, kernel: str) -> Iterator[str]:
        """Entries of a kind, the nearest to a kernel first."""
        alike = [k for k in self.computes if k.startswith(f"{kind}/{dtype}/") and k.rpartition("/")[2] not in TRANSFORMING]
        if kernel == "null":
            alike = sorted((k for k in alike if "tf32" not in k), key=lambda k: float(self.computes[k].seconds(*LARGE)))
        like = NEAREST.get(kernel, kernel)
        yield from (f"{kind}/{dtype}/{kernel}", f"{kind}/{dtype}/{like}", f"{kind}/*/{kernel}", f"{kind}/*/*", *alike[:1])

    def origin(self, section: str, entry: str) -> str:
        """Where the numbers of an entry are from: measured, datasheet or assumed."""
        return self.origins.get(f"{section}.{entry}", self.origins.get(section, "measured"))

    def bound(self, lane_seconds: Mapping[str, Any]) -> Any:
        """Seconds below which a long schedule with these busy lanes hardly ends: a lane beside others is slowed while they
        are busy, and never more than by all of them all the time (numbers or arrays)."""
        longest: Any = 0.0
        for lane, busy in lane_seconds.items():
            lost = {b: share for b, share in self.contention.get(lane, {}).items() if b in lane_seconds}
            some = busy + sum((share * lane_seconds[b] for b, share in lost.items()), 0.0)
            longest = np.maximum(longest, np.minimum(some, busy / self._speed(lane, lane_seconds)))
        return longest

    def speeds(self, busy: frozenset[str]) -> dict[str, float]:
        """The speed of every busy lane beside the others; 1: as if it were alone."""
        speeds: dict[str, float] | None = self.known.get(busy)
        if speeds is None:
            speeds = self.known.keep(busy, {lane: self._speed(lane, busy) for lane in busy})
        return speeds

    def beside_fetch(self, lane: str) -> float:
        """The speed of a lane in turn while the system fetches what will be read; 1: as if it were alone."""
        return self.speeds(frozenset((lane, FETCH)))[lane] if CACHED in self.copies else 1.0

    def _speed(self, lane: str, busy: Iterable[str]) -> float:
        """The speed of a lane beside others: each takes as many turns as it takes of the lane's speed alone."""
        lost = self.contention.get(lane, {})
        shares = [min(lost[b], MOST_LOST) for b in busy if b in lost and b != lane]
        return 1 / (1 + sum(share / (1 - share) for share in shares))

    def seconds(self, step: Step) -> float:
        """Predicted seconds of a step on its lane, alone."""
        if step.lane == "read" and step.again and CACHED in self.copies:
            return self._warm(step, step.lane)
        return self._known(step.work if step.lane == "compute" else _moved(step))

    def cached(self, step: Step) -> float:
        """Predicted seconds of a read of what the system has fetched ahead; where it does not, of any read."""
        return self._warm(step, CACHED) if CACHED in self.copies else self._known(_moved(step))

    def _warm(self, step: Step, way: str) -> float:
        """Predicted seconds of a read, part of which is of what was read or written before; way: of copies, of the rest."""
        share, warm = step.again / max(1, step.nbytes), AGAIN if AGAIN in self.copies else CACHED
        return sum(
            part * self._known(_moved(step)._replace(lane=lane)) for lane, part in ((warm, share), (way, 1 - share)) if part
        )

    def fetching(self, step: Step) -> float:
        """Predicted seconds in which the disk delivers what a read is the first to ask for."""
        first = 1 - step.again / step.nbytes if CACHED in self.copies and step.nbytes else 1.0
        return first * self._known(_moved(step))

    def _known(self, key: Moved | Sequence[Work]) -> float:
        """Seconds of a copy or of the stages of a tile, kept for the next time."""
        seconds: float | None = self.known.get(key)
        if seconds is None:
            if isinstance(key, Moved):
                seconds = float(self.copies[key.lane].seconds(key.nbytes, key.pieces))
            else:
                seconds = float(sum(self.compute(w.key).seconds(w.effort, w.nbytes, 1, w.width) for w in key))
            self.known.keep(key, seconds)
        return seconds

    def spread(self, works: Iterable[Work]) -> float:
        """How sure the model is of some computing: the standard deviation of the logarithm of its seconds, by the errors of
        the calibration's fits, each stage counting as much as it takes."""
        known = [(self.compute(w.key), w) for w in works]
        seconds = [float(c.seconds(w.effort, w.nbytes, 1, w.width)) for c, w in known]
        total = sum(seconds)
        return sum(s * math.log1p(c.error) for s, (c, _) in zip(seconds, known, strict=True)) / total if total else 0.0

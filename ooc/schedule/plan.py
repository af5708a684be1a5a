"""What was decided: how an op is cut, ordered and buffered. Plain frozen data, printable and readable as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from ooc.cache import cached_property
from ooc.errors import ArgumentError, ShapeError, brief
from ooc.files.records import record, understood
from ooc.ir.op import Fold, Op, Operand, aligned
from ooc.ops.descriptor import parse
from ooc.schedule.arena import Buffer
from ooc.schedule.budget import show_bytes
from ooc.schedule.movement import loads, made, memory, visits
from ooc.schedule.place import Place, load_route, slack_bytes, staged_bytes, store_route

WIDEST = 100.0  # a spread that is more than any calibration has


class Reasons(Protocol):
    """Why a plan was chosen, and what its predictions rest on."""

    @property
    def bound_seconds(self) -> float: ...

    @property
    def why(self) -> str: ...

    @property
    def rests(self) -> str: ...


@dataclass(frozen=True)
class WrittenReasons:
    """Reasons as they were written down."""

    bound_seconds: float = 0.0
    why: str = ""
    rests: str = ""


@dataclass(frozen=True)
class Plan:
    """How one op is cut, ordered and buffered, with what that is predicted to cost. `print(plan)` shows it.

    Fields:
        op: the work; `str(op)` is its descriptor.
        tile: pairs (loop dim, tile size), the dims of the op in natural order.
        order: loop dims, outermost first.
        depth: most buffers of each operand; default 2.
        places: pairs (operand, `ooc.Place`); what is not listed lives in host memory.
        staged: whether operands pass a ring of pinned host memory; default False.
        shared: whether device, staging and spill are the same memory (the CPU); default False.
        kernel: which implementation computes the tiles.
        serving: the kernels that compute the stages of a fused op, each `kernel` or one that it passes the stage on to; empty:
            `kernel` computes all.
        workspace_bytes: device memory that the kernel works in, in bytes.
        bounce_bytes: of an aligned buffer through which regions of files pass, in bytes; 0: none.
        in_turn: whether one step runs after the other on the calling thread, where handing work from thread to thread costs more
            than overlap gains.
        predicted_seconds: of all steps; nan where nothing was predicted.
        spread: standard deviation of the logarithm of the seconds predicted for computing; 0 where nothing was.
        lane_seconds: predicted busy seconds of each lane (read, h2d, compute, d2h, write).
        lane_bytes: bytes that each lane moves.
        calibration: name of the model that predicted.
        reasons: what `bound_seconds`, `why` and `rests` say; found out when they are asked for.
    """

    op: Op
    tile: tuple[tuple[str, int], ...]
    order: tuple[str, ...]
    depth: int = 2
    places: tuple[tuple[str, Place], ...] = ()
    staged: bool = False
    shared: bool = False
    kernel: str = "reference"
    workspace_bytes: int = 0
    bounce_bytes: int = 0
    in_turn: bool = False
    predicted_seconds: float = field(default=math.nan, compare=False)  # NaN equals nothing
    spread: float = field(default=0.0, compare=False)
    lane_seconds: Mapping[str, float] = field(default_factory=dict, compare=False)
    lane_bytes: Mapping[str, int] = field(default_factory=dict, compare=False)
    calibration: str = ""
    serving: tuple[str, ...] = field(default=(), compare=False)
    reasons: Reasons = field(default=WrittenReasons(), compare=False)

    @property
    def kernels(self) -> tuple[str, ...]:
        """The kernel of each stage."""
        return self.serving or (self.kernel,) * len(self.op.stages)

    @property
    def bound_seconds(self) -> float:
        """The bound, below which the model predicts no plan: computing everything once, or moving every operand once, at the best
        rates that the calibration knows, whichever takes longer."""
        return self.reasons.bound_seconds

    @property
    def binds(self) -> str:
        """What the predicted time is bound by, in words."""
        if not self.lane_seconds:
            return ""
        lane = max(self.lane_seconds, key=lambda name: self.lane_seconds[name])
        share = self.lane_seconds[lane] / self.predicted_seconds if self.predicted_seconds > 0 else 0.0
        what = "compute" if lane == "compute" else f"the link ({lane})"
        return f"bound by {what}" + (f", {share:.0%} of the time" if self.predicted_seconds > 0 else "")

    @property
    def why(self) -> str:
        """The alternatives, in lines of text."""
        return self.reasons.why

    @property
    def rests(self) -> str:
        """What binds, and which of the numbers that matter here were not measured, in words; empty where all were."""
        return self.reasons.rests

    @property
    def decision(self) -> dict[str, Any]:
        """What decides the steps, and with the op's descriptor the bits of the results: nothing that was predicted."""
        names = ("tile", "order", "depth", "staged", "shared", "kernel", "workspace_bytes", "bounce_bytes", "in_turn", "serving")
        places = {name: place.value for name, place in self.places}
        return {"op": str(self.op), "places": places, **{name: getattr(self, name) for name in names}}

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Tile size of every loop dim, by its name: `tile` as a dict."""
        return dict(self.tile)

    @cached_property
    def counts(self) -> dict[str, int]:
        """Number of tiles along every loop dim, by its name."""
        return {d: -(-e // self.sizes[d]) for d, e in self.op.dims.items()}

    @property
    def tiles(self) -> int:
        """Number of tiles."""
        return math.prod(self.counts.values())

    def place(self, name: str) -> Place:
        """Where the operand of a name lives, an `ooc.Place`; partial sums and names that are not known count as host memory."""
        return self._places.get(name, Place.HOST)

    @cached_property
    def in_place(self) -> frozenset[str]:
        """The operands that are used in place."""
        return frozenset([name for name, place in self.places if place is Place.DEVICE])

    @cached_property
    def _places(self) -> dict[str, Place]:
        return dict(self.places)

    def splits(self, fold: Fold) -> bool:
        """Whether partial results of a fold (one of `op.folds`) exist between tiles."""
        return any(self.counts[d] > 1 for d in fold.reduce)

    def spills(self, fold: Fold) -> int:
        """Number of a fold's tiles whose partial results leave the device and come back: all or none."""
        if all(self.place(o.name) is Place.DEVICE for o in fold.state) or visits(fold, self.order, self.counts) == 1:
            return 0
        return int(made(self.op, fold, self.counts))

    def loads(self, operand: Operand) -> int:
        """How often an operand's region changes."""
        return int(loads(operand.dims, self.order, self.counts))

    def slots(self, operand: Operand) -> int:
        """Number of buffers of an operand (one of `op.operands`), at most `depth`."""
        return min(self.depth, self.loads(operand))

    def staging_slots(self, operand: Operand) -> int:
        """Number of pinned buffers of an operand that passes the staging ring: one being filled while the other is emptied."""
        return min(2, self.loads(operand) * (1 + (self.staging_bytes(operand) < self.slot_bytes(operand))))

    def staging_bytes(self, operand: Operand) -> int:
        """Bytes of each pinned buffer of such an operand: of a tile, or of a piece of one."""
        return int(staged_bytes(self.slot_bytes(operand)))

    def slot_bytes(self, operand: Operand) -> int:
        """Bytes of each buffer of an operand (one of `op.operands`)."""
        known = self._slot_bytes.get(operand.name)
        if known is None:
            nbytes = int(operand.block_bytes(self.sizes))
            known = nbytes + int(slack_bytes(nbytes, self.place(operand.name), self.staged))
            self._slot_bytes[operand.name] = known
        return known

    @cached_property
    def _slot_bytes(self) -> dict[str, int]:
        return {}

    @property
    def resident(self) -> tuple[Operand, ...]:
        """Operands that have buffers on the device, partial sums included."""
        outputs = {o.name for o in self.op.outputs}
        state = tuple(o for f in self.op.folds if self.splits(f) for o in f.state if o.name not in outputs)
        return tuple(o for o in (*self.op.operands, *state) if self.place(o.name) is not Place.DEVICE)

    def bounce(self, place: Place) -> Buffer | None:
        """The aligned buffer that regions in this place pass; None for other places than files, and where there is none."""
        if place is not Place.DISK or not self.bounce_bytes:
            return None
        return Buffer("staging" if self.staged else "device", "bounce", 0, self.bounce_bytes)

    @cached_property
    def buffers(self) -> tuple[Buffer, ...]:
        """Every buffer of the device and the staging ring; all of them live through the whole run."""
        slots = [Buffer("device", o.name, i, self.slot_bytes(o)) for o in self.resident for i in range(self.slots(o))]
        bounces: list[Buffer] = []
        hops = [(o.name, load_route(self.place(o.name), self.staged)) for o in self.op.inputs]
        hops += [(o.name, store_route(self.place(o.name), self.staged)) for o in self.op.outputs]
        by_name = {o.name: o for o in self.op.operands}
        for name, lanes in hops:
            if len(lanes) == 2:
                operand = by_name[name]
                slots += [Buffer("staging", name, i, self.staging_bytes(operand)) for i in range(self.staging_slots(operand))]
        # Bounce buffers come first: they are whole pages, so each starts on a page of the arena.
        for lane in ("read", "write"):
            if any(lane in lanes and self.bounce(self.place(name)) for name, lanes in hops):
                bounce = self.bounce(Place.DISK)
                assert bounce is not None
                bounces.append(bounce._replace(name=f"bounce.{lane}"))
        if self.workspace_bytes:
            slots.append(Buffer("device", "workspace", 0, self.workspace_bytes))
        return (*bounces, *slots)

    @property
    def spill_buffers(self) -> tuple[Buffer, ...]:
        """Host memory for spilled partial sums, one place per output tile."""
        folds = [(o, self.spills(f)) for f in self.op.folds for o in f.state]
        return tuple(Buffer("spill", o.name, i, self.slot_bytes(o)) for o, count in folds for i in range(count))

    @cached_property
    def _memory(self) -> dict[str, int]:
        by_space = memory(self)
        by_space["device"] += aligned(self.workspace_bytes)
        return {space: int(nbytes) for space, nbytes in by_space.items()}  # of Python's own kind, as JSON wants them

    def space_bytes(self, space: str) -> int:
        """Bytes of all buffers of a space."""
        return self._memory[space]

    @property
    def peak_bytes(self) -> int:
        """Device memory at the peak, in bytes; on a CPU, staging and spill space too."""
        spaces = ("device", "staging", "spill") if self.shared else ("device",)
        return sum(self.space_bytes(s) for s in spaces)

    @property
    def pinned_bytes(self) -> int:
        """Pinned host memory at the peak, in bytes."""
        return self.space_bytes("staging")

    def __repr__(self) -> str:
        """One line: the op, its tiles, the kernel, peak memory and seconds."""
        tile = brief(" ".join(f"{d}={size}" for d, size in self.tile), 200)
        seconds = f", {self.predicted_seconds:.3g} s predicted" if math.isfinite(self.predicted_seconds) else ""
        return (
            f"<Plan {brief(str(self.op), 400)}: {self.tiles} tiles of {tile}, kernel {brief(self.kernel, 60)}, "
            f"peak {show_bytes(self.peak_bytes)}{seconds}>"
        )

    def __str__(self) -> str:
        """What `print` shows: tiles, loops, memory, traffic, seconds, the bound and the alternatives, a line each."""
        return "\n".join(f"{name:<9} {value}" for name, value in self._facts())

    def _repr_html_(self) -> str:
        """What a notebook shows: the same as `print`, as a table."""
        from ooc.schedule.notebook import page

        return page(self._facts())

    def _facts(self) -> list[tuple[str, str]]:
        tile = " ".join(f"{d}={self.sizes[d]}" for d in self.op.dims)
        order = " > ".join(f"{d}({self.counts[d]})" for d in self.order if self.counts[d] > 1) or "one tile"
        moved = " ".join(f"{lane} {show_bytes(b)}" for lane, b in self.lane_bytes.items()) or "nothing"
        lanes = " ".join(f"{lane} {s:.4g}" for lane, s in self.lane_seconds.items())
        places = " ".join(f"{name}:{place.value}" for name, place in self.places)
        sure = f" give or take {math.expm1(self.spread):.0%}" if self.spread else ""
        pinned = f", pinned {show_bytes(self.pinned_bytes)}" if self.staged else ""
        by = f" [{self.calibration}]" if self.calibration else ""
        bound = f"{self.bound_seconds:.4g} s: {self._share:.0%} reached as predicted"
        return [
            ("plan", str(self.op)),
            ("tile", f"{tile}: {self.tiles} tiles, kernel {self.kernel}"),
            ("loops", f"{order}; depth {self.depth}" + (", in turn" if self.in_turn and self.tiles > 1 else "")),
            ("memory", f"peak {show_bytes(self.peak_bytes)} (workspace {show_bytes(self.workspace_bytes)}){pinned}"),
            ("moves", moved + (f"; {places}" if places else "")),
            ("predicted", f"{self.predicted_seconds:.4g} s{sure} ({lanes}); {self.binds}{by}"),
            *([("bound", bound)] if self.bound_seconds else []),
            *([("rests on", self.rests)] if self.rests else []),
            *(("why", line) for line in self.why.splitlines()),
        ]

    @property
    def _share(self) -> float:
        return self.bound_seconds / self.predicted_seconds if self.predicted_seconds > 0 else 1.0

    def to_json(self) -> str:
        """The plan as one line of JSON text; `Plan.from_json` reads it back."""
        seconds = self.predicted_seconds if math.isfinite(self.predicted_seconds) else None
        predicted = {"predicted_seconds": seconds, "spread": self.spread, "calibration": self.calibration}
        lanes = {"lane_seconds": dict(self.lane_seconds), "lane_bytes": dict(self.lane_bytes)}
        reasons = {name: getattr(self, name) for name in ("binds", *(f.name for f in fields(WrittenReasons)))}
        return json.dumps({**self.decision, **predicted, **lanes, **reasons})

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan of a text that `to_json` wrote. Raises ShapeError, which names what is missing or wrong."""
        with understood("plan", "not a plan written by to_json"):
            raw = json.loads(text)
            op, seconds = parse(raw.pop("op")), raw.pop("predicted_seconds")
            decoded = {"places": list(raw.pop("places").items()), "predicted_seconds": math.nan if seconds is None else seconds}
            raw.pop("binds", None)  # follows from the rest
            told = record(WrittenReasons, {f.name: raw.pop(f.name) for f in fields(WrittenReasons) if f.name in raw})
            plan = record(cls, {**raw, **decoded}, op=op, reasons=told)
            sizes, order = plan.sizes, plan.order
        if min(plan.depth, plan.workspace_bytes + 1, plan.bounce_bytes + 1) < 1 or not 0 <= plan.spread <= WIDEST:
            raise ArgumentError(f"plan: expected depth >= 1, bytes >= 0, and a spread from 0 to {WIDEST}")
        if sizes != op.legal(sizes) or sorted(order) != sorted(op.dims):
            raise ShapeError(f"plan: tile {sizes} or order {order} is not legal for {op}")
        return plan

"""What was decided: `Plan`. What it was decided for: `Budget`. Plain frozen data, printable and readable as JSON."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

from ooc.errors import BudgetError, ShapeError
from ooc.ir.op import Fold, Op, Operand
from ooc.ops.descriptor import parse
from ooc.schedule.arena import Buffer, aligned

UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


class Place(str, Enum):
    """Where a whole operand lives."""

    DISK = "disk"  # a file: read and written region by region
    HOST = "host"  # pageable host memory
    PINNED = "pinned"  # host memory that the device copies from directly
    DEVICE = "device"  # used in place, never moved


def load_route(place: Place, staged: bool) -> tuple[str, ...]:
    """Lanes that a region passes on its way in. `staged`: the device reaches only pinned host memory."""
    if place is Place.DEVICE:
        return ()
    if place is Place.PINNED:
        return ("h2d",)
    if staged:
        return ("read", "h2d")
    return ("read",) if place is Place.DISK else ("h2d",)


def store_route(place: Place, staged: bool) -> tuple[str, ...]:
    """Lanes that a region passes on its way out."""
    return tuple({"read": "write", "h2d": "d2h"}[lane] for lane in reversed(load_route(place, staged)))


KEPT = 1 << 30  # bytes of a file that stay in the page cache while it is read again
PAGE = 4096  # what direct I/O aligns to
DIRECT = (1 << 20) + 2 * PAGE  # bytes of a bounce buffer for direct I/O: of a mebibyte and a page on either side
PAGED = 1 << 20  # buffers from here on can afford a page of slack


def slack_bytes(nbytes: Any, place: Place, staged: bool) -> Any:
    """Room to shift a file's region in its buffer so that both agree modulo a page: it then needs no bounce copy."""
    return PAGE * (nbytes >= PAGED) if place is Place.DISK and not staged else 0


def parse_bytes(text: int | float | str | None, total: int, what: str = "budget") -> int | None:
    """Bytes of `268435456`, `"256 MiB"`, `"5 GB"`, or a share of the total: `"80%"`, `"0.8"`. None: no limit.

    Raises ShapeError for anything else, BudgetError for less than one byte.
    """
    if text is None:
        return None
    number = text if isinstance(text, (int, float)) and not isinstance(text, bool) else _parse_text(text, total)
    if number is None or not math.isfinite(number):
        raise ShapeError(f'{what}={text!r}: expected bytes, or text such as "256 MiB", "5 GB", "80%" or "0.8" (of the device)')
    if number < 1:
        raise BudgetError(f"{what}={text!r}: expected at least 1 byte")
    return int(number)


def _parse_text(text: Any, total: int) -> float | None:
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(%|[kmgt]?i?b)?\s*", str(text), re.IGNORECASE)
    if not match:
        return None
    value, unit = float(match[1]), (match[2] or "").lower()
    if unit == "%":
        return value / 100 * total if value <= 100 else None
    if not unit and "." in match[1]:
        return value * total if value <= 1 else None
    return value * UNITS[unit] if unit in UNITS else value if not unit else None


def show_bytes(nbytes: float) -> str:
    """Bytes in the unit a person would use.

    >>> show_bytes(2048), show_bytes(3 << 29)
    ('2 KiB', '1.5 GiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024 or unit == "GiB":
            return f"{nbytes:.3g} {unit}" if nbytes < 1000 else f"{nbytes:.0f} {unit}"
        nbytes /= 1024
    raise AssertionError


@dataclass(frozen=True)
class Budget:
    """Memory that a plan may use, in bytes (None: no limit), and where each operand lives.

    `deterministic`: sums are taken in an order that does not depend on the budget. `staged`: the device is reached through
    a ring of pinned host memory (always so on a GPU). `shared`: device, staging and spill are the same memory (the CPU),
    so that all of them count against `device_bytes`.
    """

    device_bytes: int | None = None
    pinned_bytes: int | None = None
    workspace_bytes: int | None = None
    places: tuple[tuple[str, Place], ...] = ()
    staged: bool = False
    shared: bool = False
    deterministic: bool = False

    def place(self, name: str) -> Place:
        """Where an operand lives; host memory unless said."""
        return dict(self.places).get(name, Place.HOST)


@dataclass(frozen=True)
class Plan:
    """How one op is cut, ordered and buffered, with what that is predicted to cost.

    sizes: tile size per loop dim. order: loop dims, outermost first. depth: buffers per operand. in_turn: one step after
    the other on the calling thread, where handing work from thread to thread costs more than overlap gains. kernel: which
    implementation computes the tiles. peak_bytes: device memory, workspace included; pinned_bytes: staging ring.
    lane_bytes: bytes moved per lane. spread: standard deviation of the logarithm of the seconds predicted for computing.
    bound_seconds: the physical bound, computing in one piece or moving every operand once, whichever takes longer.
    binds: what the predicted time is bound by; why: the alternatives.
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
    predicted_seconds: float = math.nan
    spread: float = field(default=0.0, compare=False)
    bound_seconds: float = field(default=0.0, compare=False)
    lane_seconds: Mapping[str, float] = field(default_factory=dict, compare=False)
    lane_bytes: Mapping[str, int] = field(default_factory=dict, compare=False)
    binds: str = ""
    why: str = ""
    calibration: str = ""

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Tile size of every loop dim."""
        return dict(self.tile)

    @cached_property
    def counts(self) -> dict[str, int]:
        """Number of tiles along every loop dim."""
        return {d: -(-e // self.sizes[d]) for d, e in self.op.dims.items()}

    @property
    def tiles(self) -> int:
        """Number of tiles."""
        return math.prod(self.counts.values())

    def place(self, name: str) -> Place:
        """Where an operand lives; partial sums and unnamed operands count as host memory."""
        return self._places.get(name, Place.HOST)

    @cached_property
    def _places(self) -> dict[str, Place]:
        return dict(self.places)

    def splits(self, fold: Fold) -> bool:
        """Whether partial results of a fold exist between tiles."""
        return any(self.counts[d] > 1 for d in fold.reduce)

    def spills(self, fold: Fold) -> int:
        """Number of a fold's tiles whose partial results leave the device and come back: all or none."""
        own = [d for d in self.order if d not in fold.idle]
        inner = max((i for i, d in enumerate(own) if d not in fold.reduce and self.counts[d] > 1), default=-1)
        split_outside = any(self.counts[d] > 1 for d in own[: inner + 1] if d in fold.reduce)
        if not split_outside or all(self.place(o.name) is Place.DEVICE for o in fold.state):
            return 0
        return math.prod(self.counts[d] for d in own if d not in fold.reduce)

    def loads(self, operand: Operand) -> int:
        """How often an operand's region changes: every loop down to the innermost one that moves it."""
        total, so_far = 1, 1
        for d in self.order:
            so_far *= self.counts[d]
            if d in operand.dims and self.counts[d] > 1:
                total = so_far
        return total

    def slots(self, operand: Operand) -> int:
        """Buffers of one operand."""
        return min(self.depth, self.loads(operand))

    def staging_slots(self, operand: Operand) -> int:
        """Pinned buffers of one operand that passes the staging ring: one being filled while the other is emptied."""
        return min(2, self.loads(operand))

    def slot_bytes(self, operand: Operand) -> int:
        """Bytes of each buffer of one operand."""
        nbytes = int(operand.block_bytes(self.sizes))
        return nbytes + int(slack_bytes(nbytes, self.place(operand.name), self.staged))

    @property
    def resident(self) -> tuple[Operand, ...]:
        """Operands that have buffers on the device."""
        made = {o.name for o in self.op.outputs}
        state = tuple(o for f in self.op.folds if self.splits(f) for o in f.state if o.name not in made)
        return tuple(o for o in (*self.op.operands, *state) if self.place(o.name) is not Place.DEVICE)

    def bounce(self, place: Place) -> Buffer | None:
        """The aligned buffer through which file regions pass, if this plan has one."""
        if place is not Place.DISK or not self.bounce_bytes:
            return None
        return Buffer("staging" if self.staged else "device", "bounce", 0, self.bounce_bytes)

    @cached_property
    def buffers(self) -> tuple[Buffer, ...]:
        """Every buffer of the device and the staging ring; all of them live through the whole run."""
        slots = [Buffer("device", o.name, i, self.slot_bytes(o)) for o in self.resident for i in range(self.slots(o))]
        found: list[Buffer] = []
        hops = [(o.name, load_route(self.place(o.name), self.staged)) for o in self.op.inputs]
        hops += [(o.name, store_route(self.place(o.name), self.staged)) for o in self.op.outputs]
        by_name = {o.name: o for o in self.op.operands}
        for name, lanes in hops:
            if len(lanes) == 2:
                operand = by_name[name]
                slots += [Buffer("staging", name, i, self.slot_bytes(operand)) for i in range(self.staging_slots(operand))]
        # Bounce buffers come first: they are whole pages, so each starts on a page of the arena.
        for lane in ("read", "write"):
            if any(lane in lanes and self.bounce(self.place(name)) for name, lanes in hops):
                bounce = self.bounce(Place.DISK)
                assert bounce is not None
                found.append(bounce._replace(name=f"bounce.{lane}"))
        if self.workspace_bytes:
            slots.append(Buffer("device", "workspace", 0, self.workspace_bytes))
        return (*found, *slots)

    @property
    def spill_buffers(self) -> tuple[Buffer, ...]:
        """Host memory for spilled partial sums, one place per output tile."""
        folds = [(o, self.spills(f)) for f in self.op.folds for o in f.state]
        return tuple(Buffer("spill", o.name, i, self.slot_bytes(o)) for o, count in folds for i in range(count))

    def space_bytes(self, space: str) -> int:
        """Bytes of all buffers of a space."""
        if space == "spill":
            return sum(self.spills(f) * aligned(self.slot_bytes(o)) for f in self.op.folds for o in f.state)
        return sum(aligned(b.nbytes) for b in self.buffers if b.space == space)

    @property
    def peak_bytes(self) -> int:
        """Device memory at the peak, in bytes; on a CPU, staging and spill space too."""
        spaces = ("device", "staging", "spill") if self.shared else ("device",)
        return sum(self.space_bytes(s) for s in spaces)

    @property
    def pinned_bytes(self) -> int:
        """Pinned host memory at the peak, in bytes."""
        return self.space_bytes("staging")

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> list[str]:
        tile = " ".join(f"{d}={self.sizes[d]}" for d in self.op.dims)
        order = " > ".join(f"{d}({self.counts[d]})" for d in self.order if self.counts[d] > 1) or "one tile"
        moved = " ".join(f"{lane} {show_bytes(b)}" for lane, b in self.lane_bytes.items()) or "nothing"
        lanes = " ".join(f"{lane} {s:.4g}" for lane, s in self.lane_seconds.items())
        places = " ".join(f"{name}:{place.value}" for name, place in self.places)
        sure = f" give or take {math.expm1(self.spread):.0%}" if self.spread else ""
        pinned = f", pinned {show_bytes(self.pinned_bytes)}" if self.staged else ""
        return [
            f"plan      {self.op}",
            f"tile      {tile}: {self.tiles} tiles, kernel {self.kernel}",
            f"loops     {order}; depth {self.depth}" + (", in turn" if self.in_turn and self.tiles > 1 else ""),
            f"memory    peak {show_bytes(self.peak_bytes)} (workspace {show_bytes(self.workspace_bytes)}){pinned}",
            f"moves     {moved}" + (f"; {places}" if places else ""),
            f"predicted {self.predicted_seconds:.4g} s{sure} ({lanes}); {self.binds}"
            + (f" [{self.calibration}]" if self.calibration else ""),
            *([f"bound     {self.bound_seconds:.4g} s: {self._share:.0%} reached as predicted"] if self.bound_seconds else []),
            *(f"why       {line}" for line in self.why.splitlines()),
        ]

    @property
    def _share(self) -> float:
        return self.bound_seconds / self.predicted_seconds if self.predicted_seconds > 0 else 1.0

    def to_json(self) -> str:
        """The plan as one line of JSON; `Plan.from_json` reads it back."""
        fields = {k: v for k, v in asdict(self).items() if k not in ("op", "places")}
        places = {name: place.value for name, place in self.places}
        seconds = self.predicted_seconds
        fields["predicted_seconds"] = seconds if math.isfinite(seconds) else None
        return json.dumps({"op": str(self.op), "places": places, **fields})

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read `to_json`. Raises ShapeError naming what is missing or wrong."""
        try:
            raw = json.loads(text)
            op = parse(raw.pop("op"))
            sizes = {str(d): int(v) for d, v in raw.pop("tile")}
            order = tuple(raw.pop("order"))
            places = tuple((n, Place(p)) for n, p in raw.pop("places").items())
            seconds = raw.pop("predicted_seconds")
            plan = cls(
                op,
                tuple(sizes.items()),
                order,
                places=places,
                predicted_seconds=math.nan if seconds is None else float(seconds),
                **raw,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ShapeError(f"plan: not a plan written by to_json: {error}") from None
        counts = (plan.depth, plan.workspace_bytes + 1, plan.bounce_bytes + 1) if _whole_numbers(plan) else (0,)
        if min(counts) < 1 or not isinstance(plan.kernel, str) or not isinstance(plan.in_turn, bool):
            raise ShapeError("plan: expected depth >= 1, bytes >= 0, the name of a kernel, and in_turn true or false")
        if sizes != op.legal(sizes) or sorted(order) != sorted(op.dims):
            raise ShapeError(f"plan: tile {sizes} or order {order} is not legal for {op}")
        return plan


def _whole_numbers(plan: Plan) -> bool:
    values = (plan.depth, plan.workspace_bytes, plan.bounce_bytes)
    return all(isinstance(v, int) and not isinstance(v, bool) for v in values)

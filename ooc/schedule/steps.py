"""A step: one instruction on one lane. It names the buffers that it reads and writes, and nothing else orders it.

`emit` makes steps of a plan, `link` derives their waits; printing, simulating, checking and running all walk the same steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ooc.ir.region import Region, Span
from ooc.schedule.arena import Buffer
from ooc.schedule.work import Work

LANES = ("read", "h2d", "compute", "d2h", "write")
PAUSE = "pause"  # a kind
FIRST, LAST = 1, 2  # phase bits of a run: first / last tile of its reduction


def lane_totals(dicts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The sum of what several dicts hold by each key: seconds or bytes by lane."""
    totals: dict[str, Any] = {}
    for one in dicts:
        for key, value in one.items():
            totals[key] = totals.get(key, 0) + value
    return totals


def moved_bytes(steps: Iterable[Step]) -> dict[str, int]:
    """Bytes that steps move over every copy lane."""
    return lane_totals({step.lane: step.nbytes} for step in steps if step.lane != "compute")


class Ref(NamedTuple):
    """A step's use of a buffer: which operand, where, which region of it. buffer None: the user's array, in place. home: what
    the buffer holds of the operand, where it is more than the region."""

    operand: str
    buffer: Buffer | None
    region: Region
    stamp: int = 0
    home: Region = ()


class Step(NamedTuple):
    """One instruction. `after` holds indices of earlier steps on other lanes that must be complete."""

    lane: str
    kind: str  # load, run, store; fence, pause: nothing but an order, on the compute lane
    what: str  # operand moved, or kind of op
    reads: tuple[Ref, ...] = ()
    writes: tuple[Ref, ...] = ()
    region: Region = ()
    tile: tuple[tuple[str, Span], ...] = ()
    phase: int = 0
    nbytes: int = 0
    work: tuple[Work, ...] = ()  # what a run computes, per stage
    runs: int = 0  # contiguous pieces of a copy
    again: int = 0  # bytes of a read that an earlier one has brought into the page cache
    after: tuple[int, ...] = ()
    job: int = 0  # which of the schedule's jobs it belongs to

    def __str__(self) -> str:
        where = " ".join(f"{d}={s}" for d, s in self.tile) or "[" + ", ".join(map(str, self.region)) + "]"
        uses = " ".join(str(r.buffer) for r in (*self.reads, *self.writes) if r.buffer)
        waits = f" after {','.join(map(str, self.after))}" if self.after else ""
        phase = {0: "", FIRST: " first", LAST: " last", FIRST | LAST: ""}[self.phase if self.kind == "run" else 0]
        return f"{self.lane:7} {self.kind:5} {self.what} {where}{phase} ({uses}){waits}"

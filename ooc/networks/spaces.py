"""Where the buffers of a program lie: what lasts at the bottom, the rest coloured over it by when it is in use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from ooc.ir.op import aligned
from ooc.schedule.arena import UNCHANGED, Buffer, Layout, Longer, colour, pack_in_sequence

Lives = Mapping[Buffer, tuple[int, int]]


def arrange(
    lives: Lives, resident: Sequence[Buffer], space: str, under: Set[Buffer], close: bool = False, longer: Longer = UNCHANGED
) -> Layout:
    """Offsets of all buffers: `resident` ones first, then those that live from one item to another.

    space: "colour", "close", "first", "ends" or "rotate", see `Proposal`. under: of the latter those that lie under the others:
    with "ends" what is kept between the passes, with "rotate" what layers make. close: more orders are tried, with fewer gaps.
    longer: what had better live longer; of what rotates nothing does.
    """
    below = pack_in_sequence(resident)
    if space == "ends":
        return ends(lives, below, under, longer)
    if space == "rotate":
        return rotate(lives, below, under, longer)
    return colour(lives, below, space != "first", close, longer)


def ends(lives: Lives, below: Layout, staying: Set[Buffer], longer: Longer = UNCHANGED) -> Layout:
    """What stays is laid out from the bottom, what passes over it: long and short lives do not break each other's gaps.

    Source: vDNN++'s two-ended allocation (ALLOC_NON_OFFLOAD_RIGHT), offline.
    """
    kept = colour({b: life for b, life in lives.items() if b in staying}, below, longer=longer)
    return colour({b: life for b, life in lives.items() if b not in staying}, kept, longer=longer)


def rotate(lives: Lives, below: Layout, tops: Set[Buffer], longer: Longer = UNCHANGED) -> Layout:
    """What layers make, `tops`, takes blocks in turn, all else lies over these as usual.

    Source: Layrub's inter-layer reuse, which is of the layers' top data alone.
    """
    turning = blocks({b: life for b, life in lives.items() if b in tops}, below)
    return colour({b: life for b, life in lives.items() if b not in tops}, turning, longer=longer)


def blocks(lives: Lives, below: Layout) -> Layout:
    """Each buffer takes the first block that nobody uses any more, in the order of their first use; a block is as large as its
    largest tenant."""
    slots_of: dict[str, list[tuple[int, int]]] = {}  # by space: last use, bytes
    block_of: dict[Buffer, int] = {}
    for buffer, (first, last) in sorted(lives.items(), key=lambda one: (one[1], one[0])):
        slots = slots_of.setdefault(buffer.space, [])
        free = next((i for i, (until, _) in enumerate(slots) if until < first), len(slots))
        if free == len(slots):
            slots.append((last, buffer.nbytes))
        else:
            slots[free] = (last, max(slots[free][1], buffer.nbytes))
        block_of[buffer] = free
    offsets, peaks = dict(below.offsets), dict(below.peaks)
    for space, slots in slots_of.items():
        starts, at = [], peaks.get(space, 0)
        for _, nbytes in slots:
            starts.append(at)
            at = aligned(at + nbytes)
        peaks[space] = at
        offsets |= {b: starts[i] for b, i in block_of.items() if b.space == space}
    return Layout(offsets, peaks)

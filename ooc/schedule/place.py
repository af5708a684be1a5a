"""Where whole operands live, and which lanes their regions pass on the way to the device and back."""

from __future__ import annotations

from collections.abc import Container, Mapping
from enum import StrEnum
from typing import Any

import numpy as np

from ooc.ir.op import Op, aligned


class Place(StrEnum):
    """Where a whole operand lives, as `ooc.plan` takes it and `Plan.places` tells it; equal to its word.

    DISK "disk": a file, read and written region by region. HOST "host": pageable memory of the host. PINNED "pinned": host
    memory that the device copies from directly. DEVICE "device": used in place, never moved.
    """

    DISK = "disk"  # a file: read and written region by region
    HOST = "host"  # pageable host memory
    PINNED = "pinned"  # host memory that the device copies from directly
    DEVICE = "device"  # used in place, never moved


def settled(op: Op, places: Mapping[str, Place], reached: Container[str]) -> dict[str, Place]:
    """Places beside files, on a device that computes on the operands `reached` where they are: parameters among those, of which
    there is one for all of the batch and of which kernels make packed copies of their own, are read in place, and their gradients
    summed there. What follows the batch moves in any case, as does everything where no tensor is a file."""
    beside = Place.DISK in places.values()
    return {n: Place.DEVICE if beside and n in op.parameters and n in reached else at for n, at in places.items()}


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
FILE, PAGEABLE = "file", "host"  # spaces of what lies in a file, or in pageable memory, of a schedule's own
CALLER = "caller"  # the space of arrays of the caller's that are written, and perhaps read again
OUTSIDE = (FILE, PAGEABLE, CALLER)  # reached through stores
PAGE = 4096  # what direct I/O aligns to
DIRECT = (1 << 20) + 2 * PAGE  # bytes of a bounce buffer for direct I/O: of a mebibyte and a page on either side
PAGED = 1 << 20  # buffers from here on can afford a page of slack
STAGED = 16 << 20  # bytes of a piece that passes the staging ring: nearly the link's full speed, and soon pinned and filled
MOST_PIECES = 1024  # of a tile; of tiles of more than 16 GiB they are larger


def staged_bytes(slot_bytes: Any) -> Any:
    """Bytes of a piece in which an operand passes the staging ring, at most; slot_bytes: of its tiles."""
    return np.minimum(slot_bytes, np.maximum(STAGED, aligned(-(-slot_bytes // MOST_PIECES))))


def slack_bytes(nbytes: Any, place: Place, staged: bool) -> Any:
    """Room to shift a file's region in its buffer so that both agree modulo a page: it then needs no bounce copy."""
    return PAGE * (nbytes >= PAGED) if place is Place.DISK and not staged else 0

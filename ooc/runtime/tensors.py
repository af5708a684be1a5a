"""The arrays of a call, each looked at once: where it lives, which file lies behind it, how it is read and written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ooc import native
from ooc.ir.op import Op
from ooc.runtime.device import Device
from ooc.runtime.store import ArrayStore, FileStore, NullStore, Store, file_behind
from ooc.schedule.place import Place, settled

PLACES = {place.value: place for place in Place}


@dataclass(frozen=True)
class Tensor:
    """An array of a call, as the device sees it.

    Fields:
        array: of NumPy, or a view of a device's memory.
        place: where it lives.
        file: the path of the file behind it, and at which byte of that it begins; None: it lies in memory.
    """

    array: Any
    place: Place
    file: tuple[str, int] | None = None

    @property
    def reach(self) -> tuple[int, int]:
        """The addresses between which its elements lie."""
        return native.bounds(self.array)

    @property
    def bytes_of_file(self) -> tuple[int, int]:
        """The bytes of its file between which its elements lie."""
        assert self.file is not None
        lo, hi = self.reach
        begin = self.file[1] - native.address(self.array)
        return lo + begin, hi + begin

    def store(self, device: Device, writable: bool) -> Store:
        """How it is read and written, by region. Nothing is written while opening. Raises StoreError."""
        threads = device.backend.copy_threads
        if device.backend.name == "null":
            return NullStore(tuple(self.array.shape))
        if self.file is not None:
            return FileStore(self.array, *self.file, writable, threads=threads)
        return ArrayStore(self.array, threads)


def tensors_of(op: Op, arrays: Mapping[str, Any], device: Device) -> dict[str, Tensor]:
    """The arrays of an op by the names of its operands. The host's own memory counts as the device's only without a limit, but
    for parameters beside files (`settled`).

    Raises UnsupportedError for memory that the device does not reach.
    """
    files = {name: file_behind(array) for name, array in arrays.items()}
    places = {name: Place.DISK if files[name] else PLACES[device.backend.place(array)] for name, array in arrays.items()}
    if device.backend.shared and device.device_bytes is not None:
        reached = [name for name, place in places.items() if place is Place.DEVICE]
        places |= dict.fromkeys(reached, Place.HOST)
        if not device.backend.staged:
            places = settled(op, places, reached)
    return {name: Tensor(array, places[name], files[name]) for name, array in arrays.items()}


def places_of(tensors: Mapping[str, Tensor]) -> dict[str, Place]:
    """Where tensors live, by name."""
    return {name: tensor.place for name, tensor in tensors.items()}

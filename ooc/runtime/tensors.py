"""The arrays of a call, each looked at once: where it lives, which file lies behind it, how it is read and written."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ooc import native
from ooc.backends.base import Backend
from ooc.ir.op import Op
from ooc.ir.region import whole
from ooc.runtime.device import Device
from ooc.runtime.store import ArrayStore, FileStore, NullStore, Store, UnitStore, file_behind
from ooc.runtime.stored import Stored, StoredArray, stored_in
from ooc.runtime.units import Keeping, Units
from ooc.schedule.place import Place, settled
from ooc.sources.beside import folder_of_file, location
from ooc.sources.remote import is_remote

PLACES = {place.value: place for place in Place}


@dataclass(frozen=True)
class Tensor:
    """An array of a call, as the device sees it.

    Fields:
        array: of NumPy, or a view of a device's memory.
        place: where it lives.
        file: the path of the file behind it, and at which byte of that it begins; None: it lies in memory, or is stored.
        stored: of which source it is which part, where it is read by region; else None.
    """

    array: Any
    place: Place
    file: tuple[str, int] | None = None
    stored: Stored | None = None

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

    @property
    def path(self) -> str:
        """The file or folder that holds its numbers; "" for memory."""
        if self.stored is not None:
            path = location(self.stored.source)
            return os.path.abspath(path) if path and not is_remote(path) else path
        return self.file[0] if self.file else ""

    @property
    def folder(self) -> str:
        """The folder that it lies in; "" for memory."""
        if self.stored is not None:
            return folder_of_file(self.stored.source)
        return os.path.dirname(os.path.abspath(self.file[0])) if self.file else ""

    def store(self, backend: Backend, writable: bool) -> Store:
        """How it is read and written, by region, unless it is stored. Nothing is written while opening. Raises StoreError."""
        threads = backend.copy_threads
        if backend.name == "null":
            return NullStore(tuple(self.array.shape))
        if self.file is not None:
            return FileStore(self.array, *self.file, writable, threads=threads)
        return ArrayStore(self.array, threads)


def tensor_of(array: Any, backend: Backend) -> Tensor:
    """An array as a backend sees it. Raises UnsupportedError for memory that it does not reach, and for a part of a file that
    cannot be read by region."""
    stored = stored_in(array) if isinstance(array, StoredArray) else None
    file = None if stored else file_behind(array)
    return Tensor(array, Place.DISK if file or stored else PLACES[backend.place(array)], file, stored)


def tensors_of(op: Op, arrays: Mapping[str, Any], device: Device) -> dict[str, Tensor]:
    """The arrays of an op by the names of its operands. The host's own memory counts as the device's only without a limit, but
    for parameters beside files (`settled`).

    Raises UnsupportedError as `tensor_of` does.
    """
    tensors = {name: tensor_of(array, device.backend) for name, array in arrays.items()}
    if device.backend.shared and device.device_bytes is not None:
        places = places_of(tensors)
        reached = [name for name, place in places.items() if place is Place.DEVICE]
        places |= dict.fromkeys(reached, Place.HOST)
        if not device.backend.staged:
            places = settled(op, places, reached)
        tensors = {name: replace(tensor, place=places[name]) for name, tensor in tensors.items()}
    return tensors


def places_of(tensors: Mapping[str, Tensor]) -> dict[str, Place]:
    """Where tensors live, by name."""
    return {name: tensor.place for name, tensor in tensors.items()}


def folder_beside(tensors: Mapping[str, Tensor], outputs: Collection[str]) -> str:
    """The folder of the first of some outputs that lies in a file; "" where none does."""
    return next((folder for name in outputs if (folder := tensors[name].folder)), "")


def fetched(array: Any, backend: Backend) -> Any:
    """An array's values on the host: itself, or a copy where it lies on a device or in a file that is read by region. Raises
    UnsupportedError for memory that the backend does not reach, StoreError."""
    stored = stored_in(array)
    if stored is None:
        return backend.fetch(array)
    values = np.empty(array.shape, array.dtype)
    for region, part in stored.pieces(whole(array.shape), values):
        stored.source.read(region, part)
    return values


def put(array: Any, values: Any, backend: Backend) -> None:
    """Write values of the host into an array, wherever it lies. Raises as `fetched` does."""
    stored = stored_in(array)
    if stored is None:
        backend.put(array, values)
        return
    wide = np.broadcast_to(np.asarray(values), array.shape).astype(array.dtype, copy=False)
    units = Units(stored.source, Keeping((0,) * len(stored.source.shape)), threading.RLock())
    try:
        UnitStore(units, stored, tuple(array.shape)).write(whole(array.shape), wide, None)
        units.finish()
    finally:
        units.close()

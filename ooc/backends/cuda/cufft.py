"""cuFFT, through CuPy's binding: real transforms whose spectra lie frequency by frequency, in memory that it is given."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

from ooc.errors import UnsupportedError

# cufftType of transforms from and to numbers of each type.
FORWARD, BACKWARD = {"f32": 0x2A, "f64": 0x6A}, {"f32": 0x2C, "f64": 0x6C}
MOST = 2**31  # numbers, distances and transforms from which on it refuses

Execute = Callable[[int, int], None]  # from one address to another; returns before it is done


class Transforms(NamedTuple):
    """A call of cufftMakePlanMany.

    Fields:
        lengths: of a transform along each axis.
        batch: of transforms, whose numbers follow each other; of frequency f of transform i the spectrum is at f * batch + i.
        backward: from spectra to numbers, times the numbers of a transform; spectra are spoilt.
        dtype: of the numbers, f32 or f64.
    """

    lengths: tuple[int, ...]
    batch: int
    backward: bool
    dtype: str

    @property
    def numbers(self) -> int:
        """Of one transform."""
        return math.prod(self.lengths)

    @property
    def half(self) -> tuple[int, ...]:
        """Extents of a spectrum: the rest is its mirror image."""
        return (*self.lengths[:-1], self.lengths[-1] // 2 + 1)

    @property
    def frequencies(self) -> int:
        return math.prod(self.half)

    def layout(self) -> tuple[tuple[tuple[int, ...], int, int], tuple[tuple[int, ...], int, int]]:
        """Of what comes in and what goes out: extents, elements from one to the next, from a transform to the next."""
        numbers, spectra = (self.lengths, 1, self.numbers), (self.half, self.batch, 1)
        return (spectra, numbers) if self.backward else (numbers, spectra)


class CupyFft:
    """cuFFT on one device. stream: on which it computes; free: bytes free on the device, of which it takes some for itself."""

    def __init__(self, stream: int, free: Callable[[], int]) -> None:
        import cupy
        from cupy.cuda import cufft

        self.cupy, self.cufft, self.stream = cupy, cufft, cupy.cuda.ExternalStream(stream)
        self.free, self.own_bytes = free, 0

    def prepare(self, transforms: Transforms, address: int, nbytes: int) -> Execute:
        """Transforms that work in this memory. Raises UnsupportedError where they need more, or there are too many."""
        t, kind = transforms, (BACKWARD if transforms.backward else FORWARD)[transforms.dtype]
        check_extents(t)
        (come, step, hop), (go, stride, distance) = t.layout()

        def room(needed: int) -> Any:
            if needed > nbytes:
                raise UnsupportedError(f"cuFFT: needs {needed} bytes to work in, has {nbytes}")
            memory = self.cupy.cuda.UnownedMemory(address, max(nbytes, 1), self)
            return self.cupy.cuda.MemoryPointer(memory, 0)

        before = self.free()
        with self.stream, self.cupy.cuda.using_allocator(room):  # plans take their memory from CuPy's allocator
            try:
                plan = self.cufft.PlanNd(
                    t.lengths, come, step, hop, go, stride, distance, kind, t.batch, "C", len(t.lengths) - 1, None
                )
            except self.cufft.CuFFTError as error:
                raise UnsupportedError(f"cuFFT: {error}") from error

        self.own_bytes += max(0, before - self.free())  # tables and code of a plan

        def execute(source: int, target: int) -> None:
            with self.stream:  # it works on CuPy's current stream
                plan.fft(_array(source), _array(target), 1 if t.backward else -1)

        return execute


def check_extents(t: Transforms) -> None:
    """Raises UnsupportedError where cuFFT's numbers, of 32 bits, do not hold them."""
    if max(t.numbers, t.batch, t.numbers * t.batch) >= MOST:
        raise UnsupportedError("cuFFT: 2^31 numbers")


def _array(address: int) -> Any:
    """An address in the form of an array, of which cuFFT's binding reads no more."""
    return SimpleNamespace(data=SimpleNamespace(ptr=address))

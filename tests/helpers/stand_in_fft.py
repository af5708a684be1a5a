"""What stands in for cuFFT: transforms by NumPy in f64, where the device has the memory, with what it spoils."""

from __future__ import annotations

from typing import Any

import numpy as np

from ooc.backends.cuda.cufft import Execute, Transforms, check_extents
from ooc.backends.device_array import host_array
from ooc.errors import UnsupportedError
from ooc.ir.op import numpy_dtype

SPECTRA = {"f32": np.complex64, "f64": np.complex128}


class StandInFft:
    """cuFFT of an emulated device. share: of the spectra's bytes that it works in. prepared: transforms so far."""

    own_bytes = 0

    def __init__(self, driver: Any, stream: int, share: float = 1.0) -> None:
        self.driver, self.stream, self.share = driver, stream, share
        self.prepared: list[Transforms] = []

    def prepare(self, transforms: Transforms, address: int, nbytes: int) -> Execute:
        t = transforms
        check_extents(t)
        assert 1 <= len(t.lengths) <= 3 and t.batch > 0
        item = np.dtype(SPECTRA[t.dtype]).itemsize
        needed = int(self.share * item * t.frequencies * t.batch)
        if needed > nbytes:
            raise UnsupportedError(f"cuFFT: needs {needed} bytes to work in, has {nbytes}")
        self.prepared.append(t)

        def execute(source: int, target: int) -> None:
            assert source % item == target % item == 0, "CUFFT_INVALID_VALUE: complex numbers are not aligned"
            self.driver.work("fft", self.stream, lambda: compute(t, source, target, (address, needed)))

        return execute


def compute(t: Transforms, source: int, target: int, work: tuple[int, int]) -> None:
    """The transforms. What they work in, and of those backward the spectra, hold nothing any more."""
    axes, spectra = tuple(range(1, 1 + len(t.lengths))), np.dtype(SPECTRA[t.dtype])
    numbers = host_array(source if not t.backward else target, (t.batch, *t.lengths), numpy_dtype(t.dtype))
    waves = host_array(target if not t.backward else source, (*t.half, t.batch), spectra)
    host_array(work[0], (work[1],), np.uint8)[...] = 0xFF
    with np.errstate(all="ignore"):
        if t.backward:
            numbers[...] = np.fft.irfftn(np.moveaxis(waves, -1, 0).astype(np.complex128), t.lengths, axes) * t.numbers
            waves.view(np.uint8)[...] = 0xFF
        else:
            waves[...] = np.moveaxis(np.fft.rfftn(numbers.astype(np.float64), axes=axes), 0, -1)

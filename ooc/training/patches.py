"""What each step learns from: patches that follow from the seed and the step alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.random import Generator, default_rng

from ooc.apply.axes import SPACE
from ooc.apply.statistics import blocks
from ooc.cache import Cache
from ooc.errors import ArgumentError
from ooc.training.config import DataTable
from ooc.training.intensity import Intensity
from ooc.training.samples import FileSamples, Sample, Shape

ORDER, PATCH, FOREGROUND, HELD_OUT = range(4)  # what is drawn, each by numbers of its own
MOST_AT_ONCE = 1 << 20  # values that are looked at
REMEMBERED = 1024  # positions of a sample's foreground
MOST_MEASURED = 1 << 16  # samples of which something is remembered


class Patches:
    """Patches of samples.

    Parameters:
        samples: what they are of.
        data: how they are drawn.
        patch: extents.
        intensity: what is done to images.
        seed: of the run.

    Raises:
        ArgumentError: turns that the patch does not take; samples that are smaller, where labels are values.
    """

    def __init__(self, samples: FileSamples, data: DataTable, patch: Shape, intensity: Intensity, seed: int) -> None:
        self.samples, self.data, self.patch, self.intensity, self.seed = samples, data, patch, intensity, seed
        letters = SPACE[-len(patch) :]
        for name in ("flips", "rotations"):
            if odd := set(getattr(data, name)) - {*letters}:
                raise ArgumentError(f"[data] {name}: no axis {', '.join(sorted(odd))}; there are {letters}")
        self.flips = [letters.index(letter) for letter in data.flips]
        turned = [letters.index(letter) for letter in data.rotations]
        if len({patch[a] for a in turned}) > 1:
            raise ArgumentError(f"[data] rotations: expected axes of equal extents, the patch has {patch} along {letters}")
        small = next((s for s in samples.list if min(np.subtract(s.extent, patch)) < 0), None)
        if small is not None and samples.pairing.targets:
            raise ArgumentError(f"[{samples.what}] images: {small.image} is smaller than a patch of {patch}")
        self.planes = list(itertools.combinations(turned, 2))
        self._measured: Cache[Any] = Cache(MOST_MEASURED)
        self._foregrounds: Cache[Any] = Cache(MOST_MEASURED)

    def batch(self, step: int) -> tuple[Any, Any]:
        """Images and labels of a step, counted from 0. Raises OocError."""
        drawn = [self._drawn(step * self.data.batch + i) for i in range(self.data.batch)]
        return np.stack([x for x, _ in drawn]), np.stack([labels for _, labels in drawn])

    def _drawn(self, number: int) -> tuple[Any, Any]:
        """The image and the labels of a patch of the run."""
        rng = default_rng((PATCH, self.seed, number))
        sample = self._sample(number)
        x, labels = self.read(sample, self._start(rng, sample))
        axes = len(self.patch)
        for axis in self.flips:
            if rng.random() < 0.5:
                x, labels = np.flip(x, axis - axes), np.flip(labels, axis - axes)
        if self.planes:
            a, b = self.planes[rng.integers(len(self.planes))]
            quarters = int(rng.integers(4))
            x, labels = (np.rot90(one, quarters, (a - axes, b - axes)) for one in (x, labels))
        return x, labels

    def _sample(self, number: int) -> Sample:
        """All samples once, in an order of their own, before any comes again."""
        count = len(self.samples.list)
        epoch, at = divmod(number, count)
        order: list[int] = default_rng((ORDER, self.seed, epoch)).permutation(count).tolist()
        return self.samples.list[order[at]]

    def _start(self, rng: Generator, sample: Sample) -> list[int]:
        """Where a patch begins: anywhere, or around a position of the foreground. A patch that is larger than the sample holds
        all of it."""
        low = [min(0, e - p) for e, p in zip(sample.extent, self.patch, strict=True)]
        high = [max(0, e - p) for e, p in zip(sample.extent, self.patch, strict=True)]
        start = [int(rng.integers(lo, hi + 1)) for lo, hi in zip(low, high, strict=True)]
        if rng.random() >= self.data.foreground:
            return start
        positions = self._foreground(sample)
        if not len(positions):
            return start
        position = positions[rng.integers(len(positions))]
        around = [int(at - rng.integers(p)) for at, p in zip(position, self.patch, strict=True)]
        return [min(max(s, lo), hi) for s, lo, hi in zip(around, low, high, strict=True)]

    def _foreground(self, sample: Sample) -> Any:
        """Some positions of a sample whose labels are above 0, each as likely as another: those that draw the least numbers."""

        def some() -> Any:
            rng = default_rng((FOREGROUND, self.seed, self.samples.list.index(sample)))
            keys, positions = np.empty(0), np.empty((0, len(self.patch)), np.int64)
            for region, block in blocks(self.samples.whole(sample, True)):
                for at in _above(block):
                    keys = np.concatenate([keys, rng.random(len(at))])
                    positions = np.concatenate([positions, at + [span.lo for span in region[2:]]])
                    least = np.argsort(keys, kind="stable")[:REMEMBERED]
                    keys, positions = keys[least], positions[least]
            return positions

        return self._foregrounds.made(sample, some)

    def read(self, sample: Sample, start: list[int]) -> tuple[Any, Any]:
        """The image and the labels of a patch; where the sample ends, zeros and no labels. Raises OocError."""
        values, inside = self.samples.image(sample, start, self.patch)
        x = np.zeros((len(values), *self.patch), self.samples.pairing.dtype)
        x[(slice(None), *inside)] = self.intensity.done(values, self._measure(sample))
        return x, self.samples.labels(sample, start, self.patch)

    def _measure(self, sample: Sample) -> Any:
        """What is measured of a sample, once."""
        if self.intensity.measure is None:
            return None
        whole = self.samples.whole(sample, False)
        return self._measured.made(sample, lambda: self.intensity.measured(whole, len(self.patch)))


def _above(block: Any) -> Iterator[Any]:
    """Positions in space of a block's values above 0, of not too many values at a time."""
    flat, space = block.reshape(-1), block.shape[2:]
    for lo in range(0, flat.size, MOST_AT_ONCE):
        at = lo + np.flatnonzero(flat[lo : lo + MOST_AT_ONCE] > 0)
        yield np.stack(np.unravel_index(at % math.prod(space), space), axis=1)


def split(samples: list[Sample], share: float, seed: int) -> tuple[list[Sample], list[Sample]]:
    """Samples to learn from and those that are held out, at least one of each. Raises ArgumentError."""
    count = max(1, round(share * len(samples)))
    if count >= len(samples):
        raise ArgumentError(f"[validation] share: {share} of {len(samples)} samples leaves none to learn from")
    held = {*default_rng((HELD_OUT, seed)).permutation(len(samples))[:count].tolist()}
    return [s for i, s in enumerate(samples) if i not in held], [s for i, s in enumerate(samples) if i in held]

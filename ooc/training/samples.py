"""Samples in files: images and their labels, looked at once, opened when they are read, and read by region."""

from __future__ import annotations

import copy
import glob
import os
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ooc.apply.axes import COLOUR, model_axes
from ooc.errors import ArgumentError, DtypeError, OocError, StoreError, shown
from ooc.ir.region import Region, Span, extents
from ooc.sources import Source
from ooc.sources import open as open_source
from ooc.sources.around import Arranged, arranged
from ooc.sources.place import place
from ooc.training.config import Paths

MOST_SAMPLES, MOST_OPEN = 1 << 20, 32
NO_LABEL = -1
Shape = tuple[int, ...]


class Sample(NamedTuple):
    """A sample.

    Fields:
        image, labels: paths, as they are opened.
        at: which sample of the files it is.
        extent: of space.
    """

    image: str
    labels: str
    at: int
    extent: Shape


class Pairing(NamedTuple):
    """What a network takes and learns.

    Fields:
        channels: of an image.
        rank: spatial axes.
        targets: channels of the labels; 0: a class per position.
        classes: integers of labels are less.
        dtype: of the input.
        target_dtype: of labels.
    """

    channels: int
    rank: int
    targets: int
    classes: int
    dtype: Any = np.float32
    target_dtype: Any = np.int64


class FileSamples:
    """Images and labels in files.

    Parameters:
        what: the table that names them, for errors.
        images, labels: as of [data].
        axes, label_axes: as of [data].
        pairing: what the network takes.
        base: the folder at which paths begin.

    Fields:
        list: all samples.

    Raises:
        ArgumentError: files that do not go together, or that the network does not take; StoreError, as `ooc.open`.
    """

    def __init__(
        self, what: str, images: Paths, labels: Paths, axes: tuple[str, str], pairing: Pairing, base: Path
    ) -> None:  # fmt: skip
        self.what, self.axes, self.pairing = what, axes, pairing
        self._open: OrderedDict[tuple[str, bool], Arranged] = OrderedDict()
        pairs = _listed(what, "images", images, base), _listed(what, "labels", labels, base)
        if len(pairs[0]) != len(pairs[1]):
            raise ArgumentError(f"[{what}] labels: {len(pairs[1])} files for {len(pairs[0])} of images; expected one for each")
        self.list: list[Sample] = []
        try:
            for image, label in zip(*pairs, strict=True):
                self.list += self._looked_at(image, label)
        except BaseException:
            self.close()
            raise

    def part(self, some: list[Sample]) -> FileSamples:
        """Some of the samples, with files of its own, which another thread may read."""
        part = copy.copy(self)
        part.list, part._open = some, OrderedDict()
        return part

    def _looked_at(self, image: str, label: str) -> list[Sample]:
        """The samples of two files. Raises ArgumentError, DtypeError, where they do not fit."""
        x, targets = self.source(image, False), self.source(label, True)
        n, c, *extent = x.shape
        if c != self.pairing.channels:
            raise ArgumentError(
                f"[{self.what}] images: {image} has {c} channels, the network takes {self.pairing.channels}; axes tells which "
                f"are what: here {self._letters(x)}"
            )
        if 0 in x.shape or len(self.list) + n > MOST_SAMPLES:
            raise ArgumentError(f"[{self.what}] images: {image} has {x.shape}; expected 1 to {MOST_SAMPLES} samples, none empty")
        expected = (n, self.pairing.targets or 1, *extent)
        if targets.shape != expected:
            raise ArgumentError(
                f"[{self.what}] labels: {label} has {targets.shape}, {image} {x.shape}: expected {expected}, samples, channels, "
                "space; label_axes tells which are what"
            )
        if x.dtype.kind == "c" or targets.dtype.kind == "c":
            raise DtypeError(f"[{self.what}] {image}: expected real numbers, got complex ones")
        return [Sample(image, label, i, tuple(extent)) for i in range(n)]

    def _letters(self, source: Arranged) -> str:
        """Axes of a file and their extents, as they were taken."""
        return ", ".join(f"{letter} {e}" for letter, e in zip(source.axes, source.shape, strict=True))

    def source(self, path: str, is_label: bool) -> Arranged:
        """An open file with axes n, c and space; few are open at a time. Raises OocError."""
        key = path, is_label
        if key not in self._open:
            while len(self._open) >= MOST_OPEN:
                self._open.popitem(last=False)[1].close()
            self._open[key] = self._arranged(path, is_label)
        self._open.move_to_end(key)
        return self._open[key]

    def _arranged(self, path: str, is_label: bool) -> Arranged:
        name = "label_axes" if is_label else "axes"
        whole = open_source(path)
        try:
            axes = self.axes[is_label] or _known(whole.axes) or self._usual(whole.shape, is_label)
            return arranged(whole, axes, model_axes(self.pairing.rank))
        except OocError as error:
            with suppress(OocError):
                whole.close()
            raise ArgumentError(f"[{self.what}] {name}: {path}: {error}") from None

    def _usual(self, shape: Shape, is_label: bool) -> str:
        """Letters of a file that tells none: space, channels before it, samples before these. Labels that are classes have no
        channels."""
        letters = model_axes(self.pairing.rank)
        if is_label and not self.pairing.targets and len(shape) == len(letters) - 1:
            return "n" + letters[2:]
        return letters[max(0, len(letters) - len(shape)) :]

    # ---- reading

    def image(self, sample: Sample, start: Sequence[int], size: Shape) -> tuple[Any, tuple[slice, ...]]:
        """What there is of a patch of an image, channels first, and where it lies in the patch."""
        source = self.source(sample.image, False)
        region, inside = _overlap(sample, start, size)
        return _read(source, (Span(sample.at, sample.at + 1), Span(0, source.shape[1]), *region))[0], inside

    def labels(self, sample: Sample, start: Sequence[int], size: Shape) -> Any:
        """The labels of a patch: classes, NO_LABEL where the sample ends; or values, channels first, there 0. Raises
        ArgumentError for numbers that are no classes."""
        source = self.source(sample.labels, True)
        region, inside = _overlap(sample, start, size)
        values = _read(source, (Span(sample.at, sample.at + 1), Span(0, source.shape[1]), *region))[0]
        if self.pairing.targets:
            patch: Any = np.zeros((source.shape[1], *size), self.pairing.target_dtype)
            patch[(slice(None), *inside)] = values
            return patch
        patch = np.full(size, NO_LABEL, np.int64)
        patch[inside] = self._classes(values[0], sample.labels)
        return patch

    def _classes(self, values: Any, path: str) -> Any:
        """Numbers as classes, negative ones as they are."""
        if values.size and not (values.max() < self.pairing.classes):  # not-a-number is neither
            raise ArgumentError(f"{path}: {values.max()} is no class; expected less than {self.pairing.classes}, or negative")
        with np.errstate(invalid="ignore"):
            whole = values.astype(np.int64)
        if values.dtype.kind not in "biu" and not np.array_equal(whole, values):
            raise DtypeError(f"{path}: labels: expected whole numbers, got others of {values.dtype}")
        return whole

    def whole(self, sample: Sample, is_label: bool) -> Source:
        """All of a sample, n = 1."""
        return OneSample(self.source(sample.labels if is_label else sample.image, is_label), sample.at)

    def identity(self) -> list[list[Any]]:
        """What must be the same when a run is resumed: names, extents, types."""
        return [
            [os.path.basename(s.image), os.path.basename(s.labels), s.at, list(s.extent)] for s in self.list
        ]  # fmt: skip

    def close(self) -> None:
        """Close all files."""
        while self._open:
            self._open.popitem()[1].close()


class OneSample(Arranged):
    """One of the samples of a source with axes n, c and space."""

    def __init__(self, source: Source, at: int) -> None:
        super().__init__(source, tuple(range(len(source.shape))), source.axes)
        self.at = at
        self.shape = (1, *source.shape[1:])

    def _within(self, region: Region) -> Region:
        return (region[0].shift(self.at), *region[1:])

    def own(self, region: Region) -> Region:
        """The smallest region of whole units that covers a region."""
        return (region[0], *super().own(region)[1:])


def _known(axes: str) -> str:
    """Letters that a file tells, as networks have them; "": some mean nothing, such as those of a stack of pages."""
    letters = axes.replace(COLOUR, "c")
    letters = letters if "n" in letters else letters.replace("t", "n")
    return letters if {*letters} <= {*model_axes(3)} else ""


def _overlap(sample: Sample, start: Sequence[int], size: Shape) -> tuple[Region, tuple[slice, ...]]:
    """What a sample has of a patch, and where in the patch that lies."""
    region = tuple(Span(s, s + p).clip(e) for s, p, e in zip(start, size, sample.extent, strict=True))
    return region, tuple(slice(r.lo - s, r.hi - s) for r, s in zip(region, start, strict=True))


def _read(source: Source, region: Region) -> Any:
    values = np.empty(extents(region), source.dtype)
    source.read(region, values)
    return values


def _listed(what: str, name: str, paths: Paths, base: Path) -> list[str]:
    """Paths that a file, a pattern, or a list of them names, patterns in order of their names. Raises ArgumentError."""
    texts = (paths,) if isinstance(paths, str) else paths
    files = [path for text in texts for path in _matching(what, name, text, base)]
    if not files or len(files) > MOST_SAMPLES:
        raise ArgumentError(f"[{what}] {name}: expected 1 to {MOST_SAMPLES} files, got {len(files)}")
    return files


def _matching(what: str, name: str, text: str, base: Path) -> list[str]:
    try:
        at = place(text)
    except OocError as error:
        raise type(error)(f"[{what}] {name}: {error}") from None
    rest = text[len(at.file) :]
    if os.path.lexists(base / at.file) or not glob.has_magic(at.file):
        return [f"{base / at.file}{rest}"]
    names = sorted(glob.glob(at.file, root_dir=base, recursive=True))
    if not names:
        raise StoreError(f"[{what}] {name}: no file is called {shown(text)}")
    return [f"{base / one}{rest}" for one in names]

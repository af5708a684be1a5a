"""OME-TIFF that is written: tiles, compressed, with coarser levels of every page; BigTIFF where it has to be."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, BinaryIO

import numpy as np

from ooc.errors import DtypeError, ShapeError
from ooc.ir.region import extents, whole
from ooc.sources.checks import library
from ooc.sources.geometry import METERS, ORDER, Spacing, geometry_of, in_order, laid
from ooc.sources.levels import coarse_shape, coarser, fill
from ooc.sources.place import NewTensor, TensorPath
from ooc.sources.protocol import Array
from ooc.sources.raw import RawSource
from ooc.sources.scratch import Scratch
from ooc.sources.spooled import SpooledSource
from ooc.sources.tiff import MOST_CLASSIC
from ooc.sources.units import batches

TILE = 256  # positions
DTYPES = ("int8", "int16", "int32", "uint8", "uint16", "uint32", "float32", "float64")
PLANE = "yx"
LEAST, MOST = 1e-3, 1e9  # pixels per centimetre that a fraction of 32 bits tells


def create_pyramid(at: TensorPath, tensor: NewTensor) -> SpooledSource:
    """An OME-TIFF of tiles with levels, written when it is closed."""
    tensor.plain(at.text)
    axes = tensor.axes or ORDER[-len(tensor.shape) :]
    colours = axes.endswith("s") and tensor.shape[-1] in (3, 4)
    letters = axes[:-1] if colours else axes
    if not in_order(letters):
        raise ShapeError(
            f"{at.text}: axes {tensor.axes!r} of {tensor.shape}: OME-TIFF has those of {ORDER!r}, in this order, or yxs"
        )
    if tensor.dtype.name not in DTYPES:
        raise DtypeError(f"{at.text}: OME-TIFF has no {tensor.dtype}; it has {', '.join(DTYPES)}")
    tifffile = library("tifffile", at.text, "writing tiff", "tiff")
    lies = geometry_of(tensor.like)
    spacings = laid(axes, lies, tensor.position) if lies else ()

    def finish(raw: RawSource, file: BinaryIO) -> None:
        _write(tifffile, raw, file, axes, spacings, colours)

    row = TILE * tensor.shape[axes.index("x")] * tensor.dtype.itemsize * (tensor.shape[-1] if colours else 1)
    return SpooledSource(at, tensor, axes, 2 * row + (16 << 20), finish)


def _write(tifffile: Any, raw: RawSource, file: BinaryIO, axes: str, spacings: Sequence[Spacing], colours: bool) -> None:
    """The file of a raw tensor and its levels, which lie in raw files meanwhile."""
    with ExitStack() as stack:
        levels, factors = [raw], [1] * len(axes)
        plain = spacings or [Spacing()] * len(axes)
        while (along := coarser(axes, levels[-1].shape, plain, factors, PLANE)) is not None:
            scratch = Scratch(coarse_shape(levels[-1].shape, along), raw.dtype)
            stack.callback(scratch.close)
            unit = tuple(1 if a not in "yxs" else TILE if a == "y" else e for a, e in zip(axes, scratch.raw.shape, strict=True))
            fill(scratch.raw, levels[-1], unit, along)
            levels.append(scratch.raw)
            factors = [a * f for a, f in zip(factors, along, strict=True)]
        large = sum(math.prod(level.shape) for level in levels) * raw.dtype.itemsize > MOST_CLASSIC
        tiff = stack.enter_context(tifffile.TiffWriter(file, bigtiff=large, ome=True, byteorder="="))
        options = {"tile": (TILE, TILE), "compression": "zlib", "photometric": "rgb" if colours else "minisblack"}
        for number, level in enumerate(levels):
            more = {"subfiletype": 1, "metadata": None} if number else {
                "subifds": len(levels) - 1, "metadata": _metadata(axes, spacings), **_resolution(axes, spacings),
            }  # fmt: skip
            tiff.write(_tiles(level, axes), shape=level.shape, dtype=level.dtype, **options, **more)


def _metadata(axes: str, spacings: Sequence[Spacing]) -> dict[str, Any]:
    """What OME says of the image: its axes, and how large a pixel is."""
    told: dict[str, Any] = {"axes": axes.upper()}
    for letter, lies in zip(axes, spacings, strict=False):
        if letter in "zyx":
            meters = METERS.get(lies.unit)
            told[f"PhysicalSize{letter.upper()}"] = lies.step * meters * 1e6 if meters else lies.step
            told[f"PhysicalSize{letter.upper()}Unit"] = "µm" if meters else "pixel"
    return told


def _resolution(axes: str, spacings: Sequence[Spacing]) -> dict[str, Any]:
    """Pixels per centimetre, where the unit is a length."""
    lies = dict(zip(axes, spacings, strict=False))
    if not all(a in lies and lies[a].unit in METERS for a in PLANE):
        return {}
    per = {a: 0.01 / (lies[a].step * METERS[lies[a].unit]) for a in PLANE}
    if not all(LEAST < each < MOST for each in per.values()):
        return {}
    return {"resolution": (per["x"], per["y"]), "resolutionunit": "CENTIMETER"}


def _tiles(level: RawSource, axes: str) -> Iterator[Array]:
    """All tiles, page by page, rows of them read together; those at the ends filled up with zeros."""
    y = axes.index("y")
    unit = tuple(1 if a < y else TILE if a == y else e for a, e in enumerate(level.shape))
    for region in batches(whole(level.shape), unit, 0):
        row = np.empty(extents(region), level.dtype)
        level.read(region, row)
        stripe = row.reshape(row.shape[y:])
        for x in range(0, stripe.shape[1], TILE):
            part = stripe[:, x : x + TILE]
            tile = np.zeros((TILE, TILE, *part.shape[2:]), level.dtype)
            tile[: part.shape[0], : part.shape[1]] = part
            yield tile

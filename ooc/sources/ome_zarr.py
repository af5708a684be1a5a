"""OME-Zarr images and labels, versions 0.4 and 0.5, written with a pyramid: a group whose finest level is the tensor, the others
made of it when it is whole. Source: the specification of NGFF, ngff.openmicroscopy.org."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ooc.errors import ArgumentError, DtypeError, OocError, ShapeError
from ooc.files.whole import turns
from ooc.ir.region import Region
from ooc.sources.checks import faults
from ooc.sources.drafts import begin, claim
from ooc.sources.geometry import ORDER, Spacing, geometry_of, in_order, laid
from ooc.sources.levels import coarse_shape, coarser, fill
from ooc.sources.objects import is_node, is_there
from ooc.sources.place import LABELS, NewTensor, TensorPath, home, place
from ooc.sources.protocol import Array
from ooc.sources.remote import is_remote
from ooc.sources.zarr_arrays import ZarrSource, check_dtype, chunks_of, folder_of, make_room, needed, store, store_group
from ooc.sources.zarr_metadata import about_ome, array_at, array_json, array_json2, attributes_of, letters, node

VERSIONS = {"0.4": 2, "0.5": 3}  # of OME-Zarr, by that of Zarr


@dataclass(frozen=True)
class Image:
    """An image with levels.

    Fields:
        folder: of its group.
        version: of Zarr.
        axes: letters.
        labels: whether its numbers are names, which have no mean.
        spacings: along every axis, of the finest level.
        levels: what their names begin with.
    """

    folder: str
    version: int
    axes: str
    labels: bool
    spacings: tuple[Spacing, ...]
    levels: str = ""

    def describe(self, factors: Sequence[Sequence[int]]) -> dict[str, Any]:
        """The attributes of its group. factors: of each level along every axis."""
        axes = [_axis(letter, s.unit) for letter, s in zip(self.axes, self.spacings, strict=True)]
        datasets = []
        for level, along in enumerate(factors):
            places = [s.part((f - 1) / 2, f) for s, f in zip(self.spacings, along, strict=True)]
            scale: list[dict[str, Any]] = [{"type": "scale", "scale": [s.step for s in places]}]
            moved = [{"type": "translation", "translation": [s.origin for s in places]}]
            transformations = scale + (moved if any(s.origin for s in places) else [])
            datasets.append({"path": f"{self.levels}{level}", "coordinateTransformations": transformations})
        name, kind = os.path.basename(home(self.folder)), "nearest" if self.labels else "mean"
        image = {"name": name, "axes": axes, "datasets": datasets, "type": kind}
        label = {"image-label": {"source": {"image": "../../"}}} if self.labels else {}
        return {"multiscales": [image], **label}

    def store(self, factors: Sequence[Sequence[int]]) -> None:
        """Write them."""
        store_group(self.folder, self.version, _worded(self.version, self.describe(factors)))

    def place(self, level: int) -> str:
        """Where a level lies."""
        return os.path.join(home(self.folder), f"{self.levels}{level}")

    def store_array(self, level: int, shape: Sequence[int], dtype: Any, chunks: Sequence[int]) -> None:
        """The metadata of a level."""
        make = array_json if self.version == 3 else array_json2
        store(self.place(level), self.version, make(tuple(shape), dtype, tuple(chunks), None, self.axes))


def _axis(letter: str, unit: str) -> dict[str, str]:
    kind = {"t": "time", "c": "channel"}.get(letter, "space")
    return {"name": letter, "type": kind, **({"unit": unit} if unit and kind != "channel" else {})}


def _worded(version: int, told: dict[str, Any]) -> dict[str, Any]:
    """Attributes as a version has them."""
    if version == 3:
        return {"ome": {"version": "0.5", **told}}
    for part in told.get("multiscales", []):
        part["version"] = "0.4"
    return told


class OmeSource(ZarrSource):
    """The finest level of a new image, of which coarser ones are made when it is closed whole, if this wrote it."""

    wrote = False
    image: Image

    def _write(self, region: Region, array: Array) -> None:
        self.wrote = True
        super()._write(region, array)

    def _close(self, whole: bool) -> None:
        super()._close(whole)
        if whole and self.wrote:
            make_levels(self.image)


def create_ome(at: TensorPath, tensor: NewTensor) -> OmeSource:
    """An image, or labels, in whose finest level nothing is written yet."""
    label = at.is_label
    if not in_order(tensor.axes):
        raise ShapeError(f"{at.text}: axes {tensor.axes!r}: OME-Zarr has those of {ORDER!r}, in this order, y and x among them")
    if label and tensor.dtype.kind not in "ui":
        raise DtypeError(f"{at.text}: labels are integers, not {tensor.dtype}")
    if tensor.shards:
        raise ArgumentError(f"{at.text}: shards: levels have chunks alone; write .zarr")
    check_dtype(at.text, tensor.dtype)
    version, folder = _version(at, tensor.ome), folder_of(at)
    chunks, _ = chunks_of(at.text, tensor)
    needed(at, version)
    make_room(at, tensor.overwrite)
    spacings = laid(tensor.axes, geometry_of(tensor.like), tensor.position)
    _, names = begin(home(at.text), folder, tensor.overwrite, len(tensor.shape)) if at.is_draft else ("", "")
    image = Image(folder, version, tensor.axes, label, spacings, names)
    with faults(at.text, "creating"):
        if label and not at.is_draft:
            announce(at, version)
        image.store_array(0, tensor.shape, tensor.dtype, chunks)
        image.store([[1] * len(tensor.axes)])
        if at.is_draft:
            claim(home(at.text), folder, tensor.overwrite)
    root = "" if is_remote(at.file) else os.path.realpath(at.file)
    source = OmeSource(home(at.text), array_at(at.text, at.file, at.inside), True, "writing zarr", root)
    source.zeros, source.image, source.geometry = not is_remote(at.file), image, dict(zip(tensor.axes, spacings, strict=True))
    return source


def _version(at: TensorPath, wanted: str) -> int:
    """Of Zarr: what is asked, which labels share with their image. Raises ArgumentError."""
    if wanted and wanted not in VERSIONS:
        raise ArgumentError(f"{at.text}: ome: expected one of {', '.join(VERSIONS)}, got {wanted!r}")
    there = None
    with suppress(OocError, OSError):
        there = node(at.text, at.file)[0] if at.is_label else None
    if wanted and there and VERSIONS[wanted] != there:
        raise ArgumentError(f"{at.text}: ome: the image is of another version than {wanted}")
    return there or VERSIONS[wanted or "0.5"]


def version_of(path: str) -> str:
    """Of OME-Zarr, of the image that labels at a path are of; "": there is none yet, or they are none."""
    at = place(path)
    with suppress(OocError, OSError):
        if at.is_label:
            return next(name for name, zarr in VERSIONS.items() if zarr == node(at.text, at.file)[0])
    return ""


def announce(at: TensorPath, version: int, listed: bool = True) -> None:
    """Put labels on the list of their image's; groups that are missing are made. listed: False makes these alone."""
    name, above = os.path.basename(folder_of(at)), os.path.dirname(folder_of(at))
    if not is_there(at.file):
        store_group(at.file, version, {})
    with _alone(above):  # others may add theirs
        told = attributes_of(at.text, above)[1] if is_node(above) else {}
        ours = told.get("ome") if version == 3 else told
        ours = ours if isinstance(ours, dict) else {}
        known = [n for n in ours.get(LABELS) or () if n != name] if isinstance(ours.get(LABELS), list) else []
        ours = {**ours, LABELS: [*known, name] if listed else [*(ours.get(LABELS) or ())]}
        store_group(above, version, {**told, "ome": {"version": "0.5", **ours}} if version == 3 else ours)


def _alone(folder: str) -> AbstractContextManager[None]:
    """One process at a time in a folder, which is made; across a network nobody waits."""
    if is_remote(folder):
        return nullcontext()
    os.makedirs(folder, exist_ok=True)
    return turns(Path(folder))


def complete(folder: str) -> int:
    """Make the levels of a new image whose finest one was written by others; the version of its Zarr. Raises OocError."""
    version, told = attributes_of(folder, folder)
    about = about_ome(told)
    (scales,) = about["multiscales"]
    if len(scales["datasets"]) > 1:
        return version
    transformations = {t["type"]: t[t["type"]] for t in scales["datasets"][0]["coordinateTransformations"]}
    axes = letters([axis["name"] for axis in scales["axes"]])
    origins = transformations.get("translation", [0.0] * len(axes))
    units = [axis.get("unit", "") for axis in scales["axes"]]
    spacings = tuple(Spacing(*one) for one in zip(transformations["scale"], origins, units, strict=True))
    levels = str(scales["datasets"][0]["path"]).removesuffix("0")
    make_levels(Image(folder, version, axes, scales.get("type") == "nearest", spacings, levels))
    return version


# ---------------------------------------------------------------- levels


def make_levels(image: Image) -> None:
    """All levels but the finest, each of the one before, in pieces of a chunk."""
    factors, level = [[1] * len(image.axes)], 0
    source = _opened(image, 0)
    while (along := coarser(image.axes, source.shape, image.spacings, factors[-1])) is not None:
        level += 1
        shape = coarse_shape(source.shape, along)
        chunks = [min(c, e) for c, e in zip(source.chunks, shape, strict=True)]
        image.store_array(level, shape, source.dtype, chunks)
        with source, _opened(image, level, True) as sink:
            fill(sink, source, sink.unit, along, image.labels)
        factors.append([a * f for a, f in zip(factors[-1], along, strict=True)])
        source = _opened(image, level)
    source.close()
    image.store(factors)


def _opened(image: Image, level: int, writable: bool = False) -> ZarrSource:
    path = image.place(level)
    return ZarrSource(path, array_at(path, path, ""), writable, "writing zarr")

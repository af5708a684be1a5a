"""What the JSON files of a Zarr array or group say, versions 2 and 3, with OME-Zarr 0.4 and 0.5.

It is read and checked here, before any library allocates what it asks for.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ooc.errors import ArgumentError, DtypeError, OocError, ShapeError, StoreError
from ooc.sources.checks import check_unit, faults, numeric, sizes
from ooc.sources.geometry import Geometry, Spacing, spacing
from ooc.sources.objects import MOST_JSON, content_of, is_node, is_there
from ooc.sources.place import LABELS, home

MOST_SHARD = 1 << 36  # bytes; only a writer holds a whole one
FILL: dict[str, Any] = {"b": False, "f": 0.0, "c": [0.0, 0.0]}  # what is not written, of kinds that are no integers
NAMES = {"time": "t", "channel": "c", "channels": "c", "sample": "s", "samples": "s"}


Key = Callable[[Iterable[int]], str]


def _key(prefix: str, separator: Any, alone: str) -> Key:
    """How chunks are called. alone: the one chunk of a tensor without axes."""
    if separator not in ("/", "."):
        raise KeyError(f"separator {separator!r}")

    def key(numbers: Iterable[int]) -> str:
        parts = [*([prefix] if prefix else []), *map(str, numbers)]
        return separator.join(parts) or alone

    return key


@dataclass(frozen=True)
class Metadata:
    """An array's. folder: where it lies. version: 2 or 3. chunks: what is decoded at once. unit: what is a file of its own, a
    shard where there are shards. key: what a chunk's file is called, by its number along each axis. geometry: where positions
    lie, of a level of an image."""

    folder: str
    version: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: tuple[int, ...]
    unit: tuple[int, ...]
    axes: str
    key: Key
    geometry: Geometry = field(default_factory=dict)


def letters(names: Any) -> str:
    """A letter per axis from the names that a format gives them; '' where some have none.

    >>> letters(["time", "channel", "Y", "X"]), letters(["y", None]), letters(["row", "column"])
    ('tcyx', '', '')
    """
    if not isinstance(names, list | tuple) or not all(isinstance(n, str) for n in names):
        return ""
    axes = [NAMES.get(n.lower(), n.lower()) for n in names]
    return "".join(axes) if all(len(f) == 1 and f.isalpha() for f in axes) and len({*axes}) == len(axes) else ""


def array_at(path: str, file: str, inside: str) -> Metadata:
    """The array at `/inner:level` of a Zarr folder; both may be left out.

    Raises:
        StoreError: there is none, or its metadata makes no sense. ArgumentError: no such level. DtypeError: no numbers.
    """
    inner, mark, level = inside.partition(":")
    folder = os.path.join(file, *[part for part in inner.split("/") if part])
    with faults(path, "reading the metadata"):
        version, array = node(path, folder)
        if array is not None and not mark:
            return _array(path, folder, version, array, "")
        if array is not None:
            raise ArgumentError(f"{path}: an array, which has no levels; leave ':{level}' away")
        return _level(path, folder, version, int(level) if level.isdigit() else 0 if not mark else -1)


def node(path: str, folder: str) -> tuple[int, dict[str, Any] | None]:
    """Version of what a folder holds, and the metadata of an array; None of a group."""
    if (raw := _json(path, folder, "zarr.json")) is not None:
        return 3, raw if raw.get("node_type") == "array" else None
    if (raw := _json(path, folder, ".zarray")) is not None:
        return 2, raw
    if is_node(folder):
        return 2, None
    missing = "no such folder" if not is_there(folder) else "no Zarr array or group"
    raise StoreError(f"{path}: {missing}; expected zarr.json, .zarray or .zgroup in {folder}")


def _json(path: str, folder: str, name: str) -> dict[str, Any] | None:
    text = content_of(path, folder, name, MOST_JSON)
    if text is None:
        return None
    try:
        raw = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path}: {name} is no JSON: {error}") from None
    if not isinstance(raw, dict):
        raise StoreError(f"{path}: {name}: expected a JSON object")
    return raw


def _level(path: str, folder: str, version: int, level: int) -> Metadata:
    """A level of a group's first OME multiscales."""
    _, attributes = attributes_of(path, folder, version)
    scales = about_ome(attributes).get("multiscales")
    if not scales:
        raise StoreError(f"{path}: a group without OME multiscales; name an array in it: x.zarr/name")
    names = [axis.get("name") if isinstance(axis, dict) else axis for axis in scales[0].get("axes", [])]
    datasets = scales[0]["datasets"]
    if not 0 <= level < len(datasets):
        raise ArgumentError(f"{path}: expected a level, 0 to {len(datasets) - 1}")
    parts = str(datasets[level]["path"]).split("/")
    if ".." in parts or not any(parts):
        raise StoreError(f"{path}: level {level} names the folder {datasets[level]['path']!r}")
    below = os.path.join(home(folder), *[part for part in parts if part])
    version, array = node(path, below)
    if array is None:
        raise StoreError(f"{path}: level {level} is no array")
    metadata = _array(path, below, version, array, letters(names))
    return replace(metadata, geometry=_geometry(metadata.axes, scales[0], datasets[level]))


def attributes_of(path: str, folder: str, version: int = 0) -> tuple[int, dict[str, Any]]:
    """The version and the attributes of a group. Raises OocError."""
    version = version or node(path, folder)[0]
    raw = _json(path, folder, "zarr.json" if version == 3 else ".zattrs") or {}
    attributes = raw.get("attributes", {}) if version == 3 else raw
    return version, attributes if isinstance(attributes, dict) else {}


def about_ome(attributes: dict[str, Any]) -> dict[str, Any]:
    """What attributes of a group say of OME: in a part of their own from 0.5 on."""
    told: dict[str, Any] = attributes.get("ome") or attributes
    return told


def levels_of(folder: str) -> set[str]:
    """Folders in a group that are levels of its image."""
    with suppress(OocError, OSError, KeyError, TypeError, IndexError):
        _, told = attributes_of(folder, folder)
        names = {str(dataset["path"]) for dataset in about_ome(told)["multiscales"][0]["datasets"]}
        return names - {LABELS}
    return set()


def _geometry(axes: str, scales: dict[str, Any], dataset: dict[str, Any]) -> dict[str, Spacing]:
    """Where positions of a level lie: its transformations, then those of all levels; nothing where they make no sense."""
    steps, origins = [1.0] * len(axes), [0.0] * len(axes)
    try:
        for told in (*dataset.get("coordinateTransformations", []), *scales.get("coordinateTransformations", [])):
            numbers = [float(n) for n in told.get(told["type"], [])] or [1.0 if told["type"] == "scale" else 0.0] * len(axes)
            if told["type"] == "scale":
                steps = [s * n for s, n in zip(steps, numbers, strict=True)]
                origins = [o * n for o, n in zip(origins, numbers, strict=True)]
            elif told["type"] == "translation":
                origins = [o + n for o, n in zip(origins, numbers, strict=True)]
        units = [axis.get("unit", "") if isinstance(axis, dict) else "" for axis in scales["axes"]]
        lies = {a: spacing(*one) for a, *one in zip(axes, steps, origins, units, strict=True)}
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        return {}
    return {a: told for a, told in lies.items() if told is not None}


def _array(path: str, folder: str, version: int, raw: dict[str, Any], axes: str) -> Metadata:
    try:
        array = (_array3 if version == 3 else _array2)(path, folder, raw, axes)
    except DtypeError:
        raise
    except (KeyError, TypeError, AttributeError, ShapeError) as error:
        raise StoreError(f"{path}: metadata of an array that make no sense: {error!r}") from None
    if not len(array.shape) == len(array.chunks) == len(array.unit):
        raise StoreError(f"{path}: shape {array.shape}, but chunks {array.chunks} in units {array.unit}")
    if any(u % c for u, c in zip(array.unit, array.chunks)):
        raise StoreError(f"{path}: shards of {array.unit} are not made of chunks of {array.chunks}")
    check_unit(path, array.chunks, array.dtype.itemsize, "chunks")
    check_unit(path, array.unit, array.dtype.itemsize, "shards", MOST_SHARD)
    # A shard's index has 16 bytes per chunk, and is read whole.
    check_unit(path, (math.prod(array.unit) // max(1, math.prod(array.chunks)),), 16, "the index of shards, entries", 1 << 28)
    return array


def _array3(path: str, folder: str, raw: dict[str, Any], axes: str) -> Metadata:
    dtype = raw["data_type"]
    if not isinstance(dtype, str) or dtype.startswith("r"):
        raise DtypeError(f"{path}: expected bool, integers, floats or complex numbers; got {dtype}")
    unit = sizes(path, raw["chunk_grid"]["configuration"]["chunk_shape"], "chunks", 1)
    chunks = unit
    for codec in raw["codecs"]:
        if isinstance(codec, dict) and codec.get("name") == "sharding_indexed":
            chunks = sizes(path, codec["configuration"]["chunk_shape"], "chunks in shards", 1)
    axes = axes or letters(raw.get("dimension_names"))
    named = raw["chunk_key_encoding"]
    style, told = named["name"], named.get("configuration") or {}
    default = {"default": "/", "v2": "."}[style]
    key = _key("c" if style == "default" else "", told.get("separator", default), "0")
    return Metadata(folder, 3, sizes(path, raw["shape"]), numeric(path, dtype).newbyteorder("="), chunks, unit, axes, key)


def _array2(path: str, folder: str, raw: dict[str, Any], axes: str) -> Metadata:
    if not isinstance(raw["dtype"], str):
        raise DtypeError(f"{path}: expected bool, integers, floats or complex numbers; got fields")
    chunks = sizes(path, raw["chunks"], "chunks", 1)
    axes = axes or letters((_json(path, folder, ".zattrs") or {}).get("_ARRAY_DIMENSIONS"))
    key = _key("", raw.get("dimension_separator", "."), "0")
    dtype = numeric(path, raw["dtype"]).newbyteorder("=")
    return Metadata(folder, 2, sizes(path, raw["shape"]), dtype, chunks, chunks, axes, key)


def array_json(
    shape: tuple[int, ...], dtype: np.dtype[Any], chunks: tuple[int, ...], shards: tuple[int, ...] | None, axes: str,
    names: tuple[str, str] = ("default", "/"),
) -> dict[str, Any]:  # fmt: skip
    """The zarr.json of a new array: zstd, little-endian, zeros where nothing was written. names: of chunks, encoding and
    separator."""
    endian = {"name": "bytes", **({"configuration": {"endian": "little"}} if dtype.itemsize > 1 else {})}
    codecs: list[dict[str, Any]] = [endian, {"name": "zstd", "configuration": {"level": 3, "checksum": False}}]
    if shards:
        index = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
        inner = {"chunk_shape": [*chunks], "codecs": codecs, "index_codecs": index, "index_location": "end"}
        codecs = [{"name": "sharding_indexed", "configuration": inner}]
    grid = {"name": "regular", "configuration": {"chunk_shape": [*(shards or chunks)]}}
    fill, keys = FILL.get(dtype.kind, 0), {"name": names[0], "configuration": {"separator": names[1]}}
    return {
        "zarr_format": 3, "node_type": "array", "shape": [*shape], "data_type": dtype.name, "chunk_grid": grid,
        "chunk_key_encoding": keys, "fill_value": fill, "codecs": codecs,
        "attributes": {}, **({"dimension_names": [*axes]} if axes else {}),
    }  # fmt: skip


def array_json2(shape: tuple[int, ...], dtype: np.dtype[Any], chunks: tuple[int, ...], shards: None, axes: str) -> dict[str, Any]:
    """The .zarray of a new array of version 2, as `array_json` has it."""
    fill = FILL.get(dtype.kind, 0)
    return {
        "zarr_format": 2, "shape": [*shape], "chunks": [*chunks], "dtype": dtype.newbyteorder("<").str, "fill_value": fill,
        "compressor": {"id": "zstd", "level": 3}, "filters": None, "order": "C", "dimension_separator": "/",
    }  # fmt: skip

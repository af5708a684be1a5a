"""Tensors in files, opened and created by path: `ooc.sources.open` and `ooc.sources.create`.

Nothing here knows of budgets, plans or devices: a source reads and writes regions, and says which regions cost least (`own`)
and what a read takes beside the caller's array (`buffer_bytes`). Libraries are imported when a file needs them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ooc.errors import ArgumentError, OptionError, ShapeError, UnsupportedError, shown
from ooc.files.reached import regular
from ooc.sources.base import FileSource
from ooc.sources.checks import numeric, sizes
from ooc.sources.hdf5 import create_hdf5, open_hdf5
from ooc.sources.images import create_image, open_image
from ooc.sources.imaris import open_imaris
from ooc.sources.mrc import open_mrc
from ooc.sources.nifti import create_nifti, open_nifti
from ooc.sources.npy import create_npy, open_npy
from ooc.sources.ome_zarr import create_ome
from ooc.sources.place import NewTensor, TensorPath, place, writable
from ooc.sources.position import Position, checked
from ooc.sources.protocol import Source
from ooc.sources.pyramids import create_pyramid
from ooc.sources.remote import is_remote, is_writable
from ooc.sources.tiff import create_tiff, open_tiff
from ooc.sources.view import View, select
from ooc.sources.zarr_arrays import create_zarr, open_zarr

__all__ = ["Source", "create", "open"]

OPENERS: dict[str, Callable[[TensorPath, bool], FileSource]] = {
    "npy": open_npy, "zarr": open_zarr, "tiff": open_tiff, "hdf5": open_hdf5, "nifti": open_nifti,
    "image": open_image, "mrc": open_mrc, "imaris": open_imaris,
}  # fmt: skip


def _tiff(at: TensorPath, tensor: NewTensor) -> FileSource:
    """Plain numbers, or tiles with levels."""
    return create_pyramid(at, tensor) if at.is_pyramid else create_tiff(at, tensor)


def _zarr(at: TensorPath, tensor: NewTensor) -> FileSource:
    """An array, or an image with levels."""
    if at.is_ome:
        return create_ome(at, tensor)
    if tensor.ome:
        raise ArgumentError(f"{at.text}: ome: images are named x.ome.zarr, their labels x.ome.zarr/labels/name")
    return create_zarr(at, tensor)


CREATORS: dict[str, Callable[[TensorPath, NewTensor], FileSource]] = {
    "npy": create_npy, "zarr": _zarr, "tiff": _tiff, "hdf5": create_hdf5, "nifti": create_nifti,
    "image": create_image,
}  # fmt: skip


def open(path: str | os.PathLike[str], mode: str = "r", *, trust: bool = False) -> Source:
    """A tensor in a file.

    Parameters:
        path: "x.npy"; "x.zarr", "x.zarr/name" (Zarr 2 and 3), "x.ome.zarr:level" (OME-Zarr 0.4 and 0.5; without a level the
            finest); "x.tif", "x.tif:series/level" (.svs, .ndpi, .scn, .btf, .qptiff, .lsm too);
            "x.h5:/dataset"; "x.nii", "x.nii.gz"; "x.mrc" (.mrcs, .map, .rec); "x.ims", "x.ims:level";
            "x.png", "x.jpg", "x.bmp". Zarr lies across a network too: "s3://bucket/x.zarr", "https://host/x.zarr".
            Slices may follow, as in "x.zarr::0,:,10:20": a number drops its axis, lo:hi keeps a piece;
            no steps, nothing negative.
        mode: "r" (default) to read, "r+" to write too: .npy, .zarr, .h5, uncompressed .tif and unscaled .nii.
        trust: whether the file may lead to files elsewhere; default False: HDF5 (external, virtual, linked) to its folder, Zarr
            (links) to within itself.

    Returns:
        source: with shape, dtype, axes, read, write, own, buffer_bytes and close; a context manager.

    Raises:
        StoreError: a file that is missing, truncated, malformed, of another format, no regular one, one that leads elsewhere, or
        an error of its library.
        ArgumentError: a path, level, slice or mode that does not fit; DtypeError: what is stored are no numbers.
        UnsupportedError: a format that is none of these or cannot be written by region, or a library that is not installed.
    """
    if not isinstance(mode, str) or mode not in ("r", "r+"):
        raise ArgumentError(f"mode: expected 'r' or 'r+', got {shown(mode)}")
    if not isinstance(trust, bool):
        raise OptionError(f"trust: expected True or False, got {shown(trust)}")
    at = replace(place(path), trust=trust)
    regular(at.file, at.text)
    if mode == "r+" and is_remote(at.file) and not is_writable(at.file):
        raise UnsupportedError(f"{at.text}: is only read; open it with mode='r'")
    source = OPENERS[at.kind](at, mode == "r+")
    source.trust = trust
    if at.slices is None:
        return source
    try:
        return select(at.text, source, at.slices)
    except BaseException:
        with suppress(Exception):
            source.close()
        raise


def create(
    path: str | os.PathLike[str], shape: Sequence[int], dtype: Any, axes: str = "", chunks: Sequence[int] | None = None,
    shards: Sequence[int] | None = None, like: Source | None = None, *, position: Position | None = None,
    overwrite: bool = False, ome: str = "",
) -> Source:  # fmt: skip
    """A new tensor in a file, to be written by region. What is not written is zero.

    Parameters:
        path: "x.npy", "x.zarr", "x.zarr/name" (Zarr 3), "s3://bucket/x.zarr", "x.ome.zarr" and "x.ome.zarr/labels/name"
            (OME-Zarr: axes of tczyx; coarser levels are made when it is closed, means, of labels every other), "x.h5:/dataset"
            (in a new file or one that is there), "x.tif" (uncompressed), "x.nii", or "x.png" (at most 2^28 values). Written when
            they are closed, from a raw file beside them: "x.ome.tif" (tiles with coarser levels, compressed; axes of tczyx, or
            yxs), "x.nii.gz".
        shape: extents, 1 or more each.
        dtype: a NumPy dtype of numbers that the format has.
        axes: a different lower-case letter per axis; default "": those of `like` if it has as many axes, else none.
        chunks: of .zarr and .h5; default None: for .zarr those of about 2 MiB, for .h5 none.
        shards: of .zarr, multiples of the chunks; default None: none. Writes are made of whole shards or else whole chunks.
        like: a source whose axes the file takes over and, between .nii and OME-Zarr, spacing, origin and units, from .nii to .nii
            the affine, of a part its own; default None.
        position: where the tensor lies among the positions of `like`, by letter of an axis: of its position 0, and how many of
            them one step is, as in {"z": (2, 1), "y": (0.5, 2)}; default None: where `like` lies.
        overwrite: whether to replace what is there; default False.
        ome: of OME-Zarr the version, "0.5" (Zarr 3) or "0.4" (Zarr 2); default "": 0.5, of labels that of their image.

    Returns:
        source: open for reading and writing.

    Raises:
        OptionError: an overwrite that is no bool. ShapeError: extents, axes, chunks or shards that do not fit, or a path that
        exists. DtypeError: a dtype that the format has not. StoreError: a folder that is missing, a disk without room, or an
        error of the library. UnsupportedError: a format that is not written, or a library that is not installed.
    """
    at = place(path)
    regular(at.file, at.text)
    if not isinstance(overwrite, bool):
        raise OptionError(f"overwrite: expected True or False, got {shown(overwrite)}")
    if not isinstance(axes, str):
        raise ArgumentError(f"axes: expected a text, got {shown(axes)}")
    writable(at)
    extents = sizes(at.text, shape, least=1)
    if like is not None and not isinstance(like, FileSource | View):
        raise ArgumentError(f"{at.text}: like: expected a source that open or create returned, got {shown(like)}")
    letters = axes or (like.axes if like is not None and len(like.axes) == len(extents) else "")
    if letters and (
        len(letters) != len(extents) or len({*letters}) < len(letters) or not (letters.isalpha() and letters.islower())
    ):
        raise ShapeError(f"{at.text}: axes {shown(letters)}: expected a different lower-case letter for each axis of {extents}")
    chunked, sharded = (None if c is None else sizes(at.text, c, what, 1) for c, what in ((chunks, "chunks"), (shards, "shards")))
    for unit in (chunked, sharded):
        if unit is not None and len(unit) != len(extents):
            raise ShapeError(f"{at.text}: chunks or shards {unit}: expected an extent for each axis of {extents}")
    native = numeric(at.text, dtype).newbyteorder("=")
    whole, lies = checked(at.text, like, position)
    if not isinstance(ome, str) or (ome and at.kind != "zarr"):
        raise OptionError(f"{at.text}: ome: expected a version of OME-Zarr for a path to one, got {shown(ome)}")
    return CREATORS[at.kind](at, NewTensor(extents, native, letters, chunked, sharded, whole, overwrite, lies, ome))

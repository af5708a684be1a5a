"""NIfTI-1 and NIfTI-2 volumes in one file. nibabel reads the header; i, j, k, t become t, z, y, x, of which x lies together."""

from __future__ import annotations

import gzip
import io
import math
from contextlib import suppress
from typing import Any, BinaryIO

import numpy as np

from ooc.errors import DtypeError, ShapeError, StoreError, UnsupportedError
from ooc.ir.region import Region, extents, whole
from ooc.sources.base import FileSource
from ooc.sources.checks import faults, library, numeric, sizes
from ooc.sources.geometry import METERS, Geometry, Spacing, geometry_of, laid, spacing
from ooc.sources.gzipped import GzipSource
from ooc.sources.place import NewTensor, TensorPath, creating, fresh, header_of
from ooc.sources.protocol import Array
from ooc.sources.raw import RawSource, lengthen
from ooc.sources.spooled import SpooledSource
from ooc.sources.units import batches, inside

AXES = "ctzyx"
HEADERS = {348: "Nifti1Header", 540: "Nifti2Header"}  # bytes -> class
MOST_NIFTI1 = 32767  # positions along an axis
ALIGNED = 2  # code of an affine that was computed
PIECE = 1 << 15  # elements that are scaled at once
LEAST, MOST = 1e-30, 1e30  # of a step in single precision
SPOOLING, FAST = 4 << 20, 1  # bytes that compressing takes; its level, as nibabel has it


class ScaledSource(FileSource):
    """Numbers that are stored as others: value = stored * slope + inter, in single precision."""

    def __init__(self, stored: FileSource, slope: float, inter: float, header: Any) -> None:
        held = stored.buffer_bytes + PIECE * (stored.dtype.itemsize + 3 * 8)
        super().__init__(stored.path, stored.shape, np.dtype(np.float32), stored.axes, buffer_bytes=held)
        self.stored, self.slope, self.inter, self.header = stored, slope, inter, header
        self.sequential, self.geometry = stored.sequential, stored.geometry

    def _read(self, region: Region, out: Array) -> None:
        for part in batches(region, self.unit, PIECE):
            piece = np.empty(extents(part), self.stored.dtype)
            self.stored.read(part, piece)
            with np.errstate(over="ignore"):
                out[inside(part, region)] = piece.astype(np.float64) * self.slope + self.inter

    def _close(self, whole: bool) -> None:
        self.stored.close()


def open_nifti(at: TensorPath, writable: bool) -> FileSource:
    """The volume of a .nii or .nii.gz file."""
    nibabel = library("nibabel", at.text, "reading nifti", "nifti")
    zipped = at.file.lower().endswith(".gz")
    with faults(at.text, "opening"):
        header = _header(nibabel, at, zipped)
        shape = sizes(at.text, header.get_data_shape()[::-1])
        dtype, offset = numeric(at.text, header.get_data_dtype()), int(header.get_data_offset())
        slope, inter = header.get_slope_inter()
    slope, inter = 1.0 if slope is None else float(slope), 0.0 if inter is None else float(inter)
    axes, scaled = AXES[-len(shape) :] if 0 < len(shape) <= 5 else "", (slope, inter) != (1.0, 0.0)
    if writable and (zipped or scaled):
        raise UnsupportedError(f"{at.text}: {'compressed' if zipped else 'scaled'} files are only read; create a new .nii")
    source: RawSource | GzipSource
    if zipped:
        source = GzipSource(at.text, at.file, shape, dtype, offset, axes)
    else:
        source = RawSource(at.text, at.file, shape, dtype, offset, axes, writable)
    source.header, source.geometry = header, _geometry(header, axes)
    return ScaledSource(source, slope, inter, header) if scaled else source


def _geometry(header: Any, axes: str) -> dict[str, Spacing]:
    """Steps and units, and where an affine that does not turn says that the volume begins; nothing where that makes no sense."""
    with suppress(Exception):  # of a header that may say anything
        space, time = header.get_xyzt_units()
        units = {"t": time, **dict.fromkeys("zyx", space), "c": "unknown"}
        zooms = dict(zip(axes[::-1], header.get_zooms(), strict=False))
        affine = header.get_best_affine()
        straight = np.allclose(affine[:3, :3], np.diag([zooms.get(a, 1.0) for a in "xyz"]))
        placed = straight and header["sform_code"] + header["qform_code"] > 0
        begin = dict(zip("xyz", affine[:3, 3], strict=True)) if placed else {}
        lies = {a: spacing(zooms[a], begin.get(a, 0.0), "" if units[a] == "unknown" else units[a]) for a in axes}
        return {a: told for a, told in lies.items() if told is not None}
    return {}


def _header(nibabel: Any, at: TensorPath, zipped: bool) -> Any:
    """The header alone, without its extensions, which may be of any length."""
    with gzip.open(at.file) if zipped else open(at.file, "rb") as file:
        raw = file.read(max(HEADERS))
    size = next((n for n in HEADERS for order in ("little", "big") if raw[:4] == n.to_bytes(4, order)), 0)  # type: ignore[arg-type]
    if not size or len(raw) < size:
        raise StoreError(f"{at.text}: no NIfTI file, or cut off in its header")
    header = getattr(nibabel, HEADERS[size])(raw[:size])
    if bytes(header["magic"].item())[:3] not in (b"n+1", b"n+2"):
        raise StoreError(f"{at.text}: a header whose volume lies in another file; convert it to one .nii")
    if not size <= header["vox_offset"] < 1 << 40:
        raise StoreError(f"{at.text}: the volume is said to begin at byte {header['vox_offset']}")
    return header


def create_nifti(at: TensorPath, tensor: NewTensor) -> FileSource:
    """A .nii file of zeros, whole at once, or a .nii.gz, written when it is closed; affine, spacing and units as the file that it
    is like."""
    rank = len(tensor.shape)
    tensor.plain(at.text)
    if not 1 <= rank <= 5 or tensor.axes not in ("", AXES[-rank:]):
        raise ShapeError(f"{at.text}: axes {tensor.axes!r} of {tensor.shape}: NIfTI has 1 to 5, the last of {AXES}")
    header = _new_header(library("nibabel", at.text, "writing nifti", "nifti"), at, tensor)
    if at.is_spooled:
        spooled = SpooledSource(at, tensor, AXES[-rank:], SPOOLING, lambda raw, file: _zip(header, raw, file))
        spooled.header, spooled.geometry = header, _geometry(header, AXES[-rank:])
        return spooled
    fresh(at, tensor.overwrite)
    with faults(at.text, "creating"), open(at.file, "xb") as file:
        header.write_to(file)
    with creating(at.text, at.file):
        offset = int(header.get_data_offset())
        lengthen(at.file, offset + math.prod(tensor.shape) * tensor.dtype.itemsize)
        source = RawSource(at.text, at.file, tensor.shape, tensor.dtype, offset, AXES[-rank:], writable=True)
    source.header, source.geometry = header, _geometry(header, AXES[-rank:])
    return source


def _zip(header: Any, raw: RawSource, file: BinaryIO) -> None:
    """Header and numbers, compressed."""
    with gzip.GzipFile("", "wb", FAST, file, mtime=0) as stream, io.BytesIO() as text:
        header.write_to(text)
        stream.write(text.getvalue().ljust(int(header.get_data_offset()), b"\0"))
        for region in batches(whole(raw.shape), (1,) * len(raw.shape), SPOOLING // (2 * raw.dtype.itemsize)):
            piece = np.empty(extents(region), raw.dtype)
            raw.read(region, piece)
            stream.write(piece.data)


def _new_header(nibabel: Any, at: TensorPath, tensor: NewTensor) -> Any:
    large = max(tensor.shape) > MOST_NIFTI1
    size = max(HEADERS) if large else min(HEADERS)
    header, like = getattr(nibabel, HEADERS[size])(), header_of(tensor.like)
    try:
        header.set_data_dtype(tensor.dtype)
    except Exception:
        raise DtypeError(f"{at.text}: NIfTI has no {tensor.dtype}") from None
    with faults(at.text, "creating"):
        header.set_data_shape(tensor.shape[::-1])
        header.set_slope_inter(1, 0)
        header.set_data_offset(size + 4)
        if like is not None:
            _take_over(header, like, tensor)
        elif lies := geometry_of(tensor.like):
            _lay(header, lies, tensor)
    return header


def _lay(header: Any, lies: Geometry, tensor: NewTensor) -> None:
    """Steps, units and origin of a tensor of another format, in millimetres."""
    axes = AXES[-len(tensor.shape) :][::-1]
    along = laid(axes, lies, tensor.position)
    factors = [METERS[s.unit] / METERS["millimeter"] if s.unit in METERS else 1.0 for s in along]
    if not all(LEAST < s.step * f < MOST and abs(s.origin * f) < MOST for s, f in zip(along, factors, strict=True)):
        return  # numbers that the header has not
    header.set_zooms([s.step * f for s, f in zip(along, factors, strict=True)])
    affine = np.diag([*[s.step * f for s, f in zip(along, factors, strict=True)][:3], *[1.0] * max(0, 3 - len(along)), 1.0])
    affine[: min(3, len(along)), 3] = [s.origin * f for s, f in zip(along, factors, strict=True)][:3]
    header.set_sform(affine, ALIGNED)
    if any(s.unit in METERS for a, s in zip(axes, along, strict=True) if a in "zyx"):
        header.set_xyzt_units("mm", "sec" if any(s.unit == "second" for s in along) else None)


def _take_over(header: Any, like: Any, tensor: NewTensor) -> None:
    """Affine, spacing and units of another header, of the positions that are wanted of it."""
    lies = [tensor.position.get(letter, (0.0, 1.0)) for letter in AXES[::-1]]
    zooms = [size * step for size, (_, step) in zip([*like.get_zooms(), *[1.0] * 5], lies)]
    move = np.diag([step for _, step in lies[:3]] + [1.0])
    move[:3, 3] = [offset for offset, _ in lies[:3]]
    header.set_zooms(zooms[: len(tensor.shape)])
    forms = {name: getattr(like, f"get_{name}")(coded=True) for name in ("sform", "qform")}
    if not any(code for _, code in forms.values()) and (move != np.eye(4)).any():
        forms["sform"] = like.get_base_affine(), ALIGNED  # the middle of the volume is the origin, and it is another volume
    for name, (affine, code) in forms.items():
        getattr(header, f"set_{name}")(None if affine is None else affine @ move, code)
    header.set_xyzt_units(*like.get_xyzt_units())

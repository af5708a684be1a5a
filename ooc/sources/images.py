"""Pictures: PNG, JPEG and BMP, decoded or encoded whole by Pillow."""

from __future__ import annotations

import math
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np

from ooc.errors import DtypeError, ShapeError, StoreError, UnsupportedError
from ooc.files.whole import sweep
from ooc.files.whole import whole as written
from ooc.ir.region import Region, slices
from ooc.sources.base import FileSource
from ooc.sources.checks import faults, library
from ooc.sources.place import NewTensor, TensorPath, fresh
from ooc.sources.protocol import Array

MOST_PIXELS = 1 << 31
MOST_WRITTEN = 1 << 28  # values of a picture that is collected in memory
MOST_RATIO = 2048  # no sound picture is smaller by more than that: deflate ends at 1032, JPEG near 700
PLUGINS = {".png": "PngImageFile", ".jpg": "JpegImageFile", ".jpeg": "JpegImageFile", ".bmp": "BmpImageFile"}
MODULES = {"PngImageFile": "PngImagePlugin", "JpegImageFile": "JpegImagePlugin", "BmpImageFile": "BmpImagePlugin"}
DTYPES = {"1": "?", "I;16": "u2", "I;16B": "u2", "I": "i4", "F": "f4"}  # of a mode of Pillow's; others have bytes


class ImageSource(FileSource):
    """A picture, y x or y x c, held as an array from the first read on. Nothing is rotated, whatever the metadata say."""

    def __init__(self, path: str, picture: Any) -> None:
        # Palettes become colours; 16 bits of a PNG are an unsigned number, whatever an old Pillow says.
        self.mode = ("RGBA" if "transparency" in picture.info else "RGB") if picture.mode == "P" else picture.mode
        png16 = picture.format == "PNG" and self.mode == "I"
        dtype = np.dtype("u2" if png16 else DTYPES.get(self.mode, "u1"))
        channels = {"RGB": 3, "RGBA": 4, "LA": 2, "CMYK": 4, "YCbCr": 3, "La": 2, "RGBa": 4, "RGBX": 4}.get(self.mode, 0)
        shape = (picture.height, picture.width, *([channels] if channels else []))
        # Pillow's own picture, one of another mode, and the array.
        super().__init__(
            path,
            shape,
            dtype,
            "yxc"[: len(shape)],
            shape,
            buffer_bytes=3 * max(4, dtype.itemsize * channels) * math.prod(shape[:2]),
        )
        self._picture, self._lock = picture, threading.Lock()
        self._array: Array | None = None

    def _read(self, region: Region, out: Array) -> None:
        with self._lock:
            if self._array is None:
                self._array = self._decoded()
        out[...] = self._array[slices(region)]

    def _decoded(self) -> Array:
        picture = self._picture if self._picture.mode == self.mode else self._picture.convert(self.mode)
        pixels = np.asarray(picture).astype(self.dtype, copy=False)
        self._picture.close()
        if pixels.shape != self.shape:
            raise StoreError(f"{self.path}: expected a picture of {self.shape}, got {pixels.shape}")
        return pixels

    def _close(self, whole: bool) -> None:
        self._picture.close()
        self._array = None


def open_image(at: TensorPath, writable: bool) -> ImageSource:
    """The picture of a file: its header now, its pixels when they are first read."""
    if writable:
        raise UnsupportedError(f"{at.text}: pictures are only read, or created whole; write .npy, .zarr or .tif")
    kind = PLUGINS[os.path.splitext(at.file)[1].lower()]
    plugin = library(f"PIL.{MODULES[kind]}", at.text, "reading pictures", "images")
    with faults(at.text, "opening"):
        have = os.path.getsize(at.file)
        # Not Image.open, whose limit of 89 million pixels is one for all threads.
        picture = getattr(plugin, kind)(at.file)
    try:
        _check(at.text, picture, have)
        return ImageSource(at.text, picture)
    except BaseException:
        picture.close()
        raise


def _check(path: str, picture: Any, have: int) -> None:
    """Refuse, before anything is decoded, what is too large, a lie or would lose bits."""
    pixels = picture.width * picture.height
    if pixels > MOST_PIXELS:
        raise StoreError(
            f"{path}: a picture of {pixels} pixels; at most {MOST_PIXELS} are read; convert it to tiled TIFF or Zarr"
        )
    if pixels // 8 > have * MOST_RATIO:
        raise StoreError(f"{path}: a picture of {pixels} pixels in {have} bytes; it was truncated")
    raw = picture.tile[0][3] if picture.tile else ""
    mode = raw[0] if isinstance(raw, tuple) and raw else raw
    if isinstance(mode, str) and ";16" in mode and picture.mode not in DTYPES:
        raise UnsupportedError(f"{path}: Pillow reads 8 of the 16 bits of a colour picture; convert it to TIFF")


class PngSink(FileSource):
    """A small picture, collected in memory and written when it is closed."""

    def __init__(self, at: TensorPath, tensor: NewTensor, module: Any) -> None:
        nbytes = math.prod(tensor.shape) * tensor.dtype.itemsize
        super().__init__(at.text, tensor.shape, tensor.dtype, "yxc"[: len(tensor.shape)], None, True, 3 * nbytes)
        self.file, self.module, self.overwrite = at.file, module, tensor.overwrite
        self._array = np.zeros(tensor.shape, tensor.dtype)

    def _read(self, region: Region, out: Array) -> None:
        out[...] = self._array[slices(region)]

    def _write(self, region: Region, array: Array) -> None:
        self._array[slices(region)] = array

    def _close(self, whole: bool) -> None:
        if whole:  # an error that left the block left half a picture, which helps nobody
            self._settle()

    def _settle(self) -> None:
        with written(Path(self.file)) as file:
            self.module.fromarray(self._array).save(file, format="PNG")


def create_image(at: TensorPath, tensor: NewTensor) -> PngSink:
    """A PNG of uint8 or uint16 values, y x or y x c; uint16 has no c."""
    shape, dtype = tensor.shape, tensor.dtype
    tensor.plain(at.text)
    if not (len(shape) == 2 or (len(shape) == 3 and shape[2] in (2, 3, 4))) or tensor.axes not in ("", "yx", "yxc", "yxs"):
        raise ShapeError(f"{at.text}: shape: expected y x, or y x c with c = 2, 3 or 4; got {shape} {tensor.axes}".rstrip())
    if dtype not in (np.uint8, np.uint16) or (dtype == np.uint16 and len(shape) == 3):
        raise DtypeError(f"{at.text}: dtype: expected uint8, or uint16 without channels; got {dtype}; write .tif for others")
    if math.prod(shape) > MOST_WRITTEN:
        raise ShapeError(
            f"{at.text}: {math.prod(shape)} values; a PNG is written whole, at most {MOST_WRITTEN}; write .tif or .zarr"
        )
    module = library("PIL.Image", at.text, "writing pictures", "images")
    fresh(at, tensor.overwrite)
    with faults(at.text, "creating"):
        sweep(Path(at.file).parent, Path(at.file).name)
        open(at.file, "xb").close()  # a folder that is missing or read-only is told now
        os.remove(at.file)
    return PngSink(at, tensor, module)

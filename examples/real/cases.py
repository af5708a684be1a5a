"""Crops of real data, prepared as each network wants them: what check.py and memory.py compute."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from networks import BGR_MEAN
from PIL import Image, ImageDraw, ImageFont

import ooc
from ooc.ir.region import whole

Array = np.ndarray[Any, Any]
LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)  # of red, green and blue


class Case(NamedTuple):
    """A network and a tensor that it is given.

    Fields:
        network: name of the ONNX file.
        crop: what of the data, in words.
        x: 1 x channels x spatial, float32.
    """

    network: str
    crop: str
    x: Array


def stored(path: Path) -> Array:
    """All of a picture or volume."""
    with ooc.open(path) as source:
        found = np.empty(source.shape, source.dtype)
        source.read(whole(source.shape), found)
    return found


def channels_first(picture: Array) -> Array:
    """A picture, y x c, as a batch of one."""
    return np.ascontiguousarray(picture.transpose(2, 0, 1)[None], np.float32)


def normalised(values: Array) -> Array:
    """With mean 0 and deviation 1, a batch of one with one channel."""
    found: Array = ((values - values.mean()) / values.std()).astype(np.float32)
    return found[None, None]


def hed(picture: Array) -> Array:
    """RGB as HED takes it: BGR less the mean of the pictures that it learned."""
    return channels_first(picture[..., ::-1].astype(np.float32) - np.array(BGR_MEAN, np.float32))


def ppocr(picture: Array) -> Array:
    """RGB as the text detector takes it: BGR from -1 to 1."""
    return channels_first(picture[..., ::-1].astype(np.float32) / np.float32(127.5) - 1)


def _hed(data: Path) -> list[Case]:
    relief = stored(data / "relief.jpg")
    return [Case("hed", "relief 333x517", hed(relief[1801:2134, 5203:5720])), Case("hed", "relief 61x83", hed(relief[:61, -83:]))]


def _topaz2d(data: Path) -> list[Case]:
    grey = stored(data / "relief.jpg")[1801:2134, 5203:5720] @ LUMINANCE
    return [Case("topaz2d", "relief 333x517", normalised(grey))]


def _topaz3d(data: Path) -> list[Case]:
    head = stored(data / "head.nii.gz")[120:181, 150:225, 110:177]
    return [Case("topaz3d", "head 61x75x67", normalised(head.astype(np.float32)))]


def _esrgan(data: Path) -> list[Case]:
    picture = stored(data / "fixture.png")[..., :3]
    crop = picture[30:91, 20:103]
    return [Case("esrgan", "fixture 61x83", channels_first(crop)), Case("esrgan", "fixture 128x128", channels_first(picture))]


def _ppocr(data: Path) -> list[Case]:
    """With text to be found: without any all is near 0, where single precision tells little.

    The sums in its feature pyramid fit where all of ceil(n / 4, 8, 16, 32) are halves of one another: n = 32 k - 3 to 32 k.
    """
    relief = stored(data / "relief.jpg")
    crops = {"349x543": relief[1801:2150, 5203:5746], "93x157": relief[3000:3093, 2000:2157]}
    return [Case("ppocr", f"text {name}", ppocr(lettered(crop))) for name, crop in crops.items()]


def lettered(picture: Array) -> Array:
    """A picture with words on it."""
    drawn = Image.fromarray(np.ascontiguousarray(picture))
    for y in range(30, picture.shape[0], 80):
        ImageDraw.Draw(drawn).text((20, y), "out of core", fill=(0, 0, 0), font=ImageFont.load_default(24))
    return np.asarray(drawn)


CASES: dict[str, Callable[[Path], list[Case]]] = {
    "hed": _hed,
    "topaz2d": _topaz2d,
    "topaz3d": _topaz3d,
    "esrgan": _esrgan,
    "ppocr": _ppocr,
}

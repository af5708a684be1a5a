"""Letters of axes: a network's, and those that a file has for them."""

from __future__ import annotations

import math
from pathlib import Path

from ooc.errors import ArgumentError
from ooc.sources.place import place

SPACE = "zyx"  # letters of spatial axes, the last ones for fewer
COLOUR = "s"  # what pictures call their channels
PICTURES = (".png", ".jpg", ".jpeg", ".bmp")
SQUEEZED = (".tif", ".tiff", ".nii", *PICTURES)  # whose axes of 1 go, but those of space


def model_axes(rank: int) -> str:
    """Letters of a network's axes: batch, channels, so many of space."""
    return "nc" + SPACE[-rank:]


def output_axes(path: str, shape: tuple[int, ...]) -> tuple[str, str]:
    """Letters of the axes of a file that is to be made, and of the result as the network has it. shape: of the result. Raises
    ArgumentError where nothing is left of it."""
    if math.prod(shape) < 1:
        raise ArgumentError(f"{path}: nothing is left to write")
    letters = model_axes(len(shape) - 2)[: len(shape)]
    suffix = Path(path.partition("::")[0].lower().split(":")[0].removesuffix(".gz")).suffix
    axes = letters
    at = place(path)
    if at.is_ome:
        kept = SPACE if at.is_label else f"c{SPACE}"
        axes = "".join(a for a, e in zip(letters, shape, strict=True) if e > 1 or a in kept)
    if suffix in SQUEEZED:
        axes = "".join(letter for letter, e in zip(letters, shape, strict=True) if e > 1 or letter in SPACE)
    if suffix in PICTURES and "c" in axes:
        axes = axes.replace("c", "") + "c"
    return axes, letters


def named_axes(path: str, axes: str) -> str:
    """Letters as a file has them: images with levels have no batch, but time."""
    return axes.replace("n", "t") if place(path).is_ome else axes

"""Pictures that matplotlib wrote, read back."""

from __future__ import annotations

from pathlib import Path

import pytest


def is_picture(path: Path) -> bool:
    """Whether a file holds a PNG of some size and more than a few colours."""
    image = pytest.importorskip("PIL.Image", reason="reads the picture back")
    with image.open(path) as picture:
        picture.load()
        return bool(picture.format == "PNG" and min(picture.size) > 300 and len(picture.convert("RGB").getcolors(1 << 20)) > 10)

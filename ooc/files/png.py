"""Pictures as PNG, without a library: grey, or of red, green and blue."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np


def png(pixels: Any) -> bytes:
    """A file of bytes: height x width, or height x width x 3."""
    height, width, *colours = pixels.shape

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    raw = b"".join(b"\0" + row.tobytes() for row in np.ascontiguousarray(pixels))
    head = struct.pack(">2I5B", width, height, 8, 2 if colours else 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(raw, 9)) + chunk(b"IEND", b"")

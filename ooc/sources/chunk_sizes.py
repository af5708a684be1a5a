"""What an encoded chunk says that it decodes to, looked at before a decoder believes it.

Decoders make room for what the chunk says, or write until it ends: of a damaged one that is any number of bytes, and Blosc reads
and writes past the end of its buffers. Within the right size all of them find what is wrong themselves. Nothing here knows Zarr.
"""

from __future__ import annotations

import bz2
import zlib
from collections.abc import Callable, Iterator
from typing import Any

BLOSC_HEADER = 16  # bytes
ZSTD_MAGIC, ZSTD_BLOCK = 0xFD2FB528, 1 << 17  # bytes of a block at most, decoded
EITHER = 32 + zlib.MAX_WBITS  # zlib's word for "zlib or gzip, as the header says"


def checked(codec: str, encoded: Any, most: int) -> bytes | None:
    """What a chunk decodes to, where that is how its size is found; None: it says no more than `most` bytes, and the codec's own
    decoder may have it. Codecs that are not known here pass. Raises ValueError for more."""
    held = memoryview(encoded).cast("B")
    if codec in OPENED:
        return _whole(OPENED[codec], held, most)
    size = TOLD[codec](held) if codec in TOLD else 0
    if size > most:
        raise ValueError(f"a chunk of {most} bytes says that it has {size}")
    return None


def _blosc(encoded: memoryview) -> int:
    """Bytes that the header of Blosc 1 tells. Source: c-blosc, README_CHUNK_FORMAT.rst."""
    if len(encoded) < BLOSC_HEADER or _number(encoded[12:BLOSC_HEADER]) != len(encoded):
        raise ValueError("a chunk whose length is not that of its header")
    return _number(encoded[4:8])


def _lz4(encoded: memoryview) -> int:
    """Bytes that numcodecs writes in front of a block of LZ4."""
    return _number(encoded[:4])


def _zstd(encoded: memoryview) -> int:
    """Bytes of a frame: as its header tells, or of all its blocks at the most. Source: RFC 8878, 3.1.1."""
    if _number(encoded[:4]) != ZSTD_MAGIC or len(encoded) < 6:
        return 0  # which the decoder refuses
    flags = encoded[4]
    single, size = flags >> 5 & 1, (0, 2, 4, 8)[flags >> 6]
    at = 6 - single + (0, 1, 2, 4)[flags & 3]
    if size or single:
        size = size or 1
        return _number(encoded[at : at + size]) + (256 if size == 2 else 0)
    return sum(_zstd_blocks(encoded, at))


def _zstd_blocks(encoded: memoryview, at: int) -> Iterator[int]:
    """Bytes of each block at the most."""
    last = 0
    while not last and at + 3 <= len(encoded):
        head = _number(encoded[at : at + 3])
        last, kind, size = head & 1, head >> 1 & 3, head >> 3
        at += 3 + (1 if kind == 1 else size)
        yield ZSTD_BLOCK if kind == 2 else size


def _number(little: memoryview) -> int:
    return int.from_bytes(little, "little")


def _whole(opened: Callable[[], Any], encoded: memoryview, most: int) -> bytes:
    """All streams of a chunk, decoded into no more than `most` bytes."""
    decoded, rest = b"", bytes(encoded)
    while rest:
        stream = opened()
        decoded += stream.decompress(rest, most + 1 - len(decoded))
        if len(decoded) > most:
            raise ValueError(f"a chunk of {most} bytes decodes to more")
        if not stream.eof:
            raise ValueError("a chunk that ends early")
        rest = stream.unused_data
    return decoded


TOLD: dict[str, Callable[[memoryview], int]] = {"blosc": _blosc, "lz4": _lz4, "zstd": _zstd}
OPENED: dict[str, Callable[[], Any]] = {
    "gzip": lambda: zlib.decompressobj(EITHER), "zlib": lambda: zlib.decompressobj(EITHER), "bz2": bz2.BZ2Decompressor,
}  # fmt: skip

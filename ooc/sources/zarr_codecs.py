"""The codecs of zarr-python, which decode no chunk to more than it has."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from typing import Any

from numcodecs.abc import Codec
from zarr import Array, AsyncArray
from zarr.abc.codec import BytesBytesCodec
from zarr.codecs import ShardingCodec

from ooc.sources.chunk_sizes import OPENED, checked

SPARE = 1 << 16  # bytes that filters in front of a compressor may add


@dataclasses.dataclass(frozen=True)
class BoundedCodec(BytesBytesCodec):  # type: ignore[misc]
    """A codec of version 3 that turns bytes into bytes, and looks at them before it decodes them."""

    inner: Any
    is_fixed_size = False

    async def _decode_single(self, chunk_bytes: Any, chunk_spec: Any) -> Any:
        most = math.prod(chunk_spec.shape) * chunk_spec.dtype.to_native_dtype().itemsize + SPARE
        name, held = name_of(self.inner), chunk_bytes.as_numpy_array()
        decoded = await asyncio.to_thread(checked, name, held, most) if name in OPENED else checked(name, held, most)
        if decoded is not None:
            return chunk_spec.prototype.buffer.from_bytes(decoded)
        return await self.inner._decode_single(chunk_bytes, chunk_spec)

    async def _encode_single(self, chunk_bytes: Any, chunk_spec: Any) -> Any:
        return await self.inner._encode_single(chunk_bytes, chunk_spec)

    def evolve_from_array_spec(self, array_spec: Any) -> BoundedCodec:
        return BoundedCodec(self.inner.evolve_from_array_spec(array_spec))

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: Any) -> int:
        return int(self.inner.compute_encoded_size(input_byte_length, chunk_spec))

    def to_dict(self) -> dict[str, Any]:
        metadata: dict[str, Any] = self.inner.to_dict()
        return metadata


class Numcodec(Codec):  # type: ignore[misc]
    """A codec of version 2 that looks at bytes before it decodes them.

    Parameters:
        inner: of numcodecs.
        most: bytes of a chunk.
    """

    codec_id = ""  # zarr-python looks for a text in the class, too

    def __init__(self, inner: Any, most: int) -> None:
        self.inner, self.codec_id, self.most = inner, inner.codec_id, most + SPARE

    def encode(self, buf: Any) -> Any:
        """As it does."""
        return self.inner.encode(buf)

    def decode(self, buf: Any, out: Any = None) -> Any:
        """As it does. Raises ValueError."""
        decoded = checked(self.codec_id, buf, self.most)
        return self.inner.decode(buf, out) if decoded is None else decoded

    def get_config(self) -> Any:
        """As it has it."""
        return self.inner.get_config()


def guarded(array: Any) -> Any:
    """An array of zarr-python that reads through guarded codecs, and writes chunks of zeros, too."""
    meta = array.metadata
    if meta.zarr_format == 3:
        changed: dict[str, Any] = {"codecs": tuple(map(_guarded, meta.codecs))}
    else:
        most = math.prod(array.chunks) * array.dtype.itemsize
        filters = meta.filters and tuple(Numcodec(f, most) for f in meta.filters)
        changed = {"compressor": meta.compressor and Numcodec(meta.compressor, most), "filters": filters}
    return Array(AsyncArray(dataclasses.replace(meta, **changed), array.store_path, {"write_empty_chunks": True}))


def _guarded(codec: Any) -> Any:
    if isinstance(codec, ShardingCodec):
        return dataclasses.replace(codec, codecs=tuple(map(_guarded, codec.codecs)))
    return BoundedCodec(codec) if isinstance(codec, BytesBytesCodec) else codec


def name_of(codec: Any) -> str:
    """Of a codec of version 3, as version 2 has it."""
    return str(codec.to_dict()["name"]).removeprefix("numcodecs.")

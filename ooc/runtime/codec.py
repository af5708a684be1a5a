"""Tensors with many zeros take less room: the zeros become bits.

Layout of what is packed, all of it little-endian, without gaps:

- the index: for each block of 65536 items (the last may be shorter) a 32-bit number, of how many of its items are kept;
- the blocks: for every 32 items of one a 32-bit mask, whose bit i is set where item i is kept; behind all its masks the items
  that are kept, in their order.

Kept is what has any bit set: negative zeros, subnormal numbers and NaN with all they carry come back as they were. Items have
2, 4 or 8 bytes; the reader knows of how many and how long the tensor is. Where a block begins follows from the index, so
blocks are packed and unpacked on any thread, and alone. At worst the result is larger than the tensor by a bit per item and
the index.

Source: the zero-value compression of cDMA (Rhu et al., "Compressing DMA engine", HPCA 2018), which vDNN++ does on the host
(Shriram S B, Garg, Kulkarni, "Dynamic memory management for GPU-based training of deep neural networks", IPDPS 2019). There a
mask stands in front of its own items; here those of a block stand together, so that they are checked before anything is written.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ooc.backends.device_array import check_reached
from ooc.errors import ArgumentError, DtypeError, ShapeError, StoreError
from ooc.native import address, bounds, kernels

GROUP, BLOCK = 32, 1 << 16  # items of a mask, of a block
ITEMS = {2: "<u2", 4: "<u4", 8: "<u8"}  # bytes of an item, and how it is compared
PLAIN = 4  # bytes of an item of what is given as mere bytes

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def most_bytes(count: int, item: int = PLAIN) -> int:
    """Bytes that so many items take where none is zero: no target needs more."""
    return 4 * (-(-count // BLOCK) + -(-count // GROUP)) + count * item


def pack_zeros(source: Any, target: Any, *, item: int | None = None, threads: int = 1) -> int | None:
    """Pack items, the zeros left out.

    Parameters:
        source: an array or bytes, dense, of 2, 4 or 8 bytes an item.
        target: where to, an array or writable bytes; may be of any size, and beside the source only.
        item: bytes of an item; default None: as the source has, 4 where that is bytes.
        threads: at most so many; default 1.

    Returns:
        nbytes: written at the beginning of the target; None where it has too little room. Then what it holds is of no use.

    Raises:
        DtypeError: items of another size. ShapeError: strided or overlapping memory, a part of an item, a target that is
        read-only. UnsupportedError: memory of a GPU.
    """
    x, y = _bytes(source, "source"), _bytes(target, "target", writable=True)
    item = _item(source, item)
    count = _items(x, item, "source")
    _apart(x, y)
    if kernels is None:
        return _pack(x.view(ITEMS[item]), y)
    written = int(kernels.pack_zeros(address(x), count, item, address(y), y.nbytes, threads))
    return None if written < 0 else written


def unpack_zeros(source: Any, count: int, target: Any, *, item: int | None = None, first: int = 0, threads: int = 1) -> None:
    """Unpack what `pack_zeros` wrote, or some of its blocks.

    Parameters:
        source: all that was written, as an array or bytes.
        count: items of the whole tensor.
        target: where to, an array or writable bytes: as many items as are wanted, all of them or whole blocks.
        item: bytes of an item, as packed; default None: as the target has, 4 where that is bytes.
        first: the first item that is wanted, a multiple of 65536; default 0.
        threads: at most so many; default 1.

    Raises:
        StoreError: the source is not what was packed of so many items; then the target is as it was. (An item that is another
        than was packed is not noticed.) DtypeError, ArgumentError, UnsupportedError: as `pack_zeros`, or items that are no blocks
        of the tensor.
    """
    x, y = _bytes(source, "source"), _bytes(target, "target", writable=True)
    item = _item(target, item)
    items = _items(y, item, "target")
    _apart(x, y)
    last = first + items
    if first < 0 or first % BLOCK or last > count or (last % BLOCK and last != count):
        raise ArgumentError(f"items {first} to {last} of {count}: expected whole blocks of {BLOCK}, or up to the end")
    begins, kepts = _index(x, count, item)
    some = slice(first // BLOCK, -(-last // BLOCK))
    begins, kepts = np.ascontiguousarray(begins[some]), np.ascontiguousarray(kepts[some])
    if kernels is None:
        wrong = _unpack(x, begins, kepts, y.view(ITEMS[item]))
    else:
        wrong = int(kernels.unpack_zeros(address(x), address(begins), address(kepts), items, item, address(y), threads))
    if wrong >= 0:
        raise StoreError(f"packed items: the masks of block {some.start + wrong} keep other items than the index says")


def _index(x: Bytes, count: int, item: int) -> tuple[Any, Any]:
    """Where each block begins, and how many items it keeps. Raises StoreError where that cannot be."""
    blocks = -(-count // BLOCK)
    if x.nbytes < 4 * blocks:
        raise StoreError(f"packed items: {x.nbytes} bytes, expected an index of {4 * blocks} for {count} items")
    kepts = x[: 4 * blocks].view("<u4").astype(np.int64)
    items = np.full(blocks, BLOCK, np.int64)
    items[-1:] = count - (blocks - 1) * BLOCK
    if (kepts > items).any():
        raise StoreError(f"packed items: block {int((kepts > items).argmax())} keeps more items than it has")
    ends = 4 * blocks + np.cumsum(4 * -(-items // GROUP) + item * kepts)
    expected = int(ends[-1]) if blocks else 0
    if x.nbytes != expected:
        raise StoreError(f"packed items: {x.nbytes} bytes, expected {expected} for {count} items")
    return np.concatenate(([4 * blocks], ends[:-1])), kepts


# ---- without the extension


def _pack(x: Any, target: Bytes) -> int | None:
    blocks = [x[i : i + BLOCK] for i in range(0, x.size, BLOCK)]
    kepts = np.array([np.count_nonzero(block) for block in blocks], "<u4")
    at = kepts.nbytes
    if at + sum(4 * -(-b.size // GROUP) for b in blocks) + int(kepts.sum()) * x.itemsize > target.nbytes:
        return None
    target[:at] = kepts.view(np.uint8)
    for block in blocks:
        kept = block != 0
        masks = np.zeros(4 * -(-block.size // GROUP), np.uint8)
        bits = np.packbits(kept, bitorder="little")
        masks[: bits.size] = bits
        for piece in (masks, block[kept].view(np.uint8)):
            target[at : at + piece.size] = piece
            at += piece.size
    return at


def _unpack(x: Bytes, begins: Any, kepts: Any, y: Any) -> int:
    """As the extension: the first block whose masks do not fit the index, and nothing written; else -1."""
    parts = []
    for number, (begin, many) in enumerate(zip(begins.tolist(), kepts.tolist(), strict=True)):
        block = y[number * BLOCK : (number + 1) * BLOCK]
        end = begin + 4 * -(-block.size // GROUP)
        bits = np.unpackbits(x[begin:end], bitorder="little").view(bool)
        if np.count_nonzero(bits) != many or bits[block.size :].any():
            return number
        parts.append((block, bits[: block.size], x[end : end + many * y.itemsize].view(y.dtype)))
    for block, kept, items in parts:
        block[...] = 0
        block[kept] = items
    return -1


# ---- arguments


def _item(data: Any, item: int | None) -> int:
    if item is None:
        itemsize = data.itemsize if isinstance(data, np.ndarray) else memoryview(data).itemsize
        item = PLAIN if itemsize == 1 else itemsize
    if item not in ITEMS:
        raise DtypeError(f"items of {item!r} bytes: expected 2, 4 or 8")
    return item


def _bytes(data: Any, what: str, writable: bool = False) -> Bytes:
    """Dense memory as bytes, whatever it holds."""
    check_reached(data, "cpu")
    try:
        array = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    except (TypeError, ValueError, BufferError) as error:
        raise ArgumentError(f"{what}: expected an array or bytes, dense in memory: {error}") from None
    if not array.flags.c_contiguous or array.dtype.hasobject or (writable and not array.flags.writeable):
        raise ShapeError(f"{what}: expected {'writable ' if writable else ''}memory without strides")
    return array.reshape(-1).view(np.uint8)


def _items(data: Bytes, item: int, what: str) -> int:
    if data.nbytes % item:
        raise ArgumentError(f"{what}: {data.nbytes} bytes are no whole number of items of {item}")
    return data.nbytes // item


def _apart(x: Bytes, y: Bytes) -> None:
    (lo, hi), (begin, end) = bounds(x), bounds(y)
    if lo < end and begin < hi:
        raise ArgumentError("source and target overlap")

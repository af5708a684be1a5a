"""Tensors between the parts of a converted model that PyTorch joins: where the parts have a budget, in files without a name."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ooc.files.unnamed import path_of
from ooc.runtime.swap import SwapFile

LEAST = 1 << 16  # bytes of a tensor that is worth a file


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device, in_file: bool) -> torch.Tensor:
    """A tensor to be filled. in_file: one of this machine's memory lies in a file, of which the system keeps in memory what it
    has room for; the disk's room is its own as long as it lives. Raises StoreError: a full disk."""
    nbytes = math.prod(shape) * dtype.itemsize
    if not in_file or device.type != "cpu" or nbytes < LEAST:
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    file = SwapFile(nbytes)
    try:
        values = torch.from_file(path_of(file.fd), shared=True, size=nbytes // dtype.itemsize, dtype=dtype)
    finally:
        file.close()
    return values.reshape(tuple(shape))

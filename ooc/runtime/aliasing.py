"""Which arrays share memory, and whether an operation may write where it reads."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ooc import native
from ooc.errors import ArgumentError
from ooc.ir.op import Op
from ooc.runtime.store import file_behind
from ooc.runtime.stored import stored_in
from ooc.runtime.tensors import Tensor
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan
from ooc.sources.beside import meet, same_tensor


def check_itself(op: Op, target: Any) -> None:
    """Raise ArgumentError for an output that overlaps itself."""
    if target.flags.c_contiguous:
        return
    reach = target.itemsize
    for stride, extent in sorted((abs(s), e) for s, e in zip(target.strides, target.shape, strict=True) if e > 1):
        if stride < reach:
            raise ArgumentError(
                f"{op}: out overlaps itself (strides {target.strides} of shape {target.shape}); pass a full array"
            )
        reach += (extent - 1) * stride


def check_apart(op: Op, plans: Sequence[Plan], tensors: Mapping[str, Tensor], outputs: Collection[str]) -> None:
    """Raise ArgumentError for outputs that overlap each other, or an input that is still read when they are written."""
    reach = {name: tensor.reach for name, tensor in tensors.items()}
    for name in outputs:
        lo, hi = reach[name]
        for other, (start, end) in reach.items():
            if (start < hi and lo < end) or _same_bytes(tensors[other], tensors[name]):
                if other in outputs and other > name:
                    raise ArgumentError(f"{op}: the outputs {name} and {other} overlap; pass an array of its own for each")
                same = _same(tensors[other].array, tensors[name].array)
                if other not in outputs and not _in_place(plans, other, name, same):
                    raise ArgumentError(f"{op}: out overlaps {other}; pass an output of its own")


def overlap(a: Any, b: Any) -> bool:
    """Whether two arrays share memory, or bytes of a file."""
    tensors = [Tensor(array, Place.HOST, file_behind(array), stored_in(array)) for array in (a, b)]
    return bool(np.may_share_memory(a, b) or _same_bytes(*tensors))


def _in_place(plans: Sequence[Plan], read: str, written: str, same: bool) -> bool:
    """Whether no region of an input is read after the same memory was written as an output. same: element by element."""
    writing = next(i for i, plan in enumerate(plans) if any(o.name == written for o in plan.op.outputs))
    for i, plan in enumerate(plans):
        source = next((o for o in plan.op.inputs if o.name == read), None)
        target = next((o for o in plan.op.outputs if o.name == written), None)
        if source is None or i < writing:
            continue
        alike = same and target is not None and source.axes == target.axes
        if i > writing or not alike or not plan.op.reads_before_writing(read, written):
            return False
    return True


def _same(a: Any, b: Any) -> bool:
    """Whether two arrays are element by element the same memory."""
    return bool(a.shape == b.shape and a.strides == b.strides and native.address(a) == native.address(b))


def _same_bytes(one: Tensor, two: Tensor) -> bool:
    """Whether two tensors lie in overlapping bytes of one file, or are parts of one tensor that was opened twice."""
    if one.stored is not None and two.stored is not None:
        return one.stored.source is not two.stored.source and same_tensor(one.stored.source, two.stored.source)
    if one.stored is not None or two.stored is not None:
        return one.path != "" and two.path != "" and meet(one.path, two.path)
    if one.file is None or two.file is None or not os.path.samefile(one.file[0], two.file[0]):
        return False
    (lo_a, hi_a), (lo_b, hi_b) = one.bytes_of_file, two.bytes_of_file
    return lo_a < hi_b and lo_b < hi_a

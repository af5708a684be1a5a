"""Calls that only move values, in exported programs."""

from __future__ import annotations

import numpy as np
import torch

from ooc.networks import layers
from ooc.torch.translator import STORED, MovedStatistic, TorchCall, name_of, operator, shape_of
from ooc.translate import along, attention
from ooc.translate.binary import as_tensor, binary, expanded
from ooc.translate.building import Constant, GraphTensor, Operand
from ooc.translate.elementwise import towards_zero
from ooc.translate.parts import (
    chosen,
    cut,
    gathered,
    joined,
    padded,
    picked,
    rolled,
    shuffled,
    sliced,
    split,
    stacked,
    tiled,
)
from ooc.translate.views import permuted, repeated, reshaped, through


@operator("cat", "concatenate")
def cat(context: TorchCall) -> GraphTensor:
    """Of tensors; what depends on parameters alone is the same for each sample."""
    xs = _tensors(context)
    return joined(context, xs, context.argument("dim") % len(xs[0].shape))


@operator("stack")
def stack(context: TorchCall) -> GraphTensor:
    xs = _tensors(context)
    return stacked(context, xs, context.argument("dim") % (len(xs[0].shape) + 1))


def _tensors(context: TorchCall) -> list[GraphTensor]:
    operands = context.argument("tensors")
    like = next(o for o in operands if isinstance(o, GraphTensor))
    return [as_tensor(context, o, like) for o in operands]


@operator("select")
def select(context: TorchCall) -> GraphTensor:
    x = context.tensor()
    return chosen(context, x, context.argument("dim") % len(x.shape), context.argument("index"))


@operator("diagonal")
def diagonal(context: TorchCall) -> GraphTensor:
    """Of two axes, as places of both joined to one, which becomes the last."""
    x, offset = context.tensor(), context.argument("offset")
    rank = len(x.shape)
    first, second = (context.argument(name) % rank for name in ("dim1", "dim2"))
    (rows, columns), rest = (x.shape[first], x.shape[second]), [i for i in range(rank) if i not in (first, second)]
    begin, count = max(offset, -offset * columns), min(rows + min(offset, 0), columns - max(offset, 0))
    turned = permuted(context, x, (*rest, first, second), last=False)
    flat = reshaped(context, turned, (*(x.shape[i] for i in rest), rows * columns), last=False)
    return picked(context, flat, rank - 2, range(begin, begin + count * (columns + 1), columns + 1))


@operator("index_select", "index")
def index(context: TorchCall) -> GraphTensor:
    """Places that are constants of the code, along one axis or neighbouring ones."""
    x = context.tensor()
    if "indices" in context.arguments:
        named = [(axis, one) for axis, one in enumerate(context.arguments["indices"]) if one is not None]
        axis, places = named[0]
        if len(named) > 1:
            if named[-1][0] - axis >= len(named):
                raise context.refuse("places along several axes that are no neighbours")
            shapes = [shape_of(one) for _, one in named]
            lists = [np.reshape(context.places(one, x.shape[a]), shape) for (a, one), shape in zip(named, shapes, strict=True)]
            return along.gathered_together(context, x, axis, np.stack(np.broadcast_arrays(*lists), -1))
    else:
        axis, places = context.argument("dim") % len(x.shape), context.arguments["index"]
    return gathered(context, x, axis, context.places(places, x.shape[axis]), shape_of(places))


@operator("embedding")
def embedding(context: TorchCall) -> GraphTensor:
    """Rows of a table at places that the network computes."""
    table = context.parameter("weight")
    if table is None or context.argument("padding_idx") >= 0 or context.argument("scale_grad_by_freq"):
        raise context.refuse("of a table that the network computes, or with gradients of its own")
    return along.looked_up(context, context.tensor("indices"), table)


@operator("unbind")
def unbind(context: TorchCall) -> list[GraphTensor]:
    x = context.tensor()
    axis = context.argument("dim") % len(x.shape)
    return [chosen(context, x, axis, i, last=False) for i in range(x.shape[axis])]


@operator("flip")
def flip(context: TorchCall) -> GraphTensor:
    x = context.tensor()
    for d in context.argument("dims"):
        x = picked(context, x, d % len(x.shape), range(x.shape[d])[::-1])
    return x


@operator("channel_shuffle")
def channel_shuffle(context: TorchCall) -> GraphTensor:
    return shuffled(context, context.tensor(), context.argument("groups"))


@operator("roll")
def roll(context: TorchCall) -> GraphTensor:
    x, dims = context.tensor(), context.argument("dims")
    if not dims:
        raise context.refuse("over all axes at once")
    for by, d in zip(context.argument("shifts"), dims, strict=True):
        x = rolled(context, x, d % len(x.shape), by)
    return x


@operator("repeat", "tile")
def repeat(context: TorchCall) -> GraphTensor:
    x, times = context.tensor(), context.argument("repeats" if "repeats" in context.arguments else "dims")
    if len(times) > len(x.shape):
        raise context.refuse("axes in front of the batch")
    return tiled(context, x, [1] * (len(x.shape) - len(times)) + list(times))


@operator("repeat_interleave")
def repeat_interleave(context: TorchCall) -> GraphTensor:
    """Every place so many times in a row."""
    x, dim, times = context.tensor(), context.argument("dim"), context.argument("repeats")
    if dim is None or not isinstance(times, int):
        raise context.refuse("over all axes at once, or by a tensor of counts")
    axis = dim % len(x.shape)
    alone = reshaped(context, x, (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]), last=False)
    shape = (*x.shape[: axis + 1], times, *x.shape[axis + 1 :])
    return reshaped(context, repeated(context, alone, shape, last=False), context.shape)


@operator("copy")
def copy(context: TorchCall) -> GraphTensor:
    """What is written over a tensor, of which the size alone is looked at."""
    like, source = context.argument("self"), context.operand("src")
    x = like if isinstance(like, GraphTensor) else source
    assert isinstance(x, GraphTensor)  # else PyTorch computes it
    return expanded(context, as_tensor(context, source, x), context.shape)


@operator("expand")
def expand(context: TorchCall) -> GraphTensor:
    x = context.tensor()
    if len(context.shape) != len(x.shape):
        raise context.refuse(f"from {x.shape} to {context.shape}: axes in front of the batch")
    return expanded(context, x, context.shape)


@operator("slice_scatter")
def slice_scatter(context: TorchCall) -> GraphTensor:
    """What is around a stretch of an axis, with something else in it."""
    axis, source = context.argument("dim") % len(context.shape), context.operand("src")
    begin, end, step = slice(*(context.argument(name) for name in ("start", "end", "step"))).indices(context.shape[axis])
    if step != 1:
        raise context.refuse("in steps")
    return _written(context, axis, begin, end, source)


@operator("select_scatter")
def select_scatter(context: TorchCall) -> GraphTensor:
    """The same of one place of an axis, which what is in it has not."""
    axis, source = context.argument("dim") % len(context.shape), context.operand("src")
    begin = context.argument("index") % context.shape[axis]
    if isinstance(source, GraphTensor):
        source = reshaped(context, source, (*source.shape[:axis], 1, *source.shape[axis:]), last=False)
    elif len(source.shape) == len(context.shape) - 1:
        source = source.reshaped((*source.shape[:axis], 1, *source.shape[axis:]))
    return _written(context, axis, begin, begin + 1, source)


def _written(context: TorchCall, axis: int, begin: int, end: int, source: Operand) -> GraphTensor:
    """A tensor with another one over some places of an axis."""
    if axis == 0:
        raise context.refuse("of samples")
    around, size = context.operand("self"), context.shape
    like = around if isinstance(around, GraphTensor) else source
    assert isinstance(like, GraphTensor)  # else PyTorch computes it
    x = expanded(context, as_tensor(context, around, like), size, last=False)
    middle = expanded(context, as_tensor(context, source, like), (*size[:axis], end - begin, *size[axis + 1 :]), last=False)
    ends = [cut(context, x, axis, lo, hi - lo, last=False) for lo, hi in ((0, begin), (end, size[axis])) if lo < hi]
    return joined(context, [ends[0], middle, *ends[1:]] if begin else [middle, *ends], axis)


@operator("_assert_tensor_metadata")
def nothing(context: TorchCall) -> None:
    """What exporters write before a conversion: it checks what is known."""


@operator("slice")
def slice_(context: TorchCall) -> GraphTensor:
    x = context.tensor()
    begin, end, step = (context.argument(name) for name in ("start", "end", "step"))
    return sliced(context, x, context.argument("dim") % len(x.shape), slice(begin, end, step))


@operator("narrow")
def narrow(context: TorchCall) -> GraphTensor:
    x = context.tensor()
    axis, begin = context.argument("dim") % len(x.shape), context.argument("start")
    if axis == 0:
        raise context.refuse("along the batch")
    return cut(context, x, axis, begin % x.shape[axis], context.argument("length"))


@operator("split", "split_with_sizes", "chunk")
def split_(context: TorchCall) -> list[GraphTensor]:
    x = context.tensor()
    axis = context.argument("dim") % len(x.shape)
    parts = context.node.meta["val"]
    return split(context, x, axis, [part.shape[axis] for part in parts])


@operator("constant_pad_nd")
def constant_pad(context: TorchCall) -> GraphTensor:
    return _padded(context, "constant", float(context.argument("value", 0)))


@operator("pad")
def pad(context: TorchCall) -> GraphTensor:
    mode = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}[context.argument("mode")]
    return _padded(context, mode, float(context.argument("value") or 0))


@operator(*(f"{how}_pad{rank}d" for how in ("reflection", "replication") for rank in (1, 2, 3)))
def pad_by(context: TorchCall) -> GraphTensor:
    return _padded(context, "reflect" if "reflection" in name_of(context.node) else "edge", 0.0)


def _padded(context: TorchCall, mode: str, fill: float) -> GraphTensor:
    x = context.tensor()
    pads = context.argument("padding" if "padding" in context.arguments else "pad")
    before, after = [0] * len(x.shape), [0] * len(x.shape)
    for i in range(0, len(pads), 2):  # from the last axis on
        before[-1 - i // 2], after[-1 - i // 2] = pads[i], pads[i + 1]
    return padded(context, x, before, after, mode, fill)


@operator("view", "reshape", "_unsafe_view", "flatten", "squeeze", "unsqueeze", "unflatten")
def view(context: TorchCall) -> GraphTensor:
    waits = context.waiting("self")
    if isinstance(waits, GraphTensor) and (y := attention.apart(context, waits, context.shape)) is not None:
        return y
    return reshaped(context, context.tensor(), context.shape)


@operator("permute", "transpose")
def permute(context: TorchCall) -> GraphTensor:
    x = context.tensor()
    if "transpose" in name_of(context.node):
        order = list(range(len(x.shape)))
        a, b = (context.argument(name) % len(order) for name in ("dim0", "dim1"))
        order[a], order[b] = order[b], order[a]
    else:
        order = [d % len(x.shape) for d in context.argument("dims")]
    return permuted(context, x, order)


@operator("unfold")
def unfold(context: TorchCall) -> GraphTensor:
    """Windows along an axis, whose places are a new last axis."""
    x = context.tensor()
    axis, size, step = (int(context.argument(name)) for name in ("dimension", "size", "step"))
    return along.windowed(context, x, axis % len(x.shape), size, step)


@operator("tril", "triu")
def triangle(context: TorchCall) -> GraphTensor:
    return along.triangle(context, context.tensor(), name_of(context.node) == "triu", int(context.argument("diagonal", 0)))


@operator("own_backward")
def own_backward(context: TorchCall) -> Operand:
    """What a function of autograd's with a backward pass of its own returns."""
    x = context.operand("x")
    if isinstance(x, Constant):
        raise context.refuse("parameters through a function with a backward pass of its own")
    return x if context.translator.fold else through(context, x, layers.Stop("unknown"))


@operator("clone", "contiguous", "detach", "alias", "lift_fresh_copy", "_to_copy", "to", "dropout_", "type_as")
def same(context: TorchCall) -> GraphTensor | Constant | MovedStatistic:
    """What only says how values lie; running statistics become what the buffer is of anyway."""
    node, x = context.node, context.translator.values[context.arguments["self"]]
    if isinstance(x, MovedStatistic):
        return x
    if not isinstance(x, GraphTensor):  # of another's type
        return Constant(lambda values: values[node], context.shape)
    if name_of(context.node) == "detach" and not context.translator.fold:
        return through(context, context.tensor(), layers.Stop())
    target = context.node.meta["val"]
    if target.dtype is torch.bool:  # conditions are numbers, 1 and 0
        return binary(context, context.tensor(), context.site.full(0), "not_equal")
    if target.dtype in STORED:  # whole numbers are floating ones
        if context.translator.follows and not context.translator.fold:
            raise context.refuse("gradients that stop at whole numbers")
        if target.dtype not in (torch.int64, torch.int32) and any(user.op != "output" for user in node.users):
            raise context.refuse("whole numbers of few bits that are computed with")
        return towards_zero(context, context.tensor())
    if tuple(target.shape) != x.shape or str(target.dtype).removeprefix("torch.") != {
        "f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16",
    }.get(x.dtype):  # fmt: skip
        raise context.refuse(f"from {x.shape}, {x.dtype} to {tuple(target.shape)}, {target.dtype}")
    return x

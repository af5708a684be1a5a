"""Windows of a result, computed again by ONNX Runtime or PyTorch from as much of the input as they see."""

from __future__ import annotations

import importlib
import os
import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ooc.apply.mirrored import Mirrored
from ooc.apply.models import opened
from ooc.apply.reach import seen
from ooc.errors import UnsupportedError
from ooc.ir.op import INTEGERS, numpy_dtype
from ooc.ir.region import Region, Span, whole
from ooc.networks import Graph
from ooc.networks.build import Built
from ooc.networks.calls import Network
from ooc.networks.layers import ResizeLayer, UpsampleLayer
from ooc.ops.resize import BORDERS
from ooc.sources.protocol import Source

SIDE = 48  # positions of a window along an axis
WHOLE = 1 << 30  # bytes of all tensors of a network up to which the reference computes the whole
Prepared = Callable[[Any], Any]  # of an array of a crop, what is done to it before or after the network


class VerifiedPart(NamedTuple):
    """What is verified.

    Fields:
        model: path of the network. trust: whether it may run code. output: the tensor that is wanted; "": the first.
        graph: with what is done before and after. network: of its plan.
        source: of the network's axes, as the network sees it. made: the shape of the result; whole: with what is cut off it.
        extent: of the input's space, with nothing mirrored.
        before, after: what is done to a crop besides the network.
    """

    model: str
    trust: bool
    output: str
    graph: Built
    network: Network
    source: Source | Mirrored
    made: tuple[int, ...]
    whole: tuple[int, ...]
    extent: tuple[int, ...]
    before: Prepared
    after: Prepared


class Found(NamedTuple):
    """A window of the result.

    Fields:
        window: its region, with batch and channels.
        difference: the largest, of the largest value; of integers as they are.
    """

    window: Region
    difference: float


def check(task: VerifiedPart) -> None:
    """Raise UnsupportedError where nothing could be verified, before anything is computed."""
    reference_of(task)
    if _bytes(task) > WHOLE:
        _crop(task, windows(task.made, 1)[0])


def verified(task: VerifiedPart, sink: Source, count: int) -> list[Found]:
    """So many windows of a result, corners first. Raises UnsupportedError where a part of the input does not tell what they
    should be, and the whole is too large."""
    reference = reference_of(task)
    in_one = _whole(task, reference)
    comparisons = []
    for window in windows(task.made, count):
        have = _read(sink, window)
        expected = in_one[_slices(window)] if in_one is not None else _cropped(task, reference, window)
        comparisons.append(Found(window, _difference(have, expected)))
    return comparisons


def windows(shape: Sequence[int], count: int) -> list[Region]:
    """Regions of a result: all its corners, then some at random."""
    draw, space = random.Random(0), shape[2:]
    sides = [min(e, SIDE) for e in space]
    begins = [[(e - s) * (i >> a & 1) for a, (e, s) in enumerate(zip(space, sides, strict=True))] for i in range(1 << len(space))]
    begins += [[draw.randint(0, e - s) for e, s in zip(space, sides, strict=True)] for _ in range(count)]
    regions = []
    for begin in begins[: max(count, 1)]:
        sample = draw.randrange(shape[0])
        place = tuple(Span(b, b + s) for b, s in zip(begin, sides, strict=True))
        regions.append((Span(sample, sample + 1), Span(0, shape[1]), *place))
    return regions


def reference_of(task: VerifiedPart) -> Callable[[Any], Any]:
    """The network as another library computes it: of an array its result. Raises UnsupportedError where that is missing."""
    if Path(task.model).suffix.lower() == ".pt2":
        torch: Any = importlib.import_module("torch")
        module = opened(task.model, task.trust).program.module()
        return lambda x: next(iter(torch.utils._pytree.tree_leaves(module(torch.from_numpy(x))))).detach().numpy()
    try:
        runtime: Any = importlib.import_module("onnxruntime")
    except ImportError:
        raise UnsupportedError("--verify: ONNX Runtime computes the reference; pip install onnxruntime") from None
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    network = opened(task.model, task.trust)
    freed = any(network.baked) and network.free()
    if freed:  # windows are of other sizes
        folder = os.path.dirname(os.path.abspath(task.model))
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    model = network.serialized if freed else task.model
    session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    (name,) = [i.name for i in session.get_inputs()]
    names = [task.output or session.get_outputs()[0].name]
    takes_last, makes_last = network.takes_last, network.makes_last(task.output)

    def run(x: Any) -> Any:
        y = session.run(names, {name: np.moveaxis(x, 1, -1) if takes_last else x})[0]
        return np.moveaxis(y, -1, 1) if makes_last else y

    return run


def _whole(task: VerifiedPart, reference: Callable[[Any], Any]) -> Any:
    """All of the result where that takes little memory; None: it does not."""
    if _bytes(task) > WHOLE:
        return None
    everything = whole(task.source.shape)
    return task.after(reference(task.before(_read(task.source, everything))))


def _bytes(task: VerifiedPart) -> int:
    """Of all tensors between the input and the result."""
    return sum(t.nbytes for t in task.network.tensors.values() if t.per_sample)


def _cropped(task: VerifiedPart, reference: Callable[[Any], Any], window: Region) -> Any:
    """A window's values, from the crop of the input that it sees."""
    crop = _crop(task, window)
    region = (window[0], Span(0, task.source.shape[1]), *crop)
    y = task.after(reference(task.before(_read(task.source, region))))
    slices = []
    for axis, (c, w) in enumerate(zip(crop, window[2:], strict=True), 2):
        by = scale_of(task.source.shape[axis], task.whole[axis])
        begin = int(c.lo * by)
        slices.append(slice(w.lo - begin, w.hi - begin))
    return y[(slice(None), slice(None), *slices)]


def _crop(task: VerifiedPart, window: Region) -> list[Span]:
    """The spatial part of the input that a window sees, from where the network's strides meet. Raises UnsupportedError."""
    space, out = task.source.shape[2:], task.whole[2:]
    ends = zip(seen(task.network, window)[2:], task.extent, space, strict=True)
    sees = [Span(s.lo, wide if s.hi == e else s.hi) for s, e, wide in ends]  # who sees the end sees what is mirrored there
    step = strides(task)
    crop = [Span(max(0, (s.lo // t - 1) * t), min(e, (-(-s.hi // t) + 1) * t)) for s, t, e in zip(sees, step, space, strict=True)]
    if any(s.extent == e and c.extent == e > SIDE for s, c, e in zip(sees, crop, space, strict=True)):
        raise UnsupportedError("--verify: a result depends on the whole input, whose tensors are too large to compute at once")
    apart = any((c.lo * scale_of(e, m)).denominator != 1 for c, m, e in zip(crop, out, space, strict=True))
    if apart or _ratios(task, crop) != _ratios(task, None):
        raise UnsupportedError(
            f"--verify: at the size {space} the network resizes by quotients of lengths, which no part of the input has; "
            "a size of multiples of its strides can be verified"
        )
    return crop


def scale_of(extent: int, out: int) -> Fraction:
    """How many results there are for a position of the input, or the other way round: what is over at the end does not count."""
    return Fraction(round(out / extent)) if out >= extent else Fraction(1, round(extent / out))


def strides(task: VerifiedPart) -> list[int]:
    """Positions of the input for one of the smallest tensor that is no longer the whole, by spatial axis."""
    factors = [1] * (len(task.source.shape) - 2)
    for t in task.network.tensors.values():
        if t.per_sample and len(t.shape) == len(task.source.shape):
            for i, (e, size) in enumerate(zip(task.source.shape[2:], t.shape[2:], strict=True)):
                factors[i] = max(factors[i], round(e / size)) if size > 1 else factors[i]
    return factors


def _ratios(task: VerifiedPart, crop: Sequence[Span] | None) -> list[Any]:
    """What each axis is scaled by in every layer that resizes, of the network at the size of a crop, or of the whole."""
    graph = task.graph
    if crop is not None:
        shape = (1, _channels(task), *(c.extent for c in crop))
        graph = opened(task.model, task.trust).build(shape, [task.output] if task.output else None, _plain)
    ratios: list[Any] = []
    for node in graph.nodes:
        if isinstance(node.layer, ResizeLayer) and node.layer.how not in BORDERS:
            lines = np.reshape(node.layer.lines, (-1, 4))
            ratios.append([(a, m / d, b) for a, m, d, b in lines.tolist()])
        elif isinstance(node.layer, UpsampleLayer):
            ratios.append([e / s for e, s in zip(graph.shapes[node.reads[0]][1:], node.layer.size, strict=True)])
    return ratios


def _plain(graph: Graph, name: str, shape: tuple[int, ...], dtype: str) -> str:
    return graph.input(name, shape, dtype)


def _channels(task: VerifiedPart) -> int:
    """Channels of what enters the network."""
    trial = np.zeros((1, task.source.shape[1], *(1,) * (len(task.source.shape) - 2)), task.source.dtype)
    return int(task.before(trial).shape[1])


def steps(add: Callable[[Graph, str], str], dtype: str, floating: str) -> Prepared:
    """What some layers make of an array of a dtype, converted to `floating` first where it is of integers."""

    def run(x: Any) -> Any:
        graph = Graph("steps")
        name = graph.input("x", x.shape[1:], dtype)
        name = graph.convert(name, dtype=floating) if dtype in INTEGERS else name
        y = add(graph, name)
        if y == "x":
            return x
        graph.output(y)
        with graph.plan(batch=len(x), train=False, policy="keep").session() as session:
            return session.forward(np.ascontiguousarray(x, numpy_dtype(dtype)))

    return run


def _read(source: Source | Mirrored, region: Region) -> Any:
    array = np.empty([s.extent for s in region], source.dtype)
    source.read(region, array)
    return array


def _slices(region: Region) -> tuple[slice, ...]:
    return tuple(slice(s.lo, s.hi) for s in region)


def _difference(have: Any, expected: Any) -> float:
    off = float(np.abs(have.astype(np.float64) - expected.astype(np.float64)).max())
    return off if have.dtype.kind in "iub" else off / max(float(np.abs(expected.astype(np.float64)).max()), 1e-30)

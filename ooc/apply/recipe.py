"""What is done to values before and after a network, in words: layers of the same graph, so that it happens inside the tile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ooc.apply.statistics import Measure
from ooc.errors import ArgumentError, ShapeError
from ooc.ir.op import INTEGERS, integer_name, remedy
from ooc.networks import Graph
from ooc.networks.build import Built
from ooc.networks.layers import Laid

Words = Sequence[str]
Step = Callable[[Graph, str, Words], str]
LESS, BY = "less what was measured", "by what was measured"  # layers of what all of the file tells
LUMINANCE = 0.299, 0.587, 0.114  # of red, green and blue
STORES = {"uint8": "u8", "uint16": "u16", "int16": "i16", "int32": "i32", "bool": "b8"}


def numbers(what: str, words: Words) -> list[float]:
    """Words as numbers. Raises ArgumentError."""
    try:
        return [float(w) for w in words]
    except ValueError:
        raise ArgumentError(f"{what}: expected numbers, got {' '.join(words)!r}") from None


def _one(what: str, words: Words) -> float:
    parsed = numbers(what, words)
    if len(parsed) != 1:
        raise ArgumentError(f"{what}: expected one number, got {' '.join(words) or 'none'}")
    return parsed[0]


def _each(graph: Graph, x: str, what: str, words: Words) -> Any:
    """A number, or one per channel, as they lie beside a sample."""
    channels, rank = graph.shapes[x][0], len(graph.shapes[x]) - 1
    values = np.array(numbers(what, words))
    if len(values) not in (1, channels):
        raise ShapeError(f"{what}: expected a number or {channels}, one per channel; got {len(values)}")
    return values.reshape(-1, *(1,) * rank)


def percentile(graph: Graph, x: str, words: Words) -> str:
    """Two percentiles of all that the file has become 0 and 1; measured before the network runs."""
    return _measured(graph, x, measure("percentile", words))


def normalise(graph: Graph, x: str, words: Words) -> str:
    """Mean 0 and deviation 1 of all that the file has; measured before the network runs."""
    return _measured(graph, x, measure("normalise", words))


def _measured(graph: Graph, x: str, what: Measure) -> str:
    shape = (graph.shapes[x][0] if what.each else 1, *(1,) * (len(graph.shapes[x]) - 1))
    return graph.affine(graph.affine(x, "shift", np.zeros(shape), name=LESS), "scale", np.ones(shape), name=BY)


def measure(how: str, words: Words) -> Measure:
    """What a step measures. Raises ArgumentError."""
    each = list(words[-1:]) == ["each"]
    bounds = numbers(how, words[:-1] if each else words)
    if how == "normalise" and not bounds:
        return Measure(how, each=each)
    if how != "percentile" or len(bounds) != 2 or not 0 <= bounds[0] < bounds[1] <= 100:
        takes = "two percentiles of 0 to 100, the lower one first" if how == "percentile" else "no number"
        raise ArgumentError(f'{how}: expected {takes}, and "each" for every channel alone; got {" ".join(words)!r}')
    return Measure(how, bounds[0], bounds[1], each)


def measuring(steps: Sequence[tuple[Step, Words]]) -> Measure | None:
    """What has to be measured of the file. Raises ArgumentError where other steps come before it."""
    for i, (step, words) in enumerate(steps):
        if step in (percentile, normalise):
            measurement = measure(step.__name__, words)
            if i:
                raise ArgumentError(f"{measurement.how}: must be the first step: what is measured are the numbers in the file")
            return measurement
    return None


def begin_with(graph: Built, measured: tuple[Any, Any] | None) -> None:
    """Give a graph what was measured."""
    if measured is not None and f"{LESS}.value" in graph.parameters:
        shape = graph.parameters[f"{LESS}.value"].shape
        less, by = (v.reshape(shape) for v in measured)
        graph.begin_with({f"{LESS}.value": -less, f"{BY}.value": 1 / by})


def luminance(graph: Graph, x: str, words: Words) -> str:
    """Red, green and blue as one channel. Source: ITU-R BT.601."""
    if graph.shapes[x][0] != len(LUMINANCE) or words:
        raise ShapeError(f"luminance: takes three channels and no number; there are {graph.shapes[x][0]}")
    layer = graph.conv(x, 1, 1)
    weights = np.array(LUMINANCE).reshape(1, 3, *(1,) * (len(graph.shapes[x]) - 1))
    graph.begin_with({f"{layer}.w": weights})
    return layer


def divide(graph: Graph, x: str, words: Words) -> str:
    return graph.affine(x, "scale", 1 / _each(graph, x, "/", words))


def deviation(graph: Graph, x: str, words: Words) -> str:
    return graph.affine(x, "scale", 1 / _each(graph, x, "std", words))


def scale(graph: Graph, x: str, words: Words) -> str:
    return graph.affine(x, "scale", _each(graph, x, "scale", words))


def mean(graph: Graph, x: str, words: Words) -> str:
    return graph.affine(x, "shift", -_each(graph, x, "mean", words))


def add(graph: Graph, x: str, words: Words) -> str:
    return graph.affine(x, "shift", _each(graph, x, "add", words))


def channels(graph: Graph, x: str, words: Words) -> str:
    """Some channels, in the order in which they are named."""
    count, extent = graph.shapes[x][0], graph.shapes[x][1:]
    tensors = []
    for number in numbers("channel", words):
        if number != int(number) or not 0 <= number < count:
            raise ArgumentError(f"channel: {number:g} is none of 0 to {count - 1}")
        tensors.append(graph.add_layer(Laid((-int(number), *(0,) * len(extent)), (1, *extent)), (x,)))
    if not tensors:
        raise ArgumentError("channel: expected numbers of channels")
    return tensors[0] if len(tensors) == 1 else graph.concat(*tensors)


def clip(graph: Graph, x: str, words: Words) -> str:
    """Held between two numbers."""
    bounds = numbers("clip", words)
    if len(bounds) != 2 or not bounds[0] <= bounds[1]:
        raise ArgumentError(f"clip: expected two numbers, the lower one first; got {' '.join(words)!r}")
    return graph.function(x, "clip", *bounds)


def bgr(graph: Graph, x: str, words: Words) -> str:
    """The channels of a picture the other way round."""
    return channels(graph, x, [str(i) for i in range(graph.shapes[x][0])][::-1])


def argmax(graph: Graph, x: str, words: Words) -> str:
    """The largest channel: integers of a type, or of the smallest that counts them."""
    return graph.argmax(x, _store("argmax", words) if words else "u8" if graph.shapes[x][0] <= 256 else "u16")


def threshold(graph: Graph, x: str, words: Words) -> str:
    """1 where it is larger, else 0, as uint8."""
    return graph.round(graph.function(x, "above", _one(">", words)), "u8")


def cast(graph: Graph, x: str, words: Words) -> str:
    """Rounded to integers of a type, within its range; to float32: as it is."""
    if list(words) != ["float32"]:
        return graph.round(x, _store("cast", words, "float32"))
    if graph.dtypes[x] != "f32":
        raise ArgumentError(
            f"cast float32: the network computes in {graph.dtypes[x]}, and one floating type is not cast to another"
        )
    return x


def _store(what: str, words: Words, *besides: str) -> str:
    """The type of integers that words name. Raises ArgumentError."""
    if " ".join(words) not in STORES:
        raise ArgumentError(f"{what}: expected one of {', '.join((*STORES, *besides))}; got {' '.join(words)!r}")
    return STORES[words[0]]


def crop(graph: Graph, x: str, words: Words) -> str:
    """So many positions cut off at each end of every spatial axis."""
    count, extent = _one("crop", words), graph.shapes[x][1:]
    if not 0 <= count < min(extent) / 2 or count != int(count):
        raise ShapeError(f"crop: expected a whole number of positions that leaves some of {extent} at both ends; got {count:g}")
    return graph.crop(x, int(count))


def activate(how: str) -> Step:
    return lambda graph, x, words: graph.activation(x, how)


def softmax(graph: Graph, x: str, words: Words) -> str:
    if graph.shapes[x][0] == 1:
        raise ShapeError("softmax: of one channel, as labels have, it is 1 everywhere; expected several channels")
    return graph.softmax(x)


BEFORE: dict[str, Step] = {
    "/": divide, "scale": scale, "mean": mean, "std": deviation, "add": add, "clip": clip, "bgr": bgr, "channel": channels,
    "luminance": luminance, "percentile": percentile, "normalise": normalise,
}  # fmt: skip
AFTER: dict[str, Step] = {
    **{name: step for name, step in BEFORE.items() if step not in (percentile, normalise)},
    "sigmoid": activate("sigmoid"), "tanh": activate("tanh"), "softmax": softmax, "argmax": argmax, ">": threshold, "cast": cast,
    "crop": crop,
}  # fmt: skip
MOVING = (channels, bgr, crop)  # steps that leave values as they are


def parse(what: str, text: str, known: dict[str, Step]) -> list[tuple[Step, list[str]]]:
    """Steps of a text such as "/ 255, mean 0.5 0.5 0.5". Raises ArgumentError, which names those that there are."""
    steps = []
    for part in filter(None, (p.strip() for p in (text or "").split(","))):
        sign = next((s for s in ("/", ">") if part.startswith(s)), "")
        word, *words = (sign, *part[len(sign) :].split()) if sign else part.split()
        if word not in known:
            raise ArgumentError(f"--{what}: no step {word!r}; there are {', '.join(known)}")
        steps.append((known[word], words))
    return steps


def done(graph: Graph, x: str, steps: list[tuple[Step, list[str]]]) -> str:
    """The tensor that steps make of one. Layers compute with floating numbers: integers become such ones in front of a step, of a
    type that holds them all, and integers again behind a step that only moves them."""
    wide = "f64" if "f64" in graph.dtypes.values() else "f32"
    for step, words in steps:
        store = graph.dtypes[x]
        x = step(graph, graph.convert(x, dtype=wide) if store in INTEGERS else x, words)
        if step in MOVING and store in INTEGERS:
            x = graph.round(x, store)
    return x


def dtype_of(array_dtype: Any) -> str:
    """The name of a dtype as graphs have it. Raises ArgumentError for one that no network reads."""
    store = integer_name(array_dtype)
    if store in INTEGERS:
        return str(store)
    names = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16"}
    if np.dtype(array_dtype).name not in names:
        expected = "expected floating numbers, or uint8, uint16, int16, int32, bool"
        raise ArgumentError(f"a tensor of {array_dtype}: {expected}; {remedy('x', array_dtype)}, and write it anew")
    return names[np.dtype(array_dtype).name]

"""What is done to the numbers of an image before the network, in words of `ooc apply --pre`: each value alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ooc.apply.recipe import BEFORE, measure, numbers, parse
from ooc.apply.statistics import Measure
from ooc.errors import ArgumentError
from ooc.sources import Source

Function = Callable[[Any, Any], Any]
WORDS: dict[str, Function] = {
    "/": lambda x, v: x * (1 / v), "std": lambda x, v: x * (1 / v), "scale": lambda x, v: x * v, "mean": lambda x, v: x - v,
    "add": lambda x, v: x + v,
}  # fmt: skip
MEASURED = ("percentile", "normalise")


class Intensity(NamedTuple):
    """Steps in their order.

    Fields:
        measure: what is measured of each sample first; None: nothing.
        steps: functions of the values and of a number per channel, or one, with it.
    """

    measure: Measure | None
    steps: tuple[tuple[Function, Any], ...]

    @classmethod
    def of(cls, text: str, channels: int, rank: int) -> Intensity:
        """Steps of a text, for samples of so many channels and spatial axes. Raises ArgumentError."""
        first, steps = None, []
        parsed = parse("pre", text, BEFORE)
        names = {step: name for name, step in BEFORE.items()}
        for i, (step, words) in enumerate(parsed):
            name = names[step]
            if name in MEASURED:
                if i:
                    raise ArgumentError(f"{name}: must be the first step: what is measured are the numbers in the file")
                first = measure(name, words)
            elif name in WORDS:
                steps.append((WORDS[name], _each(name, numbers(name, words), channels, rank)))
            else:
                raise ArgumentError(f"{name}: expected one of {', '.join((*WORDS, *MEASURED))}")
        return cls(first, tuple(steps))

    def measured(self, source: Source, rank: int) -> tuple[Any, Any] | None:
        """What is subtracted from a sample, and what it is divided by, beside its channels. Raises ArgumentError, StoreError."""
        if self.measure is None:
            return None
        less, by = (values.reshape(-1, *(1,) * rank) for values in self.measure.of(source))
        return less, by

    def done(self, values: Any, measured: tuple[Any, Any] | None) -> Any:
        """The values of a patch, channels first, as float32."""
        x = values.astype(np.float32)
        if measured is not None:
            less, by = measured
            x = (x + np.float32(-less)) * np.float32(1 / by)
        for function, number in self.steps:
            x = function(x, number)
        return x.astype(np.float32, copy=False)


def _each(name: str, values: list[float], channels: int, rank: int) -> Any:
    """A number, or one per channel, as they lie beside a sample."""
    if len(values) not in (1, channels):
        raise ArgumentError(f"{name}: expected a number or {channels}, one per channel; got {len(values)}")
    if name in ("/", "std") and 0.0 in values:
        raise ArgumentError(f"{name}: expected numbers other than 0")
    return np.array(values, np.float32).reshape(-1, *(1,) * rank)

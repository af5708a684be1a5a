"""Tensors as other libraries have them: those of the graph, and what is only seen of them with other axes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ooc.networks import layers
from ooc.networks.layers.base import Layer

Shape = tuple[int, ...]
MOST_AXES = 5  # of a tensor of the graph: batch, channels, three of space
BATCH = 0  # the factor of a view that is the batch


class GraphTensor(NamedTuple):
    """A tensor of the graph, or one that is only seen.

    Fields:
        name: in the graph, or of the view.
        shape: with the batch, as the other library has it.
        dtype: as the graph has it.
    """

    name: str
    shape: Shape
    dtype: str


class AxisView(NamedTuple):
    """A tensor of the graph seen with other axes: split into factors, which are joined in another order.

    Fields:
        source: the tensor.
        parts: for each of its axes the factors that it is split into, slowest first; the first of all is the batch.
        axes: for each axis that is seen the numbers of the factors that it is made of, slowest first; none: its extent is 1.
    """

    source: GraphTensor
    parts: tuple[Shape, ...]
    axes: tuple[Shape, ...]

    @classmethod
    def of(cls, x: GraphTensor) -> AxisView:
        """A tensor of the graph as it is."""
        return cls(x, tuple((e,) for e in x.shape), tuple((i,) for i in range(len(x.shape))))

    @property
    def factors(self) -> Shape:
        """In the order of the bytes."""
        return tuple(itertools.chain(*self.parts))

    @property
    def of_source(self) -> tuple[Shape, ...]:
        """For each axis of the source the numbers of its factors."""
        return portions(range(len(self.factors)), [len(part) for part in self.parts])

    @property
    def shape(self) -> Shape:
        """As it is seen."""
        return tuple(self.extent(axis) for axis in self.axes)

    @property
    def order(self) -> Shape:
        """The factors in the order in which they are seen."""
        return tuple(itertools.chain(*self.axes))

    @property
    def batch_axis(self) -> int:
        """The axis that the batch is in."""
        return next(i for i, axis in enumerate(self.axes) if BATCH in axis)

    @property
    def still(self) -> bool:
        """Whether the bytes are seen in their order."""
        order = [i for i in self.order if self.factors[i] > 1 and i != BATCH]
        return self.in_front and order == sorted(order)

    @property
    def in_front(self) -> bool:
        """Whether the batch is the first axis, alone; a batch of one may be any axis of extent 1."""
        return self.shape[0] == self.factors[BATCH] and (self.batch_axis == 0 or self.factors[BATCH] == 1)

    def extent(self, factors: Sequence[int]) -> int:
        """Of some factors together."""
        return math.prod(self.factors[i] for i in factors)

    def beside_batch(self, axis: int) -> Shape:
        """The factors of an axis but the batch."""
        return tuple(i for i in self.axes[axis] if i != BATCH)

    def exchanged(self, order: Sequence[int]) -> AxisView:
        """Axes in another order."""
        return self._replace(axes=tuple(self.axes[i] for i in order))

    def split(self, shape: Shape) -> AxisView | None:
        """The same values with other extents: factors are split where an axis ends within one. None: an end divides none."""
        borders = list(itertools.accumulate(shape, lambda a, b: a * b))
        pieces = {i: [1] for i in range(len(self.factors))}  # of each factor; those that are not seen are 1
        begin = 1
        for i in self.order:
            end = begin * self.factors[i]
            pieces[i] = []
            for cut in (*(b for b in sorted(set(borders)) if begin < b < end), end):
                if cut % begin:
                    return None
                pieces[i].append(cut // begin)
                begin = cut
        if len(pieces[BATCH]) > 1:
            return None
        numbers = portions(itertools.count(), [len(pieces[i]) for i in range(len(self.factors))])
        order = [*itertools.chain(*(numbers[i] for i in self.order))]
        parts = tuple(tuple(itertools.chain(*(pieces[i] for i in part))) for part in self.of_source)
        factors = tuple(itertools.chain(*parts))
        ends = list(itertools.accumulate((factors[i] for i in order), lambda a, b: a * b))
        upto = [0, *(sum(end <= most for end in ends) for most in borders)]
        axes = [tuple(order[lo:hi]) for lo, hi in itertools.pairwise(upto)]
        return AxisView(self.source, parts, _placed(axes, factors, shape))

    def moves(self) -> list[Layer]:
        """The layers that make a tensor of the graph of it, the batch in front."""
        target, shape = self.shape[1:], self.source.shape[1:]
        order = [i for i in self.order if i != BATCH and self.factors[i] > 1]
        steps: list[Layer] = []
        if order != sorted(order):
            if all(len(part) == 1 for part in self.parts):  # its axes are only exchanged
                unseen = set(range(len(self.factors))) - {*order}
                each = all(len(axis) == 1 for axis in self.axes) and len(self.order) == len(self.factors)
                every = self.order if each else (*sorted(unseen), *order)
                extents, runs = shape, [[i] for i in every if i != BATCH]
            else:
                runs = _runs(order)
                extents = tuple(self.extent(run) for run in sorted(runs))
            if len(extents) < MOST_AXES:
                places = sorted(runs)
                steps += [] if extents == shape else [layers.Reshape(extents)]
                steps.append(layers.PermuteLayer(tuple(places.index(run) for run in runs)))
                shape = tuple(extents[places.index(run)] for run in runs)
            else:
                steps += self._one_by_one(order)
                shape = tuple(self.factors[i] for i in order)
        return steps if shape == target and steps else [*steps, layers.Reshape(target)]

    def _one_by_one(self, order: list[int]) -> list[Layer]:
        """Stretches of factors are exchanged until all are in their places."""
        held, n, steps = sorted(order), len(order), list[Layer]()
        for place in range(n):
            at = held.index(order[place])
            if at == place:
                continue
            count = next((i for i in range(1, n - at) if held[at + i] != order[place + i]), n - at)
            ends = (0, place, at, at + count, n)
            extents = tuple(self.extent(held[lo:hi]) for lo, hi in itertools.pairwise(ends))
            steps += [layers.Reshape(extents), layers.PermuteLayer((0, 2, 1, 3))]
            held = [*held[:place], *held[at : at + count], *held[place:at], *held[at + count :]]
        return steps


def portions(values: Iterable[int], counts: Iterable[int]) -> tuple[Shape, ...]:
    """Values one after the other, so many at a time."""
    at = iter(values)
    return tuple(tuple(itertools.islice(at, count)) for count in counts)


def _runs(order: Sequence[int]) -> list[list[int]]:
    """Factors that follow each other in the bytes, too."""
    runs: list[list[int]] = []
    places = {i: at for at, i in enumerate(sorted(order))}
    for i in order:
        if runs and places[i] == places[runs[-1][-1]] + 1:
            runs[-1].append(i)
        else:
            runs.append([i])
    return runs


def _placed(axes: list[Shape], factors: Shape, shape: Shape) -> tuple[Shape, ...]:
    """Axes with a batch of one in its place: alone in an axis of extent 1 beside it, or in front of what it is joined with."""
    at = next(i for i, axis in enumerate(axes) if BATCH in axis)
    if factors[BATCH] > 1 or shape[at] == 1:
        return tuple(axes)
    beside = [i for i in (at + 1, at - 1) if 0 <= i < len(axes) and shape[i] == 1]
    if not beside and axes[at][-1] == BATCH and at + 1 < len(axes):
        beside = [at + 1]
    if beside:
        axes[at] = tuple(i for i in axes[at] if i != BATCH)
        axes[beside[0]] = (BATCH, *axes[beside[0]])
    return tuple(axes)

"""What the families share."""

from __future__ import annotations

import math
from collections.abc import Callable

from ooc.api.arguments import as_float, as_int
from ooc.errors import ArgumentError, shown
from ooc.networks.graph import Graph


def scaling(width: float) -> Callable[..., int]:
    """f(k, groups=1): k channels times the factor, rounded to a multiple of groups, at least one each. Raises ArgumentError."""
    factor = as_float("width", width)
    if not 0 < factor < math.inf:
        raise ArgumentError(f"width={shown(width)}: expected a number above 0")
    return lambda k, groups=1: groups * max(1, round(k * factor / groups))


def started(name: str, side: int, channels: int = 3, rank: int = 2) -> tuple[Graph, str]:
    """A graph, and its input x: channels x side x side. Raises ShapeError."""
    graph = Graph(name)
    return graph, graph.input("x", (channels, *(as_int("side", side),) * rank))


def dropped(graph: Graph, x: str, rate: float, name: str) -> str:
    """x behind dropout, where there is a rate."""
    return graph.dropout(x, rate, name=name) if rate else x


def finished(graph: Graph, logits: str) -> Graph:
    """The graph with its loss and output."""
    graph.loss("cross_entropy", logits)
    graph.output(logits)
    return graph

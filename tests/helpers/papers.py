"""What tests of the published methods share: judges, programs in words, and a device whose times are round numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import groupby

import ooc
from ooc.backends.null import NullBackend
from ooc.ir.op import aligned
from ooc.model.cost import Compute, Copy, Model
from ooc.networks import Graph
from ooc.networks.costs import CallCosts
from ooc.networks.judge import Judge
from ooc.networks.proposal import Proposal
from ooc.networks.scene import Scene
from ooc.networks.tensors import Mode
from ooc.networks.where import device_of, space_of
from ooc.networks.writer import network

U = 4096  # bytes of 32 x 32 floats, the unit of sizes


def judge_of(graph: Graph, batch: int, budget: int | None = None, device: ooc.Device | None = None) -> Judge:
    """A judge of a training step; default: on a Titan X by its datasheet."""
    where = device_of(device or ooc.device("null", calibration="titanx"))
    return Judge(network(graph, batch, Mode.STEP), Scene(CallCosts(where, False), space_of(None, where)), budget)


def lasting(judge: Judge) -> int:
    """Bytes of parameters, their gradients and the loss, as laid out."""
    return sum(int(aligned(t.nbytes)) for t in judge.net.lasting)


def by_hand(seconds: Mapping[str, float] | None = None) -> ooc.Device:
    """A device whose kernels need no workspace and take so many seconds by the op's kind, others 0.01 s, whatever the size; its
    link moves U bytes a second each way."""
    link, free = Copy(0.0, 0.0, U), Copy(0.0, 0.0)
    computes = {"*/*/*": Compute(0.01, math.inf)}
    computes |= {f"{kind}/f32/null": Compute(each, math.inf) for kind, each in (seconds or {}).items()}
    return ooc.Device(NullBackend(), Model("by hand", {"read": free, "h2d": link, "d2h": link, "write": free}, computes))


def convolutions(norm: bool = False) -> Graph:
    """x (1 U a sample) -> a (4 U) -> b (4 U) -> mean -> linear: 9 U a sample at the peak."""
    graph = Graph("two convolutions")
    h = graph.conv(graph.input("x", (1, 32, 32)), 4, 3, padding=1, name="a")
    h = graph.batch_norm(h, name="norm") if norm else h
    h = graph.conv(h, 4, 3, padding=1, name="b")
    graph.loss("cross_entropy", graph.linear(graph.global_pool(h), 2, name="fc"))
    return graph


def chain() -> Graph:
    """conv, pool, conv, activation, lrn, linear. The backward pass reads what conv1 (x), pool1 (conv1), conv2 (pool1), lrn1
    (act1), fc (lrn1) and the loss (fc) read, and the activation what it made itself; nobody reads what conv2 made."""
    graph = Graph("chain")
    h = graph.conv(graph.input("x", (4, 16, 16)), 8, 3, padding=1, name="conv1")
    h = graph.conv(graph.pool(h, 2, name="pool1"), 32, 3, padding=1, name="conv2")
    h = graph.lrn(graph.activation(h, "relu", name="act1"), name="lrn1")
    graph.loss("cross_entropy", graph.linear(graph.flatten(h), 5, name="fc"))
    return graph


def told(judge: Judge, proposal: Proposal) -> tuple[list[str], list[str]]:
    """The programs of both passes in words: "load x", "store x", "fence", and the names of layers that run."""
    items = judge.trial(proposal).program.items
    begin = judge.net.backward[0].index
    at = next(i for i, item in enumerate(items) if item.call == begin)
    while items[at - 1].what == "load":
        at -= 1

    def words(first: int, last: int) -> Iterator[str]:
        for item in items[first:last]:
            moved = " ".join(i.tensor for i in (*item.makes, *item.reads))
            yield {"run": judge.net.calls[item.call].layer, "fence": "fence"}.get(item.what, f"{item.what} {moved}")

    forward, backward = ([word for word, _ in groupby(words(*span))] for span in ((0, at), (at, len(items))))
    return forward, backward

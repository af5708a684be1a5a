"""Random fused graphs: training forwards, backward passes, chains, a network of two layers, normalisations in one go."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cases_ops import Common, conv_sizes, dividing, fitting, place_sizes, pool_sizes, random_shape

from ooc.ir.bounds import Node
from ooc.ir.fused import Fused, fuse, graph
from ooc.ir.op import INTEGERS, Op
from ooc.ops import (
    ActivationBackward,
    BnApply,
    BnMoments,
    Concat,
    ConvDgrad,
    ConvertIn,
    ConvertOut,
    ConvFprop,
    ConvWgrad,
    CrossEntropyBackward,
    Dropout,
    Embed,
    Multiply,
    Pointwise,
    PoolBackward,
    PoolForward,
    Reduce,
    Sgd,
    SoftmaxApply,
    SoftmaxSum,
)  # fmt: skip

EXACT = ({"act": "identity"}, {"act": "relu"}, {"act": "clipped_relu", "coef": 3.0}, {"act": "leaky_relu", "coef": 0.25})


def some(rng: random.Random, tensors: list[str]) -> list[str]:
    """A subset that is not empty, often all."""
    chosen = [t for t in tensors if rng.random() < 0.6]
    return tensors if not chosen or rng.random() < 0.3 else chosen


def giving(nodes: list[Node], results: list[str]) -> Op:
    """The graph that makes these results: stages that none of them needs are left out. Results in the order of stages."""
    kept: list[Node] = []
    for node in reversed(nodes):
        if {*node.makes} & {*results, *(t for k in kept for t in k.reads)}:
            kept.insert(0, node)
    return graph(kept, [t for node in kept for t in node.makes if t in results])


def pooling(rng: random.Random, shape: tuple[int, ...]) -> dict[str, Any]:
    found: dict[str, Any] = fitting(lambda: vars(PoolForward("max", **pool_sizes(rng, shape))))
    return {name: found[name] for name in ("n", "k", "extent", "window", "stride", "pad", "groups")}


def _conv(rng: random.Random, common: Common, shape: tuple[int, ...] = (), **extra: Any) -> ConvFprop:
    """A convolution, of an x of a shape if that is given."""
    found: ConvFprop = fitting(lambda: ConvFprop(**conv_sizes(rng, shape or random_shape(rng)), **extra, **common))
    return found


def same_sizes(cls: type[Any], conv: ConvFprop) -> Any:
    """Another pass of a convolution."""
    names = ("n", "c", "extent", "k", "taps", "stride", "dilation", "pad", "groups", "dtype", "layout")
    return cls(**{name: getattr(conv, name) for name in names})


def _bias_gradient(rng: random.Random, conv: ConvFprop, common: Common) -> Op:
    return Reduce("bias", conv.n, conv.k, conv.out, groups=rng.choice((1, conv.groups)), **common)


def conv_pool(rng: random.Random, common: Common) -> Op:
    """A training forward keeps y and the pooled z."""
    conv = _conv(rng, common, bias=rng.random() < 0.5, **rng.choice(EXACT))
    how = rng.choice(("max", "max", "average", "average_valid"))
    pool = PoolForward(how, **pooling(rng, conv.outputs[0].shape), **common)
    reads = tuple(o.name for o in conv.inputs)
    return Fused([Node(conv, reads, ("y",)), Node(pool, ("y",), ("z",))], rng.choice((["y", "z"], ["y", "z"], ["z"])))


def backward(rng: random.Random, common: Common) -> Op:
    """All gradients of a convolution."""
    conv = _conv(rng, common)
    return giving(_backward_nodes(rng, conv, common), some(rng, ["db", "dw", "dx"]))


def _backward_nodes(rng: random.Random, conv: ConvFprop, common: Common) -> list[Node]:
    nodes = [
        Node(_bias_gradient(rng, conv, common), ("dy",), ("db",)),
        Node(same_sizes(ConvWgrad, conv), ("x", "dy"), ("dw",)),
    ]
    rng.shuffle(nodes)
    return [*nodes, Node(same_sizes(ConvDgrad, conv), ("dy", "w"), ("dx",))]


def _pull(rng: random.Random, conv: ConvFprop, common: Common) -> Op:
    return ActivationBackward(conv.n, conv.k, conv.out, **rng.choice(EXACT), groups=rng.choice((1, conv.groups)), **common)


def activation_backward(rng: random.Random, common: Common) -> Op:
    """All gradients of a convolution with its activation."""
    conv = _conv(rng, common)
    nodes = [Node(_pull(rng, conv, common), ("y", "dz"), ("dy",)), *_backward_nodes(rng, conv, common)]
    return giving(nodes, some(rng, ["dy", "db", "dw", "dx"]))


def pool_backward(rng: random.Random, common: Common) -> Op:
    """All gradients of a convolution with its activation and pooling."""
    conv = _conv(rng, common)
    pool = PoolBackward(rng.choice(("max", "max", "average")), **pooling(rng, conv.outputs[0].shape), **common)
    reads = ("y", "dz") if pool.how == "max" else ("dz",)
    pull = Node(_pull(rng, conv, common), ("y", "dp"), ("dy",))
    return giving([Node(pool, reads, ("dp",)), pull, *_backward_nodes(rng, conv, common)], some(rng, ["dp", "db", "dw", "dx"]))


def chain(rng: random.Random, common: Common) -> Op:
    """Ops in a row, a gradient or a pooling first."""
    first = _conv(rng, common, bias=rng.random() < 0.5, **rng.choice(EXACT))
    made = first.outputs[0].shape
    form = rng.choice(("dgrad", "conv conv pool", "pool conv", "dgrad dgrad"))
    if form == "dgrad":
        act, shape = rng.choice(EXACT), first.inputs[0].shape
        groups = rng.choice((1, dividing(rng, first.c)))
        after = Pointwise(
            *shape[:2], shape[2:], rng.random() < 0.5, **act, alpha=0.5, add=rng.choice(("", "k")), groups=groups, **common
        )
        return fuse(same_sizes(ConvDgrad, first), after)
    if form == "pool conv":
        pool = PoolForward(rng.choice(("max", "average")), **pooling(rng, random_shape(rng)), **common)
        return fuse(pool, _conv(rng, common, pool.outputs[0].shape))
    second = _conv(rng, common, made, **rng.choice(EXACT))
    if form == "dgrad dgrad":
        return fuse(same_sizes(ConvDgrad, second), same_sizes(ConvDgrad, first))
    return fuse(first, second, PoolForward("max", **pooling(rng, second.outputs[0].shape), **common))


def network(rng: random.Random, common: Common) -> Op:
    """Two layers and their backward pass, the first layer's activations computed again; in any order that works."""
    first = _conv(rng, common, (rng.randint(1, 2), rng.randint(1, 4), *random_shape(rng)[2:]), bias=True, act="relu")
    second = _conv(rng, common, first.outputs[0].shape)
    nodes = [
        Node(first, ("x", "w1", "b1"), ("a1",)),
        Node(same_sizes(ConvDgrad, second), ("dy", "w2"), ("da1",)),
        Node(ActivationBackward(first.n, first.k, first.out, "relu", **common), ("a1", "da1"), ("dz1",)),
        Node(_bias_gradient(rng, first, common), ("dz1",), ("db1",)),
        Node(same_sizes(ConvWgrad, second), ("a1", "dy"), ("dw2",)),
        Node(same_sizes(ConvWgrad, first), ("x", "dz1"), ("dw1",)),
    ]
    results = ["dx", "dw1", "dw2", "db1"]
    if rng.random() < 0.3:
        nodes.append(Node(second, ("a1", "w2"), ("y",)))
        results.append("y")
    last = Node(same_sizes(ConvDgrad, first), ("dz1", "w1"), ("dx",))
    return giving([*shuffled(rng, nodes), last], results)


def shuffled(rng: random.Random, nodes: list[Node]) -> list[Node]:
    """The nodes in a random order in which each comes after what it reads."""
    made = {t for node in nodes for t in node.makes}
    waiting, found, known = list(nodes), [], set()  # type: ignore[var-annotated]
    while waiting:
        node = rng.choice([n for n in waiting if all(t in known or t not in made for t in n.reads)])
        waiting.remove(node)
        found.append(node)
        known |= set(node.makes)
    return found


def batch_norm(rng: random.Random, common: Common) -> Op:
    """A training forward of batch normalisation, with the statistics kept."""
    n, k, *extent = random_shape(rng)
    per = rng.choice(("channel", "activation"))
    apply = Node(
        BnApply(n, k, tuple(extent), eps=0.1, per=per, act=rng.choice(("identity", "relu")), **common),
        ("x", "mean", "var", "scale", "b"), ("y",),
    )  # fmt: skip
    results = ["mean", "var", "y"] if rng.random() < 0.7 else ["y"]
    return Fused([Node(BnMoments(n, k, tuple(extent), per=per, **common), ("x",), ("mean", "var")), apply], results)


def softmax(rng: random.Random, common: Common) -> Op:
    """Softmax or its logarithm."""
    n, k, *extent = random_shape(rng)
    both = Node(SoftmaxApply(rng.choice(("plain", "log")), n, k, tuple(extent), **common), ("x", "sums"), ("y",))
    return Fused([Node(SoftmaxSum(n, k, tuple(extent), **common), ("x",), ("sums",)), both], rng.choice((["y"], ["sums", "y"])))


def loss_gradient(rng: random.Random, common: Common) -> Op:
    """The gradient of softmax and cross-entropy."""
    n, k, *extent = random_shape(rng)
    gradient = Node(CrossEntropyBackward(n, k, tuple(extent), **common), ("x", "labels", "sums", "dloss"), ("dx",))
    return Fused(
        [Node(SoftmaxSum(n, k, tuple(extent), **common), ("x",), ("sums",)), gradient], rng.choice((["dx"], ["sums", "dx"]))
    )


def branches(rng: random.Random, common: Common) -> Op:
    """Two convolutions and what they read, cut to their size, side by side; behind them what pads or crops, and a pooling."""
    first = _conv(rng, common, bias=rng.random() < 0.5, **rng.choice(EXACT))
    x, y = first.inputs[0].shape, first.outputs[0].shape
    second = replace(first, k=first.groups * rng.randint(1, 3), bias=False)
    lead = (0, *(rng.randint(min(0, o - e), max(0, o - e)) for e, o in zip(x[2:], y[2:], strict=True)))
    beside = Embed(x[0], x[1], x[2:], x[1], y[2:], lead, **common)
    joined = Concat(y[0], (first.k, second.k, x[1]), y[2:], **common)
    around = Embed(**place_sizes(rng, joined.outputs[0].shape), **common)
    nodes = [
        Node(first, ("x", "w", "b")[: len(first.inputs)], ("a",)),
        Node(second, ("x", "w2"), ("b2",)),
        Node(beside, ("x",), ("c",)),
        Node(joined, ("a", "b2", "c"), ("y",)),
        Node(around, ("y",), ("z",)),
    ]
    pool = PoolForward("max", **pooling(rng, around.outputs[0].shape), **common)
    return giving([*nodes, Node(pool, ("z",), ("p",))], rng.choice((["y"], ["z"], ["p"], ["a", "z"], ["y", "p"])))


def gate(rng: random.Random, common: Common) -> Op:
    """What a convolution makes, scaled channel by channel by what another tensor or its own sums say."""
    conv = _conv(rng, common, bias=rng.random() < 0.5, **rng.choice(EXACT))
    reads = tuple(o.name for o in conv.inputs)
    sizes = {"n": conv.n, "k": conv.k, "extent": conv.out}
    scaled = Multiply(**sizes, by="nk", bias=rng.random() < 0.3, **rng.choice(EXACT), **common)
    after = ("c",) * scaled.bias
    if rng.random() < 0.5:
        return giving([Node(conv, reads, ("y",)), Node(scaled, ("y", "s", *after), ("z",))], rng.choice((["z"], ["y", "z"])))
    sums = Node(Reduce("positions", **sizes, **common), ("y",), ("s",))
    nodes = [Node(conv, reads, ("y",)), sums, Node(scaled, ("y", "s", *after), ("z",))]
    return giving(nodes, rng.choice((["z"], ["s", "z"])))


def drawn(rng: random.Random, common: Common) -> Op:
    """A convolution whose results are dropped, in a row or beside what was there before."""
    conv = _conv(rng, common, bias=rng.random() < 0.5, **rng.choice(EXACT))
    dropped = Dropout(conv.n, conv.k, conv.out, rng.choice((0.5, 0.75)), rng.getrandbits(64), drawn=True, **common)
    if rng.random() < 0.5:
        return fuse(conv, dropped)
    nodes = [Node(conv, tuple(o.name for o in conv.inputs), ("y",)), Node(dropped, ("y", "draw"), ("z",))]
    return Fused(nodes, ["y", "z"])


def update(rng: random.Random, common: Common) -> Op:
    """A gradient of filters that is used where it is complete: it may never leave."""
    wgrad = same_sizes(ConvWgrad, _conv(rng, common | {"layout": "channels_first"}))
    k, c, *taps = wgrad.outputs[0].shape
    step = Sgd(k, c, tuple(taps), rng.random() < 0.5, wgrad.dtype)
    reads, makes = (("w", "dw", "v", "rates"), ("q", "u")) if step.momentum else (("w", "dw", "rates"), ("q",))
    return Fused([Node(wgrad, ("x", "dy"), ("dw",)), Node(step, reads, makes)], rng.choice((makes, makes, ("dw", *makes))))


def pictures(rng: random.Random, common: Common) -> Op:
    """Integers read and written around a convolution, or read by both halves of a batch normalisation."""
    if rng.random() < 0.4:
        n, k, *extent = random_shape(rng)
        sizes = {"n": n, "k": k, "extent": tuple(extent)}
        store = rng.choice(INTEGERS)
        inward = [Node(ConvertIn(**sizes, store=store, **common), ("x",), (f"x@{i}",)) for i in range(2)]
        halves = (BnMoments(**sizes, **common), BnApply(**sizes, eps=0.1, **common))
        sums = Node(halves[0], ("x@0",), ("mean", "var"))
        return Fused([inward[0], sums, inward[1], Node(halves[1], ("x@1", "mean", "var", "scale", "b"), ("y",))], ["y"])
    conv = _conv(rng, common, **rng.choice(EXACT))
    n, c, *extent = conv.inputs[0].shape
    each = rng.random() < 0.5
    numbers = {} if each else {"scale": rng.choice((1.0, 0.5, 2.0)), "offset": rng.choice((0.0, 1.0, -3.0))}
    first = ConvertIn(n, c, tuple(extent), rng.choice(INTEGERS), each, groups=rng.choice((1, conv.groups)), **numbers, **common)
    nodes = [Node(first, tuple(o.name for o in first.inputs), ("x@0",)), Node(conv, ("x@0", "w"), ("y",))]
    made = conv
    if rng.random() < 0.4:
        made = PoolForward(rng.choice(("max", "average")), **pooling(rng, conv.outputs[0].shape), **common)  # type: ignore[assignment]
        nodes.append(Node(made, ("y",), ("p",)))
    n, k, *extent = made.outputs[0].shape
    last = ConvertOut(n, k, tuple(extent), rng.choice(INTEGERS), groups=rng.choice((1, conv.groups)), **common)
    nodes.append(Node(last, nodes[-1].makes, ("z",)))
    return giving(nodes, rng.choice((["y"], ["z"], ["z"], ["y", "z"])))


FUSED: dict[str, Callable[[random.Random, Common], Op]] = {
    "fused conv, pool": conv_pool,
    "fused backward": backward,
    "fused activation backward": activation_backward,
    "fused pool backward": pool_backward,
    "fused chain": chain,
    "fused network": network,
    "fused batch norm": batch_norm,
    "fused softmax": softmax,
    "fused loss gradient": loss_gradient,
    "fused branches": branches,
    "fused gate": gate,
    "fused dropout": drawn,
    "fused update": update,
    "fused pictures": pictures,
}

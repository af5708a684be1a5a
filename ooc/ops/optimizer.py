"""Steps of optimizers: parameters and what is kept of past gradients, element by element, in one pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ooc.cache import cached_property
from ooc.ir.op import Block, Operand, compute_dtype, crop, numpy_dtype
from ooc.ir.region import Sizes, Tile, Whole
from ooc.ops.registry import register
from ooc.ops.spatial import Elementwise

RATES = 8  # values of the operand `rates`, those that an optimizer has first
SHARE = 7  # the one that all optimizers have


class Update(Elementwise):
    """Base: tensors of one shape (n=1, k=1 and one extent for parameters in a row) and `rates`, f64, an input as it changes
    from step to step. Computed in the compute dtype, to which rates are rounded. Outputs may be the inputs that they follow.

    The last of the rates is what gradients g are multiplied by; 0: they are taken as they are; below 0: nothing moves.

    master: the tensors are of the computed type, and one more output, h, is q rounded to `dtype`: a parameter of half the bytes.
    Its gradient is of `dtype`, too, or, `summed`, of the computed type.
    """

    layout = "channels_first"
    groups = 1
    master: bool
    summed: bool
    past: ClassVar[tuple[tuple[str, str], ...]]  # inputs that outlast a step, and the outputs that follow them

    @property
    def rates(self) -> Operand:
        return Operand("rates", (RATES,), "f64", (Whole(RATES),))

    @property
    def computed(self) -> str:
        """The dtype that is computed in."""
        return compute_dtype(self.dtype)

    @property
    def wide(self) -> Any:
        """The NumPy type that is computed in."""
        return numpy_dtype(self.computed).type

    @property
    def follows(self) -> dict[str, str]:
        """The input that each output follows."""
        there = {o.name for o in self.inputs}
        return {after: read for read, after in self.past if read in there} | ({"h": "p"} if self.master else {})

    def kept(self, names: str) -> tuple[Operand, ...]:
        """Tensors that outlast a step."""
        return tuple(self.tensor(name, self.computed if self.master else "") for name in names)

    def gradient(self) -> Operand:
        """The gradient of the parameters."""
        return self.tensor("g", self.computed if self.summed else "")

    def half(self) -> tuple[Operand, ...]:
        """The parameters as they are rounded, if they are."""
        return (self.tensor("h"),) if self.master else ()

    def effort(self, sizes: Sizes, kernel: str = "") -> Any:
        """As of other passes over memory: one per value that is read."""
        return (len(self.inputs) - 1) * self.outputs[0].count(sizes)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        parts = {o.name: crop(blocks[o.name], o.region(tile)).array for o in self.inputs[:-1]}
        rates = blocks["rates"].array
        if rates[SHARE] < 0:
            results = {name: parts[read].copy() for name, read in self.follows.items()}  # which may lie over another's
        else:
            parts = {name: array.astype(self.wide, copy=False) for name, array in parts.items()}
            with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
                if rates[SHARE]:
                    parts["g"] = self.wide(rates[SHARE]) * parts["g"]
                results = self.moved(parts, rates)
                if self.master:
                    results["h"] = results["q"].astype(numpy_dtype(self.dtype))
        for name, values in results.items():
            blocks[name].array[...] = values

    def moved(self, parts: Mapping[str, Any], rates: Any) -> dict[str, Any]:
        """The outputs of a step, but the rounded ones."""
        raise NotImplementedError


@register("sgd")
@dataclass(frozen=True)
class Sgd(Update):
    """q = p - lr * d: parameters p after a step of gradient descent; d = g + weight_decay * p for their gradient g.

    momentum: with its velocity, v before and u = momentum * v + d after the step, q = p - lr * u, or, with Nesterov's, q = p -
    lr * (d + momentum * u). rates: lr, momentum, weight_decay, whether Nesterov's (0 or 1). Source: torch.optim.SGD with
    dampening=0. Descriptor: `sgd n=1 k=1 w= [momentum=1] [master=1 [summed=1]]`.
    """

    n: int
    k: int
    extent: tuple[int, ...]
    momentum: bool = False
    dtype: str = "f32"
    master: bool = False
    summed: bool = False

    kind = "sgd"
    past = (("p", "q"), ("v", "u"))

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (*self.kept("p"), self.gradient(), *self.kept("v" if self.momentum else ""), self.rates)

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (*self.kept("qu" if self.momentum else "q"), *self.half())

    def flops(self, sizes: Sizes) -> Any:
        return (4 + 4 * self.momentum) * self.outputs[0].count(sizes)

    def moved(self, parts: Mapping[str, Any], rates: Any) -> dict[str, Any]:
        lr, momentum, decay, nesterov = map(self.wide, rates[:4])
        d = parts["g"] + decay * parts["p"]
        if not self.momentum:
            return {"q": parts["p"] - lr * d}
        u = momentum * parts["v"] + d
        return {"q": parts["p"] - lr * (d + momentum * u if nesterov else u), "u": u}


@register("adam")
@dataclass(frozen=True)
class AdamUpdate(Update):
    """q = p - lr/(1 - beta1**t) * r / (sqrt(s)/sqrt(1 - beta2**t) + eps): parameters p after step t of Adam, t from 1.

    r = beta1 * m + (1 - beta1) * d and s = beta2 * v + (1 - beta2) * d**2 are the new moments, d = g + weight_decay * p. rates:
    lr, beta1, beta2, eps, weight_decay, t, whether the decay is apart (0 or 1): then d = g, and p * (1 - lr * weight_decay) takes
    the step. What follows from them alone is computed in f64. Sources: Kingma, Ba, "Adam: a method for stochastic optimization",
    2015; Loshchilov, Hutter, "Decoupled weight decay regularization", 2019; torch.optim.Adam, torch.optim.AdamW. Descriptor:
    `adam n=1 k=1 w= [master=1 [summed=1]]`.
    """

    n: int
    k: int
    extent: tuple[int, ...]
    dtype: str = "f32"
    master: bool = False
    summed: bool = False

    kind = "adam"
    past = (("p", "q"), ("m", "r"), ("v", "s"))

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (*self.kept("p"), self.gradient(), *self.kept("mv"), self.rates)

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (*self.kept("qrs"), *self.half())

    def flops(self, sizes: Sizes) -> Any:
        return 14 * self.outputs[0].count(sizes)

    def moved(self, parts: Mapping[str, Any], rates: Any) -> dict[str, Any]:
        lr, beta1, beta2, eps, decay, t, apart = rates[:7]
        C, g = self.wide, parts["g"]
        step, share = lr / (1 - beta1**t), np.sqrt(1 - beta2**t)
        p = C(1 - lr * decay) * parts["p"] if apart else parts["p"]
        d = g if apart else g + C(decay) * p
        r = C(beta1) * parts["m"] + C(1 - beta1) * d
        s = C(beta2) * parts["v"] + C(1 - beta2) * (d * d)
        return {"q": p - C(step) * (r / (np.sqrt(s) / C(share) + C(eps))), "r": r, "s": s}


@register("adam.rmsprop")
@dataclass(frozen=True)
class RmsPropUpdate(Update):
    """q = p - lr * d / (sqrt(s) + eps): parameters p after a step of RMSProp; d = g + weight_decay * p for their gradient g.

    s = alpha * v + (1 - alpha) * d**2 is the mean square after the step. centered: with the mean gradient, c = alpha * a + (1 -
    alpha) * d, its square is taken from s under the root, which is 0 at least. momentum: with a velocity, u = momentum * b + d /
    (...) after the step, q = p - lr * u. rates: lr, alpha, eps, weight_decay, momentum. Sources: Tieleman, Hinton, "Lecture 6.5:
    RMSProp", 2012; torch.optim.RMSprop. Descriptor: `adam.rmsprop n=1 k=1 w= [momentum=1] [centered=1] [master=1 [summed=1]]`.
    """

    n: int
    k: int
    extent: tuple[int, ...]
    momentum: bool = False
    centered: bool = False
    dtype: str = "f32"
    master: bool = False
    summed: bool = False

    kind = "adam.rmsprop"
    past = (("p", "q"), ("v", "s"), ("b", "u"), ("a", "c"))

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (*self.kept("p"), self.gradient(), *self.kept("v" + "b" * self.momentum + "a" * self.centered), self.rates)

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (*self.kept("qs" + "u" * self.momentum + "c" * self.centered), *self.half())

    def flops(self, sizes: Sizes) -> Any:
        return (11 + 2 * self.momentum + 5 * self.centered) * self.outputs[0].count(sizes)

    def moved(self, parts: Mapping[str, Any], rates: Any) -> dict[str, Any]:
        lr, alpha, eps, decay, momentum = rates[:5]
        C = self.wide
        d = parts["g"] + C(decay) * parts["p"]
        results = {"s": C(alpha) * parts["v"] + C(1 - alpha) * (d * d)}
        under = results["s"]
        if self.centered:
            results["c"] = C(alpha) * parts["a"] + C(1 - alpha) * d
            under = under - results["c"] * results["c"]
            under = np.where(under < 0, C(0), under)
        step = d / (np.sqrt(under) + C(eps))
        if self.momentum:
            step = results["u"] = C(momentum) * parts["b"] + step
        return {"q": parts["p"] - C(lr) * step, **results}

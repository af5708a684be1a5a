"""Steps of optimizers, naively, on whole tensors in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Arrays = Mapping[str, Any]
Results = dict[str, Any]
Rule = Callable[[Any, Arrays, Any], Results]


def update(rule: Rule, follows: Mapping[str, str]) -> Callable[[Any, Arrays], Results]:
    """What moves by a rule, from the gradient times the last of the rates; or stays, where that is below 0."""

    def moved(op: Any, known: Arrays) -> Results:
        rates, masters = known["rates"], {"h": "p"} if op.master else {}
        if rates[7] < 0:
            return {name: known[read] for name, read in {**follows, **masters}.items() if read in known}
        g = known["g"] * (rates[7] or 1)
        results = rule(op, {**known, "g": g}, rates)
        return results | ({"h": results["q"]} if op.master else {})

    return moved


def _sgd(op: Any, known: Arrays, rates: Any) -> Results:
    lr, momentum, decay, nesterov = rates[:4]
    d = known["g"] + decay * known["p"]
    if not op.momentum:
        return {"q": known["p"] - lr * d}
    u = momentum * known["v"] + d
    return {"q": known["p"] - lr * (d + momentum * u if nesterov else u), "u": u}


def _adam(op: Any, known: Arrays, rates: Any) -> Results:
    """As in the papers: both moments are freed of their bias, then their quotient is the step; decay is in the gradient, or a
    step of its own."""
    lr, beta1, beta2, eps, decay, t, apart = rates[:7]
    p = known["p"] - (lr * decay * known["p"] if apart else 0)
    d = known["g"] + (0 if apart else decay * known["p"])
    r, s = beta1 * known["m"] + (1 - beta1) * d, beta2 * known["v"] + (1 - beta2) * d**2
    return {"q": p - lr * (r / (1 - beta1**t)) / (np.sqrt(s / (1 - beta2**t)) + eps), "r": r, "s": s}


def _rmsprop(op: Any, known: Arrays, rates: Any) -> Results:
    lr, alpha, eps, decay, momentum = rates[:5]
    d = known["g"] + decay * known["p"]
    results = {"s": alpha * known["v"] + (1 - alpha) * d**2}
    if op.centered:
        results["c"] = alpha * known["a"] + (1 - alpha) * d
    root = np.sqrt(np.maximum(results["s"] - results.get("c", np.zeros(1)) ** 2, 0))
    step = d / (root + eps)
    if op.momentum:
        step = results["u"] = momentum * known["b"] + step
    return {"q": known["p"] - lr * step, **results}


sgd = update(_sgd, {"q": "p", "u": "v"})
adam = update(_adam, {"q": "p", "r": "m", "s": "v"})
rmsprop = update(_rmsprop, {"q": "p", "s": "v", "u": "b", "c": "a"})


def accrue(op: Any, known: Arrays) -> Results:
    keep, take = known["shares"]
    zeros = np.zeros_like(known["x"])
    return {"r": (keep * known["a"] if keep else zeros) + (take * known["x"] if take else zeros)}


def squares(op: Any, known: Arrays) -> Results:
    y = known["before"].copy() if op.after else np.zeros(256)
    for i, x in enumerate(known["x"].reshape(-1)):
        y[i % 256] += x * x
    return {"y": y}


def pace(op: Any, known: Arrays) -> Results:
    due, share, most, decay, fixed = known["controls"][:5]
    scale, good, moves, rest = known["state"]
    factor = share / (fixed if fixed else scale)
    norm = math.sqrt(sum(known["sums"])) * factor if op.summed else 0.0
    moved = due and math.isfinite(norm)
    if due and not fixed:
        if not math.isfinite(norm):
            scale, good = max(scale / 2, 2.0**-24), 0
        elif good + 1 == 2000:
            scale, good = scale * 2, 0
        else:
            good += 1
    rates = known["rates"].copy()
    rates[7] = factor * min(1, most / (norm + 1e-6)) if moved else -1
    if op.count >= 0:
        rates[op.count] = moves + 1
    shares = (decay, 1 - decay) if moved else (1, 0)
    return {"pace": rates, "shares": np.array(shares), "left": np.array([scale, good, moves + bool(moved), rest])}

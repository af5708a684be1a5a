"""What moves the parameters at the end of a step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ooc.errors import ArgumentError
from ooc.files.records import plain, record
from ooc.networks.calls import RATES
from ooc.networks.tensors import Role
from ooc.networks.writer import Writer
from ooc.ops import AdamUpdate as AdamStep
from ooc.ops import Sgd

Rate = float | Callable[[int], float]


class Optimizer(Protocol):
    """What a plan needs of an optimizer."""

    def write(self, writer: Writer, parameter: str) -> None:
        """Write the call that moves a parameter."""

    def fields(self) -> dict[str, Any]:
        """What makes it again, for JSON."""

    def rates(self, step: int) -> Any:
        """The eight numbers that its operations are given in a step, counted from 0."""


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent: with g = gradient + weight_decay * p and v = momentum * v + g, p becomes p - lr * v (nesterov:
    p - lr * (g + momentum * v)).

    Parameters:
        lr: the learning rate, or a function of the step, counted from 0.
        momentum: from 0 (default: none) to below 1.
        weight_decay: default 0.
        nesterov: default False.

    Raises ShapeError for other numbers. Source: Sutskever, Martens, Dahl, Hinton, "On the importance of initialization and
    momentum in deep learning", ICML 2013; torch.optim.SGD.
    """

    lr: Rate
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        numbers = [self.momentum, self.weight_decay, *([] if callable(self.lr) else [self.lr])]
        if any(isinstance(v, bool) or not isinstance(v, (int, float)) or not math.isfinite(v) or v < 0 for v in numbers):
            raise ArgumentError(f"SGD: expected numbers that are not negative, got {self}")
        if self.momentum >= 1 or (self.nesterov and not self.momentum):
            raise ArgumentError(f"SGD: expected momentum below 1, and above 0 with nesterov; got {self.momentum}")

    def write(self, writer: Writer, parameter: str) -> None:
        """Write the call that moves a parameter with a writer of calls."""
        p = writer.tensors[parameter]
        count = math.prod(p.shape)
        rates = writer.given(RATES, (8,), "f64", Role.INPUT)
        velocity = (writer.given(f"{parameter}/v", p.shape, p.dtype, Role.STATE),) if self.momentum else ()
        op = Sgd(1, 1, (count,), momentum=bool(self.momentum), dtype=p.dtype)
        writer.update(op, (parameter, writer.sink(parameter), *velocity, rates), (parameter, *velocity))

    def fields(self) -> dict[str, Any]:
        """What makes it again, for JSON. Raises ArgumentError where the rate is a function."""
        if callable(self.lr):
            raise ArgumentError("SGD: a rate that is a function cannot be written as JSON")
        return {"kind": "sgd", **plain(self)}

    def rates(self, step: int) -> Any:
        """The numbers of a step."""
        lr = float(self.lr(step)) if callable(self.lr) else self.lr
        return np.array([lr, self.momentum, self.weight_decay, self.nesterov, 0, 0, 0, 0], np.float64)


@dataclass(frozen=True)
class Adam:
    """Adam: with g = gradient + weight_decay * p, m = beta1 * m + (1 - beta1) * g and v = beta2 * v + (1 - beta2) * g * g, p
    becomes p - lr / (1 - beta1**t) * m / (sqrt(v / (1 - beta2**t)) + eps) in step t, counted from 1.

    Parameters:
        lr: the learning rate, or a function of the step, counted from 0; default 0.001.
        betas: (beta1, beta2), each from 0 to below 1; default (0.9, 0.999).
        eps: default 1e-8.
        weight_decay: default 0.

    Raises ShapeError for other numbers. Source: Kingma, Ba, "Adam: a method for stochastic optimization", ICLR 2015;
    torch.optim.Adam.
    """

    lr: Rate = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.betas, (tuple, list)) or len(self.betas) != 2:
            raise ArgumentError(f"Adam: expected two betas, got {self.betas!r}")
        object.__setattr__(self, "betas", tuple(self.betas))
        numbers = [*self.betas, self.eps, self.weight_decay, *([] if callable(self.lr) else [self.lr])]
        if any(isinstance(v, bool) or not isinstance(v, (int, float)) or not math.isfinite(v) or v < 0 for v in numbers):
            raise ArgumentError(f"Adam: expected numbers that are not negative, got {self}")
        if max(self.betas) >= 1:
            raise ArgumentError(f"Adam: expected betas below 1, got {self.betas}")

    def write(self, writer: Writer, parameter: str) -> None:
        """Write the call that moves a parameter with a writer of calls."""
        p = writer.tensors[parameter]
        count = math.prod(p.shape)
        rates = writer.given(RATES, (8,), "f64", Role.INPUT)
        moments = tuple(writer.given(f"{parameter}/{m}", p.shape, p.dtype, Role.STATE) for m in "mv")
        op = AdamStep(1, 1, (count,), dtype=p.dtype)
        writer.update(op, (parameter, writer.sink(parameter), *moments, rates), (parameter, *moments))

    def fields(self) -> dict[str, Any]:
        """What makes it again, for JSON. Raises ArgumentError where the rate is a function."""
        if callable(self.lr):
            raise ArgumentError("Adam: a rate that is a function cannot be written as JSON")
        return {"kind": "adam", **plain(self)}

    def rates(self, step: int) -> Any:
        """The numbers of a step."""
        lr = float(self.lr(step)) if callable(self.lr) else self.lr
        return np.array([lr, *self.betas, self.eps, self.weight_decay, step + 1, 0, 0], np.float64)


OPTIMIZERS: dict[str, type[SGD] | type[Adam]] = {"sgd": SGD, "adam": Adam}


def optimizer_of(fields: dict[str, Any] | None) -> Optimizer | None:
    """The optimizer of its `fields`. Raises ShapeError, KeyError, ValueError."""
    if not fields:
        return None
    raw = dict(fields)
    return record(OPTIMIZERS[raw.pop("kind")], raw)


def kind_of(optimizer: Any) -> str:
    """The word of an optimizer's kind; "" for none."""
    return next((name for name, kind in OPTIMIZERS.items() if type(optimizer) is kind), "")

"""What moves the parameters at the end of a step."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Self

import numpy as np

from ooc.api.arguments import as_int
from ooc.errors import ArgumentError, shown
from ooc.files.records import plain, record
from ooc.networks.calls import CONTROLS, GATHER, RATES, Wired
from ooc.networks.moving import write_moves
from ooc.networks.tensors import Role
from ooc.networks.writer import Writer
from ooc.ops import AdamUpdate, RmsPropUpdate, Sgd
from ooc.ops.optimizer import RATES as COUNT
from ooc.ops.optimizer import Update

Rate = float | Callable[[int], float]
DYNAMIC, FIRST_SCALE = "dynamic", 2.0**16
OPTIONS = """clip_norm: the largest norm of all gradients as one vector: they are scaled to it where it is larger, as by
            torch.nn.utils.clip_grad_norm_; where it is not finite, nothing moves. Default None: any.
        frozen: names of parameters that do not move, or patterns such as "conv*.w". Their gradients are not computed where
            nothing else needs them; running statistics move all the same. Default (): none.
        accumulate: in how many steps parameters move once, by the mean of the gradients of these steps. Default 1.
        ema: how much of an exponential moving average of the parameters stays in a move, between 0 and 1. It begins as they do,
            and `session.averages()` returns it. Default None: there is none.
        loss_scale: what gradients are multiplied by while they are computed, lest they vanish: a number, or "dynamic": 2^16,
            halved where a gradient is not finite, doubled after 2000 moves. With one, nothing moves by gradients that are not
            finite. Default None: "dynamic" where the graph has tensors of f16, else 1."""


@dataclass(frozen=True, repr=False)
class Optimizer(ABC):
    """What all optimizers share: which parameters move, and by what of their gradients.

    Parameters of f16 and bf16 are rounded from ones of f32, which move, and last from step to step, as do their moments.

    Its parameters are told in the docstrings of all of them. Raises ArgumentError for options that make no sense.
    """

    lr: Rate
    clip_norm: float | None = field(default=None, kw_only=True)
    frozen: str | tuple[str, ...] = field(default=(), kw_only=True)
    accumulate: int = field(default=1, kw_only=True)
    ema: float | None = field(default=None, kw_only=True)
    loss_scale: float | str | None = field(default=None, kw_only=True)

    kind: ClassVar[str]
    counted: ClassVar[int] = -1  # which of the rates is the number of the move

    def __init_subclass__(cls) -> None:
        if cls.__doc__:
            cls.__doc__ = cls.__doc__.replace("$options", OPTIONS)

    def __post_init__(self) -> None:
        name = type(self).__name__
        numbers = [v for v in self._numbers() if not callable(v)]
        if any(isinstance(v, bool) or not isinstance(v, (int, float)) or not math.isfinite(v) or v < 0 for v in numbers):
            raise ArgumentError(f"{name}: expected numbers that are not negative, got {self}")
        object.__setattr__(self, "frozen", (self.frozen,) if isinstance(self.frozen, str) else tuple(self.frozen))
        if not all(isinstance(pattern, str) for pattern in self.frozen):
            raise ArgumentError(f"{name}: frozen: expected names of parameters, got {shown(self.frozen)}")
        if as_int("accumulate", self.accumulate) < 1:
            raise ArgumentError(f"{name}: accumulate={self.accumulate}: expected at least 1")
        if not (self.clip_norm is None or _above_0(self.clip_norm)):
            raise ArgumentError(f"{name}: clip_norm={shown(self.clip_norm)}: expected a number above 0")
        if not (self.ema is None or (_above_0(self.ema) and self.ema < 1)):
            raise ArgumentError(f"{name}: ema={shown(self.ema)}: expected a number between 0 and 1")
        if not (self.loss_scale in (None, DYNAMIC) or _above_0(self.loss_scale)):
            raise ArgumentError(f'{name}: loss_scale={shown(self.loss_scale)}: expected a number above 0, or "dynamic"')

    def _numbers(self) -> Iterator[Any]:
        """The numbers of its own, none of which is negative."""
        for f in fields(self):
            if not isinstance(f.default, bool) and f.name not in SHARED:
                value = getattr(self, f.name)
                yield from value if isinstance(value, tuple) else (value,)

    def _below_1(self, what: str, *values: float) -> None:
        if max(values) >= 1:
            raise ArgumentError(f"{type(self).__name__}: expected {what} below 1, got {shown(getattr(self, what))}")

    def __repr__(self) -> str:
        """How it is made; options that it does not have are not told."""
        told = (f"{f.name}={getattr(self, f.name)!r}" for f in self._told())
        return f"{type(self).__name__}({', '.join(told)})"

    def _told(self) -> Iterator[Any]:
        """Its fields, then the options that it has."""
        yield from (f for f in fields(self) if f.name not in SHARED)
        yield from (f for f in fields(self) if f.name in SHARED and getattr(self, f.name) != f.default)

    def fields(self) -> dict[str, Any]:
        """What makes it again, for JSON. Raises ArgumentError where the rate is a function."""
        if callable(self.lr):
            raise ArgumentError(f"{type(self).__name__}: a rate that is a function cannot be written as JSON")
        return {"kind": self.kind, **plain(self, SHARED)}

    # ---- what a network takes of it

    def of(self, graph: Wired) -> Self:
        """With the loss scale that a graph needs. Raises ArgumentError for frozen parameters that it does not have."""
        names = [name for name, w in graph.parameters.items() if w.role is Role.PARAMETER]
        for pattern in self.frozen:
            if not any(_named(name, pattern) for name in names):
                raise ArgumentError(f"frozen: no parameter {shown(pattern)}; there are {', '.join(names[:8])}, ...")
        scaled = self.loss_scale is None and "f16" in graph.dtypes.values()
        return replace(self, loss_scale=DYNAMIC) if scaled else self

    def moves(self, parameter: str) -> bool:
        """Whether a parameter is not frozen."""
        return not any(_named(parameter, pattern) for pattern in self.frozen)

    @property
    def scales(self) -> bool:
        """Whether gradients are multiplied by a loss scale while they are computed."""
        return self.loss_scale not in (None, 1)

    @property
    def weighs(self) -> bool:
        """Whether it asks for the norm of all gradients."""
        return self.clip_norm is not None or self.scales

    @property
    def paced(self) -> bool:
        """Whether there is more to a step than its gradients and its number."""
        return self.weighs or self.accumulate > 1 or self.ema is not None

    @property
    def first_scale(self) -> float:
        """The loss scale of the first step."""
        return FIRST_SCALE if self.loss_scale == DYNAMIC else float(self.loss_scale or 1)

    def scale(self, state: Any) -> float:
        """The loss scale of a step, by what is there after the steps before."""
        return float(state[0]) if self.loss_scale == DYNAMIC else self.first_scale

    def write(self, writer: Writer, parameters: Sequence[str]) -> None:
        """Write the calls that move parameters with a writer of calls."""
        write_moves(writer, self, parameters)

    def inputs(self, step: int) -> dict[str, Any]:
        """What its calls are given in a step, counted from 0."""
        every = self.accumulate
        fixed = 0 if self.loss_scale == DYNAMIC else self.first_scale
        controls = [(step + 1) % every == 0, 1 / every, self.clip_norm or math.inf, self.ema or 1, fixed, 0, 0, 0]
        return {
            RATES: self.rates(step // every), CONTROLS: np.array(controls, np.float64),
            GATHER: np.array([step % every > 0, 1], np.float64),
        }  # fmt: skip

    def rates(self, step: int) -> Any:
        """The eight numbers that its updates are given in a move, counted from 0."""
        lr = float(self.lr(step)) if callable(self.lr) else self.lr
        numbers = [lr, *self._rates(step)]
        return np.array([*numbers, *[0] * (COUNT - len(numbers))], np.float64)

    @abstractmethod
    def _rates(self, step: int) -> tuple[float, ...]:
        """The numbers behind the learning rate."""

    @abstractmethod
    def update(self, **sizes: Any) -> Update:
        """The operation that moves a parameter of these sizes."""


SHARED = tuple(f.name for f in fields(Optimizer) if f.name != "lr")


@dataclass(frozen=True, repr=False)
class SGD(Optimizer):
    """Stochastic gradient descent: with g = gradient + weight_decay * p and v = momentum * v + g, p becomes p - lr * v (nesterov:
    p - lr * (g + momentum * v)).

    Parameters:
        lr: the learning rate, or a function of the move, counted from 0.
        momentum: from 0 (default: none) to below 1.
        weight_decay: default 0.
        nesterov: default False.
        $options

    Raises ArgumentError for other numbers. Source: Sutskever, Martens, Dahl, Hinton, "On the importance of initialization and
    momentum in deep learning", ICML 2013; torch.optim.SGD.
    """

    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    kind = "sgd"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum >= 1 or (self.nesterov and not self.momentum):
            raise ArgumentError(f"SGD: expected momentum below 1, and above 0 with nesterov; got {self.momentum}")

    def _rates(self, step: int) -> tuple[float, ...]:
        return self.momentum, self.weight_decay, self.nesterov

    def update(self, **sizes: Any) -> Update:
        """The operation that moves a parameter of these sizes."""
        return Sgd(**sizes, momentum=bool(self.momentum))


@dataclass(frozen=True, repr=False)
class Adam(Optimizer):
    """Adam: with g = gradient + weight_decay * p, m = beta1 * m + (1 - beta1) * g and v = beta2 * v + (1 - beta2) * g * g, p
    becomes p - lr / (1 - beta1**t) * m / (sqrt(v / (1 - beta2**t)) + eps) in move t, counted from 1.

    Parameters:
        lr: the learning rate, or a function of the move, counted from 0; default 0.001.
        betas: (beta1, beta2), each from 0 to below 1; default (0.9, 0.999).
        eps: default 1e-8.
        weight_decay: default 0.
        $options

    Raises ArgumentError for other numbers. Source: Kingma, Ba, "Adam: a method for stochastic optimization", ICLR 2015;
    torch.optim.Adam.
    """

    lr: Rate = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    kind = "adam"
    counted = 5
    apart: ClassVar[bool] = False  # whether weights decay by a step of their own

    def __post_init__(self) -> None:
        if not isinstance(self.betas, (tuple, list)) or len(self.betas) != 2:
            raise ArgumentError(f"{type(self).__name__}: expected two betas, got {self.betas!r}")
        object.__setattr__(self, "betas", tuple(self.betas))
        super().__post_init__()
        self._below_1("betas", *self.betas)

    def _rates(self, step: int) -> tuple[float, ...]:
        return *self.betas, self.eps, self.weight_decay, step + 1, self.apart

    def update(self, **sizes: Any) -> Update:
        """The operation that moves a parameter of these sizes."""
        return AdamUpdate(**sizes)


@dataclass(frozen=True, repr=False)
class AdamW(Adam):
    """Adam whose weights decay by a step of their own: p becomes p * (1 - lr * weight_decay), then moves as by `ooc.Adam` without
    weight_decay.

    Parameters:
        lr: the learning rate, or a function of the move, counted from 0; default 0.001.
        betas: (beta1, beta2), each from 0 to below 1; default (0.9, 0.999).
        eps: default 1e-8.
        weight_decay: default 0.01.
        $options

    Raises ArgumentError for other numbers. Source: Loshchilov, Hutter, "Decoupled weight decay regularization", ICLR 2019;
    torch.optim.AdamW.
    """

    weight_decay: float = 0.01

    kind = "adamw"
    apart = True


@dataclass(frozen=True, repr=False)
class RMSprop(Optimizer):
    """RMSProp: with g = gradient + weight_decay * p, v = alpha * v + (1 - alpha) * g * g and s = g / (sqrt(v) + eps), p becomes
    p - lr * s; centered: the root is that of v - a * a, with a = alpha * a + (1 - alpha) * g; momentum: p becomes p - lr * b,
    with b = momentum * b + s.

    Parameters:
        lr: the learning rate, or a function of the move, counted from 0; default 0.01.
        alpha: from 0 to below 1; default 0.99.
        eps: default 1e-8.
        weight_decay: default 0.
        momentum: from 0 (default: none) to below 1.
        centered: default False.
        $options

    Raises ArgumentError for other numbers. Source: Tieleman, Hinton, "Lecture 6.5: RMSProp", COURSERA, 2012;
    torch.optim.RMSprop.
    """

    lr: Rate = 1e-2
    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    centered: bool = False

    kind = "rmsprop"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._below_1("alpha", self.alpha)
        self._below_1("momentum", self.momentum)

    def _rates(self, step: int) -> tuple[float, ...]:
        return self.alpha, self.eps, self.weight_decay, self.momentum

    def update(self, **sizes: Any) -> Update:
        """The operation that moves a parameter of these sizes."""
        return RmsPropUpdate(**sizes, momentum=bool(self.momentum), centered=bool(self.centered))


OPTIMIZERS: dict[str, type[Optimizer]] = {kind.kind: kind for kind in (SGD, Adam, AdamW, RMSprop)}


def optimizer_of(raw: dict[str, Any] | None) -> Optimizer | None:
    """The optimizer of its `fields`. Raises ShapeError, KeyError, ValueError."""
    if not raw:
        return None
    known = dict(raw)
    return record(OPTIMIZERS[known.pop("kind")], known)


def kind_of(optimizer: Any) -> str:
    """The word of an optimizer's kind; "" for none."""
    return next((name for name, kind in OPTIMIZERS.items() if type(optimizer) is kind), "")


def _above_0(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0


def _named(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)

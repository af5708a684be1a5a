"""What a network computes with: tensors of a whole batch, by name, and what becomes of each."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any

import numpy as np
from numpy.random import Generator, Philox

from ooc.cache import cached_property
from ooc.ir.op import ITEM_BYTES, numpy_dtype


class Role(StrEnum):
    """What a tensor is in a network.

    INPUT: given anew in each step. ACTIVATION: made in the forward pass. GRADIENT: made in the backward pass. PARAMETER and
    its GRADIENT_SUM, STATE of an optimizer, STATISTIC: there is one of each from step to step. LOSS: the number that a step
    returns. OUTPUT: what an inference returns.
    """

    INPUT = "input"
    ACTIVATION = "activation"
    GRADIENT = "gradient"
    PARAMETER = "parameter"
    GRADIENT_SUM = "gradient sum"
    STATE = "state"
    STATISTIC = "statistic"
    LOSS = "loss"
    OUTPUT = "output"

    @property
    def lasting(self) -> bool:
        """Whether what it holds is still wanted when a step is done."""
        return self in (Role.PARAMETER, Role.GRADIENT_SUM, Role.STATE, Role.STATISTIC, Role.LOSS)


class Mode(Enum):
    """What is computed of a network.

    INFER: the outputs, as in inference. STEP: loss, gradients, updates. FORWARD: the outputs as a training step has them:
    statistics of the batch, which move the running ones, and dropout. BACKWARD: gradients from given ones of the outputs, of a
    forward pass as in training that is computed again. BOTH: what FORWARD has, and when the caller has seen it the gradients of
    that pass.

    given: how a user says it, `train` of `Graph.plan`.
    """

    INFER = False
    STEP = True
    FORWARD = "forward"
    BACKWARD = "backward"
    BOTH = "both"

    @property
    def given(self) -> bool | str:
        """How a user says it."""
        said: bool | str = self.value
        return said

    @property
    def trains(self) -> bool:
        """Whether statistics are of the batch, and values are dropped."""
        return self is not Mode.INFER

    @property
    def has_gradients(self) -> bool:
        """Whether there is a backward pass."""
        return self in (Mode.STEP, Mode.BACKWARD, Mode.BOTH)

    @property
    def pulls(self) -> bool:
        """Whether gradients of the outputs are given, from which others are computed."""
        return self in (Mode.BACKWARD, Mode.BOTH)

    @property
    def returns(self) -> bool:
        """Whether the outputs of the graph are computed for the caller."""
        return self in (Mode.INFER, Mode.FORWARD, Mode.BOTH)

    @property
    def words(self) -> str:
        """What it is, for people."""
        return {
            Mode.INFER: "inference",
            Mode.STEP: "a training step",
            Mode.FORWARD: "a forward pass as in training",
            Mode.BACKWARD: "gradients from given ones",
            Mode.BOTH: "a forward pass as in training, then gradients from given ones",
        }[self]


@dataclass(frozen=True)
class Slot:
    """A tensor of a network.

    Fields:
        name: of the tensor.
        shape: with the batch as the first axis where it has one.
        dtype: of its items.
        role: what it is.
        per_sample: whether its first axis is the batch, so that a part of the batch is a part of its bytes.
        begins: of a state, what it is before the first step: a parameter that it is a copy of, or its values; default: zeros.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: Role
    per_sample: bool
    begins: str | tuple[float, ...] = (0.0,)

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all of it."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class Weights:
    """A tensor that a layer has of its own.

    Fields:
        shape: of it.
        dtype: of its items.
        role: PARAMETER or STATISTIC.
        value: of every item before the first step; None: drawn from a normal distribution.
        fan_in: values that enter one result: the variance of what is drawn is 2 / fan_in.

    Source of the variance: He, Zhang, Ren, Sun, "Delving deep into rectifiers", ICCV 2015.
    """

    shape: tuple[int, ...]
    dtype: str
    role: Role = Role.PARAMETER
    value: float | None = None
    fan_in: int = 1

    def initial(self, name: str, seed: int) -> Any:
        """Its values before the first step, which depend on its name and a seed alone."""
        dtype = numpy_dtype(self.dtype)
        if self.value is not None:
            return np.full(self.shape, self.value, dtype)
        draw = Generator(Philox(key=[seed, zlib.crc32(name.encode())]))
        return (draw.standard_normal(self.shape, np.float32) * np.float32(math.sqrt(2 / self.fan_in))).astype(dtype)

"""Values of what lasts from step to step, before the first one, and what draws in each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ooc.api.arguments import as_array
from ooc.backends.base import Backend
from ooc.errors import ArgumentError, ShapeError
from ooc.ir.op import numpy_dtype
from ooc.networks.calls import Network, Wired
from ooc.networks.inputs import fetched
from ooc.networks.moving import average_of
from ooc.networks.tensors import Role, Slot, Weights


def checked(graph: Wired, parameters: Mapping[str, Any], backend: Backend) -> dict[str, Any]:
    """Parameters and statistics that are given, in their own dtypes, on the host. Raises ShapeError, DtypeError,
    UnsupportedError."""
    if not isinstance(parameters, Mapping):
        raise ArgumentError(f"parameters: expected a dict of arrays by name, got {type(parameters).__name__}")
    weights = graph.parameters
    unknown = [str(name) for name in parameters if name not in weights]
    if unknown:
        raise ArgumentError(f"parameters: no parameter {', '.join(unknown[:5])}; there are {', '.join(list(weights)[:8])}, ...")
    arrays = {}
    for name in parameters:
        values = np.asarray(fetched(name, as_array(name, parameters[name], integers=False), backend))
        if values.shape != weights[name].shape:
            raise ShapeError(f"parameters: {name}: expected shape {weights[name].shape}, got {values.shape}")
        arrays[name] = values.astype(numpy_dtype(weights[name].dtype), copy=False)
    return arrays


def drawn(seed: int, step: int) -> int:
    """What dropout draws by in a step: 64 bits, as a signed integer. Source: Steele, Lea, Flood, SplitMix64, OOPSLA 2014."""
    z = (seed + (step + 1) * 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    z ^= z >> 31
    return z - (z >> 63 << 64)


def before(tensor: Slot, values: Mapping[str, Any], weights: Mapping[str, Weights], seed: int) -> Any:
    """What lasts, before the first step. values: of parameters and statistics that are not as their weights say."""
    name = tensor.begins if isinstance(tensor.begins, str) else tensor.name
    if name in values:
        return values[name]
    return weights[name].initial(name, seed) if name in weights else np.array(tensor.begins)


def averaged(net: Network, get: Callable[[Slot], Any]) -> dict[str, Any]:
    """The moving averages of parameters; get: what a tensor holds. Raises ArgumentError where there are none."""
    if net.optimizer is None or net.optimizer.ema is None:
        raise ArgumentError("averages: the optimizer keeps none; give it ema=, such as ooc.SGD(0.1, ema=0.999)")
    parameters = (t for t in net.tensors.values() if t.role is Role.PARAMETER)
    return {t.name: get(net.tensors.get(average_of(t.name), t)) for t in parameters}

"""Networks with channels last, as Keras has them: exporters write a Transpose behind the input, and one before the output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ooc.errors import UnsupportedError

ALONE = (
    "Add", "Cast", "Clip", "Concat", "Div", "Elu", "Erf", "Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu",
    "LogSoftmax", "Mish", "Mul", "Neg", "PRelu", "Relu", "Sigmoid", "Softmax", "Softplus", "Sub", "Sum", "Swish", "Tanh",
)  # fmt: skip  # operators that leave axes where they are
FIRST = (
    "AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "DepthToSpace", "GlobalAveragePool", "GlobalMaxPool",
    "GroupNormalization", "InstanceNormalization", "LRN", "MaxPool", "SpaceToDepth", "Upsample",
)  # fmt: skip  # operators that have channels first
LEAST = 4  # axes: of three, the same Transpose goes both ways


def takes_last(nodes: Sequence[Any], name: str) -> bool:
    """Whether an input of a file has its channels last."""
    sought = {name}
    for node in nodes:
        if sought.isdisjoint(node.input):
            continue
        if node.op_type == "Transpose":
            perm = _perm(node)
            return len(perm) >= LEAST and perm == [0, len(perm) - 1, *range(1, len(perm) - 1)]
        if node.op_type in ALONE:
            sought.update(node.output)
        elif node.op_type != "Shape":
            return False
    return False


def makes_last(nodes: Sequence[Any], name: str, last: bool) -> bool:
    """Whether a tensor of a file has its channels last. last: whether the input has. Raises UnsupportedError where that does not
    tell."""
    producers = {output: node for node in nodes for output in node.output}
    sought, visited = [name], set()
    while sought:
        node = producers.get(sought.pop())
        if node is None or id(node) in visited:
            continue
        visited.add(id(node))
        if node.op_type == "Transpose":
            perm = _perm(node)
            if len(perm) >= LEAST and perm == [0, *range(2, len(perm)), 1]:
                return True
        elif node.op_type in FIRST:
            return False
        elif node.op_type in ALONE:
            sought += node.input
    if last:
        raise UnsupportedError(
            f"output {name}: the input has its channels last, and of this tensor it cannot be told; "
            "pass --outputs of one that a Conv or a Transpose makes, or export the network with channels first"
        )
    return False


def _perm(node: Any) -> list[int]:
    return next((list(a.ints) for a in node.attribute if a.name == "perm"), [])


def front(shape: Sequence[int]) -> tuple[int, ...]:
    """Extents, batch included, with the channels brought in front of space."""
    return (shape[0], shape[-1], *shape[1:-1])


def back(shape: Sequence[int]) -> tuple[int, ...]:
    """Extents, batch included, with the channels brought behind space."""
    return (shape[0], *shape[2:], shape[1])

"""Networks that were exported for one size: whether their nodes compute the same at any other, and if so, without that size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Dims = Mapping[str, tuple[int, ...]]  # of constants, by name

ALONE = (
    "Abs", "BatchNormalization", "Cast", "Ceil", "Celu", "Clip", "Constant", "Conv", "DepthToSpace", "Dropout", "Elu", "Erf",
    "Exp", "Floor", "Gelu", "GlobalAveragePool", "GlobalMaxPool", "GroupNormalization", "HardSigmoid", "HardSwish", "Identity",
    "InstanceNormalization", "LRN", "LeakyRelu", "Log", "Mish", "Neg", "Not", "Reciprocal",
    "Relu", "Round", "Selu", "Sigmoid", "Sign", "Softplus", "Softsign", "SpaceToDepth", "Sqrt", "Swish", "Tanh",
    "ThresholdedRelu", "Transpose",
)  # fmt: skip  # whatever the size is
POOLS = ("AveragePool", "LpPool", "MaxPool")
BESIDE = (
    "Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mul", "Or", "PRelu",
    "Pow", "Sub", "Sum", "Where",
)  # fmt: skip  # where constants have no positions in space


def frees(model: Any) -> bool:
    """Whether all nodes of a network with one input compute the same, position by position, at any size."""
    graph = model.graph
    dims: dict[str, tuple[int, ...]] = {t.name: tuple(t.dims) for t in graph.initializer}
    inputs = [i for i in graph.input if i.name not in dims]
    for node in graph.node:
        if node.op_type == "Constant":
            dims |= {name: _dims(node) for name in node.output}
    rank = len(inputs[0].type.tensor_type.shape.dim) if len(inputs) == 1 else 0
    return rank > 2 and all(_frees(node, dims, rank) for node in graph.node) and not _pools_all(model)


def _pools_all(model: Any) -> bool:
    """Whether a window of pooling is as large as what it is moved over, at the size of the file: it stands for all of it."""
    from onnx import shape_inference

    graph = shape_inference.infer_shapes(model).graph
    known = {
        i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in (*graph.input, *graph.value_info, *graph.output)
    }
    pools = (node for node in graph.node if node.op_type in POOLS)
    return any(known.get(node.input[0], [])[2:] == _attribute(node, "kernel_shape") for node in pools)


def free(model: Any, last: bool) -> None:
    """Take the extents of space from a network's input, and those that follow from them from all others. last: its channels are
    last."""
    graph = model.graph
    constants = {t.name for t in graph.initializer}
    for info in graph.input:
        if info.name not in constants:
            dim = info.type.tensor_type.shape.dim
            for axis in range(1, len(dim) - 1) if last else range(2, len(dim)):
                dim[axis].ClearField("dim_value")
    for info in graph.output:
        if info.type.HasField("tensor_type"):  # which asking for would make
            info.type.tensor_type.ClearField("shape")
    del graph.value_info[:]


def _dims(node: Any) -> tuple[int, ...]:
    """Of what a Constant node makes."""
    (value,) = node.attribute
    return (
        tuple(value.t.dims) if value.name == "value" else (len(value.ints or value.floats),) if value.name.endswith("s") else ()
    )


def _attribute(node: Any, name: str, default: Any = None) -> Any:
    held = next((a for a in node.attribute if a.name == name), None)
    return default if held is None else (held.i if held.type == 2 else list(held.ints))


def _frees(node: Any, dims: Dims, rank: int) -> bool:
    if node.op_type in ALONE or node.op_type in POOLS:
        return True
    rule = RULES.get(node.op_type)
    return _beside(node, dims, rank) if node.op_type in BESIDE else rule is not None and rule(node, dims, rank)


def _beside(node: Any, dims: Dims, rank: int) -> bool:
    return all(all(e == 1 for e in dims[name][max(0, len(dims[name]) - (rank - 2)) :]) for name in node.input if name in dims)


def _along_channels(default: int) -> Callable[[Any, Dims, int], bool]:
    return lambda node, dims, rank: _attribute(node, "axis", default) in (1, 1 - rank)


def _transposed(node: Any, dims: Dims, rank: int) -> bool:
    return not _attribute(node, "output_shape")


def _resized(node: Any, dims: Dims, rank: int) -> bool:
    """By scales that are told, and not to a size."""
    inputs = [*node.input, "", "", "", ""]
    scales = inputs[1] if node.op_type == "Upsample" else inputs[2]
    return scales in dims and not (node.op_type == "Resize" and inputs[3])


def _padded(node: Any, dims: Dims, rank: int) -> bool:
    return bool(_attribute(node, "pads")) or all(name in dims for name in node.input[1:] if name)


RULES: dict[str, Callable[[Any, Dims, int], bool]] = {
    "ArgMax": _along_channels(0), "Concat": _along_channels(0), "ConvTranspose": _transposed, "LogSoftmax": _along_channels(-1),
    "Pad": _padded, "Resize": _resized, "Softmax": _along_channels(-1), "Upsample": _resized,
}  # fmt: skip

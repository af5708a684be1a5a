"""An ONNX model in the making: nodes and constants, and the file that they become."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ooc.errors import UnsupportedError
from ooc.files.records import understood
from ooc.files.whole import whole
from ooc.ir.op import compute_dtype, numpy_dtype
from ooc.networks.calls import LayerNode
from ooc.networks.layer_graph import LayerGraph
from ooc.onnx.model import DTYPES, PRODUCER
from ooc.runtime.version import VERSION
from ooc.translate.building import Shape
from ooc.translate.leaving import Leaving, refusal, wide

OPSET = 17  # of ONNX's operators; a layer may need a later one
BATCH = "n"  # the axis of samples, in shapes
MOST_INLINE = (1 << 31) - (1 << 24)  # bytes of constants: a model is a message of less than 2 GiB
CODES = {name: code for code, name in DTYPES.items()}  # of TensorProto


class OnnxWriter:
    """The model of a graph.

    Parameters:
        graph: that is exported.
        leaving: what of it.
    """

    def __init__(self, graph: LayerGraph, leaving: Leaving) -> None:
        self.graph, self.leaving = graph, leaving
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}
        self.names = set(graph.shapes)
        self.opset = OPSET

    def free(self, name: str) -> str:
        """A name that nothing has yet: this one, or one that begins so."""
        number, free = 1, name
        while free in self.names:
            number, free = number + 1, f"{name}_{number}"
        self.names.add(free)
        return free

    def model(self, where: str = "") -> Any:
        """The model. where: the file beside it in which its constants lie; default: in itself."""
        from onnx import helper

        begin, tensors = 0, []
        for name, array in self.constants.items():
            tensors.append(_external(name, array, where, begin) if where else _tensor(name, array))
            begin += array.nbytes
        network = helper.make_graph(
            self.nodes, self.graph.name or "network", self._infos(self.leaving.inputs), self._infos(self.leaving.outputs), tensors
        )
        opsets = [helper.make_opsetid("", self.opset)]
        versions = {"ir_version": helper.find_min_ir_version_for(opsets), "producer_version": VERSION}
        return helper.make_model(network, opset_imports=opsets, producer_name=PRODUCER, **versions)

    def _infos(self, names: Sequence[str]) -> list[Any]:
        """What inputs or outputs are, of any number of samples."""
        from onnx import helper

        dtypes, shapes = self.graph.dtypes, self.graph.shapes
        return [helper.make_tensor_value_info(x, CODES[dtypes[x]], [BATCH, *shapes[x]]) for x in names]

    def save(self, path: Path) -> None:
        """Write the model, whole or not at all; constants that it cannot hold lie beside it, in a file named after what they are,
        so that a model that was there before keeps its own. Raises StoreError."""
        with understood(path):
            beside = ""
            if self.large:
                beside = f"{path.name}.{self._digest()}.data"
                with whole(path.with_name(beside)) as file:
                    for array in self.constants.values():
                        file.write(_bytes(array))
            with whole(path) as file:
                file.write(self.model(beside).SerializeToString())

    def content(self) -> bytes:
        """The model as bytes. Raises UnsupportedError for one that is larger than a message may be."""
        if self.large:
            raise UnsupportedError(
                f"graph {self.graph.name}: its parameters take {self._nbytes} bytes, more than an ONNX model holds; pass a path, "
                "beside which they are written"
            )
        message: bytes = self.model().SerializeToString()
        return message

    @property
    def large(self) -> bool:
        """Whether the constants are more than one message holds."""
        return self._nbytes > MOST_INLINE

    @property
    def _nbytes(self) -> int:
        return sum(array.nbytes for array in self.constants.values())

    def _digest(self) -> str:
        digest = hashlib.sha256()
        for name, array in self.constants.items():
            digest.update(name.encode())
            digest.update(_bytes(array))
        return digest.hexdigest()[:16]


def _bytes(array: Any) -> Any:
    """The bytes of an array, as ONNX has them."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _tensor(name: str, array: Any) -> Any:
    from onnx import numpy_helper

    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


def _external(name: str, array: Any, where: str, begin: int) -> Any:
    """A constant that lies in a file beside the model."""
    from onnx import TensorProto, helper

    tensor = TensorProto(name=name, dims=array.shape, data_type=helper.np_dtype_to_tensor_dtype(array.dtype))
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", where), ("offset", begin), ("length", array.nbytes)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


class OnnxLayer:
    """A layer while it becomes nodes.

    Parameters:
        writer: the model in the making.
        node: the layer.

    Fields:
        layer: what it computes.
        reads: names of the tensors that it reads.
        dtype: of these.
        rank: how many axes a sample of its result has.
    """

    def __init__(self, writer: OnnxWriter, node: LayerNode) -> None:
        self.writer, self.node, self.reads = writer, node, node.reads
        self.layer: Any = node.layer
        self.dtype, self.rank = writer.graph.dtypes[next(iter(node.reads), node.name)], len(node.shape)

    def refuse(self, why: str) -> UnsupportedError:
        """The error for what ONNX has not."""
        return refusal(self.node, "ONNX", why)

    def shape(self, i: int = 0) -> Shape:
        """Of a tensor that it reads, per sample."""
        return self.writer.graph.shapes[self.reads[i]]

    def op(self, kind: str, *reads: str, opset: int = OPSET, **attributes: Any) -> str:
        """A node more; the name of its result. opset: the least that has the operator."""
        return self.several(kind, 1, *reads, opset=opset, **attributes)[0]

    def several(self, kind: str, count: int, *reads: str, opset: int = OPSET, **attributes: Any) -> list[str]:
        """The same with so many results."""
        from onnx import helper

        names = [self.writer.free(f"{self.node.name}/{kind}") for _ in range(count)]
        self.writer.nodes.append(helper.make_node(kind, list(reads), names, names[0], **attributes))
        self.writer.opset = max(self.writer.opset, opset)
        return names

    def constant(self, what: str, values: Any, dtype: str = "") -> str:
        """A constant of its own: floating numbers, by default of the layer's dtype, or integers as they are."""
        array = np.asarray(values)
        if dtype or array.dtype.kind != "i":
            array = array.astype(numpy_dtype(dtype or self.dtype), copy=False)
        name = self.writer.free(f"{self.node.name}.{what}")
        self.writer.constants[name] = array
        return name

    def has(self, key: str) -> bool:
        """Whether the layer has a parameter of this short name."""
        return f"{self.node.name}.{key}" in self.writer.leaving.values

    def weight(self, key: str, shape: Sequence[int] = (), statistics: bool = False) -> str:
        """A parameter or statistic. shape: as it is seen; default: as it is. statistics: it keeps f32 beside half types."""
        values = self.writer.leaving.values[f"{self.node.name}.{key}"]
        return self.constant(key, values.reshape(shape or values.shape), compute_dtype(self.dtype) if statistics else self.dtype)

    def weights(self, *keys: str) -> list[str]:
        """Those of its parameters that there are."""
        return [self.weight(key) for key in keys if self.has(key)]

    def reshaped(self, x: str, shape: Sequence[int]) -> str:
        """A tensor with other extents, per sample."""
        return self.op("Reshape", x, self.constant("shape", np.asarray((0, *shape), np.int64)))

    def beside(self, i: int) -> str:
        """A tensor that it reads, with as many axes as its result."""
        shape = self.shape(i)
        return self.reads[i] if len(shape) == self.rank else self.reshaped(self.reads[i], wide(shape, self.rank))

    def padded(self, x: str, pads: Sequence[tuple[int, int]], *fill: str, **attributes: Any) -> str:
        """Values, zeros by default, before and behind the last axes; negative: cut off."""
        every = [(0, 0)] * (self.rank + 1 - len(pads)) + list(pads)
        return self.op("Pad", x, self.constant("pads", np.asarray(flat_pads(every), np.int64)), *fill, **attributes)

    def finish(self, made: str) -> None:
        """A tensor is the layer's result, under its name; where no node made it, one that changes nothing does."""
        if not self.writer.nodes or self.writer.nodes[-1].name != made:
            self.op("Identity", made)
        self.writer.nodes[-1].output[:] = [self.node.name]


def flat_pads(pads: Sequence[tuple[int, int]]) -> list[int]:
    """Padding as ONNX has it: before all axes, then after."""
    return [before for before, _ in pads] + [after for _, after in pads]

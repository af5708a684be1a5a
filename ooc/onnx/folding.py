"""Computing at once what follows from sizes and constants alone, by the onnx package's own reference."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ooc.errors import ArgumentError, UnsupportedError

MOST = 1 << 26  # elements of a constant that is computed
MOST_AXES = 64  # of a size that is looked at
# Operators whose results' sizes are values, and the inputs that those are.
GROWING = {
    "ConstantOfShape": (0,), "Expand": (1,), "Tile": (1,), "Range": (), "Resize": (1, 2, 3), "Pad": (1,), "EyeLike": (),
    "OneHot": (1,),
}  # fmt: skip


class Folder:
    """Constants of one opset.

    Parameters:
        opsets: of the model, versions by domain.
    """

    def __init__(self, opsets: Mapping[str, int]) -> None:
        self.opsets = {("" if domain == "ai.onnx" else domain): version for domain, version in opsets.items()}

    @property
    def version(self) -> int:
        """Of ONNX's own operators."""
        return self.opsets.get("", 1)

    def fold(self, node: Any, reads: Mapping[str, Any], label: str) -> dict[str, Any]:
        """What a node makes of constants, by name. Raises ArgumentError, UnsupportedError."""
        from onnx import helper
        from onnx.reference import ReferenceEvaluator

        self._check(node, reads, label)
        try:
            kinds = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in reads.items()}
            types = [helper.make_tensor_value_info(name, kinds[name], array.shape) for name, array in reads.items()]
            made_of = [helper.make_empty_tensor_value_info(n) for n in node.output if n]
            imports = [helper.make_opsetid(domain, version) for domain, version in self.opsets.items()]
            model = helper.make_model(helper.make_graph([node], "constants", types, made_of), opset_imports=imports)
            outputs = ReferenceEvaluator(model).run(None, dict(reads))
        except NotImplementedError as error:
            raise UnsupportedError(f"{label}: its constants cannot be computed: {error}") from None
        except Exception as error:  # of whatever a damaged file leads to
            raise ArgumentError(f"{label}: its constants do not fit: {type(error).__name__}: {error}") from None
        return {name: np.asarray(value) for name, value in zip(filter(None, node.output), outputs, strict=True)}

    def _check(self, node: Any, reads: Mapping[str, Any], label: str) -> None:
        """Refuse what would not fit, before it is made."""
        sizes = sum(array.size for array in reads.values())
        said = [reads[node.input[i]] for i in GROWING.get(node.op_type, ()) if i < len(node.input) and node.input[i] in reads]
        counts = [abs(float(v)) for array in said if array.dtype.kind in "iuf" for v in array.ravel()[:MOST_AXES]]
        if node.op_type == "Range":
            begin, end, step = (float(np.asarray(reads[name]).reshape(-1)[0]) for name in node.input)
            counts = [abs(end - begin) / abs(step) if step else math.inf]
        if node.op_type in GROWING and math.prod(max(1.0, c) for c in counts) * max(1, sizes) > MOST:
            raise UnsupportedError(f"{label}: a constant of more than {MOST} values would be made; leave it out of the file")

"""ONNX's own cases as files, with what is constant in use made constant; and small files for tests."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

import ooc
import ooc.onnx
from ooc.onnx.translator import OPERATORS

TWO = ("Add", "Sub", "Mul", "Div", "Sum", "Concat")  # whose inputs are tensors alike
Array = np.ndarray[Any, Any]


class Case(NamedTuple):
    """A network of one operator or a few, its inputs by name, and what it must make."""

    name: str
    model: Any
    inputs: dict[str, Array]
    wanted: list[Array]


@lru_cache(maxsize=1)
def cases() -> list[Case]:
    """All of ONNX's cases that have one of our operators and tensors with a batch."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # cases of infinity are made by dividing by zero
        found = [_case(c) for c in collect_testcases(None) if c.data_sets]
    return [case for case in found if case is not None]


def _case(raw: Any) -> Case | None:
    if not {n.op_type for n in raw.model.graph.node} & set(OPERATORS):
        return None
    given, wanted = raw.data_sets[0]
    names = [i.name for i in raw.model.graph.input]
    try:
        values = {name: _array(v) for name, v in zip(names, given, strict=False)}
        results = [_array(v) for v in wanted]
    except (TypeError, ValueError, NotImplementedError):
        return None  # sequences, strings
    if not names or any(v.dtype == object for v in values.values()) or values[names[0]].ndim < 2:
        return None
    model = onnx.ModelProto()
    model.CopyFrom(raw.model)
    main = values[names[0]]
    alike = model.graph.node[0].op_type in TWO
    tensors = [
        n for n in names if n == names[0] or (alike and values[n].shape[:1] == main.shape[:1] and values[n].ndim == main.ndim)
    ]
    for name in names:
        if name not in tensors:
            model.graph.initializer.append(numpy_helper.from_array(values[name], name))
    for info in [i for i in model.graph.input if i.name not in tensors]:
        model.graph.input.remove(info)
    return Case(raw.name, model, {n: values[n] for n in tensors}, results)


def _array(value: Any) -> Array:
    return np.asarray(numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value)


def graph_of(case: Case, folder: Path) -> tuple[ooc.Graph, int]:
    """The graph of a case, and its batch."""
    path = folder / "case.onnx"
    onnx.save(case.model, path)
    shapes = {name: array.shape for name, array in case.inputs.items()}
    return ooc.onnx.load(path, shapes), next(iter(shapes.values()))[0]


def refusal(case: Case) -> Exception | None:
    """The error by which a case is refused."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            graph, batch = graph_of(case, Path(folder))
            graph.plan(batch=batch, train=False)
        except ooc.OocError as error:
            return error
    return None


def loads(case: Case) -> bool:
    """Whether a case is not refused."""
    return refusal(case) is None


def budget_of(graph: ooc.Graph, batch: int, share: int) -> int | None:
    """Nothing, half of what all at once takes where that is enough, or the least that is enough (share 0, 1, 2)."""
    if not share:
        return None
    smallest = graph.plan(batch=batch, train=False).smallest_bytes
    return smallest if share == 2 else max(smallest, graph.plan(batch=batch, train=False).peaks["device"] // 2)


def model_of(
    nodes: Sequence[Any], inputs: Mapping[str, Sequence[int | str]], outputs: Sequence[str], weights: Mapping[str, Array],
    opset: int = 18,
) -> Any:  # fmt: skip
    """A model of f32 nodes."""
    float_, graph = onnx.TensorProto.FLOAT, helper.make_graph
    return helper.make_model(
        graph(
            nodes, "test", [helper.make_tensor_value_info(n, float_, s) for n, s in inputs.items()],
            [helper.make_tensor_value_info(n, float_, None) for n in outputs],
            [numpy_helper.from_array(v, n) for n, v in weights.items()],
        ),
        opset_imports=[helper.make_opsetid("", opset)], ir_version=9,
    )  # fmt: skip

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


class Planned(NamedTuple):
    """The graph of a case, and its plan without a budget."""

    graph: ooc.Graph
    plan: ooc.NetworkPlan


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


@lru_cache(maxsize=1)
def outcomes() -> dict[str, Planned | Exception]:
    """What becomes of cases without a budget, by their names: a plan, or the error by which they are refused."""
    made: dict[str, Planned | Exception] = {}
    with tempfile.TemporaryDirectory() as folder:
        for case in cases():
            try:
                made[case.name] = planned(case, Path(folder))
            except ooc.OocError as error:
                made[case.name] = error
    return made


def planned(case: Case, folder: Path) -> Planned:
    """The graph of a case and its plan. Raises OocError."""
    path = folder / f"{case.name}.onnx"
    onnx.save(case.model, path)
    shapes = {name: array.shape for name, array in case.inputs.items()}
    graph = ooc.onnx.load(path, shapes)
    return Planned(graph, graph.plan(batch=next(iter(shapes.values()))[0], train=False))


def budget_of(plan: ooc.NetworkPlan, share: int) -> int | None:
    """Nothing, half of what a plan without a budget takes where that is enough, or the least that is enough (share 0, 1, 2)."""
    if not share:
        return None
    return plan.smallest_bytes if share == 2 else max(plan.smallest_bytes, plan.peaks["device"] // 2)


def model_of(
    nodes: Sequence[Any], inputs: Mapping[str, Sequence[int | str]], outputs: Sequence[str], weights: Mapping[str, Array],
    opset: int = 18, dtypes: Mapping[str, Any] | None = None,
) -> Any:  # fmt: skip
    """A model of nodes; inputs are of f32, or of NumPy dtypes by name. What the outputs are is left to who reads it."""
    types = {name: helper.np_dtype_to_tensor_dtype(np.dtype((dtypes or {}).get(name, np.float32))) for name in inputs}
    return helper.make_model(
        helper.make_graph(
            nodes, "test", [helper.make_tensor_value_info(n, types[n], s) for n, s in inputs.items()],
            [onnx.ValueInfoProto(name=n) for n in outputs],
            [numpy_helper.from_array(np.asarray(v), n) for n, v in weights.items()],
        ),
        opset_imports=[helper.make_opsetid("", opset)], ir_version=9,
    )  # fmt: skip


def by_runtime(model: Any, inputs: Mapping[str, Array]) -> list[Array]:
    """What ONNX Runtime makes, node by node as they stand."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(v) for v in session.run(None, dict(inputs))]


def by_plan(plan: ooc.NetworkPlan, inputs: Mapping[str, Array]) -> list[Array]:
    """What a plan makes, in the order of the graph's outputs."""
    with plan.session() as session:
        found = session.forward(inputs)
    return [np.array(v) for v in found.values()] if isinstance(found, dict) else [np.array(found)]


def compare(found: Sequence[Array], wanted: Sequence[Array], label: str, most: float = 1e-5) -> None:
    """Every result within `most` of its largest value."""
    assert len(found) == len(wanted), label
    for i, (own, theirs) in enumerate(zip(found, wanted, strict=True)):
        assert (own.shape, own.dtype) == (theirs.shape, theirs.dtype), f"{label}, output {i}"
        largest = max(1.0, float(np.abs(theirs).max(initial=0)))
        off = np.abs(own.astype(np.float64) - theirs.astype(np.float64)).max(initial=0)
        assert off <= most * largest, f"{label}, output {i}: {off:.3g} off, the largest value is {largest:.3g}"


class RejectedError(Exception):
    """ONNX Runtime does not take a node, or what it makes is of no use: draw another."""


class Growing:
    """A model that grows by nodes that ONNX Runtime computes at once, so that the shapes of all tensors are known.

    Parameters:
        opset: of ONNX's operators.
    """

    def __init__(self, opset: int) -> None:
        self.opset = opset
        self.nodes: list[Any] = []
        self.inputs: dict[str, Array] = {}
        self.weights: dict[str, Array] = {}
        self.values: dict[str, Array] = {}  # of all tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.values[name].shape)

    def input(self, value: Array) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs[name] = self.values[name] = value
        return name

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = self.values[name] = np.asarray(value, dtype)
        return name

    def node(self, kind: str, *reads: str, count: int = 1, **attributes: Any) -> Any:
        """A node more; the name of what it makes, or a list of `count` names. Raises RejectedError."""
        names = [f"t{len(self.nodes)}_{i}" for i in range(count)]
        node = helper.make_node(kind, list(reads), names, **attributes)
        given = {name: self.values[name] for name in reads if name}
        inputs = {name: value for name, value in given.items() if name not in self.weights}
        weights = {name: value for name, value in given.items() if name in self.weights}
        dtypes = {name: value.dtype for name, value in inputs.items()}
        model = model_of([node], {n: v.shape for n, v in inputs.items()}, names, weights, self.opset, dtypes)
        try:
            made = by_runtime(model, inputs)
        except Exception as error:  # its errors have no common base
            raise RejectedError(str(error)) from None
        self.nodes.append(node)
        self.values.update(zip(names, made, strict=True))
        return names[0] if count == 1 else names

    def mark(self) -> tuple[int, int]:
        """Where it stands, for `back`."""
        return len(self.nodes), len(self.weights)

    def back(self, mark: tuple[int, int]) -> None:
        """Leave out what came after."""
        self.nodes = self.nodes[: mark[0]]
        self.weights = dict(list(self.weights.items())[: mark[1]])

    def tips(self, among: Sequence[str]) -> list[str]:
        """What no node reads."""
        read = {name for node in self.nodes for name in node.input}
        return [name for name in among if name not in read]

    def model(self, outputs: Sequence[str], open_sizes: bool) -> Any:
        """The whole model, its sizes open or as they are."""
        shapes = {n: [f"{n}_{i}" if open_sizes and i != 1 else e for i, e in enumerate(v.shape)] for n, v in self.inputs.items()}
        dtypes = {name: value.dtype for name, value in self.inputs.items()}
        return model_of(self.nodes, shapes, outputs, self.weights, self.opset, dtypes)

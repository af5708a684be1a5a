"""Every operator on tensors eight times as large as the budget: ONNX Runtime's results, and no buffer that is larger than it."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sweeps import crossed

import ooc
import ooc.onnx
from ooc.onnx.translator import OPERATORS

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
onnx_files = pytest.importorskip("onnx_files")

SHAPE, TIMES = (2, 8, 63, 65), 8
FLOAT = onnx.TensorProto.FLOAT
CONSTANT = {"Shape", "Size"}  # they are folded, whatever the size of what they read


class One:
    """A model of one operator, or of one with plumbing around it.

    Parameters:
        name: seeds its numbers.
        opset: of ONNX's operators.
    """

    def __init__(self, name: str, opset: int) -> None:
        self.rng = np.random.default_rng(zlib.crc32(name.encode()))
        self.growing = onnx_files.Growing(opset)
        self.node, self.const = self.growing.node, self.growing.constant

    def x(self, shape: tuple[int, ...] = SHAPE, dtype: Any = np.float32) -> str:
        """An input."""
        values = self.rng.standard_normal(shape).astype(dtype) if dtype == np.float32 else self.rng.integers(0, 99, shape)
        return str(self.growing.input(values.astype(dtype)))

    def w(self, *shape: int) -> str:
        """Weights."""
        return str(self.const(self.rng.standard_normal(shape)))

    def ints(self, *values: int) -> str:
        """Constant integers."""
        return str(self.const(values, np.int64))


Make = Callable[[One], Any]
SINGLE = (
    "Elu", "Erf", "Gelu", "GlobalAveragePool", "GlobalMaxPool", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Mish",
    "Neg", "Relu", "Sigmoid", "Softplus", "Swish", "Tanh", "Reciprocal", "Dropout", "Abs", "Asinh", "Atan", "Ceil", "Celu", "Cos",
    "Cosh", "Exp", "Floor", "LpNormalization", "Round", "Selu", "Shrink", "Sign", "Sin", "Sinh", "Softsign", "ThresholdedRelu",
)  # fmt: skip
OF_PROBABILITIES = ("Acos", "Asin", "Atanh", "Log", "Sqrt", "Tan")
BINARY = ("Add", "Sub", "Mul", "Sum", "Max", "Min", "Mean")
COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
REDUCTIONS = ("ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceMin", "ReduceSumSquare")


def condition(m: One, kind: str = "Greater") -> Any:
    """True or false of each value; some are equal."""
    return m.node(kind, m.node("Round", m.x()), m.node("Round", m.x()))


def number(m: One, made: Any) -> Any:
    return m.node("Cast", made, to=FLOAT)


def unpooled(m: One) -> Any:
    """Windows of 2 x 3, a row and a column left over."""
    x = m.node("Round", m.x())
    y, places = m.node("MaxPool", x, count=2, kernel_shape=[2, 3], strides=[2, 3])
    return m.node("MaxUnpool", m.node("Neg", y), places, m.ints(2, 8, 63, 65), kernel_shape=[2, 3], strides=[2, 3])


def sampled(m: One, **how: Any) -> Any:
    return m.node("GridSample", m.x(), m.node("Tanh", m.x((2, 40, 50, 2))), **how)


def heads(m: One) -> Any:
    return m.node("Gather", m.x(), m.const([[[3], [0], [5]]], np.int64), axis=1)


def pooled(m: One) -> Any:
    """As PyTorch's exporter writes windows of an adaptive pooling, of rows and of columns."""
    rows, columns = np.array([[0, 1, 2, 3], [2, 3, 4, 5], [5, 6, 7, 62]]), np.array([[0, 1, 2], [64, 2, 1]])
    both = np.stack(np.broadcast_arrays(rows[:, :, None, None], columns), -1)
    windows = m.node("GatherND", m.node("Transpose", m.x(), perm=[2, 3, 0, 1]), m.const(both, np.int64))
    return m.node("ReduceMean", m.node("Transpose", windows, perm=[4, 5, 0, 1, 2, 3]), m.ints(3, 5), keepdims=0)


def of_all(m: One) -> Any:
    """As PyTorch's exporter writes other strides."""
    mean = m.node("ReduceMean", m.x((1, 40, 33, 35)), m.ints(-1, -2))
    flat = m.node("Reshape", mean, m.ints(-1))
    return m.node("Gather", flat, m.const(np.arange(40).reshape(1, 40, 1, 1), np.int64))


def in_front(m: One) -> Any:
    """A batch of one behind the axis that is joined."""
    both = [m.node("Unsqueeze", m.node("ReduceMean", m.x((1, 8, 63, 65)), m.ints(2), keepdims=0), m.ints(0)) for _ in range(2)]
    return m.node("ReduceMean", m.node("Concat", *both, axis=0), m.ints(0), keepdims=0)


def across(m: One) -> Any:
    """Windows of 8 x 7 become some of 7 x 8."""
    windows = m.node("Transpose", m.node("Reshape", m.x((2, 4, 56, 56)), m.ints(2, 4, 8, 7, 8, 7)), perm=[0, 1, 3, 2, 5, 4])
    y = m.node("Transpose", m.node("Reshape", windows, m.ints(2, 4, 7, 8, 7, 8)), perm=[0, 1, 3, 2, 5, 4])
    other = m.node("Transpose", m.node("Reshape", y, m.ints(2, 4, 7, 8, 7, 8)), perm=[0, 2, 4, 3, 5, 1])
    return m.node("Reshape", other, m.ints(2, 49, 64, 4))


CASES: dict[str, tuple[str, Make]] = {
    **{kind: (kind, lambda m, kind=kind: m.node(kind, m.x())) for kind in SINGLE},
    **{kind: (kind, lambda m, kind=kind: m.node(kind, m.x(), m.x())) for kind in BINARY},
    **{kind: (kind, lambda m, kind=kind: m.node(kind, m.node("Sigmoid", m.x()))) for kind in OF_PROBABILITIES},
    "Acosh": ("Acosh", lambda m: m.node("Acosh", m.node("Add", m.node("Exp", m.x()), m.const(1.0)))),
    **{kind: (kind, lambda m, kind=kind: number(m, condition(m, kind))) for kind in COMPARISONS},
    **{k: (k, lambda m, k=k: number(m, m.node(k, condition(m), condition(m, "Less")))) for k in ("And", "Or", "Xor")},
    "Not": ("Not", lambda m: number(m, m.node("Not", condition(m)))),
    "Where": ("Where", lambda m: m.node("Where", condition(m), m.x(), m.node("Neg", m.x()))),
    "Where, with numbers": ("Where", lambda m: m.node("Where", condition(m), m.const(0.0), m.x())),
    "Where, by a constant": (
        "Where",
        lambda m: m.node("Where", m.const(np.arange(63 * 65).reshape(63, 65) % 3 > 0, bool), m.x(), m.const(-1e9)),
    ),
    **{k: (k, lambda m, k=k: m.node(k, m.x(), m.ints(2, 3))) for k in REDUCTIONS},
    "ReduceLogSum": ("ReduceLogSum", lambda m: m.node("ReduceLogSum", m.node("Exp", m.x()), m.ints(1), keepdims=0)),
    "RMSNormalization": ("RMSNormalization", lambda m: m.node("RMSNormalization", m.x(), m.w(65), axis=-1)),
    "ArgMax": ("ArgMax", lambda m: number(m, m.node("ArgMax", m.node("Round", m.x()), axis=1, keepdims=0))),
    "ArgMin": ("ArgMin", lambda m: number(m, m.node("ArgMin", m.node("Round", m.x()), axis=2))),
    "Gather of a table": (
        "Gather",
        lambda m: m.node("Gather", m.w(8, 5), m.node("ArgMax", m.x((2, 8, 33, 35)), axis=1, keepdims=0)),
    ),
    "ArgMax of rows": ("ArgMax", lambda m: number(m, m.node("ArgMax", m.node("Round", m.x()), axis=-1))),
    "Cast to whole numbers": ("Cast", lambda m: number(m, m.node("Cast", m.node("Mul", m.x(), m.const(5.0)), to=7))),
    "Div of whole numbers": (
        "Div",
        lambda m: number(m, m.node("Div", m.node("Cast", m.node("Mul", m.x(), m.const(9.0)), to=7), m.const(4, np.int64))),
    ),
    "MaxUnpool": ("MaxUnpool", unpooled),
    "GridSample": ("GridSample", sampled),
    "GridSample, beyond the border": (
        "GridSample",
        lambda m: sampled(m, mode="cubic", padding_mode="border", align_corners=1),
    ),
    "GridSample, at constant places": (
        "GridSample",
        lambda m: m.node(
            "GridSample", m.x(), m.const(m.rng.uniform(-1.3, 1.3, (1, 40, 50, 2)).repeat(2, 0)), mode="nearest",
            padding_mode="reflection",
        ),
    ),
    "AffineGrid": (
        "AffineGrid",
        lambda m: m.node("GridSample", m.x(), m.node("AffineGrid", m.x((2, 2, 3)), m.ints(2, 8, 50, 40)), align_corners=1),
    ),
    "Expand": ("Expand", lambda m: m.node("Expand", m.x((2, 8, 1, 65)), m.ints(1, 1, 63, 65))),
    "Tile": ("Tile", lambda m: m.node("Tile", m.x((2, 3, 21, 65)), m.ints(1, 2, 3, 1))),
    "Gather": ("Gather", lambda m: m.node("Gather", m.x(), m.ints(7, 5, 3, 1, 0, 2), axis=1)),
    "Gather of rows, backwards": ("Gather", lambda m: m.node("Gather", m.x(), m.ints(*range(62, -1, -1)), axis=2)),
    "Gather of windows": ("Gather", lambda m: m.node("Gather", m.x(), m.const([[0, 2, 4, 6], [1, 3, 5, 62]], np.int64), axis=2)),
    "Gather, more axes": ("Gather", lambda m: m.node("ReduceMax", heads(m), m.ints(2), keepdims=0)),
    "Gather of all": ("Gather", of_all),
    "GatherND of a grid": ("GatherND", pooled),
    "GatherND in a line": (
        "GatherND",
        lambda m: m.node("GatherND", m.x(), m.const([[[0, 5], [7, 2], [3, 62]]] * 2, np.int64), batch_dims=1),
    ),
    "Concat of a batch of one": ("Concat", in_front),
    "Reshape across axes": ("Reshape", across),
    "CumSum": ("CumSum", lambda m: m.node("CumSum", m.x(), m.const(2, np.int64))),
    "CumSum of channels, from behind": (
        "CumSum",
        lambda m: m.node("CumSum", m.x(), m.const(1, np.int64), exclusive=1, reverse=1),
    ),
    "Trilu": ("Trilu", lambda m: m.node("Trilu", m.x(), m.const(2, np.int64), upper=0)),
    "Trilu, above": ("Trilu", lambda m: m.node("Trilu", m.x())),
    "Col2Im": (
        "Col2Im",
        lambda m: m.node("Col2Im", m.x((2, 48, 49)), m.ints(15, 16), m.ints(2, 3), strides=[2, 2], dilations=[1, 1]),
    ),
    "Col2Im, around": (
        "Col2Im",
        lambda m: m.node("Col2Im", m.x((2, 36, 130)), m.ints(14, 11), m.ints(3, 3), pads=[1, 0, 2, 1], dilations=[2, 1]),
    ),
    "Gather of one": ("Gather", lambda m: m.node("Gather", m.x(), m.const(3, np.int64), axis=1)),
    "Slice, backwards": (
        "Slice",
        lambda m: m.node("Slice", m.x(), m.ints(60, 7), m.ints(-64, -66), m.ints(3, 1), m.ints(-2, -1)),
    ),
    "Concat with a constant": ("Concat", lambda m: m.node("Concat", m.x(), m.const(np.ones((2, 3, 63, 65))), axis=1)),
    "Pad, around": ("Pad", lambda m: m.node("Pad", m.x(), m.ints(0, 0, 2, 1, 0, 0, 3, 4), mode="wrap")),
    "Pow to a fraction": ("Pow", lambda m: m.node("Pow", m.node("Sigmoid", m.x()), m.const(1.7))),
    "Pow to a tensor": ("Pow", lambda m: m.node("Pow", m.node("Sigmoid", m.x()), m.x())),
    **{f"{k} one per channel": (k, lambda m, k=k: m.node(k, m.x(), m.w(8, 1, 1))) for k in ("Add", "Sub", "Mul")},
    "Div": ("Div", lambda m: m.node("Div", m.x(), m.const(np.full((8, 1, 1), 3.5)))),
    "Div by a tensor": ("Div", lambda m: m.node("Div", m.x(), m.node("Add", m.node("Sigmoid", m.x()), m.const(1.0)))),
    "Conv": ("Conv", lambda m: m.node("Conv", m.x(), m.w(12, 8, 3, 3), m.w(12), pads=[1, 1, 1, 1])),
    "Conv, strides": ("Conv", lambda m: m.node("Conv", m.x(), m.w(12, 4, 5, 3), group=2, strides=[2, 1], dilations=[1, 2])),
    "Conv, 3-D": ("Conv", lambda m: m.node("Conv", m.x((1, 3, 21, 22, 23)), m.w(4, 3, 3, 3, 3), pads=[1] * 6)),
    "Conv, 1-D": ("Conv", lambda m: m.node("Conv", m.x((2, 8, 3001)), m.w(8, 8, 5), pads=[2, 2])),
    "ConvTranspose": (
        "ConvTranspose",
        lambda m: m.node("ConvTranspose", m.x(), m.w(8, 3, 3, 3), strides=[2, 2], output_padding=[1, 1], group=2, pads=[1] * 4),
    ),
    "ConvTranspose, 3-D": (
        "ConvTranspose",
        lambda m: m.node("ConvTranspose", m.x((1, 4, 9, 10, 11)), m.w(4, 2, 2, 2, 2), strides=[2] * 3),
    ),
    "MaxPool": ("MaxPool", lambda m: m.node("MaxPool", m.x(), kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)),
    "MaxPool, dilated": ("MaxPool", lambda m: m.node("MaxPool", m.x(), kernel_shape=[3, 2], dilations=[2, 3], pads=[1, 0, 1, 1])),
    "AveragePool": (
        "AveragePool",
        lambda m: m.node("AveragePool", m.x(), kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1]),
    ),
    "BatchNormalization": (
        "BatchNormalization",
        lambda m: m.node("BatchNormalization", m.x(), m.w(8), m.w(8), m.w(8), m.const(np.arange(1, 9) / 4)),
    ),
    "InstanceNormalization": ("InstanceNormalization", lambda m: m.node("InstanceNormalization", m.x(), m.w(8), m.w(8))),
    "LayerNormalization": ("LayerNormalization", lambda m: m.node("LayerNormalization", m.x(), m.w(63, 65), m.w(63, 65), axis=2)),
    "GroupNormalization": ("GroupNormalization", lambda m: m.node("GroupNormalization", m.x(), m.w(8), m.w(8), num_groups=2)),
    "LRN": ("LRN", lambda m: m.node("LRN", m.x(), size=5, alpha=0.1)),
    "PRelu": ("PRelu", lambda m: m.node("PRelu", m.x(), m.w(8, 1, 1))),
    "Clip": ("Clip", lambda m: m.node("Clip", m.x(), m.const(-0.5), m.const(0.75))),
    "Pow": ("Pow", lambda m: m.node("Pow", m.x(), m.const(2.0))),
    "Softmax": ("Softmax", lambda m: m.node("Softmax", m.x(), axis=1)),
    "Softmax of rows": ("Softmax", lambda m: m.node("Softmax", m.x(), axis=3)),
    "LogSoftmax": ("LogSoftmax", lambda m: m.node("LogSoftmax", m.x(), axis=1)),
    "Cast": ("Cast", lambda m: m.node("Mul", m.node("Cast", m.x(dtype=np.uint8), to=FLOAT), m.const(1 / 255))),
    "Concat": ("Concat", lambda m: m.node("Concat", m.x(), m.x((2, 5, 63, 65)), axis=1)),
    "Concat of rows": ("Concat", lambda m: m.node("Concat", m.x(), m.x((2, 8, 20, 65)), axis=2)),
    "DepthToSpace": ("DepthToSpace", lambda m: m.node("DepthToSpace", m.x(), blocksize=2, mode="CRD")),
    "SpaceToDepth": ("SpaceToDepth", lambda m: m.node("SpaceToDepth", m.x((2, 8, 62, 64)), blocksize=2)),
    "Slice": ("Slice", lambda m: m.node("Slice", m.x(), m.ints(3, 5), m.ints(61, 60), m.ints(2, 3), m.ints(1, 2))),
    "Slice of channels": ("Slice", lambda m: m.node("Slice", m.x(), m.ints(2), m.ints(7), m.ints(1))),
    "Split": ("Split", lambda m: m.node("Split", m.x(), m.ints(3, 5), axis=1, count=2)),
    "Pad": ("Pad", lambda m: m.node("Pad", m.x(), m.ints(0, 0, 2, 1, 0, 0, 3, 0), m.const(0.5))),
    "Pad, reflected": ("Pad", lambda m: m.node("Pad", m.x(), m.ints(0, 0, 2, 1, 0, 0, 3, 4), mode="reflect")),
    "Pad, edge": ("Pad", lambda m: m.node("Pad", m.x(), m.ints(0, 0, 2, 1, 0, 0, 3, 4), mode="edge")),
    "Resize": ("Resize", lambda m: m.node("Resize", m.x(), "", "", m.ints(2, 8, 100, 131), mode="linear")),
    "Resize, nearest": ("Resize", lambda m: m.node("Resize", m.x(), "", m.const([1, 1, 2, 2]), mode="nearest")),
    "Transpose": ("Transpose", lambda m: m.node("Transpose", m.x(), perm=[0, 2, 3, 1])),
    "Reshape": ("Reshape", lambda m: m.node("Reshape", m.x(), m.ints(2, 4, 126, 65))),
    "Reshape to six axes": (
        "Reshape",
        lambda m: m.node(
            "Reshape",
            m.node("Transpose", m.node("Reshape", m.x((2, 4, 60, 66)), m.ints(2, 4, 30, 2, 22, 3)), perm=[0, 1, 3, 5, 2, 4]),
            m.ints(2, 24, 30, 22),
        ),
    ),
    "Flatten": ("Flatten", lambda m: m.node("Flatten", m.node("MaxPool", m.x(), kernel_shape=[2, 2], strides=[2, 2]))),
    "Squeeze": ("Squeeze", lambda m: m.node("Squeeze", m.x((2, 1, 250, 260)), m.ints(1))),
    "Unsqueeze": ("Unsqueeze", lambda m: m.node("Unsqueeze", m.x((2, 250, 260)), m.ints(1))),
    "ReduceMean": ("ReduceMean", lambda m: m.node("ReduceMean", m.x(), m.ints(2, 3))),
    "ReduceMax": ("ReduceMax", lambda m: m.node("ReduceMax", m.x(), m.ints(3), keepdims=0)),
    "ReduceSum": ("ReduceSum", lambda m: m.node("ReduceSum", m.x(), m.ints(2, 3))),
    "Gemm": ("Gemm", lambda m: m.node("Gemm", m.x((64, 2000)), m.w(2000, 40), m.w(40))),
    "MatMul": ("MatMul", lambda m: m.node("MatMul", m.x((2, 700, 90)), m.w(90, 40))),
    "MatMul of two": ("MatMul", lambda m: m.node("MatMul", m.x((2, 3, 70, 90)), m.x((2, 3, 90, 40)))),
    "MatMul of one turned": (
        "MatMul", lambda m: m.node("MatMul", m.x((2, 3, 70, 90)), m.node("Transpose", m.x((2, 3, 40, 90)), perm=[0, 1, 3, 2])),
    ),
    "MatMul of a constant": ("MatMul", lambda m: m.node("MatMul", m.w(40, 70), m.x((2, 3, 70, 90)))),
    "MatMul of heads and one": ("MatMul", lambda m: m.node("MatMul", m.x((2, 1, 70, 90)), m.x((2, 3, 90, 40)))),
    "Einsum": ("Einsum", lambda m: m.node("Einsum", m.x((2, 3, 70, 90)), m.x((2, 40, 3, 90)), equation="bhid,bjhd->bhij")),
    "Shape": ("Shape", lambda m: [x := m.x(), m.node("Reshape", x, m.node("Shape", x))][1]),
    "Size": ("Size", lambda m: [x := m.x(), m.node("Mul", x, m.node("Cast", m.node("Size", x), to=FLOAT))][1]),
}  # fmt: skip
OLDER: dict[str, tuple[str, Make]] = {
    "Upsample": ("Upsample", lambda m: m.node("Upsample", m.x(), m.const([1, 1, 2, 3]), mode="nearest")),
}
OPSETS = {"GroupNormalization": 21, "RMSNormalization": 23, "Swish": 24}


def test_every_operator_is_tried() -> None:
    assert {kind for kind, _ in (*CASES.values(), *OLDER.values())} == set(OPERATORS)


@pytest.mark.parametrize("name", [*CASES, *OLDER])
def test_an_activation_behind_comes_behind(name: str, tmp_path: Path) -> None:
    """Whatever layers an operator becomes, what is behind it applies to all of them, and outputs have the file's names."""
    _, make = (CASES | OLDER)[name]
    for behind in (False, True):
        one = One(name, 9 if name in OLDER else OPSETS.get(name, 20))
        made = make(one)
        outputs = made if isinstance(made, list) else [made]
        outputs = [one.node("Sigmoid", o) for o in outputs] if behind else outputs
        onnx.save(one.growing.model(outputs, open_sizes=False), tmp_path / "one.onnx")
        inputs = one.growing.inputs
        graph = ooc.onnx.load(tmp_path / "one.onnx", {n: v.shape for n, v in inputs.items()})
        assert list(graph.outputs) == outputs
    plan = graph.plan(batch=next(iter(inputs.values())).shape[0], train=False, device="cpu")
    onnx_files.compare(onnx_files.by_plan(plan, inputs), [one.growing.values[o] for o in outputs], name)


@pytest.mark.parametrize("name", crossed([*CASES, *OLDER], every=2))
def test_tensors_of_eight_budgets(name: str, tmp_path: Path) -> None:
    _, make = (CASES | OLDER)[name]
    one = One(name, 9 if name in OLDER else OPSETS.get(name, 20))
    made = make(one)
    outputs = made if isinstance(made, list) else [made]
    model = one.growing.model(outputs, open_sizes=False)
    onnx.save(model, tmp_path / "one.onnx")
    inputs = one.growing.inputs
    largest = max(v.nbytes for v in (*inputs.values(), *(one.growing.values[o] for o in outputs)))
    graph = ooc.onnx.load(tmp_path / "one.onnx", {n: v.shape for n, v in inputs.items()})
    plan = graph.plan(batch=next(iter(inputs.values())).shape[0], train=False, budget=largest // TIMES, device="cpu")
    on_device = [b.nbytes for b in plan.schedule.layout.offsets if b.space == "device"]
    assert on_device and max(on_device) <= largest // TIMES and plan.peaks["device"] <= largest // TIMES
    assert sum(n for space, n in plan.peaks.items() if space not in ("file", "caller")) <= largest // TIMES, plan.peaks
    onnx_files.compare(onnx_files.by_plan(plan, inputs), onnx_files.by_runtime(model, inputs), name)

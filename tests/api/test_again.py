"""Calls that are made again: what is remembered of one holds for those that are alike, and for no others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from calibrated import needing_workspace
from waiting import HANGS

import ooc
import ooc.cudnn as cudnn
import ooc.cudnn.conv as ours
import ooc.libcudnn as lib
from ooc.cache import Cache
from ooc.ops.descriptor import parse
from ooc.runtime import context, engine

Call = Callable[[dict[str, Any]], Any]


def last(array: Any) -> Any:
    """An array of images seen with its channels last."""
    return array.transpose(0, 2, 3, 1)


# Each with arrays of its own: x and z alike, y what a padded 3 x 3 convolution with w and b makes of x, p that pooled.
CALLS: dict[str, Call] = {
    "conv": lambda a: ooc.conv(a["x"], a["w"], a["b"], padding=1, activation="relu"),
    "conv into out": lambda a: ooc.conv(a["x"], a["w"], a["b"], padding=1, out=a["out"]),
    "conv beside out": lambda a: ooc.conv(a["x"], a["w"], padding=1, alpha=0.5, beta=0.25, out=a["out"]),
    "conv pooled": lambda a: ooc.conv(a["x"], a["w"], a["b"], padding=1, pool=ooc.Pool("average", 2)),
    "conv unpooled too": lambda a: ooc.conv(a["x"], a["w"], padding=1, pool=2, with_unpooled=True),
    "conv with residual": lambda a: ooc.conv(a["x"], a["w"], padding=1, residual=a["y"], activation="tanh"),
    "conv channels last": lambda a: ooc.conv(
        last(a["x"]), last(a["w"]), padding=1, layout="channels_last", filter_layout="channels_last"
    ),
    "chain": lambda a: ooc.chain(
        a["x"], ooc.Conv(a["w"], a["b"], padding=1), ooc.Activation("leaky_relu", 0.25), ooc.Pool("max", 2)
    ),
    "conv_transpose": lambda a: ooc.conv_transpose(a["y"], a["w"], padding=1),
    "max_pool": lambda a: ooc.max_pool(a["x"], 2),
    "avg_pool": lambda a: ooc.avg_pool(a["x"], 3, 2, 1, count_padding=False),
    "global_avg_pool": lambda a: ooc.global_avg_pool(a["x"]),
    "activation": lambda a: ooc.activation(a["x"], "elu", 0.5),
    "activation of rows": lambda a: ooc.activation(a["x"][0, 0], "sigmoid"),
    "activation in place": lambda a: ooc.activation(a["x"], "relu", out=a["x"]),
    "linear": lambda a: ooc.linear(a["x"].reshape(-1, 8), a["z"].reshape(-1, 8)[:5], np.arange(5, dtype=a["x"].dtype)),
    "softmax": lambda a: ooc.softmax(a["x"], -1),
    "softmax_backward": lambda a: ooc.softmax_backward(a["x"], a["z"], log=True),
    "lrn": lambda a: ooc.lrn(a["x"], 3, blend=(2.0, 0.0)),
    "lrn_backward": lambda a: ooc.lrn_backward(a["x"], a["z"]),
    "dropout": lambda a: ooc.dropout(a["x"], 0.5, 7),
    "add": lambda a: ooc.add(a["x"], a["z"], scale=(2.0, 1.0)),
    "add to itself": lambda a: ooc.add(a["x"], a["x"]),
    "scale": lambda a: ooc.scale(a["x"], -0.0),
    "upsample": lambda a: ooc.upsample(a["x"], 13, "linear"),
    "upsample_backward": lambda a: ooc.upsample_backward(a["x"], 4),
    "conv_backward": lambda a: ooc.conv_backward(a["x"], a["w"], a["y"], padding=1),
    "conv_backward of filters": lambda a: ooc.conv_backward(a["x"], a["w"], a["y"], padding=1, want="dw"),
    "activation_backward": lambda a: ooc.activation_backward(a["x"], a["z"], "tanh"),
    "max_pool_backward": lambda a: ooc.max_pool_backward(a["x"], a["p"], 2),
    "avg_pool_backward": lambda a: ooc.avg_pool_backward(a["p"], a["x"].shape, 2),
    "bias_backward": lambda a: ooc.bias_backward(a["y"]),
}  # fmt: skip
PLAIN = [n for n in CALLS if n not in ("activation in place", "add to itself", "conv_backward of filters", "linear")]


def arrays(seed: int, dtype: Any = np.float32) -> dict[str, Any]:
    """Small integers: sums of them are exact in any order."""
    numbers = np.random.default_rng(seed)
    shapes = {"x": (2, 4, 8, 8), "z": (2, 4, 8, 8), "w": (6, 4, 3, 3), "b": (6,), "y": (2, 6, 8, 8), "p": (2, 4, 4, 4)}
    made = {name: numbers.integers(-4, 5, shape).astype(dtype) for name, shape in shapes.items()}
    return made | {"out": np.full((2, 6, 8, 8), 3, dtype)}


def results(call: Call, given: dict[str, Any]) -> list[Any]:
    made = call(given)
    return [*(made if isinstance(made, tuple) else (made,)), *given.values()]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_a_call_like_one_before_has_the_result_of_one_that_was_never_made(name: str, dtype: Any) -> None:
    device = ooc.device("cpu")
    for seed in range(3):
        with ooc.device("cpu"):
            expected = results(CALLS[name], arrays(seed, dtype))
        with device:
            found = results(CALLS[name], arrays(seed, dtype))
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other, strict=True)


@pytest.mark.parametrize("name", PLAIN)
def test_a_call_like_one_before_asks_for_no_plan(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with ooc.device("cpu"):
        kinds = [type(r) for r in results(CALLS[name], arrays(0))]
        monkeypatch.setattr(engine, "planned", None)
        made = CALLS[name](arrays(1))
        report = ooc.last_report()
        assert [type(r) for r in results(CALLS[name], arrays(1))] == kinds
        assert report is not None and report.tiles == 1 and 0 < report.lane_seconds["compute"] <= report.seconds
        assert not isinstance(made, np.ndarray) or made.flags.c_contiguous


def test_results_are_arrays_of_their_own() -> None:
    a = arrays(0)
    with ooc.device("cpu"):
        made = [ooc.conv(a["x"], a["w"], padding=1) for _ in range(3)]
    assert not any(np.may_share_memory(one, other) for one, other in pairwise(made))


def test_what_options_say_counts_with_their_types() -> None:
    a = arrays(0)
    with ooc.device("cpu"):
        ooc.conv(a["x"], a["w"], padding=1, groups=1)
        for wrong in ({"padding": True}, {"padding": 1.0}, {"padding": 1, "groups": True}, {"padding": 1, "layout": "last"}):
            with pytest.raises(ooc.ShapeError):
                ooc.conv(a["x"], a["w"], **wrong)
        assert ooc.conv(a["x"], a["w"], padding=2).shape == (2, 6, 10, 10)
        for zero in (0.0, -0.0, 0.0):  # equal numbers have equal results, whatever came before
            assert not np.signbit(ooc.scale(np.ones((1, 1, 1)), zero))
            found = ooc.activation(np.zeros((1, 1, 1), np.int16), "identity", scale=-1.0, offset=zero)
            assert not np.signbit(found)
        with pytest.raises(TypeError):
            ooc.conv(a["x"], w=a["w"], weights=1)


def test_numbers_in_arrays_that_are_no_operands_count() -> None:
    image = np.arange(2 * 4 * 8 * 8, dtype=np.uint8).reshape(2, 4, 8, 8)
    w = arrays(0)["w"]
    for scale in (1.0, 2.0, np.full(4, 3.0), np.full(4, 5.0)):
        found = ooc.conv(image, w, scale=scale)
        np.testing.assert_array_equal(found, ooc.conv(image * np.float32(np.mean(scale)), w))
    for padding in (np.array(1), np.array(2), np.array(1)):
        with pytest.raises(ooc.ShapeError):
            ooc.conv(arrays(0)["x"], w, padding=padding)


def test_arrays_that_lie_otherwise_are_other_calls(tmp_path: Any) -> None:
    a = arrays(0)
    expected = ooc.conv(a["x"], a["w"], padding=1)
    wide = np.zeros((2, 4, 8, 16), np.float32)
    wide[..., ::2] = a["x"]
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=a["x"].shape)
    mapped[:] = a["x"]
    offset = np.frombuffer(b"\0" + a["x"].tobytes(), np.uint8)[1:].view(np.float32).reshape(a["x"].shape)
    for x in (wide[..., ::2], mapped, np.asarray(mapped), np.asfortranarray(a["x"]), offset, a["x"][::-1][::-1]):
        np.testing.assert_array_equal(ooc.conv(x, a["w"], padding=1), expected)
    assert ooc.conv(np.asarray(mapped), a["w"], padding=1).base is None
    with pytest.raises(ooc.DtypeError):
        ooc.conv(a["x"].astype(">f4"), a["w"], padding=1)


def test_an_output_that_must_not_be_written_is_refused_again() -> None:
    a = arrays(0)
    memory = np.zeros(2 * a["out"].size, np.float32)
    x = memory[: a["x"].size].reshape(a["x"].shape)
    apart, over = (memory[at : at + a["out"].size].reshape(a["out"].shape) for at in (a["x"].size, 64))
    with ooc.device("cpu"):
        for _ in range(2):
            ooc.conv(x, a["w"], padding=1, out=apart)
            ooc.conv(a["x"], a["w"], padding=1, out=a["out"])
        with pytest.raises(ooc.ShapeError, match="overlaps"):
            ooc.conv(x, a["w"], padding=1, out=over)
        a["out"].flags.writeable = False
        with pytest.raises(ooc.OocError):
            ooc.conv(a["x"], a["w"], padding=1, out=a["out"])
        with pytest.raises(ooc.DtypeError):
            ooc.conv(a["x"], a["w"], padding=1, out=a["out"].astype(np.float64))


def test_in_place_and_into_another_array_are_told_apart() -> None:
    with ooc.device("cpu"):
        for _ in range(2):
            x = np.array([[[-1.0, 2.0]]], np.float32)
            ooc.activation(x, "relu", out=x)
            assert x.tolist() == [[[0.0, 2.0]]]
            y, x = np.empty((1, 1, 2), np.float32), np.array([[[-1.0, 3.0]]], np.float32)
            assert ooc.activation(x, "relu", out=y) is y and y.tolist() == [[[0.0, 3.0]]] and x.tolist() == [[[-1.0, 3.0]]]


def test_lists_of_numbers_are_arrays_of_any_length() -> None:
    for numbers in ([[[1.0, -2.0]]], np.arange(-500, 500.0).reshape(1, 1, -1).tolist()):
        for _ in range(2):
            assert ooc.activation(numbers, "relu").tolist() == np.maximum(numbers, 0).tolist()
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ooc.OocError):
        ooc.activation(endless, "relu")


def test_a_budget_or_a_device_of_its_own_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    a = arrays(0)
    with ooc.device("cpu"):
        ooc.conv(a["x"], a["w"], padding=1)
        with ooc.device("cpu", "2 KiB"):
            ooc.conv(a["x"], a["w"], padding=1)
            report = ooc.last_report()
            assert report is not None and report.tiles > 1 and report.peak_bytes <= 2048
    ooc.conv(a["x"], a["w"], padding=1)
    monkeypatch.setattr("ooc.runtime.context._default", context._Default())  # whatever budgets other tests have set
    monkeypatch.setenv("OOC_DEVICE_BUDGET", "2 KiB")
    ooc.conv(a["x"], a["w"], padding=1)
    report = ooc.last_report()
    assert report is not None and report.tiles > 1


def test_the_drop_in_calls_are_remembered_under_their_workspace_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    geometry: dict[str, Any] = {"pad": (1, 1), "stride": (1, 1), "dilation": (1, 1), "groups": 1}
    plain: dict[str, Any] = {"auto_tune": False, "tensor_core": "auto"}

    def work(seed: int) -> list[Any]:
        a = arrays(seed)
        cudnn.convolution_forward(a["x"], a["w"], a["b"], a["out"], **geometry, **plain)
        cudnn.convolution_backward_data(a["w"], a["y"], None, a["z"], **geometry, deterministic=False, **plain)
        cudnn.convolution_backward_filter(a["x"], a["y"], a["w"], **geometry, deterministic=False, **plain)
        pooled = cudnn.pooling_forward(a["x"], a["p"], (2, 2), (2, 2), (0, 0), lib.CUDNN_POOLING_MAX)
        assert pooled is a["p"]
        return list(a.values())

    with ooc.device("cpu"):
        expected = [work(0), work(1)]
    with ooc.device("cpu"):
        work(2)
        asked: list[Any] = []
        planned = engine.planned
        monkeypatch.setattr(engine, "planned", lambda *given: [asked.append(given), planned(*given)][1])
        for seed in range(2):
            for one, other in zip(work(seed), expected[seed], strict=True):
                np.testing.assert_array_equal(one, other)
        assert not asked
        try:
            cudnn.set_max_workspace_size(0)
            for one, other in zip(work(1), expected[1], strict=True):
                np.testing.assert_array_equal(one, other)
            assert len(asked) == 3
        finally:
            cudnn.set_max_workspace_size(None)
        work(1)
        assert len(asked) == 3


def test_a_limit_that_changes_within_a_call_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    a = arrays(0)
    real = ours._compute

    def work() -> int:
        cudnn.convolution_forward(a["x"], a["w"], None, a["out"], (1, 1), (1, 1), (1, 1), 1, auto_tune=False, tensor_core="auto")
        report = ooc.last_report()
        assert report is not None
        return report.peak_bytes

    def changed(*given: Any) -> None:
        cudnn.set_max_workspace_size(None)
        real(*given)

    with needing_workspace(parse("conv.fprop n=2 c=4 h=8 w=8 k=6 r=3 s=3 pad=1")):
        try:
            cudnn.set_max_workspace_size(0)
            monkeypatch.setattr(ours, "_compute", changed)
            assert work() > 0
            monkeypatch.setattr(ours, "_compute", real)
            cudnn.set_max_workspace_size(0)
            assert work() == 0
        finally:
            cudnn.set_max_workspace_size(None)


def test_numbers_of_other_types_are_refused_whatever_came_before() -> None:
    x = np.ones((1, 8, 5), np.float32)
    for size in (3, 3.0, 3):
        if isinstance(size, float):
            with pytest.raises(ooc.ShapeError):
                ooc.lrn(x, size, before=1)  # type: ignore[arg-type]
        else:
            assert ooc.lrn(x, size, before=1).shape == x.shape
    a = arrays(0)
    for mode in (lib.CUDNN_POOLING_MAX, float(lib.CUDNN_POOLING_MAX), lib.CUDNN_POOLING_MAX):
        if isinstance(mode, float):
            with pytest.raises(TypeError):
                cudnn.pooling_forward(a["x"], a["p"], (2, 2), (2, 2), (0, 0), mode)  # type: ignore[arg-type]
        else:
            cudnn.pooling_forward(a["x"], a["p"], (2, 2), (2, 2), (0, 0), mode)


def test_what_is_remembered_while_something_is_remembered() -> None:
    """As a signal's handler does that calls a function."""
    table: Cache[int] = Cache(100, lambda value: table.keep(value - 1, value - 1) if value else 1)
    thread = threading.Thread(target=table.keep, args=(3, 3), daemon=True)
    thread.start()
    thread.join(HANGS)
    assert not thread.is_alive() and set(table) == {0, 1, 2, 3}

"""Bad input: one typed error each, that says what, expected and got, before a single output byte is written."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ooc
from ooc.errors import BudgetError, DtypeError, OocError, ShapeError, StoreError, UnsupportedError
from ooc.ir.op import Op
from ooc.runtime import context

pytestmark = pytest.mark.quick

POISON = -77.0
X, W, B = np.ones((2, 4, 6, 6), np.float32), np.ones((6, 4, 3, 3), np.float32), np.ones(6, np.float32)
Y = (2, 6, 4, 4)


def like(array: Any, **changes: Any) -> Any:
    """An array of ones like another, but for its shape or dtype."""
    return np.ones(changes.get("shape", array.shape), changes.get("dtype", array.dtype))


def conv(x: Any = X, w: Any = W, b: Any = None, **options: Any) -> Callable[[Any], Any]:
    return lambda out: ooc.conv(x, w, b, out=out, **options)


def pool(window: Any = 3, x: Any = X, **options: Any) -> Callable[[Any], Any]:
    return lambda out: ooc.max_pool(x, window, out=out, **options)


def chain(*layers: Any, x: Any = X, **options: Any) -> Callable[[Any], Any]:
    return lambda out: ooc.chain(x, *layers, out=out, **options)


def act(name: Any = "relu", x: Any = X, **options: Any) -> Callable[[Any], Any]:
    return lambda out: ooc.activation(x, name, out=out, **options)


# what is called, the error, and what its message must say (a regular expression)
CALLS: dict[str, tuple[Callable[[Any], Any], type[OocError], str]] = {
    "x int": (conv(like(X, dtype=np.int64)), DtypeError, "int64.*expected float64, float32, float16 or bfloat16.*x.astype"),
    "x complex": (conv(like(X, dtype=np.complex64)), DtypeError, "complex64.*expected"),
    "x bytes": (conv(like(X, dtype=np.int8)), DtypeError, "int8.*expected.*uint16"),
    "x object": (conv(like(X, dtype=object)), DtypeError, "object.*expected"),
    "x swapped": (conv(like(X, dtype=">f4")), DtypeError, "foreign byte order.*expected"),
    "x masked": (conv(np.ma.ones(X.shape)), DtypeError, "x.*masked"),
    "x a text": (conv("image"), DtypeError, "expected"),
    "w other dtype": (conv(w=like(W, dtype=np.float64)), DtypeError, "w is float64 but x is float32"),
    "w int": (conv(w=like(W, dtype=np.int8)), DtypeError, "int8.*expected"),
    "b other dtype": (conv(b=like(B, dtype=np.float64)), DtypeError, "b is float64 but x is float32"),
    "b too long": (conv(b=np.ones(7, np.float32)), ShapeError, r"b must have shape \(6,\), got \(7,\)"),
    "b a matrix": (conv(b=np.ones((6, 1), np.float32)), ShapeError, r"b must have shape \(6,\), got \(6, 1\)"),
    "x a matrix": (conv(like(X, shape=(2, 4))), ShapeError, r"expected 3 to 5 axes.*got 2 \(shape \(2, 4\)\)"),
    "x of 6 axes": (conv(like(X, shape=(1,) * 6)), ShapeError, "expected 3 to 5 axes.*got 6"),
    "w of other rank": (conv(w=like(W, shape=(6, 4, 3))), ShapeError, "w must have 4 axes like x, got 3"),
    "w other channels": (conv(w=like(W, shape=(6, 3, 3, 3))), ShapeError, "w takes 3 channels.*x has 4"),
    "w too large": (conv(w=like(W, shape=(6, 4, 7, 7))), ShapeError, r"\(7, 7\) does not fit extents \(6, 6\)"),
    "dilated too far": (conv(dilation=3), ShapeError, r"\(7, 7\) does not fit extents \(6, 6\)"),
    "no batch": (conv(like(X, shape=(0, 4, 6, 6))), ShapeError, "n must be at least 1, got 0"),
    "no channels": (conv(like(X, shape=(2, 0, 6, 6)), like(W, shape=(6, 0, 3, 3))), ShapeError, "c must be at least 1, got 0"),
    "no filters": (conv(w=like(W, shape=(0, 4, 3, 3))), ShapeError, "k must be at least 1, got 0"),
    "no rows": (conv(like(X, shape=(2, 4, 0, 6))), ShapeError, "extent must be at least 1"),
    "no taps": (conv(w=like(W, shape=(6, 4, 0, 3))), ShapeError, "filter must be at least 1"),
    "groups 0": (conv(groups=0), ShapeError, "groups=0"),
    "groups 3": (conv(groups=3), ShapeError, r"groups=3 must divide.*\(4\).*\(6\)"),
    "groups 2": (conv(groups=2), ShapeError, "w takes 4 channels per group x 2 groups = 8, but x has 4"),
    "groups float": (conv(groups=1.0), ShapeError, "groups: expected an integer, got 1.0"),
    "groups bool": (conv(groups=True), ShapeError, "groups: expected an integer, got True"),
    "stride 0": (conv(stride=0), ShapeError, "stride must be at least 1"),
    "stride negative": (conv(stride=(1, -2)), ShapeError, "stride must be at least 1"),
    "stride float": (conv(stride=1.5), ShapeError, "stride: expected an integer or 2 of them, got 1.5"),
    "stride floats": (conv(stride=(1, 1.5)), ShapeError, "stride: expected an integer, got 1.5"),
    "stride three": (conv(stride=(1, 1, 1)), ShapeError, "stride: expected 1 or 2 values, got 3"),
    "stride none": (conv(stride=None), ShapeError, "stride: expected"),
    "dilation 0": (conv(dilation=0), ShapeError, "dilation must be at least 1"),
    "padding negative": (conv(padding=-1), ShapeError, "padding must not be negative"),
    "padding float": (conv(padding=0.5), ShapeError, "padding: expected"),
    "padding floats": (conv(padding=(0.5, 1)), ShapeError, "padding: expected.*got 0.5"),
    "padding nones": (conv(padding=(None, 1)), ShapeError, "padding: expected.*got None"),
    "padding word": (conv(padding="SAME"), ShapeError, "padding: expected.*valid, same.*got 'SAME'"),
    "padding triple": (conv(padding=((1, 1, 1), 0)), ShapeError, r"expected \(before, after\) pairs, got \(1, 1, 1\)"),
    "padding of 3 axes": (conv(padding=(1, 1, 1)), ShapeError, "padding: expected 1 or 2 values, got 3"),
    "activation unknown": (conv(activation="gelu"), ShapeError, "expected one of identity, relu.*got 'gelu'"),
    "activation number": (conv(activation=3), ShapeError, "expected one of identity, relu.*got 3"),
    "pool word": (conv(pool="max"), ShapeError, "pool: expected an integer, got 'max'"),
    "pool 0": (conv(pool=0), ShapeError, "window must be at least 1"),
    "pool kind": (conv(pool=ooc.Pool("median")), ShapeError, "expected one of max, average, average_valid; got 'median'"),
    "pool too large": (conv(pool=5), ShapeError, r"window \(5, 5\).*does not fit extents \(4, 4\)"),
    "layout unknown": (conv(layout="NCHW"), ShapeError, "layout: expected one of channels_first, channels_last; got 'NCHW'"),
    "layout other": (conv(layout="channels_last"), ShapeError, "w takes 4 channels per group"),
    "window 0": (pool(0), ShapeError, "window must be at least 1"),
    "window float": (pool(2.0), ShapeError, "window: expected"),
    "window too large": (pool(7), ShapeError, r"window \(7, 7\).*does not fit extents \(6, 6\)"),
    "pool padding": (pool(3, padding=3), ShapeError, r"must be smaller than the window \(3, 3\)"),
    "pool padding negative": (pool(3, padding=-1), ShapeError, "padding must not be negative"),
    "pool stride 0": (pool(3, stride=0), ShapeError, "stride must be at least 1"),
    "pool of ints": (pool(3, like(X, dtype=np.int64)), DtypeError, "int64.*expected"),
    "pool of nothing": (pool(3, like(X, shape=(2, 4, 0, 6))), ShapeError, "extent must be at least 1"),
    "no layers": (chain(), ShapeError, "at least one layer"),
    "layer a function": (chain(np.tanh), ShapeError, "expected Conv, Pool or Activation layers, got ufunc"),
    "second conv other channels": (chain(ooc.Conv(W), ooc.Conv(W)), ShapeError, "w takes 4 channels.*x has 6"),
    "second pool too large": (chain(ooc.Conv(W), ooc.Pool("max", 5)), ShapeError, "does not fit extents"),
    "activation of ints": (act("relu", like(X, dtype=np.int64)), DtypeError, "int64.*expected"),
    "activation of nothing": (act("relu", np.ones((0, 3), np.float32)), ShapeError, "must be at least 1"),
    "activation of nothing, 6 axes": (act("relu", np.ones((2, 1, 0, 1, 1, 1), np.float32)), ShapeError, "at least 1"),
    "activation coef": (act("elu", coef="big"), ShapeError, "coef.*expected.*big"),
    "unknown name": (act("swish"), ShapeError, "expected one of identity, relu.*got 'swish'"),
}  # fmt: skip


@pytest.fixture(params=[None, "16 KiB"], ids=["unlimited", "16 KiB"])
def where(request: pytest.FixtureRequest) -> Iterator[None]:
    with ooc.device("cpu", request.param, threads=1):
        yield


def refused(call: Callable[[Any], Any], error: type[OocError], says: str, out: Any) -> None:
    """The call raises this error, says this, and leaves the output as it was."""
    before = None if out is None else np.array(out)
    with pytest.raises(OocError) as caught:
        call(out)
    assert isinstance(caught.value, error), f"{type(caught.value).__name__}: {caught.value}"
    assert re.search(says, str(caught.value), re.DOTALL), str(caught.value)
    if out is not None:
        np.testing.assert_array_equal(out, before)


@pytest.mark.parametrize("name", CALLS)
def test_bad_arguments(name: str) -> None:
    call, error, says = CALLS[name]
    refused(call, error, says, None)


@pytest.mark.parametrize("name", CALLS)
def test_bad_arguments_leave_the_output_alone(name: str) -> None:
    """Even where the output itself would do."""
    call, _, _ = CALLS[name]
    poisoned = np.full(X.shape if call.__qualname__.startswith("act") else Y, POISON, np.float32)
    with pytest.raises(OocError):
        call(poisoned)
    assert (poisoned == POISON).all()


def test_the_good_call_of_the_table_is_good(where: None) -> None:
    """The table differs from these calls by one mistake each."""
    out = np.full(Y, POISON, np.float32)
    assert ooc.conv(X, W, B, out=out) is out
    assert (out == 37.0).all()
    assert (ooc.max_pool(X, 3) == 1.0).all() and (ooc.avg_pool(X, 3) == 1.0).all() and (ooc.activation(X, "relu") == 1.0).all()


# ---- outputs


@pytest.mark.parametrize(
    ("out", "error", "says"),
    [
        (np.full((2, 6, 4, 5), POISON, np.float32), ShapeError, r"expected shape \(2, 6, 4, 4\), got \(2, 6, 4, 5\)"),
        (np.full((2, 6, 16), POISON, np.float32), ShapeError, r"expected shape \(2, 6, 4, 4\), got \(2, 6, 16\)"),
        (np.full(Y, POISON, np.float64), DtypeError, "expected dtype float32, got float64"),
        (np.full(Y, POISON, ">f4"), DtypeError, "expected dtype float32, got >f4"),
        (np.full((2, 6, 1, 4), POISON, np.float32).repeat(1, 2), ShapeError, "expected shape"),
    ],
)  # fmt: skip
def test_outputs_that_do_not_fit(where: None, out: Any, error: type[OocError], says: str) -> None:
    refused(conv(), error, says, out)


def test_output_that_is_no_array(where: None) -> None:
    for bad in ([[1.0]], "y.npy", 5):
        with pytest.raises(DtypeError, match="out: expected a NumPy array or memmap, got"):
            ooc.conv(X, W, out=bad)


def test_read_only_output(where: None, tmp_path: Path) -> None:
    out = np.full(Y, POISON, np.float32)
    out.flags.writeable = False
    refused(conv(), ShapeError, "out: the array is read-only", out)
    np.full(Y, POISON, np.float32).tofile(tmp_path / "y.bin")
    refused(conv(), ShapeError, "read-only.*'r\\+'", np.memmap(tmp_path / "y.bin", np.float32, "r", shape=Y))


def test_output_that_overlaps_itself(where: None) -> None:
    base = np.full((2, 1, 4, 4), POISON, np.float32)
    out = np.lib.stride_tricks.as_strided(base, Y, (base.strides[0], 0, *base.strides[2:]))
    refused(conv(), ShapeError, "out overlaps itself", out)
    sliding = np.lib.stride_tricks.as_strided(np.full(200, POISON, np.float32), Y, (96 * 4, 4, 16, 4))
    refused(conv(), ShapeError, "out overlaps itself", sliding)


def test_output_that_overlaps_an_input(where: None) -> None:
    room = np.ones((2, 6, 6, 6), np.float32)
    refused(conv(room[:, :4]), ShapeError, "out overlaps x", room[:, :, 1:5, 1:5])
    shifted = np.ones(X.size + 1, np.float32)
    refused(act(x=shifted[1:].reshape(X.shape)), ShapeError, "out overlaps x", shifted[:-1].reshape(X.shape))
    refused(pool(1, room), ShapeError, "out overlaps x", room[::-1])
    flat = np.ones(6 * 4 * 9 + 192, np.float32)
    refused(conv(w=flat[:216].reshape(W.shape)), ShapeError, "out overlaps w", flat[100:292].reshape(Y))
    b = np.ones(192, np.float32)
    refused(conv(b=b[7:13]), ShapeError, "out overlaps b", b.reshape(Y))


def test_two_maps_of_one_file(where: None, tmp_path: Path) -> None:
    path, link = tmp_path / "a.bin", tmp_path / "b.bin"
    np.ones(1024, np.float32).tofile(path)
    link.hardlink_to(path)
    x = np.memmap(path, np.float32, "r", shape=X.shape)
    for name in (path, link):
        out = np.memmap(name, np.float32, "r+", 287 * 4, Y)  # shares the last element of x
        refused(conv(x), ShapeError, "out overlaps x", out)
    after = np.memmap(path, np.float32, "r+", 288 * 4, Y)  # begins where x ends
    np.testing.assert_array_equal(ooc.conv(x, W, out=after), np.full(Y, 36.0))
    assert (np.asarray(x) == 1).all()


def test_truncated_maps(where: None, tmp_path: Path) -> None:
    path, poisoned = tmp_path / "a.bin", np.full(Y, POISON, np.float32)
    X.tofile(path)
    x = np.memmap(path, np.float32, "r", shape=X.shape)
    with open(path, "r+b") as file:
        file.truncate(100)
    refused(conv(x), StoreError, "needs 1152 bytes but the file has 100; it was truncated", poisoned)
    poisoned.tofile(tmp_path / "y.bin")
    out = np.memmap(tmp_path / "y.bin", np.float32, "r+", shape=Y)
    with open(tmp_path / "y.bin", "r+b") as file:
        file.truncate(700)
    with pytest.raises(StoreError, match="needs 768 bytes but the file has 700"):
        ooc.conv(X, W, out=out)
    assert (np.fromfile(tmp_path / "y.bin", np.float32) == POISON).all()


# ---- budgets


SMALLEST = {
    "conv": (conv(), Y),
    "conv and pool": (conv(b=B, pool=2, activation="relu"), (2, 6, 2, 2)),
    "grouped": (conv(w=like(W, shape=(6, 2, 3, 3)), groups=2), Y),
    "dilated f64": (conv(like(X, dtype=np.float64), like(W, dtype=np.float64), dilation=2), (2, 6, 2, 2)),
    "half": (conv(like(X, dtype=np.float16), like(W, dtype=np.float16)), Y),
    "two convolutions": (chain(ooc.Conv(W), ooc.Conv(like(W, shape=(6, 6, 3, 3)), activation="relu")), (2, 6, 2, 2)),
    "unequal convolutions": (chain(ooc.Conv(like(W, shape=(6, 4, 5, 5))), ooc.Conv(like(W, shape=(2, 6, 1, 1)))), (2, 2, 2, 2)),
    "unequal, other way": (chain(ooc.Conv(like(W, shape=(6, 4, 1, 1))), ooc.Conv(like(W, shape=(2, 6, 5, 5)))), (2, 2, 2, 2)),
    "pool": (pool(3), (2, 4, 2, 2)),
    "activation": (act(), X.shape),
}


@pytest.mark.parametrize("pinned", [None, "1 MiB"])
@pytest.mark.parametrize("name", SMALLEST)
def test_the_smallest_budget_is_named_and_works(name: str, pinned: str | None) -> None:
    call, shape = SMALLEST[name]
    dtype = np.float64 if "f64" in name else np.float16 if name == "half" else np.float32
    out = np.full(shape, POISON, dtype)
    with ooc.device("cpu", 60, pinned=pinned), pytest.raises(BudgetError) as caught:
        call(out)
    assert (out == POISON).all()
    said = re.search(r"Raise budget= to at least (\d+) bytes", str(caught.value))
    assert said, str(caught.value)
    with ooc.device("cpu", int(said[1]), pinned=pinned):
        call(out)
    report = ooc.last_report()
    assert report is not None and 60 < report.peak_bytes <= int(said[1])
    with ooc.device("cpu", int(said[1]) - 64, pinned=pinned), pytest.raises(BudgetError):
        call(out)
    with ooc.device("cpu"):
        np.testing.assert_array_equal(out, call(None))


@pytest.mark.parametrize("disk", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        "conv.fprop n=8 c=64 h=56 w=56 k=64 r=3 s=3 pad=1",
        "conv.fprop n=1 c=2 h=900 w=900 k=2 r=600 s=600",  # a filter of 1.4 MiB: the bounce buffer grows with the budget
        "conv.fprop n=8 c=64 h=56 w=56 k=64 r=3 s=3 groups=64 dtype=bf16",
        "conv.fprop n=1 c=512 h=8 w=8 k=512 r=3 s=3 pad=1 | conv.fprop n=1 c=512 h=8 w=8 k=512 r=3 s=3 pad=1",
        "pool.average n=1 k=2 h=64 w=64 window=32",
    ],
)
def test_the_smallest_budget_of_a_descriptor_works(text: str, disk: bool) -> None:
    places = {"x": "disk", "y": "disk"} if disk else None
    with pytest.raises(BudgetError) as caught:
        ooc.plan(text, 32, device="cpu", places=places)
    said = re.search(r"at least (\d+) bytes", str(caught.value))
    assert said and text.split(" | ")[0] in str(caught.value), str(caught.value)
    assert ooc.plan(text, int(said[1]), device="cpu", places=places).peak_bytes <= int(said[1])


@pytest.mark.parametrize("seed", range(8))
def test_a_budget_either_works_or_names_a_larger_one_that_does(seed: int, random_op: Callable[..., Op]) -> None:
    rng = random.Random(seed)
    for _ in range(12):
        op, budget = random_op(rng), int(2 ** rng.uniform(6, 12))
        places = {o.name: rng.choice(("disk", "host", "device")) for o in op.operands}
        try:
            assert ooc.plan(op, budget, device="cpu", places=places).peak_bytes <= budget
        except BudgetError as error:
            said = re.search(r"at least (\d+) bytes", str(error))
            assert said and int(said[1]) > budget, f"{budget}: {error}"
            assert ooc.plan(op, int(said[1]), device="cpu", places=places).peak_bytes <= int(said[1])


def test_a_pinned_or_workspace_budget_that_is_too_small() -> None:
    out = np.full(Y, POISON, np.float32)
    with ooc.device("cpu", "16 KiB", pinned=64):
        refused(conv(), BudgetError, "not the pinned budget of 64 B; raise pinned=$", out)
    fused = "pool.max n=1 k=2 w=8 | pointwise n=1 k=2 w=4 act=relu"  # the intermediate lives in the workspace
    for budget in ("16 KiB", None):
        with (
            ooc.device("cpu", budget, workspace=1),
            pytest.raises(BudgetError, match=r"budget of 1 B; raise workspace=$") as said,
        ):
            ooc.plan(fused, places=dict.fromkeys("xy", "host" if budget else "device"))
        assert said.value.smallest_bytes is None
    with ooc.device("cpu", "16 KiB", pinned=1, workspace=1), pytest.raises(BudgetError, match=r"raise pinned= and workspace=$"):
        ooc.plan(fused)


def test_set_device_budget_changes_nothing_when_it_makes_no_sense() -> None:
    ooc.set_device_budget("1 MiB")
    try:
        with pytest.raises(ShapeError):
            ooc.set_device_budget("lots")
        assert ooc.current_device().device_bytes == 1 << 20
    finally:
        ooc.set_device_budget(None)
    assert ooc.current_device().device_bytes is None


# ---- devices and plans


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: ooc.device("tpu"), ShapeError, "device 'tpu': expected one of auto, cpu, cuda, null"),
        (lambda: ooc.device(""), ShapeError, "device '': expected one of"),
        (lambda: ooc.device(3), ShapeError, "device 3: expected one of"),  # type: ignore[arg-type]
        (lambda: ooc.device("cpu", threads=0), ShapeError, "threads=0: expected a positive integer"),
        (lambda: ooc.device("cpu", threads=-2), ShapeError, "threads=-2: expected a positive integer"),
        (lambda: ooc.device("cpu", threads=True), ShapeError, "threads=True: expected a positive integer"),
        (lambda: ooc.device("cpu", threads=1.5), ShapeError, "threads=1.5: expected a positive integer"),  # type: ignore[arg-type]
        (lambda: ooc.device("cpu", calibration="abacus"), ShapeError, "calibration='abacus'.*expected"),
        (lambda: ooc.plan(""), ShapeError, "unknown operation ''"),
        (lambda: ooc.plan("conv.fprop n=1"), ShapeError, "expected"),
        (lambda: ooc.plan(None), ShapeError, "None"),  # type: ignore[arg-type]
        (lambda: ooc.plan("pool.max n=1 k=2 w=8", device="tpu"), ShapeError, "device 'tpu': expected"),
        (lambda: ooc.plan("pool.max n=1 k=2 w=8", places={"x": "moon"}), ShapeError, "moon"),
        (lambda: ooc.plan("pool.max n=1 k=2 w=8", places={"q": "disk"}), ShapeError, "q"),
        (lambda: ooc.Plan.from_json("{}"), ShapeError, "not a plan written by to_json"),
        (lambda: ooc.Plan.from_json("no"), ShapeError, "not a plan written by to_json"),
    ],
)
def test_bad_devices_and_plans(call: Callable[[], Any], error: type[OocError], says: str) -> None:
    refused(lambda _: call(), error, says, None)


def test_cuda_is_refused_or_there() -> None:
    try:
        assert ooc.device("cuda").backend.name == "cuda"
    except UnsupportedError as error:
        assert "device 'cuda'" in str(error) and "cpu" in str(error)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("depth", 0), ("depth", "two"), ("kernel", 5), ("workspace_bytes", -1), ("order", ["n"]), ("tile", [["n", 0]]),
        ("tile", [["n", 1]]), ("places", {"x": "moon"}), ("op", "pool.max"), ("extra", 1),
    ],
)  # fmt: skip
def test_plans_changed_by_hand_are_checked(field: str, value: Any) -> None:
    raw = json.loads(ooc.plan("pool.max n=1 k=2 w=8", "1 KiB", device="cpu").to_json())
    with pytest.raises(ShapeError, match=r"plan|descriptor"):
        ooc.Plan.from_json(json.dumps({**raw, field: value}))


@pytest.mark.parametrize(("name", "value", "error", "says"), [
    ("OOC_BACKEND", "abacus", ShapeError, "OOC_BACKEND='abacus': device 'abacus': expected one of"),
    ("OOC_DEVICE_BUDGET", "lots", ShapeError, "OOC_DEVICE_BUDGET='lots': expected bytes"),
    ("OOC_DEVICE_BUDGET", "0", BudgetError, "OOC_DEVICE_BUDGET='0': expected at least 1 byte"),
])  # fmt: skip
def test_bad_environment(monkeypatch: pytest.MonkeyPatch, name: str, value: str, error: type[OocError], says: str) -> None:
    monkeypatch.setenv(name, value)
    monkeypatch.setattr("ooc.runtime.context._default", context._Default())  # whatever other tests have set
    with pytest.raises(error, match=f"^{says}"):
        ooc.conv(X, W)


def test_an_environment_without_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*arguments: Any) -> Any:
        raise UnsupportedError("device 'cuda': no such device")

    monkeypatch.setenv("OOC_BACKEND", "cuda")
    monkeypatch.setattr("ooc.runtime.context.open_backend", missing)
    monkeypatch.setattr("ooc.runtime.context._default", context._Default())
    with pytest.raises(UnsupportedError, match=r"^OOC_BACKEND='cuda': device 'cuda': no such device$"):
        ooc.current_device()


def test_a_budget_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OOC_BACKEND", "cpu")
    monkeypatch.setenv("OOC_DEVICE_BUDGET", "50%")
    monkeypatch.setattr("ooc.runtime.context._default", context._Default())
    found = ooc.current_device()
    assert found.device_bytes == found.backend.total_bytes // 2 and ooc.current_device() is found
    ooc.set_device_budget("1 MiB")
    assert ooc.current_device().device_bytes == 1 << 20


@pytest.mark.parametrize("far", [1 << 40, 1 << 61])
def test_results_that_no_memory_holds(far: int) -> None:
    """More than there is, and more than addresses there are: one line, of whatever function."""
    x, w = np.ones((1, 1, 4, 4), "f4"), np.ones((1, 1, 2, 2), "f4")
    for call in (
        lambda: ooc.conv_transpose(x, w, stride=far), lambda: ooc.conv_transpose(x, w, dilation=far),
        lambda: ooc.conv(x, w, padding=far), lambda: ooc.upsample(x, (far, 4)),
    ):  # fmt: skip
        with pytest.raises(ooc.OocError) as refused:
            call()
        assert len(str(refused.value).splitlines()) == 1

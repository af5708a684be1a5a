"""What a limit of memory means: the same wherever one is given, as number or text."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import ooc
from ooc.cli.main import main
from ooc.errors import ArgumentError, BudgetError, OocError
from ooc.schedule.budget import parse_bytes

TOTAL = ooc.device("cpu").backend.total_bytes
LAYER = "conv.fprop n=1 c=4 h=64 w=64 k=4 r=3 s=3"
KIB = 1 << 10

# What is given, and the bytes that it means or the error that it is.
MEANINGS: list[tuple[Any, int | type[OocError]]] = [
    (1, 1), (1000, 1000), (1.0, 1), (1e9, 10**9), (2.0**40, 2**40), (10**30, 10**30),
    (0.5, TOTAL // 2), (0.8, int(TOTAL * 0.8)), (0.999, int(TOTAL * 0.999)), (1e-6, int(TOTAL * 1e-6)),
    (Fraction(1, 2), TOTAL // 2), (2**60 + 1, 2**60 + 1),
    ("1", 1), ("1000", 1000), ("1.0", 1), ("1e9", 10**9), ("1E3", 1000), ("+12", 12), ("9007199254740993", 9007199254740993),
    ("0.5", TOTAL // 2), (".8", int(TOTAL * 0.8)), ("5e-1", TOTAL // 2), (" 0.5 ", TOTAL // 2),
    ("50%", TOTAL // 2), ("80 %", int(TOTAL * 0.8)), ("0.5%", int(TOTAL * 0.005)), ("100%", TOTAL),
    ("256 MiB", 256 << 20), ("5 GB", 5 * 10**9), ("64kib", 64 * KIB), ("1.5 KiB", 1536), ("12b", 12), ("0.1 KiB", 102),
    ("1e3 kB", 10**6),
    (np.int64(4096), 4096), (np.uint8(7), 7), (np.float64(1e6), 10**6), (np.float32(0.5), TOTAL // 2),
    (np.float16(0.25), TOTAL // 4), (np.float32(4096), 4096),
    # Less than a byte.
    (0, BudgetError), (-1, BudgetError), (0.0, BudgetError), (-0.5, BudgetError), (-1.5, BudgetError), (1e-30, BudgetError),
    (np.int8(-3), BudgetError), ("0", BudgetError), ("0.0", BudgetError), ("-1", BudgetError), ("-0.5", BudgetError),
    ("0%", BudgetError), ("-10%", BudgetError), ("0 MiB", BudgetError), ("-5 MB", BudgetError), ("0.3 B", BudgetError),
    # No limit at all.
    *((limit, ArgumentError) for limit in (
        1.5, 1000.5, np.float32(2.5), "1.5", "150%", float("nan"), float("inf"), -float("inf"), np.float64("nan"), "nan",
        "inf", "1e400", "9" * 5000, "1e300 TiB", 10**400, True, False, np.True_, "True", 2j, [1], b"1", np.ones(2), "",
        " ", "lots", "None", "5 XB", "5 ib", "1.5.2 GB", "1_000", "--1", "1 2", "e3", "%",
    )),
]  # fmt: skip
WRONG = [(given, meant) for given, meant in MEANINGS if isinstance(meant, type)]
TEXTS = [(given, meant) for given, meant in MEANINGS if isinstance(given, str)]

pytestmark = pytest.mark.quick


def shown(value: Any) -> str:
    return f"{type(value).__name__} {str(value)[:20]}"


@pytest.mark.parametrize(("given", "meant"), MEANINGS, ids=shown)
def test_what_a_limit_means(given: Any, meant: Any) -> None:
    if isinstance(meant, int):
        found = parse_bytes(given, TOTAL)
        assert found == meant and type(found) is int
    else:
        with pytest.raises(OocError, match="expected") as caught:
            parse_bytes(given, TOTAL, "workspace")
        assert (
            type(caught.value) is meant
            and str(caught.value).startswith(f"workspace={given!r}"[:99])
            and ": expected " in str(caught.value)
        )
        assert getattr(caught.value, "smallest_bytes", None) is None


def test_every_limit_of_a_device_means_that() -> None:
    for given, meant in MEANINGS:
        if isinstance(meant, int):
            device = ooc.device("cpu", given, pinned=given, workspace=given)
            assert (device.device_bytes, device.pinned_bytes, device.workspace_bytes) == (meant,) * 3
    device = ooc.device("cpu")
    assert device.device_bytes is device.pinned_bytes is device.workspace_bytes is None


@pytest.mark.parametrize(("given", "error"), WRONG, ids=shown)
def test_what_is_no_limit_is_refused_everywhere(given: Any, error: type[OocError]) -> None:
    before = ooc.current_device()
    for what, call in {
        "budget": lambda: ooc.device("cpu", given),
        "pinned": lambda: ooc.device("cpu", pinned=given),
        "workspace": lambda: ooc.device("cpu", workspace=given),
        "budget ": lambda: ooc.set_device_budget(given),
        "budget  ": lambda: ooc.plan(LAYER, given, device="cpu"),
    }.items():
        with pytest.raises(error) as caught:
            call()
        assert str(caught.value).startswith(f"{what.strip()}={given!r}"[:99]) and ": expected " in str(caught.value)
    assert ooc.current_device() is before


def test_the_budget_of_later_calls_means_that() -> None:
    try:
        for given, meant in MEANINGS:
            if isinstance(meant, int):
                ooc.set_device_budget(given)
                assert ooc.current_device().device_bytes == meant
    finally:
        ooc.set_device_budget(None)
    assert ooc.current_device().device_bytes is None


@pytest.mark.parametrize("given", [16 * KIB, 16.0 * KIB, "16 KiB", "16384", np.int32(16384), 1e-6, "1e-6"], ids=shown)
def test_the_budget_of_a_plan_means_that(given: Any) -> None:
    assert ooc.plan(LAYER, given, device="cpu") == ooc.plan(LAYER, parse_bytes(given, TOTAL), device="cpu")


@pytest.mark.parametrize(("given", "meant"), TEXTS, ids=shown)
def test_the_environment_means_that(given: str, meant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from ooc.runtime import context

    monkeypatch.setattr(context, "_default", type(context._default)())
    monkeypatch.setenv("OOC_BACKEND", "cpu")
    monkeypatch.setenv("OOC_DEVICE_BUDGET", given)
    if isinstance(meant, int):
        assert ooc.current_device().device_bytes == meant
    elif given:
        with pytest.raises(meant, match="OOC_DEVICE_BUDGET="):
            ooc.current_device()
    else:
        assert ooc.current_device().device_bytes is None


@pytest.mark.parametrize("given", ["16384", "16 KiB", "1.6384e4", "0.000001", "0.0001%"])
def test_the_command_line_means_that(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", LAYER, "--budget", given, "--device", "cpu"]) == 0
    assert capsys.readouterr().out == f"{ooc.plan(LAYER, parse_bytes(given, TOTAL), device='cpu')}\n"


@pytest.mark.parametrize("given", ["1.5", "0", "lots", "nan", "--budget=-1"])
def test_the_command_line_refuses_the_same(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [given] if given.startswith("--") else ["--budget", given]
    assert main(["plan", LAYER, *words, "--device", "cpu"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"ooc: budget={given.removeprefix('--budget=')!r}: expected ") and said.count("\n") == 1

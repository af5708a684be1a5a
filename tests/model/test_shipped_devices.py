"""The calibrations that come with the package: whole, honest about where they are from, ordered as the datasheets are."""

from __future__ import annotations

import datetime
import json
from itertools import pairwise

import pytest

import ooc
from ooc.model.calibration import DEVICES, closest, load_device, shipped
from tools import h200_calibration as h200

pytestmark = pytest.mark.quick

GPUS = tuple(name for name in shipped() if name != "cpu")
NAMES = {
    "Tesla K40m": "k40", "GeForce GTX TITAN X": "titanx", "Tesla P100-PCIE-16GB": "p100", "Tesla V100-SXM2-32GB": "v100",
    "NVIDIA A100-SXM4-80GB": "a100", "NVIDIA H100 80GB HBM3": "h100", "NVIDIA H200": "h200", "NVIDIA L4": "l4",
    "NVIDIA GeForce RTX 4090": "rtx4090",
}  # fmt: skip
# From the slowest to the fastest, by the datasheets; those of one row are the same: what an H200 was measured to do is in entries
# of its convolutions, beside those of its datasheet, which stand for everything else.
ORDERS = {
    "f64": (("titanx",), ("l4",), ("rtx4090",), ("k40",), ("p100",), ("v100",), ("a100",), ("h100", "h200")),
    "f32": (("k40",), ("titanx",), ("p100",), ("v100",), ("a100",), ("l4",), ("h100", "h200"), ("rtx4090",)),
    "f16": (("k40",), ("titanx",), ("p100",), ("l4",), ("v100",), ("rtx4090",), ("a100",), ("h100", "h200")),
    "bf16": (("k40",), ("titanx",), ("p100",), ("v100",), ("l4",), ("rtx4090",), ("a100",), ("h100", "h200")),
}
WITHOUT_TENSOR_CORES = ("k40", "titanx", "p100")
WITHOUT_TF32 = (*WITHOUT_TENSOR_CORES, "v100")


def rate(device: str, key: str) -> float:
    return load_device(device).compute(key).flops_per_second


def test_what_is_shipped() -> None:
    assert set(shipped()) == {"cpu", *NAMES.values()}


@pytest.mark.parametrize("name", shipped())
def test_capitals_are_the_same(name: str) -> None:
    assert load_device(name.upper()) is load_device(name) is ooc.device("Null", calibration=name.title()).model


@pytest.mark.parametrize("name", shipped())
def test_says_where_its_figures_are_from(name: str) -> None:
    raw = json.loads((DEVICES / f"{name}.json").read_text())
    assert raw["source"].startswith(("measured", "datasheet, nothing measured:"))
    assert datetime.date.fromisoformat(raw["date"])
    model = load_device(name)
    kinds = {model.origin("copies", lane) for lane in model.copies} | {model.origin("computes", key) for key in model.computes}
    assert model.origin("computes", "*/*/*") == "assumed" and ("measured" in kinds) == raw["source"].startswith("measured")
    if raw["source"].startswith("measured in part"):
        assert "(measured in part)" in raw["name"] and "datasheet" in raw["source"] and "assumed" in raw["source"]
        assert [model.origin("copies", lane) for lane in ("read", "write", "h2d", "d2h")] == ["assumed"] * 2 + ["measured"] * 2
        assert all(model.origin("computes", key) == "measured" for key in raw["fit_error"])
    if raw["source"].startswith("datasheet"):
        assert [model.origin("copies", lane) for lane in ("read", "write", "h2d", "d2h")] == ["assumed"] * 2 + ["datasheet"] * 2
        assert "(datasheet)" in raw["name"] and "assumed" in raw["source"] and closest(raw["gpu"]) == name
        assert load_device(name).memory_bytes


def test_the_h200s_is_what_its_rows_tell() -> None:
    there = json.loads(h200.CALIBRATION.read_text())
    told = h200.measured(there)
    assert not h200.differing(there, told), "python tools/h200_calibration.py --write"
    del told["computes"]["conv.fprop/f32/cudnn_tf32"]
    assert h200.differing(there, told)


@pytest.mark.parametrize("name", shipped())
def test_plans_can_be_made_with_it(name: str) -> None:
    for text in (
        "conv.fprop n=8 c=64 h=56 w=56 k=64 r=3 s=3 pad=1 dtype=f32",
        "conv.fprop n=8 c=64 h=56 w=56 k=64 r=3 s=3 pad=1 bias=1 act=relu dtype=f16 | "
        "pool.max n=8 k=64 h=56 w=56 window=2 stride=2 dtype=f16",
        "dy>db! reduce.bias n=8 k=64 h=56 w=56 dtype=f64 | x,dy>dw! conv.wgrad n=8 c=64 h=56 w=56 k=64 r=3 s=3 pad=1 dtype=f64",
    ):
        found = ooc.plan(text, "4 MiB", device="null", calibration=name)
        assert found.predicted_seconds > 0 and found.calibration == load_device(name).name


@pytest.mark.parametrize("name", GPUS)
def test_the_memory_of_a_device_that_is_not_here_is_its_own(name: str) -> None:
    assert ooc.device("null", "50%", calibration=name).device_bytes == (load_device(name).memory_bytes or 0) // 2


@pytest.mark.parametrize("dtype", ORDERS)
def test_rates_are_ordered_as_the_datasheets(dtype: str) -> None:
    rates = [[rate(name, f"any/{dtype}/cudnn") for name in row] for row in ORDERS[dtype]]
    assert {name for row in ORDERS[dtype] for name in row} == set(GPUS)
    assert all(len(set(row)) == 1 for row in rates)
    assert all(slower[0] <= faster[0] for slower, faster in pairwise(rates))


def test_links_and_memories_are_ordered_as_the_datasheets() -> None:
    for lane in ("h2d", "d2h"):
        link = {name: load_device(name).copy(lane).bytes_per_second for name in GPUS}
        assert link["k40"] < link["p100"] < link["a100"] < link["h100"] == pytest.approx(link["h200"], rel=0.02)
        assert link["a100"] == pytest.approx(link["l4"], rel=0.02) and link["l4"] == link["rtx4090"]
    width = {name: load_device(name).compute("any/f32/cudnn").bytes_per_second for name in GPUS}
    order = ("k40", "titanx", "p100", "v100", "rtx4090", "a100", "h100", "h200")
    assert all(width[a] < width[b] for a, b in pairwise(order)) and width["k40"] < width["l4"] < width["titanx"]


@pytest.mark.parametrize("name", GPUS)
def test_every_kernel_has_a_rate_that_makes_sense(name: str) -> None:
    for dtype in ORDERS:
        cudnn, lean, tf32, lean_tf32, cuda, plain, null = (
            rate(name, f"any/{dtype}/{kernel}")
            for kernel in ("cudnn", "cudnn_lean", "cudnn_tf32", "cudnn_tf32_lean", "cuda", "plain", "null")
        )
        assert lean <= cudnn <= tf32 and lean_tf32 <= tf32 and cuda == plain <= lean and null == cudnn
        assert tf32 == cudnn or (dtype == "f32" and name not in WITHOUT_TF32)


@pytest.mark.parametrize("name", GPUS)
def test_half_types_are_faster_on_tensor_cores_only(name: str) -> None:
    faster = rate(name, "conv.fprop/f16/cudnn") > rate(name, "conv.fprop/f32/cudnn")
    assert faster == (name not in WITHOUT_TENSOR_CORES)


def test_both_directions_of_an_a100s_link_at_once() -> None:
    speeds = load_device("a100").speeds(frozenset(("h2d", "d2h")))
    assert 10.5e9 < speeds["h2d"] * load_device("a100").copy("h2d").bytes_per_second < 11.5e9
    assert speeds["d2h"] * load_device("a100").copy("d2h").bytes_per_second == pytest.approx(24e9)


@pytest.mark.parametrize("gpu", NAMES)
def test_a_gpu_is_found_by_its_name(gpu: str) -> None:
    assert closest(gpu) == NAMES[gpu]


@pytest.mark.parametrize(
    ("gpu", "device"),
    [
        ("NVIDIA L40S", "rtx4090"), ("NVIDIA L40", "rtx4090"), ("NVIDIA TITAN X (Pascal)", "p100"), ("NVIDIA TITAN Xp", "p100"),
        ("GeForce GTX TITAN", "k40"), ("Tesla K80", "k40"), ("Tesla T4", "v100"), ("NVIDIA A100-PCIE-40GB", "a100"),
        ("NVIDIA A10G", "rtx4090"), ("NVIDIA H20", "h100"), ("NVIDIA GH200 480GB", "h200"), ("NVIDIA B200", "h200"),
        ("NVIDIA GeForce RTX 3060 Ti", "rtx4090"), ("of a kind that nobody knows", "h200"), ("", "h200"), ("cpu", "cpu"),
    ],
)  # fmt: skip
def test_another_gpu_is_taken_for_one_of_its_generation(gpu: str, device: str) -> None:
    assert closest(gpu) == device

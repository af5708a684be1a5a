"""How many bytes move: fused passes read what they must once and write their results once, halo aside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ooc
from ooc.api.backward_graph import WantedGradients, backward_graph
from ooc.api.layers import Conv, Layer, Pool, flatten, stages_of
from ooc.ir.op import Op
from ooc.model.calibration import DEVICES
from ooc.ops import ConvFprop
from ooc.schedule.lowering import lower
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan

N, C, K, SIZE = 8, 32, 32, 56
X = np.zeros((N, C, SIZE, SIZE), np.float32)
W, B = np.zeros((K, C, 3, 3), np.float32), np.zeros(K, np.float32)
ROW = C * SIZE * 4  # bytes of a row of x or y of one image
LAYERS: dict[str, Layer] = {
    "plain": Conv(W, padding=1),
    "activation": Conv(W, padding=1, activation="relu"),
    "pooled": Conv(W, padding=1, activation="relu", pool=2),
    "overlapping": Conv(W, padding=1, activation="relu", pool=Pool("max", 3, 2, 1)),
}


def backward(name: str) -> Op:
    """dx, dw and db of a layer from x, y and the gradient of its result, in one graph."""
    stages, _ = stages_of(X.shape, X.dtype, flatten([LAYERS[name]]), "channels_first")
    return backward_graph(stages, WantedGradients.of(("dx", "dw", "db"), {}), forward=False)[0]


def moved(plan: Plan) -> dict[str, int]:
    """Bytes moved of every tensor, over the schedule of a plan."""
    found: dict[str, int] = {}
    for step in lower(plan).steps:
        if step.kind != "run":
            found[step.what] = found.get(step.what, 0) + step.nbytes
    return found


def into(plan: Plan) -> tuple[int, int]:
    """Bytes of inputs and of outputs moved by a plan."""
    bytes_of, outputs = moved(plan), {o.name for o in plan.op.outputs}
    return sum(b for t, b in bytes_of.items() if t not in outputs), sum(b for t, b in bytes_of.items() if t in outputs)


def compulsory(op: Op) -> tuple[int, int]:
    """Bytes of all inputs and all outputs, once."""
    return sum(o.nbytes for o in op.inputs), sum(o.nbytes for o in op.outputs)


def cut_along(op: Op, **sizes: int) -> Plan:
    """A plan that is whole but for these dims."""
    tile = op.legal({**op.dims, **sizes})
    assert all(tile[d] == size for d, size in sizes.items())
    return Plan(op, tuple(tile.items()), tuple(op.dims), 2, tuple((o.name, Place.HOST) for o in op.operands), False, True)


@pytest.mark.parametrize("name", LAYERS)
def test_backward_by_images_moves_everything_once(name: str) -> None:
    plan = cut_along(backward(name), n=1)
    assert plan.tiles == N and not plan.spill_buffers
    assert into(plan) == compulsory(plan.op)


@pytest.mark.parametrize("rows", [8, 14, 28])
@pytest.mark.parametrize("name", LAYERS)
def test_backward_by_rows_moves_the_halo_besides(name: str, rows: int) -> None:
    """A tile of rows of dx, its dw and db: one row of dz more on each side, with what that needs of x, y and dy."""
    plan = cut_along(backward(name), n=1, h=rows)
    assert not plan.spill_buffers
    reads, writes = into(plan)
    inner = N * (SIZE // rows - 1)  # places where two tiles meet
    halo = {"plain": {"x": 4, "dy": 2}, "activation": {"x": 4, "dy": 2, "y": 2}, "pooled": {"x": 4, "y": 4, "dy": 1},
            "overlapping": {"x": 4, "y": 6, "dy": 1.5}}[name]  # fmt: skip
    bound = compulsory(plan.op)[0] + inner * ROW * sum(halo.values())
    assert compulsory(plan.op)[0] <= reads <= 1.1 * bound
    assert writes == compulsory(plan.op)[1]


@pytest.fixture(scope="module")
def link_bound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A machine that computes at once and moves a gigabyte per second: the fewest bytes win."""
    raw: dict[str, Any] = json.loads((DEVICES / "cpu.json").read_text())
    raw["name"] = "link bound"
    for name in ("contention", "handoff_seconds"):
        del raw[name]
    for copy in raw["copies"].values():
        copy.update(latency_seconds=1e-6, run_seconds=0.0, bytes_per_second=1e9, samples=[])
    for compute in raw["computes"].values():
        compute.update(latency_seconds=1e-6, flops_per_second=1e15, bytes_per_second=1e15, samples=[])
    path = tmp_path_factory.mktemp("machine") / "link.json"
    path.write_text(json.dumps(raw))
    return path


@pytest.mark.parametrize("budget", ["12 MiB", "6 MiB", "3 MiB"])
def test_planned_backward_of_a_layer(budget: str, link_bound: Path) -> None:
    """Filters and their gradient stay; x and dy are read once, dx is written once, as reported and as predicted."""
    dy = np.zeros((N, K, SIZE, SIZE), np.float32)
    with ooc.device("cpu", budget, threads=2, calibration=link_bound):
        ooc.conv_backward(X, W, dy, padding=1)
    report = ooc.last_report()
    assert report is not None and len(report.plans) == 1
    reads, writes = compulsory(backward("plain"))
    assert report.lane_bytes["h2d"] <= 1.1 * reads
    assert report.lane_bytes["d2h"] <= 1.1 * writes
    assert dict(report.plans[0].lane_bytes) == report.lane_bytes


@pytest.mark.parametrize(
    ("name", "budget"),
    [(name, budget) for name in LAYERS for budget in ("12 MiB", "4 MiB")] + [("plain", "2 MiB"), ("activation", "2 MiB")],
)  # fmt: skip
def test_where_the_link_binds_nothing_moves_twice(name: str, budget: str, link_bound: Path) -> None:
    op = backward(name)
    plans = ooc.device("cpu", budget, calibration=link_bound).planner.plans(op, {o.name: Place.HOST for o in op.operands})
    assert len(plans) == 1
    reads, writes = into(plans[0])
    assert reads <= 1.1 * compulsory(op)[0]
    assert writes <= 1.1 * compulsory(op)[1]


@pytest.mark.parametrize("budget", ["12 MiB", "6 MiB", "3 MiB"])
def test_forward_with_unpooled_reads_x_once_and_writes_both_results_once(budget: str) -> None:
    with ooc.device("cpu", budget, threads=2):
        y, z = ooc.conv(X, W, B, padding=1, activation="relu", pool=2, with_unpooled=True)
    report = ooc.last_report()
    assert report is not None and len(report.plans) == 1
    needed = X.nbytes + W.nbytes + B.nbytes
    assert needed <= report.lane_bytes["h2d"] <= 1.1 * needed  # halo, where the planner finds rows worth cutting
    assert report.lane_bytes["d2h"] == y.nbytes + z.nbytes


def test_forward_moves_no_intermediate() -> None:
    """Convolution, activation and pooling: neither the sums nor what pooling reads is ever moved."""
    with ooc.device("cpu", "3 MiB", threads=2):
        z = ooc.conv(X, W, B, padding=1, activation="relu", pool=2)
    report = ooc.last_report()
    assert report is not None and report.lane_bytes["d2h"] == z.nbytes
    halo = N * (report.plans[0].counts["p"] - 1) * 2 * ROW
    assert report.lane_bytes["h2d"] <= 1.1 * (X.nbytes + halo + W.nbytes + B.nbytes)


def test_filters_that_stay_are_read_once() -> None:
    """However many tiles of x pass by, w is loaded once where it does not change."""
    op = ConvFprop(N, C, (SIZE, SIZE), K, (3, 3), pad=((1, 1), (1, 1)))
    plan = cut_along(op, n=1, p=7)
    assert plan.tiles == N * 8 and moved(plan)["w"] == W.nbytes
    assert moved(plan)["x"] == X.nbytes + N * 7 * 2 * ROW and moved(plan)["y"] == op.outputs[0].nbytes

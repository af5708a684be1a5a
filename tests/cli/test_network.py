"""`ooc network`: all policies side by side, one in full, JSON, pictures, measured steps, and errors in one line."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ooc
from ooc.cli.main import main
from ooc.cli.network import NAMES, graph_of
from ooc.cli.network_plot import stays
from ooc.networks import POLICIES, models
from ooc.networks.usage import load
from ooc.runtime.target import target

SMALL = ["network", "vgg16", "--side", "32", "--width", "0.125", "--batch", "8"]
FIELDS = ["device_bytes", "pinned_bytes", "moved_bytes", "predicted_seconds", "overhead_percent", "bound_seconds", "fates", "why"]


def small(**options: Any) -> ooc.Graph:
    return models.vgg(16, side=32, width=0.125, **options)


def lines(capsys: pytest.CaptureFixture[str], *argv: str) -> list[str]:
    assert main([*argv]) == 0
    out, err = capsys.readouterr()
    assert not err
    return out.splitlines()


def complaint(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main([*argv]) == 2
    err = capsys.readouterr().err
    assert err.startswith("ooc: ") and err.count("\n") == 1
    return err


# ---- plans


@pytest.mark.quick
def test_all_policies_are_rows(capsys: pytest.CaptureFixture[str]) -> None:
    headline, header, *rows = lines(capsys, *SMALL, "--budget", "8900 KiB", "--device", "p100")
    assert headline.startswith("vgg16: a training step, batch 8, budget 8.69 MiB [NVIDIA Tesla P100")
    assert header.split()[:3] == ["policy", "fits", "device"]
    assert [row.split()[0] for row in rows] == list(NAMES)
    told = {row.split()[0]: row.split()[1:] for row in rows}
    assert told["keep"][0] == "needs" and len(told["keep"]) == 3
    assert told["stream"][0] == "yes" and told["stream"][-2].endswith("%")


def test_json_says_what_the_library_says(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [json.loads(line) for line in lines(capsys, *SMALL, "--budget", "8900 KiB", "--device", "p100", "--json")]
    assert [row["policy"] for row in rows] == list(NAMES)
    device, graph = ooc.device("null", calibration="p100"), small()
    free = graph.plan(batch=8, policy="keep", budget=1 << 60, device=device).predicted_seconds
    for row in rows:
        assert row["kept_seconds"] == free and row["budget"] == 8900 << 10
        try:
            plan = graph.plan(batch=8, policy=row["policy"], budget="8900 KiB", device=device)
        except ooc.BudgetError as error:
            assert not row["fits"] and row["error"] == str(error) and row["smallest_bytes"] == error.smallest_bytes
            assert all(row[name] is None for name in FIELDS)
            continue
        assert row["fits"] and row["error"] is None and row["smallest_bytes"] == plan.smallest_bytes
        moved = plan.lane_bytes.get("h2d", 0) + plan.lane_bytes.get("d2h", 0)
        found = [plan.peaks["device"], plan.peaks["pinned"] + plan.peaks["staging"], moved, plan.predicted_seconds,
                 100 * (plan.predicted_seconds / free - 1), plan.bound_seconds, plan.fates, plan.why]  # fmt: skip
        assert [row[name] for name in FIELDS] == found


def test_one_policy_is_its_plan(capsys: pytest.CaptureFixture[str]) -> None:
    plan = small().plan(batch=8, policy="vdnn_all", budget="12 MiB", device=ooc.device("null", calibration="k40"))
    out = lines(capsys, *SMALL, "--budget", "12 MiB", "--device", "k40", "--policy", "vdnn_all")
    assert out[:-1] == str(plan).splitlines() and out[-1].startswith("overhead")
    (row,) = map(json.loads, lines(capsys, *SMALL, "--budget", "12 MiB", "--device", "k40", "--policy", "vdnn_all", "--json"))
    assert row["predicted_seconds"] == plan.predicted_seconds


def test_a_plan_for_a_card_fits_the_card(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = map(json.loads, lines(capsys, *SMALL, "--device", "p100", "--policy", "keep", "--json"))
    assert row["budget"] == target("p100").backend.total_bytes == 16 << 30
    (row,) = map(json.loads, lines(capsys, *SMALL, "--device", "cpu", "--policy", "keep", "--json"))
    assert row["budget"] is None


def test_what_cannot_serve_the_network_is_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["network", "wrn10-1", "--side", "8", "--batch", "4"]
    assert any(line.startswith("modnn ") and "statistics over" in line for line in lines(capsys, *argv))
    rows = [json.loads(line) for line in lines(capsys, *argv, "--json")]
    modnn = next(row for row in rows if row["policy"] == "modnn")
    assert "statistics over the whole batch" in modnn["error"] and not modnn["fits"] and modnn["smallest_bytes"] is None
    assert sum(row["fits"] for row in rows) == len(NAMES) - 1


def test_options_reach_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    argv = [*SMALL, "--device", "p100", "--policy", "vdnn_all", "--classes", "7", "--dropout", "0"]
    out = lines(capsys, *argv, "--home", "disk", "--deterministic", "--table")
    plan = small(classes=7, dropout=0).plan(
        batch=8, policy="vdnn_all", device=ooc.device("null", calibration="p100"), budget=16 << 30, home="disk",
        deterministic=True,
    )  # fmt: skip
    table = small(classes=7, dropout=0).table().splitlines()
    assert out == [*table, "", *str(plan).splitlines(), out[-1]]
    told = lines(capsys, *argv, "--inference")
    assert told[0].endswith("inference, batch 8")


def test_a_graph_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "own.json"
    file.write_text(small().to_json())
    more = ["--device", "p100", "--policy", "vdnn_all"]
    assert lines(capsys, "network", str(file), *SMALL[-2:], *more) == lines(capsys, *SMALL, *more)
    assert "sizes of its own" in complaint(capsys, "network", str(file), "--batch", "8", "--side", "64")


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("alexnet", "alexnet"), ("OverFeat", "overfeat"), ("vgg19", "vgg19"), ("resnet18", "resnet18"), ("wrn16-2", "wrn16_2"),
     ("googlenet", "googlenet"), ("unet3d", "unet3d")],
)  # fmt: skip
def test_networks_by_name(name: str, wanted: str) -> None:
    assert graph_of(name, side=32, width=0.25, classes=None).name == wanted


@pytest.mark.parametrize("budget", [[], ["--budget", "9 MiB"]])
def test_inference_by_all_policies(budget: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    rows = [json.loads(line) for line in lines(capsys, *SMALL, "--inference", "--json", "--device", "p100", *budget)]
    assert all(row["fits"] and row["fates"] == {} for row in rows) and len(rows) == len(NAMES)


# ---- measured


@pytest.mark.parametrize("more", [[], ["--inference"]], ids=["train", "inference"])
def test_a_step_is_measured_beside_its_prediction(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    argv = [*SMALL, "--budget", "12 MiB", "--device", "p100", "--policy", "vdnn_conv", "--run", *more]
    (row,) = map(json.loads, lines(capsys, *argv, "--json"))
    here = small().plan(batch=8, policy="vdnn_conv", budget="12 MiB", device="cpu", train=not more)
    assert row["here_predicted_seconds"] == here.predicted_seconds and row["here_measured_seconds"] > 0
    assert row["predicted_seconds"] != here.predicted_seconds
    assert lines(capsys, *argv)[-1].startswith("measured")


def test_all_policies_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["network", "alexnet", "--side", "16", "--width", "0.05", "--batch", "2", "--device", "cpu", "--run"]
    _, header, *rows = lines(capsys, *argv)
    assert header.split()[-2:] == ["here", "measured"]
    assert all(float(row.split()[-1]) > 0 for row in rows if row.split()[1] == "yes")


# ---- pictures


@pytest.mark.parametrize("policy", ["keep", "vdnn_all", "superneurons", "modnn", "layrub", "stream"])
@pytest.mark.parametrize(("device", "home"), [("p100", "pinned"), ("p100", "disk"), ("cpu", "disk"), ("cpu", "pinned")])
def test_memory_over_time_keeps_within_what_is_laid_out(policy: str, device: str, home: str) -> None:
    plan = small().plan(batch=8, policy=policy, budget="20 MiB", device=target(device), home=home)
    used = load(plan)
    laid = sum(plan.peaks[s] for s in (("device", "staging", "pinned") if device == "cpu" else ("device",)))
    assert np.all(np.diff(used.times) >= 0) and used.times[-1] <= plan.predicted_seconds
    assert 0 < used.nbytes.max() <= laid and used.nbytes.min() >= 0 and used.nbytes[-1] == 0


def test_activations_are_on_the_device_as_their_fates_say() -> None:
    plan = small().plan(batch=8, policy="vdnn_all", device=target("p100"))
    found = stays(plan)
    assert {*found} == {*plan.fates}
    for name, spans in found.items():
        assert len(spans) == {"keep": 1, "offload": 2}[plan.fates[name]]
        assert all(0 <= a < b <= plan.predicted_seconds for a, b in spans)
    again = small().plan(batch=8, policy="superneurons", device=target("p100"))
    assert all(len(stays(again)[name]) > 1 for name, fate in again.fates.items() if fate == "recompute")
    streamed = small().plan(batch=8, policy="stream", device=target("p100"))
    assert all(spans for spans in stays(streamed).values())


def test_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    png, svg = tmp_path / "a.png", tmp_path / "a.svg"
    assert lines(capsys, *SMALL, "--policy", "superneurons", "--plot", str(png))[-1] == f"drawn     {png}"
    assert png.read_bytes().startswith(b"\x89PNG")
    lines(capsys, *SMALL, "--policy", "modnn", "--budget", "9 MiB", "--device", "cpu", "--plot", str(svg))
    assert ET.parse(svg).getroot().tag.endswith("svg")


# ---- mistakes


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["network", "vgg17", "--batch", "8"], "expected one of 11, 13, 16, 19"),
        (["network", "lenet", "--batch", "8"], "network 'lenet': expected alexnet"),
        (["network", "nowhere.json", "--batch", "8"], "nowhere.json"),
        (["network", "vgg16"], "--batch"),
        (["network", "vgg16", "--batch", "0"], "batch=0"),
        ([*SMALL, "--policy", "lucky"], "lucky"),
        ([*SMALL, "--device", "tpu"], "device 'tpu'"),
        ([*SMALL, "--budget", "lots"], "budget='lots'"),
        ([*SMALL, "--home", "cloud"], "home='cloud'"),
        ([*SMALL, "--pinned", "x"], "pinned='x'"),
        ([*SMALL, "--pinned", "1 KiB", "--policy", "vdnn_all"], "of pinned memory"),
        ([*SMALL, "--width", "nan"], "width"),
        ([*SMALL, "--budget", "1 MiB", "--policy", "keep"], "at least"),
        ([*SMALL, "--plot", "a.png"], "--policy"),
        ([*SMALL, "--policy", "keep", "--plot", "a.gif"], "a.gif"),
        ([*SMALL, "--policy", "keep", "--plot", "/nowhere/at/all.png"], "/nowhere/at/all.png"),
    ],
)
def test_mistakes_are_one_line(more: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in complaint(capsys, *more)


def test_a_file_that_is_no_graph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.json"
    for text in ("", "[]", "{}", '{"name": "a", "inputs": 1, "layers": [], "outputs": []}'):
        file.write_text(text)
        assert "not a graph" in complaint(capsys, "network", str(file), "--batch", "8")


def test_the_document_has_every_policy() -> None:
    text = (Path(__file__).parents[2] / "docs" / "networks.md").read_text()
    rows = [line.split("`")[1] for line in text.split("| policy |")[1].splitlines() if line.startswith("| `")]
    assert rows[: len(POLICIES)] == list(POLICIES)
    for name, policy in POLICIES.items():
        (row,) = (line for line in text.splitlines() if line.startswith(f"| `{name}` |"))
        assert all(f"{option}=" in row for option in policy.options)

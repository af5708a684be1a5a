"""The published figures in simulation: the network is VGG16, places are as stated, tables and results agree with each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ooc
from ooc.model.calibration import load_device
from ooc.schedule.place import Place
from perfmodel.__main__ import main
from perfmodel.bench import figures
from perfmodel.bench.figures import PublishedNetwork
from perfmodel.bench.vgg16 import GRADIENT, SHARE, plans, vgg16

ROOT = Path(figures.__file__).parents[1]
RESULTS = ROOT / "results" / "simulated" / "figures.jsonl"
GIB = 1 << 30


def test_the_network_is_vgg16() -> None:
    """138.4 M parameters, 15.5 G multiplications forward and twice that back (but for the gradient of the pictures)."""
    step = vgg16(1)
    assert sum(size for name, size in step.nbytes.items() if name[0] in "wb") == 4 * 138_357_544
    flops = {way: sum(c.op.flops(c.op.dims) for c in step.calls if c.name.startswith(way)) for way in ("forward", "backward")}
    assert flops["forward"] == pytest.approx(2 * 15.47e9, rel=0.01)
    assert flops["backward"] == pytest.approx(2 * flops["forward"], rel=0.02)
    assert len(step.calls) == 32 and [c.name for c in step.calls[15:17]] == ["forward 16", "backward 16"]


def test_every_tensor_has_one_size() -> None:
    step = vgg16(3, side=32)
    for call in step.calls:
        assert all(step.nbytes[call.tensors[o.name]] == o.nbytes for o in call.op.operands)


def test_what_the_published_figure_needs() -> None:
    """The poster: 128 pictures fit into 16 GB, 256 do not, 1024 take about 60 GB (without gradients)."""
    assert vgg16(128).most_bytes < SHARE * 16 * GIB < 16 * GIB < vgg16(256).most_bytes
    kept = sum(size for name, size in vgg16(1024).nbytes.items() if name[0] in "xyz")
    assert kept == pytest.approx(62.4e9, rel=0.01)


def test_first_come_first_served() -> None:
    """What is on the device fits at every call; gradients make room when nobody reads them any more."""
    step, memory = vgg16(256), 16 * GIB
    fixed = {t: p for call, places, _ in step.places(memory) for t, p in zip(call.tensors.values(), places.values(), strict=True)}
    lasting = sum(step.nbytes[t] for t, p in fixed.items() if p is Place.DEVICE and not t.startswith(GRADIENT))
    for call, places, used in step.places(memory):
        live = sum(step.nbytes[t] for o, t in call.tensors.items() if t in call.gradients and places[o] is Place.DEVICE)
        assert used == lasting + live <= SHARE * memory
    assert fixed["w13"] is fixed["y0"] is Place.DEVICE and fixed["dz0"] is Place.PINNED
    assert all(set(places.values()) == {Place.DEVICE} for _, places, _ in vgg16(128).places(memory))


def test_plans_keep_to_what_is_left() -> None:
    step, memory = vgg16(256, side=32), 512 << 20
    device = figures.one_kernel("p100")
    used = {call.name: held for call, _, held in step.places(memory)}
    for call, found in plans(step, device, memory):
        assert all(p.peak_bytes <= memory - used[call.name] for p in found)
    assert all(p.peak_bytes < memory for _, found in plans(step, device, None) for p in found)


def test_unified_memory_by_hand() -> None:
    """x 1 GiB in, y 1 GiB out; with half a GiB less memory than that and the filters, that much is evicted as well."""
    op = ooc.plan("conv.fprop n=1 c=256 h=1024 w=1024 k=256 r=3 s=3 pad=1 dtype=f32", "1 GiB", device="null").op
    model = load_device("p100")
    w = 4 * 256 * 256 * 9
    computing = 1e-5 + 2 * 256 * 256 * 9 * 2**20 / 7e12 + (2 * GIB + w) / 5.9e11
    in_core, unified, prefetch = figures._unified(op, model, 16 * GIB)
    # taps in the padding are not computed
    assert in_core == pytest.approx(computing, rel=0.01)
    assert in_core is not None and prefetch - in_core == pytest.approx(2e-5 + (GIB + w) / 11.7e9 + GIB / 12.8e9)
    assert unified - in_core == pytest.approx(1e-5 + (GIB + w) / 5.88e9 + GIB / 12.8e9, rel=0.01)
    tight, more, _ = figures._unified(op, model, 2 * GIB + w - GIB // 2)
    assert tight is None and more - unified == pytest.approx(GIB / 2 / 12.8e9)


def test_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(figures, "vgg16", lambda batch: vgg16(batch, side=32))
    few = (PublishedNetwork("a", "p100", (128,), "+1 %", 1 << 30), PublishedNetwork("b", "h200", (128,), "", 1 << 30, tf32=True))
    monkeypatch.setattr(figures, "NETWORKS", few)
    monkeypatch.setattr(
        figures, "problems", lambda name: [ooc.plan("conv.fprop n=1 c=8 h=64 w=64 k=8 s=3 r=3", device="null").op]
    )
    assert main(["figures", "--out", str(tmp_path / "rows.jsonl")]) == 0
    shown = capsys.readouterr().out
    head, *rows = map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())
    assert "system" in head and [r["figure"] for r in rows] == ["ooc_cuDNN, Figure 2", "a", "b"]
    assert "+1 %" in shown and "1.45x and 1.42x" in shown and "NVIDIA H200 (measured in part), TF32" in shown


# ---- what is committed


def committed() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()][1:]
    return [r for r in rows if "channels" in r], [r for r in rows if "batch" in r]


def test_the_tables_of_the_documentation_are_the_committed_results() -> None:
    assert figures.tables(*committed(), markdown=True) in (ROOT.parent / "docs" / "performance.md").read_text()


def test_the_committed_results_say_that_they_are_predictions() -> None:
    micro, networks = committed()
    assert all("(datasheet)" in row["device"] for row in (*micro, *networks))
    assert {r["batch"] for r in networks if r["figure"] == figures.OOC} == set(figures.BATCHES)
    assert [r["published_over_ooc"] for r in micro if r["published_over_ooc"]] == [figures.MICRO]

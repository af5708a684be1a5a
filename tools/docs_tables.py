"""Tables of measured rows in the documentation, written from `perfmodel/results`.

A table that is written here stands below a comment `<!-- rows: NAME -->`. Without an argument: say which tables differ from
their rows, and end with 1 if any does. With `--write`: write them anew.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import ooc
from ooc import Place, Plan
from ooc.schedule.budget import show_bytes
from perfmodel.bench.gpu.problem import WORKLOADS, Workload
from perfmodel.report.table import three

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "perfmodel" / "results"
MARK = re.compile(r"^<!-- rows: (\w+) -->\n((?:\|.*\n)*)", re.MULTILINE)

Row = dict[str, Any]
Cells = Sequence[str]


def rows_of(name: str) -> list[Row]:
    """The rows of a file below `perfmodel/results`, without its header."""
    lines = (RESULTS / name).read_text().splitlines()
    return [row for row in map(json.loads, filter(None, lines)) if "system" not in row]


# ---- layers beside PyTorch

SETS = {"VGG16": "vgg16", "ResNet-50": "resnet50", "3-D U-Net": "unet3d", "MobileNet": "mobilenet"}


def _ratios(file: str, problem_set: str, contestant: str) -> list[float]:
    """A contestant's seconds over PyTorch's, of a set's layers."""
    rows = (r for r in rows_of(file) if r.get("set") == problem_set)
    return [r["seconds"][contestant] / r["seconds"]["torch"] for r in rows]


def layers(stem: str) -> list[Cells]:
    """Seconds over PyTorch's, by set: in memory with the slowest layer, from file to file."""
    table: list[Cells] = [
        ("set", "forward, in memory", "slowest", "backward, in memory", "slowest", "forward, files", "backward, files")
    ]
    files = (f"cpu/{stem}.jsonl", f"cpu/{stem}--backward.jsonl")
    for title, names in (*((title, [name]) for title, name in SETS.items()), ("all", list(SETS.values()))):
        cells = [title]
        for file in files:
            ratios = [x for name in names for x in _ratios(file, name, "memory")]
            cells += [f"{statistics.geometric_mean(ratios):.2f}", f"{max(ratios):.2f}"]
        for file in files:
            cells.append(f"{statistics.geometric_mean([x for name in names for x in _ratios(file, name, 'ooc')]):.2f}")
        table.append(cells)
    return table


# ---- where a convolution's time goes


def _layer(problem: str) -> str:
    """A descriptor as people say it."""
    of = dict(pair.split("=") for pair in problem.split()[1:])
    extents, taps = [of[d] for d in "dhw" if d in of], [of[d] for d in "trs" if d in of]
    words = [f"{of['c']} -> {of['k']}", " x ".join(extents), " x ".join(taps)]
    if "stride" in of:
        words.append(f"stride {of['stride']}")
    if of.get("groups", "1") != "1":
        words.append("depthwise" if of["groups"] == of["c"] == of["k"] else f"{of['groups']} groups")
    if of.get("dtype", "f32") != "f32":
        words.append(of["dtype"])
    return ", ".join(words)


def where() -> list[Cells]:
    """Per cent of a kernel's samples, and its speed."""
    table: list[Cells] = [("layer", "", "GF/s", "of the peak", "multiply", "pack", "store", "wait", "other")]
    before = ""
    for row in rows_of("cpu/where.jsonl"):
        if "problem" not in row:
            continue
        layer, kind = _layer(row["problem"]), row["problem"].split()[0].removeprefix("conv.")
        shares = [f"{row['shares'][name]:.0f}" for name in ("multiply", "pack", "store", "wait", "other")]
        first = layer if layer != before else ""
        table.append((first, f"{kind}, {row['kernel']}", f"{row['gflops']:.0f}", f"{row['of_peak'] * 100:.0f} %", *shares))
        before = layer
    return table


# ---- filters of many taps

LABELS = {"depthwise 64": "64, depthwise"}
FILTERS = {
    ("1 -> 1", False): "1024 x 1024, 2^20, 102^3",
    ("1 -> 1", True): "4096 x 4096",
    ("8 -> 8", False): "512 x 512, 2^18, 64^3",
    ("64 -> 64", False): "256 x 256, 2^16, 40^3",
    ("depthwise 64", False): "256 x 256, 2^16, 40^3",
}


def filters() -> list[Cells]:
    """Seconds over those of the best of SciPy and PyTorch, by channels."""
    title = ("channels", "numbers", "problems", "geometric mean", "worst", "largest error against f64, over the largest result")
    table: list[Cells] = [title]
    rows = [r for r in rows_of("cpu/filters.jsonl") if r.get("ratio")]
    for (channels, large), numbers in FILTERS.items():
        some = [r for r in rows if r["problem"].startswith(f"{channels}, ") and ("4096x4096" in r["problem"]) is large]
        worst = max(some, key=lambda r: float(r["ratio"]))
        taps = worst["problem"].split(", ")[-1].replace("x", " x ")
        mean = statistics.geometric_mean([r["ratio"] for r in some])
        error = max(r["errors"]["ooc"] for r in some)
        measured = (f"{mean:.2f}", f"{worst['ratio']:.2f}: {taps}", f"{error:.1e}")
        table.append((LABELS.get(channels, channels), numbers, str(len(some)), *measured))
    return table


# ---- training steps

TRAINED = {"vgg16": "VGG16", "resnet18": "ResNet-18", "unet3d": "3-D U-Net"}
WAYS = ("keep", "auto", "torch", "torch_channels_last", "torch_save_on_cpu", "torch_checkpoint", "torch_memory_budget")


def _steps() -> dict[str, dict[str, Row]]:
    steps: dict[str, dict[str, Row]] = {}
    for row in rows_of("cpu/networks_eighth.jsonl"):
        if "seconds" in row:
            steps.setdefault(row["network"], {})[row["policy"]] = row
    return steps


def _times(row: Row) -> str:
    return f"{row['seconds']:.2f}" if row["policy"] == "keep" else f"{row['over_keep']:.2f} x"


def _mib(row: Row) -> str:
    return f"{row['grown_bytes'] / 2**20:.0f}"


def training() -> list[Cells]:
    """Seconds and memory of a training step, a line each."""
    peers = ("PyTorch", "channels last", "save_on_cpu", "checkpoint", "memory budget")
    table: list[Cells] = [("network", "keep in memory", "auto, an eighth", *peers)]
    for name, steps in _steps().items():
        table.append((f"{TRAINED[name]}, seconds", *(_times(steps[way]) for way in WAYS)))
        table.append(("MiB", *(_mib(steps[way]) for way in WAYS)))
    return table


def training_compared() -> list[Cells]:
    """Seconds and memory of a training step, in one line."""
    ways = [way for way in WAYS if way != "torch_channels_last"]
    title = ("network", "ours, all in memory", "auto, an eighth", "PyTorch", "save_on_cpu", "checkpoint", "memory budget")
    table: list[Cells] = [title]
    for name, steps in _steps().items():
        times = [_times(steps[way]) + (" s" if way == "keep" else "") for way in ways]
        table.append((TRAINED[name], *(f"{time}, {_mib(steps[way])} MiB" for time, way in zip(times, ways, strict=True))))
    return table


# ---- an H200

H200 = {
    "3 x 3, 2048 -> 2048 at 512 x 512, f32": "W1 512 4294967296 fma",
    "the same in TF32": "W1 512 4294967296 tf32",
    "3 x 3 x 3, 32 -> 32 at 320 cubed, TF32": "W2 320 4294967296 tf32",
    "7 x 7 of stride 2, 3 -> 32 at 16384 x 16384, f16": "W3 16384 4294967296 fma",
    "transposed 3 x 3 of stride 2, 64 -> 64 at 2048 x 2048, f32": "W7 transposed 2048 4294967296 fma",
}
RUNS = ("h200/bench.jsonl", "h200/second/rows.jsonl", "h200/third/rows.jsonl", "h200/peers.jsonl")


def _medians(file: str) -> dict[str, float]:
    return {row["key"]: row["seconds"]["median"] for row in rows_of(file) if isinstance(row.get("seconds"), dict)}


def h200_layers() -> list[Cells]:
    """Seconds of layers in each run, in core and from pinned memory or a file."""
    table: list[Cells] = [("", "", "first", "second", "third", "PyTorch in core")]
    *runs, peers = map(_medians, RUNS)
    for title, key in H200.items():
        for name, ours in (("in core", "in_core"), ("from a file" if key.startswith("W3") else "pinned", "ooc_pinned")):
            seconds = [run.get(f"{key} {ours}") for run in runs]
            seconds.append(peers.get(f"{key} torch_in_core") if ours == "in_core" else None)
            table.append((title if ours == "in_core" else "", name, *(three(s) if s else "" for s in seconds)))
    return table


HOMES = {"in core": Place.DEVICE, "pinned": Place.PINNED, "pageable": Place.HOST}
MEASURED = {"in core": "in_core", "pinned": "ooc_pinned", "pageable": "ooc_numpy"}


def _planned(work: Workload, scale: int, tf32: bool, home: str) -> Plan:
    """The plan of a row of the GPU benchmark for an H200."""
    op = work.op(scale)
    places = {o.name: HOMES[home] for o in op.operands}
    if work.file and home != "in core":
        places[op.inputs[0].name] = Place.DISK
    with ooc.device("null", None if home == "in core" else "4 GiB", calibration="h200", tf32=tf32):
        return ooc.plan(op, places=places)


def _shown(plan: Plan) -> str:
    """How many tiles, the extents that are cut, the kernel and its workspace."""
    cut = " ".join(f"{d}={size}" for d, size in plan.tile if size < plan.op.dims[d]) or "whole"
    return f"{plan.tiles}: {cut}; {plan.kernel}; {show_bytes(plan.workspace_bytes)}"


def h200_plans() -> list[Cells]:
    """Plans of the GPU benchmark's rows at first and now, with predicted seconds and those of the newest run that has them."""
    table: list[Cells] = [("row", "from", "at first", "s", "now", "s", "measured")]
    before = {(row["row"], row["from"]): row for row in rows_of("simulated/h200_plans.jsonl")}
    measured = _medians("h200/second/rows.jsonl") | _medians("h200/third/rows.jsonl")
    scales = [(work, 1, tf32) for work in WORKLOADS for tf32 in work.tf32]
    for work, scale, tf32 in (*scales, *((WORKLOADS[0], 2, tf32) for tf32 in WORKLOADS[0].tf32)):
        size, key = work.sizes[scale], "tf32" if tf32 else "fma"
        row = f"{work.name} {size} {'tf32' if tf32 else work.op(scale).dtype}"
        for home in HOMES:
            plan, first = _planned(work, scale, tf32, home), before[row, home]
            seconds = measured.get(f"{work.name} {size} {4 << 30} {key} {MEASURED[home]}")
            now = (_shown(plan), f"{plan.predicted_seconds:.3g}", three(seconds) if seconds else "")
            table.append((row, home, first["plan"], f"{first['seconds']:.3g}", *now))
    return table


TABLES: dict[str, tuple[str, Callable[[], list[Cells]]]] = {
    "layers": ("docs/performance.md", lambda: layers("layers")),
    "layers_avx2": ("docs/performance.md", lambda: layers("layers_avx2")),
    "where": ("docs/performance.md", where),
    "filters": ("docs/performance.md", filters),
    "training": ("docs/performance.md", training),
    "training_compared": ("docs/comparison.md", training_compared),
    "h200_layers": ("docs/gpu.md", h200_layers),
    "h200_plans": ("docs/gpu.md", h200_plans),
}


def markdown(cells: Iterable[Cells]) -> str:
    """A table, its first row the head."""
    head, *body = ["| " + " | ".join(row) + " |" for row in cells]
    columns = head.count("|") - 1
    return re.sub(r"\|  (?=\|)", "| ", "\n".join((head, "|" + "---|" * columns, *body, "")))


def differing(write: bool = False, root: Path = ROOT) -> list[str]:
    """Names of tables that are not what their rows make, or stand nowhere; write: make them so."""
    wrong = []
    for document in sorted({document for document, _ in TABLES.values()}):
        text, names = (root / document).read_text(), [name for name, (page, _) in TABLES.items() if page == document]
        tables = {name: markdown(TABLES[name][1]()) for name in names}
        there = {m[1]: m[2] for m in MARK.finditer(text)}
        wrong += [name for name in names if there.get(name) != tables[name]]
        wrong += [name for name in there if name not in tables]
        if write:
            new = MARK.sub(lambda m, lines=tables: f"<!-- rows: {m[1]} -->\n{lines.get(m[1], m[2])}", text)  # type: ignore[misc]
            (root / document).write_text(new)
    return wrong


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the tables anew")
    write = parser.parse_args().write
    wrong = differing(write)
    for name in wrong:
        page = TABLES[name][0] if name in TABLES else "docs"
        print(f"{page}: table {name} {'written' if write else 'is not what its rows make'}")
    return 0 if write or not wrong else 1


if __name__ == "__main__":
    sys.exit(main())

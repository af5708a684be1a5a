"""The measured entries of the H200's calibration, written from the rows of its runs (`perfmodel/results/h200`).

No run has lasted for a whole calibration, but cuDNN's algorithms were timed on some 300 tiles, kernels of ooc's own in whole
networks, and the link by itself. Without an argument: say whether `ooc/model/devices/h200.json` has what these rows tell, and end
with 1 if it has not. With `--write`: write it anew; entries that no row tells stay as they are.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ooc.backends.algorithms import EXACT, IMAGES, REFUSED, ROUNDED, algorithm_bytes
from ooc.backends.cuda.tuning import SCRATCH
from ooc.ir.op import Op
from ooc.model.calibration import DEVICES
from ooc.model.cost import Compute
from ooc.ops import Convolution
from ooc.ops.descriptor import parse
from perfmodel.calibrate.entries import compute_entry, show_calibration
from perfmodel.calibrate.fit import fit_costs

CALIBRATION = DEVICES / "h200.json"
ROWS = Path(__file__).parents[1] / "perfmodel" / "results" / "h200"
KINDS = ("conv.fprop", "conv.dgrad", "conv.wgrad")
LEAST = 6  # tiles that an entry is fitted to
WIDTHS = (32, 64, 128)  # output channels at a time, the one that fits best is taken
OWN = ("activation_backward", "bn.apply", "bn.moments", "bn.pull", "bn.sums", "pool.max", "pool_backward.max", "reduce.bias")
IN_ORDER = (
    "conv.wgrad/*/plain", "reduce.bias/*/plain", "reduce.positions/*/plain", "bn.moments/*/plain", "bn.sums/*/plain",
    "softmax.sum/*/plain", "softmax_backward.dot/*/plain", "softmax_backward.sum/*/plain",
)  # fmt: skip
ALONE, LAUNCH, MOST_LATENCY = (
    2.1e-5,
    1e-5,
    2e-4,
)  # seconds that a tile takes more by itself than in a row; of a call, at least, at most
TOLD = 1e-3  # seconds in a network's step from which on a kernel's time is believed

Family = tuple[str, str, str]  # kind, dtype, kernel
Choice = tuple[float, int, int]  # seconds, algorithm, bytes of workspace


class Seen(NamedTuple):
    """A tile, all of an op, and how cuDNN's algorithms did that want at most so many bytes; math: as cuDNN was told."""

    op: Op
    math: str
    choices: list[Choice]
    most: float = math.inf


class Timed(NamedTuple):
    """A tile, all of an op, and the seconds of a family."""

    op: Op
    seconds: float


def rows_of(name: str) -> list[dict[str, Any]]:
    """The rows of a file below `ROWS`, without its header."""
    return [json.loads(line) for line in (ROWS / name).read_text().splitlines()[1:]]


# ---- tiles that cuDNN was timed on


def probed() -> Iterator[Seen]:
    """Tiles of the second run's probe, dense and channels first."""
    for row in rows_of("second/probe.jsonl"):
        words = str(row.get("key", "")).split()
        if words[:1] == ["algorithms"] and words[-1] == "channels_first":
            *text, dtype, how, _ = words[1:]
            choices = [(c["seconds"], c["algorithm"], c["workspace_bytes"]) for c in row["measured"]]
            yield Seen(parse(" ".join((*text, f"dtype={dtype}"))), how, choices)


def images() -> Iterator[Seen]:
    """Strips and planes as images, of the second run."""
    for row in rows_of("second/images.jsonl"):
        words = str(row.get("key", "")).split()
        if words[:1] in (["strips"], ["planes"]) and "strided" not in words:
            op = _convolution(row["way"], "f32", row["x"], row["w"], row["pad"])
            choices = [(op.effort(op.dims) / rate / 1e12, code, mib << 20) for code, rate, mib, _ in row["tflops"]]
            yield Seen(op, row["math"], choices)


def tuned() -> Iterator[Seen]:
    """Tiles of the third run's layers and networks, those without gaps."""
    for row in rows_of("third/algorithms.jsonl"):
        tile = row["tile"]
        dense = all(_dense(tile[name], tile[f"{name}_strides"]) for name in "xy")
        if dense and not tile["channels_last"]:
            steps = {key: tile[key] for key in ("stride", "dilation")}
            op = _convolution(tile["direction"], tile["dtype"], tile["x"], tile["w"], tile["pad"], tile["groups"], **steps)
            yield Seen(op, tile["math"], [(c[0], c[1], c[3]) for c in row["choices"]], row["within_bytes"])


def _dense(shape: list[int], strides: list[int]) -> bool:
    """Whether there are no gaps, whatever the strides of axes of extent 1."""
    expected = np.cumprod([1, *shape[:0:-1]])[::-1]
    return all(extent == 1 or stride == dense for extent, stride, dense in zip(shape, strides, expected, strict=True))


def _convolution(
    direction: str, dtype: str, x: list[int], w: list[int], pad: list[int], groups: int = 1, **steps: list[int]
) -> Op:
    rank = len(pad)
    extents = [f"{d}={e}" for d, e in zip("dhw"[-rank:], x[2:], strict=True)]
    taps = [f"{d}={e}" for d, e in zip("trs"[-rank:], w[2:], strict=True)]
    spans = [f"{key}={'x'.join(map(str, value))}" for key, value in {"pad": pad, **steps}.items()]
    sizes = [f"n={x[0]}", f"c={x[1]}", *extents, f"k={w[0]}", *taps, *spans, f"groups={groups}", f"dtype={dtype}"]
    return parse(f"conv.{direction} {' '.join(sizes)}")


def families_of(op: Op, how: str, choices: list[Choice], most: float) -> Iterator[tuple[str, float]]:
    """The families that may compute a tile, each with the seconds of the fastest algorithm that has room in it."""
    assert isinstance(op, Convolution)
    exact = how == "fma" or op.dtype != "f32"  # half types have tensor cores with and without TF32
    for name, (algorithms, _) in (EXACT if exact else ROUNDED).items():
        if algorithms.why_not(op) or (algorithms.images and op.kind != "conv.wgrad" and op.n < IMAGES):
            continue
        code, room = algorithms.codes.get(op.kind[5:]), max(SCRATCH, int(algorithm_bytes(op, op.dims, algorithms)))
        if room >= REFUSED or room > max(SCRATCH, most):
            continue
        fitting = [seconds for seconds, number, nbytes in choices if code in (None, number) and nbytes <= room]
        if fitting:
            yield name, min(fitting)


def timed_families() -> dict[Family, list[Timed]]:
    """All tiles by the family that computes them."""
    timed: dict[Family, list[Timed]] = defaultdict(list)
    for seen in (*probed(), *images(), *tuned()):
        for name, seconds in families_of(*seen):
            timed[seen.op.kind, seen.op.dtype, name].append(Timed(seen.op, seconds))
    return {family: tiles for family, tiles in timed.items() if len(tiles) >= LEAST}


# ---- entries


def fitted(family: Family, tiles: list[Timed]) -> tuple[dict[str, float], float]:
    """The entry of a family, of the width by which its tiles are least off, and how far they are in the median."""
    entries = [_entry(family[2], tiles, width) for width in WIDTHS]
    return min(entries, key=lambda entry: _off(Compute(**entry[0]), family[2], tiles))  # type: ignore[arg-type]


def _entry(kernel: str, tiles: list[Timed], width: int) -> tuple[dict[str, float], float]:
    ops, seconds = map(list, zip(*tiles, strict=True))
    entry, error = compute_entry(ops, seconds, width, kernel)
    latency = min(entry["latency_seconds"], *seconds)
    if latency > MOST_LATENCY:  # of all tiles so much is none
        latency = 0.0
        efforts = [op.effort(op.dims, kernel) * max(1.0, width / op.width(op.dims)) for op in ops]
        features = [[effort, op.touched_bytes(op.dims)] for effort, op in zip(efforts, ops, strict=True)]
        (per_flop, per_byte), error = fit_costs(features, seconds)
        entry |= {"flops_per_second": 1 / max(per_flop, 1e-16), "bytes_per_second": 1 / max(per_byte, 1e-14)}
    return entry | {"latency_seconds": _in_a_row(latency)}, error


def _in_a_row(latency: float) -> float:
    """What a call costs whose next one is issued meanwhile."""
    return max(LAUNCH, latency - ALONE)


def _off(cost: Compute, kernel: str, tiles: Iterable[Timed]) -> float:
    """How far tiles are off: the mean size of the logarithm of predicted over measured seconds."""
    ratios = [cost.seconds(op.effort(op.dims, kernel), op.touched_bytes(op.dims), 1, op.width(op.dims)) / s for op, s in tiles]
    return float(np.abs(np.log(ratios)).mean())


def convolutions() -> tuple[dict[str, Any], dict[str, float]]:
    """Entries of cuDNN's families, and their errors; those of ooc's own convolutions are of the first run, before they were
    blocked."""
    entries: dict[str, Any] = {}
    errors: dict[str, float] = {}
    for family, tiles in timed_families().items():
        entries["/".join(family)], errors["/".join(family)] = fitted(family, tiles)
    first = json.loads((ROWS / "h200.json").read_text())["computes"]
    for kind in KINDS:
        entry = first[f"{kind}/f32/cuda"]
        entries[f"{kind}/*/cuda"] = entry | {"latency_seconds": _in_a_row(entry["latency_seconds"])}
    return entries, errors


def alike(base: dict[str, Any], entries: dict[str, Any]) -> dict[str, Any]:
    """Entries that no row tells: as others are, or as the datasheet's. Convolutions and products of matrices, which are taken for
    convolutions, have them all, so that none is taken for one that was measured."""
    known = dict(entries)
    for dtype, like in (("bf16", "f16"), ("f64", "f64"), ("f16", "f16"), ("bf16", "bf16")):
        for key in [k for k in known if f"/{like}/" in k]:
            kind, _, kernel = key.split("/")
            rounded = kernel if dtype != like else kernel.replace("cudnn", "cudnn_tf32")
            known.setdefault(f"{kind}/{dtype}/{rounded}", known[key])
    for kind in ("conv.fprop", "conv.dgrad"):
        known[f"{kind}/*/plain"] = known[f"{kind}/*/cuda"]
    # A step of VGG16 showed weight gradients by FFT tiles slower than by Winograd, no row shows how much.
    known["conv.wgrad/f32/cudnn_fft"] = known["conv.wgrad/f32/cudnn_lean"]
    for kind, others in (*((kind, ("cublas",)) for kind in KINDS), ("matmul.nn", ("cudnn", "cufft"))):
        for general, entry in base.items():
            key = kind + general[1:]
            if general[0] == "*" and general != "*/*/*" and key not in base and not any(name in key for name in others):
                known.setdefault(key, entry)
    return {key: entry for key, entry in known.items() if key not in entries}


def own_kernels(base: dict[str, Any]) -> dict[str, Any]:
    """Entries of kernels of ooc's own: the datasheet's, times measured over predicted seconds in steps of networks, whose
    predictions the datasheet made; of the third run, or else the second."""
    entries = {}
    for kind in OWN:
        for name in ("third/networks.jsonl", "second/networks.jsonl"):
            told = [row["kernels"].get(f"{kind} cuda") for row in rows_of(name) if "kernels" in row]
            ratios = [measured / predicted for _, measured, predicted in filter(None, told) if measured >= TOLD]
            if ratios:
                entries[f"{kind}/*/*"] = _times(base["*/*/cuda"], statistics.median(ratios))
                break
    return entries


def _times(entry: dict[str, float], factor: float) -> dict[str, float]:
    rates = {key: entry[key] / factor for key in ("flops_per_second", "bytes_per_second")}
    return {"latency_seconds": entry["latency_seconds"] * factor, **rates}


def link(base: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The lanes of the link, from copies of rows in the first run, with the datasheet's latency; and what they cost each other in
    tiles that stream, the largest: more than two copies at a time do, which the run measured, too."""
    rows = rows_of("first.jsonl")
    copied = [row for row in rows if str(row.get("key", "")).startswith("rows ")]
    streamed = max((row for row in rows if "tile_bytes" in row), key=lambda row: int(row["tile_bytes"]))
    lanes, lost = {}, {}
    for lane in ("h2d", "d2h"):
        latency = base[lane]["latency_seconds"]
        seconds = [row["bytes"] / row[f"{lane}_bytes_per_second"] - latency for row in copied]
        (run, byte), _ = fit_costs([[row["rows"], row["bytes"]] for row in copied], seconds)
        lanes[lane] = {"latency_seconds": latency, "run_seconds": run, "bytes_per_second": 1 / byte}
        share = streamed["tile_bytes"] * byte / (streamed["seconds_per_tile"] - latency)
        lost[lane] = {"d2h" if lane == "h2d" else "h2d": 1 - share}
    return {**base, **lanes}, lost


def measured(base: dict[str, Any]) -> dict[str, Any]:
    """A calibration with what was measured."""
    general = {key: entry for key, entry in base["computes"].items() if key.startswith("*/") or key in IN_ORDER}
    entries, errors = convolutions()
    taken, own = alike(general, entries), own_kernels(general)
    copies, contention = link(base["copies"])
    whence = base["origins"]
    origins = {key: whence[key] for key in ("memory_bytes", "copies.read", "copies.write")}
    origins |= {f"computes.{key}": whence.get(f"computes.{key}", "datasheet") for key in general}
    origins |= {f"computes.{key}": "assumed" for key in taken}
    told = {
        "origins": origins, "fit_error": errors, "copies": copies, "contention": contention,
        "computes": {**general, **entries, **taken, **own},
    }  # fmt: skip
    return base | _rounded(told)


def _rounded(value: Any) -> Any:
    """With three digits of each number: more are those of this machine's arithmetic."""
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    return float(f"{value:.3g}") if isinstance(value, float) else value


def differing(shipped: Any, told: Any) -> bool:
    """Whether calibrations differ by more than the last of these digits."""
    if isinstance(told, dict):
        return not isinstance(shipped, dict) or shipped.keys() != told.keys() or any(differing(shipped[k], told[k]) for k in told)
    return not math.isclose(shipped, told, rel_tol=0.02) if isinstance(told, float) else bool(shipped != told)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the calibration anew")
    write = parser.parse_args().write
    shipped = json.loads(CALIBRATION.read_text())
    told = measured(shipped)
    if write:
        CALIBRATION.write_text(show_calibration(told))
    elif wrong := differing(shipped, told):
        print(f"{CALIBRATION.name} is not what its rows tell")
        return int(wrong)
    return 0


if __name__ == "__main__":
    sys.exit(main())

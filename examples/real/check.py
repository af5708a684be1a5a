"""Real trained networks through ooc at several budgets against ONNX Runtime on the whole: exact, or exit status 1.

python examples/real/check.py [NAME ...] [--json FILE] [--pictures FOLDER]     (after fetch.py; default: all networks)
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from cases import CASES, Array, Case, stored
from networks import DATA
from PIL import Image
from running import Ran, by_ooc, by_runtime, commit, machine

CLOSE = 1e-5  # of the largest value
SHARES = (8, 32)  # budgets are such parts of the peak without one
LSB = 1  # steps of 8 bits between ESRGAN's result here and the one that its package has


def difference(found: Array, wanted: Array) -> float:
    """The largest one, as a part of the largest value; infinite where shapes or numbers are not sound."""
    if found.shape != wanted.shape or not np.isfinite(found).all():
        return float("inf")
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def row(case: Case, name: str, budget: int | None, ran: Ran, reference: Ran) -> dict[str, Any]:
    """What is told of one case at one budget."""
    return {
        "network": case.network,
        "crop": case.crop,
        "budget": name,
        "budget_bytes": budget,
        "peak_bytes": ran.peak,
        "difference": difference(ran.y, reference.y),
        "seconds": round(ran.seconds, 3),
        "planning_seconds": round(ran.planned, 3),
        "runtime_seconds": round(reference.seconds, 3),
        "grown_bytes": ran.resident - ran.before,
        "runtime_grown_bytes": reference.resident - reference.before,
        "machine": machine(),
        "commit": commit(),
    }


def failed(case: Case, name: str, budget: int | None, error: Exception) -> dict[str, Any]:
    """What is told of one that ooc could not compute."""
    print(f"{case.network:8} {case.crop:16} {name:>5}  FAILED: {type(error).__name__}: {error}", flush=True)
    about = {"network": case.network, "crop": case.crop, "budget": name, "budget_bytes": budget}
    return {**about, "error": f"{type(error).__name__}: {error}", "machine": machine(), "commit": commit()}


def line(told: dict[str, Any]) -> str:
    """The same in words."""
    budget = "no budget" if told["budget_bytes"] is None else f"{told['budget_bytes'] / 2**20:.3g} MiB"
    verdict = "" if told["difference"] <= CLOSE else "  FAILED"
    return (
        f"{told['network']:8} {told['crop']:16} {told['budget']:>5} {budget:>9}  off {told['difference']:.1e}  "
        f"{told['seconds']:.2f} s + {told['planning_seconds']:.2f} s planning, grew by {told['grown_bytes'] / 2**20:.0f} MiB; "
        f"ONNX Runtime {told['runtime_seconds']:.2f} s, {told['runtime_grown_bytes'] / 2**20:.0f} MiB{verdict}"
    )


def flat(values: Array) -> Array:
    """A tensor as a picture: its largest values along batch, channels and depth."""
    while values.ndim > 2:
        values = values.max(axis=0)
    return values


def picture(folder: Path, told: dict[str, Any], found: Array, wanted: Array) -> None:
    """Where results differ, amplified so that the largest difference is white."""
    off = flat(np.abs(found - wanted))
    name = f"{told['network']}-{told['crop']}-{told['budget']}".replace("/", "").replace(" ", "-")
    scaled = off * (255 / max(float(off.max()), 1e-30))
    Image.fromarray(scaled.astype(np.uint8)).save(folder / f"{name}.png")


def checked(case: Case, data: Path, threads: int, pictures: Path | None) -> list[dict[str, Any]]:
    """One case at all budgets, told as it goes."""
    model, rows, peak = data / f"{case.network}.onnx", [], 0
    reference = by_runtime(model, case.x, threads)
    for share in (0, *SHARES):
        if share and not peak:
            break  # it failed without a budget
        budget, name = (peak // share, f"1/{share}") if share else (None, "none")
        try:
            ran = by_ooc(model, case.x, budget)
        except Exception as error:  # the other cases are told all the same
            rows.append(failed(case, name, budget, error))
            continue
        peak = peak or ran.peak
        rows.append(row(case, name, budget, ran, reference))
        print(line(rows[-1]), flush=True)
        if pictures:
            picture(pictures, rows[-1], ran.y, reference.y)
        if case.crop == "fixture 128x128":
            rows[-1]["steps_off"] = shipped(ran.y, data)
    return rows


def shipped(y: Array, data: Path) -> int:
    """ESRGAN's result against the picture that its package has: the largest difference in steps of 8 bits, told."""
    wanted = stored(data / "result.png")[..., :3].astype(int)
    off = np.abs(np.rint(np.clip(y[0].transpose(1, 2, 0), 0, 255)).astype(int) - wanted)
    print(f"         its package's own picture: at most {off.max()} steps of 255 off, {np.mean(off > 0):.2%} of values differ")
    return int(off.max())


def main(arguments: list[str]) -> int:
    """Check what was asked for; the exit status: 1 if a result is not exact."""
    parser = argparse.ArgumentParser(description="Real networks through ooc against ONNX Runtime.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CASES)}; default: all")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of fetch.py")
    parser.add_argument("--threads", type=int, default=2, help="of ONNX Runtime")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append a line of JSON per case")
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="write where results differ, amplified")
    asked = parser.parse_args(arguments)
    if unknown := sorted(set(asked.names) - set(CASES)):
        parser.error(f"no network {', '.join(unknown)}; there are {', '.join(CASES)}")
    if asked.pictures:
        asked.pictures.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for name in asked.names or CASES:
        for case in CASES[name](asked.data):
            rows += checked(case, asked.data, asked.threads, asked.pictures)
    if asked.json:
        with asked.json.open("a") as file:
            file.writelines(json.dumps(told) + "\n" for told in rows)
    wrong = [r for r in rows if "error" in r or r["difference"] > CLOSE or r.get("steps_off", 0) > LSB]
    print(f"{len(rows)} cases, {len(wrong)} of them not exact")
    return min(len(wrong), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

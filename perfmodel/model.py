"""Seconds of a step, from a calibration: a JSON file with the measured (or datasheet) curves of one machine."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

DEVICES = Path(__file__).parent / "devices"


class StepLike(Protocol):
    """What the model needs to know of a step."""

    @property
    def lane(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def runs(self) -> int: ...

    @property
    def work(self) -> tuple[tuple[str, float, int], ...]: ...

    @property
    def after(self) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class Copy:
    """Cost of a copy on a lane: per copy, per contiguous piece, per byte."""

    latency_seconds: float
    run_seconds: float
    bytes_per_second: float = math.inf

    def seconds(self, nbytes: Any, runs: Any = 1, copies: Any = 1) -> Any:
        """Seconds of `copies` copies with these totals (numbers or arrays)."""
        return copies * self.latency_seconds + runs * self.run_seconds + nbytes / self.bytes_per_second


@dataclass(frozen=True)
class Compute:
    """Cost of a kernel: per call, per floating-point operation, per byte that it walks through."""

    latency_seconds: float
    flops_per_second: float
    bytes_per_second: float = math.inf

    def seconds(self, flops: Any, nbytes: Any = 0, calls: Any = 1) -> Any:
        """Seconds of `calls` calls with these totals (numbers or arrays)."""
        return calls * self.latency_seconds + flops / self.flops_per_second + nbytes / self.bytes_per_second


@dataclass(frozen=True)
class Model:
    """The calibrated costs of a machine. Keys of `compute` are `kind/dtype/kernel`, with `*` for any."""

    name: str
    copies: dict[str, Copy]
    computes: dict[str, Compute]
    source: str = ""
    contention: dict[str, float] = field(default_factory=dict)  # compute seconds lost per second of a busy copy lane
    register: Copy | None = None  # pinning memory of the caller; None where that was not measured
    duplex: dict[str, float] = field(default_factory=dict)  # share of a direction's speed left while the other is busy
    known: dict[str, Compute] = field(default_factory=dict, compare=False, repr=False)  # answers given before

    def __hash__(self) -> int:
        return hash((self.name, self.source))

    def copy(self, lane: str) -> Copy:
        """Costs of a copy lane."""
        return self.copies[lane]

    def compute(self, key: str) -> Compute:
        """Costs of a kernel: the entry itself, or the nearest one there is.

        A kernel that does not serve an op passes it on to another one of the list, so the next best guess is the first
        entry of the same kind and dtype.
        """
        found = self.known.get(key)
        if found is None:
            kind, dtype, kernel = key.split("/")
            alike = [k for k in self.computes if k.startswith(f"{kind}/{dtype}/")][:1] if kernel != "null" else []
            general = (f"{kind}/*/{kernel}", f"{kind}/*/*", *alike, f"*/{dtype}/{kernel}", f"*/*/{kernel}", "*/*/*")
            nearest = next((k for k in (key, *general) if k in self.computes), None)
            if nearest is None:
                raise KeyError(f"calibration {self.name}: no compute entry for {key}")
            found = self.known[key] = self.computes[nearest]
        return found

    def bound(self, lane_seconds: dict[str, Any]) -> Any:
        """Seconds below which a schedule with these busy lanes cannot end: copies take processor time and bandwidth
        from a compute lane that shares them (numbers or arrays)."""
        return lane_seconds.get("compute", 0.0) + sum(c * lane_seconds.get(lane, 0.0) for lane, c in self.contention.items())

    def seconds(self, step: StepLike) -> float:
        """Predicted seconds of a step on its lane, alone."""
        if step.kind == "run":
            return float(sum(self.compute(key).seconds(flops, nbytes) for key, flops, nbytes in step.work))
        return float(self.copy(step.lane).seconds(step.nbytes, step.runs))


def load_device(name: str | Path) -> Model:
    """The model of a shipped device (`cpu`, ...) or of a calibration file.

    Raises ValueError with one line that names the file and the field, FileNotFoundError for an unknown name.
    """
    path = Path(name) if str(name).endswith(".json") else DEVICES / f"{name}.json"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in DEVICES.glob("*.json")))
        raise FileNotFoundError(f"no calibration {str(name)!r}: expected a .json file or one of {known}")
    try:
        raw = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: not a calibration file: {error}") from None
    return read_model(raw, str(path))


def closest(processor: str) -> str:
    """The shipped device that is nearest to a processor: `cpu`, or by a GPU's name; another GPU is taken for an H200."""
    words = processor.lower().replace("-", " ").split()
    return next((p.stem for p in sorted(DEVICES.glob("*.json")) if p.stem in words), "h200")


def read_model(raw: Any, where: str) -> Model:
    """Check and convert a calibration read from JSON."""
    if not isinstance(raw, dict):
        raise ValueError(f"{where}: expected an object")
    copy_keys = ("latency_seconds", "run_seconds", "bytes_per_second")
    copies = {k: Copy(*_numbers(v, copy_keys, f"{where}: copies.{k}")) for k, v in _object(raw, "copies", where).items()}
    compute_keys = ("latency_seconds", "flops_per_second", "bytes_per_second")
    computes = {
        k: Compute(*_numbers(v, compute_keys, f"{where}: computes.{k}")) for k, v in _object(raw, "computes", where).items()
    }
    missing = {"read", "h2d", "d2h", "write"} - copies.keys()
    if missing:
        raise ValueError(f"{where}: copies: {', '.join(sorted(missing))} missing")
    if "*/*/*" not in computes:
        raise ValueError(f"{where}: computes: */*/* missing")
    contention, duplex = (_shares(raw, key, where) for key in ("contention", "duplex"))
    register = Copy(*_numbers(raw["register"], copy_keys, f"{where}: register")) if "register" in raw else None
    return Model(str(raw.get("name", "unnamed")), copies, computes, str(raw.get("source", "")), contention, register, duplex)


def _object(raw: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    value = raw.get(key)
    if not isinstance(value, dict):
        raise ValueError(f"{where}: {key}: expected an object")
    return value


def _shares(raw: dict[str, Any], key: str, where: str) -> dict[str, float]:
    """Numbers by lane, where there are any."""
    entry = _object(raw, key, where) if key in raw else {}
    lanes = tuple(entry)
    return dict(zip(lanes, _numbers(entry, lanes, f"{where}: {key}")))


def _numbers(entry: Any, keys: tuple[str, ...], where: str) -> list[float]:
    if not isinstance(entry, dict):
        raise ValueError(f"{where}: expected an object")
    values = []
    for key in keys:
        value = entry.get(key)
        rate = key.endswith("per_second")
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not math.isfinite(value)
            or value < 0
            or (rate and value == 0)
        ):
            raise ValueError(f"{where}.{key}: expected a {'positive' if rate else 'non-negative'} number, got {value!r}")
        values.append(float(value))
    return values

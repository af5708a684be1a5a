"""Seconds of a step, from a calibration: a JSON file with the measured (or datasheet) curves of one machine."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from perfmodel.learned import COPY_REACH, MOST, UNKNOWN, Learned, Sample

DEVICES = Path(__file__).parent / "devices"
MOST_LOST = 0.95  # share of its speed that a lane loses to one other
EXPECTED = 0.1  # logarithm of measured over predicted seconds that teaches nothing
LARGE = (1e9, 1e7)  # operations and bytes of a tile that tells fast kernels from slow ones
FEATURES = 6  # numbers in the shape of a tile


class Work(NamedTuple):
    """What one stage of a tile computes. key: kind/dtype/kernel; effort: floating-point operations; shape: see `Op.shape`."""

    key: str
    effort: float
    nbytes: int
    shape: tuple[float, ...] = ()


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
    def work(self) -> tuple[Work, ...]: ...

    @property
    def after(self) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class Copy:
    """Cost of a copy on a lane: per copy, per contiguous piece, per byte; and what measured copies say beyond that."""

    latency_seconds: float
    run_seconds: float
    bytes_per_second: float = math.inf
    samples: tuple[Sample, ...] = ()

    def line(self, nbytes: Any, runs: Any = 1) -> Any:
        """Seconds by the straight fit alone."""
        return self.latency_seconds + runs * self.run_seconds + nbytes / self.bytes_per_second

    def seconds(self, nbytes: Any, runs: Any = 1) -> Any:
        """Seconds of a copy of so many bytes in so many contiguous pieces (numbers or arrays)."""
        line = self.line(nbytes, runs)
        return line * self.learned.factor((nbytes, nbytes / runs)) if self.learned else line

    @cached_property
    def learned(self) -> Learned | None:
        """What the samples add to the line."""
        if not self.samples:
            return None
        logs = [math.log(s.seconds / self.line(s.nbytes, s.effort)) for s in self.samples]
        return Learned([s.shape for s in self.samples], logs, COPY_REACH)


@dataclass(frozen=True)
class Compute:
    """Cost of a kernel: per call, per floating-point operation, per byte that it walks through; and what measured tiles
    say beyond that."""

    latency_seconds: float
    flops_per_second: float
    bytes_per_second: float = math.inf
    samples: tuple[Sample, ...] = ()

    def line(self, effort: Any, nbytes: Any = 0, calls: Any = 1) -> Any:
        """Seconds by the straight fit alone."""
        return calls * self.latency_seconds + effort / self.flops_per_second + nbytes / self.bytes_per_second

    def seconds(self, effort: Any, nbytes: Any = 0, calls: Any = 1, shape: Sequence[Any] = ()) -> Any:
        """Seconds of `calls` calls with these totals, on tiles of this shape (numbers or arrays)."""
        line = self.line(effort, nbytes, calls)
        return line * self.learned.factor(shape) if shape and self.learned else line

    def spread(self, shape: Sequence[Any]) -> Any:
        """How sure the model is of such tiles: the standard deviation of the logarithm of the seconds."""
        return self.learned.spread(shape) if shape and self.learned else UNKNOWN

    @cached_property
    def learned(self) -> Learned | None:
        """What the samples add to the line."""
        if not self.samples:
            return None
        logs = [math.log(s.seconds / self.line(s.effort, s.nbytes)) for s in self.samples]
        return Learned([s.shape for s in self.samples], logs)


@dataclass(frozen=True)
class Model:
    """The calibrated costs of a machine. Keys of `computes` are `kind/dtype/kernel`, with `*` for any.

    contention: for a lane, the share of its speed that it loses while each other lane is busy; several others slow it as
    they would if all took turns: two that leave it half leave it a third. handoff_seconds: until a
    thread that sleeps goes on after what it waited for; None where lanes are queues of a device, which wake nobody.
    """

    name: str
    copies: dict[str, Copy]
    computes: dict[str, Compute]
    source: str = ""
    contention: dict[str, dict[str, float]] = field(default_factory=dict)
    register: Copy | None = None  # pinning memory of the caller; None where that was not measured
    memory_bytes: int | None = None  # of the device
    handoff_seconds: float | None = None
    known: dict[Any, Any] = field(default_factory=dict, init=False, compare=False, repr=False)  # answers given before

    def __hash__(self) -> int:
        return hash((self.name, self.source))

    def copy(self, lane: str) -> Copy:
        """Costs of a copy lane."""
        return self.copies[lane]

    def compute(self, key: str) -> Compute:
        """Costs of a kernel: the entry itself, or the nearest one there is.

        A kernel that does not serve an op passes it on to another one of the list, so the next best guess is the first
        entry of the same kind and dtype. A backend that stands for the machine (`null`) has its fastest one, TF32 left out.
        """
        found: Compute | None = self.known.get(key)
        if found is None:
            kind, dtype, kernel = key.split("/")
            alike = [k for k in self.computes if k.startswith(f"{kind}/{dtype}/")]
            if kernel == "null":
                alike = sorted((k for k in alike if "tf32" not in k), key=lambda k: float(self.computes[k].line(*LARGE)))
            general = (
                f"{kind}/*/{kernel}", f"{kind}/*/*", *alike[:1], f"*/{dtype}/{kernel}", f"*/*/{kernel}", f"*/{dtype}/*", "*/*/*",
            )  # fmt: skip
            nearest = next((k for k in (key, *general) if k in self.computes), None)
            if nearest is None:
                raise KeyError(f"calibration {self.name}: no compute entry for {key}")
            found = self.known[key] = self.computes[nearest]
        return found

    def bound(self, lane_seconds: Mapping[str, Any]) -> Any:
        """Seconds below which a long schedule with these busy lanes hardly ends: a lane beside others is slowed while they
        are busy, and never more than by all of them all the time (numbers or arrays)."""
        found: Any = 0.0
        for lane, own in lane_seconds.items():
            lost = {b: share for b, share in self.contention.get(lane, {}).items() if b in lane_seconds}
            some = own + sum((share * lane_seconds[b] for b, share in lost.items()), 0.0)
            found = np.maximum(found, np.minimum(some, own / self._speed(lane, lane_seconds)))
        return found

    def speeds(self, busy: frozenset[str]) -> dict[str, float]:
        """The speed of every busy lane beside the others; 1: as if it were alone."""
        found: dict[str, float] | None = self.known.get(busy)
        if found is None:
            found = self.known[busy] = {lane: self._speed(lane, busy) for lane in busy}
        return found

    def _speed(self, lane: str, busy: Iterable[str]) -> float:
        """The speed of a lane beside others: each takes as many turns as it takes of the lane's speed alone."""
        lost = self.contention.get(lane, {})
        shares = [min(lost[b], MOST_LOST) for b in busy if b in lost and b != lane]
        return 1 / (1 + sum(share / (1 - share) for share in shares))

    def seconds(self, step: StepLike) -> float:
        """Predicted seconds of a step on its lane, alone."""
        key = step.work if step.kind == "run" else (step.lane, step.nbytes, step.runs)
        found: float | None = self.known.get(key)
        if found is None:
            if step.kind == "run":
                found = float(sum(self.compute(w.key).seconds(w.effort, w.nbytes, 1, w.shape) for w in step.work))
            else:
                found = float(self.copies[step.lane].seconds(step.nbytes, max(1, step.runs)))
            if len(self.known) < REMEMBERED:
                self.known[key] = found
        return found

    def spread(self, works: Iterable[Work]) -> float:
        """How sure the model is of some computing: the standard deviation of the logarithm of its seconds, each stage
        counting as much as it takes."""
        known = [(self.compute(w.key), w) for w in works]
        seconds = [float(c.seconds(w.effort, w.nbytes, 1, w.shape)) for c, w in known]
        spreads = [float(c.spread(w.shape)) for c, w in known]
        total = sum(seconds)
        return sum(s * d for s, d in zip(seconds, spreads, strict=True)) / total if total else 0.0

    def surprising(self, samples: Mapping[str, Sequence[Sample]]) -> dict[str, list[Sample]]:
        """Those measured tiles that the model would have got wrong by more than `EXPECTED`, by key."""
        found: dict[str, list[Sample]] = {}
        for key, measured in samples.items():
            entry = self.compute(key)
            for s in measured:
                if abs(math.log(s.seconds / entry.seconds(s.effort, s.nbytes, 1, s.shape))) > EXPECTED:
                    found.setdefault(key, []).append(s)
        return found

    def learning(self, samples: Mapping[str, Sequence[Sample]]) -> Model:
        """The same model, knowing more measured tiles, by key."""
        entries = dict(self.computes)
        for key, more in samples.items():
            entry = self.compute(key)
            entries[key] = replace(entry, samples=(*entry.samples, *more)[-MOST:])
        return replace(self, computes=entries)


# ---- reading

REMEMBERED = 1 << 16  # steps whose seconds are kept
MOST_FILE_BYTES = 16 << 20
LANES = ("read", "h2d", "compute", "d2h", "write")
COPY_FIELDS = ("latency_seconds", "run_seconds", "bytes_per_second")
COMPUTE_FIELDS = ("latency_seconds", "flops_per_second", "bytes_per_second")
# What GPUs are called, by the shipped device that is most like them: itself, then others of its generation.
NEAREST = {
    "k40": r"k40\w?|k20\w?|k80|gtx titan( black| z)?(?! x)|gtx 7\d\d( ti)?",
    "titanx": r"gtx titan x|m40|m60|gtx 9\d\d( ti)?",
    "p100": r"p100|p40|p6|p4|titan xp?|gtx 10\d\d( ti)?",
    "v100": r"v100s?|titan v|t4|titan rtx|quadro rtx \d+|rtx 20\d\d( ti)?",
    "a100": r"a100|a800|a30",
    "h100": r"h100|h800|h20",
    "h200": r"h200|gh200",
    "l4": r"l4",
    "rtx4090": r"rtx 40\d\d( ti)?|rtx 30\d\d( ti)?|l40s?|l20|rtx \w*6000|rtx 5000|a10g?|a40|a16|a2",
}
SLOWEST, FASTEST = 1.0, 1e18  # rates that make sense, per second
LONGEST = 1e3  # seconds that a call or a contiguous piece may take


def load_device(name: str | Path) -> Model:
    """The model of a shipped device (`cpu`, ...) or of a calibration file.

    Raises ValueError with one line that names the file and the field, FileNotFoundError for an unknown name.
    """
    return read_model(*read_calibration(name))


def read_calibration(name: str | Path) -> tuple[Any, str]:
    """What the file of a shipped device or a calibration file holds, unchecked, and its path. Raises as `load_device` does."""
    path = Path(name) if str(name).endswith(".json") else DEVICES / f"{Path(name).name}.json"
    if not path.is_file():
        what = "not a regular file" if path.exists() else f"expected a .json file or one of {', '.join(shipped())}"
        raise FileNotFoundError(f"no calibration {str(name)!r}: {what}")
    try:
        with path.open("rb") as file:
            content = file.read(MOST_FILE_BYTES + 1)
        if len(content) > MOST_FILE_BYTES:
            raise ValueError(f"larger than {MOST_FILE_BYTES} bytes")
        return json.loads(content.decode()), str(path)
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not a calibration file: {error}") from None


def shipped() -> list[str]:
    """Names of the devices that come with the package."""
    return sorted(p.stem for p in DEVICES.glob("*.json"))


def closest(processor: str) -> str:
    """The shipped device that is nearest to a processor: `cpu`, or by a GPU's name as CUDA reports it.

    Another GPU is taken for the shipped one of its generation, one that is not known (most likely newer) for an H200.
    """
    name = processor.lower()
    if name == "cpu":
        return name
    return next((device for device, names in NEAREST.items() if re.search(rf"\b({names})\b", name)), "h200")


def read_model(raw: Any, where: str) -> Model:
    """Check and convert a calibration read from JSON. Raises ValueError with one line that names the file and the field."""
    raw = _object(raw, where)
    lanes = _part(raw, "copies", where)
    if missing := sorted({"read", "h2d", "d2h", "write"} ^ lanes.keys()):
        raise ValueError(f"{where}: copies: {', '.join(missing)[:80]!r} missing or unknown")
    copies = {lane: _copy(v, f"{where}: copies.{lane}") for lane, v in lanes.items()}
    computes = {_key(k, where): _compute(v, f"{where}: computes.{k}") for k, v in _part(raw, "computes", where).items()}
    if "*/*/*" not in computes:
        raise ValueError(f"{where}: computes: */*/* missing")
    register = _copy(raw["register"], f"{where}: register") if "register" in raw else None
    name, source = _text(raw, "name", where) or "unnamed", _text(raw, "source", where)
    memory = _number(raw["memory_bytes"], f"{where}: memory_bytes", 1, FASTEST) if "memory_bytes" in raw else None
    handoff = _number(raw["handoff_seconds"], f"{where}: handoff_seconds", 0.0, 1.0) if "handoff_seconds" in raw else None
    return Model(name, copies, computes, source, _contention(raw, where), register, int(memory) if memory else None, handoff)


def read_samples(rows: Any, where: str) -> tuple[Sample, ...]:
    """Check and convert measured tiles: rows of effort, bytes, the numbers of the shape, seconds."""
    return tuple(Sample(*_sized(row[:2], row[2:-1], row[-1], at)) for row, at in _rows(rows, FEATURES + 3, where))


def _copy_samples(rows: Any, where: str) -> tuple[Sample, ...]:
    """Check and convert measured copies: rows of bytes, contiguous pieces, seconds."""
    found = []
    for (nbytes, runs, seconds), at in _rows(rows, 3, where):
        if not runs >= 1:
            raise ValueError(f"{at}: expected at least one piece")
        found.append(copy_sample(nbytes, runs, _sized((runs, nbytes), (nbytes,), seconds, at)[-1]))
    return tuple(found)


def copy_sample(nbytes: float, runs: float, seconds: float) -> Sample:
    """A measured copy of so many bytes in so many contiguous pieces."""
    return Sample(runs, nbytes, (nbytes, nbytes / runs), seconds)


def _rows(rows: Any, count: int, where: str) -> Iterator[tuple[list[float], str]]:
    """Rows of so many numbers, with the place of each in the file."""
    if not isinstance(rows, list):
        raise ValueError(f"{where}: expected a list")
    for i, row in enumerate(rows):
        at = f"{where}[{i}]"
        if not isinstance(row, list) or len(row) != count:
            raise ValueError(f"{at}: expected {count} numbers")
        yield [_number(v, at, 0.0, FASTEST) for v in row], at


def _sized(
    work: Sequence[float], shape: Sequence[float], seconds: float, where: str
) -> tuple[float, float, tuple[float, ...], float]:
    if not (min(shape) > 0 and sum(work) > 0 and 1e-9 < seconds < LONGEST):
        raise ValueError(f"{where}: expected positive sizes and seconds")
    return work[0], work[1], tuple(shape), seconds


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: expected an object")
    return value


def _part(raw: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    return _object(raw.get(key), f"{where}: {key}")


def _text(raw: dict[str, Any], key: str, where: str) -> str:
    value = raw.get(key, "")
    if not isinstance(value, str) or not value.isprintable() or len(value) > 2000:
        raise ValueError(f"{where}: {key}: expected one line of text")
    return value


def _key(key: str, where: str) -> str:
    parts = key.split("/")
    if len(parts) != 3 or not all(parts) or not key.isprintable():
        raise ValueError(f"{where}: computes.{key[:80]!r}: expected kind/dtype/kernel")
    return key


def _copy(entry: Any, where: str) -> Copy:
    latency, run, rate = _numbers(entry, COPY_FIELDS, where)
    return Copy(latency, run, rate, _copy_samples(entry.get("samples", []), f"{where}.samples"))


def _compute(entry: Any, where: str) -> Compute:
    latency, flops, nbytes = _numbers(entry, COMPUTE_FIELDS, where)
    return Compute(latency, flops, nbytes, read_samples(entry.get("samples", []), f"{where}.samples"))


def _contention(raw: dict[str, Any], where: str) -> dict[str, dict[str, float]]:
    """The share of its speed that a lane loses beside each other lane."""
    found: dict[str, dict[str, float]] = {}
    for lane, entry in (_part(raw, "contention", where) if "contention" in raw else {}).items():
        place = f"{where}: contention.{lane[:80]}"
        beside = _object(entry, place)
        if unknown := sorted({lane, *beside} - set(LANES)):
            raise ValueError(f"{place}: {unknown[0][:80]!r} is no lane; expected {', '.join(LANES)}")
        found[lane] = {other: _number(v, f"{place}.{other}", 0.0, 1.0) for other, v in beside.items()}
    return found


def _numbers(entry: Any, fields: tuple[str, ...], where: str) -> list[float]:
    entry = _object(entry, where)
    limits = [(SLOWEST, FASTEST) if f.endswith("per_second") else (0.0, LONGEST) for f in fields]
    return [_number(entry.get(f), f"{where}.{f}", *limit) for f, limit in zip(fields, limits, strict=True)]


def _number(value: Any, where: str, least: float, most: float) -> float:
    """A number within its limits; NaN is in none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        given = repr(str(value)[:40]) if isinstance(value, (int, float, str)) else f"of type {type(value).__name__}"
        raise ValueError(f"{where}: expected a number from {least:g} to {most:g}, got {given}")
    return float(value)

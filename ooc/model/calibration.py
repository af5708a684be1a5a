"""Calibrations: JSON files of one machine's numbers, shipped or one's own, checked field by field before they are believed."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

from ooc.model.cost import AGAIN, CACHED, FETCH, Compute, Copy, Model

DEVICES = Path(__file__).parent / "devices"
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
ORIGINS = (
    "measured",
    "datasheet",
    "assumed",
)  # where numbers are from: a datasheet, too, where others report them of such a device
SECTIONS = ("copies", "computes", "contention", "register", "handoff_seconds", "memory_bytes")
SLOWEST, FASTEST = 1.0, 1e18  # rates that make sense, per second
MOST_WIDTH = 1024  # output channels that a kernel may compute at a time
LONGEST = 1e3  # seconds that a call or a contiguous piece may take


def load_device(name: str | Path) -> Model:
    """The model of a shipped device (`cpu`, ..., in capitals or not) or of a calibration file; the same one until the file
    changes, with what it has worked out since.

    Raises ValueError with one line that names the file and the field, FileNotFoundError for an unknown name.
    """
    path = _file(name)
    now = path.stat()
    return _loaded(path, (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns))


@functools.lru_cache(maxsize=16)
def _loaded(path: Path, version: tuple[int, ...]) -> Model:
    return read_model(*read_calibration(path))


def _file(name: str | Path) -> Path:
    path = Path(name) if str(name).endswith(".json") else DEVICES / f"{Path(name).name.lower()}.json"
    if not path.is_file():
        what = "not a regular file" if path.exists() else f"expected a .json file or one of {', '.join(shipped())}"
        raise FileNotFoundError(f"no calibration {str(name)!r}: {what}")
    return path


def read_calibration(name: str | Path) -> tuple[Any, str]:
    """What the file of a shipped device or a calibration file holds, unchecked, and its path. Raises as `load_device` does."""
    path = _file(name)
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
    if missing := sorted({"read", "h2d", "d2h", "write"} ^ (lanes.keys() - {CACHED, AGAIN})):
        raise ValueError(f"{where}: copies: {', '.join(missing)[:80]!r} missing or unknown")
    copies = {lane: _copy(v, f"{where}: copies.{lane}") for lane, v in lanes.items()}
    errors = read_errors(raw, where)
    computes = {
        _key(k, where): _compute(v, f"{where}: computes.{k}", errors.get(k, 0.0))
        for k, v in _part(raw, "computes", where).items()
    }
    if "*/*/*" not in computes:
        raise ValueError(f"{where}: computes: */*/* missing")
    register = _copy(raw["register"], f"{where}: register") if "register" in raw else None
    name, source = _text(raw, "name", where) or "unnamed", _text(raw, "source", where)
    memory = _number(raw["memory_bytes"], f"{where}: memory_bytes", 1, FASTEST) if "memory_bytes" in raw else None
    handoff = _number(raw["handoff_seconds"], f"{where}: handoff_seconds", 0.0, 1.0) if "handoff_seconds" in raw else None
    return Model(
        name, copies, computes, source, _contention(raw, where), register, int(memory) if memory else None, handoff,
        _origins(raw, where),
    )  # fmt: skip


def read_errors(raw: dict[str, Any], where: str) -> dict[str, float]:
    """How far what was measured is off the fit of its entry, in the median, where the file says so. Raises ValueError."""
    errors = _object(raw.get("fit_error", {}), f"{where}: fit_error")
    return {k: _number(v, f"{where}: fit_error.{k[:80]}", 0.0, FASTEST) for k, v in errors.items()}


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
    return Copy(latency, run, rate)


def _compute(entry: Any, where: str, error: float) -> Compute:
    width = 1.0
    if isinstance(entry, dict) and "width" in entry:
        width = _number(entry["width"], f"{where}.width", 1.0, MOST_WIDTH)
        entry = {k: v for k, v in entry.items() if k != "width"}
    latency, flops, nbytes = _numbers(entry, COMPUTE_FIELDS, where)
    return Compute(latency, flops, nbytes, error, int(width))


def _contention(raw: dict[str, Any], where: str) -> dict[str, dict[str, float]]:
    """The share of its speed that a lane loses beside each other lane."""
    shares: dict[str, dict[str, float]] = {}
    for lane, entry in (_part(raw, "contention", where) if "contention" in raw else {}).items():
        place = f"{where}: contention.{lane[:80]}"
        beside = _object(entry, place)
        if unknown := sorted({lane} - {*LANES} | beside.keys() - {*LANES, FETCH}):
            raise ValueError(f"{place}: {unknown[0][:80]!r} is no lane; expected {', '.join(LANES)}")
        shares[lane] = {other: _number(v, f"{place}.{other}", 0.0, 1.0) for other, v in beside.items()}
    return shares


def _origins(raw: dict[str, Any], where: str) -> dict[str, str]:
    """Where the numbers of a section (`copies`) or of one entry (`copies.read`) are from; what is not named was measured."""
    origins = _part(raw, "origins", where) if "origins" in raw else {}
    for name, origin in origins.items():
        place = f"{where}: origins.{name[:80]}"
        section, _, entry = name.partition(".")
        within = raw.get(section) if section in SECTIONS else None
        if within is None or ("." in name and (not isinstance(within, dict) or entry not in within)):
            raise ValueError(f"{place}: expected a section or an entry of this file, such as copies or copies.read")
        if origin not in ORIGINS:
            raise ValueError(f"{place}: expected one of {', '.join(ORIGINS)}")
    return origins


def _numbers(entry: Any, fields: tuple[str, ...], where: str) -> list[float]:
    entry = _object(entry, where)
    limits = [(SLOWEST, FASTEST) if f.endswith("per_second") else (0.0, LONGEST) for f in fields]
    return [_number(entry.get(f), f"{where}.{f}", *limit) for f, limit in zip(fields, limits, strict=True)]


def _number(value: Any, where: str, least: float, most: float) -> float:
    """A number within its limits; NaN is in none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        text = repr(str(value)[:40]) if isinstance(value, (int, float, str)) else f"of type {type(value).__name__}"
        raise ValueError(f"{where}: expected a number from {least:g} to {most:g}, got {text}")
    return float(value)

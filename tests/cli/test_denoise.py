"""The demo that comes with all that it needs: a trained network, a picture, and no library beside NumPy."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ooc
from ooc.cli.demo import denoise
from ooc.cli.main import main
from ooc.files.png import png

SIDE = 300


def test_it_leaves_its_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(denoise, "SIDE", SIDE)
    monkeypatch.setattr(denoise.run_denoise, "__kwdefaults__", {**denoise.run_denoise.__kwdefaults__, "side": SIDE})
    assert main(["demo", "--budget", "1 MiB", "--dir", str(tmp_path), "--png", str(tmp_path / "d.png")]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1].startswith("demo: ok, ") and "1 MiB of memory to compute in" in out
    assert [path.name for path in tmp_path.iterdir()] == ["d.png"]


def test_the_noise_goes(tmp_path: Path) -> None:
    result = denoise.run_denoise("1 MiB", directory=tmp_path, threads=1, png=tmp_path / "d.png", side=SIDE)
    assert result.ok and result.after > result.before + 8
    assert result.plan.peaks["device"] <= 1 << 20 < 12 * SIDE * SIDE


def test_a_wrong_result_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    right = denoise.run

    def wrong(plan: Any, noisy: Path, clean: Path) -> float:
        told = right(plan, noisy, clean)
        np.load(clean, mmap_mode="r+")[0, 1, -1, -1] += 0.01
        return told

    monkeypatch.setattr(denoise, "run", wrong)
    assert not denoise.run_denoise("1 MiB", directory=tmp_path, png=tmp_path / "d.png", side=200).ok
    assert capsys.readouterr().out.splitlines()[-1].startswith("demo: FAILED, ")


@pytest.mark.parametrize(
    "option", [{"png": "/nowhere/at/all.png"}, {"directory": "/nowhere"}, {"budget": "9 B"}, {"budget": "no"}]
)
def test_what_cannot_be(option: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises((ooc.OocError, FileNotFoundError)):
        denoise.run_denoise(**{"directory": tmp_path, "png": tmp_path / "d.png", "side": 64, **option})
    assert not list(tmp_path.iterdir())


def test_it_needs_no_library_and_few_bytes(tmp_path: Path) -> None:
    blocked = "for name in ('matplotlib', 'PIL', 'tqdm', 'scipy', 'onnx', 'zarr'): sys.modules[name] = None"
    run = "from ooc.cli.demo.denoise import run_denoise; assert run_denoise('1 MiB', png='d.png', side=96).ok"
    done = subprocess.run([sys.executable, "-c", f"import sys\n{blocked}\n{run}"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert sum(path.stat().st_size for path in denoise.DATA.iterdir()) < 700_000
    assert (denoise.DATA / "NOTICE.md").read_text().count("CC0")


@pytest.mark.parametrize("shape", [(5, 7), (6, 4, 3)])
def test_pictures_are_png(shape: tuple[int, ...]) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    assert np.array_equal(np.asarray(image.open(io.BytesIO(png(pixels)))), pixels)

"""`ooc apply` on programs that torch.export.save wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

from ooc.cli.main import main  # noqa: E402


def network() -> Any:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 2, 3, padding=1), nn.Sigmoid()
    return nn.Sequential(*layers).eval()


def saved(folder: Path, dynamic: bool) -> Path:
    """The network at 16 x 16, or at any size."""
    axes = {2: torch.export.Dim("h", min=4, max=4096), 3: torch.export.Dim("w", min=4, max=4096)}
    shapes = (axes,) if dynamic else None
    program = torch.export.export(network(), (torch.zeros(1, 3, 16, 16),), dynamic_shapes=shapes and {"input": axes})
    torch.export.save(program, folder / "net.pt2")
    return folder / "net.pt2"


def applied(folder: Path, size: tuple[int, int], *more: str) -> int:
    x = np.random.default_rng(0).standard_normal((1, 3, *size)).astype("f4")
    np.save(folder / "x.npy", x)
    files = ["--input", str(folder / "x.npy"), "--output", str(folder / "y.npy")]
    return main(["apply", str(folder / "net.pt2"), *files, *more])


@pytest.mark.parametrize("budget", ["1GiB", "64KiB"])
def test_any_size(tmp_path: Path, budget: str) -> None:
    saved(tmp_path, dynamic=True)
    assert applied(tmp_path, (61, 83), "--budget", budget) == 0
    with torch.no_grad():
        wanted = network()(torch.from_numpy(np.load(tmp_path / "x.npy")))
    torch.testing.assert_close(torch.from_numpy(np.load(tmp_path / "y.npy")), wanted, rtol=1e-4, atol=1e-5)


def test_a_size_that_is_baked_in(tmp_path: Path, capsys: Any) -> None:
    saved(tmp_path, dynamic=False)
    assert applied(tmp_path, (16, 16)) == 0
    (tmp_path / "y.npy").unlink()
    assert applied(tmp_path, (16, 18)) == 2
    assert "dynamic_shapes" in capsys.readouterr().err
    assert not (tmp_path / "y.npy").exists()


def test_a_damaged_file(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "net.pt2").write_bytes(b"no program")
    assert applied(tmp_path, (16, 16)) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1

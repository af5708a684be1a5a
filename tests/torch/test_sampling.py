"""Models that move pictures: a displacement that is declared is a halo, of PyTorch's modules and of ONNX files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ooc

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional


class Registration(nn.Module):
    """A small VoxelMorph: a network finds by how many pixels each one moves, at most four, and a picture is moved so."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        conv = (nn.Conv2d, nn.Conv3d)[rank - 2]
        self.flow = nn.Sequential(conv(2, 6, 3, padding=1), nn.LeakyReLU(0.2), conv(6, rank, 3, padding=1))

    def forward(self, both: Any) -> Any:
        size = both.shape[2:]
        flow = 4 * torch.tanh(self.flow(both))
        even = torch.stack(torch.meshgrid([torch.arange(0, s, device=both.device) for s in size], indexing="ij"))[None]
        new = even.to(flow.dtype) + flow
        parts = [2 * (new[:, i] / (s - 1) - 0.5) for i, s in enumerate(size)]
        grid = torch.stack(parts, -1).flip(-1)
        return F.grid_sample(both[:, :1], grid, align_corners=True, padding_mode="border")


SHAPES = {2: (1, 2, 203, 60), 3: (1, 2, 47, 18, 20)}


@pytest.mark.parametrize("rank", SHAPES)
def test_a_halo_alone_is_held(rank: int) -> None:
    model, x = Registration(rank).double().eval(), torch.randn(SHAPES[rank], dtype=torch.float64)
    with torch.no_grad():
        expected = model(x).numpy()
    free, near = (ooc.torch.graph(model, SHAPES[rank], displacement=d) for d in (None, 4))
    with pytest.raises(ooc.BudgetError) as caught:
        free.plan(batch=1, train=False, budget=1)
    budget = caught.value.smallest_bytes // 4
    for graph, most in ((free, None), (near, None), (near, budget)):
        plan = graph.plan(batch=1, train=False, budget=most)
        with plan.session() as session:
            np.testing.assert_allclose(session.forward(x.numpy()), expected, rtol=0, atol=1e-12)
        assert most is None or plan.peaks["device"] <= most


def test_of_an_onnx_file(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    model, shape = Registration(2).eval(), SHAPES[2]
    path = tmp_path / "warp.onnx"
    ooc.torch.graph(model, shape).to_onnx(path)
    x = torch.randn(shape)
    with torch.no_grad():
        theirs, exact = model(x).double(), model.double()(x.double())
    most = 2 * float((theirs - exact).abs().max())  # positions are rounded on their way
    graph = ooc.onnx.load(path, shape, displacement=(4, 4))
    with pytest.raises(ooc.BudgetError):
        ooc.onnx.load(path, shape).plan(batch=1, train=False, budget=32 << 10)
    with graph.plan(batch=1, train=False, budget=32 << 10).session() as session:
        np.testing.assert_allclose(session.forward(x.numpy()), exact.numpy(), rtol=0, atol=most)


@pytest.mark.parametrize("displacement", [-1, (1, 2, 3, 4), "far", 2.5, ()])
def test_displacements_that_are_none(displacement: Any) -> None:
    with pytest.raises(ooc.OocError, match="displacement"):
        ooc.torch.graph(Registration(2), SHAPES[2], displacement=displacement)

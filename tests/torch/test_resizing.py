"""Resizing by picking: PyTorch's pixel, at every size and scale."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

import ooc  # noqa: E402
from ooc.ops.resize import table  # noqa: E402
from ooc.torch.segment import Segment  # noqa: E402
from ooc.torch.windows import picking  # noqa: E402

SCALES = (0.3, 1 / 3, 0.4, 0.5, 0.7, 0.75, 0.9, 1.05, 1.2, 1.25, 1.5, 1.6, 2.0, 2.5, 3.3)


class Resized(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self, mode: str, **how: Any) -> None:
        super().__init__()
        self.mode, self.how = mode, how

    def forward(self, x: Any) -> Any:
        return F.interpolate(x, mode=self.mode, **self.how)


@pytest.mark.parametrize("mode", ["nearest-exact", "nearest"])
@pytest.mark.parametrize(("name", "dtype"), [("f32", torch.float32), ("f64", torch.float64), ("bf16", torch.bfloat16)])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_every_length_to_every_length(rank: int, name: str, dtype: Any, mode: str) -> None:
    for e in range(1, 33):
        x = torch.arange(e, dtype=dtype).reshape(1, 1, *(1,) * (rank - 1), e).expand(1, 2, *(2,) * (rank - 1), e).contiguous()
        sizes: list[tuple[int, float | None]] = [(s, None) for s in range(1, 33)]
        for s, by in sizes + [(int(e * by), by) for by in SCALES if int(e * by)]:
            how = {"size": (2,) * (rank - 1) + (s,)} if by is None else {"scale_factor": (1.0,) * (rank - 1) + (by,)}
            wanted = F.interpolate(x, **how, mode=mode).reshape(-1, s)[0]
            rounding, line = picking(e, s, by, mode == "nearest-exact", rank, name)
            have, _, _ = table(rounding, e, s, line)
            assert have.tolist() == wanted.tolist(), (e, s, by)


@pytest.mark.parametrize("mode", ["nearest-exact", "nearest"])
@pytest.mark.parametrize(
    ("extent", "how"),
    [
        ((6,), {"size": 3}),
        ((8, 10), {"size": (4, 7)}),
        ((4, 6, 8), {"size": (2, 6, 5)}),
        ((5, 6), {"scale_factor": (2, 3)}),
        ((8, 10), {"scale_factor": (0.7, 2.5)}),
        ((4, 9), {"scale_factor": 1.2}),
    ],
)
def test_a_converted_model(extent: tuple[int, ...], how: dict[str, Any], mode: str) -> None:
    x = torch.arange(float(torch.tensor(extent).prod())).reshape(1, 1, *extent).requires_grad_()
    module = Resized(mode, **how)
    ours = ooc.torch.convert_model(Resized(mode, **how))
    have, wanted = ours(x), module(x)
    torch.testing.assert_close(have, wanted, rtol=0, atol=0)
    dy = torch.randn(wanted.shape)
    torch.testing.assert_close(torch.autograd.grad(have, x, dy), torch.autograd.grad(wanted, x, dy))
    with torch.no_grad():
        torch.testing.assert_close(ours(x), wanted, rtol=0, atol=0)
        assert isinstance(ours.forward.segment((x,), {}), Segment)


def test_all_sizes_have_a_gradient() -> None:
    x = torch.randn(1, 2, 3, 4, requires_grad=True)
    ours = ooc.torch.convert_model(Resized("nearest-exact", size=(6, 12)))
    assert isinstance(ours.forward.segment((x,), {}), Segment)
    between = ooc.torch.convert_model(Resized("nearest-exact", size=(4, 6)))
    assert isinstance(between.forward.segment((x,), {}), Segment)

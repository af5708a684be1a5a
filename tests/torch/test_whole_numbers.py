"""Networks that return what is no floating number: conditions, places, counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

import ooc  # noqa: E402
from ooc.torch.segment import Segment  # noqa: E402


class Segmenting(nn.Module):  # type: ignore[misc,name-defined]
    """Scores of classes, the class of each position, where it is sure, and a count."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 5, 1))

    def forward(self, x: Any) -> Any:
        scores = self.layers(x)
        return scores, scores.argmax(1), scores.softmax(1) > 0.5, (10 * scores).long()


@pytest.fixture
def module() -> Any:
    torch.manual_seed(0)
    return Segmenting().eval()


@pytest.mark.parametrize("budget", [None, "16 KiB"])
def test_a_converted_module_returns_what_pytorch_does(module: Any, budget: str | None) -> None:
    x = torch.randn(2, 3, 18, 22)
    with torch.no_grad():
        expected = module(x)
        ours = ooc.torch.convert_model(module, budget, x)
        assert isinstance(ours.forward.segment((x,), {}), Segment)
        have = ours(x)
    torch.testing.assert_close(have[0], expected[0])
    for mine, theirs in zip(have[1:], expected[1:], strict=True):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
        assert (mine == theirs).float().mean() > 0.999  # sums in another order may round to the other side


def test_large_and_negative_ones_are_as_pytorch_converts_them() -> None:
    class Counting(nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return (x * 1e9).long(), (x * 100).to(torch.uint8), (x * 1e4).to(torch.int16)

    x = torch.tensor([1.9, 0.4, 12.5, 2.55]).reshape(1, 4, 1, 1)
    with torch.no_grad():
        expected = Counting()(x)
        ours = ooc.torch.convert_model(Counting(), example=x)
        assert isinstance(ours.forward.segment((x,), {}), Segment)
        for mine, theirs in zip(ours(x), expected, strict=True):
            assert mine.dtype == theirs.dtype and torch.equal(mine, theirs)


def test_few_bits_are_not_computed_with() -> None:
    class Wrapping(nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return (x * 300).to(torch.uint8).float()

    with pytest.raises(ooc.UnsupportedError, match="of few bits"):
        ooc.torch.graph(Wrapping(), (1, 4, 2, 2))


def test_its_layers_are_trained_all_the_same(module: Any) -> None:
    """The module steps aside, the layers inside run through ooc."""
    x = torch.randn(2, 3, 18, 22)
    module(x)[0].sum().backward()
    expected = [p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    ours = ooc.torch.convert_model(module, "1 MiB", x)
    ours(x)[0].sum().backward()
    for p, gradient in zip(ours.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, gradient)


def test_a_graph_has_integers(module: Any) -> None:
    x = torch.randn(2, 3, 18, 22)
    graph = ooc.torch.graph(module, tuple(x.shape))
    assert [graph.dtypes[name] for name in graph.outputs] == ["f32", "i32", "b8", "i32"]
    plan = graph.plan(batch=2, train=False, budget="16 KiB", device="cpu")
    with plan.session() as session, torch.no_grad():
        results = session.forward(x.numpy())
        for have, expected in zip(results.values(), module(x), strict=True):
            assert have.shape == tuple(expected.shape)
            assert np.mean(np.abs(have.astype("f8") - expected.numpy()) < 1e-4) > 0.999

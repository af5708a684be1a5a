"""What PyTorch does not train a graph does not, either: buffers, constants of the code, parameters that want no gradients."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

import ooc  # noqa: E402
import ooc.torch  # noqa: E402


class Partly(nn.Module):  # type: ignore[misc,name-defined]
    """A buffer, filters that are held, and a resizing by constants between layers that train."""

    def __init__(self) -> None:
        super().__init__()
        self.front, self.held, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.last = nn.Linear(4, 3)
        self.register_buffer("share", torch.rand(1, 4, 1, 1) + 0.5)
        self.held.weight.requires_grad_(False)

    def forward(self, x: Any) -> Any:
        y = self.norm(self.held(self.front(x))) * self.share
        return self.last(F.interpolate(y, (9, 7), mode="bicubic").tanh().mean((2, 3)))


def made() -> tuple[Any, Any, Any, Any]:
    torch.manual_seed(3)
    module, x, labels = Partly().double().train(), torch.randn(2, 3, 12, 9).double(), torch.tensor([0, 2])
    graph = ooc.torch.graph(module, tuple(x.shape))
    graph.loss("cross_entropy", graph.outputs[0])
    return module, graph, x, labels


@pytest.mark.parametrize("budget", [None, "16 KiB"])
def test_steps_are_pytorchs(budget: str | None) -> None:
    module, graph, x, labels = made()
    begin, trained = copy.deepcopy(module.state_dict()), copy.deepcopy(module)
    optimizer = torch.optim.SGD([p for p in trained.parameters() if p.requires_grad], 0.1)
    plan = graph.plan(batch=2, budget=budget, optimizer=ooc.SGD(0.1))
    with plan.session() as session:
        for _ in range(3):
            optimizer.zero_grad()
            loss = F.cross_entropy(trained(x), labels)
            assert session.step(x.numpy(), labels.numpy()) == pytest.approx(float(loss.detach()), abs=1e-10)
            loss.backward()
            optimizer.step()
        parameters = session.parameters()
    assert graph.fixed < parameters.keys() and len(graph.fixed) >= 4
    np.testing.assert_array_equal(parameters["held.w"], begin["held.weight"].numpy())
    np.testing.assert_allclose(parameters["front.w"], trained.front.weight.detach().numpy(), atol=1e-12)


def test_what_is_fixed_travels() -> None:
    _, graph, _, _ = made()
    assert ooc.Graph.from_json(graph.to_json()).fixed == graph.fixed
    back = graph.to_torch()
    assert {name.replace("weight", "w") for name, p in back.named_parameters() if not p.requires_grad} == graph.fixed
    with pytest.raises(ooc.ArgumentError, match="no parameter"):
        graph.fix("nothing")


@pytest.mark.parametrize("persistent", [False, True])
def test_places_that_a_buffer_names(persistent: bool) -> None:
    class Picks(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("places", torch.tensor([0, 2, 1, 1]), persistent=persistent)

        def forward(self, x: Any) -> Any:
            return torch.index_select(x, 2, self.places)

    module, x = Picks(), torch.randn(2, 3, 4, 5)
    with ooc.torch.graph(module, tuple(x.shape)).plan(batch=2, train=False, device="cpu").session() as session:
        assert torch.equal(torch.as_tensor(session.forward(x.numpy())), module(x))

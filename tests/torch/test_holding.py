"""Between the passes of a converted model its parts hold what the budget allows, all of them together, and no more."""

from __future__ import annotations

import copy
import gc
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

import ooc  # noqa: E402

KIB = 1 << 10


def part(c: int = 8, k: int = 8) -> Any:
    return nn.Sequential(nn.Conv2d(c, k, 3, padding=1), nn.BatchNorm2d(k), nn.ReLU(), nn.Dropout(0.25))


class Parted(nn.Module):  # type: ignore[misc,name-defined]
    """Parts that run through ooc, each for itself, as what is between them does not."""

    def __init__(self, parts: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(part() for _ in range(parts))

    def forward(self, x: Any) -> Any:
        for one in self.parts:
            x = one(x)
            x = x + torch.special.bessel_j0(x.detach())
        return x


def plans(module: Any) -> list[Any]:
    """What was planned, by mode, the latest segment first."""
    segments = [s for m in module.modules() for s in getattr(m.forward, "segments", {}).values() if not isinstance(s, Exception)]
    return [mode for segment in segments for mode, _ in segment.plans]


def held(module: Any) -> list[int]:
    """Bytes that sessions hold: of those with gradients to come, and of all."""
    sessions = module.forward.terms.sessions
    passes = [one.counted_bytes for ref in sessions._held if (one := ref()) is not None]
    return [sum(passes), sum(passes) + sum(one.counted_bytes for one in sessions._waiting)]


def gradients(module: Any, x: Any, seed: int = 3) -> list[Any]:
    """The output and all gradients."""
    torch.manual_seed(seed)
    x = x.detach().requires_grad_()
    y = module(x)
    y.square().sum().backward()
    grads = [y.detach(), x.grad, *(p.grad.clone() for p in module.parameters())]
    module.zero_grad()
    return grads


def same(have: list[Any], expected: list[Any]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(have, expected, strict=True))


@pytest.fixture
def x() -> Any:
    torch.manual_seed(0)
    return torch.randn(4, 8, 20, 20)


def deterministic() -> Any:
    return ooc.device("cpu", threads=1, deterministic=True)


def test_nothing_is_computed_twice_where_the_budget_allows(x: Any) -> None:
    module = ooc.torch.convert_model(part(), device=deterministic())
    free = gradients(module, x)
    assert plans(module) == ["both"]
    tight = ooc.torch.convert_model(copy.deepcopy(module), 64 * KIB, device=deterministic())
    assert same(gradients(tight, x), free)


def test_parts_share_one_budget(x: Any) -> None:
    """The oldest pass is let go, and made again for its gradients: the same bits, dropout too."""
    torch.manual_seed(1)
    module = Parted(4)
    free = ooc.torch.convert_model(copy.deepcopy(module), device=deterministic())
    expected = gradients(free, x)
    assert plans(free) == ["both"] * 4
    (plan, *_) = next(iter(free.parts[0].forward.segments.values())).plans.values()
    for parts, again in ((4, 0), (2, 2), (1, 3)):
        budget = plan.counted_bytes * parts + KIB
        tight = ooc.torch.convert_model(copy.deepcopy(module), budget, device=deterministic())
        y = tight(x.detach().requires_grad_())
        assert 0 < held(tight)[0] <= held(tight)[1] <= budget
        del y
        assert same(gradients(tight, x), expected)
        assert plans(tight).count("backward") == again
        assert held(tight)[0] == 0 and held(tight)[1] <= budget
        assert same(gradients(tight, x), expected)  # in sessions that were used


def test_passes_that_wait_for_each_other(x: Any) -> None:
    """Two forward passes before the first backward; the older one's gradients come first."""
    module = ooc.torch.convert_model(part(), device=deterministic())
    expected = gradients(module, x, 1), gradients(module, 2 * x, 2)
    for budget in (None, 256 * KIB):
        other = ooc.torch.convert_model(copy.deepcopy(module), budget, device=deterministic())
        a, b = x.detach().requires_grad_(), (2 * x).detach().requires_grad_()
        torch.manual_seed(1)
        first = other(a)
        torch.manual_seed(2)
        second = other(b)
        first.square().sum().backward()
        assert torch.equal(a.grad, expected[0][1])
        other.zero_grad()
        second.square().sum().backward()
        assert torch.equal(b.grad, expected[1][1])


def test_gradients_once_more(x: Any) -> None:
    """What was held is gone after the first time: the pass is made again, be its session at another one's."""
    module = ooc.torch.convert_model(part(), device=deterministic())
    x.requires_grad_()
    y = module(x)
    (once,) = torch.autograd.grad(y.square().sum(), x, retain_graph=True)
    other = module(3 * x)
    (again,) = torch.autograd.grad(y.square().sum(), x)
    assert torch.equal(once, again)
    other.sum().backward()


def test_what_nobody_asks_for_is_not_held(x: Any) -> None:
    module = ooc.torch.convert_model(part(), device=deterministic())
    y = module(x)
    assert held(module)[0] > 0
    del y
    gc.collect()
    assert held(module)[0] == 0
    with torch.no_grad():
        module(x)
    assert held(module) == [0, 0]
    gradients(module, x)
    assert held(module)[0] == 0 < held(module)[1]
    sessions = module.forward.terms.sessions
    ooc.torch.revert_model(module)
    assert not sessions._waiting


def test_outputs_may_change_before_the_gradients(x: Any) -> None:
    """As they may in PyTorch where their values are not what gradients are computed from."""
    module = ooc.torch.convert_model(nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU()), device=deterministic())
    (expected,) = torch.autograd.grad(module(x.requires_grad_()).sum(), x)
    y = module(x)
    with torch.no_grad():
        y.fill_(-1.0)
    (have,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(have, expected)


def test_parameters_must_not_change_before_the_gradients(x: Any) -> None:
    module = ooc.torch.convert_model(part(), device=deterministic())
    y = module(x)
    with torch.no_grad():
        module[0].weight.mul_(2)
    with pytest.raises(RuntimeError, match="inplace operation"):
        y.sum().backward()


def test_a_copy_has_sessions_of_its_own(x: Any) -> None:
    module = ooc.torch.convert_model(part(), device="cpu")
    y = module(x)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert held(other) == [0, 0]
        gradients(other, x)
    assert held(module)[0] > 0
    y.sum().backward()

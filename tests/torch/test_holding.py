"""Between the passes of a converted model its parts hold what the budget allows, all of them together, and no more."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import threading
import weakref
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

import ooc  # noqa: E402
from ooc.files.mapped import span_at  # noqa: E402

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
    passes, waiting = ([one.nbytes for ref in refs if (one := ref()) is not None] for refs in (sessions._held, sessions._waiting))
    return [sum(passes), sum(passes) + sum(waiting)]


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
    assert sum(ref().nbytes for ref in sessions._waiting if ref() is not None) == 0


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


def test_sessions_that_wait_are_few(x: Any) -> None:
    """One for each module, whatever sizes came and however many passes waited; none of a module that is gone."""
    module = ooc.torch.convert_model(part(), device="cpu")
    for side in range(20, 40):
        gradients(module, x[:, :, :, :1].expand(4, 8, 20, side - 12).contiguous())
    (segment,) = [s for s in module.forward.segments.values() if s.plans and s.idle[0].plan in s.plans.values()]
    assert held(module) == [0, segment.idle[0].nbytes]
    losses = [module(x).sum() for _ in range(4)]
    for loss in losses:
        loss.backward()
    assert held(module) == [0, module.forward.idle[0].nbytes]
    session = module.forward.idle[0]._session[0]
    gc.disable()
    try:
        del module, segment, losses, loss
        assert session._main is None or sys.getrefcount(session) == 2
    finally:
        gc.enable()


def test_threads_keep_the_budget_together(x: Any) -> None:
    """They wait for each other where there is no room for two passes at once."""
    module = ooc.torch.convert_model(part(), device=deterministic())
    expected = gradients(module, x)
    (plan,) = next(iter(module.forward.segments.values())).plans.values()
    budget = int(1.5 * plan.counted_bytes)
    tight = ooc.torch.convert_model(copy.deepcopy(module), budget, device=deterministic())
    sessions, most, odd = tight.forward.terms.sessions, [], []
    counted = sessions._counted

    def watched() -> int:
        most.append(counted())
        return most[-1]

    def run() -> None:
        for _ in range(3):
            a = x.detach().requires_grad_()
            tight(a).sum().backward()
            most.append(counted())
            odd.append(not torch.isfinite(a.grad).all())

    sessions._counted = watched
    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(odd) == 12 and not any(odd) and max(most) <= budget
    del sessions._counted
    tight.zero_grad()
    assert same(gradients(tight, x)[:2], expected[:2])


def test_models_on_one_device_share_its_limit(x: Any) -> None:
    """What waits in one makes room for another."""
    device = ooc.device("cpu", threads=1)
    first = ooc.torch.convert_model(part(), device=device)
    gradients(first, x)
    (plan,) = next(iter(first.forward.segments.values())).plans.values()
    device = ooc.device("cpu", threads=1, budget=int(1.5 * plan.counted_bytes))
    models = [ooc.torch.convert_model(part(), device=device) for _ in range(3)]
    for model in models:
        gradients(model, x)
        assert sum(held(one)[1] for one in models) <= device.device_bytes


def test_what_no_output_depends_on_has_no_gradient(x: Any) -> None:
    """As in PyTorch: an optimizer with a momentum leaves it alone."""

    class Beside(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Conv2d(8, 4, 3), nn.Conv2d(8, 4, 3)

        def forward(self, x: Any) -> Any:
            self.other(x)
            return self.one(x)

    module = ooc.torch.convert_model(Beside(), device="cpu")
    module(x).sum().backward()
    assert module.one.weight.grad is not None and module.other.weight.grad is None


def test_statistics_of_instances_that_run_are_pytorchs(x: Any) -> None:
    plain = nn.Sequential(nn.InstanceNorm2d(8, track_running_stats=True))
    ours = ooc.torch.convert_model(copy.deepcopy(plain), device="cpu")
    torch.testing.assert_close(ours(x), plain(x))
    assert torch.equal(ours[0].running_mean, plain[0].running_mean) and ours[0].running_mean.abs().max() > 0


def test_the_smallest_budget_is_enough_for_both_passes(x: Any) -> None:
    module = part()
    with pytest.raises(ooc.BudgetError) as caught:
        ooc.torch.convert_model(copy.deepcopy(module), 8, device="cpu")(x.requires_grad_())
    gradients(ooc.torch.convert_model(module, caught.value.smallest_bytes, device="cpu"), x)


def test_arrays_of_a_pass_go_when_it_is_over(x: Any) -> None:
    """No circle keeps them until Python's collector comes by."""
    module = ooc.torch.convert_model(part(), device="cpu")
    gradients(module, x)
    gc.collect()
    gc.disable()
    try:
        before = sum(isinstance(one, np.ndarray) for one in gc.get_objects())
        for _ in range(5):
            gradients(module, x)
        assert sum(isinstance(one, np.ndarray) for one in gc.get_objects()) <= before + 8
        refs = [weakref.ref(one) for one in gc.get_objects() if type(one).__name__ == "Callers"]
        assert all(not one().views for one in refs if one() is not None)
    finally:
        gc.enable()


class Watched(nn.Module):  # type: ignore[misc,name-defined]
    """Two parts with a step of PyTorch's between them, which notes what it reads, and the gradient that comes back."""

    def __init__(self, passed: list[Any]) -> None:
        super().__init__()
        self.front, self.back = part(), part()
        self.passed = lambda value: passed.append(value)

    def forward(self, x: Any) -> Any:
        h = self.front(x)
        y = h + torch.special.bessel_j0(h.detach())
        if y.requires_grad:
            y.register_hook(self.passed)
        self.passed(h)
        return self.back(y)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux tells what is mapped")
@pytest.mark.parametrize(("side", "budget", "in_files"), [(64, "2 MiB", True), (64, None, False), (4, "2 MiB", False)])
def test_what_passes_between_parts_lies_in_files(side: int, budget: str | None, in_files: bool) -> None:
    """Where there is a budget, and it is large enough for one; values and gradients are the same."""
    passed: list[Any] = []
    plain, x = Watched(passed).eval(), torch.randn(2, 8, side, side)
    module = ooc.torch.convert_model(copy.deepcopy(plain), budget, device="cpu")
    expected = gradients(plain, x)
    passed.clear()
    values = gradients(module, x)
    assert len(passed) == 2
    for tensor in passed:
        span = span_at(tensor.data_ptr())
        assert (span is not None and span.inode > 0) == in_files
        assert tensor.is_contiguous()
    for one, other in zip(values, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    weak = weakref.ref(passed[0].untyped_storage())
    del span, tensor
    passed.clear()
    gc.collect()
    assert weak() is None

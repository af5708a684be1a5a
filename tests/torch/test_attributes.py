"""Converted models whose attributes change between calls, or in them: what comes out is PyTorch's of the moment."""

from __future__ import annotations

import argparse
import copy
import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
results = pytest.importorskip("torch_results").results
nn, F = torch.nn, torch.nn.functional

import ooc  # noqa: E402
from ooc.errors import UnsupportedError  # noqa: E402
from ooc.torch.convert import CHANGES  # noqa: E402
from ooc.torch.segment import Segment  # noqa: E402
from ooc.torch.state import State  # noqa: E402


class Free(nn.Module):  # type: ignore[misc,name-defined]
    """A convolution, and what a function makes of it by attributes of all kinds."""

    def __init__(self, body: Callable[[Any, Any], Any], **attributes: Any) -> None:
        super().__init__()
        self.conv, self.body = nn.Conv2d(3, 3, 3, padding=1), body
        vars(self).update(attributes)

    def forward(self, x: Any) -> Any:
        return self.body(self, self.conv(x))


def of_one(make: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: nn.Sequential(nn.Conv2d(3, 3, 3), make())


def put(name: str, value: Any, at: Callable[[Any], Any] = lambda m: m[1]) -> Callable[[Any], None]:
    return lambda m: setattr(at(m), name, value)


def replaced(m: Any) -> None:
    m[1] = nn.Tanh()


def free(body: Callable[[Any, Any], Any], change: Callable[[Any], Any], **attributes: Any) -> tuple[Any, Any]:
    return lambda: Free(body, **copy.deepcopy(attributes)), change


SCALED: Callable[[Any, Any], Any] = lambda m, h: h * m.by  # noqa: E731
# By name: makes a module, and changes it.
CASES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "a number": free(SCALED, lambda m: setattr(m, "by", 3.0), by=2.0),
    "a number, of another type": free(lambda m, h: h * (2 if m.by is True else 5), lambda m: setattr(m, "by", 1), by=True),
    "the sign of zero": free(lambda m, h: h * np.copysign(1.0, m.by), lambda m: setattr(m, "by", -0.0), by=0.0),
    "a flag": free(lambda m, h: F.relu(h) if m.by else h, lambda m: setattr(m, "by", True), by=False),
    "a word": free(lambda m, h: getattr(F, m.by)(h), lambda m: setattr(m, "by", "tanh"), by="relu"),
    "a function": free(lambda m, h: m.by(h), lambda m: setattr(m, "by", torch.tanh), by=torch.relu),
    "a function and its arguments": free(
        lambda m, h: m.by(h),
        lambda m: m.by.keywords.update(negative_slope=0.7),
        by=functools.partial(F.leaky_relu, negative_slope=0.1),
    ),
    "a tuple": free(lambda m, h: h * m.by[1], lambda m: setattr(m, "by", (1.0, 3.0)), by=(1.0, 2.0)),
    "a list": free(lambda m, h: h * m.by[0], lambda m: m.by.insert(0, 3.0), by=[2.0]),
    "a list in a list": free(lambda m, h: h * m.by[0][0], lambda m: m.by[0].insert(0, 3.0), by=[[2.0]]),
    "a dict": free(lambda m, h: h * m.by["k"], lambda m: m.by.update(k=3.0), by={"k": 2.0}),
    "a set": free(lambda m, h: h * (3.0 if "k" in m.by else 2.0), lambda m: m.by.add("k"), by=set()),
    "an object": free(lambda m, h: h * m.by.k, lambda m: setattr(m.by, "k", 3.0), by=SimpleNamespace(k=2.0)),
    "an object in an object": free(
        lambda m, h: h * m.by.a.k, lambda m: setattr(m.by.a, "k", 3.0), by=argparse.Namespace(a=SimpleNamespace(k=2.0))
    ),
    "an array": free(lambda m, h: h * float(m.by[0]), lambda m: m.by.fill(3.0), by=np.array([2.0])),
    "a tensor": free(lambda m, h: h * m.by, lambda m: setattr(m, "by", torch.tensor(3.0)), by=torch.tensor(2.0)),
    "a tensor, in place": free(lambda m, h: h * m.by, lambda m: m.by.fill_(3.0), by=torch.tensor(2.0)),
    "a new attribute": free(lambda m, h: h * getattr(m, "by", 2.0), lambda m: setattr(m, "by", 3.0)),
    "an attribute less": free(lambda m, h: h * getattr(m, "by", 2.0), lambda m: delattr(m, "by"), by=3.0),
    "leaky_relu": (of_one(lambda: nn.LeakyReLU(0.1)), put("negative_slope", 0.5)),
    "elu": (of_one(lambda: nn.ELU(0.5)), put("alpha", 1.5)),
    "eps": (of_one(lambda: nn.BatchNorm2d(3)), put("eps", 0.5)),
    "momentum": (of_one(lambda: nn.BatchNorm2d(3)), put("momentum", 0.7)),
    "padding_mode": (lambda: nn.Sequential(nn.Conv2d(3, 3, 3, padding=1)), lambda m: setattr(m[0], "padding_mode", "circular")),
    "stride": (lambda: nn.Sequential(nn.Conv2d(3, 3, 3)), lambda m: setattr(m[0], "stride", (2, 2))),
    "a pool's window": (of_one(lambda: nn.MaxPool2d(2)), put("kernel_size", 3)),
    "another child": (of_one(nn.ReLU), replaced),
    "a child more": (of_one(nn.ReLU), lambda m: m.append(nn.Sigmoid())),
    "a child less": (of_one(nn.ReLU), lambda m: m.pop(1)),
    "a child's forward": (of_one(nn.Tanh), lambda m: setattr(m[1], "forward", torch.sigmoid)),
    "weights of another shape": (of_one(nn.ReLU), put("weight", nn.Parameter(torch.ones(3, 3, 2, 2).double()), lambda m: m[0])),
    "shared weights": (
        lambda: nn.Sequential(nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3)), lambda m: setattr(m[1], "weight", m[0].weight),
    ),
    "frozen statistics": (of_one(lambda: nn.BatchNorm2d(3)), lambda m: m[1].eval()),
}  # fmt: skip


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_what_changes_is_noticed(name: str, training: bool) -> None:
    make, change = CASES[name]
    torch.manual_seed(0)
    module = make().double().train(training)
    plain, ours = copy.deepcopy(module), ooc.torch.convert_model(module)
    x = torch.randn(2, 3, 7, 6, dtype=torch.float64)
    first = results(plain, x)
    torch.testing.assert_close(results(ours, x), first, rtol=1e-9, atol=1e-9)
    assert isinstance(ours.forward.segment((x,), {}), Segment)
    change(plain)
    change(ours)
    wanted = results(plain, x)
    torch.testing.assert_close(results(ours, x), wanted, rtol=1e-9, atol=1e-9)
    if not training and name in ("momentum", "frozen statistics"):
        return  # it makes no difference
    assert wanted.keys() != first.keys() or any(not torch.equal(wanted[n], first[n]) for n in wanted)


def test_probability_of_dropout() -> None:
    module = ooc.torch.convert_model(nn.Sequential(nn.Dropout(0.9)))
    x = torch.ones(2, 3, 16, 16)
    assert float((module(x) == 0).double().mean()) > 0.7
    module[0].p = 0.0
    assert torch.equal(module(x), x)
    module[0].p = 0.5
    assert 0.3 < float((module(x) == 0).double().mean()) < 0.7


def counting(m: Any, h: Any) -> Any:
    m.n += 1
    return h * m.n


def listing(m: Any, h: Any) -> Any:
    m.seen.append(len(m.seen))
    return h * len(m.seen)


def keeping(m: Any, h: Any) -> Any:
    m.last = h
    return h * 2


@pytest.mark.parametrize(
    ("body", "attributes"), [(counting, {"n": 0}), (listing, {"seen": []}), (keeping, {}), (keeping, {"last": None})]
)
def test_a_forward_function_that_changes_attributes(body: Callable[[Any, Any], Any], attributes: dict[str, Any]) -> None:
    """It runs in PyTorch, what is inside through ooc; nothing is exported anew in every call."""
    plain = Free(body, **copy.deepcopy(attributes)).double()
    ours = ooc.torch.convert_model(copy.deepcopy(plain))
    x = torch.randn(2, 3, 7, 6, dtype=torch.float64)
    for _ in range(CHANGES + 3):
        torch.testing.assert_close(ours(x), plain(x), rtol=1e-9, atol=1e-9)
    assert isinstance(ours.forward.segment((x,), {}), UnsupportedError)
    assert len(ours.forward.segments) <= CHANGES + 1
    assert isinstance(next(iter(ours.conv.forward.segments.values())), Segment)
    own = {n: v for n, v in vars(ours).items() if n in ("n", "seen", "last")}
    torch.testing.assert_close(own, {n: vars(plain)[n] for n in own})
    assert own.keys() == attributes.keys() | ({"last"} if body is keeping else set())


def test_attributes_that_change_before_every_call() -> None:
    """Nothing is planned anew for each; when they stay what they are, it is."""
    module = ooc.torch.convert_model(Free(SCALED, by=1.0).double())
    x = torch.randn(2, 3, 7, 6, dtype=torch.float64)
    for i in range(CHANGES + 4):
        module.by = float(i)
        torch.testing.assert_close(module(x), module.conv(x) * i)
    assert len(module.forward.segments) == CHANGES
    assert isinstance(module.forward.segment((x,), {}), Segment)


def test_tensors_that_are_no_parameters_are_left_to_pytorch() -> None:
    """Modules in a plain list, tensors with gradients: gradients reach them."""
    x = torch.randn(2, 3, 7, 6)
    for held in ([nn.Conv2d(3, 3, 1)], torch.ones((), requires_grad=True)):
        module = ooc.torch.convert_model(Free(lambda m, h: m.by[0](h) if isinstance(m.by, list) else h * m.by, by=held))
        module(x).sum().backward()
        leaves = list(held[0].parameters()) if isinstance(held, list) else [held]
        assert all(t.grad is not None and t.grad.abs().sum() > 0 for t in leaves)
        assert isinstance(module.forward.segment((x,), {}), UnsupportedError)


def test_what_does_not_change_is_not_planned_again() -> None:
    """Steps of an optimizer, another state dict, lists and dicts that hold the module's own parts, in circles."""
    module = Free(SCALED, by=2.0)
    vars(module).update(parts=[module.conv, module.conv.weight], back={"me": module}, how=SimpleNamespace(self=None))
    module.how.self = module.how
    ours = ooc.torch.convert_model(module)
    optimizer = torch.optim.SGD(ours.parameters(), 0.1)
    x = torch.randn(2, 3, 7, 6)
    for _ in range(3):
        ours(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        ours.load_state_dict({n: t * 2 for n, t in ours.state_dict().items()})
    (segment,) = ours.forward.segments.values()
    assert isinstance(segment, Segment)


def test_states_keep_no_tensors_alive() -> None:
    module = Free(keeping, last=torch.ones(3))
    before = State(module).key
    assert before == State(module).key
    module.last = torch.ones(3)
    assert before != State(module).key

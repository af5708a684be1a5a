"""Converted models whose modules change what they are given: values, gradients and what is changed are PyTorch's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

import ooc  # noqa: E402
from ooc.errors import UnsupportedError  # noqa: E402
from ooc.torch.segment import Segment  # noqa: E402


class Calls(nn.Module):  # type: ignore[misc,name-defined]
    """What a function does to a tensor, with a layer that it may use."""

    def __init__(self, body: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.body, self.conv = body, nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: Any) -> Any:
        return self.body(self, x)


def starred(module: Any, x: Any) -> Any:
    x[:, 0] = 0.5
    return module.conv(x)


def watched(at: int, *layers: Any) -> Any:
    """Layers of which one has a hook, so that all run by themselves."""
    module = nn.Sequential(*layers)
    module[at].register_forward_hook(lambda *_: None)
    return module


def conv() -> Any:
    return nn.Conv2d(3, 3, 3, padding=1)


class Block(nn.Module):  # type: ignore[misc,name-defined]
    """A residual block of which hooks can be set on a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Sequential(conv(), nn.BatchNorm2d(3), nn.ReLU(True)), conv()
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Any) -> Any:
        return self.relu(self.b(self.a(x)) + x)


def hooked() -> Any:
    module = nn.Sequential(conv(), Block(), conv())
    module[1].a[0].register_forward_hook(lambda *_: None)
    return module


ACTIVATIONS = (nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SiLU, nn.ReLU6, nn.Hardswish, nn.Hardtanh, nn.Hardsigmoid, nn.Mish, nn.SELU)
UP = {"scale_factor": 2, "mode": "bicubic"}
CASES: dict[str, Callable[[], Any]] = {
    **{
        f"alone, {make.__name__}": (lambda make=make: make(inplace=True))
        for make in ACTIVATIONS
    },
    "alone, dropout": lambda: nn.Dropout(0.0, inplace=True),
    "first": lambda: nn.Sequential(nn.ReLU(True), conv()),
    "first, of a function": lambda: Calls(lambda m, x: m.conv(x.mul_(2))),
    "first, of a part": lambda: Calls(lambda m, x: m.conv(torch.cat((F.relu_(x[:, :1]), x[:, 1:]), 1))),
    "first, of a slice": lambda: Calls(starred),
    "first, and not used": lambda: Calls(lambda m, x: (m.conv(x.clone()), x.add_(1))[0]),
    "first, of a block": lambda: nn.Sequential(nn.Sequential(nn.BatchNorm2d(3), nn.ReLU(True), conv()), nn.Upsample(**UP)),
    "pre-activation": lambda: nn.Sequential(nn.Sequential(nn.ReLU(True), conv()), nn.Upsample(**UP)),
    "before what ooc has not": lambda: nn.Sequential(conv(), nn.ReLU(True), nn.Upsample(**UP)),
    "of a function, before what ooc has not": lambda: Calls(lambda m, x: F.relu_(m.conv(x)).flip(-1)),
    "hooks on a convolution": lambda: watched(0, conv(), nn.ReLU(True), conv()),
    "hooks inside a block": hooked,
    "behind a view": lambda: watched(0, nn.Flatten(2), nn.ReLU(True)),
    "behind what does nothing": lambda: watched(0, nn.Dropout(0.0), nn.ReLU(True)),
}  # fmt: skip


def results(module: Any, given: Any) -> dict[str, Any]:
    """What comes out, what has become of the input, all gradients, and the buffers afterwards."""
    leaf = given.clone().requires_grad_()
    x = leaf * 1
    y = module(x)
    torch.manual_seed(1)
    (y * torch.randn(y.shape, dtype=y.dtype)).sum().add(x.square().sum()).backward()
    found = {"y": y, "x": x, "d x": leaf.grad} | {f"d {n}": p.grad for n, p in module.named_parameters()}
    return {n: t.detach().clone() for n, t in (found | dict(module.named_buffers())).items() if t is not None}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_as_pytorch_does(name: str, training: bool) -> None:
    torch.manual_seed(0)
    module, x = CASES[name]().double().train(training), torch.randn(2, 3, 6, 5, dtype=torch.float64)
    wanted, have = (results(m, x) for m in (copy.deepcopy(module), ooc.torch.convert_model(copy.deepcopy(module), "1 MiB")))
    torch.testing.assert_close(have, wanted, rtol=1e-10, atol=1e-10)
    with torch.no_grad():
        ours, plain = x.clone(), x.clone()
        torch.testing.assert_close(ooc.torch.convert_model(copy.deepcopy(module))(ours), module(plain), rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(ours, plain)


def test_what_is_returned_unchanged_is_the_input() -> None:
    module = ooc.torch.convert_model(nn.Sequential(Calls(lambda m, x: [x, m.conv(x)])))
    x = torch.randn(1, 3, 4, 4)
    assert module(x)[0] is x
    assert isinstance(module.forward.segment((x,), {}), Segment)
    flat = ooc.torch.convert_model(nn.Flatten())
    assert flat(x).data_ptr() == x.data_ptr()


def test_the_rest_of_a_model_that_begins_in_place_runs_through_ooc() -> None:
    module = ooc.torch.convert_model(nn.Sequential(nn.ReLU(True), nn.Sequential(conv(), nn.BatchNorm2d(3), nn.ReLU(True))))
    x = torch.randn(1, 3, 4, 4)
    module(x)
    assert isinstance(module.forward.segment((x,), {}), UnsupportedError)
    assert all(isinstance(s, Segment) for s in module[1].forward.segments.values())


def test_a_graph_of_what_begins_in_place() -> None:
    """A graph changes no inputs; what is returned is the same."""
    module = nn.Sequential(nn.ReLU(True), conv()).eval()
    graph = ooc.torch.graph(module, (2, 3, 6, 5))
    assert len(graph.outputs) == 1
    x = torch.randn(2, 3, 6, 5)
    with graph.plan(batch=2, train=False).session() as session:
        have = session.forward(x.numpy())
    torch.testing.assert_close(torch.from_numpy(have), module(x.clone()).detach(), rtol=1e-5, atol=1e-5)


def test_gradients_at_a_layer_inside() -> None:
    """As Grad-CAM takes them, of a network whose activations work in place."""
    torch.manual_seed(0)
    module, x = hooked().double(), torch.randn(2, 3, 6, 5, dtype=torch.float64)
    found = []
    for one in (copy.deepcopy(module), ooc.torch.convert_model(copy.deepcopy(module))):
        seen: list[Any] = []
        one[1].b.register_forward_hook(lambda m, i, o, seen=seen: (seen.append(o.clone()), o.register_hook(seen.append))[0])
        one(x).sum().backward()
        found.append(seen)
    torch.testing.assert_close(found[1], found[0])
    assert len(found[0]) == 2

"""Gradients that do not go where the operators of a forward pass say: converted models have PyTorch's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
results = pytest.importorskip("torch_results").results
nn, F = torch.nn, torch.nn.functional

import ooc  # noqa: E402
from ooc.errors import UnsupportedError  # noqa: E402
from ooc.torch.segment import Segment  # noqa: E402

Body = Callable[[Any, Any], Any]


class Reversed(torch.autograd.Function):  # type: ignore[misc]
    """x; its gradient is the other way."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 1

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        return -dy


class Rounded(torch.autograd.Function):  # type: ignore[misc]
    """Quarters below x; the gradient passes where x is small."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return torch.floor(x * 4) / 4

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        return dy * (ctx.saved_tensors[0].abs() < 1)


class Twice(torch.autograd.Function):  # type: ignore[misc]
    """Two results of a function of its own."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x + 1, x * 2

    @staticmethod
    def backward(ctx: Any, da: Any, db: Any) -> Any:
        return 3 * da - db


def off(m: Any, x: Any) -> Any:
    h = m.conv(x)
    with torch.no_grad():
        gate = torch.sigmoid(m.conv(x))
    return h * gate


def on_again(m: Any, x: Any) -> Any:
    with torch.no_grad():
        gate = m.conv(x).abs()
        with torch.enable_grad():
            h = torch.tanh(gate + m.conv(x))
    return h * gate


def weights_off(m: Any, x: Any) -> Any:
    with torch.no_grad():
        w = m.conv.weight * 2
    return F.conv2d(x, w + m.conv.weight)


def decorated(m: Any, x: Any) -> Any:
    @torch.no_grad()
    def inner(x: Any) -> Any:
        return F.relu(m.conv(x))

    return inner(x) * m.conv(x)


def inference(m: Any, x: Any) -> Any:
    with torch.inference_mode():
        gate = torch.sigmoid(m.conv(x))
    return m.conv(x) * gate.clone()


def moved(m: Any, x: Any) -> Any:
    """A running mean that the output depends on."""
    h = m.conv(x)
    with torch.no_grad():
        m.seen.mul_(0.5).add_(1.0)
    return h * m.seen


def hooked(m: Any, x: Any) -> Any:
    h = m.conv(x)
    if h.requires_grad:
        h.register_hook(lambda dy: dy * 2)
    return h.sin()


def cut_in_place(m: Any, x: Any) -> Any:
    h = m.conv(x)
    h.detach_()
    return h * m.conv(x)


def changed(change: Callable[[Any], Any]) -> Body:
    """Values of a tensor that change unseen by its gradient."""

    def body(m: Any, x: Any) -> Any:
        h = m.conv(x)
        change(h)
        return h.sin() + x

    return body


def without_gradients(change: Callable[[Any], Any]) -> Body:
    def inner(h: Any) -> None:
        with torch.no_grad():
            change(h)

    return changed(inner)


def masked(m: Any, x: Any) -> Any:
    """What does not come from parameters or inputs changes as it likes."""
    mask = torch.zeros(9, 8, dtype=x.dtype)
    with torch.no_grad():
        mask[2:5] = 1
        mask.data[:, 1].add_(2)
        gate = F.relu(m.conv(x), inplace=True)
        gate[:, 0] *= mask
    return m.conv(x) * mask + gate


def branching(m: Any, x: Any) -> Any:
    return m.conv(x).sin() if m.conv.weight.requires_grad else x


def clamped(m: Any, x: Any) -> Any:
    h = m.conv(x) * 3
    with torch.no_grad():
        h.clamp_(-1, 1)
    return h.sum(1, keepdim=True) + x


def plain_numbers(m: Any, x: Any) -> Any:
    """As modules say of grids that they make."""
    grid, cut = torch.linspace(-1, 1, 8).to(x), m.conv(x).detach()
    grid.requires_grad = False
    return m.conv(x) * grid + cut.requires_grad_(False) * x


# By name: values that change in place where no gradient sees it; graphs have no word for them.
UNSEEN: dict[str, Body] = {
    "in place, with gradients off": clamped,
    "cut off in place": cut_in_place,
    "data, in place": changed(lambda h: h.data.mul_(2)),
    "a part of data, in place": changed(lambda h: h.data[:, 0].mul_(2)),
    "detached, in place": changed(lambda h: h.detach().add_(1)),
    "a view, with gradients off": without_gradients(lambda h: h[:, 1].mul_(3)),
    "inplace=True, with gradients off": without_gradients(lambda h: F.relu(h, inplace=True)),
    "out=, with gradients off": without_gradients(lambda h: torch.mul(h, 2, out=h)),
    "other data": changed(lambda h: setattr(h, "data", h.data * 2)),
}
# By name: what is computed, and whether it runs as one.
CASES: dict[str, tuple[Body, bool]] = {
    "no_grad": (off, True),
    "enable_grad inside": (on_again, True),
    "no_grad, of parameters": (weights_off, True),
    "no_grad, as a decorator": (decorated, True),
    "inference_mode": (inference, True),
    "detach": (lambda m, x: (lambda h: h * torch.sigmoid(h).detach())(m.conv(x)), True),
    "data": (lambda m, x: (lambda h: h * torch.sigmoid(h).data)(m.conv(x)), True),
    "nearest, straight through": (lambda m, x: (lambda h: h + (torch.round(h) - h).detach())(m.conv(x)), True),
    "detach, of parameters": (lambda m, x: F.conv2d(x, m.conv.weight + m.conv.weight.detach()), True),
    "a buffer that moves": (moved, True),
    "requires_grad of a parameter": (branching, True),
    "checkpoint": (lambda m, x: torch.utils.checkpoint.checkpoint(lambda t: F.relu(m.conv(t)), x, use_reentrant=True), True),
    "checkpoint, by hooks": (
        lambda m, x: torch.utils.checkpoint.checkpoint(lambda t: F.relu(m.conv(t)), x, use_reentrant=False),
        True,
    ),
    "a function of its own": (lambda m, x: Reversed.apply(m.conv(x)).sin(), False),
    "straight through": (lambda m, x: Rounded.apply(m.conv(x)).sin(), False),
    "straight through, of parameters": (lambda m, x: F.conv2d(x, Rounded.apply(m.conv.weight)), False),
    "several results": (lambda m, x: (lambda a, b: a * b)(*Twice.apply(m.conv(x))), False),
    "a hook of a tensor": (hooked, False),
    "numbers that say that they want no gradient": (plain_numbers, True),
    "a cut that wants a gradient": (lambda m, x: m.conv(x).detach().requires_grad_() * x, False),
    "numbers of the code, in place": (masked, True),
    **{name: (body, False) for name, body in UNSEEN.items()},
}


class Model(nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self, body: Body) -> None:
        super().__init__()
        self.conv, self.body = nn.Conv2d(3, 3, 3, padding=1), body
        self.register_buffer("seen", torch.ones(3, 1, 1))

    def forward(self, x: Any) -> Any:
        return self.body(self, x)


def models(name: str) -> tuple[Any, Any, Any]:
    """As PyTorch has it, converted, and an input."""
    torch.manual_seed(1)
    plain = Model(CASES[name][0]).double()
    model = Model(CASES[name][0]).double()
    model.load_state_dict(plain.state_dict())
    x = torch.randn(2, 3, 9, 8, dtype=torch.float64)
    return plain, ooc.torch.convert_model(model, "4 MiB", device="cpu"), x


@pytest.mark.parametrize("name", CASES)
def test_gradients_stop_where_pytorchs_do(name: str) -> None:
    plain, model, x = models(name)
    torch.testing.assert_close(results(model, x), results(plain, x), rtol=1e-11, atol=1e-12)
    assert isinstance(model.forward.segment((x.requires_grad_(),), {}), Segment) == CASES[name][1]


@pytest.mark.parametrize("name", [*(name for name in CASES if name not in UNSEEN)])
def test_all_runs_as_one_without_gradients(name: str) -> None:
    plain, model, x = models(name)
    with torch.no_grad():
        torch.testing.assert_close(model(x), plain(x), rtol=1e-11, atol=1e-12)
        assert isinstance(model.forward.segment((x,), {}), Segment)


def test_a_parameter_that_is_frozen_is_noticed() -> None:
    """Where the module's code looks at it."""
    plain, model, x = models("requires_grad of a parameter")
    assert model(x.requires_grad_()).requires_grad
    for one in (plain, model):
        one.conv.weight.requires_grad_(False)
        torch.testing.assert_close(one(x), x)


def test_a_graph_stops_gradients_too() -> None:
    """And is refused where one is not known, for training alone."""
    for name, kind in (("no_grad", "zero"), ("a function of its own", "unknown")):
        plain, _, x = models(name)
        graph = ooc.torch.graph(plain, tuple(x.shape))
        assert kind in {node.layer.how for node in graph.nodes if node.layer.kind == "stop"}
        with graph.plan(batch=2, train=False, device="cpu").session() as session:
            torch.testing.assert_close(torch.from_numpy(session.forward(x.numpy())), plain(x), rtol=1e-11, atol=1e-12)
    graph = ooc.torch.graph(plain, tuple(x.shape))
    graph.loss("mse", graph.outputs[0])
    with pytest.raises(UnsupportedError, match="has no gradient"):
        graph.plan(batch=2, device="cpu")


def test_functions_of_other_threads_are_theirs() -> None:
    """While a module is traced, what is patched serves its thread alone, and is gone when it is done."""
    before = vars(torch.autograd.Function)["apply"]
    _, model, x = models("a function of its own")
    model(x.requires_grad_())
    assert vars(torch.autograd.Function)["apply"] is before
    y = Reversed.apply(x)
    y.sum().backward()
    assert (x.grad == -1).all()


def test_outputs_that_have_no_gradients_say_so() -> None:
    """Classes and what is cut off, alone and beside what has gradients."""
    torch.manual_seed(0)
    bodies: list[Body] = [
        lambda m, x: m.conv(x).argmax(1),
        lambda m, x: m.conv(x).mean((2, 3)).argmax(1),
        lambda m, x: m.conv(x).detach(),
        lambda m, x: (m.conv(x), m.conv(x).argmax(1), m.conv(x).sum((1, 2, 3)).detach()),
    ]
    for body in bodies:
        plain = Model(body).double()
        model = ooc.torch.convert_model(copy.deepcopy(plain), "4 MiB", device="cpu")
        x = torch.randn(2, 3, 9, 8, dtype=torch.float64)
        leaves = [x.clone().requires_grad_() for _ in range(2)]
        expected, outputs = (y if isinstance(y, tuple) else (y,) for y in (plain(leaves[0]), model(leaves[1])))
        for y, z in zip(outputs, expected, strict=True):
            assert y.dtype == z.dtype and y.requires_grad == z.requires_grad
            torch.testing.assert_close(y, z, rtol=1e-11, atol=1e-12)
        if expected[0].requires_grad:
            for y in (expected[0], outputs[0]):
                y.square().sum().backward()
            torch.testing.assert_close(leaves[1].grad, leaves[0].grad, rtol=1e-11, atol=1e-12)

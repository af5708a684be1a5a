"""What runs in PyTorch because ooc cannot do it, while its neighbours run through ooc: layers without a gradient, inputs without
a batch, empty ones; nothing is said about it on stderr."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
results = pytest.importorskip("torch_results").results
nn, F = torch.nn, torch.nn.functional

import ooc  # noqa: E402
from ooc.errors import UnsupportedError  # noqa: E402
from ooc.torch.segment import Segment  # noqa: E402


class Calls(nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self, body: Callable[[Any], Any]) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Any) -> Any:
        return self.body(x)


def power(x: Any) -> Any:
    """It has no gradient."""
    return (x.square() + 1) ** x


CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
# By name: the spatial axes, and a layer whose gradient gathers, or is a quotient.
WHOLE: dict[str, tuple[int, Callable[[], Any]]] = {
    "reflect, 1": (1, lambda: nn.ReflectionPad1d(1)),
    "reflect, 2": (2, lambda: nn.ReflectionPad2d(1)),
    "reflect, 3": (3, lambda: nn.ReflectionPad3d(1)),
    "replicate, 1": (1, lambda: nn.ReplicationPad1d(1)),
    "replicate, 2": (2, lambda: nn.ReplicationPad2d(1)),
    "replicate, 3": (3, lambda: nn.ReplicationPad3d(1)),
    "mode reflect": (2, lambda: nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")),
    "mode replicate": (2, lambda: nn.Conv2d(4, 4, 3, padding=1, padding_mode="replicate")),
    "slice": (2, lambda: Calls(lambda x: x[:, :, ::2, ::2])),
    "nearest": (2, lambda: Calls(lambda x: F.interpolate(x, scale_factor=1.6))),
    "bilinear": (2, lambda: Calls(lambda x: F.interpolate(x, scale_factor=1.6, mode="bilinear"))),
    "nearest-exact": (2, lambda: Calls(lambda x: F.interpolate(x, 5, mode="nearest-exact"))),
    "one by": (2, lambda: Calls(lambda x: 1 / (x.square() + 1))),
    "division": (2, lambda: Calls(lambda x: x / (x.square() + 1))),
}
# By name: the spatial axes, and a layer that has no gradient.
PULLS: dict[str, tuple[int, Callable[[], Any]]] = {
    "power, 1": (1, lambda: Calls(power)),
    "power, 2": (2, lambda: Calls(power)),
    "power, 3": (3, lambda: Calls(lambda x: 2.0**x)),
}


@pytest.mark.parametrize("name", WHOLE)
def test_layers_that_gather_train_as_one(name: str) -> None:
    rank, make = WHOLE[name]
    torch.manual_seed(0)
    module = nn.Sequential(CONVS[rank](3, 4, 3, padding=1), make(), CONVS[rank](4, 2, 1)).double()
    x = torch.randn(2, 3, *(6, 7, 4)[:rank], dtype=torch.float64, requires_grad=True)
    wanted = results(copy.deepcopy(module), x)
    ours = ooc.torch.convert_model(module, "1 MiB", x.detach())
    torch.testing.assert_close(results(ours, x), wanted, rtol=1e-9, atol=1e-9)
    assert isinstance(ours.forward.segment((x,), {}), Segment)


@pytest.mark.parametrize("example", [False, True])
@pytest.mark.parametrize("name", PULLS)
def test_layers_without_a_gradient(name: str, example: bool) -> None:
    rank, make = PULLS[name]
    torch.manual_seed(0)
    module = nn.Sequential(CONVS[rank](3, 4, 3, padding=1), make(), CONVS[rank](4, 2, 1)).double()
    x = torch.randn(2, 3, *(6, 7, 4)[:rank], dtype=torch.float64, requires_grad=True)
    wanted = results(copy.deepcopy(module), x)
    ours = ooc.torch.convert_model(module, "1 MiB", x.detach() if example else None)
    torch.testing.assert_close(results(ours, x), wanted, rtol=1e-9, atol=1e-9)
    assert isinstance(ours.forward.segment((x,), {}), UnsupportedError)
    for conv in (ours[0], ours[2]):
        assert all(isinstance(s, Segment) for s in conv.forward.segments.values()) and conv.forward.segments
    with torch.no_grad():
        torch.testing.assert_close(ours(x), wanted["y"], rtol=1e-9, atol=1e-9)
        assert isinstance(ours.forward.segment((x,), {}), Segment)


def test_where_no_gradient_goes_through_it_trains_as_one() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(Calls(power), nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3)).double()
    x = torch.randn(2, 3, 6, 7, dtype=torch.float64)
    ours = ooc.torch.convert_model(copy.deepcopy(module), example=x)
    for one in (module, ours):
        one(x).square().sum().backward()
    torch.testing.assert_close([p.grad for p in ours.parameters()], [p.grad for p in module.parameters()])
    assert isinstance(ours.forward.segment((x,), {}), Segment)
    assert isinstance(ours.forward.segment((x.requires_grad_(),), {}), UnsupportedError)
    frozen = ooc.torch.convert_model(nn.Sequential(nn.Conv2d(3, 4, 3), Calls(power), nn.Conv2d(4, 2, 3)).double())
    frozen[0].requires_grad_(False)
    assert isinstance(frozen.forward.segment((x.detach(),), {}), Segment)
    frozen[0].requires_grad_(True)
    assert isinstance(frozen.forward.segment((x.detach(),), {}), UnsupportedError)


class Recurrent(nn.Module):  # type: ignore[misc,name-defined]
    """A recurrent layer between two convolutions."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.front, self.layer, self.back = (
            nn.Conv1d(3, 6, 3),
            layer(6, 5, 2, batch_first=True, bidirectional=True),
            nn.Conv1d(10, 2, 1),
        )

    def forward(self, x: Any) -> Any:
        return self.back(self.layer(torch.relu(self.front(x)).transpose(1, 2))[0].transpose(1, 2))


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_end_a_trace_at_once(kind: str) -> None:
    """Models with an LSTM were traced step by step, for minutes; they run in PyTorch, their neighbours do not."""
    model = Recurrent(getattr(nn, kind)).double()
    x = torch.randn(2, 3, 40, dtype=torch.float64, requires_grad=True)
    y = model(x)
    (of_x,) = torch.autograd.grad(y.square().sum(), x)
    named = {"LSTM": "lstm", "GRU": "gru", "RNN": "rnn_tanh"}[kind]
    with pytest.raises(ooc.UnsupportedError, match=f"^Recurrent: ooc has no {named};"):
        ooc.torch.graph(model, (2, 3, 40))
    ooc.torch.convert_model(model, device="cpu")
    again = model(x)
    (same,) = torch.autograd.grad(again.square().sum(), x)
    torch.testing.assert_close(again, y, rtol=0, atol=1e-12)
    torch.testing.assert_close(same, of_x, rtol=0, atol=1e-12)
    front = torch.zeros(2, 3, 40, dtype=torch.float64)
    assert isinstance(model.front.forward.segment((front,), {}), Segment)
    assert not isinstance(model.layer.forward.segment((torch.zeros(2, 38, 6, dtype=torch.float64),), {}), Segment)


def test_plans_of_graphs_refuse_to_train() -> None:
    graph = ooc.torch.graph(nn.Sequential(nn.Conv2d(3, 4, 3), Calls(power)), (1, 3, 6, 6))
    with pytest.raises(UnsupportedError, match="no gradient of this layer"):
        graph.plan(batch=1, train="backward")


UNBATCHED: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "adaptive_avg_pool1d": (lambda: nn.AdaptiveAvgPool1d(1), (5, 8)),
    "adaptive_avg_pool2d, 1": (lambda: nn.AdaptiveAvgPool2d(1), (5, 8, 10)),
    "adaptive_avg_pool2d, 2": (lambda: nn.AdaptiveAvgPool2d(2), (5, 8, 10)),
    "adaptive_avg_pool3d": (lambda: nn.AdaptiveAvgPool3d(1), (5, 4, 8, 10)),
    "adaptive_max_pool2d": (lambda: nn.AdaptiveMaxPool2d(1), (5, 8, 10)),
    "max_pool1d": (lambda: nn.MaxPool1d(2), (5, 8)),
    "max_pool2d": (lambda: nn.MaxPool2d(2), (5, 8, 10)),
    "max_pool3d": (lambda: nn.MaxPool3d(2), (5, 4, 8, 10)),
    "avg_pool1d": (lambda: nn.AvgPool1d(2), (5, 8)),
    "avg_pool2d": (lambda: nn.AvgPool2d(2), (5, 8, 10)),
    "avg_pool3d": (lambda: nn.AvgPool3d(2), (5, 4, 8, 10)),
    "conv2d": (lambda: nn.Conv2d(5, 3, 3), (5, 8, 10)),
    "conv_transpose2d": (lambda: nn.ConvTranspose2d(5, 3, 3), (5, 8, 10)),
    "instance_norm2d": (lambda: nn.InstanceNorm2d(5), (5, 8, 10)),
    "softmax2d": (lambda: nn.Softmax2d(), (5, 8, 10)),
    "pixel_shuffle": (lambda: nn.PixelShuffle(2), (8, 5, 6)),
    "pixel_unshuffle": (lambda: nn.PixelUnshuffle(2), (3, 4, 6)),
    "reflection_pad2d": (lambda: Calls(power), (5, 8, 10)),
    "replication_pad3d": (lambda: nn.ReplicationPad3d(1), (5, 4, 8, 10)),
    "zero_pad2d": (lambda: nn.ZeroPad2d(1), (5, 8, 10)),
    "linear": (lambda: nn.Linear(8, 3), (8,)),
    "layer_norm": (lambda: nn.LayerNorm((8, 10)), (5, 8, 10)),
    "flatten": (lambda: nn.Flatten(0), (5, 8, 10)),
    "flatten, of a picture": (lambda: nn.Sequential(nn.ReLU(), nn.Flatten()), (5, 8, 10)),
    "a network": (lambda: nn.Sequential(nn.Conv2d(5, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1)), (5, 8, 10)),
}  # fmt: skip


EMPTY: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "relu": (nn.ReLU, (0, 3, 8, 10)),
    "conv2d": (lambda: nn.Conv2d(3, 4, 3), (0, 3, 8, 10)),
    "max_pool2d": (lambda: nn.MaxPool2d(2), (0, 3, 8, 10)),
    "linear": (lambda: nn.Linear(8, 3), (0, 8)),
    "batch_norm, frozen": (lambda: nn.BatchNorm2d(3).eval(), (0, 3, 8, 10)),
    "a network": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)),
        (0, 3, 8, 10),
    ),
    "between": (lambda: nn.Sequential(Calls(lambda x: x[:, :0]), nn.ReLU()), (2, 3, 8, 10)),
}  # fmt: skip


@pytest.mark.parametrize(("odd", "name"), [(odd, name) for odd in (UNBATCHED, EMPTY) for name in odd])
def test_inputs_without_a_batch_or_with_an_empty_one(odd: dict[str, Any], name: str) -> None:
    make, shape = odd[name]
    torch.manual_seed(0)
    module, x = make().double(), torch.randn(shape, dtype=torch.float64)
    expected = results(copy.deepcopy(module), x)
    torch.testing.assert_close(results(ooc.torch.convert_model(module), x), expected, rtol=1e-9, atol=1e-9)


def test_nothing_is_said_on_stderr() -> None:
    """An export that fails says so to ooc alone; what the model itself says is left as it is."""
    code = """
import sys, torch, ooc.torch
from torch import nn
class Says(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x
net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=None), Says())
print("before", file=sys.stderr)
y = ooc.torch.convert_model(net)(torch.ones(2, 3, 8, 8))
print("behind", tuple(y.shape), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert (done.stdout, done.stderr.splitlines()) == ("", ["before", "behind (2, 4, 6, 6)"])

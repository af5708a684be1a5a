"""Axes exchanged, split and joined, the batch among them, with what reads them between: against PyTorch, of random sequences."""

from __future__ import annotations

import random
from typing import Any

import pytest
from networks import seeds

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

import ooc  # noqa: E402
from ooc.errors import UnsupportedError  # noqa: E402
from ooc.translate.tensors import AxisView, GraphTensor  # noqa: E402

BATCH = "batch"
Axis = list[tuple[Any, int]]  # the parts of an axis, slowest first: what they are, and their extents


class Walk(nn.Module):  # type: ignore[misc,name-defined]
    """Random exchanges, splits and joints of axes, with layers between."""

    def __init__(self, seed: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.seed, self.shape = seed, shape
        self.layers = nn.ModuleDict()

    def forward(self, x: Any) -> Any:
        rng = random.Random(self.seed)
        self.axes: list[Axis] = [[(BATCH, len(x))], *([(i, e)] for i, e in enumerate(self.shape))]
        kept = x
        for step in range(rng.randint(4, 12)):
            change = rng.choice((self.permute, self.permute, self.join, self.split, self.layer, self.layer, self.select))
            before = [list(axis) for axis in self.axes]
            x = change(rng, x, f"{step}")
            if rng.random() < 0.2 and self.axes == before:
                x = x + 0.5 * kept if kept.shape == x.shape and kept is not x else x * 2
            kept = x if self.axes != before or rng.random() < 0.3 else kept
        parts = [p for axis in self.axes for p in axis]
        x = x.reshape([e for _, e in parts])
        at = next(i for i, p in enumerate(parts) if p[0] == BATCH)
        rest = [i for i in range(len(parts)) if i != at]
        x = x.permute(at, *rest) * 1.5
        return x.reshape(len(x), -1, parts[rest[-1]][1])

    @property
    def extents(self) -> list[int]:
        return [int(torch.Size([e for _, e in axis]).numel()) for axis in self.axes]

    def permute(self, rng: random.Random, x: Any, name: str) -> Any:
        order = rng.sample(range(len(self.axes)), len(self.axes))
        self.axes = [self.axes[i] for i in order]
        return x.permute(order)

    def join(self, rng: random.Random, x: Any, name: str) -> Any:
        if len(self.axes) > 3:
            at = rng.randrange(len(self.axes) - 1)
            self.axes[at : at + 2] = [self.axes[at] + self.axes[at + 1]]
        return x.reshape(self.extents)

    def split(self, rng: random.Random, x: Any, name: str) -> Any:
        at = rng.randrange(len(self.axes))
        axis = self.axes[at]
        if len(axis) > 1:
            cut = rng.randrange(1, len(axis))
            self.axes[at : at + 1] = [axis[:cut], axis[cut:]]
        elif axis[0][0] != BATCH and axis[0][1] % 2 == 0 and axis[0][1] > 2 and len(self.axes) < 8:
            what, extent = axis[0]
            self.axes[at : at + 1] = [[((what, 0), 2)], [((what, 1), extent // 2)]]
        return x.reshape(self.extents)

    def of_batch(self, at: int) -> bool:
        return any(what == BATCH for what, _ in self.axes[at])

    def layer(self, rng: random.Random, x: Any, name: str) -> Any:
        kind, last = (
            rng.choice(("linear", "act", "softmax", "shift", "scale", "norm", "matmul", "mean", "repeat")),
            len(self.axes) - 1,
        )
        if kind == "linear" and not self.of_batch(last):
            out = rng.choice((2, 4, 6))
            layer = self.own(name, lambda: nn.Linear(x.shape[-1], out))
            self.axes[last] = [(name, out)]
            return layer(x)
        if kind == "softmax":
            axis = rng.randrange(len(self.axes))
            return x if self.of_batch(axis) or x.shape[axis] == 1 else x.softmax(axis) * 3
        if kind == "norm" and not self.of_batch(last):
            return self.own(name, lambda: nn.LayerNorm(x.shape[-1]))(x + torch.linspace(0, 1, x.shape[-1]))
        if kind == "matmul" and len(self.axes) > 2 and not self.of_batch(last) and not self.of_batch(last - 1):
            self.axes[last] = [(f"{name}r", x.shape[-2])]
            return torch.tanh(x @ x.transpose(-1, -2) * 0.1)
        free = [i for i in range(len(self.axes)) if not self.of_batch(i) and (kind == "mean" or x.shape[i] == 1)]
        if kind == "mean" and free:
            some = rng.sample(free, rng.randint(1, len(free)))
            return x - x.mean(some, keepdim=True) * x.square().mean(some, keepdim=True)
        if kind == "repeat" and free:
            axis = rng.choice(free)
            self.axes[axis] = [(f"{name}e", 3)]
            return x.expand(*(3 if i == axis else -1 for i in range(x.dim()))) * 0.7
        if kind in ("shift", "scale"):
            shape = [1 if self.of_batch(i) or rng.random() < 0.4 else e for i, e in enumerate(x.shape)]
            values = torch.linspace(-1, 1, int(torch.Size(shape).numel())).reshape(shape)
            return x + values if kind == "shift" else x * values
        return F.gelu(x)

    def select(self, rng: random.Random, x: Any, name: str) -> Any:
        at = rng.randrange(len(self.axes))
        if self.of_batch(at) or len(self.axes[at]) > 1 or len(self.axes) < 4:
            return x
        if rng.random() < 0.5:
            part, extent = self.axes[at][0]
            self.axes[at] = [((part, name), -(-extent // 2))]
            return x.narrow(at, extent // 2, -(-extent // 2))
        del self.axes[at]
        return x.select(at, rng.randrange(x.shape[at]))

    def own(self, name: str, make: Any) -> Any:
        if name not in self.layers:
            torch.manual_seed(len(name))
            self.layers[name] = make()
        return self.layers[name]


@pytest.mark.parametrize("seed", seeds(400, 60))
def test_any_sequence_of_layouts(seed: int) -> None:
    rng = random.Random(seed)
    batch, shape = rng.choice((1, 2, 3)), tuple(rng.choice((1, 2, 4, 6)) for _ in range(rng.randint(2, 4)))
    torch.manual_seed(seed)
    module, x = Walk(seed, shape).eval(), torch.randn(batch, *shape)
    expected = module(x).detach()
    graph = ooc.torch.graph(module, (batch, *shape))
    plan = graph.plan(batch=batch, train=False, device="cpu", budget=("64 KiB", None)[seed % 2])
    with plan.session() as session:
        y = session.forward(x.numpy())
    assert float((torch.as_tensor(y).reshape(expected.shape) - expected).abs().max()) <= 1e-4 * float(expected.abs().max()) + 1e-6


class Heads(nn.Module):  # type: ignore[misc,name-defined]
    """Means of what is stacked at any place, in front of the batch too."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, x: Any) -> Any:
        return torch.stack((x, torch.sigmoid(x), x * 0.5), self.axis).mean(self.axis)


class Repeats(nn.Module):  # type: ignore[misc,name-defined]
    """Products of each sample with several windows of its own."""

    def forward(self, x: Any) -> Any:
        windows = x.reshape(len(x) * 2, -1, x.shape[2])
        return (windows @ x.repeat_interleave(2, 0).mT).reshape(x.shape[0], -1, x.shape[1])


@pytest.mark.parametrize("batch", (1, 2, 3))
@pytest.mark.parametrize("module", (Heads(0), Heads(1), Heads(2), Repeats()), ids=("front", "behind", "between", "repeats"))
def test_stacks_and_repeats_beside_the_batch(module: Any, batch: int) -> None:
    x = torch.rand(batch, 4, 6)
    expected = module(x)
    with ooc.torch.graph(module, tuple(x.shape)).plan(batch=batch, train=False, device="cpu").session() as session:
        y = torch.as_tensor(session.forward(x.numpy()))
    torch.testing.assert_close(y.reshape(expected.shape), expected, rtol=1e-5, atol=1e-6)


def test_what_cannot_be_seen_is_refused() -> None:
    class Mixed(nn.Module):  # type: ignore[misc,name-defined]
        """Maxima over windows of all samples, as if they were more samples."""

        def forward(self, x: Any) -> Any:
            return F.max_pool1d(x.reshape(-1, 4, 3), 2).reshape(x.shape[0], 2, 4)

    with pytest.raises(UnsupportedError, match="batch in front"):
        ooc.torch.graph(Mixed(), (2, 8, 3))


@pytest.mark.parametrize("seed", range(50))
def test_views_are_numpys(seed: int) -> None:
    """What moves a view makes of an array what reshaping and exchanging axes make."""
    rng = random.Random(seed)
    shape = (rng.choice((1, 2, 3)), *(rng.choice((1, 2, 3, 4, 6)) for _ in range(rng.randint(1, 4))))
    array = torch.arange(int(torch.Size(shape).numel())).reshape(shape)
    view, seen = AxisView.of(GraphTensor("x", shape, "f32")), array
    for _ in range(6):
        if rng.random() < 0.5:
            order = rng.sample(range(seen.ndim), seen.ndim)
            view, seen = view.exchanged(order), seen.permute(order)
        else:
            extents = list(seen.shape)
            at = rng.randrange(len(extents))
            if rng.random() < 0.5 and len(extents) > 2:
                extents[at : at + 2] = [extents[at] * (extents[at + 1] if at + 1 < len(extents) else 1)]
            elif extents[at] % 2 == 0:
                extents[at : at + 1] = [2, extents[at] // 2]
            split = view.split(tuple(extents))
            view, seen = (view, seen) if split is None else (split, seen.reshape(extents))
    assert view.shape == tuple(seen.shape)
    front = view.exchanged([view.batch_axis, *(i for i in range(len(view.axes)) if i != view.batch_axis)])
    if not front.in_front:
        return
    moved = array
    for layer in front.moves():
        moved = (
            moved.reshape(shape[0], *layer.size) if layer.kind == "reshape" else moved.permute(0, *(i + 1 for i in layer.order))
        )
    assert torch.equal(moved, seen.permute([view.batch_axis, *(i for i in range(seen.ndim) if i != view.batch_axis)]))

"""Converted modules: small networks of each family have PyTorch's outputs, gradients and buffers; they stay what they were."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

import ooc  # noqa: E402
from ooc.errors import BudgetError, OptionError, ShapeError, UnsupportedError  # noqa: E402
from ooc.torch.segment import Segment  # noqa: E402

Module = Any


def norm_relu(c: int, k: int, taps: int = 3, **how: Any) -> Module:
    padding = how.pop("padding", taps // 2)
    return nn.Sequential(nn.Conv2d(c, k, taps, padding=padding, bias=False, **how), nn.BatchNorm2d(k), nn.ReLU(inplace=True))


class Residual(nn.Module):  # type: ignore[misc,name-defined]
    """ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = norm_relu(3, 8, 5, stride=2)
        self.a, self.b = norm_relu(8, 8), nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8))
        self.down = nn.Conv2d(8, 12, 1, stride=2)
        self.fc = nn.Linear(12, 5)

    def forward(self, x: Any) -> Any:
        x = F.max_pool2d(self.stem(x), 3, 2, 1)
        x = F.relu(self.b(self.a(x)) + x)
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(self.down(x), 1), 1))


class UNet(nn.Module):  # type: ignore[misc,name-defined]
    """Two levels, 2-D or 3-D, of any size."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        conv, norm = ((nn.Conv2d, nn.InstanceNorm2d), (nn.Conv3d, nn.InstanceNorm3d))[rank - 2]
        pool, up = ((nn.MaxPool2d, nn.ConvTranspose2d), (nn.MaxPool3d, nn.ConvTranspose3d))[rank - 2]

        def block(c: int, k: int) -> Module:
            return nn.Sequential(conv(c, k, 3, padding=1), norm(k, affine=True), nn.LeakyReLU(0.1))

        self.first, self.low, self.last, self.head = block(3, 6), block(6, 12), block(12, 6), conv(6, 2, 1)
        self.pool, self.up = pool(2), up(12, 6, 2, stride=2)
        self.mode = "bilinear" if rank == 2 else "trilinear"

    def forward(self, x: Any) -> Any:
        skip = self.first(x)
        up = self.up(self.low(self.pool(skip)))
        if up.shape != skip.shape:
            up = F.interpolate(up, skip.shape[2:], mode=self.mode, align_corners=False)
        return self.head(self.last(torch.cat((up, skip), 1)))


class Dense(nn.Module):  # type: ignore[misc,name-defined]
    """DenseNet."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(c), nn.ReLU(), nn.Conv2d(c, 4, 3, padding=1, bias=False)) for c in (3, 7, 11)
        )
        self.transition = nn.Sequential(norm_relu(15, 6, 1), nn.AvgPool2d(2))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = torch.cat((x, layer(x)), 1)
        return self.transition(x)


class Mobile(nn.Module):  # type: ignore[misc,name-defined]
    """MobileNetV3, EfficientNet: depthwise filters, gates, functions that bend smoothly."""

    def __init__(self, act: Callable[[], Module]) -> None:
        super().__init__()
        self.wide = nn.Sequential(nn.Conv2d(3, 12, 1, bias=False), nn.BatchNorm2d(12), act())
        self.deep = nn.Sequential(nn.Conv2d(12, 12, 5, 2, 2, groups=12, bias=False), nn.BatchNorm2d(12), act())
        self.squeeze, self.excite = nn.Conv2d(12, 4, 1), nn.Conv2d(4, 12, 1)
        self.narrow = nn.Sequential(nn.Conv2d(12, 6, 1, bias=False), nn.BatchNorm2d(6))

    def forward(self, x: Any) -> Any:
        x = self.deep(self.wide(x))
        gate = F.adaptive_avg_pool2d(x, 1)
        x = x * torch.sigmoid(self.excite(F.silu(self.squeeze(gate))))
        return self.narrow(x)


class Inception(nn.Module):  # type: ignore[misc,name-defined]
    """GoogLeNet."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.three, self.five = norm_relu(3, 4, 1), norm_relu(3, 6), norm_relu(3, 2, 5)
        self.pooled = nn.Sequential(nn.MaxPool2d(3, 1, 1, ceil_mode=True), nn.Conv2d(3, 3, 1))

    def forward(self, x: Any) -> Any:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pooled(x)], 1)


class Neck(nn.Module):  # type: ignore[misc,name-defined]
    """A detector's feature pyramid: several results, as a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = norm_relu(3, 4, stride=2), norm_relu(4, 6, stride=2), norm_relu(6, 8, stride=2)
        self.sides = nn.ModuleList(nn.Conv2d(c, 5, 1) for c in (4, 6, 8))
        self.outs = nn.ModuleList(nn.Conv2d(5, 5, 3, padding=1) for _ in range(3))

    def forward(self, x: Any) -> dict[str, Any]:
        a = self.a(x)
        b = self.b(a)
        levels = [side(h) for side, h in zip(self.sides, (a, b, self.c(b)), strict=True)]
        for i in (1, 0):
            levels[i] = levels[i] + F.interpolate(levels[i + 1], levels[i].shape[-2:])
        return {f"p{i}": out(h) for i, (out, h) in enumerate(zip(self.outs, levels, strict=True))}


def vgg() -> Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(True), nn.MaxPool2d(2, 2), nn.Conv2d(6, 8, 3, padding=1), nn.ReLU(True),
        nn.AdaptiveAvgPool2d((3, 3)), nn.Flatten(), nn.Linear(72, 16), nn.ReLU(True), nn.Dropout(0.0), nn.Linear(16, 4),
    )  # fmt: skip


FAMILIES: dict[str, tuple[Callable[[], Module], tuple[int, ...]]] = {
    "resnet": (Residual, (3, 3, 37, 29)),
    "vgg": (vgg, (2, 3, 13, 15)),
    "unet": (lambda: UNet(2), (2, 3, 13, 15)),
    "unet3d": (lambda: UNet(3), (1, 3, 9, 8, 11)),
    "densenet": (Dense, (2, 3, 12, 10)),
    "mobilenet": (lambda: Mobile(nn.Hardswish), (2, 3, 15, 17)),
    "efficientnet": (lambda: Mobile(nn.SiLU), (2, 3, 15, 17)),
    "googlenet": (Inception, (2, 3, 11, 9)),
    "neck": (Neck, (2, 3, 24, 32)),
}
BUDGETS = (*(pytest.param(b, marks=pytest.mark.slow) for b in (None, "256 KiB", "96 KiB")), "smallest")


def made(name: str, training: bool = True, dtype: Any = torch.float64) -> tuple[Module, Any]:
    make, shape = FAMILIES[name]
    torch.manual_seed(3)
    return make().to(dtype).train(training), torch.randn(shape, dtype=dtype, requires_grad=True)


def results(module: Module, x: Any) -> dict[str, Any]:
    """What comes out, all gradients, and the buffers afterwards."""
    x.grad = None
    module.zero_grad()
    y = module(x)
    leaves = list(y.values()) if isinstance(y, dict) else [y]
    torch.manual_seed(1)
    torch.autograd.backward(leaves, [torch.randn(t.shape, dtype=t.dtype) for t in leaves])
    found = {f"y{i}": t for i, t in enumerate(leaves)} | {"d x": x.grad}
    found |= {f"d {n}": p.grad for n, p in module.named_parameters() if p.grad is not None}
    return {n: t.detach().clone() for n, t in (found | dict(module.named_buffers())).items()}


def same(have: dict[str, Any], wanted: dict[str, Any], width: float) -> None:
    """Relative to the largest value; a bias in front of a batch norm has no gradient but rounding."""
    assert have.keys() == wanted.keys()
    most = max(float(t.abs().max()) for n, t in wanted.items() if n.startswith("d "))
    for name, value in wanted.items():
        scale = max(float(value.abs().max()), 1e-3 * most if name.startswith("d ") else 0.0)
        assert float((have[name] - value).abs().max()) <= width * max(scale, 1e-30), name


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("name", FAMILIES)
def test_families(name: str, budget: str | None, training: bool) -> None:
    module, x = made(name, training)
    wanted = results(copy.deepcopy(module), x)
    limit: Any = budget
    if budget == "smallest":
        with pytest.raises(BudgetError) as caught:
            for_one = ooc.torch.convert_model(copy.deepcopy(module), 1, x)
            for_one(x)
        limit = caught.value.smallest_bytes
    try:
        ours = ooc.torch.convert_model(module, limit)
        have = results(ours, x)
    except BudgetError as error:  # of the backward pass, which may take more
        assert limit != "256 KiB"
        ours = ooc.torch.convert_model(module, error.smallest_bytes)
        module.load_state_dict(made(name, training)[0].state_dict())
        have = results(ours, x)
    same(have, wanted, 1e-9)
    (segment,) = ours.forward.segments.values()
    assert isinstance(segment, Segment)
    assert all(p.budget is None or p.peaks["device"] <= p.budget for p in segment.plans.values())


@pytest.mark.parametrize("name", FAMILIES)
def test_inference(name: str) -> None:
    module, x = made(name, False, torch.float32)
    with torch.no_grad():
        wanted = module(x)
        have = ooc.torch.convert_model(module, "1 MiB")(x)
    for a, b in zip(*(t.values() if isinstance(t, dict) else [t] for t in (have, wanted)), strict=True):
        assert float((a - b).abs().max()) <= 1e-5 * float(b.abs().max())


def test_it_stays_what_it_was() -> None:
    module, x = made("resnet")
    before = {n: t.clone() for n, t in module.state_dict().items()}
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    ours = ooc.torch.convert_model(module, example=x)
    assert ours is module
    assert type(ours) is Residual
    assert ours.state_dict().keys() == before.keys()
    assert [id(p) for g in optimizer.param_groups for p in g["params"]] == [id(p) for p in ours.parameters()]
    others = copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))
    wanted = results(ours, x)
    for other in others:
        assert type(other) is Residual
        assert other.forward.module is other
        same(results(other, x), wanted, 1e-12)
        assert isinstance(next(iter(other.forward.segments.values())), Segment)
    ours.load_state_dict(before)
    assert ooc.torch.revert_model(ours) is ours
    assert "forward" not in ours.__dict__
    same(results(ours, x), wanted, 1e-9)


def test_it_learns_as_pytorch_does() -> None:
    found = []
    for convert in (False, True):
        module, x = made("googlenet")
        if convert:
            ooc.torch.convert_model(module, "1 MiB")
        optimizer = torch.optim.Adam(module.parameters(), 0.01)
        losses = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = module(x.detach()).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(float(loss))
        found.append(losses)
    np.testing.assert_allclose(*found, rtol=1e-9)
    assert found[0][-1] < found[0][0]


def test_hooks_inside_are_called() -> None:
    module, x = made("resnet")
    wanted = results(copy.deepcopy(module), x)
    ours = ooc.torch.convert_model(module)
    seen = []
    ours.register_forward_hook(lambda m, i, o: seen.append("whole"))
    ours.a.register_forward_hook(lambda m, i, o: seen.append(tuple(o.shape)))
    ours.b.register_full_backward_hook(lambda m, i, o: seen.append("back"))
    same(results(ours, x), wanted, 1e-9)
    assert seen == [(3, 8, 10, 8), "whole", "back"]
    assert not ours.forward.segments
    assert all(isinstance(s, Segment) for s in ours.stem.forward.segments.values())


def test_frozen_parameters_have_no_gradient_and_cost_none() -> None:
    module, x = made("resnet")
    for p in module.stem.parameters():
        p.requires_grad_(False)
    module.stem.eval()
    wanted = results(copy.deepcopy(module), x.detach().requires_grad_())
    ours = ooc.torch.convert_model(module)
    same(results(ours, x), wanted, 1e-9)
    ours(x.detach()).sum().backward()
    plans = {k: p for s in ours.forward.segments.values() for k, p in s.plans.items() if k[0] == "both"}
    made_again = {t for p in plans.values() for c in p.network.calls if c.phase == "backward" for t in c.makes}
    assert "d.a.0.w" in made_again
    assert "d.stem.0.w" not in made_again


def test_what_was_computed_is_not_kept() -> None:
    """Between the passes there are the inputs and the parameters alone."""
    torch.manual_seed(0)
    deep = nn.Sequential(*(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()) for _ in range(6)))
    x = torch.randn(1, 8, 64, 64, requires_grad=True)
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.data_ptr()) or t, lambda t: t):
        y = ooc.torch.convert_model(deep, "64 KiB")(x)
    own = {t.data_ptr() for t in (x, *deep.parameters())}
    assert set(kept) <= own
    y.sum().backward()
    (segment,) = deep.forward.segments.values()
    assert all(plan.peaks["device"] <= 64 << 10 for plan in segment.plans.values())


def test_dropout_is_the_same_in_both_passes() -> None:
    torch.manual_seed(0)
    module = ooc.torch.convert_model(nn.Sequential(nn.Conv2d(2, 8, 1, bias=False), nn.Dropout(0.5)))
    x = torch.randn(2, 2, 9, 9)
    y = module(x)
    assert 0.35 < float((y == 0).double().mean()) < 0.65
    assert not torch.equal(module(x) == 0, y == 0)
    (dw,) = torch.autograd.grad(y.sum(), module[0].weight)
    mask = (y != 0).double() * 2
    wanted = torch.einsum("nkhw,nchw->kc", mask, x.double())
    torch.testing.assert_close(dw.double()[:, :, 0, 0], wanted, rtol=1e-4, atol=1e-4)
    torch.manual_seed(7)
    a = module(x)
    torch.manual_seed(7)
    assert torch.equal(module(x), a)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: Any) -> None:
    """No farther from what float32 gives than PyTorch is."""
    module, x = made("vgg", dtype=torch.float32)
    exact = results(copy.deepcopy(module), x)
    with torch.autocast("cpu", dtype=dtype):
        plain = results(copy.deepcopy(module), x)
        have = results(ooc.torch.convert_model(module), x)
    assert have["y0"].dtype is dtype
    assert all(have[n].dtype is plain[n].dtype for n in plain if n.startswith("d "))
    for name, value in exact.items():
        off, theirs = (float((found[name].float() - value).abs().max()) for found in (have, plain))
        assert off <= 2 * theirs + 0.05 * float(value.abs().max()), name


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_training_under_autocast_is_one_network(dtype: Any, inplace: bool) -> None:
    """With batch normalisation: nothing is kept between the passes but the input, and running statistics move."""
    torch.manual_seed(0)
    blocks = (nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace)) for _ in range(6))
    module, x = nn.Sequential(*blocks), torch.randn(2, 8, 64, 64, requires_grad=True)
    exact, plain = results(copy.deepcopy(module), x), copy.deepcopy(module)
    kept: dict[int, int] = {}

    def keep(t: Any) -> Any:
        kept[t.data_ptr()] = t.numel() * t.element_size()
        return t

    ours = ooc.torch.convert_model(module, "2 MiB")
    with torch.autocast("cpu", dtype=dtype):
        theirs = results(plain, x)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            have = results(ours, x)
    (segment,) = ours.forward.segments.values()
    assert isinstance(segment, Segment)
    assert sum(kept.values()) <= 1.2 * x.numel() * x.element_size()
    assert all(plan.peaks["device"] <= 2 << 20 for plan in segment.plans.values())
    assert have.keys() == theirs.keys()
    for name, value in exact.items():
        assert have[name].dtype is theirs[name].dtype
        off, width = (float((found[name].float() - value).abs().max()) for found in (have, theirs))
        assert off <= 2 * width + 0.05 * float(value.abs().max()), name


def test_moved_to_another_type() -> None:
    module, x = made("densenet", False)
    ours = ooc.torch.convert_model(module).to(torch.float32)
    y = ours(x.float())
    assert y.dtype is torch.float32
    torch.testing.assert_close(y.double(), made("densenet", False)[0](x), rtol=1e-4, atol=1e-4)


def test_a_file_of_pictures(tmp_path: Any) -> None:
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=(2, 3, 12, 10))
    mapped[...] = np.random.default_rng(0).standard_normal(mapped.shape)
    x = torch.from_numpy(mapped)
    module, _ = made("densenet", False, torch.float32)
    wanted = module(x)
    torch.testing.assert_close(ooc.torch.convert_model(module, "96 KiB")(x), wanted, rtol=1e-4, atol=1e-4)


def test_graph_needs_no_memory() -> None:
    """The graph of a picture of 40,000 x 40,000."""
    module, _ = made("unet", False, torch.float32)
    graph = ooc.torch.graph(module, (1, 3, 40001, 40003))
    assert graph.shapes[graph.outputs[0]] == (2, 40001, 40003)
    assert "first.0.w" in graph.parameters


@pytest.mark.parametrize("name", [n for n in FAMILIES if n != "neck"])
def test_graph_has_pytorchs_results(name: str) -> None:
    module, x = made(name, False, torch.float32)
    graph = ooc.torch.graph(module, tuple(x.shape))
    with graph.plan(batch=x.shape[0], train=False, budget="1 MiB").session() as session:
        y = session.forward(x.detach().numpy())
    torch.testing.assert_close(torch.from_numpy(y), module(x).detach(), rtol=1e-4, atol=1e-4)


def test_nonsense() -> None:
    with pytest.raises(OptionError):
        ooc.torch.convert_model(lambda x: x)
    with pytest.raises(UnsupportedError, match="cumprod"):
        ooc.torch.graph(Running(), (1, 3, 4, 4))
    with pytest.raises(UnsupportedError, match="cumprod"):
        ooc.torch.convert_model(Running(), example=torch.zeros(1, 3, 4, 4))
    with pytest.raises((ShapeError, UnsupportedError)):
        ooc.torch.graph(vgg(), (1, 5, 16, 16))
    with pytest.raises(BudgetError) as caught:
        ooc.torch.convert_model(vgg(), 100, torch.zeros(1, 3, 16, 16))
    assert caught.value.smallest_bytes > 100


class Running(nn.Module):  # type: ignore[misc,name-defined]
    def forward(self, x: Any) -> Any:
        return torch.cumprod(x, 2)

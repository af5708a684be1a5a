"""Attention, whatever wrote it, becomes one layer whose scores are never a tensor; against PyTorch."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

import ooc  # noqa: E402

HEADS, TOKENS, C = 3, 10, 12


class Attends(nn.Module):  # type: ignore[misc,name-defined]
    """Self-attention of tokens, written in one of several ways."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.qkv, self.out = how, nn.Linear(C, 3 * C), nn.Linear(C, C)
        self.bias = nn.Parameter(torch.randn(HEADS, TOKENS, TOKENS))
        self.temperature = nn.Parameter(torch.rand(HEADS, 1, 1) + 0.5)
        self.several = nn.MultiheadAttention(C, HEADS, batch_first=True)

    def forward(self, x: Any) -> Any:
        b, n, _ = x.shape
        if self.how == "multihead":
            return self.several(x, x, x, need_weights=False)[0]
        q, k, v = self.qkv(x).reshape(b, n, 3, HEADS, C // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        y = getattr(self, self.how)(q, k, v)
        return self.out(y.transpose(1, 2).reshape(b, n, C))

    def sdpa(self, q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v)

    def by_hand(self, q: Any, k: Any, v: Any) -> Any:
        return torch.softmax((q * 0.5) @ k.transpose(-2, -1), -1) @ v

    def divided(self, q: Any, k: Any, v: Any) -> Any:
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
        return torch.matmul(F.dropout(scores.softmax(-1), 0.1, self.training), v)

    def biased(self, q: Any, k: Any, v: Any) -> Any:
        return (0.3 * (q @ k.transpose(-2, -1)) + self.bias).softmax(-1) @ v

    def tempered(self, q: Any, k: Any, v: Any) -> Any:
        """A number for each head, as SwinV2 has it beside cosines."""
        scores = (F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)) * self.temperature.clamp(max=4.0)
        return (scores / (self.temperature + 1) + self.bias).softmax(-1) @ v

    def masked(self, q: Any, k: Any, v: Any) -> Any:
        mask = torch.full((TOKENS, TOKENS), -math.inf).triu(1)
        return ((q @ k.transpose(-2, -1)) * 0.5 + mask).softmax(-1) @ v

    def einsum(self, q: Any, k: Any, v: Any) -> Any:
        weights = (torch.einsum("bhid,bhjd->bhij", q, k) * 0.5).softmax(-1)
        return torch.einsum("bhij,bhjd->bhid", weights, v)

    def joined(self, q: Any, k: Any, v: Any) -> Any:
        """Heads joined with the batch, as older code has them."""
        b = len(q)
        q, k, v = (t.reshape(b * HEADS, TOKENS, -1) for t in (q, k, v))
        return (torch.bmm(torch.bmm(q, k.transpose(-2, -1)).mul(0.5).softmax(-1), v)).view(b, HEADS, TOKENS, -1)


WAYS = ("sdpa", "by_hand", "divided", "biased", "tempered", "masked", "einsum", "joined", "multihead")


def scored(graph: ooc.Graph) -> list[str]:
    return [node.layer.kind for node in graph.nodes if node.layer.kind in ("attention", "matmul", "softmax")]


def inferred(graph: ooc.Graph, x: Any, budget: str | None = None) -> Any:
    plan = graph.plan(batch=len(x), train=False, device="cpu", budget=budget)
    with plan.session() as session:
        return torch.as_tensor(session.forward(x.numpy()))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("how", WAYS)
def test_all_ways_are_one_layer(how: str, batch: int) -> None:
    torch.manual_seed(0)
    module, x = Attends(how).eval(), torch.randn(batch, TOKENS, C)
    graph = ooc.torch.graph(module, (batch, TOKENS, C))
    assert scored(graph) == ["attention"]
    for budget in (None, "8 KiB"):
        assert torch.allclose(inferred(graph, x, budget), module(x), atol=2e-6)


@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.parametrize("how", [way for way in WAYS if way != "multihead"])
def test_files_become_that_layer_too(how: str, dynamo: bool, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript" if dynamo else "onnx")
    torch.manual_seed(0)
    module, x = Attends(how).eval(), torch.randn(2, TOKENS, C)
    torch.onnx.export(module, (x,), str(tmp_path / "m.onnx"), dynamo=dynamo, opset_version=18)
    graph = ooc.onnx.load(tmp_path / "m.onnx")
    assert scored(graph) == ["attention"]
    assert torch.allclose(inferred(graph, x), module(x), atol=2e-6)


def test_scores_that_others_read_are_a_tensor() -> None:
    class Shown(nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, q: Any) -> Any:
            weights = (q @ q.mT).softmax(-1)
            return weights @ q, weights.mean(1)

    x = torch.randn(2, 3, 5, 4)
    graph = ooc.torch.graph(Shown(), tuple(x.shape))
    with graph.plan(batch=2, train=False, device="cpu").session() as session:
        y, weights = session.forward(x.numpy()).values()
    for ours, theirs in zip((y, weights), Shown()(x), strict=True):
        assert torch.allclose(torch.as_tensor(ours), theirs, atol=1e-6)


@pytest.mark.parametrize("how", ("sdpa", "biased", "tempered", "masked", "joined"))
def test_gradients_are_pytorchs(how: str) -> None:
    torch.manual_seed(0)
    module, x = Attends(how).double(), torch.randn(2, TOKENS, C, dtype=torch.float64)
    expected, results = [], []
    for converted in (False, True):
        if converted:
            ooc.torch.convert_model(module, "64 KiB", example=x)
        given = x.clone().requires_grad_()
        module.zero_grad()
        module(given).square().sum().backward()
        (results if converted else expected).extend([given.grad, *(p.grad for p in module.parameters() if p.grad is not None)])
    assert len(results) == len(expected) > 4
    assert all(torch.allclose(a, b, atol=1e-9) for a, b in zip(results, expected, strict=True))


class Windows(nn.Module):  # type: ignore[misc,name-defined]
    """Attention in windows of 3 x 3 positions, shifted by one: a bias for each head, a mask for each window (Liu et al., "Swin
    Transformer", ICCV 2021)."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.qkv, self.out = how, nn.Linear(C, 3 * C), nn.Linear(C, C)
        self.bias = nn.Parameter(torch.randn(HEADS, 9, 9))

    def forward(self, x: Any) -> Any:
        b, h, w, _ = x.shape
        many = h * w // 9
        x = torch.roll(x, (-1, -1), (1, 2)).reshape(b, h // 3, 3, w // 3, 3, C).permute(0, 1, 3, 2, 4, 5).reshape(-1, 9, C)
        q, k, v = self.qkv(x).reshape(-1, 9, 3, HEADS, C // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        mask = torch.where(torch.arange(many)[:, None, None] % 2 * torch.ones(9, 9).tril() > 0, -100.0, 0.0)
        scores = q @ k.transpose(-2, -1) * 0.5
        scores = scores + self.bias if self.how != "masked alone" else scores
        apart = scores.view(b, many, HEADS, 9, 9) + mask[:, None]
        if self.how == "softmax apart":
            weights = apart.softmax(-1).view(-1, HEADS, 9, 9)
        else:
            weights = apart.reshape(-1, HEADS, 9, 9).softmax(-1)
        y = self.out((weights @ v).transpose(1, 2).reshape(-1, 9, C))
        y = y.reshape(b, h // 3, w // 3, 3, 3, C).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, C)
        return torch.roll(y, (1, 1), (1, 2))


SHIFTED = ("masked", "masked alone", "softmax apart")


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("how", SHIFTED)
def test_masks_of_windows_are_no_scores(how: str, batch: int) -> None:
    """One layer, and nothing as large as the scores of a sample is in the plan but q, k, v and what is made of them."""
    torch.manual_seed(0)
    module, x = Windows(how).eval(), torch.randn(batch, 6, 9, C)
    graph = ooc.torch.graph(module, tuple(x.shape))
    (node,) = (node for node in graph.nodes if node.layer.kind in ("attention", "matmul", "softmax"))
    assert node.layer.kind == "attention" and node.layer.groups == 6
    assert {graph.shapes[read] for read in node.reads[3:]} <= {(HEADS, 9, 9), (6, 9, 9)}
    for budget in (None, "16 KiB"):
        assert torch.allclose(inferred(graph, x, budget), module(x), atol=2e-6)


@pytest.mark.parametrize("dynamo", [False, True])
def test_files_with_masks_of_windows(dynamo: bool, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript" if dynamo else "onnx")
    torch.manual_seed(0)
    module, x = Windows("masked").eval(), torch.randn(2, 6, 9, C)
    torch.onnx.export(module, (x,), str(tmp_path / "m.onnx"), dynamo=dynamo, opset_version=18)
    graph = ooc.onnx.load(tmp_path / "m.onnx")
    assert scored(graph) == ["attention"]
    assert torch.allclose(inferred(graph, x), module(x), atol=2e-6)


@pytest.mark.parametrize("how", SHIFTED)
def test_gradients_beside_masks_of_windows(how: str) -> None:
    torch.manual_seed(0)
    module, x = Windows(how).double(), torch.randn(2, 6, 9, C, dtype=torch.float64)
    found = []
    for converted in (False, True):
        if converted:
            ooc.torch.convert_model(module, "256 KiB", example=x)
        fed = x.clone().requires_grad_()
        module.zero_grad()
        module(fed).square().sum().backward()
        found.append([fed.grad, *(p.grad for p in module.parameters() if p.grad is not None)])
    assert module.forward.segment((x,), {}).__class__.__name__ == "Segment"
    assert len(found[0]) == len(found[1]) == (5 if how == "masked alone" else 6)
    assert all(torch.allclose(a, b, atol=1e-9) for a, b in zip(*found, strict=True))

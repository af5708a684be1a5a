"""Attention masks and logits of any size: softmax and its loss, on whole rows and on rows that are folded."""

from __future__ import annotations

import numpy as np
import pytest

import ooc

INF, NAN = np.inf, np.nan
LOWEST = float(np.finfo("f4").min)
ROWS = np.array([
    [LOWEST, LOWEST, LOWEST, LOWEST], [1e16, 1e16, 1e16, 0], [1, 2, 3, 4], [-INF, 0, 0, -INF], [INF, 0, 0, 0],
    [NAN, 0, 0, 0], [-INF, -INF, -INF, -INF], [-INF, -INF, -INF, 5], [3e38, -3e38, 0, 0],
])  # fmt: skip
BUDGETS = (None, 384)  # bytes: the second folds a row


def by_formula(x: np.ndarray, log: bool) -> np.ndarray:
    """What PyTorch gives, by its formula."""
    with np.errstate(all="ignore"):
        z = x.astype("f8") - x.max(axis=1, keepdims=True).astype("f8")
        total = np.exp(z).sum(axis=1, keepdims=True)
        return (z - np.log(total) if log else np.exp(z) / total).astype(x.dtype)


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_rows_that_are_masked_or_huge(dtype: str, log: bool, budget: int | None) -> None:
    x = np.repeat(ROWS, 9, axis=1).astype(dtype)
    with ooc.device("cpu", budget=budget):
        y = ooc.softmax(x, 1, log=log)
    assert ooc.last_report().tiles > 1 or budget is None
    np.testing.assert_allclose(y, by_formula(x, log), rtol=1e-6, atol=1e-300)


@pytest.mark.parametrize("budget", BUDGETS)
def test_a_fully_masked_row_weighs_all_alike(budget: int | None) -> None:
    x = np.full((2, 4), LOWEST, "f4")
    with ooc.device("cpu", budget=budget):
        np.testing.assert_allclose(ooc.softmax(x, 1), 0.25)
        np.testing.assert_allclose(ooc.softmax(x, 1, log=True), -np.log(4), rtol=1e-6)
        assert ooc.cross_entropy(x, np.array([0, 3])) == pytest.approx(np.log(4))
        wanted = np.full((2, 4), 0.25) - np.eye(4)[[0, 3]]
        np.testing.assert_allclose(ooc.cross_entropy_backward(x, np.array([0, 3]), reduction="sum"), wanted)


def test_a_loss_beside_huge_logits_is_exact() -> None:
    x = np.full((1, 3), 1e16)
    assert ooc.cross_entropy(x, np.array([1])) == pytest.approx(np.log(3), rel=1e-15)


def test_as_pytorch() -> None:
    torch = pytest.importorskip("torch")
    x = ROWS.astype("f4")
    labels = np.arange(len(x)) % 4
    for log in (False, True):
        wanted = getattr(torch, "log_softmax" if log else "softmax")(torch.from_numpy(x), 1).numpy()
        np.testing.assert_allclose(ooc.softmax(x, 1, log=log), wanted, rtol=1e-5, atol=1e-30)
    wanted = torch.nn.functional.cross_entropy(torch.from_numpy(x), torch.from_numpy(labels), reduction="none").numpy()
    np.testing.assert_allclose(ooc.cross_entropy(x, labels, reduction="none"), wanted, rtol=1e-5)

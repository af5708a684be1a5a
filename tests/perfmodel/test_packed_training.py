"""What leaves packs ever better while a network learns, and what is counted is what left."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.bench import headlines, packed
from perfmodel.bench.packed import BATCH, CLASSES, PackedTraining, pictures, planned, trained


def test_what_leaves_is_counted_while_a_network_learns() -> None:
    plan, told = planned("alexnet"), trained("alexnet", steps=20)
    assert plan.proposal.codec == "zeros" and plan.proposal.label.startswith("all")
    stored = {i.tensor for item in plan.schedule.program.items if item.what == "store" for i in item.reads}
    assert len(stored) > 8 and told.nbytes == sum(plan.network.tensors[t].nbytes for t in stored)
    assert told.last < told.first - 0.2
    assert 0.3 < told.end < told.begin < 0.7  # behind ReLUs half are zero at first, a mask of a thirty-second beside them


def test_pictures_are_of_their_class() -> None:
    (x, labels), (_, others) = (pictures(16, 64, np.random.default_rng(seed)) for seed in (1, 2))
    assert x.shape == (64, 3, 16, 16) and set(labels) <= set(range(CLASSES)) and list(labels) != list(others)
    means = np.stack([x[labels == c].mean(0) for c in range(CLASSES)])
    nearest = np.argmin([((x - mean) ** 2).sum((1, 2, 3)) for mean in means], 0)
    assert (nearest == labels).mean() > 0.9


def test_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headlines, "trained", lambda network: PackedTraining(2.0, 1.0, 0.5, 0.4, BATCH))
    rows = list(headlines.headlines("vdnn++_packed"))
    assert [r["setup"].split()[0] for r in rows] == list(packed.TRAINED)
    assert all(r["ours"] == "-60%; -50% in the first step (loss 2.00, then 1.00)" and "-60 %" in r["published"] for r in rows)

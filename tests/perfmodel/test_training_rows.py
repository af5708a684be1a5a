"""Rows of training steps on the CPU: keep, a policy and, where it is installed, PyTorch's steps, in the same turns."""

from __future__ import annotations

import importlib.util

from perfmodel.bench.networks import line, measure
from perfmodel.bench.torch_steps import PEERS


def test_rows_of_all_contestants() -> None:
    rows = {row["policy"]: row for row in measure("vgg16", 2, 32, 0.05, 4, ["auto", "smartpool"], 1)}
    peers = PEERS if importlib.util.find_spec("torch") else ()
    assert set(rows) == {"keep", "auto", "smartpool", *peers}
    short = rows.pop("smartpool")  # of a policy that has no plan the bytes that it needs
    assert short["needs"] > short["budget"] and short["error"] in line(short)
    assert rows["keep"]["over_keep"] == 1.0 and rows["auto"]["over_keep"] == rows["auto"]["seconds"] / rows["keep"]["seconds"]
    assert rows["auto"]["peak"] <= rows["auto"]["budget"] < rows["keep"]["peak"]
    for name, row in rows.items():
        assert row["grown_bytes"] >= 0 if "error" not in row else name == "torch_memory_budget"
        assert name in line(row)

"""Volumes with spheres in noise, and what trains on them in little time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import ooc


def spheres(seed: int, extent: tuple[int, ...]) -> tuple[Any, Any]:
    """A volume or a picture, and which positions lie in spheres."""
    rng = np.random.default_rng(seed)
    grid = np.stack(np.meshgrid(*map(np.arange, extent), indexing="ij"))
    inside = np.zeros(extent, bool)
    for _ in range(3):
        centre = rng.integers(2, np.array(extent) - 2).reshape(-1, *(1,) * len(extent))
        inside |= ((grid - centre) ** 2).sum(0) <= rng.integers(3, 20)
    noise = rng.normal(0, 0.4, extent)
    return (noise + 1.5 * inside).astype(np.float32), inside


def written(folder: Path, count: int, extent: tuple[int, ...] = (12, 11, 10), dtype: Any = "u1", kind: str = "npy") -> None:
    """x0, x1, ... and their labels y0, y1, ... in a folder."""
    for i in range(count):
        x, inside = spheres(i, extent)
        for name, array in ((f"x{i}", x), (f"y{i}", inside.astype(dtype))):
            with ooc.create(folder / f"{name}.{kind}", array.shape, array.dtype) as file:
                file.write(tuple((0, e) for e in array.shape), array)


def small(rank: int = 3, channels: int = 1, side: int = 6) -> ooc.Graph:
    """Two convolutions."""
    g = ooc.Graph("small")
    h = g.conv(g.input("x", (channels, *(side,) * rank)), 6, 3, padding=1, bias=True, activation="relu")
    g.output(g.conv(h, 2, 3, padding=1, bias=True, name="logits"))
    return g


def tables(**more: Any) -> dict[str, Any]:
    """A run of `small`, without its model; more: keys of tables as table__key."""
    config: dict[str, Any] = {
        "optimizer": {"kind": "adam", "lr": 0.02},
        "data": {"images": "x*.npy", "labels": "y*.npy", "batch": 2},
        "run": {
            "folder": "run",
            "steps": 8,
            "device": "cpu",
            "curve": False,
            "deterministic": True,
            "every": 4,
            "policy": "keep",
        },
    }
    for key, value in more.items():
        table, _, name = key.partition("__")
        if name:
            config.setdefault(table, {})[name] = value
        else:
            config[table] = value
    return config

"""Winograd's algorithms take 16 images at a time: tiles of fewer are strips, volumes planes, with the workspace planned."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import integers
from emulated_device import assert_runs, plan_of
from emulated_driver import emulated
from stand_in_cudnn import CODES
from sweeps import crossed

from ooc.backends.algorithms import FFT, REFUSED, WINOGRAD, split_of
from ooc.backends.null import NullBackend
from ooc.ops.descriptor import parse
from ooc.schedule.place import Place

RESULTS = Path(__file__).parents[3] / "perfmodel" / "results" / "h200"
KINDS = ("conv.fprop", "conv.dgrad", "conv.wgrad")
CUT = {
    "conv.fprop": ("n", "k", "o", "p", "q", "c"),
    "conv.dgrad": ("n", "k", "d", "h", "w", "c"),
    "conv.wgrad": ("n", "k", "c", "p"),
}


def problem(rng: random.Random, kind: str) -> str:
    """A convolution of 3 x 3 taps in planes, of few small images or of a volume."""
    c, k, pad = rng.randint(32, 36), rng.randint(32, 36), rng.randint(0, 2)
    if rng.random() < 0.5:
        n, h, w = rng.choice((1, 2, 3, 16, 17)), rng.randint(9, 40), rng.randint(9, 40)
        return f"{kind} n={n} c={c} h={h} w={w} k={k} r=3 s=3 pad={pad}"
    n, d, h, w, taps = rng.randint(1, 2), rng.randint(4, 9), rng.randint(8, 14), rng.randint(8, 14), rng.randint(1, 3)
    return f"{kind} n={n} c={c} d={d} h={h} w={w} k={k} t={taps} r=3 s=3 pad={pad}"


def rows(name: str) -> list[Any]:
    """What an H200 told, but for the header."""
    return [json.loads(line) for line in (RESULTS / name).read_text().splitlines()[1:]]


@pytest.mark.parametrize(("kind", "seed"), crossed(list(KINDS), range(12), every=6))
def test_tiles_as_images(kind: str, seed: int) -> None:
    """Exact whatever is cut, resident or streamed; and by Winograd's algorithm, for which the plan has room."""
    rng = random.Random(f"{kind} {seed}")
    while True:
        op, backend = parse(problem(rng, kind) + " dtype=f32"), emulated(seed, cudnn=True)
        sizes = {d: max(1, e * 2 // 3) for d, e in op.dims.items() if d in CUT[kind] and rng.random() < 0.5}
        if WINOGRAD.nbytes(op, op.legal({**op.dims, **sizes})) < REFUSED:
            break
    plan = plan_of(op, backend, sizes, "cudnn_winograd", rng.choice((Place.DEVICE, Place.HOST)))
    arrays = integers(rng, op)
    assert_runs(plan, arrays, backend, rng)
    ran = backend.cudnn.library.ran
    assert ran.count(CODES[kind.removeprefix("conv.")][4]) * 2 >= len(ran) > 0  # but where a tile at an edge is too small


def test_the_workspaces_that_an_h200_asked_for() -> None:
    """By passes, images and extents: the formula, byte for byte."""
    seen = 0
    for row in rows("second/images.jsonl"):
        if not row.get("key", "").startswith("winograd bytes"):
            continue
        direction = row["key"].split()[-1]
        for name, wanted in row.items():
            if name == "key":
                continue
            n, c, extent = name.split()
            h, w = map(int, extent.split("x"))
            tile = parse(f"conv.fprop n={n} c={c} h={h} w={w} k={c} r=3 s=3 pad=1 dtype=f32")
            squares = -(-h // 4) * -(-w // 4) * (int(n) if direction == "wgrad" else -(-int(n) // 16) * 16)
            assert wanted == 144 * (squares * (tile.c + tile.k) + tile.k * tile.c), (row["key"], name)
            seen += 1
    assert seen > 100


def test_the_workspaces_of_what_was_measured() -> None:
    """Of Winograd's algorithms and of FFT tiles, in every pass, of all plain convolutions that networks and layers had there."""
    seen = 0
    for row in rows("third/algorithms.jsonl"):
        g = row.get("tile", {})
        if g.get("w", [])[2:] != [3, 3] or g["dtype"] != "f32" or g["stride"] != [1, 1] or g["groups"] != 1:
            continue
        (n, c), (h, w) = g["x"][:2], g["x"][2:]
        op = parse(f"conv.{g['direction']} n={n} c={c} h={h} w={w} k={g['y'][1]} r=3 s=3 pad={g['pad'][0]} dtype=f32")
        for _, algorithm, _, nbytes in row["choices"]:
            if algorithm == FFT.codes[g["direction"]] and n >= 16:
                assert int(FFT.nbytes(op, op.dims)) == nbytes, g
                seen += 1
            if algorithm == WINOGRAD.codes[g["direction"]] and n % 16 == 0 and g["direction"] != "dgrad":
                assert int(WINOGRAD.nbytes(op, op.dims)) == nbytes, g
                seen += 1
    assert seen > 40


def test_one_image_is_cut_as_it_costs_least() -> None:
    assert split_of("fprop", 1, 256, 256, (512, 512)) in ((16, 1), (4, 4), (2, 8), (8, 2), (1, 16))
    assert split_of("fprop", 1, 256, 256, (12, 512)) == (1, 16)
    assert split_of("dgrad", 8, 256, 256, (512, 512))[0] * split_of("dgrad", 8, 256, 256, (512, 512))[1] == 2
    assert split_of("fprop", 32, 256, 256, (56, 56)) == split_of("wgrad", 1, 256, 256, (56, 56)) == (1, 1)


def test_few_small_images_are_no_work_for_it() -> None:
    """Where 16 images would mostly be nothing."""
    backend = NullBackend(kernels=("cudnn_winograd", "cuda"))
    few, many = (parse(f"conv.fprop n={n} c=64 h=7 w=7 k=64 r=3 s=3 pad=1 dtype=f32") for n in (1, 16))
    offered = [{o.name: int(o.workspace(op.dims)) for o in backend.offers(op)} for op in (few, many)]
    assert offered[0]["cudnn_winograd"] >= REFUSED > offered[1]["cudnn_winograd"]


def test_arrays_of_sizes_have_the_bytes_of_each() -> None:
    """The planner asks for many sizes at once."""
    op = parse("conv.dgrad n=3 c=40 d=9 h=40 w=40 k=40 t=3 r=3 s=3 pad=1 dtype=f32")
    extents = np.arange(1, 41)
    many = WINOGRAD.nbytes(op, {**op.dims, "h": extents})
    assert [int(b) for b in many] == [int(WINOGRAD.nbytes(op, {**op.dims, "h": int(e)})) for e in extents]

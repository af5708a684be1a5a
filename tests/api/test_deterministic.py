"""deterministic=True: the same bits at any budget, for every function that sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ooc

BUDGETS = (None, "1 MiB", "256 KiB", "64 KiB", "32 KiB")
ROOM = np.random.default_rng(7)


def noise(dtype: Any, *shape: int) -> Any:
    return ROOM.standard_normal(shape).astype(dtype)


def results(x: Any, w: Any, b: Any, dy: Any, scale: Any) -> dict[str, Any]:
    """Everything that adds many numbers, by name."""
    found: dict[str, Any] = {}
    pool = ooc.Pool("average", 3, 2, 1)
    found["conv, pool"] = ooc.conv(x, w, b, padding=1, activation="tanh", pool=pool)
    found |= ooc.conv_backward(x, w, dy, padding=1, y=np.abs(dy), activation="relu")._asdict()
    found["dw alone"] = ooc.conv_backward(x, w, dy, padding=1, want="dw").dw
    found["transposed"] = ooc.conv_transpose(dy, w, padding=1)
    normed = ooc.batch_norm(x, scale, scale, training=True)
    found |= {f"bn {k}": v for k, v in normed._asdict().items()}
    back = ooc.batch_norm_backward(x, x * 2, scale, normed.mean, normed.var)
    found |= {f"bn back {k}": v for k, v in back._asdict().items()}
    found["softmax"] = ooc.softmax(x, 1)
    found["softmax back"] = ooc.softmax_backward(found["softmax"], x, 2)
    found["lrn"], found["lrn back"] = ooc.lrn(x), ooc.lrn_backward(x, x)
    found["upsample"] = ooc.upsample(x, (50, 41), "linear")
    found["upsample back"] = ooc.upsample_backward(x, (17, 12), "linear")
    small = np.ascontiguousarray(dy[:, :, : x.shape[2] // 2, : x.shape[3] // 2])
    dx, layers = ooc.chain_backward(x, small, ooc.Conv(w, b, padding=1, activation="tanh", pool=2))
    return found | {"chain dx": dx, "chain dw": layers[0].dw, "chain db": layers[0].db}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize(("images", "side"), [(1, 16), pytest.param(3, 30, marks=pytest.mark.slow)])
def test_the_same_bits_at_any_budget(images: int, side: int, dtype: str) -> None:
    x, w, b = noise(dtype, images, 8, side, side - 1), noise(dtype, 12, 8, 3, 3), noise(dtype, 12)
    dy, scale = noise(dtype, images, 12, side, side - 1), noise(np.float32, 8)
    wanted: dict[str, bytes] = {}
    for budget in BUDGETS:
        with ooc.device("cpu", budget, threads=2, deterministic=True):
            for name, array in results(x, w, b, dy, scale).items():
                assert wanted.setdefault(name, array.tobytes()) == array.tobytes(), f"{name} under {budget}"


def test_threads_do_not_change_the_bits() -> None:
    x, w, dy = noise(np.float32, 2, 6, 20, 20), noise(np.float32, 5, 6, 3, 3), noise(np.float32, 2, 5, 18, 18)
    found = set()
    for threads in (1, 2, 3):
        with ooc.device("cpu", "128 KiB", threads=threads, deterministic=True):
            found.add(b"".join(a.tobytes() for a in ooc.conv_backward(x, w, dy) if a is not None))
    assert len(found) == 1


def test_an_option_of_one_call() -> None:
    x, w = noise(np.float32, 2, 9, 12, 12), noise(np.float32, 4, 9, 3, 3)
    with ooc.device("cpu", "16 KiB"):
        tight = ooc.conv(x, w, deterministic=True)
    with ooc.device("cpu"):
        np.testing.assert_array_equal(ooc.conv(x, w, deterministic=True), tight)


def test_the_same_plan_gives_the_same_bits() -> None:
    x, w, dy = noise(np.float32, 4, 16, 24, 24), noise(np.float32, 16, 16, 3, 3), noise(np.float32, 4, 16, 22, 22)
    with ooc.device("cpu", "256 KiB"):
        first, again = (ooc.conv_backward(x, w, dy) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        assert one is not None and other is not None
        assert one.tobytes() == other.tobytes()

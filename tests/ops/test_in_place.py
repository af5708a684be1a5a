"""Operations that may write where they read: the same bits as into an array of its own, at any budget."""

from __future__ import annotations

import random
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import data

import ooc
from ooc.errors import ShapeError
from ooc.ir.op import Op, numpy_dtype
from ooc.ops.descriptor import parse
from ooc.runtime.engine import execute

BUDGETS = (None, "16 KiB", "2 KiB")
# Each with the outputs that are inputs.
IN_PLACE = {
    "multiply n=2 k=6 h=17 w=13 act=tanh": ({"y": "x"}, {"y": "z"}),
    "multiply n=2 k=6 h=17 w=13 by=k bias=1 layout=channels_last": ({"y": "x"},),
    "dropout n=2 k=6 h=17 w=13 seed=5 drawn=1": ({"y": "x"},),
    "sgd n=1 k=1 w=2001": ({"q": "p"}, {"q": "g"}),
    "sgd n=1 k=1 w=2001 momentum=1": ({"q": "p", "u": "v"}, {"q": "v", "u": "g"}),
    "adam n=1 k=1 w=2001 dtype=f64": ({"q": "p", "r": "m", "s": "v"}, {"s": "p", "q": "m"}),
    "adam n=1 k=1 w=2001 dtype=bf16 master=1": ({"q": "p", "r": "m", "s": "v", "h": "g"}, {"s": "p", "q": "m"}),
    "adam.rmsprop n=1 k=1 w=2001 momentum=1 centered=1": (
        {"q": "p", "s": "v", "u": "b", "c": "a"},
        {"q": "a", "c": "v", "s": "g"},
    ),
    "pointwise.accrue n=1 k=1 w=2001": ({"r": "a"}, {"r": "x"}),
}
NOT_IN_PLACE = {
    "multiply n=2 k=6 h=17 w=6 by=nkh": {"y": "z"},
    "concat n=1 channels=3x3 h=17 w=13": {"y": "x0"},
    "place n=2 c=6 h=17 w=13 k=6 size=17x13 lead=0x0x1": {"y": "x"},
}


def made(op: Op, arrays: dict[str, Any], outputs: dict[str, Any]) -> dict[str, Any]:
    """The outputs of an op, into these arrays or new ones."""
    targets = {o.name: outputs.get(o.name, np.zeros(o.shape, numpy_dtype(o.dtype))) for o in op.outputs}
    execute(op, arrays, targets)
    return targets


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("text", IN_PLACE)
def test_in_place(text: str, budget: str | None, tmp_path: Path) -> None:
    op = parse(text)
    arrays = data(random.Random(zlib.crc32(text.encode())), op)
    wanted = made(op, arrays, {})
    for i, same in enumerate(IN_PLACE[text]):
        for how in ("memory", "strided", "file"):
            given = {name: array.copy() for name, array in arrays.items()}
            for name in same.values():
                if how == "strided":
                    *rows, row = arrays[name].shape
                    given[name] = np.zeros((*rows, 2 * row), arrays[name].dtype)[..., ::-2]
                if how == "file":
                    given[name] = np.memmap(tmp_path / f"{i}{name}", given[name].dtype, "w+", 0, given[name].shape)
                given[name][...] = arrays[name]
            with ooc.device("cpu", budget, threads=2):
                got = made(op, given, {out: given[read] for out, read in same.items()})
            for name, array in got.items():
                np.testing.assert_array_equal(array, wanted[name], err_msg=f"{name} {same} {how}")


@pytest.mark.parametrize("text", NOT_IN_PLACE)
def test_not_in_place(text: str) -> None:
    op = parse(text)
    arrays = data(random.Random(1), op)
    shape = max((o.shape for o in op.operands), key=np.prod)
    memory = np.zeros(shape, np.float32)
    (out, read), before = *NOT_IN_PLACE[text].items(), {name: a.copy() for name, a in arrays.items()}
    shared = next(o for o in op.inputs if o.name == read)
    arrays[read] = memory[tuple(slice(0, s) for s in shared.shape)]
    arrays[read][...] = before[read]
    with pytest.raises(ShapeError, match="overlap"):
        made(op, arrays, {out: memory})
    np.testing.assert_array_equal(arrays[read], before[read])

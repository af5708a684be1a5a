"""Calls of the public functions with arrays of any library, each argument of another; compared with the CPU's results.

A kind of array is a pair: make it of NumPy values, and copy it back.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

import ooc
from ooc.ir.op import DTYPES, numpy_dtype

Kind = tuple[Callable[[Any], Any], Callable[[Any], Any]]
Kinds = Mapping[str, Kind]
TOLERANCE = {"f64": 1e-12, "f32": 1e-5, "f16": 4e-3, "bf16": 3e-2}


class Call(NamedTuple):
    """Shapes of the arguments, and the function of them and of out (None, or where to write)."""

    shapes: dict[str, tuple[int, ...]]
    function: Callable[..., Any]
    takes_out: bool = True


X, W, B = (2, 6, 19, 17), (8, 6, 3, 3), (8,)
CALLS = {
    "conv": Call({"x": X, "w": W, "b": B}, lambda a, out: ooc.conv(a["x"], a["w"], a["b"], padding=1, activation="elu", out=out)),
    "conv and pool": Call({"x": X, "w": W}, lambda a, out: ooc.conv(a["x"], a["w"], padding=((1, 0), (0, 2)), pool=2, out=out)),
    "conv_backward": Call(
        {"x": X, "w": W, "dy": (2, 8, 19, 17)}, lambda a, out: tuple(ooc.conv_backward(a["x"], a["w"], a["dy"], padding=1)), False
    ),
    "conv_transpose": Call(
        {"x": X, "w": (6, 4, 3, 3), "b": (4,)}, lambda a, out: ooc.conv_transpose(a["x"], a["w"], a["b"], stride=2, out=out)
    ),
    "max_pool": Call({"x": X}, lambda a, out: ooc.max_pool(a["x"], 3, 2, 1, out=out)),
    "softmax": Call({"x": X}, lambda a, out: ooc.softmax(a["x"], out=out)),
    "add": Call({"x": X, "z": X}, lambda a, out: ooc.add(a["x"], a["z"], activation="tanh", out=out)),
    "linear": Call({"x": (5, 24), "w": (10, 24), "b": (10,)}, lambda a, out: ooc.linear(a["x"], a["w"], a["b"], out=out)),
    "batch_norm": Call({"x": X}, lambda a, out: ooc.batch_norm(a["x"], training=True, out=out).y),
    "lrn": Call({"x": X}, lambda a, out: ooc.lrn(a["x"], out=out)),
    "upsample": Call({"x": X}, lambda a, out: ooc.upsample(a["x"], (30, 23), "linear", out=out)),
    "concat": Call({"x": X, "z": X}, lambda a, out: ooc.concat([a["x"], a["z"]], out=out)),
}  # fmt: skip


def results(made: Any) -> tuple[Any, ...]:
    return made if isinstance(made, tuple) else (made,)


def small_integers(rng: random.Random, shape: tuple[int, ...], dtype: str) -> Any:
    return np.random.default_rng(rng.getrandbits(32)).integers(-2, 3, shape).astype(numpy_dtype(dtype))


def assert_close(got: Any, wanted: Any, dtype: str, note: str) -> None:
    size = max(1.0, float(np.max(np.abs(wanted.astype(np.float64)), initial=0)))
    np.testing.assert_allclose(
        got.astype(np.float64), wanted.astype(np.float64), rtol=0, atol=TOLERANCE[dtype] * size, err_msg=note
    )


def called(name: str, kinds: Kinds, where: ooc.Device, rng: random.Random, dtype: str | None = None) -> str:
    """One call with every argument, and perhaps its output, of a kind drawn at random. A new output has x's library and lies
    where x lies. Returns what was drawn."""
    call, dtype = CALLS[name], dtype or rng.choice(DTYPES)
    values = {n: small_integers(rng, shape, dtype) for n, shape in call.shapes.items()}
    with ooc.device("cpu"):
        wanted = results(call.function(values, None))
    drawn = {n: rng.choice(list(kinds)) for n in values}
    given = {n: kinds[drawn[n]][0](v) for n, v in values.items()}
    note = f"{name} {dtype} {drawn}"
    out = None
    if call.takes_out and rng.random() < 0.5:
        kind = rng.choice(list(kinds))
        out, note = kinds[kind][0](np.zeros_like(wanted[0])), f"{note} out {kind}"
    with where:
        made = results(call.function(given, out))
    if out is None:
        beside = "numpy" if drawn["x"] in HOST else drawn["x"].removesuffix(" strided")
        assert all(library(m) == beside for m in made), f"{note}: {[library(m) for m in made]}"
        got = [kinds[beside][1](m) for m in made]
    else:
        assert made[0] is out, note
        got = [kinds[kind][1](out)]
    for one, other in zip(got, wanted, strict=True):
        assert_close(one, other, dtype, note)
    return note


HOST = ("numpy", "memmap", "pinned")  # a new output beside these is a NumPy array


def library(array: Any) -> str:
    """The library of an array, and whether a tensor of PyTorch's is on the host."""
    name = type(array).__module__.split(".")[0]
    return "torch cpu" if name == "torch" and not array.is_cuda else name


def link_bytes() -> dict[str, int]:
    """Bytes that the last call moved between host and device, by operand."""
    report = ooc.last_report()
    assert report is not None
    moved: dict[str, int] = {}
    for part in report.parts:
        for step in part.schedule.steps:
            if step.lane in ("h2d", "d2h"):
                moved[step.what] = moved.get(step.what, 0) + step.nbytes
    return moved


def stays_on_the_device(kind: Kind, numpy_kind: Kind, where: ooc.Device) -> None:
    """Operands in device memory are used in place: what crosses the link is what lies on the host, once."""
    rng = random.Random(5)
    values = {n: small_integers(rng, s, "f32") for n, s in (("x", (2, 8, 96, 96)), ("w", (8, 8, 3, 3)), ("b", (8,)))}
    out = np.zeros((2, 8, 96, 96), np.float32)
    with ooc.device("cpu"):
        wanted = ooc.conv(*values.values(), padding=1)
    nbytes = {n: a.nbytes for n, a in values.items()} | {"y": out.nbytes}
    for resident in (("x", "w", "b", "y"), ("x", "y"), ("w",), ("x",), ()):
        placed = {n: (kind if n in resident else numpy_kind) for n in nbytes}
        given = [placed[n][0](v) for n, v in values.items()]
        made = placed["y"][0](out)
        with where:
            ooc.conv(*given, padding=1, out=made)
        moved = link_bytes()
        np.testing.assert_array_equal(placed["y"][1](made), wanted)
        assert not set(resident) & set(moved), f"{resident} were moved: {moved}"
        assert all(moved[n] >= nbytes[n] for n in nbytes if n not in resident), f"{moved} of {nbytes}"

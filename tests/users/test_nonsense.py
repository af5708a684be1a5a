"""Nonsense in every argument of every function: one typed line that names the argument, and nothing touched."""

from __future__ import annotations

import inspect
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ooc
from ooc.runtime.executor import Run

F4 = np.float32
X, W, B, Y = (np.ones(s, F4) for s in ((2, 4, 6, 6), (6, 4, 3, 3), (6,), (2, 6, 4, 4)))
LABELS, V = np.zeros((2, 6, 6), int), np.ones(4)
LAYERS = (ooc.Conv(W), ooc.Activation("relu"))
# Calls that are right, by position, and the further words that each takes.
CALLS: dict[str, tuple[Any, ...]] = {
    "open": ("x.npy",), "create": ("y.png", (4, 4), "uint8"), "as_source": (X,),
    "conv": (X, W, B), "chain": (X, *LAYERS), "conv_transpose": (Y, W), "conv_backward": (X, W, Y),
    "chain_backward": (X, Y, ooc.Conv(W)),
    "linear": (X, np.ones((5, 6), F4)), "linear_backward": (X, np.ones((5, 6), F4), np.ones((2, 4, 6, 5), F4)),
    "max_pool": (X, 2), "avg_pool": (X, 2), "global_avg_pool": (X,), "max_pool_backward": (X, np.ones((2, 4, 3, 3), F4), 2),
    "avg_pool_backward": (np.ones((2, 4, 3, 3), F4), X.shape, 2), "activation": (X, "relu"), "bias_backward": (Y,),
    "activation_backward": (X, X, "tanh"), "batch_norm": (X, V, V, V, V), "batch_norm_backward": (X, X, V, V, V),
    "fold_batch_norm": (W, B, np.ones(6), np.ones(6), np.ones(6), np.ones(6)), "softmax": (X,), "softmax_backward": (X, X),
    "cross_entropy": (X, LABELS), "cross_entropy_backward": (X, LABELS), "lrn": (X,), "lrn_backward": (X, X), "dropout": (X,),
    "upsample": (X, 9), "upsample_backward": (X, 3), "add": (X, X), "scale": (X, 2.0), "concat": ([X, X],),
    "plan": ("conv.fprop n=2 c=4 h=6 w=6 k=6 r=3 s=3",), "device": ("cpu",), "set_device_budget": ("1 MiB",),
}  # fmt: skip


class Odd:
    """An object that nothing is made of."""

    def __repr__(self) -> str:
        return "<odd>\n" * 200


NONSENSE: dict[str, Any] = {
    "None": None, "a text": "nonsense", "an empty text": "", "a long text": "x" * 5000, "lines": "a\nb\nc", "a list": [],
    "a list of lists": [[1], [2, 3]], "a dict": {}, "an object": Odd(), "a type": int, "a function": len, "minus one": -1,
    "a huge number": 10**30, "nan": float("nan"), "inf": float("inf"), "a complex number": 1j, "a half": 0.5, "bytes": b"\0\xff",
    "an array": np.ones((2, 3)), "a large array": np.ones((50, 50), F4), "an array of objects": np.array([None, Odd()]),
    "an array of text": np.array(["a", "b"]), "an empty array": np.empty((0, 3), F4),
    "an array of dates": np.array(["2026-01-01"], "M8"),
    "a masked array": np.ma.ones((2, 4, 6, 6)), "a record": np.zeros(2, "f4,i4"), "a generator": (n for n in ()), "Ellipsis": ...,
    "a set": {1, 2}, "nine axes": np.ones((1,) * 9, F4), "a scalar array": np.array(3),
}  # fmt: skip


def cases() -> list[tuple[str, str, str]]:
    """Every function, every one of its words, every nonsense, in an order of no meaning."""
    callables = ("a type", "a function")  # what these do when they are called is theirs
    found = [
        (name, word, what)
        for name in CALLS
        for word in (p.name for p in inspect.signature(getattr(ooc, name)).parameters.values() if p.kind is not p.VAR_POSITIONAL)
        for what in NONSENSE
        if word != "callbacks" or what not in callables
    ]
    random.Random(0).shuffle(found)
    return found


ALL = cases()
QUICK = 700


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text may be the path of a trace."""
    monkeypatch.chdir(tmp_path)


def test_no_function_is_forgotten() -> None:
    """Of those that ooc has; what takes nothing cannot be asked nonsense. Of tasks, tests/workers asks it,
    and of train tests/training."""
    public = {n for n in ooc.__all__ if inspect.isfunction(getattr(ooc, n)) and inspect.signature(getattr(ooc, n)).parameters}
    assert public - {"tasks", "run_tasks", "train"} == {*CALLS}


def ask(name: str, word: str, what: str) -> BaseException | None:
    """What a call raises, if it does."""
    function: Callable[..., Any] = getattr(ooc, name)
    bound = inspect.signature(function).bind(*CALLS[name])
    bound.arguments[word] = NONSENSE[what]
    varied = [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.VAR_POSITIONAL]
    given = [bound.arguments.pop("x")] if varied else []
    if varied and "dy" in bound.arguments:
        given.append(bound.arguments.pop("dy"))
    layers = bound.arguments.pop(varied[0]) if varied else ()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function(*given, *layers, **bound.arguments)
    except Exception as error:
        return error
    finally:
        ooc.set_device_budget(None)
    return None


def judged(name: str, word: str, what: str) -> str:
    """What is wrong with the answer; empty where nothing is."""
    error = ask(name, word, what)
    if error is None:
        return ""  # the word can mean that
    said = str(error)
    if not isinstance(error, ooc.OocError):
        return f"{type(error).__name__}: {said[:99]}"
    if "\n" in said or len(said) >= 300 or not said:
        return f"{len(said)} characters, {said.count(chr(10))} line ends"
    return "" if word in said else f"does not name {word}: {said}"


def wrong(some: list[tuple[str, str, str]]) -> list[str]:
    return [f"{name}({word}={what}): {fault}" for name, word, what in some if (fault := judged(name, word, what))]


def test_nonsense_is_told_in_one_line() -> None:
    found = wrong(ALL[:QUICK])
    assert not found, "\n".join([f"{len(found)} of {QUICK}", *found[:40]])


@pytest.mark.slow
def test_all_nonsense_is_told_in_one_line() -> None:
    found = wrong(ALL)
    assert not found, "\n".join([f"{len(found)} of {len(ALL)}", *found[:200]])


def test_nothing_is_computed_or_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a call is refused nothing has run."""
    ran: list[Any] = []
    go = Run.go
    monkeypatch.setattr(Run, "go", lambda *given: (ran.append(given), go(*given))[1])
    before = [a.copy() for a in (X, W, B, Y, V)]
    for case in ALL[:QUICK]:
        ran.clear()
        if ask(*case) is not None:
            assert not ran, case
    assert all(np.array_equal(a, b) for a, b in zip((X, W, B, Y, V), before, strict=True))

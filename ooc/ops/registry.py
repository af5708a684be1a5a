"""The kinds of operations: which dataclass of sizes a descriptor's first word means, and an op as a descriptor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

IN = {1: "w", 2: "hw", 3: "dhw"}  # letters of input extents for 1, 2 and 3 spatial axes
TAPS = {1: "s", 2: "rs", 3: "trs"}  # and of filter extents

KINDS: dict[str, type[Any]] = {}


def register(*kinds: str) -> Callable[[type[Any]], type[Any]]:
    """Class decorator: descriptors of these kinds are this dataclass of sizes, read and written field by field.

    `a.b` kinds give their second word to the field `how`, where there is one. A field without a default must be given;
    `extent` and `taps` are a letter per spatial axis; sequences (`stride=2x1`, `pad=0:1`) may be one value for all axes, but
    for those that the op calls `free` (`channels=3x5x3`).
    """

    def add(op: type[Any]) -> type[Any]:
        KINDS.update(dict.fromkeys(kinds, op))
        return op

    return add


def describe(op: Any) -> str:
    """The descriptor of an op, without what goes without saying."""
    texts = (_show(op, f.name, getattr(op, f.name), f.default) for f in fields(op) if f.name != "how")
    return " ".join([op.kind, *filter(None, texts)])


def _show(op: Any, name: str, value: Any, default: Any) -> str:
    if name in ("extent", "taps"):
        letters = (IN if name == "extent" else TAPS)[len(value)]
        return " ".join(f"{d}={e}" for d, e in zip(letters, value, strict=True))
    if op.tacit(name, value) or (value == default and name != "dtype"):
        return ""
    if name == "pad":
        return f"pad={_show_pads(value)}" if any(map(any, value)) else ""
    if isinstance(value, tuple):
        return f"{name}={'x'.join(map(str, value)) if name in op.free else _show_ints(value)}"
    if isinstance(value, float):
        return f"{name}={int(value) if value.is_integer() else repr(value)}"
    return f"{name}={int(value) if isinstance(value, bool) else value}"


def _show_ints(values: tuple[int, ...]) -> str:
    return str(values[0]) if len(set(values)) == 1 else "x".join(map(str, values))


def _show_pads(pads: tuple[tuple[int, int], ...]) -> str:
    texts = [str(a) if a == b else f"{a}:{b}" for a, b in pads]
    return texts[0] if len(set(texts)) == 1 else "x".join(texts)

"""Descriptors: one line of text for every op, the same in plans, errors, tests, results and on the command line.

`kind key=value ...`; the stages of a fused op are separated by ` | `. Where they are not a plain chain, each begins with
its wiring: `x,w>y!` lists the tensors that it reads and makes, `!` marks those that leave. Written by `registry.describe`.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from typing import Any

import ooc.ops  # noqa: F401  (registers the kinds)
from ooc.errors import ArgumentError, brief
from ooc.ir.fused import fuse, wired
from ooc.ir.op import Op
from ooc.ops.registry import IN, KINDS, TAPS

Fields = dict[str, str]


def parse(text: str) -> Op:
    """The op that a descriptor describes; `parse(str(op)) == op`.

    Raises ShapeError for an unknown kind, an unknown, repeated or missing key, or a value that is no number.
    """
    parts = [part.split() for part in text.split("|")]
    if parts[0] and ">" in parts[0][0]:
        return wired([(words[0], _parse_stage(words[1:])) for words in parts if words])
    return fuse(*map(_parse_stage, parts))


def _known(kind: str) -> str:
    """The operations of a family, or else all families, of which some have another one, named with _backward."""
    members = [name for name in sorted(KINDS) if name.startswith(f"{kind}.")]
    families = dict.fromkeys(name.partition(".")[0] for name in sorted(KINDS))
    both = {f"{f}_backward": f for f in families if f"{f}_backward" in families}
    every = " ".join(f"{f}*" if f in both.values() else f for f in families if f not in both)
    return ", ".join(members) or f"{every}; * or _backward"


def _parse_stage(words: list[str]) -> Op:
    kind, pairs = (words[0], words[1:]) if words else ("", [])
    if kind not in KINDS:
        raise ArgumentError(f"descriptor: unknown operation {brief(kind, 13)!r}; known: {_known(kind)}")
    texts: Fields = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not value or key in texts:
            raise ArgumentError(f"descriptor: {kind}: expected key=value once each, got {pair!r}")
        texts[key] = value
    cls = KINDS[kind]
    cls.imply(texts)
    rank = _rank_of(kind, texts)
    values = {f.name: _take(kind, texts, f, rank, cls) for f in fields(cls) if f.name != "how"}
    if texts:
        raise ArgumentError(f"descriptor: {kind}: unknown key {', '.join(sorted(texts))}")
    how = {"how": kind.partition(".")[2]} if any(f.name == "how" for f in fields(cls)) else {}
    op: Op = cls(**how, **{k: v for k, v in values.items() if v is not None})
    return op


# ---- one field


def _rank_of(kind: str, texts: Fields) -> int:
    for rank in (3, 2, 1):
        if IN[rank][0] in texts:
            return rank
    raise ArgumentError(f"descriptor: {kind}: w= (and h=, d=) expected")


def _take(kind: str, texts: Fields, field: Field[Any], rank: int, cls: Any) -> Any:
    """Remove a field's value from the text of a descriptor; None where it is not given and has a default."""
    name = field.name
    if name in ("extent", "taps"):
        return tuple(_int(kind, letter, texts.pop(letter, "")) for letter in (IN if name == "extent" else TAPS)[rank])
    text = texts.pop(name, None)
    if text is None:
        if field.default is MISSING and name in cls.words:
            raise ArgumentError(f"descriptor: {kind}: {name}= expected, one of {', '.join(cls.words[name])}")
        if field.default is MISSING:
            return _int(kind, name, "")
        return None
    if name in cls.words and text not in cls.words[name]:
        raise ArgumentError(f"descriptor: {kind}: {name}= expected one of {', '.join(cls.words[name])}; got {text!r}")
    if name == "pad":
        return _pads(kind, text, rank)
    if str(field.type).startswith("tuple"):
        return _floats(kind, name, text) if "float" in field.type else _ints(kind, name, text, None if name in cls.free else rank)
    if field.type == "float":
        return _float(kind, name, text)
    return text if field.type == "str" else _int(kind, name, text) if field.type == "int" else bool(_int(kind, name, text))


def _int(kind: str, key: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ArgumentError(f"descriptor: {kind}: {key}= expected an integer, got {text or None!r}") from None


def _float(kind: str, key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ArgumentError(f"descriptor: {kind}: {key}= expected a number, got {text!r}") from None


def _ints(kind: str, key: str, text: str, rank: int | None) -> tuple[int, ...]:
    """`3`, or `3x1` with one value per spatial axis; without a rank, as many as there are."""
    try:
        values = tuple(int(p) for p in text.split("x"))
    except ValueError:
        raise ArgumentError(f"descriptor: {kind}: {key}= expected integers, got {text!r}") from None
    if rank is None:
        return values
    if len(values) not in (1, rank):
        raise ArgumentError(f"descriptor: {kind}: {key}= expected 1 or {rank} integers, got {len(values)}")
    return values * rank if len(values) == 1 else values


def _floats(kind: str, key: str, text: str) -> tuple[float, ...]:
    """Numbers, as many as there are: `0.5x1`."""
    return tuple(_float(kind, key, part) for part in text.split("x"))


def _pads(kind: str, text: str, rank: int) -> tuple[tuple[int, int], ...]:
    """`1`, `1x0` or `0:1x2:2` (before:after)."""
    try:
        pairs = [tuple(int(v) for v in p.split(":")) for p in text.split("x")]
    except ValueError:
        raise ArgumentError(f"descriptor: {kind}: pad= expected integers, got {text!r}") from None
    if len(pairs) not in (1, rank) or any(len(p) not in (1, 2) for p in pairs):
        raise ArgumentError(f"descriptor: {kind}: pad= expected 1 or {rank} values or before:after pairs")
    both = tuple((p[0], p[-1]) for p in pairs)
    return both * rank if len(both) == 1 else both

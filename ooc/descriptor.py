"""Descriptors: one line of text for every op, the same in plans, errors, tests, results and on the command line.

`kind key=value ...`; the stages of a fused op are separated by ` | `. Where they are not a plain chain, each begins with
its wiring: `x,w>y!` lists the tensors that it reads and makes, `!` marks those that leave.
"""

from __future__ import annotations

from collections.abc import Callable

from ooc.errors import ShapeError
from ooc.fused import fuse, wired
from ooc.op import Op

Fields = dict[str, str]
_PARSERS: dict[str, Callable[[str, Fields], Op]] = {}


def register(*kinds: str) -> Callable[[Callable[[str, Fields], Op]], Callable[[str, Fields], Op]]:
    """Decorator: the function reads the fields of these kinds of op."""

    def add(parser: Callable[[str, Fields], Op]) -> Callable[[str, Fields], Op]:
        _PARSERS.update(dict.fromkeys(kinds, parser))
        return parser

    return add


def parse(text: str) -> Op:
    """The op that a descriptor describes; `parse(str(op)) == op`.

    Raises ShapeError for an unknown kind, an unknown, repeated or missing key, or a value that is no number.
    """
    parts = [part.split() for part in text.split("|")]
    if parts[0] and ">" in parts[0][0]:
        return wired([(words[0], _parse_stage(words[1:])) for words in parts if words])
    return fuse(*map(_parse_stage, parts))


def _parse_stage(words: list[str]) -> Op:
    import ooc.ops  # noqa: F401  (registers the parsers)

    kind, pairs = (words[0], words[1:]) if words else ("", [])
    if kind not in _PARSERS:
        raise ShapeError(f"descriptor: unknown operation {kind!r}; known: {', '.join(sorted(_PARSERS))}")
    fields: Fields = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not value or key in fields:
            raise ShapeError(f"descriptor: {kind}: expected key=value once each, got {pair!r}")
        fields[key] = value
    op = _PARSERS[kind](kind, fields)
    if fields:
        raise ShapeError(f"descriptor: {kind}: unknown key {', '.join(sorted(fields))}")
    return op


def take_int(kind: str, fields: Fields, key: str, default: int | None = None) -> int:
    """Remove an integer from the fields of a descriptor."""
    text = fields.pop(key, None)
    if text is None and default is not None:
        return default
    try:
        return int(text or "")
    except ValueError:
        raise ShapeError(f"descriptor: {kind}: {key}= expected an integer, got {text!r}") from None


def take_ints(kind: str, fields: Fields, key: str, rank: int, default: int) -> tuple[int, ...]:
    """Remove `3` or `3x1` (one per spatial axis) from the fields of a descriptor."""
    parts = fields.pop(key, str(default)).split("x")
    try:
        values = tuple(int(p) for p in parts)
    except ValueError:
        raise ShapeError(f"descriptor: {kind}: {key}= expected integers, got {'x'.join(parts)!r}") from None
    if len(values) not in (1, rank):
        raise ShapeError(f"descriptor: {kind}: {key}= expected 1 or {rank} integers, got {len(values)}")
    return values * rank if len(values) == 1 else values


def take_pads(kind: str, fields: Fields, rank: int) -> tuple[tuple[int, int], ...]:
    """Remove `pad=1`, `pad=1x0` or `pad=0:1x2:2` (before:after) from the fields of a descriptor."""
    parts = fields.pop("pad", "0").split("x")
    try:
        pairs = [tuple(int(v) for v in p.split(":")) for p in parts]
    except ValueError:
        raise ShapeError(f"descriptor: {kind}: pad= expected integers, got {'x'.join(parts)!r}") from None
    if len(pairs) not in (1, rank) or any(len(p) not in (1, 2) for p in pairs):
        raise ShapeError(f"descriptor: {kind}: pad= expected 1 or {rank} values or before:after pairs")
    both = tuple((p[0], p[-1]) for p in pairs)
    return both * rank if len(both) == 1 else both


def take_word(kind: str, fields: Fields, key: str, allowed: tuple[str, ...], default: str) -> str:
    """Remove one of a set of words from the fields of a descriptor."""
    word = fields.pop(key, default)
    if word not in allowed:
        raise ShapeError(f"descriptor: {kind}: {key}= expected one of {', '.join(allowed)}; got {word!r}")
    return word


def show_ints(values: tuple[int, ...]) -> str:
    """The shortest text that `take_ints` reads back."""
    return str(values[0]) if len(set(values)) == 1 else "x".join(map(str, values))


def show_pads(pads: tuple[tuple[int, int], ...]) -> str:
    """The shortest text that `take_pads` reads back."""
    texts = [str(a) if a == b else f"{a}:{b}" for a, b in pads]
    return texts[0] if len(set(texts)) == 1 else "x".join(texts)

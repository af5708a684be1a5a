"""Files changed at random: bytes of any, and what formats that ooc reads are made of."""

from __future__ import annotations

import json
import random
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

NUMBERS = (
    0,
    -1,
    1,
    2,
    255,
    1 << 31,
    (1 << 31) - 1,
    1 << 32,
    1 << 60,
    (1 << 63) - 1,
    1 << 64,
    -(1 << 63),
    10**40,
    0.5,
    -0.0,
    1e308,
    1e-320,
    float("nan"),
    float("inf"),
    float("-inf"),
)
TEXTS = ("", "\0", "a" * 70_000, "../../outside/secret.npy", "/etc/passwd", "f32", "é\n\x1b[31m", "9" * 5000, "__class__")
OTHERS = (None, True, False, [], {}, [[]], [0], {"": 0}, [1] * 4000)
DEEP = "deep-nest"  # stands for a value that JSON's own parsers do not write
NEST = "[" * 100_000 + "]" * 100_000


def mutate(rng: random.Random, path: Path) -> None:
    """Change a file, its bytes or what they mean."""
    content = path.read_bytes()
    for kind, change in MEANINGS.items():
        if path.name.endswith(kind) and content and rng.random() < 0.7:
            path.write_bytes(change(rng, content))
            return
    if content.startswith(b"{") and not path.suffix and rng.random() < 0.7:
        content = of_json(rng, content)
    else:
        content = of_bytes(rng, content)
    path.write_bytes(content)


def of_bytes(rng: random.Random, content: bytes) -> bytes:
    """Some bytes others, gone, twice, or the end missing."""
    found = bytearray(content or b"\0")
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at, length = rng.randrange(len(found) + 1), rng.choice((1, 1, 2, 4, 8, 64))
        kind = rng.randrange(6)
        if kind == 0:
            found[at : at + length] = rng.randbytes(length)
        elif kind == 1:
            found[at : at + length] = bytes([rng.choice((0, 0x7F, 0x80, 0xFF))]) * length
        elif kind == 2:
            del found[at : at + length]
        elif kind == 3:
            found[at:at] = found[at : at + length]
        elif kind == 4 and at < len(found):
            found[at] ^= 1 << rng.randrange(8)
        elif kind == 5 and rng.random() < 0.3:
            del found[at:]
        if not found:
            break
    return bytes(found)


def of_json(rng: random.Random, content: bytes) -> bytes:
    """One to three values of a JSON text others, gone, twice or exchanged."""
    tree = json.loads(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        tree = changed(rng, tree)
    text = json.dumps(tree)
    return text.replace(f'"{DEEP}"', NEST).encode()


def of_lines(rng: random.Random, content: bytes) -> bytes:
    """One of the lines, a JSON text each, with another value."""
    lines = content.splitlines()
    at = rng.randrange(len(lines))
    lines[at] = of_json(rng, lines[at])
    return b"\n".join(lines)


def changed(rng: random.Random, tree: Any) -> Any:
    """A tree of lists, dicts and values with one place changed."""
    places = list(walk(tree))
    if not places:
        return hostile(rng, tree)
    holder, key = rng.choice(places)
    kind = rng.randrange(8)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder.append(holder[key])
    elif kind == 1:
        holder[f"{key}x"] = holder[key]
    elif kind == 2:
        other, at = rng.choice(places)
        holder[key] = json.loads(json.dumps(other[at]))
    else:
        holder[key] = hostile(rng, holder[key])
    return tree


def hostile(rng: random.Random, value: Any) -> Any:
    """A value in the place of another one, of its kind more often than not."""
    if rng.random() < 0.02:
        return DEEP
    if isinstance(value, str) and value.lstrip("-").isdecimal() and len(value) < 50 and rng.random() < 0.8:
        return str(number(rng, int(value)))  # as protobuf writes integers
    if isinstance(value, (int, float)) and not isinstance(value, bool) and rng.random() < 0.8:
        return rng.choice((number(rng, int(value) if abs(value) < 1e18 else 1), rng.choice(NUMBERS)))
    return rng.choice(rng.choice((NUMBERS, TEXTS, OTHERS)))


def number(rng: random.Random, value: int) -> int:
    """An integer that is near another one, or at the end of some range."""
    near = (value + 1, value - 1, 2 * value, 1000 * value, value << 20, -value, rng.randrange(10))
    return rng.choice(near) if rng.random() < 0.7 else rng.choice([n for n in NUMBERS if isinstance(n, int)])


def walk(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a tree: what holds it, and its key there."""
    for key in list(tree) if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ():
        yield tree, key
        yield from walk(tree[key])


def of_onnx(rng: random.Random, content: bytes) -> bytes:
    """A network with another value somewhere."""
    import onnx
    from google.protobuf import json_format

    model = onnx.load_from_string(content)
    for _ in range(8):  # most values do not fit their field
        tree = json_format.MessageToDict(model)
        for _ in range(rng.choice((1, 1, 2))):
            tree = changed(rng, tree)
        try:
            return bytes(json_format.ParseDict(tree, onnx.ModelProto(), ignore_unknown_fields=True).SerializeToString())
        except (json_format.ParseError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            continue
    return of_bytes(rng, content)


def of_npy(rng: random.Random, content: bytes) -> bytes:
    """An array whose header says something else."""
    length = int.from_bytes(content[8:10], "little")
    text = content[10 : 10 + length].decode().strip()
    words = {
        "(": [f"({rng.choice(NUMBERS)}, ", "((", "[", "(" * 5000],
        "'<f4'": ["'|O'", "'<f8'", "'<U1000000000'", "[('a','<f4')]", "'<c16'", "1"],
        "False": ["True", "None", "__import__('os')"],
        "}": ["", f", 'x': {'[' * 3000}", "}}"],
        "'shape'": ["'shapes'", "1"],
    }
    word = rng.choice(list(words))
    text = text.replace(word, rng.choice(words[word]), 1)
    header = (text + "\n").encode()
    told = rng.choice((len(header), len(header), length, 0xFFFF, 0)) & 0xFFFF
    return content[:8] + told.to_bytes(2, "little") + header + content[10 + length :]


def of_zip(rng: random.Random, content: bytes) -> bytes:
    """An archive with a member changed, its sums right."""
    import io

    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(list(members))
    kind = rng.randrange(5)
    if kind == 0:
        del members[name]
    elif kind == 1:
        members[rng.choice(("../outside", "/tmp/x", f"{name}x", "\\"))] = members[name]
    elif name.endswith(".json"):
        members[name] = of_json(rng, members[name])
    else:
        members[name] = rng.choice((of_npy, of_bytes))(rng, members[name])
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for own, values in members.items():
            archive.writestr(own, values)
    return made.getvalue()


MEANINGS: dict[str, Callable[[random.Random, bytes], bytes]] = {
    ".json": of_json,
    ".jsonl": of_lines,
    ".zarray": of_json,
    ".zattrs": of_json,
    ".zgroup": of_json,
    ".onnx": of_onnx,
    ".npy": of_npy,
    ".zip": of_zip,
}

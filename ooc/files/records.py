"""Records: frozen dataclasses as JSON has them, and back, where nothing is believed that does not fit the type of its field."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from ooc.errors import ArgumentError, OocError, StoreError, brief, shown
from ooc.files.reached import regular

MOST = 1 << 63  # an integer is less, whatever its sign
Record = TypeVar("Record")
Text = TypeVar("Text", str, bytes)


@contextmanager
def understood(at: object, wrong: str = "", kind: type[OocError] = ArgumentError) -> Iterator[None]:
    """Whatever goes wrong while something from outside is taken apart becomes one error: it may hold anything.

    Parameters:
        at: what is taken apart, and where it comes from.
        wrong: what is to be said of it where it cannot be understood.
        kind: of the error then. A disk that fails is a StoreError; that memory is short stays as it is.
    """
    try:
        yield
    except (OocError, MemoryError):
        raise
    except OSError as error:
        raise StoreError(error.errno, f"{at}: {error.strerror or error}") from error
    except Exception as error:
        told = f"{type(error).__name__}: {error}" if f"{error}" else type(error).__name__
        raise kind(": ".join(filter(None, (str(at), wrong, told)))) from None


def content(path: Path, most: int) -> bytes:
    """What a file has, of which no more than that is read. Raises OSError, which a StoreError is, ValueError for a longer one."""
    regular(path)
    with path.open("rb") as file:
        return short(file.read(most + 1), most)


def short(text: Text, most: int) -> Text:
    """A text that is no longer than that. Raises ValueError."""
    if len(text) > most:
        raise ValueError(f"longer than {most} characters")
    return text


def plain(record: Any, brief: Collection[str] = ()) -> dict[str, Any]:
    """What JSON writes of a record: sets are sorted, words of an enum are texts. brief: fields that are left out where they are
    as usual, so that older versions read what does not need newer ones."""
    values = {f.name: (getattr(record, f.name), f) for f in dataclasses.fields(record)}
    return {name: _plain(value) for name, (value, f) in values.items() if name not in brief or value != _usual(f)}


def _usual(f: Any) -> Any:
    return f.default if f.default_factory is dataclasses.MISSING else f.default_factory()


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return plain(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, frozenset):
        return sorted(map(_plain, value))
    return [_plain(v) for v in value] if isinstance(value, (tuple, list)) else value


def record(kind: type[Record], raw: Any, **known: Any) -> Record:
    """The record that `plain` wrote; known: fields that are not in it. Raises ValueError for what does not fit, and whatever the
    record itself does not take."""
    if not isinstance(raw, Mapping):
        raise ValueError(f"expected an object, got {brief(shown(raw), 40)}")
    hints = _hints(kind)  # type: ignore[arg-type]
    if unknown := [str(name) for name in raw if name not in hints]:
        raise ValueError(f"no field {brief(', '.join(sorted(unknown)), 80)}")
    return kind(**known, **{name: _read(hints[name], value, name) for name, value in raw.items()})


@cache
def _hints(kind: type) -> dict[str, Any]:
    """The types of a record's fields."""
    hints = typing.get_type_hints(kind)
    return {f.name: hints[f.name] for f in dataclasses.fields(kind)}  # type: ignore[arg-type]


def _read(hint: Any, value: Any, at: str) -> Any:
    """A value of a type."""
    kind, args = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind is Any:
        return value
    if kind in (typing.Union, types.UnionType):
        return _one_of(args, value, at)
    reads = READERS.get(kind)
    if reads is not None:
        return reads(args, value, at)
    if dataclasses.is_dataclass(kind):
        return record(typing.cast(type, kind), value)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    raise _other(at, getattr(kind, "__name__", str(kind)), value)


def _one_of(hints: tuple[Any, ...], value: Any, at: str) -> Any:
    if value is None and type(None) in hints:
        return None
    wrong: list[ValueError] = []
    for hint in hints:
        try:
            return _read(hint, value, at)
        except ValueError as error:
            wrong.append(error)
    raise wrong[0]


def _integer(_: Any, value: Any, at: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= MOST:
        raise _other(at, "an integer", value)
    return value


def _number(_: Any, value: Any, at: str) -> float:
    return value if isinstance(value, float) else _integer(_, value, at)


def _text(_: Any, value: Any, at: str) -> str:
    if not isinstance(value, str):
        raise _other(at, "a text", value)
    return value


def _flag(_: Any, value: Any, at: str) -> bool:
    if not isinstance(value, bool):
        raise _other(at, "true or false", value)
    return value


def _tuple(hints: tuple[Any, ...], value: Any, at: str) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise _other(at, "a list", value)
    each = (hints[0],) * len(value) if hints[1:] == (Ellipsis,) else hints
    if len(value) != len(each):
        raise _other(at, f"{len(each)} values", value)
    return tuple(_read(hint, v, at) for hint, v in zip(each, value, strict=True))


def _set(hints: tuple[Any, ...], value: Any, at: str) -> frozenset[Any]:
    return frozenset(_tuple((*hints, Ellipsis), value, at))


def _mapping(hints: tuple[Any, ...], value: Any, at: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise _other(at, "an object", value)
    return {key: _read(hints[1], v, f"{at}.{key}") for key, v in value.items()}


def _other(at: str, expected: str, value: Any) -> ValueError:
    return ValueError(f"{brief(at, 80)}: expected {expected}, got {brief(shown(value), 40)}")


READERS = {
    int: _integer, float: _number, str: _text, bool: _flag, tuple: _tuple, frozenset: _set, Mapping: _mapping, dict: _mapping,
}  # fmt: skip

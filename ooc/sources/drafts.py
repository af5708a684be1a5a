"""Tensors across a network while they are made. Nothing is moved there, so they are made at their place, unseen: what a node
will say of itself lies in a draft below it until it is whole, and numbers of a node that it replaces have other names."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from ooc.errors import ArgumentError, OocError, StoreError
from ooc.sources.checks import faults
from ooc.sources.objects import MOST_JSON, NODES, is_node
from ooc.sources.place import DRAFT, home
from ooc.sources.remote import KeyStore
from ooc.sources.zarr_metadata import about_ome, attributes_of, node

ENCODINGS = (("default", "/"), ("default", "."), ("v2", "/"), ("v2", "."))  # of names of chunks, in Zarr 3
PREFIXES, MOST_LEVELS = ("", "s", "t", "u", "v"), 32  # of names of levels
REPLACES = "replaces.json"  # in a draft that becomes its node: what that replaces


@dataclass(frozen=True)
class Numbers:
    """Where the numbers of a node lie.

    Fields:
        encoding, separator: of names of chunks, of an array.
        levels: names of those of an image.
    """

    encoding: str = ""
    separator: str = ""
    levels: tuple[str, ...] = ()

    def keys(self) -> re.Pattern[str]:
        """Their names in the node."""
        begins, apart = {"default": "c", "v2": r"\d+"}.get(self.encoding, ""), re.escape(self.separator)
        chunks = [rf"{begins}({apart}\d+)*"] if begins else []
        return re.compile("|".join([*chunks, *(f"{re.escape(level)}/.*" for level in self.levels)]) or "(?!)")


def draft_of(folder: str, room: Path) -> str:
    """The draft of a node by the folder in which a run would make it, whose name is drawn for each run."""
    token = hashlib.blake2b(room.name.encode(), digest_size=8).hexdigest()
    return f"{folder.rstrip('/')}/{DRAFT}{token}"


def drafts(folder: str) -> list[str]:
    """All drafts of a node."""
    begun = {name.partition("/")[0] for name in KeyStore(folder).names(DRAFT)}
    return [f"{folder.rstrip('/')}/{name}" for name in sorted(begun)]


def check_free(path: str, folder: str, overwrite: bool, mine: str = "") -> None:
    """Raise ArgumentError where another draft than `mine` is begun at a node and may not be thrown away."""
    others = [draft for draft in drafts(folder) if draft != mine]
    if others and not overwrite:
        raise ArgumentError(
            f"{path}: another run writes there, or was killed before it was done ({others[0]}); where none does, pass "
            "overwrite=True, or remove that"
        )


def numbers_of(path: str, folder: str) -> Numbers | None:
    """Where the numbers of a node or a draft lie; None: there is none. Raises StoreError where it does not tell."""
    if not is_node(folder):
        return None
    try:
        version, array = node(path, folder)
        if array is None:
            scales = about_ome(attributes_of(path, folder, version)[1]).get("multiscales") or [{"datasets": []}]
            levels = tuple(str(one["path"]) for one in scales[0]["datasets"])
            return Numbers(levels=_all_levels(levels[0]) if home(folder) != folder else levels)
        if version == 2:
            encoding = "v2", array.get("dimension_separator", ".")
        else:
            told = array["chunk_key_encoding"]
            usual = "/" if told["name"] == "default" else "."
            encoding = told["name"], (told.get("configuration") or {}).get("separator", usual)
    except (AttributeError, KeyError, IndexError, TypeError) as error:
        raise StoreError(f"{path}: does not tell where its numbers lie: {error!r}") from None
    if encoding not in ENCODINGS:
        raise StoreError(f"{path}: names of its chunks, {encoding}, are not known; remove it first")
    return Numbers(*encoding)


def _all_levels(first: str) -> tuple[str, ...]:
    """Of a draft, which tells of the finest alone."""
    prefix = first.removesuffix("0")
    return tuple(f"{prefix}{i}" for i in range(MOST_LEVELS))


def begin(path: str, draft: str, overwrite: bool, rank: int) -> tuple[tuple[str, str], str]:
    """How numbers of a new draft are called: the encoding of names of chunks, the prefix of levels; otherwise than those of the
    node that is there, and of all drafts. overwrite: those are thrown away. rank: of the tensor; without axes it has one chunk,
    whose name has no separator. Raises ArgumentError, StoreError."""
    folder = home(draft)
    check_free(path, folder, overwrite)
    others = drafts(folder)
    taken = [numbers for at in (folder, *others) if (numbers := numbers_of(path, at)) is not None]
    encodings = [
        one for one in ENCODINGS if not any((n.encoding, n.separator if rank else one[1]) == one for n in taken)
    ]  # fmt: skip
    prefixes = [one for one in PREFIXES if not any(f"{one}0" in n.levels for n in taken)]
    if not encodings or not prefixes:
        raise ArgumentError(f"{path}: many runs have begun there; remove {others[0]} and the others beside it")
    for other in others:
        discard(path, other)
    return encodings[0], prefixes[0]


def claim(path: str, draft: str, overwrite: bool) -> None:
    """Raise ArgumentError where another run has begun at the same moment; this one leaves nothing then."""
    try:
        check_free(path, home(draft), overwrite, draft)
    except ArgumentError:
        discard(path, draft)
        raise


def publish(path: str, draft: str, told: Callable[[str], object]) -> None:
    """A draft that is whole becomes its node; what that replaces goes. told: is called with the mark of it before."""
    folder = home(draft)
    says, store = _says(path, draft), KeyStore(folder, path)
    if not says:
        raise StoreError(f"{path}: what was begun is gone: another run writes there")
    old, files = numbers_of(path, folder), [*_says(path, folder)]
    replaces = {"numbers": None if old is None else asdict(old), "files": files}
    KeyStore(draft, path).write(REPLACES, json.dumps(replaces).encode())
    told(_mark(says))
    for name in sorted(says, key=NODES.index, reverse=True):  # which tells of all the others last
        try:
            store.write(name, says[name])
        except StoreError:  # of which the answer was lost, perhaps, alone
            if store.read(name, MOST_JSON) != says[name]:
                raise
    store.remove(name for name in files if name not in says)  # of another version
    tidy(path, draft)


def tidy(path: str, draft: str) -> None:
    """Remove a draft that became its node, and what that replaced. Again does nothing."""
    folder = home(draft)
    store, mine = KeyStore(folder, path), numbers_of(path, draft)
    told = KeyStore(draft, path).read(REPLACES, MOST_JSON)
    if mine is None or told is None or not published(path, draft):
        return
    old, files = _replaced(path, told)
    says, kept, gone = _says(path, draft), mine.keys(), old.keys()
    store.remove(name for name in files if name not in says)
    store.remove(name for name in store.names() if gone.fullmatch(name) and not kept.fullmatch(name))
    KeyStore(draft, path).clear()


def _replaced(path: str, told: bytes) -> tuple[Numbers, list[str]]:
    try:
        raw = json.loads(told)
        numbers = raw["numbers"] or {}
        levels = tuple(level for level in numbers.get("levels", ()) if isinstance(level, str) and level.strip("./"))
        known = (numbers.get("encoding", ""), numbers.get("separator", ""))
        return Numbers(*(known if known in ENCODINGS else ("", "")), levels), [name for name in raw["files"] if name in NODES]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StoreError(f"{path}: a draft that makes no sense: {error!r}") from None


def published(path: str, draft: str) -> bool:
    """Whether a draft became its node."""
    says = _says(path, draft)
    return bool(says) and says.items() <= _says(path, home(draft)).items()


def discard(path: str, draft: str) -> None:
    """Remove a draft, with its numbers; of one that is its node by now, with what that replaced."""
    if published(path, draft):
        tidy(path, draft)
        return
    folder, mine = home(draft), None
    with suppress(OocError):
        mine = numbers_of(path, draft)
    if mine is not None:
        there, keys = numbers_of(path, folder), mine.keys()
        kept = (there or Numbers()).keys()
        store = KeyStore(folder, path)
        store.remove(name for name in store.names() if keys.fullmatch(name) and not kept.fullmatch(name))
    KeyStore(draft, path).clear()


def foreign(path: str, folder: str) -> list[str]:
    """What lies at a place where there is no node, and is of no draft."""
    begun = drafts(folder)
    keys = [numbers.keys() for draft in begun if (numbers := numbers_of(path, draft)) is not None]
    names = (name for name in KeyStore(folder, path).names() if not name.startswith(DRAFT))
    return [name for name in names if not any(one.fullmatch(name) for one in keys)]


def levels_begun(path: str, folder: str) -> set[str]:
    """Levels of drafts of an image, and those that they replace."""
    levels: set[str] = set()
    for draft in drafts(folder):
        told = KeyStore(draft, path).read(REPLACES, MOST_JSON)
        old = _replaced(path, told)[0].levels if told is not None else ()
        mine = numbers_of(path, draft)
        levels |= {*old, *(mine.levels if mine is not None else ())}
    return levels


def mark(folder: str) -> str:
    """What tells a node from the one that it replaced, or that will replace it; "": there is none."""
    return _mark(_says(folder, folder))


def _mark(says: dict[str, bytes]) -> str:
    return hashlib.blake2b(b"".join(says[name] for name in sorted(says)), digest_size=16).hexdigest() if says else ""


def _says(path: str, folder: str) -> dict[str, bytes]:
    """What a node says of itself, by file."""
    store = KeyStore(folder, path)
    with faults(path, "reading"):
        files = {name: store.read(name, MOST_JSON) for name in NODES}
    return {name: content for name, content in files.items() if content is not None}

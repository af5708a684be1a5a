"""Archives of torch.export, looked at before PyTorch reads them: its own reader unpickles and evaluates what they hold.

What is in them is copied, member by member, once it is known to be data: what was looked at is what is read.
"""

from __future__ import annotations

import io
import json
import os
import re
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch

from ooc.errors import StoreError
from ooc.files.reached import REMEDY
from ooc.torch.expressions import check_expression

HELD = 1 << 26  # bytes of a copy that stay in memory; larger ones go to the temporary folder
PLAIN = re.compile(
    r"archive_format|archive_version|byteorder|\.data/\w+|version|data/weights/weight_\d+|data/constants/tensor_\d+|extra_files/.*|extra/.*"
)
PICKLED = re.compile(r"(serialized_\w+|data/(weights|constants|sample_inputs)/model)\.pt")
PROGRAM = re.compile(r"models/model\.json|serialized_exported_program\.json")
PAYLOADS = re.compile(r"(data/(?:weights|constants)/)model_(?:weights|constants)_config\.json")
TENSOR = re.compile(r"(weight|tensor)_\d+")  # others are objects of classes that the file names
WORDS = re.compile(r"(?:(?!__)[\w.,:/ \[\]-])*")  # in code that PyTorch writes and runs, it is a name at most
NESTED = re.compile(r"(?:(?!__)[\w.,:/ \[\]{}\"\\-])*")
TARGET = re.compile(
    r"torch\.ops\.(aten|prim|prims|higher_order|quantized_decomposed)\.(?!from_file)([a-zA-Z]\w*|_[a-z]\w*|__i?(and|or|xor|lshift|rshift)__)(\.\w+)?"
    r"|torch\._?sym_\w+|math\.[a-z]\w*|_operator\.(add|sub|mul|floordiv|truediv|mod|neg|pow|pos|abs|eq|ne|lt|le|gt|ge|and_|or_|not_|getitem)"
)
FREE = ("as_string", "as_strings", "torch_version")  # PyTorch quotes these
SKIPPED = "metadata"  # where a node comes from
RANGES, MOST_SYMBOLS = "range_constraints", 1 << 20  # sizes by name; PyTorch counts up to the number in it


@contextmanager
def checked(path: str | Path) -> Iterator[IO[bytes]]:
    """A copy of an archive in which there are only tensors, and a program of PyTorch's own operators. Raises StoreError, OSError
    and ValueError of one that is damaged."""
    with tempfile.SpooledTemporaryFile(HELD) as copy:
        with zipfile.ZipFile(path) as archive, zipfile.ZipFile(copy, "w") as writer:
            for member in _members(archive, os.path.getsize(path), path):
                held = archive.read(member)
                _check(path, member.filename, held, archive)
                writer.writestr(member.filename, held)
        copy.seek(0)
        yield copy


def _members(archive: zipfile.ZipFile, size: int, path: str | Path) -> list[zipfile.ZipInfo]:
    """The members, none larger than it lies there: torch.export does not compress."""
    members = archive.infolist()
    names = {member.filename.lower() for member in members}
    packed = any(member.compress_type != zipfile.ZIP_STORED for member in members)
    if packed or len(names) < len(members) or sum(member.file_size for member in members) > size:
        raise StoreError(f"{path}: members that are compressed or there twice, as torch.export writes none; {REMEDY}")
    return members


def _check(path: str | Path, name: str, held: bytes, archive: zipfile.ZipFile) -> None:
    """Raise StoreError where a member may be more than data."""
    inner = name.partition("/")[2] if name.partition("/")[2] and not name.startswith("extra_files/") else name
    try:
        if PROGRAM.fullmatch(inner):
            _program(json.loads(held))
        elif match := PAYLOADS.fullmatch(inner):
            _payloads(json.loads(held), name[: -len(inner)] + match[1], archive)
        elif PICKLED.fullmatch(inner):
            _tensors(held)
        elif not PLAIN.fullmatch(inner):
            raise ValueError("a member that is no tensor and no program")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, SyntaxError) as error:
        raise StoreError(f"{path}: {name}: it may run code ({' '.join(str(error).split())[:120]}); {REMEDY}") from None


def _tensors(held: bytes) -> None:
    """Raise ValueError where a pickle has more than tensors, numbers, texts, and lists of them."""
    try:
        if held:
            torch.load(io.BytesIO(held), weights_only=True)
    except Exception as error:  # of whatever it holds
        raise ValueError(f"a pickle of more than tensors: {type(error).__name__}") from None


def _payloads(told: Any, folder: str, archive: zipfile.ZipFile) -> None:
    """Look at what holds weights or constants."""
    for payload in told["config"].values():
        if not TENSOR.fullmatch(payload["path_name"]):
            raise ValueError("an object of another class")
        if payload["use_pickle"]:
            _tensors(archive.read(folder + payload["path_name"]))
    _program(told)


def _program(told: Any, key: str = "") -> None:
    """Look at all texts of a program. Raises ValueError for those that may be code."""
    if isinstance(told, dict):
        for name, value in told.items():
            if key == RANGES:
                check_expression(name, MOST_SYMBOLS)
            else:
                _words(name, WORDS)
            if name != SKIPPED:
                _program(value, name)
    elif isinstance(told, list):
        for value in told:
            _program(value, key)
    elif isinstance(told, str) and key not in FREE:
        _text(key, told)


def _text(key: str, text: str) -> None:
    if key in ("expr_str", "guards_code"):
        check_expression(text)
    elif key in ("target", "as_operator"):
        _words(text, TARGET)
    else:
        _words(text, NESTED if key in ("in_spec", "out_spec") else WORDS)


def _words(text: str, pattern: re.Pattern[str]) -> None:
    if not pattern.fullmatch(text):
        raise ValueError(f"{text[:60]!r} is not a name of PyTorch's")

"""Problems by name: a set that comes with the package, a file with a descriptor a line, or a descriptor itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ooc.errors import ShapeError
from ooc.ir.op import Op
from ooc.ops.descriptor import parse
from ooc.planner.search import MOST_BYTES

PROBLEMS = Path(__file__).parent
MOST_FILE_BYTES = 1 << 20


def problem_sets() -> list[str]:
    """Names of the sets that come with the package."""
    return sorted(p.stem for p in PROBLEMS.glob("*.txt"))


def problems(name: str) -> list[Op]:
    """The ops of a problem set or file, one descriptor a line. Raises FileNotFoundError, ShapeError naming file and line."""
    path = Path(name) if name.endswith(".txt") else PROBLEMS / f"{Path(name).name}.txt"
    if not path.is_file():
        what = "not a regular file" if path.exists() else f"expected a .txt file or one of {', '.join(problem_sets())}"
        raise FileNotFoundError(f"no problems {name!r}: {what}")
    with path.open("rb") as file:
        content = file.read(MOST_FILE_BYTES + 1)
    if len(content) > MOST_FILE_BYTES:
        raise ShapeError(f"{path}: larger than {MOST_FILE_BYTES} bytes")
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError as error:
        raise ShapeError(f"{path}: not a text file: {error}") from None
    ops = [problem(line, f"{path}:{i}: ") for i, line in enumerate(lines, 1) if line.strip() and line[:1] != "#"]
    if not ops:
        raise ShapeError(f"{path}: no descriptor in it")
    return ops


def problem(descriptor: str, where: str = "") -> Op:
    """The op of a descriptor. Raises ShapeError, also for sizes that nothing could hold."""
    try:
        op = parse(descriptor)
    except ShapeError as error:
        raise ShapeError(f"{where}{str(error)[:500]}") from None
    if (largest := max(o.nbytes for o in op.operands)) > MOST_BYTES:
        raise ShapeError(f"{where}{str(op)[:200]}: an operand of 2^{largest.bit_length() - 1} bytes; expected 2^60 at most")
    return op


def with_batch(op: Op, n: int) -> Op:
    """The same problem with another batch, in all stages of a fused one. Raises ShapeError."""
    return problem(re.sub(r"(?<= )n=\d+", f"n={n}", str(op)))


def collect(words: Sequence[str], batch: int | None = None) -> list[Op]:
    """The ops of words of a command line: sets, files and descriptors, each one word or `kind key=value ...` in several.

    batch: instead of the problems' own; those that are then equal count once.
    """
    texts: list[str] = []
    for word in words:
        if texts and "=" in word and " " not in word.strip():
            texts[-1] += f" {word}"
        else:
            texts.append(word)
    ops: list[Op] = []
    for text in texts:
        named = " " not in text.strip() and (text.endswith(".txt") or text in problem_sets())
        ops += problems(text) if named else [problem(text)]
    return ops if batch is None else list(dict.fromkeys(with_batch(op, batch) for op in ops))

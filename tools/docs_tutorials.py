"""Tutorials as pages: scripts in cells (`# %%`), which are run; what each prints stands below it.

A cell that begins with `# %% [markdown]` is text. Pictures that it shows are those that the script has made.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples" / "tutorials"
ORDER = ("first_volume", "network_on_a_picture", "train_on_volumes", "killed_run")
LIMIT = 300  # seconds, beyond which a script hangs
PROGRAM = """
import contextlib, io, json, sys
names, told = {"__name__": "__main__"}, []
for where, code in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(compile(code, where, "exec"), names)
    told.append(said.getvalue())
print(json.dumps(told))
"""


class Cell(NamedTuple):
    """A part of a script."""

    line: int
    is_text: bool
    lines: str


class Tutorial(NamedTuple):
    """A page, the pictures on it by name, and how long the script took."""

    name: str
    page: str
    pictures: dict[str, bytes]
    seconds: float


def cells(script: Path) -> list[Cell]:
    """Its parts, in order."""
    parts: list[Cell] = []
    for number, line in enumerate(script.read_text().splitlines(), 1):
        if line.startswith("# %%"):
            parts.append(Cell(number, "[markdown]" in line, ""))
        elif parts:
            parts[-1] = parts[-1]._replace(lines=parts[-1].lines + line + "\n")
    return parts


def text_of(cell: Cell) -> str:
    """Of a cell of text, its Markdown."""
    return re.sub(r"^# ?", "", cell.lines, flags=re.M).strip()


def run(name: str) -> Tutorial:
    """Run a script in a folder of its own; TUTORIALS=off: without running it. Raises RuntimeError where it fails."""
    script, begin = FOLDER / f"{name}.py", time.monotonic()
    parts = cells(script)
    if os.environ.get("TUTORIALS") == "off":
        page = "\n\n".join(text_of(cell) if cell.is_text else _shown(cell, "") for cell in parts)
        return Tutorial(name, re.sub(r"!\[([^\]]*)\]\([\w.]+\)", r"\1", page) + "\n", {}, 0.0)
    code = [(f"{name}.py", "\n" * cell.line + cell.lines) for cell in parts if not cell.is_text]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], input=json.dumps(code), capture_output=True, text=True, cwd=folder, check=False,
            timeout=LIMIT, env={**os.environ, "PYTHONPATH": path, "MPLBACKEND": "agg"},
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{script}:\n{done.stderr}")
        told = iter(json.loads(done.stdout.splitlines()[-1]))
        page = "\n\n".join(text_of(cell) if cell.is_text else _shown(cell, next(told)) for cell in parts)
        shown = re.findall(r"!\[[^\]]*\]\(([\w.]+)\)", page)
        pictures = {picture: Path(folder, picture).read_bytes() for picture in shown}
    return Tutorial(name, page + "\n", pictures, time.monotonic() - begin)


def _shown(cell: Cell, told: str) -> str:
    code = f"```python\n{cell.lines.strip(chr(10))}\n```"
    return code + (f"\n\n```text\n{textwrap.dedent(told).strip(chr(10))}\n```" if told.strip() else "")


if __name__ == "__main__":
    for word in sys.argv[1:] or ORDER:
        print(f"{word}: {run(word).seconds:.1f} s")

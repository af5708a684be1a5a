"""Python in the documents runs: the blocks of a file one after the other, in a process and a folder of their own.

A block that needs a package or a device that is not here is skipped.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import long_cases
import pytest
from waiting import HANGS

ROOT = Path(__file__).parents[2]
TOP = tuple(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "ooc/DESIGN.md"))
FILES = (*TOP, *sorted((ROOT / "docs").rglob("*.md")))
BLOCK = re.compile(r"^ *```python\n(?P<code>.*?)^ *```$", re.M | re.S)

PROGRAM = """
import importlib.util, json, sys, traceback
from ooc.errors import UnsupportedError

names, found = {"__name__": "__main__"}, []
for where, code in json.load(sys.stdin):
    try:
        exec(compile(code, where, "exec"), names)
        found.append("")
    except ImportError as error:
        missing = (error.name or "ooc").split(".")[0]
        ours = importlib.util.find_spec(missing) is not None
        found.append(traceback.format_exc() if ours else f"skip: {error}")
    except UnsupportedError as error:
        found.append(f"skip: {error}" if "device 'cuda'" in str(error) else traceback.format_exc())
    except Exception:
        found.append(traceback.format_exc())
print("\\n" + json.dumps(found))
"""


def blocks_of(path: Path) -> list[tuple[str, str]]:
    """Each block of Python, as it is written, and where: a.md:7."""
    text = path.read_text()
    found = [(text.count("\n", 0, match.start("code")) + 1, match["code"]) for match in BLOCK.finditer(text)]
    return [(f"{path.name}:{line}", textwrap.dedent(code)) for line, code in found]


def outcomes(path: Path) -> dict[str, str]:
    """For each block of a file: nothing, why it was skipped, or what went wrong."""
    blocks = blocks_of(path)
    python_path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], input=json.dumps(blocks), cwd=folder, check=False,
            capture_output=True, text=True, timeout=HANGS, env={**os.environ, "PYTHONPATH": python_path},
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {where: said for (where, _), said in zip(blocks, json.loads(done.stdout.splitlines()[-1]), strict=True)}


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.exists() and blocks_of(path)], ids=lambda path: str(path.relative_to(ROOT))
)
def test_what_a_document_shows_runs(path: Path) -> None:
    found = outcomes(path)
    assert not [said for said in found.values() if said and not said.startswith("skip: ")]
    if all(found.values()):
        pytest.skip("; ".join(f"{where}: {said[6:]}" for where, said in found.items()))


@pytest.mark.quick
def test_blocks_are_found_and_failures_told(tmp_path: Path) -> None:
    document = tmp_path / "a.md"
    listed = "1. b\n\n   ```python\n   assert y == 3\n   ```\n"
    document.write_text(f"# A\n\n```python\ny = 1 + 1\n```\n\n{listed}\n```\nno\n```\n\n```python\nimport not_here\n```\n")
    assert blocks_of(document) == [("a.md:4", "y = 1 + 1\n"), ("a.md:10", "assert y == 3\n"), ("a.md:18", "import not_here\n")]
    good, bad, missing = outcomes(document).values()
    assert good == "" and 'File "a.md:10", line 1' in bad and "AssertionError" in bad
    assert missing == "skip: No module named 'not_here'"


@pytest.mark.parametrize("name", ["mended.md", "testing.md"])
def test_tests_that_documents_name_are_there(name: str) -> None:
    """As `folder/test_file.py::test_name`, under tests/."""
    named = re.findall(r"`([\w/]+\.py)(?:::(\w+))?", (ROOT / "docs" / name).read_text())
    assert len(named) > 8
    for path, function in named:
        file = ROOT / "tests" / path.removeprefix("tests/")
        assert file.is_file() and (not function or re.search(rf"def {function}\b", file.read_text())), f"{path}::{function}"


def test_long_cases_are_there(request: pytest.FixtureRequest) -> None:
    """Each line of `tests/long.txt` is a test, or a case of one, of those that are collected with this one."""
    if any("::" in said for said in request.config.args):
        pytest.skip("a part of some file")
    names, lines = request.config.stash[long_cases.COLLECTED], long_cases.listed()
    files = {name.partition("::")[0] for name in names}
    known = names | {name.partition("[")[0] for name in names}
    assert len({*lines}) == len(lines) > 100
    assert not [line for line in lines if line.partition("::")[0] in files and line not in known]
    assert all((ROOT / "tests" / line.partition("::")[0]).exists() for line in lines)

"""The documentation holds together: links lead somewhere, tables name what the code has, every public name has an example.

`make docs` builds the site, with warnings as errors; here is what can be said without it.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import ooc
from tools import docs_reference as reference
from tools import docs_tables as tables
from tools import docs_tutorials as tutorials

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TOP = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "ooc/DESIGN.md")]
PAGES = [*TOP, *sorted(DOCS.rglob("*.md"))]
SCRIPTS = sorted((ROOT / "examples" / "tutorials").glob("*.py"))
FENCE = re.compile(r"^( *)(`{3,}|~{3,}).*?^\1\2[`~]*$", re.M | re.S)
LINK = re.compile(r"""\]\(([^()\s]+)\)|<img [^>]*src="([^"]+)""")
MOST = 120  # lines of README.md
QUESTIONS = 10

pytestmark = pytest.mark.quick


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def prose(path: Path) -> str:
    """A page without its blocks of code; of a script, its cells of text."""
    if path.suffix == ".py":
        return "\n".join(tutorials.text_of(cell) for cell in tutorials.cells(path) if cell.is_text)
    return FENCE.sub("", path.read_text())


@cache
def headings(path: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them; the site makes the same."""
    titles = re.findall(r"^#+ (.+?)\s*$", prose(path), re.M)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "", title)).strip().lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", [*PAGES, *SCRIPTS], ids=name)
def test_links_lead_somewhere(path: Path) -> None:
    """On GitHub, too, which has none of the pages that `make docs` makes; a script shows pictures that it makes itself."""
    wrong = []
    for target in filter(None, sum(LINK.findall(prose(path)), ())):
        parts = urlsplit(target)
        if parts.scheme or parts.netloc or (path in SCRIPTS and f'"{target}"' in path.read_text()):
            continue
        file = (path.parent / parts.path).resolve() if parts.path else path
        good = file.exists() and file.is_relative_to(ROOT)
        if not good or (parts.fragment and file.suffix == ".md" and parts.fragment not in headings(file)):
            wrong.append(target)
    assert not wrong


def test_readme_is_short_and_says_nothing_that_ages() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= MOST
    assert not re.findall(r"\bcommit\b|\b(?=\w*\d)[0-9a-f]{7}\b", text)
    assert all(f"\nmake {target} " in text for target in ("demo", "test", "docs"))


def test_every_page_is_in_the_navigation_once() -> None:
    listed = re.findall(r"([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2], re.M)
    assert len({*listed}) == len(listed)
    written = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    made = {f"reference/{page.word}.md" for page in reference.PAGES} | {f"tutorials/{word}.md" for word in tutorials.ORDER}
    assert {*listed} - {one for one in listed if one.startswith("develop/")} == written | made | {"reference/index.md"}


# ---- settings


def variables() -> set[str]:
    """Every environment variable of ours that the code or a test reads."""
    python = [path for folder in ("ooc", "perfmodel", "tests", "tools", "examples") for path in (ROOT / folder).rglob("*.py")]
    read = [re.findall(r"""["'](OOC_[A-Z_]+)["']""", path.read_text()) for path in [*python, ROOT / "setup.py"]]
    read += [re.findall(r'getenv\("(\w+)"', path.read_text()) for path in (ROOT / "kernels").rglob("*.cpp")]
    return {one for names in read for one in names}


def test_every_setting_is_in_the_table() -> None:
    rows = re.findall(r"^\| `(OOC_\w+)` \|", (DOCS / "settings.md").read_text(), re.M)
    assert len({*rows}) == len(rows)
    assert {*rows} == variables()


def test_doctor_shows_the_first_of_them() -> None:
    from ooc.cli.doctor import SETTINGS

    rows = re.findall(r"^\| `(OOC_\w+)` \|", (DOCS / "settings.md").read_text(), re.M)
    assert {*rows[: len(SETTINGS)]} == {*SETTINGS}


# ---- the reference

NAMES = [one for page in reference.PAGES for one in reference.names_of(page)]


def test_the_reference_has_every_public_name_once() -> None:
    assert len({*NAMES}) == len(NAMES)
    assert {*ooc.__all__} <= {*NAMES}
    hooks = [f"{module}.{own}" for module in ("torch", "monai", "nnunet", "diffusers", "bioimageio", "dask")
             for own in reference.public(module)]  # fmt: skip
    assert {*hooks} <= {*NAMES}


@pytest.mark.skipif(sys.flags.optimize > 1, reason="there are no docstrings")
def test_every_name_is_told_and_has_an_example() -> None:
    """In its docstring, or on the page of examples, which has none of names that are not there."""
    entries = [reference.entry_of(one) for one in NAMES]
    assert not [entry.name for entry in entries if not entry.doc]
    told = {entry.name for entry in entries if reference.has_example(entry.doc)} | {*reference.examples()}
    assert not {*NAMES} - told
    assert not {*reference.examples()} - {*NAMES}


@pytest.mark.skipif(sys.flags.optimize > 1, reason="there are no docstrings")
def test_a_docstring_becomes_markdown() -> None:
    doc = """x * y, `ooc.conv` of [these].

    Parameters:
        x, y: a number, or
            two.
        *z: others.

    Raises:
        ShapeError: no. More.
        ArgumentError: neither.

    Example:
        >>> 1 + 1
        2
    """
    made = reference.rendered(reference.Entry("f", "", re.sub("^    ", "", doc, flags=re.M)))
    assert made.startswith("## ooc.f { #ooc.f }\n\nx \\* y, [`ooc.conv`](convolutions.md#ooc.conv) of \\[these\\].")
    assert "`x, y`\n:   a number, or two.\n\n`*z`\n:   others." in made
    assert "- **ShapeError**: no. More.\n- **ArgumentError**: neither." in made
    assert made.endswith("**Example**\n\n```pycon\n>>> 1 + 1\n2\n```")


# ---- where a newcomer looks


def test_ten_questions_are_answered_and_a_click_from_home() -> None:
    asked = re.findall(r"^## (.+)$", (DOCS / "questions.md").read_text(), re.M)
    home = re.findall(r"\]\(questions\.md#([\w-]+)\)", (DOCS / "index.md").read_text())
    assert len(asked) == len(home) == QUESTIONS and {*home} <= headings(DOCS / "questions.md")
    answers = (DOCS / "questions.md").read_text().split("\n## ")[1:]
    assert all(LINK.search(answer) for answer in answers)


def test_tutorials_are_scripts_in_cells_and_listed() -> None:
    assert {path.stem for path in SCRIPTS} == {*tutorials.ORDER}
    page = (DOCS / "tutorials.md").read_text()
    for path in SCRIPTS:
        assert f"python examples/tutorials/{path.name}`" in page
        first, *rest = tutorials.cells(path)
        assert first.is_text and tutorials.text_of(first).startswith("# ") and any(not cell.is_text for cell in rest)
        compile(path.read_text(), path.name, "exec")


def test_tables_are_what_their_rows_make() -> None:
    assert tables.differing() == [], "python tools/docs_tables.py --write"


def test_a_table_that_was_changed_by_hand(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    for page in {page for page, _ in tables.TABLES.values()}:
        (tmp_path / page).write_text((ROOT / page).read_text())
    page = tmp_path / "docs" / "comparison.md"
    page.write_text(page.read_text().replace("| ResNet-18 | 0", "| ResNet-18 | 1") + "\n<!-- rows: nothing -->\n")
    assert tables.differing(root=tmp_path) == ["training_compared", "nothing"]
    tables.differing(write=True, root=tmp_path)
    assert tables.differing(root=tmp_path) == ["nothing"]
    assert page.read_text().startswith((ROOT / "docs" / "comparison.md").read_text())

"""What surrounds the code, and nobody runs here: workflows, forms, the citation, extras, the version."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ooc.runtime.version import VERSION
from tests.imports import ROOT

yaml = pytest.importorskip("yaml")

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
NOT_FOR_USERS = {"test", "lint", "docs", "bench", "cudnn", "sigpy"}  # what make installs
LARGE = {"onednn"}  # 160 MB, and for one kind of processor
PATTERNS = ("*.md", "docs/**/*.md", "examples/**/*.md", "docker/*", "ooc/**/*.py")
DOCUMENTS = [path for pattern in PATTERNS for path in sorted(ROOT.glob(pattern))]


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def steps(workflow: Any) -> Iterator[dict[str, Any]]:
    for job in workflow["jobs"].values():
        yield from job.get("steps", [])


def needs(extra: str) -> set[str]:
    """The packages that an extra brings, those of the extras that it names, too."""
    found: set[str] = set()
    for line in EXTRAS[extra]:
        own = re.match(r"ooc\[([\w,-]+)\]", line)
        names = [need for name in own[1].split(",") for need in needs(name)] if own else re.findall(r"^[\w.-]+", line)
        found.update(names)
    return found


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow(path: Path) -> None:
    workflow = read(path)
    assert workflow["name"] == path.stem
    assert True in workflow, "`on` is the boolean true in YAML 1.1, and must be there"
    assert workflow["permissions"] == {"contents": "read"}, "a job may ask for more"
    for job in workflow["jobs"].values():
        assert "uses" in job or job["timeout-minutes"] <= 120
    for step in steps(workflow):
        assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v1)", step.get("uses", "a/b@v1")), step["uses"]
        assert not step.get("uses", "").startswith("actions/checkout") or step["with"] == {"persist-credentials": False}


def test_workflows_call_what_is_there() -> None:
    assert len(WORKFLOWS) >= 6 and {path.stem for path in FORMS} == {"bug", "feature", "question", "config"}
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    stamps = {f".venv/.{name}" for name in ("built", *EXTRAS)}  # $(VENV)/.built, and $(VENV)/.% for each extra
    assert "$(VENV)/.built:" in makefile and "$(VENV)/.%:" in makefile
    called: set[str] = set()
    for path in WORKFLOWS:
        script = "\n".join(step.get("run", "") for step in steps(read(path)))
        called.update(re.findall(r"\bmake ([\w./-]+)", script))
        for file in re.findall(r"\b((?:tools|tests)/[\w./-]+)", script):
            assert (ROOT / file).exists(), f"{path.name}: {file}"
        for extras in re.findall(r"ooc\[([\w,]+)\]", script):
            assert set(extras.split(",")) <= set(EXTRAS), f"{path.name}: {extras}"
    assert called <= targets | stamps, called - targets - stamps
    assert {"lint", "test", "quick", "docs", "test-sigpy"} <= called


def test_cibuildwheel_tries_what_it_builds() -> None:
    settings = PROJECT["tool"]["cibuildwheel"]
    least = re.search(r"\d+\.\d+", PROJECT["project"]["requires-python"])
    assert least and f"cp{least[0].replace('.', '')}-*" in settings["build"]
    assert (ROOT / settings["test-command"].split("{project}/")[1]).is_file()


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form(path: Path) -> None:
    form = read(path)
    if path.stem == "config":
        assert form["contact_links"]
        return
    assert form["name"] and form["description"]
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["attributes"]["label"] for field in fields)
    if path.stem == "bug":
        assert any("ooc doctor" in field["attributes"]["label"] for field in fields)


def test_the_citation() -> None:
    citation = read(ROOT / "CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == VERSION
    assert citation["license"] == PROJECT["project"]["license"]
    assert len(citation["references"]) == 5
    for entry in citation["references"]:
        assert entry["type"] and entry["title"] and entry["authors"] and 2016 <= entry["year"] <= 2019
    assert citation["message"] and citation["title"] and citation["authors"]


def test_the_version_stands_in_one_place() -> None:
    assert "version" not in PROJECT["project"] and PROJECT["project"]["dynamic"] == ["version"]
    module, _, name = PROJECT["tool"]["setuptools"]["dynamic"]["version"]["attr"].rpartition(".")
    source = (ROOT / module.replace(".", "/")).with_suffix(".py").read_text()
    assert f'{name} = "{VERSION}"' in source
    assert re.search(rf"^## {re.escape(VERSION)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_extras_that_are_named_exist() -> None:
    named = {
        extra: path
        for path in DOCUMENTS
        for extras in re.findall(r'(?:\booc|"\.|\{wheel\})\[([a-z0-9, ]+)\]', path.read_text())
        for extra in re.split(r", ?", extras)
    }  # fmt: skip
    assert {extra: str(path) for extra, path in named.items() if extra not in EXTRAS} == {}
    assert len(named) > 10


def test_all_has_what_installs_anywhere() -> None:
    everything = needs("all")
    for extra in sorted(set(EXTRAS) - NOT_FOR_USERS - LARGE - {"all"}):
        anywhere = not any(re.match(r"torch$|cupy|nvidia", need) for need in needs(extra))
        assert (needs(extra) <= everything) == anywhere, extra
    assert set(EXTRAS) > NOT_FOR_USERS | LARGE


def test_nothing_that_a_run_makes_is_kept() -> None:
    """Examples of the documents write files where they run."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("no repository")
    places = {"docker", "docs", "examples", "kernels", "ooc", "perfmodel", "tests", "tools"}
    names = {"CITATION.cff", "LICENSE", "Makefile", "MANIFEST.in", "mkdocs.yml", "pyproject.toml", "setup.py"}
    others = {line.split("/")[0] for line in listed.stdout.splitlines()} - places - names
    assert not {name for name in others if not name.startswith(".") and not re.fullmatch(r"[A-Z]+\.md", name)}

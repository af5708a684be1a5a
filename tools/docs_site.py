"""What `mkdocs build` does besides: it makes the pages that are not written by hand, and turns links into the repository into
links within the site, so that the same Markdown can be read on GitHub.

- `reference/`: from docstrings; `tutorials/`: from scripts, which run; `develop/`: files of the repository's other folders;
- `source/`: whatever else of the repository a page leads to, as it is.
"""

from __future__ import annotations

import logging
import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import docs_reference
import docs_tutorials
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
DOCS = "docs"
COPIES = {
    "README.md": "index.md",  # a link to it is one to the first page
    "ooc/DESIGN.md": "develop/design.md",
    "CONTRIBUTING.md": "develop/contributing.md",
    "SECURITY.md": "develop/security.md",
    "CHANGELOG.md": "develop/changelog.md",
}
AS_THEY_ARE = (".jsonl", ".json", ".png")  # others are shown on a page
FENCE = re.compile(r"^( *)(`{3,}|~{3,}).*?^\1\2[`~]*$", re.M | re.S)
LINK = re.compile(r"(?<!\\)\]\(([^()\s]+)\)")
# Whatever a browser would fetch when it shows a page. Links are for people.
FETCHED = re.compile(rb"""<(?:script|img|iframe|source|link(?![^>]*rel="canonical"))\b[^>]*?(?:src|href)="(?:https?:)?//[^"]*""")
log = logging.getLogger("mkdocs.ooc")

_origins: dict[str, str] = {}  # of each page, the file of the repository that its links begin at


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made here."""
    _origins.clear()
    _origins.update({file.src_uri: f"{DOCS}/{file.src_uri}" for file in files.documentation_pages()})
    texts = {file.src_uri: file.content_string for file in files.documentation_pages()}

    def add(uri: str, content: str | bytes, origin: str) -> None:
        files.append(File.generated(config, uri, content=content))
        if isinstance(content, str):
            texts[uri], _origins[uri] = content, origin

    for uri, content in docs_reference.pages().items():
        add(uri, content, f"{DOCS}/{uri}")
    for name in docs_tutorials.ORDER:
        tutorial = docs_tutorials.run(name)
        log.info("tutorial %s: %.1f s", name, tutorial.seconds)
        add(f"tutorials/{name}.md", tutorial.page, f"examples/tutorials/{name}.py")
        for picture, data in tutorial.pictures.items():
            add(f"tutorials/{picture}", data, "")
            _pictures.add(f"examples/tutorials/{picture}")
    for path, uri in COPIES.items():
        if uri not in texts:
            add(uri, (ROOT / path).read_text(), path)
    for uri, text in list(texts.items()):
        _outside(text, lambda target, uri=uri: _add_source(target, uri, add, files))
    return files


_pictures: set[str] = set()


def _add_source(target: str, uri: str, add: Callable[[str, str | bytes, str], None], files: Files) -> str:
    """A file of the repository that a page leads to becomes one of the site."""
    path = _path(target, uri)
    if path is None or _uri(path) in files.src_uris:
        return target
    file = ROOT / path
    if file.is_file() and path.endswith(AS_THEY_ARE):
        add(_uri(path), file.read_bytes(), "")
    elif file.is_file():
        kind = {".py": "python", ".toml": "toml", ".sh": "sh"}.get(file.suffix, "text")
        add(_uri(path), f"# {path}\n\n~~~~~{kind}\n{file.read_text().rstrip()}\n~~~~~\n", path)
    return target


def _path(target: str, uri: str) -> str | None:
    """The path within the repository that a link on a page leads to; None: it leads elsewhere."""
    parts = urlsplit(target)
    if parts.scheme or parts.netloc or not parts.path:
        return None
    return posixpath.normpath(posixpath.join(posixpath.dirname(_origins[uri]), parts.path))


def _uri(path: str) -> str:
    """Where a file of the repository is in the site."""
    if path in COPIES:
        return COPIES[path]
    if path.startswith(f"{DOCS}/"):
        return path.removeprefix(f"{DOCS}/")
    if path in _pictures:
        return f"tutorials/{posixpath.basename(path)}"
    if path.startswith("examples/tutorials/"):
        return f"tutorials/{posixpath.basename(path).removesuffix('.py')}.md"
    return f"source/{path}" if path.endswith(AS_THEY_ARE) else f"source/{path}.md"


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links of the repository become links of the site."""
    uri = page.file.src_uri

    def led(target: str) -> str:
        path = _path(target, uri)
        if path is None or _uri(path) not in files.src_uris:
            return target
        mark = urlsplit(target).fragment
        return posixpath.relpath(_uri(path), posixpath.dirname(uri) or ".") + (f"#{mark}" if mark else "")

    return re.sub(r"^  - ", "    - ", _outside(markdown, led), flags=re.M)  # of lists in lists


def _outside(text: str, led: Callable[[str], str]) -> str:
    """Replace the targets of all links, but for those in code."""
    parts, end = [], 0
    for fence in [*FENCE.finditer(text), None]:
        begin = fence.start() if fence else len(text)
        parts.append(LINK.sub(lambda m: f"]({led(m[1])})", text[end:begin]))
        if fence:
            parts.append(fence[0])
            end = fence.end()
    return "".join(parts)


def on_post_build(config: Any) -> None:
    """Nothing that a browser shows comes from elsewhere."""
    for page in sorted(Path(config["site_dir"]).rglob("*.html")):
        if match := FETCHED.search(page.read_bytes()):
            raise PluginError(f"{page.name} would fetch from elsewhere: {match[0].decode()}")

"""The pages of the reference, made of docstrings: of everything in `ooc.__all__`, of the hooks, and of `ooc.cudnn`.

Docstrings of ooc are read where they are complete, in the running package: what functions share is put into them when they are
defined. Those of hooks, whose packages need not be here, are read in the source.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "docs" / "reference" / "examples.md"


class Page(NamedTuple):
    """A page: the word in its address, its title, what it is about, and its names, below `ooc`."""

    word: str
    title: str
    about: str
    names: tuple[str, ...]


PAGES = (
    Page("convolutions", "Convolutions", "Convolutions, their gradients, and several layers in one pass.", (
        "conv", "conv_backward", "Gradients", "conv_transpose", "chain", "chain_backward", "Conv", "Activation", "Pool")),
    Page("operations", "Other operations", "The other operations of a CNN, forward and backward.", (
        "max_pool", "max_pool_backward", "avg_pool", "avg_pool_backward", "global_avg_pool", "activation", "activation_backward",
        "bias_backward", "batch_norm", "BatchNorm", "batch_norm_backward", "BatchNormGradients", "fold_batch_norm", "linear",
        "linear_backward", "softmax", "softmax_backward", "cross_entropy", "cross_entropy_backward", "dropout", "lrn",
        "lrn_backward", "upsample", "upsample_backward", "add", "scale", "concat")),
    Page("devices", "Devices, plans and reports", "Where a call computes, under which limits, and what it did.", (
        "device", "Device", "current_device", "set_device_budget", "plan", "Plan", "Place", "last_report", "Report")),
    Page("networks", "Networks", "Whole networks: graphs, their plans, sessions that run these, optimizers.", (
        "Graph", "NetworkPlan", "networks.Session", "networks.Profile", "networks.KernelTime", "SGD", "Adam", "AdamW", "RMSprop",
        "networks")),
    Page("files", "Files", "Tensors and networks in files.", ("open", "create", "Source", "as_source", "onnx", "onnx.load")),
    Page("workers", "Training and workers", "Training on files, and work for many processes.", (
        "train", "Trained", "Training", "tasks", "run_tasks", "Task")),
    Page("errors", "Errors", "What calls raise. Every error is an `ooc.OocError`.", (
        "errors", "OocError", "ShapeError", "ArgumentError", "OptionError", "DtypeError", "BudgetError", "UnsupportedError",
        "StoreError", "BackendError")),
    Page("hooks", "Where other packages call it", "ooc under the names that people call in PyTorch, MONAI, nnU-Net, diffusers, "
         "bioimageio.core and Dask. Each needs the package that it is for.", (
        "torch.convert_model", "torch.revert_model", "torch.graph", "monai.*", "nnunet.*", "diffusers.*", "bioimageio.*",
        "dask.*", "torch.*", "cupy_compat.install", "cupy_compat.uninstall")),
    Page("cudnn", "Instead of CuPy's cudnn", "The names, arguments and errors of CuPy 13's `cudnn` module. "
         "[CuPy 13's cudnn on arrays of any size](../dropin.md) says what differs.", ("cudnn.*",)),
)  # fmt: skip
HOOKS = ("torch", "monai", "nnunet", "diffusers", "bioimageio", "dask", "cupy_compat")  # read in the source
ARRAYS = "`x` has the shape 2 x 3 x 32 x 32, `w` 8 x 3 x 3 x 3 and `b` 8 values: [their first lines](examples.md)"
# Tuples that people make themselves; others are results.
MADE = ("Conv", "Activation", "Pool")
SECTIONS = ("Parameters", "Fields", "Returns", "Raises", "Example", "Source", "Arrays", "Integers", "Lanes")
BEGIN = re.compile(rf"({'|'.join(SECTIONS)}):(?: (.*)|)$")
ENTRY = re.compile(r"(\*{0,2}[A-Za-z_]\w*(?:, \*{0,2}[A-Za-z_.]\w*)*(?: \([^()]*\))?): ")
MEMBERS_OF = ("Graph", "NetworkPlan", "networks.Session", "networks.Profile", "Training", "Source", "Plan", "Report", "Device")


class Entry(NamedTuple):
    """A public name: its signature, or "", its docstring, and what a class has."""

    name: str
    signature: str
    doc: str
    members: tuple[Entry, ...] = ()


# ---- what there is


def names_of(page: Page) -> list[str]:
    """The names of a page, those of whole modules one by one."""
    names: list[str] = []
    for name in page.names:
        module = name.removesuffix(".*")
        names += [f"{module}.{member}" for member in sorted(public(module), key=str.lower)] if name.endswith(".*") else [name]
    return [*dict.fromkeys(names)]


@cache
def public(module: str) -> tuple[str, ...]:
    """`__all__` of a module of ooc, which need not be importable here."""
    tree = ast.parse(_source(f"ooc.{module}").read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return tuple(ast.literal_eval(node.value))
    raise LookupError(f"ooc.{module} has no __all__")


def entry_of(name: str) -> Entry:
    """A public name, below ooc."""
    module, _, word = name.rpartition(".")
    return _written(f"ooc.{module}", word, name) if module in HOOKS else _running(name)


def _running(name: str) -> Entry:
    value: Any = importlib.import_module("ooc")
    for part in name.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            value = importlib.import_module(f"{value.__name__}.{part}")
    doc = inspect.getdoc(value) or ""
    if inspect.ismodule(value):
        return Entry(name, "", doc)
    called = not inspect.isclass(value) or "Parameters:" in doc or name in MADE
    members = tuple(_members(name, value)) if name in MEMBERS_OF else ()
    return Entry(name, _shown(f"ooc.{name}", inspect.signature(value)) if called else "", doc, members)


def _members(name: str, kind: type) -> Iterator[Entry]:
    """Public methods and properties, in the order in which they are defined, those of bases too."""
    short = name.rpartition(".")[2]
    bases = [base for base in reversed(kind.__mro__) if base.__module__.startswith("ooc.")]
    for key in dict.fromkeys(key for base in bases for key in vars(base) if not key.startswith("_")):
        value = inspect.getattr_static(kind, key)
        function = getattr(value, "fget", None) or getattr(value, "func", None) or getattr(value, "__func__", None) or value
        if inspect.isfunction(function) and inspect.getdoc(function):
            plain = function is value or isinstance(value, (classmethod, staticmethod))
            signature = _shown(f"{short[0].lower()}{short[1:]}.{key}", _bound(function)) if plain else ""
            yield Entry(f"{short}.{key}", signature, inspect.getdoc(function) or "")


def _bound(function: Any) -> inspect.Signature:
    """Without self or cls."""
    signature = inspect.signature(function)
    return signature.replace(parameters=[p for p in signature.parameters.values() if p.name not in ("self", "cls")])


def _shown(called: str, signature: inspect.Signature) -> str:
    """As Python writes it, a parameter a line where it is long."""
    words, star = [], False
    for p in signature.parameters.values():
        if p.kind is p.KEYWORD_ONLY and not star:
            words.append("*")
        star |= p.kind in (p.KEYWORD_ONLY, p.VAR_POSITIONAL)
        text = str(p)
        for quoted in re.findall(r"'[^']*'", text.partition("=")[0]):
            text = text.replace(quoted, quoted.strip("'"), 1)
        words.append(text)
    returned: Any = signature.return_annotation
    name = returned if isinstance(returned, str) else getattr(returned, "__name__", returned)
    back = "" if returned is signature.empty else f" -> {name}"
    line = f"{called}({', '.join(words)}){back}"
    return line if len(line) <= 100 else f"{called}(\n" + "".join(f"    {word},\n" for word in words) + f"){back}"


# ---- what cannot be imported here


def _source(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _written(module: str, word: str, name: str) -> Entry:
    """From the source: a function or class of this module, or of the one from which it is imported."""
    tree = ast.parse(_source(module).read_text())
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == word:
            return _parsed(node, name)
        if isinstance(node, ast.ImportFrom) and node.module and any((a.asname or a.name) == word for a in node.names):
            return _written(node.module, word, name)
        if isinstance(node, ast.Assign) and word in {n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)}:
            return _assigned(tree, node, name)
    raise LookupError(f"{module} has no {word}")


def _assigned(tree: ast.Module, node: ast.Assign, name: str) -> Entry:
    """A function that another one makes, as `conv1d = _convolution(1)`: that one's inner function and docstring."""
    makers = {f.name: f for f in tree.body if isinstance(f, ast.FunctionDef)}
    calls = [c.id for c in ast.walk(node.value) if isinstance(c, ast.Name) and c.id in makers]
    for maker in (makers[call] for call in calls):
        for inner in ast.walk(maker):
            if isinstance(inner, ast.FunctionDef) and inner is not maker and ast.get_docstring(inner):
                return _parsed(inner, name)
    raise LookupError(f"{name}: what makes it is not found")


def _parsed(node: ast.FunctionDef | ast.ClassDef, name: str) -> Entry:
    function: ast.FunctionDef | None = node if isinstance(node, ast.FunctionDef) else None
    members: tuple[Entry, ...] = ()
    if isinstance(node, ast.ClassDef):
        methods = {f.name: f for f in node.body if isinstance(f, ast.FunctionDef)}
        function = methods.get("__init__")
    if function is None:
        return Entry(name, "", ast.get_docstring(node) or "", members)
    parts = [part for part in _arguments(function.args) if part not in ("self",)]
    back = f" -> {ast.unparse(function.returns)}" if function.returns and function is node else ""
    line = f"ooc.{name}({', '.join(parts)}){back}"
    long = f"ooc.{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){back}"
    return Entry(name, line if len(line) <= 100 else long, ast.get_docstring(node) or "", members)


def _arguments(args: ast.arguments) -> list[str]:
    return _split(ast.unparse(args).removeprefix("self, "))


def _split(text: str) -> list[str]:
    """At the commas outside of brackets and quotes."""
    parts, depth, start, quote = [], 0, 0, ""
    for i, c in enumerate(text):
        if quote or c in "'\"":
            quote = "" if c == quote else quote or c
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        elif c == "," and not depth:
            parts.append(text[start:i].strip())
            start = i + 1
    return [*parts, text[start:].strip()] if text.strip() else []


# ---- docstrings


class Section(NamedTuple):
    """A part of a docstring: "" for plain text, else one of SECTIONS; its lines, without their common indent."""

    kind: str
    lines: tuple[str, ...]


def sections(doc: str) -> list[Section]:
    """What a docstring consists of."""
    parts: list[tuple[str, list[str]]] = [("", [])]
    block = False
    for line in doc.splitlines():
        begin = BEGIN.match(line)
        if begin:
            block = begin[2] is None
            parts.append((begin[1], [begin[2]] if begin[2] else []))
        elif block and line and not line.startswith(" "):
            block = False
            parts.append(("", [line]))
        elif not block and not line and parts[-1][0]:
            parts.append(("", []))
        else:
            parts[-1][1].append(line)
    return [Section(kind, _dedented(kind, lines)) for kind, lines in parts if any(lines)]


def _dedented(kind: str, lines: Sequence[str]) -> tuple[str, ...]:
    if not kind:
        return tuple(lines)
    first = lines[0] if lines and not lines[0].startswith(" ") else None
    return tuple(inspect.cleandoc("\n".join(["", *lines] if first is None else lines)).splitlines())


def entries(lines: Iterable[str]) -> list[tuple[str, str]]:
    """Name and text of each entry of a section; "" for text that has no name."""
    fields: list[list[str]] = []
    for line in lines:
        named = ENTRY.match(line)
        begins = not line.startswith(" ") and (not fields or fields[-1][1].endswith("."))
        if named:
            fields.append([named[1], line[named.end() :]])
        elif begins and line.strip():
            fields.append(["", line.strip()])
        elif line.strip():
            fields[-1][1] += f" {line.strip()}"
    return [(name, text) for name, text in fields]


def has_example(doc: str) -> bool:
    """Whether a docstring has an example of its own: a section, or a block of code."""
    return any(s.kind == "Example" for s in sections(doc)) or bool(re.search(r"^    \w.*[=(]", _plain(doc), re.M))


def _plain(doc: str) -> str:
    return "\n".join("\n".join(s.lines) for s in sections(doc) if not s.kind)


@cache
def examples() -> dict[str, str]:
    """Of each name, the block of code under its heading in EXAMPLES."""
    blocks: dict[str, str] = {}
    for heading, code in re.findall(r"^### (.*?)\n\n(```.*?^```)$", EXAMPLES.read_text(), re.M | re.S):
        blocks |= dict.fromkeys(re.findall(r"`([^`]+)`", heading), code.replace("```\n", "```python\n", 1))
    return blocks


# ---- Markdown


@cache
def anchors() -> dict[str, str]:
    """The page of each name: of ooc.conv it is convolutions.md."""
    return {f"ooc.{name}": f"{page.word}.md" for page in PAGES for name in names_of(page)}


def linked(text: str) -> str:
    """Text of a docstring as Markdown: nothing in it is markup but code, and names lead to their description."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(_code(part) if part.startswith("`") and len(part) > 1 else _escaped(part) for part in parts)


def _code(part: str) -> str:
    name = re.match(r"ooc\.[\w.]+", part.strip("`"))
    page = name and anchors().get(name[0].rstrip("."))
    return f"[{part}]({page}#{name[0]})" if name and page and name[0] in anchors() else part


def _escaped(text: str) -> str:
    return re.sub(r"([\\*_<>\[\]|#])", r"\\\1", text)


def _paragraphs(lines: Sequence[str]) -> str:
    """Text and indented code."""
    parts: list[str] = []
    for part in re.split(r"\n\s*\n", "\n".join(lines).strip("\n")):
        if part.startswith("    "):
            code = inspect.cleandoc("\n" + part)
            parts.append(f"```python\n{code}\n```")
        elif part.strip():
            parts.append(linked(" ".join(part.split())))
    return "\n\n".join(parts)


@cache
def shared() -> dict[str, tuple[str, str]]:
    """What all functions say of arrays, integers and the options of a run: the text, and where it is told."""
    doc = sections(entry_of("conv").doc)
    known = {" ".join(s.lines): (s.kind, "#arrays") for s in doc if s.kind in ("Arrays", "Integers")}
    named = dict(entries(next(s.lines for s in doc if s.kind == "Parameters")))
    for name in ("deterministic", "progress", "callbacks", "trace", "resume"):
        known[named[name]] = (name, "#options-of-every-call")
    return known


def rendered(entry: Entry, level: int = 2) -> str:
    """The description of a name."""
    title = entry.name if level > 2 else f"ooc.{entry.name}"
    anchor = f"ooc.{entry.name}" if level == 2 else entry.name
    blocks = [f"{'#' * level} {title} {{ #{anchor} }}"]
    if entry.signature:
        blocks.append(f"```python\n{entry.signature}\n```")
    parts = sorted(sections(entry.doc), key=lambda part: part.kind == "Source")
    first = next((i for i, part in enumerate(parts) if part.kind not in ("", "Arrays", "Integers")), len(parts))
    if level == 2 and not has_example(entry.doc) and entry.name in examples():
        parts.insert(first, Section("Example", tuple(examples()[entry.name].splitlines()[1:-1])))
    blocks += filter(None, map(_section, parts))
    for member in entry.members:
        blocks.append(rendered(member, level + 1))
    return "\n\n".join(blocks)


def _section(part: Section) -> str:
    if part.kind == "":
        return _paragraphs(part.lines)
    if part.kind == "Example":
        code = "\n".join(part.lines).strip()
        return f"**Example**\n\n```{'pycon' if code.startswith('>>>') else 'python'}\n{code}\n```"
    if part.kind in ("Arrays", "Integers"):
        told = " ".join(part.lines) in shared()
        return "" if told and part.kind == "Integers" else _note(part, told)
    if part.kind in ("Source", "Lanes"):
        return f"**{part.kind}:** {linked(' '.join(part.lines))}"
    title = f"**{part.kind}**"
    if part.kind == "Raises":
        items = [f"- {linked(text)}" if not word else f"- **{word}**: {linked(text)}" for word, text in entries(part.lines)]
        return f"{title}\n\n" + "\n".join(items)
    return f"{title}\n\n" + _fields(part.lines)


def _note(part: Section, told: bool) -> str:
    if told:
        return "Arrays may be of [these kinds and types](index.md#arrays)."
    return f"**{part.kind}:** {linked(' '.join(part.lines))}"


def _fields(lines: Sequence[str]) -> str:
    """A list of terms; options that every call has are named, and told in one place."""
    terms, common = [], []
    for name, text in entries(lines):
        told = shared().get(text)
        if told and told[0] == name:
            common.append(f"`{name}`")
        elif name:
            terms.append(f"`{name}`\n:   {linked(text)}")
        else:
            terms.append(linked(text))
    if common:
        terms.append(f"{', '.join(common)}\n:   [options of every call](index.md#options-of-every-call)")
    return "\n\n".join(terms)


def pages() -> dict[str, str]:
    """Every page of the reference, by its path within the documentation."""
    return {"reference/index.md": _index(), **{f"reference/{page.word}.md": _page(page) for page in PAGES}}


def _page(page: Page) -> str:
    texts = [rendered(entry_of(name)) for name in names_of(page)]
    arrays = f"In the examples {ARRAYS}." if page.word in ("convolutions", "operations", "devices") else ""
    return "\n\n".join([f"# {page.title}", page.about, *filter(None, [arrays]), *texts]) + "\n"


def _index() -> str:
    doc = sections(entry_of("conv").doc)
    text = {s.kind: s for s in doc}
    run = [line for name, line in entries(text["Parameters"].lines) if shared().get(line, ("",))[0] == name]
    names = [name for name, line in entries(text["Parameters"].lines) if line in run]
    parts = [
        "# Reference",
        "Everything in `ooc` that is public, as its docstrings tell it: the same as `help(ooc.conv)` and so on. "
        "[All examples](examples.md) are on one page, too.",
    ]
    for page in PAGES:
        rows = [f"| [`ooc.{name}`]({page.word}.md#ooc.{name}) | {_first(entry_of(name).doc)} |" for name in names_of(page)]
        parts.append("\n".join([f"## {page.title}", "", "| name | what it is |", "|---|---|", *rows]))
    parts += ["## Arrays", *(linked(" ".join(text[kind].lines)) for kind in ("Arrays", "Integers"))]
    parts += ["## Options of every call", "\n\n".join(f"`{n}`\n:   {linked(line)}" for n, line in zip(names, run, strict=True))]
    return "\n\n".join(parts) + "\n"


def _first(doc: str) -> str:
    """The first sentence."""
    text = " ".join(doc.split("\n\n")[0].split())
    return linked(re.split(r"(?<=[.:])\s(?=[A-Z0-9`])|: `", text)[0].rstrip(":"))


def without_example() -> list[str]:
    """Public names whose docstring has no example of its own."""
    return [name for page in PAGES for name in names_of(page) if not has_example(entry_of(name).doc)]


if __name__ == "__main__":
    print("\n".join(without_example()))

"""Imports go one way, and importing ooc imports nothing heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ooc
import perfmodel

ROOT = Path(ooc.__file__).parent
MODEL = Path(perfmodel.__file__).parent

# A module imports only modules before it. Modules of one row do not import each other, but for those of a package.
LAYERS = (
    ("ooc._kernels",),
    ("ooc.errors", "ooc.native", "ooc.region", "ooc.arena"),
    ("ooc.console",),
    ("ooc.maps",),
    ("ooc.op",),
    ("ooc.tracing",),
    ("ooc.fused",),
    ("ooc.descriptor",),
    ("ooc.ops",),
    ("ooc.backends", "ooc.plan", "ooc.visited"),
    ("ooc.steps", "ooc.tilings"),
    ("ooc.costs",),
    ("ooc.search",),
    ("ooc.store",),
    ("ooc.run",),
    ("ooc.trace",),
    ("ooc.device",),
    ("ooc.cutting",),
    ("ooc.pinning",),
    ("ooc.engine",),
    ("ooc.foreign",),
    ("ooc.arguments",),
    ("ooc.calls", "ooc.layers", "ooc.backprop"),
    ("ooc.api",),
    ("ooc.functions", "ooc.gradients", "ooc.normal"),
    ("ooc.planning",),
    ("ooc",),
    ("ooc.libcudnn",),
    ("ooc.cudnn_checks",),
    ("ooc.cudnn_state",),
    ("ooc.cudnn_conv", "ooc.cudnn_layers", "ooc.cudnn_norm", "ooc.cudnn_pool"),
    ("ooc.cudnn_fused",),
    ("ooc.cudnn",),
    ("ooc.cupy_compat",),
    ("ooc.timeline", "ooc.doctor", "ooc.resident"),
    ("ooc.demo_check", "ooc.demo_image"),
    ("ooc.demo",),
    ("ooc.cli",),
)
# Registering the descriptors of every operation when one is first read.
# `python -m ooc.run` starts a program.
ALLOWED = {("ooc.descriptor", "ooc.ops"), ("ooc.run", "ooc.cupy_compat")}
HEAVY = ("torch", "cupy", "matplotlib", "tqdm", "skimage", "PIL")


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: Path, known: set[str]) -> Iterator[str]:
    """Every module that a file imports, lazily or not; `from ooc import x` is the module ooc.x where there is one."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            base = node.module or ""
            yield from (f"{base}.{a.name}" if f"{base}.{a.name}" in known else base for a in node.names)


KNOWN = set(modules()) | {"ooc._kernels"}


def package(name: str) -> str:
    """ops/*, backends/* and libcudnn/* count as one layer each."""
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[1:2] in (["ops"], ["backends"], ["libcudnn"]) else name


def layer(name: str) -> int:
    ranks = {m: i for i, row in enumerate(LAYERS) for m in row}
    assert package(name) in ranks, f"{name} is new: give it a place in LAYERS"
    return ranks[package(name)]


@pytest.mark.parametrize("name", sorted(modules()))
def test_imports_go_one_way(name: str) -> None:
    for target in imported(modules()[name], KNOWN):
        if target.split(".")[0] != "ooc" or package(target) == package(name) or (name, package(target)) in ALLOWED:
            continue
        assert layer(target) < layer(name), f"{name} imports {target}"


def test_backends_know_no_plans() -> None:
    allowed = {"ooc.region", "ooc.op", "ooc.ops", "ooc.native", "ooc.errors", "ooc.backends", "ooc.fused", "ooc.tracing"}
    for name, path in modules().items():
        if package(name) == "ooc.backends":
            used = {package(t) for t in imported(path, KNOWN) if t.split(".")[0] == "ooc"}
            assert used <= allowed, f"{name} imports {sorted(used - allowed)}"


def test_arena_imports_nothing_of_ooc() -> None:
    assert not [t for t in imported(ROOT / "arena.py", KNOWN) if t.startswith(("ooc", "perfmodel"))]


@pytest.mark.parametrize("name", ["__init__", "lookahead", "model", "simulate"])
def test_the_model_imports_nothing_of_ooc(name: str) -> None:
    assert not [t for t in imported(MODEL / f"{name}.py", KNOWN) if t.split(".")[0] == "ooc"]


def test_importing_ooc_imports_nothing_heavy() -> None:
    code = f"import sys, ooc; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("path", sorted((*ROOT.rglob("*.py"), *MODEL.rglob("*.py"))), ids=lambda p: f"{p.parent.name}/{p.name}")
def test_what_numpy_imports_late_is_imported_at_once(path: Path) -> None:
    """NumPy imports `np.random` and `np.ma` where they are first named. Ctrl-C is lost in the Cython modules of the one
    meanwhile, and both would count as memory that a call holds beside its budget."""
    named = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute))
    late = [n for n in named if n.attr in ("random", "ma") and isinstance(n.value, ast.Name) and n.value.id in ("np", "numpy")]
    assert not [n.lineno for n in late]

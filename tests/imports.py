"""The order of the house: `python -m tests.imports` prints the packages from top to bottom and every import that runs up.

A call passes the packages in this order; an import runs down, never up, and files never import each other in a circle.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent

# From top to bottom. A module belongs to the longest prefix that is listed.
ORDER = (
    ("ooc.__main__", "the command line"),
    ("ooc.cli", ""),
    ("perfmodel", "the tool that measures and predicts; only the command line imports it"),
    ("perfmodel.bench", ""),
    ("perfmodel.report", ""),
    ("perfmodel.rows", ""),
    ("perfmodel.calibrate", ""),
    ("perfmodel.problems", ""),
    ("ooc.console", "what both command lines share"),
    ("ooc.run", "the faces"),
    ("ooc.cupy_compat", ""),
    ("ooc.cudnn", ""),
    ("ooc.libcudnn", ""),
    ("ooc", ""),
    ("ooc.monai", "hooks under the names of others"),
    ("ooc.nnunet", ""),
    ("ooc.diffusers", ""),
    ("ooc.bioimageio", ""),
    ("ooc.dask", "workers of a Dask cluster, networks on dask arrays"),
    ("ooc.lazy", "results that stay lazy"),
    ("ooc.training", "a network trained on files"),
    ("ooc.apply", "a network from file to file"),
    ("ooc.torch", "tensors and networks of PyTorch"),
    ("ooc.onnx", "networks in ONNX files"),
    ("ooc.translate", "what translations of networks share"),
    ("ooc.workers", "an inference as tasks for any number of workers"),
    ("ooc.networks", "whole networks: fates, programs, sessions"),
    ("ooc.networks.layers", ""),
    ("ooc.networks.writer", ""),
    ("ooc.networks.calls", ""),
    ("ooc.networks.tensors", ""),
    ("ooc.api", "arguments become ops"),
    ("ooc.runtime", "arrays, stores, the executor, the report"),
    ("ooc.planner", "an op and a budget become a plan"),
    ("ooc.model", "seconds of a step, of a schedule"),
    ("ooc.schedule", "a plan becomes steps"),
    ("ooc.sources", "tensors in files of other libraries, by region"),
    ("ooc.backends.choice", "where tiles are computed"),
    ("ooc.backends.cuda", ""),
    ("ooc.backends.cpu", ""),
    ("ooc.backends", ""),
    ("ooc.ops", "the operations"),
    ("ooc.ir", "regions, axis maps, folds"),
    ("ooc.files", "files of our own: read with care, written whole"),
    ("ooc.native", "the ground"),
    ("ooc.cache", ""),
    ("ooc.errors", ""),
    ("ooc._kernels", ""),
)
RANKS = {name: i for i, (name, _) in enumerate(ORDER)}


def modules() -> dict[str, Path]:
    """Every module of ooc and perfmodel, with its file."""
    found = {}
    for path in sorted((*(ROOT / "ooc").rglob("*.py"), *(ROOT / "perfmodel").rglob("*.py"))):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    """Every module of ours that a file imports, lazily or not; `from ooc import x` is the module ooc.x where there is one."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            base = node.module or ""
            names = [f"{base}.{a.name}" if f"{base}.{a.name}" in (*known, "ooc._kernels") else base for a in node.names]
        else:
            continue
        yield from (n for n in names if n.split(".")[0] in ("ooc", "perfmodel"))


@functools.cache
def arrows() -> dict[str, set[str]]:
    """For each module, those of ours that it imports."""
    known = modules()
    return {name: set(imported(path, known)) - {name} for name, path in known.items()}


def room(module: str) -> str:
    """The listed package that a module belongs to."""
    parts = module.split(".")
    names = (".".join(parts[:i]) for i in range(len(parts), 0, -1))
    found = next(n for n in names if n in RANKS)
    # What lies flat in a package has a place of its own, or is no part of the house yet.
    assert found != "ooc" or module == "ooc", f"{module} is new: give it a place in ORDER"
    return found


def upward(graph: Mapping[str, set[str]]) -> list[tuple[str, str]]:
    """Imports of a module by one that lies below it."""
    return [(a, b) for a, targets in graph.items() for b in sorted(targets) if RANKS[room(b)] < RANKS[room(a)]]


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle, if any do."""
    done: set[str] = set()

    def walk(name: str, trail: list[str]) -> list[str]:
        if name in trail:
            return [*trail[trail.index(name) :], name]
        if name in done:
            return []
        for target in sorted(graph.get(name, ())):
            if found := walk(target, [*trail, name]):
                return found
        done.add(name)
        return []

    return next((found for name in sorted(graph) if (found := walk(name, []))), [])


def main() -> int:
    graph = arrows()
    sizes: dict[str, tuple[int, int]] = {}
    for name, path in modules().items():
        files, lines = sizes.get(room(name), (0, 0))
        sizes[room(name)] = files + 1, lines + path.read_text().count("\n")
    for name, what in ORDER:
        files, lines = sizes.get(name, (0, 0))
        print(f"{name:20} {files:3} files {lines:6} lines  {what}".rstrip())
    up, round_trip = upward(graph), circle(graph)
    for a, b in up:
        print(f"up: {a} imports {b}")
    if round_trip:
        print("circle: " + " -> ".join(round_trip))
    print(f"{sum(map(len, graph.values()))} imports, {len(up)} arrows up, {int(bool(round_trip))} circles")
    return int(bool(up or round_trip))


if __name__ == "__main__":
    sys.exit(main())

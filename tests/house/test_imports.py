"""Imports run down, as calls do, and importing ooc imports nothing heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ooc
from tests.imports import ORDER, RANKS, ROOT, arrows, circle, main, modules, room, upward

pytestmark = pytest.mark.quick

HEAVY = (
    "torch",
    "monai",
    "diffusers",
    "bioimageio",
    "nnunetv2",
    "cupy",
    "matplotlib",
    "tqdm",
    "skimage",
    "PIL",
    "perfmodel",
    "onnx",
    "zarr",
    "dask",
)
# Packages that need another one, which is not imported by a star.
HOOKS = {"bioimageio", "dask", "diffusers", "monai", "nnunet", "torch"}
MOST_FLAT = 8  # modules beside each other in ooc/: a newcomer finds the way by folders


def test_imports_run_down() -> None:
    assert not upward(arrows())


def test_no_files_import_each_other_in_a_circle() -> None:
    assert not circle(arrows())


def test_the_order_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name, _ in ORDER) and "0 arrows up, 0 circles" in shown


def test_an_arrow_that_runs_up_is_found() -> None:
    up = ("ooc.ir.region", "ooc.runtime.engine")
    assert upward({up[0]: {up[1]}, up[1]: {up[0]}}) == [up]


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert not circle({"a": {"b", "c"}, "b": {"c"}, "c": set()})


def test_only_the_command_line_imports_perfmodel() -> None:
    above = RANKS["perfmodel"]
    users = {a for a, targets in arrows().items() for b in targets if b.split(".")[0] == "perfmodel" and a.split(".")[0] == "ooc"}
    assert users and all(RANKS[room(name)] < above for name in users)


def test_few_modules_lie_flat() -> None:
    assert len([name for name in modules() if name.count(".") == 1 and (ROOT / "ooc" / f"{name[4:]}.py").exists()]) < MOST_FLAT


def test_importing_ooc_imports_nothing_heavy() -> None:
    code = f"import sys, ooc; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_numpy_imports_late_is_imported_at_once() -> None:
    """NumPy imports `np.random` and `np.ma` where they are first named. Ctrl-C is lost in the Cython modules of the one
    meanwhile, and both would count as memory that a call holds beside its budget."""
    late = []
    for path in sorted(modules().values()):
        named = (node for node in ast.walk(ast.parse(Path(path).read_text())) if isinstance(node, ast.Attribute))
        of_numpy = (n for n in named if isinstance(n.value, ast.Name) and n.value.id in ("np", "numpy"))
        late += [f"{path}:{n.lineno}" for n in of_numpy if n.attr in ("random", "ma")]
    assert not late


def test_names_are_imported_when_they_are_used() -> None:
    """Those that `__init__.pyi` lists, each from where it says; NumPy is imported with the first of them."""
    stub = ast.parse((ROOT / "ooc" / "__init__.pyi").read_text())
    imported = [alias.name for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    (listed,) = (ast.literal_eval(n.value) for n in stub.body if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name))
    assert sorted(listed) == sorted(ooc.__all__) == sorted({*imported} - HOOKS) and {*imported} == {*dir(ooc)}
    assert all(getattr(ooc, name) is not None for name in listed)
    code = "import sys, ooc; print('numpy' in sys.modules); ooc.conv; print('ooc.networks' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
    with pytest.raises(AttributeError):
        ooc.nothing  # type: ignore[attr-defined]  # noqa: B018

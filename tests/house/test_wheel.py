"""The wheel holds the package: every module imports from it, and every file of data is where the code looks for it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.imports import ROOT, modules

PARTS = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in", "kernels", "ooc", "perfmodel")
DATA = ("ooc/py.typed", "ooc/model/devices/*.json", "perfmodel/problems/*.txt")
# In a process that knows neither the work tree nor what is installed of it in the environment.
PROGRAM = """
import importlib, json, sys
from pathlib import Path

target, names, data, root = json.loads(sys.argv[1])
sys.path = [target, *(p for p in sys.path if Path(p or ".").resolve() != Path(root))]
sys.meta_path = [f for f in sys.meta_path if "editable" not in getattr(f, "__module__", "") + repr(f)]
for name in names:
    try:
        found = Path(importlib.import_module(name).__file__)
    except ImportError as error:  # a package that only this module needs
        assert (error.name or "ooc").split(".")[0] not in ("ooc", "perfmodel"), f"{name}: {error}"
        continue
    assert found.is_relative_to(target), f"{name} is from {found}"
missing = [file for file in data if not (Path(target) / file).is_file()]
assert not missing, missing

import ooc
from ooc.backends.cuda.source import device_source
from ooc.model.calibration import load_device
from ooc.native import kernels
from perfmodel.problems.sets import problem_sets, problems

from ooc.cli.main import COMMANDS

assert "__global__" in device_source()
assert "calibrate" in COMMANDS and "bench" not in COMMANDS
assert load_device("h200").name and all(problems(name) for name in problem_sets())
assert ooc.plan("conv.fprop n=1 c=4 h=8 w=8 k=4 r=3 s=3", "64 KiB", device="null", calibration="p100").tiles >= 1
print(kernels is not None)
"""


def new_enough(package: str, least: int) -> bool:
    """Whether the environment has what builds the wheel; else pip fetches it."""
    try:
        return int(importlib.metadata.version(package).split(".")[0]) >= least
    except importlib.metadata.PackageNotFoundError:
        return False


def built(folder: Path, compiler: str | None) -> Path:
    """A folder with the wheel installed in it; compiler: instead of the one that would be found."""
    tree = folder / "tree"
    tree.mkdir()
    for part in PARTS:
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        options = {"ignore": shutil.ignore_patterns("*.so", "__pycache__")} if copy is shutil.copytree else {}
        copy(ROOT / part, tree / part, **options)
    own = new_enough("setuptools", 77) and new_enough("pybind11", 2)
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    command = [*pip, "wheel", "--no-deps", *(["--no-build-isolation"] if own else []), "-w", str(folder / "wheel"), str(tree)]
    env = {**os.environ, **({"CC": compiler, "CXX": compiler} if compiler else {})}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=env, check=False)
    if not own and done.returncode and "No matching distribution found for" in done.stderr:
        pytest.skip("setuptools and pybind11 are neither here nor to be had")
    assert done.returncode == 0, done.stderr
    (wheel,) = (folder / "wheel").iterdir()
    target = folder / "installed"
    subprocess.run([*pip, "install", "--no-deps", "--target", str(target), str(wheel)], check=True, cwd=folder)
    return target


@pytest.mark.parametrize(
    "compiler", [pytest.param("false", id="without a compiler"), pytest.param(None, id="with one", marks=pytest.mark.slow)]
)
def test_the_wheel_is_whole(compiler: str | None, tmp_path: Path) -> None:
    if compiler is None and not any(map(shutil.which, ("c++", "g++", "clang++"))):
        pytest.skip("no C++ compiler")
    target = built(tmp_path, compiler)
    assert {path.name for path in target.iterdir() if not path.name.endswith(".dist-info")} <= {"ooc", "perfmodel", "bin"}
    data = [path.relative_to(ROOT).as_posix() for pattern in DATA for path in sorted(ROOT.glob(pattern))]
    assert len(data) > 10
    assert not (target / "perfmodel" / "bench").exists() and not (target / "perfmodel" / "results").exists()
    names = [name for name in modules() if not name.endswith("__main__") and not name.startswith("perfmodel.bench")]
    given = json.dumps([str(target), names, data, str(ROOT)])
    done = subprocess.run([sys.executable, "-I", "-c", PROGRAM, given], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(compiler is None)

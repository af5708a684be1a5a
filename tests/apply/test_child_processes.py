"""Processes that ooc starts import what their parent imports, and nothing from the folder that somebody happens to stand in."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

apply_files = pytest.importorskip("apply_files")

import numpy as np  # noqa: E402

import ooc  # noqa: E402

ROOT = Path(ooc.__file__).parents[1]
# Of the standard library, of what ooc needs and may use, and what Python itself looks for when it starts.
MODULES = (
    "numpy", "json", "ooc", "subprocess", "pathlib", "multiprocessing", "signal", "distributed", "dask", "runpy", "argparse",
    "sitecustomize", "usercustomize", "_kernels", "ml_dtypes", "onnx", "zarr", "struct", "threading", "psutil",
)  # fmt: skip
EVIL = "import os, sys; open({mark!r} + {name!r}, 'w').close(); os.kill(os.getpid(), 9)\n"
PLANNED_APART = "import ooc.apply.apart; ooc.apply.apart.FEW = 0; "  # however small the network is
COMMAND = PLANNED_APART + "from ooc.cli.main import main; import sys; sys.exit(main(sys.argv[1:]))"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a network, its input, and a folder that somebody else has filled."""
    np.save(tmp_path / "v.npy", np.random.default_rng(3).standard_normal((1, 1, 12, 10, 14)).astype(np.float32))
    apply_files.volume_network(tmp_path / "v.onnx")
    evil = tmp_path / "evil"
    evil.mkdir()
    for name in MODULES:
        (evil / f"{name}.py").write_text(EVIL.format(mark=f"{tmp_path}/ran-", name=name))
    return tmp_path


def applied(folder: Path, start: list[str], *more: str, env: Mapping[str, str]) -> None:
    """`ooc apply`, called in the folder."""
    args = ["apply", "../v.onnx", "--input", "../v.npy", "--output", "../y.npy", "--budget", "300KiB", *more]
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    done = subprocess.run([*start, *args], cwd=folder / "evil", env=kept | dict(env), capture_output=True, text=True, timeout=240)
    assert [p.name for p in folder.glob("ran-*")] == [], done.stderr
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("more", [(), ("--resume",), ("--workers", "2")], ids=["plain", "resume", "workers"])
def test_nothing_of_the_current_folder_is_executed(more: tuple[str, ...], folder: Path) -> None:
    if "--workers" in more:
        pytest.importorskip("distributed")
    script = folder / "ooc-command"  # as pip writes it: its own folder is first on the path
    script.write_text("if __name__ == '__main__':\n    " + COMMAND)
    applied(folder, [sys.executable, str(script)], *more, env={"PYTHONPATH": str(ROOT)})
    assert (folder / "y.npy").exists()


def test_empty_entries_of_the_path_go_no_further(folder: Path) -> None:
    """They are the current folder. The parent's own start is the user's: here it begins elsewhere."""
    code = f"import os; os.chdir({str(folder / 'evil')!r}); {COMMAND}"
    args = ["apply", "../v.onnx", "--input", "../v.npy", "--output", "../y.npy", "--budget", "300KiB"]
    for i, path in enumerate((f"{ROOT}{os.pathsep}", f"{os.pathsep}{ROOT}", f"{ROOT}{os.pathsep}{os.pathsep}{ROOT}")):
        elsewhere = folder / f"elsewhere{i}"
        elsewhere.mkdir()
        done = subprocess.run(
            [sys.executable, "-P", "-c", code, *args, "--overwrite"], cwd=elsewhere, env=os.environ | {"PYTHONPATH": path},
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert not [*folder.glob("ran-*")]


def test_a_child_imports_the_same_package(tmp_path: Path) -> None:
    """Wherever the parent has it from: the path it was given, the folder it stands in, one that it added itself."""
    package = tmp_path / "other"
    package.mkdir()
    (package / "ooc").symlink_to(ROOT / "ooc")
    show = "import ooc; from ooc.workers.child import python; import subprocess, sys; print(ooc.__file__); sys.stdout.flush();"
    show += "command, env = python('-c', 'import ooc; print(ooc.__file__)'); subprocess.run(command, env=env, check=True)"
    added = f"import sys; sys.path.insert(0, {str(package)!r}); "
    for where, code, env in (
        (tmp_path, show, {"PYTHONPATH": str(package)}), (package, show, {}), (tmp_path, added + show, {}),
        (package, show, {"PYTHONPATH": str(package)}),
    ):  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=where, env=os.environ | env, capture_output=True, text=True, timeout=60
        )
        mine, child = done.stdout.split()
        assert mine == child == str(package / "ooc" / "__init__.py"), done.stderr


def test_what_is_named_by_the_user_stays(tmp_path: Path) -> None:
    """The folder that PYTHONPATH names may be the current one."""
    (tmp_path / "helper_of_mine.py").write_text("print('mine')")
    code = "from ooc.workers.child import python; import subprocess; command, env = python('-c', 'import helper_of_mine');"
    code += "subprocess.run(command, env=env, check=True)"
    env = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout == "mine\n", done.stderr

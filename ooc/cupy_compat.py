"""`ooc.cudnn` under the names that CuPy removed, for programs that import them; `python -m ooc.run program.py` starts one."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import runpy
import sys
import types
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ooc.cudnn
import ooc.libcudnn

TEXT = "ooc under the name {}, registered by ooc.cupy_compat"
# The name of each module, its parent, and what it shows.
MODULES = (("cupyx.cudnn", ooc.cudnn), ("cupy.cudnn", ooc.cudnn), ("cupy.cuda.cudnn", ooc.libcudnn))
USAGE = "usage: python -m ooc.run program.py [arguments]\n       python -m ooc.run -m module [arguments]"

_before: dict[str, tuple[Any, Any]] = {}  # what a name stood for in sys.modules and as its parent's attribute
_ABSENT = object()


def install(force: bool = False) -> bool:
    """Register `cupy.cudnn` and `cupyx.cudnn` (both `ooc.cudnn`) and `cupy.cuda.cudnn` (`ooc.libcudnn`).

    Call it before the program that uses them is imported. Done a second time it changes nothing.

    Parameters:
        force: True replaces the cuDNN that this CuPy has of its own; default False leaves it.

    Returns:
        installed: True when these names are ooc's afterwards. False, and nothing done, where CuPy is not installed (with a
            warning: use `ooc.cudnn` itself) or has a cuDNN of its own and force is False.

    Source: the modules of CuPy v13 that v14 removed.
    """
    if _before:
        return True
    try:
        parents = {name: importlib.import_module(name.rpartition(".")[0]) for name, _ in MODULES}
    except ImportError as error:
        warnings.warn(f"CuPy cannot be imported ({error}): there is nothing to register; import ooc.cudnn instead", stacklevel=2)
        return False
    if not force and _own():
        return False
    for name, source in MODULES:
        attribute = name.rpartition(".")[2]
        _before[name] = (sys.modules.get(name, _ABSENT), vars(parents[name]).get(attribute, _ABSENT))
        sys.modules[name] = _module(name, source)
        setattr(parents[name], attribute, sys.modules[name])
    return True


def uninstall() -> None:
    """Undo `install`: the names stand for what they stood for before; modules that were imported meanwhile keep what they have.

    Source: the modules of CuPy v13 that v14 removed.
    """
    for name, (module, attribute) in _before.items():
        parent, _, last = name.rpartition(".")
        if module is _ABSENT:
            sys.modules.pop(name, None)
        else:
            sys.modules[name] = module
        if attribute is not _ABSENT:
            setattr(sys.modules[parent], last, attribute)
        elif parent in sys.modules and last in vars(sys.modules[parent]):
            delattr(sys.modules[parent], last)
    _before.clear()


def _own() -> bool:
    """Whether this CuPy has a cuDNN that can be used."""
    if importlib.util.find_spec("cupy.cuda.cudnn") is None:
        return False
    try:
        return bool(getattr(importlib.import_module("cupy.cuda.cudnn"), "available", False))
    except ImportError:
        return False


def _module(name: str, source: types.ModuleType) -> types.ModuleType:
    """A module of its own with another one's names; what is set in it later is its own, what it lacks is asked there."""
    module = types.ModuleType(name, TEXT.format(name))
    spec = importlib.machinery.ModuleSpec(name, None, origin=TEXT.format(name))
    vars(module).update({k: v for k, v in vars(source).items() if not k.startswith("__") or k == "__all__"})
    module.__spec__, module.__package__ = spec, name.rpartition(".")[0]
    vars(module)["__getattr__"] = lambda attribute: getattr(source, attribute)
    return module


def _problem(arguments: Sequence[str]) -> str:
    """Why there is nothing to run, if so. Imports nothing: what is found must see what `install` registers."""
    if not arguments or arguments == ["-m"]:
        return "no program; expected: python -m ooc.run program.py [arguments], or -m module [arguments]"
    if arguments[0] == "-m":
        top = arguments[1].partition(".")[0]
        return "" if top and importlib.util.find_spec(top) else f"-m {arguments[1]}: no such module"
    path = Path(arguments[0])
    if path.is_dir():
        return "" if (path / "__main__.py").is_file() else f"{arguments[0]}: a directory without a __main__.py"
    try:
        path.open("rb").close()
    except OSError as error:
        return f"{arguments[0]}: {error.strerror}"
    return ""


def main(argv: Sequence[str] | None = None) -> int:
    """Install, then run a program with its arguments as if Python had started it; 2, told in one line, where there is none."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] in (["-h"], ["--help"]):
        print(USAGE)
        return 0
    if arguments[:1] == ["-m"]:
        sys.path.insert(0, "")
    if problem := _problem(arguments):
        print(f"ooc.run: {problem}", file=sys.stderr)
        return 2
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        install()
    try:
        if arguments[0] == "-m":
            sys.argv = arguments[1:]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = arguments
            sys.path[0] = str(Path(arguments[0]).resolve().parent)
            runpy.run_path(arguments[0], run_name="__main__")
    except ModuleNotFoundError as error:
        if not told or (error.name or "").partition(".")[0] not in ("cupy", "cupyx"):
            raise
        print(f"ooc.run: the program imports CuPy, which is missing ({error}); install it, or import ooc.cudnn", file=sys.stderr)
        return 2
    return 0

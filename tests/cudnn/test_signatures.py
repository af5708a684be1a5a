"""ooc.cudnn against CuPy v13's cudnn module, name by name, default by default."""

from __future__ import annotations

import ast
import inspect
import pickle
from pathlib import Path
from typing import Any

import pytest

import ooc.cudnn
import ooc.libcudnn

pytestmark = pytest.mark.quick

LINES = Path(__file__).with_name("cupy_v13_cudnn.txt").read_text().split("\n")
V13 = {line.partition("(")[0]: line for line in LINES if line}  # of a name defined twice, the last counts
OUT_OF_SCOPE = ("rnn_", "get_rnn_", "create_rnn_", "ctc_loss", "create_spatial_", "create_op_", "create_reduce_", "fused_ops",
                "create_fused", "make_fused", "set_fused", "get_fused")  # fmt: skip
CLASSES = {"Descriptor", "DropoutStates"}  # public in v13, too
HERE = sorted(name for name in V13 if not name.startswith(("_", *OUT_OF_SCOPE)))
ABSENT = sorted(name for name in V13 if name.startswith(OUT_OF_SCOPE))


def parameters(line: str) -> list[tuple[str, Any, Any]]:
    """Name, kind and default of every parameter in a line of the list."""
    (made,) = ast.parse(f"def {line}: pass").body
    assert isinstance(made, ast.FunctionDef)
    own, keywords = made.args.args, made.args.kwonlyargs
    usual = [None] * (len(own) - len(made.args.defaults)) + made.args.defaults
    kinds = [
        (own, usual, inspect.Parameter.POSITIONAL_OR_KEYWORD),
        (keywords, made.args.kw_defaults, inspect.Parameter.KEYWORD_ONLY),
    ]
    return [(a.arg, kind, value(d)) for args, defaults, kind in kinds for a, d in zip(args, defaults, strict=True)]


def value(default: ast.expr | None) -> Any:
    if default is None:
        return inspect.Parameter.empty
    return eval(ast.unparse(default), {"cudnn": ooc.libcudnn})


@pytest.mark.parametrize("name", HERE)
def test_signature(name: str) -> None:
    found = inspect.signature(getattr(ooc.cudnn, name)).parameters.values()
    assert [(p.name, p.kind, p.default) for p in found] == parameters(V13[name])


def test_star_import_gives_what_v13_gave() -> None:
    assert sorted(ooc.cudnn.__all__) == sorted({*HERE, *CLASSES})
    scope: dict[str, Any] = {}
    exec("from ooc.cudnn import *", scope)
    assert set(scope) - {"__builtins__"} == {*HERE, *CLASSES}


@pytest.mark.parametrize("name", ABSENT)
def test_what_is_left_out_says_so(name: str) -> None:
    assert not hasattr(ooc.cudnn, name)
    with pytest.raises(AttributeError, match=f"ooc.cudnn does not provide {name}"):
        getattr(ooc.cudnn, name)


def test_dropout_states() -> None:
    for name, expected in (
        ("__init__", ["self", "handle", "seed"]),
        ("set_dropout_ratio", ["self", "dropout_ratio"]),
        ("forward", ["self", "handle", "x", "dropout_ratio"]),
        ("backward", ["self", "handle", "dy", "dropout_ratio", "reserve_space"]),
    ):
        assert list(inspect.signature(getattr(ooc.cudnn.DropoutStates, name)).parameters) == expected


def test_every_function_says_what_it_does() -> None:
    for name in dir(ooc.cudnn):
        found = getattr(ooc.cudnn, name)
        if callable(found) and not name.startswith("_") and name not in ("Any",):
            assert inspect.getdoc(found), name


def test_the_error_pickles_by_its_status() -> None:
    error = ooc.libcudnn.CuDNNError(2000)
    error.add_info("more")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.status) == (ooc.libcudnn.CuDNNError, 2000)
    assert isinstance(error, RuntimeError) and str(error) == "cuDNN Error: CUDNN_STATUS_BAD_PARAM\n  more"
    assert ooc.libcudnn.CuDNNError(1).status == 1

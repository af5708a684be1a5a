"""An operation is one row, its layer: the method of `ooc.Graph` that adds it and the function of its name say the same words."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

import ooc
from ooc.networks.build import Built
from ooc.networks.layers import KINDS, LOSSES

WORDS = {
    "act": "activation",
    "coef": "activation",
    "pad": "padding",
    "around": "padding",
    "store": "to",
}  # what users say for a field
SAID_OTHERWISE = {("softmax", "how"): "log", ("activation", "act"): "how", ("activation", "coef"): "coef"}
UNSAID = {("batch_norm", "frozen")}  # by importers alone
OTHERWISE = {  # words whose defaults differ: functions blend results by alpha and beta, a method may say factor= for size=
    ("add", "beta"), ("lrn", "alpha"), ("lrn", "beta"), ("upsample", "size"),
}  # fmt: skip
METHODS = {
    name: method
    for name, method in inspect.getmembers(Built, inspect.isfunction)
    if method.__qualname__ in (f"Built.{name}", f"ArrangingGraph.{name}")
}
OPERATIONS = [name for name in METHODS if not name.startswith("_")]
INSIDE = {"laid", "resize", *LOSSES}  # no method: importers make the first two, `loss` the others
BY_OTHERS = {"crop", "instance_norm", "loss"}  # methods of another operation's layer


def words(function: object) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)  # type: ignore[arg-type]


def test_each_operation_has_a_method() -> None:
    assert set(KINDS) - INSIDE == set(OPERATIONS) - BY_OTHERS


@pytest.mark.parametrize("kind", sorted(set(KINDS) - INSIDE))
def test_users_say_each_field_of_a_layer(kind: str) -> None:
    fields = [f.name for f in dataclasses.fields(KINDS[kind]) if (kind, f.name) not in UNSAID]
    said = {SAID_OTHERWISE.get((kind, name), WORDS.get(name, name)) for name in fields}
    assert said <= set(words(METHODS[kind])), kind


def test_users_say_each_field_of_a_loss() -> None:
    said = {name: p.default for name, p in words(METHODS["loss"]).items()} | {"weights": ()}
    for kind in LOSSES.values():
        assert all(said[f.name] == f.default for f in dataclasses.fields(kind)), kind


@pytest.mark.parametrize("name", [n for n in OPERATIONS if n in ooc.__all__])
def test_method_and_function_have_the_same_defaults(name: str) -> None:
    method, function = words(METHODS[name]), words(getattr(ooc, name))
    both = [word for word in method if word in function and word not in ("self", "name")]
    assert "x" in both or name == "concat"
    for word in both:
        if (name, word) not in OTHERWISE:
            assert method[word].default == function[word].default, word

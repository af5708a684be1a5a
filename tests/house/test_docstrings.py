"""Every public function and class tells each of its options itself: `help(ooc.conv)` is whole without reading anything else."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ooc
import ooc.cudnn
import ooc.cupy_compat
import ooc.libcudnn
from ooc.api import options as words
from ooc.api.dispatch import compute
from ooc.api.options import DEFAULTS, MARK, documented, entries
from ooc.cudnn import options
from ooc.libcudnn import arguments
from ooc.model.cost import Compute, Copy, Model
from ooc.model.simulate import Timeline
from ooc.runtime.call_options import CallOptions
from ooc.runtime.machine import Measured
from ooc.runtime.report import Part
from ooc.runtime.timeline import Times
from ooc.schedule.lowering import Schedule

ERRORS = [name for name in ooc.__all__ if name.endswith("Error")]
FUSED = [name for name in dir(ooc.cudnn) if name.startswith(("activation_", "conv", "deconv", "pooling_")) and "_" in name]
RUN = ["callbacks", "deterministic", "progress", "resume", "trace"]
# The public functions of ooc that compute nothing, or nothing out of core.
PLAIN = {
    "as_source", "create", "current_device", "device", "fold_batch_norm", "last_report", "open", "plan", "run_tasks",
    "set_device_budget", "tasks", "train",
}  # fmt: skip
# What functions have no option for: a loss takes no alpha and beta, those of a normalisation are other numbers.
NO_BLEND = {"cross_entropy", "lrn", "lrn_backward"}
NO_ERRORS = {"last_report"}
WITHOUT_SOURCE = PLAIN - {"fold_batch_norm"}

pytestmark = pytest.mark.skipif(sys.flags.optimize > 1, reason="there are no docstrings")


def doc(found: Any) -> str:
    return inspect.getdoc(found) or ""


def parameters(found: Any) -> list[str]:
    return [p.name for p in inspect.signature(found).parameters.values() if p.name != "self"]


def untold(found: Any) -> set[str]:
    """Parameters without an entry in the docstring."""
    return set(parameters(found)) - {name.lstrip("*") for name in entries(doc(found))}


def functions(module: Any, names: list[str]) -> list[str]:
    return sorted(n for n in {*names} if inspect.isfunction(getattr(module, n)))


API = functions(ooc, ooc.__all__)
CUDNN = functions(ooc.cudnn, [*ooc.cudnn.__all__, *FUSED])
LOW = functions(ooc.libcudnn, ooc.libcudnn.__all__)


@pytest.mark.parametrize("name", API)
def test_every_parameter_is_told(name: str) -> None:
    assert not untold(getattr(ooc, name))


@pytest.mark.parametrize("name", CUDNN)
def test_every_parameter_of_cudnn_is_told(name: str) -> None:
    assert not untold(getattr(ooc.cudnn, name))


@pytest.mark.parametrize("name", LOW)
def test_every_parameter_of_libcudnn_is_told(name: str) -> None:
    assert not untold(getattr(ooc.libcudnn, name))


@pytest.mark.parametrize("found", (ooc.cupy_compat.install, ooc.cupy_compat.uninstall))
def test_every_parameter_of_cupy_compat_is_told(found: Callable[..., Any]) -> None:
    assert not untold(found) and "Source:" in doc(found)


@pytest.mark.parametrize("name", sorted({*API} - PLAIN))
def test_options_that_pass_through_are_shown_and_told(name: str) -> None:
    """They are in the signature that `help` shows, each once, none left out."""
    found = parameters(getattr(ooc, name))
    wanted = [*RUN, *(() if name in NO_BLEND else ("alpha", "beta"))]
    assert "options" not in found
    assert {*wanted} <= {*found}
    assert len(found) == len({*found})


@pytest.mark.parametrize("name", sorted({*API} - PLAIN))
def test_editors_and_type_checkers_see_the_same_options(name: str) -> None:
    """The type of **options has the keywords that the docstring names."""
    function = getattr(ooc, name)
    said = set(parameters(function)) - set(function.__code__.co_varnames[: function.__code__.co_argcount])
    said -= set(function.__code__.co_varnames[: function.__code__.co_argcount + function.__code__.co_kwonlyargcount])
    match = re.fullmatch(r"Unpack\[(\w+)\]", function.__annotations__["options"])
    assert match is not None and set(getattr(words, match[1]).__annotations__) == said & {*DEFAULTS}


def test_the_options_are_those_that_are_taken() -> None:
    """Names and defaults of those who take them."""
    taken = {
        name: parameter.default for name, parameter in inspect.signature(compute).parameters.items()
    } | CallOptions()._asdict()
    own = {name: default for name, default in DEFAULTS.items() if name not in ("layout", "out")}
    assert {name: taken[name] for name in own} == own
    asked = {name for name, default in taken.items() if default is not inspect.Parameter.empty}
    assert {*own} == asked - {"image"}  # which of its inputs a function converts


@pytest.mark.parametrize("name", API)
def test_results_errors_and_source_are_told(name: str) -> None:
    said = doc(getattr(ooc, name))
    assert name == "set_device_budget" or "Returns:" in said
    assert name in NO_ERRORS or "Raises:" in said
    assert name in WITHOUT_SOURCE or "Source:" in said
    assert name not in {*API} - PLAIN or all(error in said for error in ERRORS if error != "OocError")


@pytest.mark.parametrize("name", CUDNN)
def test_results_errors_and_source_of_cudnn_are_told(name: str) -> None:
    found = getattr(ooc.cudnn, name)
    said = doc(found)
    silent = inspect.signature(found).return_annotation in (None, "None") and not {"x", "W"} & {*parameters(found)}
    assert silent or "Returns:" in said
    assert "Raises:" in said or not {*parameters(found)} - {"handle", "dtype"}
    assert "Source:" in said


@pytest.mark.parametrize("name", LOW)
def test_errors_and_source_of_libcudnn_are_told(name: str) -> None:
    found = getattr(ooc.libcudnn, name)
    assert re.search(r"Source:\s(cudnn|CuPy)", doc(found))
    assert not parameters(found) or "Raises: CuDNNError" in doc(found)
    assert not doc(found).startswith(("Source:", *(f"{name}:" for name in parameters(found)))), "what it does comes first"


@pytest.mark.parametrize(
    ("module", "names", "table"),
    [(ooc.cudnn, [*CUDNN, "DropoutStates"], options.ARGUMENTS), (ooc.libcudnn, LOW, arguments.ARGUMENTS)],
)
def test_every_text_of_a_table_is_used(module: Any, names: list[str], table: dict[str, str]) -> None:
    said = " ".join(" ".join(doc(getattr(module, name)).split()) for name in names)
    assert [text for text in table.values() if f": {text}." not in said] == []


def members() -> Iterator[tuple[str, Any]]:
    """Methods and properties that the public classes define, by Class.name."""
    for module in (ooc, ooc.cudnn, ooc.libcudnn):
        for name in module.__all__:
            kind = getattr(module, name)
            if inspect.isclass(kind):
                yield from ((f"{name}.{key}", value) for key, value in vars(kind).items() if _public(key, value))


def _public(key: str, value: Any) -> bool:
    return not key.startswith("_") and hasattr(value, "__get__")


METHODS = {key: value for key, value in members() if not key.startswith(("Gradients.", "BatchNorm"))}


@pytest.mark.parametrize("key", METHODS)
def test_every_method_is_told(key: str) -> None:
    value = METHODS[key]
    inner = getattr(value, "func", None) or getattr(value, "fget", None) or getattr(value, "__func__", None) or value
    said = doc(inner)
    assert said
    assert all(re.search(rf"\b{name}", said) for name in parameters(inner) if name != "cls")


@pytest.mark.parametrize("name", sorted({"Activation", "BatchNorm", "BatchNormGradients", "Conv", "Device", "Gradients", "Plan",
                                         "Pool", "Report", "Trained"}))  # fmt: skip
def test_every_field_is_told(name: str) -> None:
    kind = getattr(ooc, name)
    fields = [f.name for f in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else [*kind._fields]
    assert not {*fields} - entries(doc(kind))


@pytest.mark.parametrize("kind", (Part, Measured, Schedule, Times, Timeline, Model, Copy, Compute))
def test_what_reports_and_devices_hold_is_told(kind: Any) -> None:
    fields = [f.name for f in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else [*kind._fields]
    assert not {*fields} - entries(doc(kind))
    assert all(doc(value) for key, value in vars(kind).items() if _public(key, value) and key not in fields)


@pytest.mark.parametrize("kind", (ooc.Device, ooc.Plan, ooc.Report, Part, Measured, Schedule, Timeline, Model))
def test_what_is_shown_is_told(kind: Any) -> None:
    own = [value for key, value in vars(kind).items() if key in ("__repr__", "__str__", "_repr_html_", "__enter__", "__exit__")]
    assert own and all(value.__doc__ for value in own)


def test_every_field_of_an_answer_is_told() -> None:
    said = doc(ooc.libcudnn.CuDNNAlgoPerf)
    assert all(f"{f.name}: " in said for f in dataclasses.fields(ooc.libcudnn.CuDNNAlgoPerf))


def test_every_place_is_told() -> None:
    assert all(f'{place.name} "{place.value}"' in doc(ooc.Place) for place in ooc.Place)


@pytest.mark.parametrize("name", ["Device", *ERRORS])
def test_classes_say_what_they_are(name: str) -> None:
    assert doc(getattr(ooc, name)) not in ("", doc(object))


def test_nothing_is_left_to_fill_in() -> None:
    found = [getattr(module, name) for module in (ooc, ooc.cudnn, ooc.libcudnn) for name in module.__all__]
    for one in [*found, *METHODS.values(), *(getattr(ooc.cudnn, name) for name in CUDNN)]:
        assert not MARK.search(doc(one)), one


def test_a_function_stays_itself() -> None:
    """The decorator wraps nothing: calls cost what they did."""

    def plain(x: int, **options: Any) -> Any:
        """x.

        Parameters:
            x: a number.
            <run>
        """
        return x, options

    assert documented(plain) is plain
    assert plain(1, other=2) == (1, {"other": 2})
    assert parameters(plain) == ["x", "deterministic", "progress", "callbacks", "trace", "resume"]
    assert not hasattr(ooc.conv, "__wrapped__")


def test_a_parameter_that_is_not_told_is_found() -> None:
    def plain(x: int, y: int = 0) -> int:
        """x.

        Parameters:
            x: a number.
        """
        return x + y

    assert untold(plain) == {"y"}

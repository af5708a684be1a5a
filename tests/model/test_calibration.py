"""Calibrations: what they hold is what the model says, read again only when it has changed."""

from __future__ import annotations

import json
import math
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

import ooc
from ooc.model.calibration import DEVICES, load_device, read_model
from ooc.model.cost import Compute, Copy, Model
from ooc.schedule.work import Work
from perfmodel.calibrate.entries import write_calibration

pytestmark = pytest.mark.quick

KEY = "conv.fprop/f32/native"
COPIES = dict.fromkeys(("read", "h2d", "d2h", "write"), Copy(1e-5, 1e-8, 1e9))


def test_seconds_are_a_straight_line_of_numbers_or_arrays() -> None:
    kernel, copy = Compute(1e-5, 1e9, 1e10), COPIES["h2d"]
    assert kernel.seconds(2e9, 1e10, 3) == pytest.approx(3e-5 + 2 + 1)
    assert copy.seconds(1e9, 100) == pytest.approx(1e-5 + 1e-6 + 1)
    sizes = np.array([64.0, 300.0, 1e6])
    np.testing.assert_allclose(kernel.seconds(sizes, sizes), [kernel.seconds(v, v) for v in sizes])
    np.testing.assert_allclose(copy.seconds(sizes, sizes / 4), [copy.seconds(v, v / 4) for v in sizes])


def test_the_model_says_how_sure_it_is() -> None:
    """By the errors of the fits, each stage counting as much as it takes."""
    model = Model("m", COPIES, {"*/*/*": Compute(0.0, 1e9), KEY: Compute(0.0, 1e9, error=0.25)})
    known, unknown = Work(KEY, 3e6, 1), Work("lrn/f32/native", 1e6, 1)
    assert model.spread([known, known]) == pytest.approx(math.log(1.25))
    assert model.spread([known, unknown]) == pytest.approx(0.75 * math.log(1.25)) and model.spread([unknown]) == 0


def test_a_calibration_is_read_again_only_when_it_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text((DEVICES / "cpu.json").read_text())
    first = load_device(path)
    assert load_device(path) is first and ooc.device("cpu", calibration=path).model is first
    path.write_text(path.read_text().replace(json.dumps(first.name), '"another"'))
    assert load_device(path).name == "another" != first.name
    path.write_text("{")
    with pytest.raises(ValueError, match=r"mine\.json"):
        load_device(path)


def test_samples_that_older_files_hold_are_passed_over(tmp_path: Path) -> None:
    raw = json.loads((DEVICES / "cpu.json").read_text())
    raw["copies"]["h2d"]["samples"] = [[4096, 1, 1e-5]]
    raw["computes"]["*/*/*"]["samples"] = [[1.0] * 9]
    path = tmp_path / "older.json"
    path.write_text(json.dumps(raw))
    assert load_device(path).copies == load_device("cpu").copies


def shipped_with(**changed: object) -> dict[str, object]:
    """What the file of the CPU holds, but for some sections."""
    return {**json.loads((DEVICES / "cpu.json").read_text()), **changed}


def test_a_calibration_says_which_numbers_were_not_measured() -> None:
    model = read_model(shipped_with(origins={"copies": "datasheet", "copies.read": "assumed", f"computes.{KEY}": "assumed"}), "f")
    assert [model.origin("copies", lane) for lane in ("h2d", "read")] == ["datasheet", "assumed"]
    assert model.origin("computes", KEY) == "assumed" and model.origin("computes", "*/*/*") == "measured"
    assert model.entry("conv.fprop/f32/native") == KEY and model.entry("nothing/f32/native") == "*/*/*"
    assert pickle.loads(pickle.dumps(model)) == model and model.origins
    older = shipped_with()
    del older["origins"]
    assert read_model(older, "f").origins == {} and read_model(older, "f").origin("copies", "read") == "measured"


@pytest.mark.parametrize(
    ("origins", "says"),
    [
        ([], "origins: expected an object"),
        ("assumed", "origins: expected an object"),
        ({"copies": "guessed"}, "origins.copies: expected one of measured"),
        ({"copies": None}, "origins.copies: expected one of measured"),
        ({"copies": ["assumed"]}, "origins.copies: expected one of measured"),
        ({"register": "assumed"}, "origins.register: expected a section"),
        ({"lanes": "assumed"}, "origins.lanes: expected a section"),
        ({"name": "assumed"}, "origins.name: expected a section"),
        ({"copies.disk": "assumed"}, "origins.copies.disk: expected a section"),
        ({"copies.": "assumed"}, "origins.copies.: expected a section"),
        ({"handoff_seconds.read": "assumed"}, "origins.handoff_seconds.read: expected a section"),
        ({"x" * 500: "assumed"}, f"origins.{'x' * 80}: expected a section"),
    ],
)
def test_origins_that_make_no_sense(origins: object, says: str) -> None:
    with pytest.raises(ValueError, match=f"^f: {re.escape(says)}"):
        read_model(shipped_with(origins=origins), "f")


def test_origins_are_kept_where_a_calibration_is_written(tmp_path: Path) -> None:
    given = shipped_with(origins={"copies.read": "assumed", "computes.*/*/*": "datasheet"})
    write_calibration(given, tmp_path / "own.json")
    assert load_device(tmp_path / "own.json").origins == given["origins"]

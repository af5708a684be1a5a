"""What a notebook shows of plans and reports: whole and harmless HTML, small whatever the number of steps."""

from __future__ import annotations

import dataclasses
import random
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest

import ooc
from ooc.model.calibration import load_device
from ooc.model.simulate import Timeline, simulate
from ooc.runtime.drawing import COLUMNS, draw, shares
from ooc.runtime.machine import Measured
from ooc.runtime.report import Part, Report
from ooc.runtime.timeline import Bars
from ooc.schedule.lowering import job_of, lower
from ooc.schedule.notebook import MOST_ROWS, page
from ooc.schedule.plan import Plan, WrittenReasons
from ooc.schedule.steps import LANES

MOST = 64 << 10  # bytes
LAYER = "conv.fprop n=4 c=8 h=64 w=64 k=8 r=3 s=3 pad=1 act=relu"
SCRIPT = "</td><script>alert(\"1\")</script><b onclick='x'>&amp;"
SVG = "{http://www.w3.org/2000/svg}"


def seen(shown: str) -> ET.Element:
    """The page as elements: it is whole, and holds no script and nothing from elsewhere."""
    assert len(shown.encode()) <= MOST
    root = ET.fromstring(shown)
    for element in root.iter():
        assert element.tag.removeprefix(SVG) in {"div", "table", "tr", "th", "td", "svg", "g", "path", "text", "title"}
        assert not [name for name in element.attrib if name.startswith("on") or name in ("href", "src")]
    return root


def facts(root: ET.Element) -> dict[str, str]:
    return {(row[0].text or ""): (row[1].text or "") for row in root.iter("tr")}


def a_plan(budget: str | None = "24 KiB", text: str = LAYER) -> Plan:
    return ooc.plan(text, budget, device="null", places={"x": "disk", "y": "disk"})


def a_report(plan: Plan, told: bool = True, copies: int = 1) -> Report:
    """Of runs with made-up times, never run."""
    todo, rng = lower(plan), random.Random(1)
    starts = sorted(rng.uniform(0, 100) for _ in todo.steps)
    ends = [s + rng.uniform(0, 0.2) for s in starts]
    return Report((Part(todo, Measured(starts, ends), Timeline(starts, ends, {}) if told else None),) * copies, 100.0, 1 << 20)


def test_a_plan_is_a_table() -> None:
    plan = a_plan()
    found = facts(seen(plan._repr_html_()))
    assert found["plan"] == str(plan.op) and f"{plan.tiles} tiles" in found["tile"]
    assert "\n".join(f"{name:<9} {value}" for name, value in found.items() if name != "why") in str(plan)


def test_a_report_is_a_table_and_its_lanes() -> None:
    report = a_report(a_plan())
    root = seen(report._repr_html_())
    found = facts(root)
    assert found.pop("report") == str(report.plans[0].op)
    assert "\n".join(f"{name:<9} {value}" for name, value in found.items()) == str(report)
    texts = [e.text for e in root.iter(f"{SVG}text")]
    assert [t for t in texts if t in LANES] == [lane for lane in LANES if lane in report.lane_seconds] * 2
    assert [t for t in texts if t and ":" in t] == [
        f"{what}: {report.elapsed_seconds:.3g} s" for what in ("measured", "predicted")
    ]


def test_a_run_without_prediction_has_no_lanes_of_it() -> None:
    assert "predicted: " not in a_report(a_plan(), told=False)._repr_html_()


def test_the_report_of_a_call_is_shown() -> None:
    with ooc.device("cpu", "64 KiB"):
        ooc.conv(np.ones((1, 8, 64, 64), np.float32), np.ones((8, 8, 3, 3), np.float32), padding=1)
    report = ooc.last_report()
    assert report is not None
    assert len(list(seen(report._repr_html_()).iter(f"{SVG}g"))) == len(report.lane_seconds)


@pytest.mark.parametrize("copies", [1, 5])
def test_it_stays_small_whatever_the_steps(copies: int) -> None:
    report = a_report(a_plan("64 KiB", LAYER.replace("h=64 w=64", "h=512 w=512")), copies=copies)
    assert len(report.parts[0].schedule.steps) > 1000
    seen(report._repr_html_())


def test_it_stays_small_whatever_was_written() -> None:
    reasons = WrittenReasons(1.0, "\n".join(["<" * 5000] * 5000), "&" * 5000)
    evil = dataclasses.replace(a_plan(), kernel=SCRIPT * 500, lane_seconds={"&" * 5000: 1.0}, calibration=SCRIPT, reasons=reasons)
    seen(evil._repr_html_())
    todo = lower(a_plan())
    part = Part(dataclasses.replace(todo, jobs=(job_of(evil),)), Measured(*[[0.1 * i for i in range(len(todo.steps))]] * 2))
    seen(Report((part,), 1.0, 1)._repr_html_())
    assert len(facts(seen(page([(f"{i}", "&" * 5000) for i in range(5000)])))) == MOST_ROWS


def test_the_largest_page_is_small() -> None:
    """Every column of every lane of another height, every character escaped."""
    edges = np.arange(COLUMNS) * 1.0
    bars = [Bars(lane, "load", edges, edges + np.where(edges % 2, 0.05, 0.35)) for lane in LANES]
    shown = draw({"measured": bars, "predicted": bars})
    assert max(d.count("V") for d in re.findall(r' d="([^"]*)"', shown)) > COLUMNS - 50
    seen(page([("report", "&" * 5000)] * 8, shown))


def test_what_is_not_ours_is_escaped() -> None:
    evil = dataclasses.replace(a_plan(), kernel=SCRIPT, calibration=SCRIPT)
    shown = evil._repr_html_()
    assert "<script" not in shown and "<b" not in shown
    assert SCRIPT in facts(seen(shown))["tile"] and SCRIPT in facts(seen(shown))["predicted"]


def test_a_run_that_took_no_time_is_a_table() -> None:
    todo = lower(a_plan())
    still = Report((Part(todo, Measured([0.0] * len(todo.steps), [0.0] * len(todo.steps))),), 0.0, 0)
    for report in (still, Report((), 0.0, 0)):
        assert "<svg" not in report._repr_html_() and facts(seen(report._repr_html_()))


def test_the_time_of_every_step_is_in_the_columns() -> None:
    rng = np.random.default_rng(0)
    for count in (1, 7, 3000):
        edges = np.sort(rng.uniform(0, 2, 2 * count))
        bars = Bars("h2d", "load", edges[::2], edges[1::2])
        found = shares(bars, 2.0)
        assert found.shape == (COLUMNS,) and found.min() >= 0 and found.max() <= 1 + 1e-9
        column = 2.0 / COLUMNS
        wanted = [np.clip(np.minimum(bars.ends, (i + 1) * column) - np.maximum(bars.starts, i * column), 0, None).sum() / column
                  for i in range(COLUMNS)]  # fmt: skip
        np.testing.assert_allclose(found, wanted, atol=1e-9)


def test_a_lane_that_always_works_is_one_block() -> None:
    plan = a_plan()
    todo = lower(plan)
    runs = [s for s in todo.steps if s.lane == "compute"]
    only = dataclasses.replace(todo, steps=tuple(runs))
    made = simulate([s._replace(after=()) for s in runs], load_device("h200"), True)
    shown = Report((Part(only, Measured(made.starts, made.ends)),), 1.0, 1)._repr_html_()
    assert re.findall(r'<path d="([^"]*)"', shown)[1] == f"M0 14H0V0H{COLUMNS}V14z"


def test_an_ordinary_call_does_without() -> None:
    program = (
        "import sys, numpy, ooc; ooc.conv(numpy.ones((1, 1, 8, 8)), numpy.ones((1, 1, 3, 3))); repr(ooc.last_report());"
        "assert not {'ooc.runtime.drawing', 'ooc.schedule.notebook', 'html'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", program], check=True)

"""Plans on disk: the plan that comes out is the one that would be made, whatever is in the folder."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from networks import seeds

import ooc
from ooc.networks import SGD, Adam, Graph, NetworkPlan, plan_store, planning

BATCH, BUDGET = 4, 5 << 20
PLAN = """
import sys, ooc
from ooc.networks import models, planning
if sys.argv[1] == "never": planning.automatic = None
plan = models.vgg(16, side=32, width=1 / 8).plan(batch=4, budget="9 MiB", device=ooc.device("null", calibration="p100"))
print(plan.to_json())
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where plans are kept."""
    monkeypatch.setenv("OOC_CACHE", str(tmp_path))
    monkeypatch.delenv("OOC_PLANS")
    return tmp_path / plan_store.FOLDER


def small(classes: int = 10) -> Graph:
    """A network that is planned in half a second."""
    graph = Graph("small")
    h = graph.input("x", (3, 32, 32))
    for k in (16, 16, 32):
        h = graph.pool(graph.conv(h, k, 3, padding=1, activation="relu"), 2)
    logits = graph.linear(graph.flatten(h), classes)
    graph.output(logits)
    graph.loss("cross_entropy", logits)
    return graph


def plan(graph: Graph | None = None, device: str = "p100", **asked: Any) -> NetworkPlan:
    asked = {"batch": BATCH, "budget": BUDGET, **asked}
    return (graph or small()).plan(device=ooc.device("null", calibration=device), **asked)


def never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans that are not kept cannot be made."""
    monkeypatch.setattr(planning, "automatic", None)
    monkeypatch.setattr(planning, "judged", None)


@pytest.mark.parametrize("policy", ["auto", "pooch", "stream"])
def test_a_plan_is_made_once(policy: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = plan(policy=policy)
    assert len(list(folder.iterdir())) == 1
    never(monkeypatch)
    again = plan(policy=policy)
    assert again.to_json() == made.to_json() and again.schedule.steps == made.schedule.steps


def test_another_process_has_it_too() -> None:
    def told(how: str) -> str:
        return subprocess.run([sys.executable, "-c", PLAN, how], capture_output=True, text=True, check=True).stdout

    assert told("make") == told("never")


ASKED: dict[str, Callable[[], NetworkPlan]] = {
    "budget": lambda: plan(budget=BUDGET + 1), "batch": lambda: plan(batch=BATCH + 1), "home": lambda: plan(home="disk"),
    "policy": lambda: plan(policy="pooch"), "device": lambda: plan(device="v100"), "pinned": lambda: plan(pinned="1 GiB"),
    "mode": lambda: plan(train=False, budget=BUDGET), "deterministic": lambda: plan(deterministic=True),
    "optimizer": lambda: plan(optimizer=SGD(0.1)), "another": lambda: plan(optimizer=Adam(0.1)),
    "graph": lambda: plan(small(classes=5)),
    "options": lambda: plan(policy="vdnn++", codec="zeros"),
    "wanted": lambda: plan(train="backward", gradients=["x"]), "lent": lambda: plan(train=False, lent=True, budget=BUDGET),
    "backend": lambda: small().plan(batch=BATCH, budget=BUDGET, device="cpu", home="disk"),
}  # fmt: skip


@pytest.mark.parametrize("what", ASKED)
def test_each_question_is_one_of_its_own(what: str, folder: Path) -> None:
    plan()
    ASKED[what]()
    assert len(list(folder.iterdir())) == 2
    ASKED[what]()
    assert len(list(folder.iterdir())) == 2


def test_the_rate_of_an_optimizer_changes_no_plan(folder: Path) -> None:
    plan(optimizer=SGD(0.1))
    plan(optimizer=SGD(lambda step: 0.1 / (1 + step)))
    assert len(list(folder.iterdir())) == 1


def test_other_sources_ask_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan()
    monkeypatch.setattr(plan_store, "_sources", lambda: "others")
    plan()
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize("seed", seeds(30, 2))
def test_files_that_are_damaged_change_nothing(seed: int, folder: Path) -> None:
    made, rng = plan(), random.Random(seed)
    (path,) = folder.iterdir()
    text = path.read_bytes()
    for _ in range(3):
        at = rng.randrange(len(text))
        damaged = rng.choice((
            text[:at], text[:at] + bytes([rng.randrange(256)]) + text[at + 1 :], b"", b"\n", b"{}", text + text,
            rng.randbytes(200), b"0" * 64 + text[64:], text.replace(b'"fates"', b'"fate"'),
        ))  # fmt: skip
        path.write_bytes(damaged)
        assert plan().to_json() == made.to_json()
        assert path.read_bytes() == text or damaged == text


def test_files_that_others_wrote_are_judged(folder: Path) -> None:
    """Of another question, of a proposal that does not fit, that is no proposal, or that takes other seconds."""
    made = plan()
    (path,) = folder.iterdir()
    other = plan(budget=BUDGET // 10)
    (theirs,) = set(folder.iterdir()) - {path}
    for odd in ({"fates": {}}, {"grids": ((0, (10**9, 1, 1)),)}, {"chosen": ((0, "never"),)}):
        plan_store._write(path, path.stem, replace(made, proposal=replace(made.proposal, **odd)))
        assert plan().to_json() == made.to_json()
    plan_store._write(path, path.stem, replace(made, proposal=other.proposal))
    assert plan().to_json() == made.to_json()
    path.write_bytes(theirs.read_bytes())
    assert plan().to_json() == made.to_json()
    path.unlink()
    path.mkdir()
    assert plan().to_json() == made.to_json()


def test_the_oldest_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_store, "MOST_FILES", 2)
    for i in range(4):
        plan(budget=BUDGET + i)
    assert len(list(folder.iterdir())) == 2


def test_a_folder_that_cannot_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write_text("a file")
    made = plan()
    monkeypatch.setenv("OOC_PLANS", "off")
    assert plan().to_json() == made.to_json() and folder.read_text() == "a file"

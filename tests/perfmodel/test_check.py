"""`perfmodel check`: its questions, its summary, and what it measures."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

import ooc
from ooc.ops.descriptor import parse
from ooc.schedule.place import Place
from perfmodel.calibrate.trial import question
from perfmodel.report import check


def test_spearman_by_hand() -> None:
    assert check.spearman([1, 2, 3], [10, 20, 30]) == pytest.approx(1)
    assert check.spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert check.spearman([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(0.8)
    assert check.spearman([1, 1, 2], [1, 2, 3]) == pytest.approx(math.sqrt(0.75))
    assert check.spearman([1, 1], [1, 2]) == 0


def rows(*errors: float, **more: float) -> list[dict[str, Any]]:
    return [{"error": e, "unsteady": [], **more} for e in errors]


def test_the_summary_says_whether_the_aims_are_met() -> None:
    good = check.summary(rows(*[0.1] * 9, -0.9, rank=0.9, regret=0.02, over_greedy=-0.1))
    assert good.good and (good.median, good.ninth, good.worst) == (0.1, 0.1, 0.9) and str(good).endswith("the aims are met")
    assert not check.summary(rows(*[0.1] * 8, 0.31, 0.31, rank=0.9, regret=0, over_greedy=0)).good
    assert not check.summary(rows(0.16, 0.16, rank=0.9, regret=0, over_greedy=0)).good
    assert not check.summary(rows(0.1, rank=0.79, regret=0, over_greedy=0)).good
    assert not check.summary(rows(0.1)).good  # nothing was ranked


def test_the_summary_says_how_steady_the_machine_was() -> None:
    first, second = ({**row, "unsteady": apart} for row, apart in zip(rows(0.1, 0.1), ([-0.3, 0.1, 0.1, 0.1, 0.2], [0.0] * 5)))
    told = check.summary([first, second])
    assert (told.unsteady, told.unsteady_ninth) == (pytest.approx(0.05), 0.2)
    assert math.isnan(check.summary(rows(0.1)).unsteady)  # each plan ran but once
    assert check.apart([2.0, 1.0, 4.0]) == pytest.approx([2 / 2.5 - 1, 1 / 3 - 1, 4 / 1.5 - 1])
    assert check.apart([2.0]) == []


def test_questions_are_fresh_and_repeatable() -> None:
    one, same, other = ([question(rng) for _ in range(12)] for rng in map(random.Random, (1, 1, 2)))
    assert one == same and one != other
    assert {Place.DISK in q.places.values() for q in one} == {True, False}
    assert all(parse(str(q.op)) == q.op for q in one)


def test_questions_of_problems_are_all_or_some_of_them() -> None:
    ops = [parse(f"conv.fprop n=2 c=8 h=400 w=400 k={k} r=3 s=3") for k in (8, 16)]
    every = check.questions_of(ops, None, 0)
    sizes = [sum(o.nbytes for o in q.op.operands) for q in every]
    assert [size // q.budget for size, q in zip(sizes, every)] == [2, 5, 10, 20, 50] * 2
    some = check.questions_of(ops, 3, 1)
    assert len(some) == 3 and all(q in every for q in some) and some != check.questions_of(ops, 3, 2)


def test_what_cannot_win_runs_no_more() -> None:
    asked = question(random.Random(3))
    race = check._Race(asked, ooc.device("cpu"), [], False, [[0.1, 0.5], [0.3], [0.1, 0.12], [0.04], [0.9, 1.2]])
    assert [race.tells(seen) for seen in race.seconds] == [True, False, False, True, False]
    race.seconds[0] = [1.5, 0.6]
    assert not race.tells(race.seconds[0])


def test_check_measures_what_it_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from perfmodel.__main__ import main

    out = tmp_path / "check.jsonl"
    command = ["check", "--problems", "2", "--ranked", "1", "--plans", "3", "--seed", "5", "--out", str(out)]
    assert main(command) in (0, 1)
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said[: check.VISITS]] == ["visit"] * check.VISITS and len(said) == check.VISITS + 5
    assert said[-3].startswith("the machine: a run of a plan is ")
    assert said[-2].startswith("simulator: ") and said[-1].startswith("check: error median ")

    head, told, *found = [json.loads(line) for line in out.read_text().splitlines()]
    assert "commit" in head["system"] and told["seed"] == 5 and len(found) == 2
    for row in found:
        assert row["error"] == pytest.approx(row["predicted_seconds"] / row["measured_seconds"] - 1)
    ranked = [row for row in found if "rank" in row]
    assert len(ranked) == 1 and ranked[0]["measured_seconds"] == ranked[0]["all_measured"][0]
    assert ranked[0]["regret"] == pytest.approx(ranked[0]["measured_seconds"] / min(ranked[0]["all_measured"]) - 1)

"""auto beside every policy, in simulation: the networks of the papers on described devices under shrinking budgets."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import ooc
from ooc.errors import BudgetError, UnsupportedError
from ooc.networks import POLICIES
from ooc.networks.judge import Judge
from ooc.networks.models import named
from ooc.networks.planning import NetworkRequest, automatic, judge_of, judged
from ooc.networks.policies.base import Policy
from ooc.networks.proposal import Proposal
from ooc.networks.tensors import Mode

Row = dict[str, Any]

# Networks and samples of a step.
NETWORKS = {
    "alexnet": 256, "overfeat": 128, "vgg16": 128, "vgg19": 64, "googlenet": 128, "resnet18": 128, "resnet50": 64,
    "resnet152": 32, "wrn28-10": 128, "unet3d": 2,
}  # fmt: skip
DEVICES = ("k40", "titanx", "p100", "v100", "a100", "h200", "cpu")
ALONE = {"resnet1517": (16, "titanx")}  # network: its samples, and the one device that it is planned for
SHARES = (2, 4, 8)  # keep's peak by budget
SMALLEST = "smallest"  # the least budget that any policy has a plan for, but those that stream
TIGHT = 4  # keep's peak by a budget that is tight, if neither of IN_CORE has a plan
IN_CORE = ("keep", "smartpool", "modnn")
FASTER = 0.1  # the aim: by so much faster than the best policy, in half of the tight cases


def compare(networks: Sequence[str], devices: Sequence[str]) -> Iterator[Row]:
    """A row for every network, device and budget: seconds as predicted of each policy that has a plan, and of auto."""
    for network in networks or (*NETWORKS, *ALONE):
        batch, only = ALONE.get(network, (NETWORKS.get(network, 32), None))
        for device in devices or ((only,) if only else DEVICES):
            judge = judge_of(named(network), batch, None, NetworkRequest(Mode.STEP), ooc.device("null", calibration=device))
            keep = judge.trial(Proposal("keep"))
            kept = {"keep_seconds": judge.seconds(keep.proposal), "keep_bytes": keep.bytes}
            budgets = {str(share): keep.bytes // share for share in SHARES} | {SMALLEST: _smallest(judge)}
            for share, budget in budgets.items():
                about = {"network": network, "batch": batch, "device": device, "share": share, "budget": budget}
                yield {**about, **kept, **beside(judge.within(budget))}


def _policies() -> list[Policy]:
    """All but those that stream, whose tiles get ever more and smaller: auto asks them where no bound rules them out."""
    return [p for p in POLICIES.values() if not p.streams]


def _smallest(judge: Judge) -> int:
    """The least budget of any of them."""
    needs = []
    for policy in _policies():
        with suppress(UnsupportedError):
            needs.append(judge.needs(policy.least(judge)))
    return min(needs)


def beside(judge: Judge) -> Row:
    """Of every policy the predicted seconds, None where it has no plan, beside auto."""
    auto = automatic(judge)
    seconds: dict[str, float | None] = {}
    for policy in _policies():
        try:
            seconds[policy.name] = judged(judge, policy, {}).predicted_seconds
        except (BudgetError, UnsupportedError):
            seconds[policy.name] = None
    return {
        "auto_seconds": auto.predicted_seconds, "auto_peak": auto.peaks["device"], "seconds": seconds, "why": auto.why,
        "as": auto.source, "moved": sum(auto.lane_bytes.get(lane, 0) for lane in ("h2d", "d2h")), "binds": auto.binds,
    }  # fmt: skip


def line(row: Row) -> str:
    """A row as a line of text."""
    seconds = {p: s for p, s in row["seconds"].items() if s is not None}
    best = min(seconds, key=seconds.__getitem__, default="")
    beside = f"best policy {best} {seconds[best]:.4g} s ({seconds[best] / row['auto_seconds'] - 1:+.1%})" if best else "no policy"
    auto = f"auto {row['auto_seconds']:.4g} s ({row['auto_seconds'] / row['keep_seconds'] - 1:+.1%} over keep)"
    return f"{row['network']:10} {row['device']:7} 1/{row['share']:8} {auto}; {beside}"


def summary(rows: Sequence[Row]) -> str:
    """How often, and by how much, auto beats the best of the policies."""
    gains, tight, worse, new_plans = [], [], 0, 0
    for row in rows:
        seconds = [s for s in row["seconds"].values() if s is not None]
        new_plans += row["as"] == "auto"
        if not seconds:
            continue
        gain = min(seconds) / row["auto_seconds"] - 1
        gains.append(gain)
        worse += gain < -1e-9
        less = row["share"] == SMALLEST or int(row["share"]) >= TIGHT
        if less and all(row["seconds"][p] is None for p in IN_CORE):
            tight.append(gain)
    text = [f"{len(rows)} cases; slower than a policy in {worse}; auto's plan is no policy's in {new_plans}"]
    if gains:
        text.append(f"faster than the best policy by {statistics.median(gains):.1%} (median), {max(gains):.0%} at most")
    if tight:
        share = sum(g >= FASTER for g in tight) / len(tight)
        text.append(
            f"{len(tight)} tight cases (a quarter of keep or less, no {', '.join(IN_CORE)}): faster by {FASTER:.0%} or more in "
            f"{share:.0%} of them, by {statistics.median(tight):.0%} in the median"
        )
    return "\n".join(text)

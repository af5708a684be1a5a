"""A picture of a network's plan: memory over time, and below it when every activation is on the device."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from ooc.errors import ArgumentError, UnsupportedError
from ooc.networks import NetworkPlan
from ooc.networks.proposal import Fate
from ooc.networks.usage import load
from ooc.schedule.budget import show_bytes

COLOURS = {"keep": "#4878a8", "offload": "#e08a3c", "recompute": "#5a9e5a"}
AWAY = {"offload": "at home", "recompute": "let go of, to be made again"}
KINDS = ("png", "svg")
NAMED = 70  # activations up to which each has its name beside it

Stays = dict[str, list[tuple[float, float]]]  # when each tensor is on the device


def stays(plan: NetworkPlan) -> Stays:
    """When the activations that the backward pass needs are on the device; of calls that are streamed: in use there."""
    times: Stays = {t: [] for t in plan.network.kept}
    spans: dict[int, tuple[float, float]] = {}  # of items
    for at, start, end in zip(plan.schedule.items, plan.timeline.starts, plan.timeline.ends, strict=True):
        first, last = spans.get(at, (start, end))
        spans[at] = min(first, start), max(last, end)
    lives: dict[Any, tuple[float, float]] = {}
    for i, item in enumerate(plan.schedule.program.items):
        for instance in (*item.reads, *item.makes):
            # Of what is cut into tiles nothing is there but in use.
            key = (instance, i if plan.proposal.fate(instance.tensor) is Fate.STREAM else -1)
            start, end = spans[i]
            first, last = lives.get(key, (start, end))
            lives[key] = min(first, start), max(last, end)
    for (instance, _), (start, end) in lives.items():
        if instance.tensor in times:
            times[instance.tensor].append((start, end))
    return times


# ---- drawing


def draw(plan: NetworkPlan, path: str | Path) -> None:
    """Write the picture, a PNG or by its name an SVG. Raises UnsupportedError without matplotlib, ArgumentError for another kind
    of file, OSError where it cannot be written."""
    kind = Path(path).suffix.lower().lstrip(".") or KINDS[0]
    if kind not in KINDS:
        raise ArgumentError(f"--plot {path}: expected a name that ends in {' or '.join(f'.{k}' for k in KINDS)}")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UnsupportedError("the picture needs matplotlib; pip install matplotlib") from None
    names = list(plan.network.kept)
    rows = min(9.0, max(0.8, 0.16 * len(names)))
    figure = Figure(figsize=(13, 4.2 + rows), dpi=110, layout="constrained")
    memory, fates = figure.subplots(2, 1, sharex=True, height_ratios=(3.0, rows))
    _memory(memory, plan)
    _fates(fates, plan, names)
    figure.suptitle(f"{plan.graph.name}, batch {plan.batch}, {plan.policy}: {plan.predicted_seconds:.4g} s predicted",
                    fontsize=12, fontweight="bold", x=0.01, ha="left")  # fmt: skip
    figure.savefig(path, format=kind)


def _memory(axis: Any, plan: NetworkPlan) -> None:
    used = load(plan)
    unit = 1 << 30 if used.nbytes.max(initial=0) >= 1 << 30 else 1 << 20
    axis.fill_between(used.times, used.nbytes / unit, step="post", color="#b8cbe0", linewidth=0)
    axis.step(used.times, used.nbytes / unit, where="post", color=COLOURS["keep"], linewidth=1)
    for nbytes, what, colour in ((plan.budget, "budget", "#b03030"), (plan.peaks["device"], "laid out", "#888888")):
        if nbytes is not None and nbytes < 8 * max(1, used.nbytes.max(initial=0)):
            axis.axhline(nbytes / unit, color=colour, linewidth=1, linestyle="--", label=f"{what}: {show_bytes(nbytes)}")
    axis.set_ylabel(f"{'GiB' if unit == 1 << 30 else 'MiB'} of the device in use")
    axis.set_ylim(bottom=0)
    axis.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.0, frameon=False, fontsize=9, ncols=2)
    _plain(axis)


def _fates(axis: Any, plan: NetworkPlan, names: list[str]) -> None:
    from matplotlib.patches import Patch

    times = stays(plan)
    for row, name in enumerate(names):
        colour = COLOURS[plan.fates[name]]
        spans = sorted(times[name])
        axis.broken_barh([(a, b - a) for a, b in spans], (row - 0.4, 0.8), color=colour, linewidth=0)
        gaps = [(a, b - a) for (_, a), (b, _) in pairwise(spans) if b > a]
        axis.broken_barh(gaps, (row - 0.08, 0.16), color=colour, alpha=0.35, linewidth=0)
    named = range(len(names)) if len(names) <= NAMED else range(0, len(names), -(-len(names) // NAMED))
    axis.set_yticks([*named], [names[i] for i in named], fontsize=7)
    axis.set(ylim=(len(names) - 0.4, -0.6), xlim=(0, plan.predicted_seconds or 1.0), xlabel="seconds, as predicted")
    present = [how for how in COLOURS if how in plan.fates.values()]
    patches = [Patch(color=COLOURS[how], label=f"{how}; thin: {AWAY[how]}" if how in AWAY else how) for how in present]
    axis.figure.legend(handles=patches, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    _plain(axis)


def _plain(axis: Any) -> None:
    axis.grid(axis="x", color="#dddddd", linewidth=0.6)
    axis.set_axisbelow(True)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)

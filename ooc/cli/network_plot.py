"""A picture of a network's plan: memory over time, and below it when every activation is on the device."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ooc.errors import ArgumentError
from ooc.networks import NetworkPlan
from ooc.networks.proposal import Fate
from ooc.networks.usage import load
from ooc.runtime.pictures import Look, clean, draw_rows, legend, new_figure
from ooc.runtime.timeline import Bars, spans
from ooc.schedule.budget import show_bytes

COLOURS = {"keep": "#4878a8", "offload": "#e08a3c", "recompute": "#5a9e5a"}
MEANINGS = {"offload": "offload; thin: at home", "recompute": "recompute; thin: let go of, to be made again"}
AWAY = " away"  # behind a fate: what is between two stays
LOOKS = {how: Look((colour,), 0.8) for how, colour in COLOURS.items()}
LOOKS |= {how + AWAY: Look((colour,), 0.16, 0.35) for how, colour in COLOURS.items()}
KINDS = ("png", "svg")
NAMED = 70  # activations up to which each has its name beside it

Stays = dict[str, list[tuple[float, float]]]  # when each tensor is on the device


def stays(plan: NetworkPlan) -> Stays:
    """When the activations that the backward pass needs are on the device; of calls that are streamed: in use there."""
    running = spans(zip(plan.schedule.items, plan.timeline.starts, plan.timeline.ends, strict=True))  # items
    uses = (
        # Of what is cut into tiles nothing is there but in use.
        ((instance, i if plan.proposal.fate(instance.tensor) is Fate.STREAM else -1), *running[i])
        for i, item in enumerate(plan.schedule.program.items)
        for instance in (*item.reads, *item.makes)
    )
    times: Stays = {name: [] for name in plan.network.kept}
    for (instance, _), span in spans(uses).items():
        if instance.tensor in times:
            times[instance.tensor].append(span)
    return {name: sorted(there) for name, there in times.items()}


def rows(plan: NetworkPlan) -> Iterator[Bars]:
    """A row for each activation: when it is there, and between that, when it is away."""
    for name, there in stays(plan).items():
        how = plan.fates[name]
        yield Bars(name, how, *np.array(there).reshape(-1, 2).T)
        away = [(end, start) for (_, end), (start, _) in pairwise(there) if start > end]
        if away:
            yield Bars(name, how + AWAY, *np.array(away).T)


# ---- drawing


def draw(plan: NetworkPlan, path: str | Path) -> None:
    """Write the picture, a PNG or by its name an SVG. Raises UnsupportedError without matplotlib, ArgumentError for another kind
    of file, OSError where it cannot be written."""
    kind = Path(path).suffix.lower().lstrip(".") or KINDS[0]
    if kind not in KINDS:
        raise ArgumentError(f"--plot {path}: expected a name that ends in {' or '.join(f'.{k}' for k in KINDS)}")
    height = min(9.0, max(0.8, 0.16 * len(plan.network.kept)))
    title = f"{plan.graph.name}, batch {plan.batch}, {plan.policy}: {plan.predicted_seconds:.4g} s predicted"
    figure = new_figure("the picture needs", 4.2 + height, title)
    memory, fates = figure.subplots(2, 1, sharex=True, height_ratios=(3.0, height))
    _memory(memory, plan)
    _fates(fates, plan)
    legend(figure, {COLOURS[how]: MEANINGS.get(how, how) for how in COLOURS if how in plan.fates.values()})
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
    clean(axis, "x")


def _fates(axis: Any, plan: NetworkPlan) -> None:
    names = list(plan.network.kept)
    draw_rows(axis, [*rows(plan)], names, LOOKS, 0.0, plan.predicted_seconds or 1.0)
    axis.set_xlabel("seconds, as predicted")
    named = range(0, len(names), max(1, -(-len(names) // NAMED)))
    axis.set_yticks([*named], [names[i] for i in named], fontsize=7)

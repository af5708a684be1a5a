"""VGG16 as a whole network: planned over layers and inside them, run, trained, compared by every policy."""

from __future__ import annotations

import argparse
import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from training import pictures

import ooc
from ooc.cli.network import target
from ooc.networks.models import vgg
from ooc.networks.policies import POLICIES
from ooc.runtime.resident import ResidentMemory
from ooc.schedule.budget import parse_bytes, show_bytes

DRAWN = Path(__file__).parents[1] / "docs" / "vgg16_policies.png"  # by --batch 128 --budget 4GiB --backend p100 --compare all
SHARES = (1, 0.9, 0.8, 0.7, 0.65, 0.6, 1 / 2, 1 / 3, 1 / 4, 1 / 6, 1 / 8, 1 / 12, 1 / 16)  # of keep's peak: points of the picture
PATIENCE = 120.0  # seconds: plans that are predicted longer for a step are not measured
STREAMED = 4 << 20  # bytes: under a smaller budget what streams everything has too many tiles to be compared
ACROSS = 4  # panels of the picture, side by side
OWN, STRONG, PALE = "#0072b2", "#b04a00", "#f7c9a0"  # of a policy's curve, of auto's name and of its curve beneath
HELD_OUT = 5  # one picture in so many is not trained on
INTERVAL = 1.0  # seconds between two reports of progress


def run(args: argparse.Namespace) -> int:
    """What the arguments ask for; the exit status."""
    device = ooc.device("auto") if args.backend == "auto" else target(args.backend)
    if args.compare:
        return compare(args, device)
    return train(args, device) if args.train else step(args, device)


def planned(args: argparse.Namespace, device: ooc.Device, policy: str, budget: int | str | None, **more: Any) -> ooc.NetworkPlan:
    """A plan of a training step."""
    graph = vgg(16, side=args.images, classes=args.classes, width=args.width)
    return graph.plan(batch=args.batch, budget=budget, policy=policy, device=device, home=args.home, **more)


# ---- one step


def step(args: argparse.Namespace, device: ooc.Device) -> int:
    """One step on crops of a photograph: the plan, its progress, what it took."""
    plan = planned(args, device, args.policy, args.budget)
    print(plan, flush=True)
    if args.trace:
        plan.trace(args.trace)
        print(f"{'trace':<9} {args.trace}: every step as predicted, for ui.perfetto.dev")
    if device.backend.name == "null":
        print(f"{'step':<9} none: the null backend knows sizes only, nothing was computed")
        return 0
    x, labels = pictures(args.batch, args.images, args.classes, args.seed)
    memory = ResidentMemory()
    with memory, plan.session(seed=args.seed) as session, _reported(session):
        begin = time.perf_counter()
        loss = session.step(x, labels)
        seconds = time.perf_counter() - begin
    each = f"{seconds / args.batch:.4f} s per image"
    print(f"{'step':<9} {seconds:.2f} s measured, {plan.predicted_seconds:.2f} s predicted; {each}")
    print(f"{'loss':<9} {loss:.4f}")
    grown = show_bytes(memory.grown_bytes)
    print(f"{'peak':<9} {show_bytes(plan.peaks['device'])} of the device planned; the process grew by {grown}")
    return 0 if np.isfinite(loss) else 1


@contextmanager
def _reported(session: Any) -> Iterator[None]:
    """Says now and then how far the session's step is."""
    done = threading.Event()

    def report() -> None:
        while not done.wait(INTERVAL):
            print(f"\rprogress  {session.progress:4.0%}", end="", flush=True)
        print("\r" + " " * 16 + "\r", end="", flush=True)

    reporter = threading.Thread(target=report, daemon=True)
    reporter.start()
    try:
        yield
    finally:
        done.set()
        reporter.join()


# ---- training


def digits(side: int) -> tuple[Any, Any]:
    """The pictures of handwritten digits that scikit-learn ships, 1,797 of 8 x 8, resized, and what they show."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ooc.UnsupportedError("--train: the digits are scikit-learn's; pip install scikit-learn") from None
    found = load_digits()
    small = ((found.images - 8) / 8).astype(np.float32)
    with ooc.device("cpu"):
        x = ooc.upsample(np.repeat(small[:, None], 3, axis=1), side, "linear")
    return x, found.target


def train(args: argparse.Namespace, device: ooc.Device) -> int:
    """Epochs over the digits; the exit status says whether the loss fell."""
    x, labels = digits(args.images)
    draw = np.random.default_rng(args.seed)
    order = draw.permutation(len(x))
    held, learned = np.split(order, [len(order) // HELD_OUT])
    plan = planned(args, device, args.policy, args.budget, optimizer=ooc.Adam(args.rate))
    print(plan, flush=True)
    losses: list[float] = []
    with plan.session(seed=args.seed) as session:
        for epoch in range(args.epochs):
            begin, own = time.perf_counter(), []
            for at in np.array_split(draw.permutation(learned), max(1, len(learned) // args.batch)):
                chosen = np.resize(at, args.batch)  # every step has as many
                own.append(session.step(x[chosen], labels[chosen]))
            losses.append(float(np.mean(own)))
            right = _right(session, x[held], labels[held], args.batch)
            each = (time.perf_counter() - begin) / len(own)
            print(
                f"{'epoch':<9} {epoch + 1}: loss {losses[-1]:.4f}, {right:.1%} of {len(held)} held-out pictures right, "
                f"{each:.3f} s per step",
                flush=True,
            )
    return 0 if losses[-1] < losses[0] or len(losses) == 1 else 1


def _right(session: Any, x: Any, labels: Any, batch: int) -> float:
    """The share of pictures whose class is found."""
    right = 0
    for lo in range(0, len(x), batch):
        some = np.resize(np.arange(lo, min(len(x), lo + batch)), batch)
        found = session.forward(x[some]).argmax(1)
        count = min(len(x), lo + batch) - lo
        right += int((found == labels[some])[:count].sum())
    return right / len(x)


# ---- all policies


def compare(args: argparse.Namespace, device: ooc.Device) -> int:
    """A table of all policies under the budget, simulated and where time allows measured, and a picture of more budgets."""
    names = [*POLICIES, "auto"] if args.compare == "all" else args.compare.split(",")
    unknown = [name for name in names if name not in (*POLICIES, "auto")]
    if unknown:
        raise ooc.ShapeError(f"--compare: no policy {', '.join(unknown)}; expected all, or some of {', '.join(POLICIES)}, auto")
    keep = planned(args, device, "keep", None)
    print(f"{'vgg16':<13} batch {args.batch}, {args.images} x {args.images}: {show_bytes(keep.peaks['device'])} where all stays, "
          f"{keep.predicted_seconds:.3g} s predicted; budget {args.budget}")  # fmt: skip
    print(f"{'policy':<13} {'peak':>10} {'moved':>10} {'predicted':>11} {'measured':>11}", flush=True)
    data = None if device.backend.name == "null" else pictures(args.batch, args.images, args.classes, args.seed)
    for name in names:
        print(_row(args, device, name, data), flush=True)
    title = f"VGG16, batch {args.batch}, {args.images} x {args.images}, {device.model.name}; grey: the other policies"
    draw(_curves(args, device, names, keep.peaks["device"]), keep.predicted_seconds, title, Path(args.plot or DRAWN))
    print(f"{'drawn':<13} {args.plot or DRAWN}")
    return 0


def _row(args: argparse.Namespace, device: ooc.Device, policy: str, data: Any) -> str:
    try:
        plan = planned(args, device, policy, args.budget)
    except (ooc.BudgetError, ooc.UnsupportedError) as error:
        least = getattr(error, "smallest_bytes", None)
        return f"{policy:<13} {f'needs {show_bytes(least)}' if least else 'cannot serve this network'}"
    seconds = plan.predicted_seconds
    measured = "-"
    if data is not None and seconds <= PATIENCE:
        with plan.session(seed=args.seed) as session:
            begin = time.perf_counter()
            session.step(*data)
            measured = f"{time.perf_counter() - begin:.3g} s"
    moved = show_bytes(sum(plan.lane_bytes.values()))
    return f"{policy:<13} {show_bytes(plan.peaks['device']):>10} {moved:>10} {f'{seconds:.3g} s':>11} {measured:>11}"


def _curves(
    args: argparse.Namespace, device: ooc.Device, names: Sequence[str], most: int
) -> dict[str, list[tuple[int, float]]]:  # fmt: skip
    """Predicted seconds by budget, of every policy."""
    given = parse_bytes(args.budget, device.backend.total_bytes) or most
    budgets = sorted({int(most * share) for share in SHARES} | {given})
    found: dict[str, list[tuple[int, float]]] = {}
    for name in names:
        for budget in budgets:
            try:
                if name != "stream" or budget >= STREAMED:
                    plan = planned(args, device, name, budget)
                    found.setdefault(name, []).append((budget, plan.predicted_seconds))
            except (ooc.BudgetError, ooc.UnsupportedError):
                continue
    return found


def draw(curves: dict[str, list[tuple[int, float]]], kept: float, title: str, file: Path) -> None:
    """Seconds against budget, a panel per policy. Raises UnsupportedError without Matplotlib."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import LogLocator, NullFormatter
    except ImportError:
        raise ooc.UnsupportedError("--compare: the picture is Matplotlib's; pip install matplotlib") from None
    columns = min(ACROSS, max(1, len(curves)))
    rows = max(1, -(-len(curves) // columns))
    figure = Figure(figsize=(8, 1.3 + 1.5 * rows), layout="constrained")
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    panels = list(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat)
    panels[0].set_xscale("log", base=2)
    panels[0].set_yscale("log")
    for axis in (panels[0].xaxis, panels[0].yaxis):
        axis.set_minor_formatter(NullFormatter())
        axis.set_major_formatter("{x:.3g}")
    panels[0].yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    budgets, seconds = zip((0, kept), *itertools.chain.from_iterable(curves.values()), strict=True)
    unit, size = ("GiB", 2**30) if max(budgets) >= 2**30 else ("MiB", 2**20)
    panels[0].set_ylim(kept / 1.5, 1.2 * max(seconds))
    lines = {name: ([budget / size for budget, _ in points], [s for _, s in points]) for name, points in curves.items()}
    for axes, name in zip(panels, lines, strict=False):
        _panel(axes, lines, name)
        axes.axhline(kept, color="black", linewidth=0.8, linestyle=":", zorder=1)
        axes.tick_params(labelsize=9)
    panels[0].annotate("everything in memory", (0.03, kept), xycoords=("axes fraction", "data"), xytext=(0, -3),
                       textcoords="offset points", va="top", fontsize=8.5)  # fmt: skip
    for axes in panels[len(curves) :]:  # the column's budgets stay
        axes.spines[["top", "left", "right"]].set_visible(False)
        axes.tick_params(labelsize=9, left=False, which="both")
    figure.supxlabel(f"budget, {unit}", fontsize=10)
    figure.supylabel("predicted seconds of a training step", fontsize=10)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=100)


def _panel(axes: Any, lines: dict[str, tuple[list[float], list[float]]], name: str) -> None:
    """One policy's curve over auto's, which is wide and pale, so that both are seen where they are one; the others in grey."""
    for other in lines.keys() - {name, "auto"}:
        axes.plot(*lines[other], color="#d9d9d9", linewidth=0.8, zorder=0)
    if "auto" in lines:
        axes.plot(*lines["auto"], color=PALE, linewidth=5, solid_capstyle="round", zorder=2)
    if name == "auto":
        axes.plot(*lines[name], color=STRONG, marker="o", markersize=3, linewidth=1.6, zorder=3)
    else:
        axes.plot(*lines[name], color=OWN, marker="o", markersize=3, linewidth=1.6, zorder=3)
        if "auto" in lines:
            start = lines["auto"][0][0], lines["auto"][1][0]
            axes.annotate("auto", start, (0, 4), textcoords="offset points", color=STRONG, fontsize=9)
    axes.set_title(name, fontsize=10.5, fontweight="bold", loc="left", color=STRONG if name == "auto" else OWN, pad=3)
    axes.grid(color="#eeeeee", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)

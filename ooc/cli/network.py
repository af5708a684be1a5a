"""`ooc network`: whole networks planned, by one policy or by all of them side by side; on request drawn, and measured here."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from numpy.random import Generator, default_rng

from ooc.apply import page
from ooc.console import count
from ooc.errors import ArgumentError, BudgetError, UnsupportedError
from ooc.ir.op import numpy_dtype
from ooc.model.calibration import closest
from ooc.networks import POLICIES, Graph, NetworkPlan, models
from ooc.networks.calls import Network
from ooc.networks.layers.loss import PlacedLoss, losses_of
from ooc.networks.tensors import Mode
from ooc.networks.where import HOMES
from ooc.runtime.context import current_device, device
from ooc.runtime.device import Device
from ooc.runtime.target import target, targets
from ooc.schedule.budget import parse_bytes, show_bytes
from ooc.schedule.steps import LANES

NAMES = (*POLICIES, "auto")
SIZES = ("side", "classes", "width", "dropout")  # options that change a network
ENDLESS = 1 << 60  # bytes: the budget of what all plans are compared with
TIMED = 3  # steps that are measured, after one that is not
COLUMNS = (
    ("policy", 12),
    ("fits", 14),
    ("device", 9),
    ("pinned", 9),
    ("moved", 9),
    ("seconds", 9),
    ("overhead", 8),
    ("bound", 9),
)
MEASURED = (("here", 9), ("measured", 9))


def arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `ooc network`."""
    names = "; ".join(models.NAMES.values())
    parser.add_argument("network", metavar="NAME|FILE", help=f"{names}; or a .json file that Graph.to_json wrote")
    parser.add_argument("--batch", type=count, required=True, metavar="N", help="samples of a step")
    parser.add_argument("--budget", metavar="B", help='device memory: bytes, "256 MiB", "5 GB", "80%%" or 0.8; default: all that '
                        "the device has; of a processor: no limit")  # fmt: skip
    parser.add_argument("--policy", default="all", metavar="NAME", help=f"all (default) or one of {', '.join(NAMES)}")
    parser.add_argument(
        "--device", metavar="NAME|FILE", help=f"{targets()}; default: as fast as this machine's, with memory of its own"
    )
    parser.add_argument("--tf32", action="store_true", help="f32 convolutions of a GPU may round their factors to TF32")
    parser.add_argument("--home", metavar="PLACE", help=f"where what leaves the device goes: {', '.join(HOMES)}; default: "
                        "pinned, of a processor disk")  # fmt: skip
    parser.add_argument("--pinned", metavar="B", help="limit of pinned memory, as --budget; default: none")
    parser.add_argument("--side", type=count, metavar="S", help="pixels per side of the input; default: the network's own")
    parser.add_argument("--classes", type=count, metavar="C", help="classes; default: the network's own")
    parser.add_argument("--width", type=float, metavar="W", help="channels of every layer, times W; default 1")
    parser.add_argument("--dropout", type=float, metavar="R", help="rate of dropout; default: the network's own")
    parser.add_argument("--inference", action="store_true", help="outputs alone, without a backward pass")
    parser.add_argument("--deterministic", action="store_true", help="sums in an order that does not depend on the plan")
    parser.add_argument("--table", action="store_true", help="print the layers first")
    parser.add_argument("--json", action="store_true", help="a line of JSON per policy")
    parser.add_argument("--report", metavar="FILE", help="write a page of HTML about one policy's plan here: time, memory")
    parser.add_argument(
        "--plot", metavar="FILE", help="draw memory over time and every activation's fate, of one policy: .png, .svg"
    )
    parser.add_argument(
        "--run", action="store_true", help=f"also run it on this machine's processor: the median of {TIMED} steps"
    )


def _parted(line: str) -> tuple[str, str, str]:
    return line.partition(" ")


def run(args: argparse.Namespace) -> int:
    """Do what the arguments say."""
    for option in ("plot", "report"):
        if getattr(args, option) and args.policy == "all":
            raise ArgumentError(f"--{option}: shows one plan; name its policy with --policy")
    if args.report:
        page.check(args.report)
    setup = PlansWanted.of(args)
    if args.table and not args.json:
        print(setup.graph.table(), end="\n\n")
    if args.policy == "all":
        _every(setup, args)
    else:
        _one(setup, args)
    return 0


# ---- what is asked


def graph_of(name: str, **sizes: Any) -> Graph:
    """The network of a name or a file; sizes that are None are the network's own. Raises ArgumentError."""
    options = {key: value for key, value in sizes.items() if value is not None}
    if not name.endswith(".json"):
        return models.named(name, **options)
    if options:
        raise ArgumentError(f"--{next(iter(options))}: {name} has sizes of its own; build the graph anew with others")
    return Graph.from_json(Path(name))


class PlansWanted(NamedTuple):
    """What is planned, policy by policy.

    Fields:
        graph: the network.
        device: where.
        budget: bytes; None: no limit.
        options: of `Graph.plan`, but for the policy, the device and the budget.
    """

    graph: Graph
    device: Device
    budget: int | None
    options: dict[str, Any]

    @classmethod
    def of(cls, args: argparse.Namespace) -> PlansWanted:
        """What the arguments ask for. Raises ShapeError, BudgetError."""
        closest_one = closest(current_device().backend.processor)
        where = target(args.device, args.tf32) if args.device else device("null", calibration=closest_one, tf32=args.tf32)
        backend = where.backend
        limit = parse_bytes(args.budget, backend.total_bytes) if args.budget is not None else where.device_bytes
        if limit is None and not backend.shared:
            limit = backend.total_bytes  # a plan for a card must fit it
        options = {"batch": args.batch, "train": not args.inference, "pinned": args.pinned, "home": args.home}
        graph = graph_of(args.network, **{key: getattr(args, key) for key in SIZES})
        return cls(graph, where, limit, {**options, "deterministic": args.deterministic})

    def plan(self, policy: str) -> NetworkPlan:
        """The plan of a policy. Raises as `Graph.plan`."""
        return self.graph.plan(policy=policy, device=self.device, budget=self.budget, **self.options)

    def kept_seconds(self) -> float:
        """Predicted seconds of keeping everything, on the same device with memory without end."""
        free = {**self.options, "pinned": None}
        return self.graph.plan(policy="keep", device=self.device, budget=ENDLESS, **free).predicted_seconds

    def here(self, budget: Any) -> PlansWanted:
        """The same for this machine's processor, under the budget that was given."""
        where = target("cpu")
        return self._replace(device=where, budget=parse_bytes(budget, where.backend.total_bytes))


# ---- what is told


class Row(NamedTuple):
    """What came of a policy: its plan, or the error instead of it; seconds as predicted and measured on this machine."""

    policy: str
    plan: NetworkPlan | None
    error: BudgetError | UnsupportedError | None = None
    here: float | None = None
    measured: float | None = None

    @property
    def moved(self) -> int:
        """Bytes that cross the link in a step; on a processor: that leave its memory or come into it, each once."""
        assert self.plan is not None
        lanes = ("h2d", "d2h") if self.plan.scene.staged else LANES
        return sum(self.plan.lane_bytes.get(lane, 0) for lane in lanes)

    @property
    def pinned(self) -> int:
        """Bytes of pinned memory at the peak."""
        assert self.plan is not None
        return self.plan.peaks["staging"] + self.plan.peaks["pinned"]

    @property
    def needs(self) -> int | None:
        """The smallest budget of the policy."""
        return self.plan.smallest_bytes if self.plan is not None else getattr(self.error, "smallest_bytes", None)

    def cells(self, kept: float) -> tuple[str, ...]:
        """The row of the table; what has no cell is told at its end."""
        measured = tuple(_seconds(s) for s in (self.here, self.measured) if s is not None)
        if self.plan is None:
            needs = f"needs {show_bytes(self.needs)}" if self.needs is not None else "no"
            return (self.policy, needs) if self.needs is not None else (self.policy, needs, str(self.error))
        plan = self.plan
        overhead = f"{plan.predicted_seconds / kept - 1:.1%}"
        peak, pinned, moved = (show_bytes(n) for n in (plan.peaks["device"], self.pinned, self.moved))
        return (self.policy, "yes", peak, pinned, moved, _seconds(plan.predicted_seconds), overhead,
                _seconds(plan.bound_seconds), *measured)  # fmt: skip

    def to_json(self, setup: PlansWanted, kept: float) -> str:
        """The row as a line of JSON; what there is not is null."""
        plan = self.plan
        fields = {
            "network": setup.graph.name, "batch": setup.options["batch"], "train": setup.options["train"], "policy": self.policy,
            "device": setup.device.model.name, "budget": setup.budget, "fits": plan is not None, "smallest_bytes": self.needs,
            "device_bytes": None if plan is None else plan.peaks["device"], "pinned_bytes": None if plan is None else self.pinned,
            "moved_bytes": None if plan is None else self.moved,
            "predicted_seconds": None if plan is None else plan.predicted_seconds, "kept_seconds": kept,
            "overhead_percent": None if plan is None else 100 * (plan.predicted_seconds / kept - 1),
            "bound_seconds": None if plan is None else plan.bound_seconds, "fates": None if plan is None else plan.fates,
            "why": None if plan is None else plan.why, "error": None if self.error is None else str(self.error),
            "here_predicted_seconds": self.here, "here_measured_seconds": self.measured,
        }  # fmt: skip
        return json.dumps(fields)


def _every(setup: PlansWanted, args: argparse.Namespace) -> None:
    """A row per policy."""
    kept = setup.kept_seconds()
    columns = (*COLUMNS, *MEASURED) if args.run else COLUMNS
    if not args.json:
        print(_headline(setup, kept))
        print(_line([name for name, _ in columns], columns), flush=True)
    for row in _rows(setup, args):
        print(row.to_json(setup, kept) if args.json else _line(row.cells(kept), columns), flush=True)


def _rows(setup: PlansWanted, args: argparse.Namespace) -> Iterator[Row]:
    for policy in NAMES:
        try:
            row = Row(policy, setup.plan(policy))
        except (BudgetError, UnsupportedError) as error:
            row = Row(policy, None, error)
        try:
            yield _measured(row, setup, args) if args.run else row
        except (BudgetError, UnsupportedError):  # on this machine alone
            yield row


def _one(setup: PlansWanted, args: argparse.Namespace) -> None:
    """The plan of one policy."""
    row = Row(args.policy, setup.plan(args.policy))
    kept = setup.kept_seconds()
    assert row.plan is not None
    if not args.json:
        print(row.plan)
        print(f"{'overhead':<9} {row.plan.predicted_seconds / kept - 1:.1%} over keeping everything in memory without end")
    if args.plot:
        from ooc.cli.network_plot import draw

        draw(row.plan, args.plot)
        if not args.json:
            print(f"{'drawn':<9} {args.plot}", flush=True)
    if args.report:
        plan = row.plan
        title = f"{plan.graph.name}, batch {plan.batch}, {plan.policy}"
        page.write(args.report, plan, page.RunFacts(title, [(n, v.strip()) for n, _, v in map(_parted, str(plan).splitlines())]))
        if not args.json:
            print(f"{'written':<9} {args.report}", flush=True)
    row = _measured(row, setup, args) if args.run else row
    if args.json:
        print(row.to_json(setup, kept))
    elif row.measured is not None and row.here is not None:
        share = row.measured / row.here
        print(f"{'measured':<9} {row.measured:.4g} s here on the processor, predicted {row.here:.4g} s: {share:.2f} times that")


def _headline(setup: PlansWanted, kept: float) -> str:
    what = "a training step" if setup.options["train"] else "inference"
    limit = "no limit" if setup.budget is None else f"budget {show_bytes(setup.budget)}"
    whole = f"keeping everything takes {kept:.4g} s in memory without end"
    return f"{setup.graph.name}: {what}, batch {setup.options['batch']}, {limit} [{setup.device.model.name}]; {whole}"


def _line(cells: Any, columns: Any) -> str:
    wide = [width for _, width in columns]
    cut = [text.ljust(w) if i < 2 else text.rjust(w) for i, (text, w) in enumerate(zip(cells, wide))]
    return "  ".join(cut).rstrip()


def _seconds(seconds: float) -> str:
    return f"{seconds:.4g}"


# ---- on this machine


def _measured(row: Row, setup: PlansWanted, args: argparse.Namespace) -> Row:
    """With what the policy is predicted to take on this machine's processor, and what it takes."""
    plan = setup.here(args.budget).plan(row.policy)
    return row._replace(here=plan.predicted_seconds, measured=measure(plan))


def compared(net: Network, loss: PlacedLoss, draw: Generator) -> Any:
    """Random labels, or another target, of a loss."""
    target = net.tensors[loss.inputs.target]
    if target.dtype == "i64":
        return draw.integers(0, loss.layer.classes(net.graph.shapes[loss.x][0]), target.shape)
    return draw.random(target.shape).astype(numpy_dtype(target.dtype))


def measure(plan: NetworkPlan, steps: int = TIMED) -> float:
    """Seconds of a step on random data: the median of some, after one that is not counted."""
    draw = default_rng(0)
    graph, net = plan.graph, plan.network
    x = {
        name: draw.standard_normal((plan.batch, *shape), "f4").astype(numpy_dtype(graph.dtypes[name]))
        for name, shape in graph.inputs.items()
    }
    labels: Any = None
    if net.mode is Mode.STEP:
        labels = {name: compared(net, loss, draw) for name, loss in losses_of(graph).items()}
    taken = []
    with plan.session() as session:
        for _ in range(1 + steps):
            begin = time.perf_counter()
            if net.mode is Mode.STEP:
                session.step(x, labels)
            else:
                session.forward(x)
            taken.append(time.perf_counter() - begin)
    return statistics.median(taken[1:])

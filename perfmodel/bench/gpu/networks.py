"""Training steps of whole networks on a GPU: ours in core and under a budget, beside PyTorch's in core and as people make it fit.

Every contestant of a case begins with the same parameters and batch: losses and gradients of the first step are compared, with
those that PyTorch computes in f64 where that takes little, else with those of the contestant that comes first.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

import ooc
from ooc.backends.base import Backend
from ooc.ir.op import numpy_dtype
from ooc.model.cost import Model
from ooc.networks import Profile
from ooc.networks.models import named
from ooc.runtime.device import Device
from perfmodel.bench.gpu.bench import ENOUGH, WARM, Row, Say, forget, measured
from perfmodel.bench.gpu.contestants import held_to, tuned
from perfmodel.bench.gpu.problem import GIB
from perfmodel.bench.torch_steps import PEERS, ContestantStep, data, torch_step

# Of the loss and the first layer's gradient, or twice as far as PyTorch's own is: rounding turns choices of poolings and relus.
TOLERANCE = {"f32": 1e-3, "tf32": 2e-2, "bf16": 2e-1}
OURS = ("keep", "auto", "vdnn_all", "pooch")
IN_CORE = ("torch", "keep", "torch_channels_last")


class Case(NamedTuple):
    """A network at a batch size: in core, or what fits under a budget. precision: "f32", "tf32" or "bf16". in_f64: whether a step
    in f64 is quick."""

    network: str
    batch: int
    precision: str = "f32"
    budget: int | None = None
    sizes: Mapping[str, Any] = MappingProxyType({})
    in_f64: bool = False

    def __str__(self) -> str:
        limit = "in core" if self.budget is None else f"{self.budget / GIB:.3g} GiB"
        return " ".join((self.network, *map(str, self.sizes.values()), str(self.batch), self.precision, limit))

    @property
    def contestants(self) -> tuple[str, ...]:
        """Who takes part, PyTorch first where its distance from f64 is a measure for ours, then those that tell most."""
        return IN_CORE if self.budget is None else ("auto", *PEERS[2:4], *OURS[2:], PEERS[4])

    def graph(self) -> ooc.Graph:
        """The network, with inputs of the precision."""
        raw = json.loads(named(self.network, **self.sizes).to_json())
        for one in raw["inputs"]:
            one["dtype"] = self.dtype
        return ooc.Graph.from_json(json.dumps(raw))

    @property
    def dtype(self) -> str:
        """Of its tensors."""
        return "bf16" if self.precision == "bf16" else "f32"


VGG16, UNET3D = {"side": 224, "dropout": 0}, {"side": 128}
CASES = (
    Case("vgg16", 64, "f32", None, VGG16, True), Case("resnet50", 128, "f32", None, {}, True),
    Case("vgg16", 256, "f32", None, VGG16), Case("vgg16", 256, "f32", 16 * GIB, VGG16),
    *(Case(name, batch, how, None, sizes, name != "unet3d") for how in ("tf32", "bf16")
      for name, batch, sizes in (("vgg16", 64, VGG16), ("resnet50", 128, {}), ("unet3d", 2, UNET3D))),
    Case("unet3d", 4, "tf32", 8 * GIB, UNET3D), Case("unet3d", 4, "tf32", None, UNET3D),
    Case("resnet50", 256, "tf32", 8 * GIB), Case("resnet50", 256, "tf32"),
    Case("vgg16", 1024, "tf32", 16 * GIB, VGG16),
    Case("unet3d", 1, "tf32", 16 * GIB, {"side": 256}),
    Case("unet3d", 2, "f32", None, UNET3D),  # last: cuDNN's algorithms for it take a minute to try
)  # fmt: skip
TINY = (Case("vgg16", 2, "f32", None, {"side": 32, "width": 0.05, "dropout": 0}),
        Case("unet3d", 1, "f32", 4 << 20, {"side": 16, "width": 0.1}))  # fmt: skip


def bench_networks(
    make: Callable[[bool], Backend], model: Model, torch: Any, say: Say, done: Callable[[str], bool], seconds: float,
    rounds: int = 3, cases: tuple[Case, ...] = CASES,
) -> Iterator[Row]:  # fmt: skip
    """Rows of results, as soon as each is measured. make: the backend that may use TF32 or not. model: what ours are planned by.
    torch: PyTorch, or None. done: whether the row of a key is there already."""
    end, exact = time.perf_counter() + seconds, dict[Any, Any]()
    for case in cases:
        if time.perf_counter() > end:
            break
        bench = _Bench(case, make(case.precision == "tf32"), model, torch, exact)
        for name in case.contestants:
            key = f"{case} {name}"
            if done(key) or time.perf_counter() > end or (torch is None and name in PEERS):
                continue
            row: Row = {
                "key": key, "network": case.network, "batch": case.batch, "precision": case.precision, "sizes": dict(case.sizes),
                "budget_bytes": case.budget, "contestant": name,
            }  # fmt: skip
            try:
                row |= bench.measured(name, rounds, end)
            except Exception as error:
                row["error"] = f"{type(error).__name__}: {' '.join(str(error).split())[:800]}"
            forget()
            say(f"{key}: {row['error'] if 'error' in row else '{:.4f} s'.format(row['seconds']['median'])}")
            yield row


def told(profile: Profile) -> Row:
    """What kernels and lanes took, for a row."""
    kernels = {name: list(time) for name, time in profile.kernels.items()}
    return {"kernels": kernels, "lane_seconds": profile.lane_seconds, "algorithms": profile.algorithms}


class _Bench:
    """The contestants of a case."""

    def __init__(self, case: Case, backend: Backend, model: Model, torch: Any, exact: dict[Any, Any]) -> None:
        self.case, self.torch, self.device, self.exact = case, torch, Device(backend, model), exact
        self.reference: tuple[float, Any] | None = None  # loss and gradient
        self.theirs = 0.0  # how far PyTorch's are from those at most

    def measured(self, name: str, rounds: int, end: float) -> Row:
        """What a contestant takes."""
        if self.case.in_f64 and self.torch is not None:
            self.reference = self._in_f64()
        with self._peer(name) if name in PEERS else self._ours(name) as step:
            begin = time.perf_counter()
            loss = step.run()
            first = time.perf_counter() - begin
            right = self._right(name, loss, np.asarray(step.gradient(), np.float64))
            for _ in range(1 if name in PEERS else WARM):  # ours measures algorithms when a shape comes again
                step.run()
            seconds = {**measured(step.run, rounds, end, 2 * ENOUGH), "first": first}
            return {"seconds": seconds, **right, **step.about(), **step.tell()}

    def _in_f64(self) -> tuple[float, Any]:
        """Loss and gradient of PyTorch's step in f64."""
        case = self.case
        key = case.network, case.batch, tuple(case.sizes.items())
        if key not in self.exact:
            with torch_step(self.torch, named(case.network, **case.sizes), case.batch, "torch", "f64") as step:
                self.exact[key] = step.run(), np.asarray(step.gradient(), np.float64)
            forget()
        loss_and_gradient: tuple[float, Any] = self.exact[key]
        return loss_and_gradient

    def _right(self, name: str, loss: float, gradient: Any) -> Row:
        """How far loss and gradient are from the reference."""
        if self.reference is None:
            self.reference = loss, gradient
        exact, slope = self.reference
        off = abs(loss / exact - 1), float(np.linalg.norm(gradient - slope) / np.linalg.norm(slope))
        if name in PEERS:
            self.theirs = max(self.theirs, *off)
        right = max(off) <= max(TOLERANCE[self.case.precision], 2 * self.theirs)
        return {"loss": loss, "loss_off": off[0], "gradient_off": off[1], "in_f64": self.case.in_f64, "right": right}

    def _ours(self, policy: str) -> AbstractContextManager[ContestantStep]:
        return _Ours(self.case, self.device, policy)

    @contextmanager
    def _peer(self, how: str) -> Iterator[ContestantStep]:
        """A step of PyTorch's, within the budget where it has an allocator that knows one."""
        torch, case = self.torch, self.case
        tuned(torch, case.precision == "tf32")
        if case.budget is not None and torch.cuda.is_available():
            held_to(torch, case.budget)
        with torch_step(torch, named(case.network, **case.sizes), case.batch, how, case.dtype) as step:
            yield step


class _Ours(AbstractContextManager[ContestantStep]):
    """A step of ours by a policy."""

    def __init__(self, case: Case, device: Device, policy: str) -> None:
        self.case, self.device, self.policy = case, device, policy

    def __enter__(self) -> ContestantStep:
        self.device.__enter__()
        begin = time.perf_counter()
        budget = None if self.policy == "keep" else self.case.budget
        plan = self.case.graph().plan(batch=self.case.batch, policy=self.policy, budget=budget, device=self.device)
        planned = time.perf_counter()
        self.session = session = plan.session()
        x, labels = data(plan)
        x = x.astype(numpy_dtype(self.case.dtype))
        about = {
            "planning_seconds": planned - begin, "opening_seconds": time.perf_counter() - planned, "why": plan.why,
            "predicted_seconds": plan.predicted_seconds, "bound_seconds": plan.bound_seconds, "peak_bytes": plan.peaks["device"],
            "pinned_bytes": plan.peaks["pinned"], "moved_bytes": plan.lane_bytes, "steps": plan.schedule.count,
        }  # fmt: skip
        name = next(iter(plan.graph.parameters))

        def tell() -> Row:
            with session.profile() as profile:
                session.step(x, labels)
            return told(profile)

        return ContestantStep(lambda: session.step(x, labels), lambda: session.gradients()[name], lambda: about, tell)

    def __exit__(self, *error: Any) -> None:
        if hasattr(self, "session"):
            self.session.close()
        self.device.__exit__(*error)

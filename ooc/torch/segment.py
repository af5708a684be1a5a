"""A module at a size that runs through ooc: forward from parameters where they lie, backward from what the budget allowed to be
kept of the forward pass, else with that computed again."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ooc.api.foreign import known
from ooc.errors import BudgetError, UnsupportedError
from ooc.networks import NetworkPlan
from ooc.networks.tensors import Mode
from ooc.networks.writer import dependent, network
from ooc.runtime.device import Device
from ooc.schedule.budget import parse_bytes
from ooc.torch import between
from ooc.torch.holding import HeldPass, PassSessions
from ooc.torch.tracing import place_of, tensors_of
from ooc.torch.translation import Translated
from ooc.torch.translator import DTYPES, MovedStatistic
from ooc.torch.values import ComputedValues

SEEDS = 1 << 62  # of dropout
TORCH = {name: dtype for dtype, name in DTYPES.items()}


@dataclass(frozen=True)
class Terms:
    """How segments run.

    Fields:
        budget: of device memory, as `Graph.plan` takes it.
        device: an `ooc.Device`, a name, or None: the current one.
        policy: of plans.
        inside: a part of the converted module, which PyTorch joins to others: where there is a budget, what passes between them
            lies in files.
        sessions: that run, within the budget.
    """

    budget: Any
    device: Device | str | None
    policy: str
    inside: bool = False
    sessions: PassSessions = field(default_factory=PassSessions)

    def __post_init__(self) -> None:
        """Raises ArgumentError for a budget that no device could have."""
        parse_bytes(self.budget, sys.maxsize)

    def empty(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A tensor for what a segment makes."""
        return between.empty(shape, dtype, device, self.inside and self.budget is not None)


@dataclass
class Segment:
    """A translated module with its plans, by what is asked of them.

    Fields:
        translated: the graph, and what belongs to it.
        terms: how it runs.
        batch: samples.
        dtype: that inputs are cast to; None: none is.
        plans: that were made.
        apart: gradients that no plan of both passes within the budget has.
        idle: the module's session that waits for the next pass.
        refusals: why it cannot be trained, by which tensors want gradients; None: it can.
        reached: outputs that have gradients, by the tensors that want them.
    """

    translated: Translated
    terms: Terms
    batch: int
    dtype: torch.dtype | None = None
    plans: dict[Any, NetworkPlan] = field(default_factory=dict)
    apart: set[tuple[str, ...]] = field(default_factory=set)
    idle: list[HeldPass] = field(default_factory=list)
    refusals: dict[tuple[bool, ...], UnsupportedError | None] = field(default_factory=dict)
    reached: dict[tuple[str, ...], set[str]] = field(default_factory=dict)

    def plan(self, train: bool | str, gradients: tuple[str, ...] | None = None) -> NetworkPlan:
        """A plan, made once. gradients: in modes "backward" and "both", of which tensors."""
        key = train, gradients
        if key not in self.plans:
            terms = self.terms
            self.plans[key] = self.translated.graph.plan(
                batch=self.batch, train=train, lent=True, budget=terms.budget, device=terms.device, policy=terms.policy,
                gradients=gradients,
            )  # fmt: skip
        return self.plans[key]

    def of_pass(self, gradients: tuple[str, ...]) -> NetworkPlan:
        """The plan of a pass forward: with the gradients that are to come, if there is one that keeps to the budget; else by
        itself, if they have one of their own. Raises BudgetError."""
        if gradients and gradients not in self.apart:
            try:
                return self.plan("both", gradients)
            except BudgetError as error:
                try:
                    self.plan("backward", gradients)
                except BudgetError:
                    raise error from None  # its smallest budget would do for all
                self.apart.add(gradients)
        return self.plan(self.forward_mode)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Inputs of the graph: the module's, and what it is fed besides."""
        return (*self.translated.inputs, *self.translated.fed)

    @property
    def forward_mode(self) -> bool | str:
        """How a forward pass is planned: as in training where that differs."""
        return "forward" if self.translated.trains else False

    def lent(self, values: ComputedValues) -> dict[str, torch.Tensor]:
        """Parameters and statistics of the graph, as tensors that autograd follows to the module's."""
        parameters, moving = (
            self.translated.graph.parameters,
            {m.name for m in self.translated.moved.values() if isinstance(m, MovedStatistic)},
        )
        tensors = {name: compute(values).to(TORCH[parameters[name].dtype]) for name, compute in self.translated.owned.items()}
        return {name: value.clone() if name in moving else value for name, value in tensors.items()}

    def named(self, inputs: Sequence[torch.Tensor], values: ComputedValues) -> dict[str, torch.Tensor]:
        """Inputs, and what is fed and lent, by their names in the graph."""
        translated = self.translated
        fed = {name: compute(values).to(TORCH[translated.graph.dtypes[name]]) for name, compute in translated.fed.items()}
        return dict(zip(translated.inputs, inputs, strict=True)) | fed | self.lent(values)

    def variables(self, inputs: Sequence[torch.Tensor], module: torch.nn.Module) -> tuple[str, ...]:
        """Whose gradients a backward pass is to make; nobody's, where no output has one by these."""
        with torch.enable_grad():
            values = self.translated.values(tensors_of(module).__getitem__, place_of(module))
            names = tuple(name for name, tensor in self.named(inputs, values).items() if tensor.requires_grad)
        return names if self.differentiable(names) else ()

    def differentiable(self, variables: tuple[str, ...]) -> set[str]:
        """Outputs that have gradients by these."""
        if variables not in self.reached:
            graph = self.translated.graph
            self.reached[variables] = dependent(graph, variables) & {*graph.outputs}
        return self.reached[variables]

    def refusal(self, inputs: Sequence[torch.Tensor], module: torch.nn.Module) -> UnsupportedError | None:
        """Why it cannot be trained: a gradient would have to pass a layer that has none."""
        key = tuple(t.requires_grad for t in (*inputs, *module.parameters()))
        if key not in self.refusals:
            self.refusals[key] = None
            gradients = self.variables(inputs, module) if any(key) else ()
            try:
                if gradients:
                    network(self.translated.graph, self.batch, Mode.BACKWARD, variables=gradients, lent=True)
            except UnsupportedError as error:
                self.refusals[key] = error
        return self.refusals[key]

    def run(self, tensors: Sequence[torch.Tensor], module: torch.nn.Module) -> Any:
        """What the module returns of these inputs; its buffers change as they do in PyTorch."""
        translated, state = self.translated, tensors_of(module)
        inputs = tensors if self.dtype is None else [t.to(self.dtype) for t in tensors]
        values = translated.values(state.__getitem__, inputs[0].device)
        seed = int(torch.randint(SEEDS, ()).item()) if translated.trains else 0
        named = self.named(inputs, values)
        call = SegmentPass(self, tuple(named)[len(self.inputs) :], seed, torch.is_grad_enabled(), {})
        results = SegmentFunction.apply(call, *named.values())
        by_name = dict(zip(translated.graph.outputs, results, strict=True))
        by_name |= {name: by_name[name].to(dtype) for name, dtype in translated.whole.items()}
        leaves = [by_name[m] if isinstance(m, str) else tensors[m] if isinstance(m, int) else m(values) for m in translated.made]
        with torch.no_grad():
            moved = {
                name: call.moved[how.name] if isinstance(how, MovedStatistic) else how(values)
                for name, how in translated.moved.items()
            }
            for name, value in moved.items():  # not before all that reads them is computed
                state[name].copy_(value)
        return pytree.tree_unflatten(leaves, translated.spec)


@dataclass(frozen=True)
class SegmentPass:
    """One pass through a segment.

    Fields:
        segment: what runs.
        names: of what is lent, in the order of the tensors behind the inputs.
        seed: of dropout.
        recorded: whether there may be gradients.
        moved: statistics after the forward pass, which fills it.
    """

    segment: Segment
    names: tuple[str, ...]
    seed: int
    recorded: bool
    moved: dict[str, torch.Tensor]

    def gradients(self, needed: Sequence[bool]) -> tuple[str, ...]:
        """Whose gradients are to come. needed: whether each of the tensors needs one."""
        named = zip((*self.segment.inputs, *self.names), needed, strict=True)
        names = tuple(name for name, needs in named if needs) if self.recorded else ()
        return names if self.segment.differentiable(names) else ()

    def given(self, tensors: Sequence[torch.Tensor], borrowed: Any) -> dict[str, Any]:
        """Inputs, and what a plan borrows, as ooc sees them."""
        inputs = self.segment.inputs
        named = zip((*inputs, *self.names), tensors, strict=True)
        return {name: seen(name, t) for name, t in named if name in inputs or name in borrowed}


class SegmentFunction(torch.autograd.Function):
    """A segment as autograd sees it: of inputs and what is lent, the outputs."""

    @staticmethod
    def forward(ctx: Any, call: SegmentPass, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Compute the outputs, into new tensors beside the inputs."""
        segment, graph = call.segment, call.segment.translated.graph
        variables = call.gradients(ctx.needs_input_grad[1:])
        plan = segment.of_pass(variables)
        out = {
            o: segment.terms.empty((segment.batch, *graph.shapes[o]), TORCH[graph.dtypes[o]], tensors[0].device)
            for o in graph.outputs
        }
        sessions = segment.terms.sessions
        ctx.call, ctx.held = call, sessions.begin(plan, call.seed, segment.idle)
        with sessions.passing(ctx.held, segment.idle) as session:
            session.forward(call.given(tensors, plan.network.borrowed), {o: seen(o, t) for o, t in out.items()})
            if segment.translated.trains:
                call.moved.update({name: torch.from_numpy(value) for name, value in session.statistics().items()})
        ctx.save_for_backward(*tensors)
        moving = segment.differentiable(variables)
        ctx.mark_non_differentiable(*(y for o, y in out.items() if o not in moving))
        return tuple(out.values())

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Compute the gradients, from what is left of the forward pass; if nothing is, from as much of it again as they need."""
        call: SegmentPass = ctx.call
        held: HeldPass = ctx.held
        segment, sessions, tensors = call.segment, call.segment.terms.sessions, ctx.saved_tensors
        inputs, graph = segment.inputs, segment.translated.graph
        named = dict(zip((*inputs, *call.names), tensors, strict=True))
        names = call.gradients(ctx.needs_input_grad[1:])
        one = sessions.resumed(held) or sessions.begin(segment.plan("backward", names), call.seed, segment.idle)
        network = one.plan.network
        dx = {n: segment.terms.empty(t.shape, t.dtype, t.device) for n, t in named.items() if n in network.gradients}
        pulls = {o: seen(f"d.{o}", d) for o, d in zip(graph.outputs, dy, strict=True)}
        with sessions.passing(one, segment.idle) as session:
            operands = call.given(tensors, network.borrowed)
            arrays = session.backward(operands, pulls, {n: seen(n, t) for n, t in dx.items()})
        there = [n for n in names if n in dx or (n not in inputs and f"d.{n}" in network.tensors)]  # on which outputs depend
        gradients = {n: dx[n] if n in dx else torch_of(arrays[n], named[n]) for n in there}
        return (None, *(gradients.get(n) for n in named))


def torch_of(array: Any, like: torch.Tensor) -> torch.Tensor:
    """An array of ooc's as a tensor of another one's type and place; its memory where these agree."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view("<i2")).view(torch.bfloat16).to(like.device, like.dtype).reshape(like.shape)
    return torch.from_numpy(array).to(like.device, like.dtype).reshape(like.shape)


def seen(name: str, tensor: torch.Tensor) -> Any:
    """A tensor's memory as ooc sees it."""
    return known(name, tensor.detach())

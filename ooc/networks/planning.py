"""From a graph and a budget to a plan: the network is written, the policy asked, its proposals judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from ooc.api.arguments import as_int
from ooc.errors import ArgumentError, BudgetError, OptionError, UnsupportedError, shown
from ooc.networks.auto import Choice, choose
from ooc.networks.build import Built
from ooc.networks.costs import CallCosts
from ooc.networks.judge import Judge
from ooc.networks.optimizers import Optimizer
from ooc.networks.plan import NetworkPlan
from ooc.networks.plan_store import from_store
from ooc.networks.policies import POLICIES
from ooc.networks.policies.base import Policy
from ooc.networks.proposal import Proposal
from ooc.networks.scene import Scene
from ooc.networks.tensors import Mode
from ooc.networks.where import device_of, space_of
from ooc.networks.writer import differentiable, network
from ooc.runtime.call_options import flag
from ooc.runtime.device import Device
from ooc.schedule.budget import parse_bytes, show_bytes
from ooc.schedule.collector import rest
from ooc.schedule.place import FILE

AUTO = "auto"  # the policy that compares


class NetworkRequest(NamedTuple):
    """What of a network is computed, see `Network`.

    Fields:
        mode: which passes.
        wanted: whose gradients; None: of all that have one.
        lent: whether parameters are the caller's.
    """

    mode: Mode
    wanted: tuple[str, ...] | None = None
    lent: bool = False

    @classmethod
    def of(cls, graph: Built, train: Any, gradients: Any, lent: Any) -> NetworkRequest:
        """From what `Graph.plan` is given. Raises ArgumentError, OptionError."""
        if not (isinstance(train, bool) or train in ("forward", "backward", "both")):
            raise OptionError(f'train={shown(train)}: expected True, False, "forward", "backward" or "both"')
        mode, known = Mode(train), differentiable(graph)
        if gradients is None:
            return cls(mode, None, flag("lent", lent))
        if not mode.pulls:
            raise OptionError(f'gradients: are chosen with train="backward" or "both", not with train={shown(train)}')
        names = [gradients] if isinstance(gradients, str) else list(gradients)
        unknown = [shown(name) for name in names if name not in known]
        if unknown or not names:
            raise ArgumentError(f"gradients: no input or parameter {', '.join(unknown)}; there are {', '.join(known[:8])}, ...")
        return cls(mode, tuple(dict.fromkeys(names)), flag("lent", lent))


def plan_network(
    graph: Built,
    batch: int,
    budget: Any,
    policy: str,
    request: NetworkRequest,
    device: Device | str | None,
    pinned: Any,
    home: str | None,
    optimizer: Optimizer | None,
    deterministic: bool,
    options: Mapping[str, Any],
) -> NetworkPlan:
    """See `Graph.plan`."""
    judge = judge_of(graph, batch, budget, request, device, pinned, home, optimizer, deterministic)
    if policy == AUTO and not options:
        return from_store(judge, AUTO, options, lambda: automatic(judge))
    how = chosen(policy, options)
    return from_store(judge, policy, options, lambda: judged(judge, how, options))


def judge_of(
    graph: Built,
    batch: int,
    budget: Any,
    request: NetworkRequest,
    device: Device | str | None,
    pinned: Any = None,
    home: str | None = None,
    optimizer: Optimizer | None = None,
    deterministic: bool = False,
) -> Judge:
    """Who judges the plans of what `Graph.plan` is asked."""
    samples = as_int("batch", batch)
    if samples < 1:
        raise ArgumentError(f"batch={shown(batch)}: expected at least 1")
    where = device_of(device)
    total = where.backend.total_bytes
    limit = where.device_bytes if budget is None else parse_bytes(budget, total)
    pins = where.pinned_bytes if pinned is None else parse_bytes(pinned, total, "pinned")
    exact = deterministic or where.deterministic
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        raise ArgumentError(f"optimizer={shown(optimizer)}: expected one of ooc, such as ooc.SGD(0.1), or None")
    if request.lent and optimizer is not None:
        raise OptionError("lent: an optimizer moves the session's own parameters; leave it out, or pass lent=False")
    net = network(graph, samples, request.mode, optimizer, exact, request.wanted, request.lent)
    return Judge(net, Scene(CallCosts(where, exact), space_of(home, where)), limit, pins)


@rest.taken()
def automatic(judge: Judge) -> NetworkPlan:
    """The best plan that is known, of auto's own or of a policy. Raises BudgetError where none is."""
    shared = judge.device.backend.shared and judge.scene.home != FILE  # homes count: to leave may save nothing
    some = tuple(POLICIES.values()) if shared else (POLICIES["stream"],)
    known = [p for policy in some for p in served(policy, judge)]
    least = min(known, key=judge.needs) if known else some[-1].least(judge)  # which says why there is none
    smallest = judge.needs(least)
    if judge.budget is not None and judge.budget < smallest:
        raise too_small(judge, AUTO, smallest)
    ranking = choose(judge, tuple(POLICIES.values()))
    for i, choice in enumerate(ranking):
        with suppress(BudgetError):  # of pinned memory: how much tiles take is known when they are cut
            return NetworkPlan.of(judge, AUTO, {}, choice.proposal, smallest, others(ranking[i:]), choice.name)
    return NetworkPlan.of(judge, AUTO, {}, least, smallest)


def served(policy: Policy, judge: Judge) -> list[Proposal]:
    """The least of a policy; nothing where it cannot serve the graph."""
    try:
        return [policy.least(judge)]
    except UnsupportedError:
        return []


def others(ranking: Sequence[Choice]) -> str:
    """Whose plan is the best, and the runner-up, in words."""
    best = ranking[0]
    told = [f"as {best.name} has it"] if best.name != AUTO else []
    second = next((c for c in ranking[1:] if (c.name, c.proposal.label) != (best.name, best.proposal.label)), None)
    if second is not None:
        why = ", but it moves more" if second.seconds < best.seconds else ""  # of plans alike the one that moves least is taken
        told.append(f"next: {second.name} ({second.proposal.label}), {second.seconds / best.seconds - 1:+.1%}{why}")
    return "; ".join(told)


def chosen(name: str, options: Mapping[str, Any]) -> Policy:
    """The policy of a name. Raises ArgumentError, and OptionError for options that it does not take."""
    if name == AUTO:
        raise OptionError(f"policy {AUTO}: no option {', '.join(sorted(options))}; it takes none")
    if not isinstance(name, str) or name not in POLICIES:
        raise ArgumentError(f"policy={shown(name)}: expected one of {', '.join((*POLICIES, AUTO))}")
    policy = POLICIES[name]
    unknown = sorted(set(options) - set(policy.options))
    if unknown:
        takes = f"it takes {', '.join(policy.options)}" if policy.options else "it takes none"
        raise OptionError(f"policy {name}: no option {', '.join(unknown)}; {takes}")
    return policy


@rest.taken()
def judged(judge: Judge, policy: Policy, options: Mapping[str, Any]) -> NetworkPlan:
    """The plan of a policy. Raises BudgetError where none fits, which names the smallest budget that would do."""
    smallest = judge.needs(policy.least(judge, **options))
    if judge.budget is not None and judge.budget < smallest:
        raise too_small(judge, policy.name, smallest)
    return NetworkPlan.of(judge, policy.name, options, policy.best(judge, **options), smallest)


def too_small(judge: Judge, policy: str, smallest: int) -> BudgetError:
    """The error that names the smallest budget."""
    error = BudgetError(
        f"{judge.net.graph.name}: batch {judge.net.batch} by policy {policy} takes {show_bytes(smallest)} at least, "
        f"the budget is {show_bytes(judge.budget or 0)}. Raise budget= to at least {smallest} bytes, or try another policy."
    )
    error.smallest_bytes = smallest
    return error

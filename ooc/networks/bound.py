"""What no plan of a network can beat: every call computed once, every input moved once, and all that has to be somewhere when
the backward pass begins."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from ooc.networks.calls import FORWARD, Call, Network
from ooc.networks.scene import Scene, place_of
from ooc.networks.tensors import Role
from ooc.planner.question import least_computing
from ooc.schedule.place import FILE, load_route, store_route

THIRDS = 80  # of an interval of bytes, until its ends are alike


class Recompute(NamedTuple):
    """Bytes that a call makes for the backward pass, and the seconds in which it computes them once more at least."""

    nbytes: int
    seconds: float


def bound_seconds(net: Network, scene: Scene, budget: int | None) -> float:
    """Seconds below which no plan within a budget is predicted.

    The longest of what lanes and kernels are busy with at least, side by side. When the last statistics of the batch are known,
    what they depend on and the backward pass reads is on the device, for which there is the budget; at home, which it has reached
    by then and has to come back from; or it is computed once more. The best mixture of these is a bound, as tensors are taken to
    be divisible, and nothing else to need memory. Networks without such statistics can pass in parts, which leave nothing behind:
    of them every call is computed once.
    """
    costs, model = scene.costs, scene.costs.device.model
    least = {op: least_computing(op, costs.offers(op), model) for op in {call.op for call in net.calls}}
    computing = sum(least[call.op] for call in net.calls)
    inputs = sum(t.nbytes for t in net.tensors.values() if t.role is Role.INPUT and t.per_sample)
    base = max(computing, inputs / model.best_rate("h2d" if scene.staged else "read"))
    before = _before_the_turn(net)
    kept = set(net.kept)
    calls = [Recompute(sum(net.tensors[t].nbytes for t in call.makes if t in kept), least[call.op]) for call in before]
    calls = sorted((call for call in calls if call.nbytes), key=lambda call: call.seconds / call.nbytes)
    over = sum(call.nbytes for call in calls) - (math.inf if budget is None else budget)
    if over <= 0:
        return base
    forward = sum(least[call.op] for call in before)
    leave, back = _rates(scene)

    def seconds(moved: float) -> float:
        rest = computing - forward + _recomputing(calls, over - moved)
        return max(forward, moved / leave) + max(rest, moved / back)

    return max(base, _least(seconds, over) if leave < math.inf else seconds(0.0))


def _before_the_turn(net: Network) -> list[Call]:
    """The calls of the forward pass that the last statistics of the batch depend on."""
    forward = [call for call in net.forward if call.phase == FORWARD]
    batchwise = [c for c in forward if c.along is None and any(net.tensors[t].per_sample for t in c.reads)]
    if not net.mode.has_gradients or not batchwise:
        return []
    calls, todo = set[int](), [batchwise[-1]]
    while todo:
        for call in (net.makers[t] for t in todo.pop().reads if t in net.makers):
            if call.index not in calls:
                calls.add(call.index)
                todo.append(call)
    return [call for call in forward if call.index in calls]


def _rates(scene: Scene) -> tuple[float, float]:
    """Bytes per second that leave, and that come back; infinite: nothing does, as homes are in the memory that is short."""
    device = scene.costs.device
    if device.backend.shared and scene.home != FILE:
        return math.inf, math.inf
    place = place_of(scene.home)
    routes = store_route(place, scene.staged), load_route(place, scene.staged)
    leave, back = (min(device.model.best_rate(lane) for lane in route) for route in routes)
    return leave, back


def _recomputing(calls: list[Recompute], nbytes: float) -> float:
    """Seconds in which so many bytes are computed once more at least, by calls in the order of what a byte costs."""
    seconds = 0.0
    for call in calls:
        share = min(1.0, max(0.0, nbytes) / call.nbytes)
        seconds += call.seconds * share
        nbytes -= call.nbytes
    return seconds


def _least(function: Callable[[float], float], end: float) -> float:
    """The least value of a convex function from 0 to an end."""
    low, high = 0.0, end
    for _ in range(THIRDS):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        if function(left) <= function(right):
            high = right
        else:
            low = left
    return function(low)

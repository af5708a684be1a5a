"""micro-cuDNN: its dynamic programming against enumeration, its desirable sets against their definition, its plans."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from papers import judge_of, lasting

import ooc
from ooc.networks import Graph
from ooc.networks.policies.microcudnn import MicroBatches, PartKernel, choices, desirable, divide, division
from ooc.networks.proposal import Proposal
from ooc.ops import Convolution

pytestmark = pytest.mark.quick

P100 = ooc.device("null", calibration="p100")


def compositions(batch: int, sizes: list[int]) -> Iterator[list[int]]:
    """All ways to write a batch as a sum of sizes, in any order."""
    if batch == 0:
        yield []
    for size in sizes:
        if size <= batch:
            for rest in compositions(batch - size, sizes):
                yield [size, *rest]


@pytest.mark.parametrize("seed", range(60))
def test_divisions_against_all_compositions(seed: int) -> None:
    rng = random.Random(seed)
    batch = rng.randint(1, 6)
    sizes = rng.choice((list(range(1, batch + 1)), [1, 2, 4], [batch], rng.sample(range(1, 7), 2)))
    table = {
        size: [PartKernel(float(rng.randint(1, 20)), rng.randint(0, 9), name) for name in "abc"[: rng.randint(1, 3)]]
        for size in sizes
    }
    limit = rng.randint(0, 9)
    # Seconds of a part are those of the fastest kernel whose workspace fits: parts run one after the other and share it.
    fastest = {size: min((k.seconds for k in ways if k.workspace <= limit), default=float("inf")) for size, ways in table.items()}
    wanted = min((sum(fastest[s] for s in parts) for parts in compositions(batch, sizes)), default=float("inf"))
    seconds, parts = divide(batch, table, limit)
    assert seconds == wanted
    if wanted < float("inf"):
        assert sum(size for size, _ in parts) == batch
        assert sum(k.seconds for _, k in parts) == wanted
        assert all(k in table[size] and k.workspace <= limit for size, k in parts)
    else:
        assert parts == ()


def test_a_division_by_hand() -> None:
    """5 samples. The fast kernel takes 1 s a sample and 1 of start, with 10 of workspace a sample; the lean one 2 s and 1 of
    start, with none. Within 20: 2 + 2 + 1 by the fast one, 3 + 3 + 2 = 8 s, where the lean one alone takes 11. Within 50 all at
    once: 6. Within 10 one at a time, 10 s. Within 9 the lean one."""
    table = {n: [PartKernel(1.0 + n, 10 * n, "fast"), PartKernel(1.0 + 2 * n, 0, "lean")] for n in range(1, 6)}
    found = {limit: divide(5, table, limit) for limit in (50, 20, 10, 9)}
    assert {limit: seconds for limit, (seconds, _) in found.items()} == {50: 6.0, 20: 8.0, 10: 10.0, 9: 11.0}
    assert sorted(size for size, _ in found[20][1]) == [1, 2, 2]
    assert [(size, k.name) for size, k in found[9][1]] == [(5, "lean")]


@pytest.mark.parametrize("seed", range(20))
def test_what_is_desirable_by_its_definition(seed: int) -> None:
    rng = random.Random(seed)
    found = [MicroBatches(i, "k", float(rng.randint(1, 6)), rng.randint(0, 6)) for i in range(rng.randint(1, 12))]

    def beaten(one: MicroBatches) -> bool:
        """Whether another is no worse in either and better in one."""
        return any(
            o.seconds <= one.seconds and o.workspace <= one.workspace and (o.seconds, o.workspace) != (one.seconds, one.workspace)
            for o in found
        )

    wanted = sorted({(o.workspace, o.seconds) for o in found if not beaten(o)})
    kept = desirable(found)
    assert [(o.workspace, o.seconds) for o in kept] == wanted and set(kept) <= set(found)


def two_convolutions() -> Graph:
    graph = Graph("two convolutions")
    h = graph.conv(graph.input("x", (64, 16, 16)), 128, 3, padding=1, name="a")
    graph.loss("cross_entropy", graph.linear(graph.global_pool(graph.conv(h, 128, 3, padding=1, name="b")), 5, name="fc"))
    return graph


def workspaces(plan: ooc.NetworkPlan) -> list[int]:
    return [b.nbytes for b in plan.schedule.layout.offsets if b.name.startswith("workspace")]


def test_ways_to_compute_a_convolution_by_hand() -> None:
    judge = judge_of(two_convolutions(), 32, device=P100)
    b = next(c for c in judge.net.calls if c.layer == "b" and c.op.kind == "conv.fprop")
    found = {(c.samples, c.name): c for c in choices(b, judge.costs, 32)}
    # A null device stands for cuDNN: Winograd has 36 numbers for each of 16 squares of every image, of 128 channels in and out,
    # and for each of 128 x 128 filters; of less than 16 images it makes strips, which go by way of copies. Parts are powers of
    # two; those that no kernel is worth its launches for are out, and that of one image, which takes as much room as two.
    for (samples, name), one in found.items():
        numbers = 0 if name == "cudnn_lean" else 4 * 36 * (samples * 16 * 256 + 128 * 128)
        assert one.workspace == numbers if samples >= 16 else numbers < one.workspace < 2 * numbers
    assert found.keys() == {(32, "cudnn_lean"), *((1 << i, "cudnn_winograd") for i in range(1, 6))}
    # Each more part is one more launch, of 10 us.
    whole = found[32, "cudnn_winograd"].seconds
    assert found[16, "cudnn_winograd"].seconds == pytest.approx(whole + 1e-5)
    assert found[8, "cudnn_winograd"].seconds == pytest.approx(whole + 3e-5)


def test_a_limit_of_workspace_makes_micro_batches() -> None:
    graph, judge = two_convolutions(), judge_of(two_convolutions(), 32, device=P100)
    keep = judge.needs(Proposal("keep"))

    def plan_with(budget: int, policy: str = "micro_cudnn") -> ooc.NetworkPlan:
        return graph.plan(batch=32, budget=budget, policy=policy, device=P100)

    full, tight = plan_with(keep), plan_with(keep - (12 << 20))
    assert full.proposal.micro == () and set(full.fates.values()) == set(tight.fates.values()) == {"keep"}
    micro = dict(tight.proposal.micro)
    calls = tight.network.calls
    assert micro and {calls[i].layer for i in micro} <= {"a", "b"} and all(isinstance(calls[i].op, Convolution) for i in micro)
    assert max(workspaces(tight)) < max(workspaces(full)) and sum(workspaces(tight)) < sum(workspaces(full))
    # The parts are steps, 32 / n of them, with the same workspace.
    for call, samples in micro.items():
        jobs = [s.job for s in tight.steps() if s.lane == "compute" and tight.schedule.jobs[s.job].plan is not None
                and tight.schedule.jobs[s.job].plan.op is calls[call].op]  # fmt: skip
        assert max(jobs.count(j) for j in set(jobs)) == 32 // samples
    # The fast kernel in parts is ahead of the lean one at once, which is all that keeping has at this budget.
    assert full.predicted_seconds < tight.predicted_seconds < plan_with(keep - (12 << 20), "keep").predicted_seconds


def test_the_choice_within_a_limit() -> None:
    judge = judge_of(two_convolutions(), 32, device=P100)
    for limit in (0, 3 << 20, 5 << 20, 1 << 30):
        one = division(judge, limit)
        picked = {i: (dict(one.micro).get(i, 32), name) for i, name in one.chosen}
        for call in judge.net.calls:
            if isinstance(call.op, Convolution):
                every = choices(call, judge.costs, 32)
                fitting = [c for c in every if c.workspace <= limit]
                best = min(fitting, key=lambda c: c.seconds)
                assert picked[call.index] == (best.samples, best.name)
    assert division(judge, 0).micro == ()
    assert judge.needs(division(judge, 0)) > lasting(judge)

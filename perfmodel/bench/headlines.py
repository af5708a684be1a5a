"""The published figures of the papers on whole networks beside what the same methods, and auto, are predicted to do here.

Nothing is measured but how well what leaves packs, which depends on the numbers: rates are those of datasheets
(`devices/*.json`), unified memory is no part of it. No constant was chosen to meet a published number.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

import ooc
from ooc.errors import BudgetError, UnsupportedError
from ooc.ir.op import aligned
from ooc.networks import POLICIES, NetworkPlan
from ooc.networks.judge import Trial
from ooc.networks.models import named
from ooc.networks.planning import NetworkRequest, judge_of
from ooc.networks.policies.autoswap import SCHEDULER, SCHEDULERS, SCORE, SCORES
from ooc.networks.policies.microcudnn import division
from ooc.networks.policies.superneurons import layer_peak
from ooc.networks.proposal import Proposal
from ooc.networks.spaces import arrange
from ooc.networks.tensors import Mode
from ooc.networks.usage import load
from ooc.runtime.device import Device
from perfmodel.bench.packed import STEPS, TRAINED, trained
from perfmodel.bench.pools import cnmem, online

Row = dict[str, Any]
GIB = 1 << 30
HUNDREDTH = 0.01  # of the seconds: overhead that counts as none
LAG = (("lag", 8), ("alexnet", 128), ("alexnet", 256), ("vgg16", 16), ("vgg16", 64))  # what vDNN++ runs in 3.5 GB
SPEEDS = (0.5, 1.0, 2.0)  # of the card's rates of computing, at which the lag of copies is looked at
POOLED = (("alexnet", 128), ("vgg16", 64), ("resnet50", 64))
RUBBED = (("vgg16", 64), ("resnet34", 64), ("resnet50", 32), ("resnet152", 16), ("wrn28-10", 128))
DEEPEST = 2501  # three calls a block, 833 blocks, and two: the depth next to 2500


# ---- what rows are made of


def graph_of(network: str) -> ooc.Graph:
    """A network of the papers; "lag" of vDNN++'s code: layers that the link binds and layers that compute binds take turns."""
    if network != "lag":
        return named(network)
    g = ooc.Graph("lag")
    h = g.conv(g.input("x", (3, 224, 224)), 64, 3, padding=1, bias=True, activation="relu")
    for _ in range(5):
        h = g.conv(h, 64, 1, bias=True, activation="relu")
        h = g.conv(h, 64, 5, padding=2, bias=True, activation="relu")
    g.loss("cross_entropy", g.linear(g.global_pool(h), 10))
    return g


def device(name: str, memory: int | None = None, link: float | None = None, speed: float = 1.0) -> Device:
    """A described device, with other memory, a link of so many bytes a second each way, or other rates of computing."""
    card = ooc.device("null", memory, calibration=name)
    if speed != 1.0:
        faster = {key: replace(c, flops_per_second=c.flops_per_second * speed) for key, c in card.model.computes.items()}
        card = replace(card, model=replace(card.model, computes=faster, name=f"{card.model.name}, {speed:g} x as fast"))
    if link is None:
        return card
    copies = {**card.model.copies, **{lane: replace(card.model.copy(lane), bytes_per_second=link) for lane in ("h2d", "d2h")}}
    return replace(card, model=replace(card.model, copies=copies, name=f"{card.model.name}, {link / 1e9:.0f} GB/s"))


def planned(network: str, batch: int, where: Device, policy: str, budget: int | None, **options: Any) -> NetworkPlan | None:
    """A training step; None where there is no plan. A budget of None is no limit."""
    limit = budget if budget is not None else 1 << 50
    with suppress(BudgetError, UnsupportedError):
        return graph_of(network).plan(batch=batch, device=where, policy=policy, budget=limit, **options)
    return None


def row(paper: str, setup: str, published: str, ours: str, auto: str = "-", plan: NetworkPlan | None = None) -> Row:
    """A row of the table. plan: the one that compute : link, the peak and bytes per image are of."""
    entry: Row = {"paper": paper, "setup": setup, "published": published, "ours": ours, "auto": auto}
    if plan is not None:
        moved = sum(plan.lane_bytes.get(lane, 0) for lane in ("h2d", "d2h"))
        link = max(plan.lane_seconds.get(lane, 0.0) for lane in ("h2d", "d2h"))
        entry |= {
            "compute_to_link": plan.lane_seconds.get("compute", 0.0) / link if link else None,
            "peak": plan.peaks["device"], "bytes_per_image": moved / plan.batch, "why": plan.why,
        }  # fmt: skip
    return entry


def over(plan: NetworkPlan | None, seconds: float) -> str:
    """The overhead of a plan over so many seconds, in words."""
    return "no plan" if plan is None else f"{plan.predicted_seconds / seconds - 1:+.1%}"


def best_policy(network: str, batch: int, where: Device, budget: int) -> NetworkPlan | None:
    """The fastest plan of all policies but those that stream calls."""
    plans = [planned(network, batch, where, policy, budget) for policy in POLICIES if not POLICIES[policy].streams]
    return min((p for p in plans if p is not None), key=lambda p: p.predicted_seconds, default=None)


# ---- the papers


def ooc_cudnn() -> Iterator[Row]:
    """Figure 3: VGG16 beyond the memory of a P100, per image over the batch that is in core."""
    where, memory = device("p100"), 16 * GIB
    inside = planned("vgg16", 128, where, "keep", None)
    assert inside is not None
    each = inside.predicted_seconds / 128
    for batch in (256, 512, 1024):
        theirs, stream, auto = (planned("vgg16", batch, where, policy, memory) for policy in ("ooc_cudnn", "stream", "auto"))
        best = best_policy("vgg16", batch, where, memory)
        ours = f"ooc_cudnn {over(theirs, each * batch)}; layer by layer, nothing resident {over(stream, each * batch)}"
        ours += f"; {best.policy} {over(best, each * batch)}" if best is not None else ""
        setup = f"VGG16, batch {batch} over 128 in core, P100 of 16 GiB"
        yield row("ooc_cuDNN, Figure 3", setup, "+10 to 13 % per image", ours, over(auto, each * batch), theirs)


def vdnn(name: str, title: str, published: str, saved: Mapping[str, str]) -> Iterator[Row]:
    """VGG16 at batch 256 on a card of 12 GB, against a card with memory without end; average memory of smaller networks
    with the leanest kernels, the paper's memory-optimal (m), without what lasts."""
    where, memory = device(name), 12 * GIB
    oracle = planned("vgg16", 256, where, "keep", None)
    assert oracle is not None
    kinds = {policy: planned("vgg16", 256, where, policy, memory) for policy in ("vdnn_all", "vdnn_conv", "vdnn_dyn")}
    auto = planned("vgg16", 256, where, "auto", memory)
    ours = ", ".join(f"{policy} {over(plan, oracle.predicted_seconds)}" for policy, plan in kinds.items())
    overhead = over(auto, oracle.predicted_seconds)
    yield row(title, "VGG16, batch 256, over memory without end", published, ours, overhead, kinds["vdnn_dyn"])
    for network, share in saved.items():
        less = leanest(network, 128, where, "vdnn_all")
        fewer = 1 - average(less) / passing(less)
        yield row(title, f"{network}, batch 128: average memory of what passes", share, f"vdnn_all (m) {-fewer:+.0%}", plan=less)


def leanest(network: str, batch: int, where: Device, policy: str) -> NetworkPlan:
    """A policy's plan that takes the fewest bytes. Raises BudgetError, UnsupportedError."""
    judge = judge_of(graph_of(network), batch, None, NetworkRequest(Mode.STEP), where)
    return NetworkPlan.of(judge, policy, {}, POLICIES[policy].least(judge), judge.needs(POLICIES[policy].least(judge)))


def average(plan: NetworkPlan) -> float:
    """Bytes in use beside what lasts, on average over the predicted time."""
    usage = load(plan)
    return float(np.average(usage.nbytes[:-1], weights=np.diff(usage.times))) - (everything(plan) - passing(plan))


def everything(plan: NetworkPlan) -> int:
    """Bytes of all tensors of the network at the same time, as Torch and Caffe had them then."""
    return sum(int(aligned(t.nbytes)) for t in plan.network.tensors.values())


def passing(plan: NetworkPlan) -> int:
    """The same without what lasts: parameters, their gradients."""
    return everything(plan) - sum(int(aligned(t.nbytes)) for t in plan.network.lasting)


def vdnnpp() -> Iterator[Row]:
    """vDNN's barrier against none in 3.5 GB, and what heuristics of layouts lose to gaps."""
    memory = int(3.5 * GIB)
    cases = [(network, batch, 1.0) for network, batch in LAG if network != "lag"]
    cases += [(network, batch, speed) for network, batch in LAG if network == "lag" for speed in SPEEDS]
    for network, batch, speed in cases:
        where = device("titanx", memory, speed=speed)
        with_barrier, without, auto = (planned(network, batch, where, p, memory) for p in ("vdnn_all", "vdnn++", "auto"))
        ours, gain = "neither has a plan", "no plan" if auto is None else f"{auto.predicted_seconds:.3g} s"
        if with_barrier is not None:
            judge = judge_of(graph_of(network), batch, memory, NetworkRequest(Mode.STEP), where)
            free = judge.seconds(replace(with_barrier.proposal, barrier=False, patient=True))
            ours = f"vdnn_all {with_barrier.predicted_seconds / free - 1:.1%} faster without barriers"
            faster = "-" if auto is None else f"{with_barrier.predicted_seconds / auto.predicted_seconds - 1:.1%}"
            gain = f"{faster} faster than vdnn_all"
        card = "a Titan X with 3.5 GiB for a GTX 970" + (f", {speed:g} x as fast" if speed != 1 else "")
        yield row("vDNN++", f"{network}, batch {batch}, {card}", "up to 60 % faster", ours, gain, without)
    where = device("titanx")
    for network, batch in POOLED:
        judge = judge_of(named(network), batch, None, NetworkRequest(Mode.STEP), where)
        trial = judge.trial(POLICIES["vdnn_all"].least(judge))
        lost = ", ".join(f"{how} {gaps:.1%}" for how, gaps in fragmentation(trial).items())
        yield row("vDNN++", f"{network}, batch {batch}, vdnn_all: memory lost to gaps", "-", lost)


def vdnnpp_packed() -> Iterator[Row]:
    """Pinned bytes that are saved where zeros are left out, after some steps of training on the processor here."""
    for network, (sizes, _) in TRAINED.items():
        told = trained(network)
        setup = f"{network} of side {sizes['side']}, width {sizes['width']}, trained here for {STEPS} steps: bytes of what leaves"
        ours = f"-{1 - told.end:.0%}; -{1 - told.begin:.0%} in the first step (loss {told.first:.2f}, then {told.last:.2f})"
        yield row("vDNN++", setup, "up to -60 %", ours)


def fragmentation(trial: Trial) -> dict[str, float]:
    """Bytes of layouts above the largest load, as a share of it, by heuristic: offline ones, and pools that know no future."""
    lowering = trial.lowering
    most = int(lowering.load().max())
    lasting = [b for b in lowering.resident.values() if b.space == "device"]
    lives = {b: life for b, life in lowering.lives.items() if b.space == "device"}
    peaks = {how: arrange(lives, lasting, how, lowering.under(how)).peaks["device"] for how in ("colour", "first", "rotate")}
    floor = sum(int(aligned(b.nbytes)) for b in lasting)
    passing = list(lives.items())
    peaks |= {f"online {'best' if best else 'first'} fit": floor + online(passing, best) for best in (True, False)}
    peaks["CnMem"] = cnmem([*((b, (0, len(lowering.made.items))) for b in lasting), *passing])
    return {how: peak / most - 1 for how, peak in peaks.items()}


def smartpool() -> Iterator[Row]:
    """The footprint of an offline layout beside those of pools that know no future."""
    for network, batch in POOLED:
        judge = judge_of(named(network), batch, None, NetworkRequest(Mode.STEP), device("titanx"))
        lost = fragmentation(judge.trial(Proposal("keep", kernels="lean")))
        fewer = {pool: (1 + lost["colour"]) / (1 + lost[pool]) - 1 for pool in ("CnMem", "online best fit")}
        ours = f"{fewer['CnMem']:+.1%} against CnMem's rule, {fewer['online best fit']:+.1%} against an online best fit"
        ours += f"; {lost['colour']:.1%} above the largest load"
        yield row("SmartPool", f"{network}, batch {batch}", "-13.3 % against CnMem's pool", ours)


def autoswap() -> Iterator[Row]:
    """How far memory shrinks before a step takes longer, by score and scheduler."""
    for network, batch in POOLED:
        where = device("titanx")
        keep = planned(network, batch, where, "keep", None)
        assert keep is not None
        shares: dict[tuple[str, str], float] = {}
        for score, scheduler in itertools.product(SCORES, SCHEDULERS):
            shares[score, scheduler] = free_share(network, batch, where, keep, score=score, scheduler=scheduler)
        score, scheduler = best = max(shares, key=shares.__getitem__)
        ours = f"-{shares[best]:.0%} by {score}, {scheduler}; -{shares[SCORE, SCHEDULER]:.0%} by default"
        auto = free_share(network, batch, where, keep)
        budget = int(keep.peaks["device"] * (1 - shares[best]))
        plan = planned(network, batch, where, "autoswap", budget, score=score, scheduler=scheduler)
        yield row("AutoSwap", f"{network}, batch {batch}: less memory at no overhead", "-34.2 %", ours, f"-{auto:.0%}", plan)


def free_share(network: str, batch: int, where: Device, keep: NetworkPlan, **options: Any) -> float:
    """The largest share of memory, in twentieths, without which a step takes no longer; of auto without options."""
    for percent in range(70, 0, -5):
        budget = keep.peaks["device"] * (100 - percent) // 100
        plan = planned(network, batch, where, "autoswap" if options else "auto", budget, **options)
        if plan is not None and plan.predicted_seconds <= keep.predicted_seconds * (1 + HUNDREDTH):
            return percent / 100
    return 0.0


def layrub() -> Iterator[Row]:
    """Bytes beside those of Caffe, which has all tensors at the same time, and seconds beside those of keep."""
    for network, batch in (*RUBBED, ("resnet1517", 32)):
        where = device("titanx")
        judge = judge_of(named(network), batch, None, NetworkRequest(Mode.STEP), where)
        caffe = sum(int(aligned(t.nbytes)) for t in judge.net.tensors.values())
        keep = judge.seconds(Proposal("keep"))
        proposal = POLICIES["layrub"].least(judge)
        trial = judge.trial(proposal)
        needs, seconds = trial.bytes, trial.seconds_of(trial.schedule(None))
        ours = f"-{1 - needs / caffe:.1%} bytes ({needs / GIB:.2f} GiB), {seconds / keep - 1:+.1%} time"
        overhead = "-"
        if network != "resnet1517":  # whose plan by auto takes minutes
            auto = planned(network, batch, where, "auto", needs)
            overhead = f"{over(auto, keep)} time in as many bytes"
        text = "1517 layers in 12 GB" if network == "resnet1517" else "-58.2 % on average, -98.9 % at most; +24.1 %"
        yield row("Layrub", f"{network}, batch {batch}", text, ours, overhead)


def pooch() -> Iterator[Row]:
    """ResNet-50 beyond 16 GB, over links of PCIe and of NVLink."""
    for link, published in ((12e9, "+38 % (batch 640)"), (70e9, "+28 % (batch 640)")):
        where, memory = device("v100", link=link), 16 * GIB
        for batch in (256, 640):
            keep = planned("resnet50", batch, where, "keep", None)
            assert keep is not None
            ours, auto = (planned("resnet50", batch, where, policy, memory) for policy in ("pooch", "auto"))
            seconds = keep.predicted_seconds
            setup = f"ResNet-50, batch {batch}, V100 of 16 GiB, {link / 1e9:.0f} GB/s"
            yield row("PoocH", setup, published, over(ours, seconds), over(auto, seconds), ours)


def superneurons() -> Iterator[Row]:
    """The deepest residual network of the paper on a K40."""
    judge = judge_of(named(f"resnet{DEEPEST}"), 16, 12 * GIB, NetworkRequest(Mode.STEP), device("k40"))
    needs, most = judge.needs(POLICIES["superneurons"].least(judge)), layer_peak(judge.net)
    ours = f"needs {needs / GIB:.2f} GiB, of which one layer takes {most / GIB:.2f}"
    yield row("SuperNeurons", f"ResNet-{DEEPEST}, batch 16, K40 of 12 GiB", "trains ResNet-2500", ours)


def micro_cudnn() -> Iterator[Row]:
    """Convolutions under a limit of workspace each, whole and for parts of the batch."""
    for network, batch, published in (("alexnet", 256, "1.63 x"), ("resnet18", 128, "1.21 x")):
        judge = judge_of(named(network), batch, None, NetworkRequest(Mode.STEP), device("p100"))
        gains = []
        for mib in (64, 128, 256, 512):
            whole = judge.seconds(Proposal("whole", kernels=f"fitting:{mib << 20}"))
            parts = judge.seconds(division(judge, mib << 20))
            gains.append(f"{whole / parts:.2f} x at {mib} MiB")
        yield row("micro-cuDNN", f"{network}, batch {batch}, P100, workspace 64 to 512 MiB", published, ", ".join(gains))


def modnn() -> Iterator[Row]:
    """How small sub-batches make a network, and what they cost where it does not fit as a whole."""
    where, memory = device("titanx"), 12 * GIB
    for network, batch in (("vgg16", 256), ("googlenet", 512)):
        keep = planned(network, batch, where, "keep", None)
        ours, auto = (planned(network, batch, where, policy, memory) for policy in ("modnn", "auto"))
        assert keep is not None and ours is not None
        smaller = everything(keep) / ours.smallest_bytes
        text = f"{smaller:.0f} x smaller at least; {over(ours, keep.predicted_seconds)} in 12 GiB"
        setup = f"{network}, batch {batch}, Titan X of 12 GiB"
        yield row("moDNN", setup, "50 x smaller; 8 % loss", text, over(auto, keep.predicted_seconds), ours)


PAPERS: dict[str, Callable[[], Iterator[Row]]] = {
    "ooc_cudnn": ooc_cudnn,
    "vdnn_arxiv": lambda: vdnn("k40", "vDNN (arXiv v1)", "22 % loss", {"alexnet": "-61 %", "overfeat": "-83 %"}),
    "vdnn_micro": lambda: vdnn(
        "titanx", "vDNN (MICRO-49)", "18 % loss", {"alexnet": "-89 %", "overfeat": "-91 %", "googlenet": "-95 %"}
    ),
    "vdnn++": vdnnpp, "vdnn++_packed": vdnnpp_packed, "smartpool": smartpool, "autoswap": autoswap, "layrub": layrub,
    "pooch": pooch, "superneurons": superneurons, "micro_cudnn": micro_cudnn, "modnn": modnn,
}  # fmt: skip


def headlines(only: str = "") -> Iterator[Row]:
    """All rows, or those of one paper. Raises ValueError for another name."""
    if only and only not in PAPERS:
        raise ValueError(f"figures networks: no row {only}; there are {', '.join(PAPERS)}")
    for name, rows in PAPERS.items():
        if only in ("", name):
            yield from ({"row": name, **entry} for entry in rows())


HEAD = ("paper", "setup", "published", "ours, by its method", "auto", "compute : link", "peak", "per image")


def cells(entry: Row) -> tuple[str, ...]:
    """A row of the table."""
    ratio, peak, moved = (entry.get(key) for key in ("compute_to_link", "peak", "bytes_per_image"))
    return (
        entry["paper"], entry["setup"], entry["published"], entry["ours"], entry["auto"], f"{ratio:.2f}" if ratio else "-",
        f"{peak / GIB:.2f} GiB" if peak else "-", f"{moved / 1e6:.0f} MB" if moved is not None else "-",
    )  # fmt: skip

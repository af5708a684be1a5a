"""Measuring a CUDA device: its link, pinned memory and kernels -> a calibration that `load_device` reads.

Everything is measured with the code that runs later: the backend's copies on their lanes, and its kernels.
"""

from __future__ import annotations

import datetime
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

from ooc.backends.cuda.backend import EXACT, OWN, CudaBackend
from ooc.model.calibration import DEVICES, closest
from ooc.ops.descriptor import parse
from perfmodel.calibrate.cuda_link import Link, describe
from perfmodel.calibrate.cuda_timing import CudaBench, Effort
from perfmodel.calibrate.entries import MIB, SAME, Say, others

KINDS = ("conv.fprop", "conv.dgrad", "conv.wgrad")
# The most telling first: an entry ends when its time is over. Every second one is measured quickly. As tiles are: of one image or
# some, with whole rows, of 20 GFLOP and 256 MiB and more, but for one that tells what a call costs.
CONVS = (
    "n=1 c=64 h=768 w=768 k=64 r=3 s=3 pad=1",
    "n=1 c=32 d=128 h=128 w=128 k=32 t=3 r=3 s=3 pad=1",
    "n=1 c=2048 h=24 w=512 k=2048 r=3 s=3 pad=1",
    "n=32 c=3 h=224 w=224 k=64 r=3 s=3 pad=1",
    "n=1 c=32 h=12 w=12 k=32 r=3 s=3 pad=1",
    "n=64 c=512 h=28 w=28 k=512 r=3 s=3 pad=1",
    "n=32 c=256 h=56 w=56 k=256 r=3 s=3 pad=1",
    "n=64 c=128 h=112 w=112 k=128 r=3 s=3 stride=2 pad=1",
    "n=32 c=64 h=224 w=224 k=64 r=3 s=3 pad=1",
    "n=64 c=256 h=56 w=56 k=256 r=1 s=1",
)
MANY_TAPS = (
    "n=1 c=16 h=512 w=512 k=16 r=31 s=31 pad=15",
    "n=1 c=1 h=2048 w=2048 k=1 r=127 s=127 pad=63",
    "n=1 c=4 w=4194304 k=4 s=2001 pad=1000",
    "n=1 c=2 h=40 w=40 k=2 r=13 s=13 pad=6",
    "n=2 c=32 h=256 w=256 k=32 r=45 s=45 pad=22",
)
OWN_CONVS = (
    "n=1 c=64 h=56 w=56 k=64 r=3 s=3 pad=1",
    "n=1 c=16 h=12 w=12 k=16 r=3 s=3 pad=1",
    "n=1 c=2 h=4 w=4 k=4 r=3 s=3 pad=1",
    "n=1 c=3 h=224 w=224 k=16 r=3 s=3 pad=1",
    "n=4 c=64 h=56 w=56 k=64 r=3 s=3 pad=1",
    "n=1 c=128 h=28 w=28 k=128 r=1 s=1",
    "n=1 c=8 d=24 h=24 w=24 k=8 t=3 r=3 s=3 pad=1",
)
PLANES = ("n=16 k=64 h=224 w=224", "n=8 k=64 h=56 w=56", "n=1 k=8 h=16 w=16", "n=1 k=64 h=112 w=112")
SLOW = ("n=16 k=64 h=56 w=56", "n=1 k=64 h=56 w=56", "n=1 k=8 h=16 w=16")
WINDOWS = (
    "n=16 k=64 h=112 w=112 window=2", "n=8 k=64 h=56 w=56 window=3 stride=2 pad=1", "n=1 k=8 h=32 w=32 window=2",
    "n=1 k=64 h=112 w=112 window=2",
)  # fmt: skip
MATRICES = ("n=1 k=1 h=4096 w=4096 c=4096", "n=1 k=12 h=2048 w=2048 c=64", "n=1 k=8 h=64 w=64 c=64")
SCORES = (
    "n=1 k=12 h=4096 w=4096 c=64 depth=64", "n=8 k=12 h=1024 w=1024 c=64 depth=64", "n=1 k=8 h=64 w=64 c=32 depth=32",
)  # fmt: skip
PRODUCTS = {"matmul.nn": MATRICES, **dict.fromkeys(("attention.forward", "attention_backward.q"), SCORES)}
OTHERS = others(PLANES, SLOW, WINDOWS)
IN_ORDER = ("reduce.bias", "reduce.positions", "bn.moments", "bn.sums")  # `plain` is another kernel, and slower
FULL = Effort(8 << 30, 256 * MIB, 1, 7, 2e-3, 2.0)
QUICK = Effort(4 << 30, 64 * MIB, 2, 5, 1e-3, 0.5)
TINY = Effort(8 << 10, 64 << 10, 2, 2, 0.0, 0.5, 1)
FULL_SECONDS = 240.0  # for which everything is worth beginning

Save = Callable[[dict[str, Any]], None]


class ComputeEntries(dict[str, Any]):
    """Entries of kernels by key; each that is added is told of."""

    def __init__(self, told: Callable[[], None]) -> None:
        super().__init__()
        self.told = told

    def __setitem__(self, key: str, entry: Any) -> None:
        super().__setitem__(key, entry)
        self.told()


def calibrate_cuda(
    backend: CudaBackend, say: Say = print, quick: bool = False, effort: Effort | None = None, save: Save | None = None
) -> dict[str, Any]:
    """Measure a device, with and without TF32 (under four minutes; quick: under one). Returns the JSON object.

    effort: instead of what is usual. save: called with what is known so far, whenever that is more, and the rest as shipped. What
    the device or its libraries cannot do is said and left out.
    """
    effort = effort or (QUICK if quick else FULL)
    errors: dict[str, float] = {}
    both = [CudaBench(b, effort, errors, say) for b in _with_and_without_tf32(backend)]
    bench, gpu = both[0], backend.driver.identity().get("gpu", "unnamed")
    link, shipped = Link(bench), _shipped(gpu)
    say("compiling kernels")
    bench.warm_up(OWN_CONVS)  # first of all: a device at rest has slower clocks, for copies too
    copies = link.copies()

    def so_far() -> None:
        if save is not None:
            save({**shipped, "name": gpu, "copies": copies, "computes": {**shipped["computes"], **computes},
                  "source": f"measured in part; the rest: {shipped['source']}"})  # fmt: skip

    computes = ComputeEntries(so_far)
    so_far()
    _convolutions(both, computes)
    _products(both, computes)
    _others(bench, computes)
    register = link.register()
    system = describe(backend) | link.pageable()
    contention = link.duplex() | {"compute": link.contention(CONVS)}
    # What no entry is like is taken for what serves every convolution: cuDNN's lean algorithms, or our own kernels.
    general = [computes[key] for f in ("cudnn_lean", *OWN) if (key := f"conv.fprop/f32/{f}") in computes]
    computes |= {"*/*/*": general[-1], "*/*/null": general[0]}
    return {
        "name": gpu, "gpu": gpu, "source": "measured", "date": datetime.date.today().isoformat(), "system": system,
        "origins": {f"computes.{key}": "assumed" for key in computes if not _measured(key, errors)},
        "memory_bytes": backend.total_bytes, "fit_error": errors, "copies": copies,
        **({"register": register} if register else {}), "contention": contention, "computes": dict(computes),
    }  # fmt: skip


def _shipped(gpu: str) -> dict[str, Any]:
    """What is shipped of the nearest device."""
    calibration: dict[str, Any] = json.loads((DEVICES / f"{closest(gpu)}.json").read_text())
    return calibration


def _measured(key: str, errors: dict[str, float]) -> bool:
    """Whether an entry is of a kernel that was measured, not of one like it; `*` stands for f32 and kernels of ours."""
    kind, dtype, kernel = key.split("/")
    return f"{kind}/{dtype.replace('*', 'f32')}/{kernel.replace('*', 'cuda')}" in errors


def _with_and_without_tf32(backend: CudaBackend) -> Iterator[CudaBackend]:
    for tf32 in (False, True):
        same = tf32 == ("cudnn_tf32" in backend.families)
        yield backend if same else type(backend)(backend.driver, tf32, backend.copy_threads)


def _convolutions(both: list[CudaBench], computes: dict[str, Any]) -> None:
    """Entries of all families of convolutions. TF32 is measured for f32; what else there is does not know it."""
    done: set[str] = set()
    for bench in both:
        for family in (f for f in bench.backend.families if f not in done and not f.startswith("cublas")):
            done.add(family)
            refused = [
                bench.backend.why_not(parse(f"conv.fprop {_shapes(family)[0]} dtype={dtype}")).get(family)
                for dtype in ("f32", "f16")
            ]
            bench.say(f"kernels: {family}" + (f" left out: {refused[0]}" if all(refused) else ""))
            if not all(refused):
                _family(bench, family, computes)


def _shapes(family: str) -> tuple[str, ...]:
    """The convolutions by which a family is measured."""
    return OWN_CONVS if family in OWN else MANY_TAPS if family == "cufft" else CONVS


def _family(bench: CudaBench, family: str, computes: dict[str, Any]) -> None:
    ours, single = family in OWN, family not in EXACT
    dtypes = ("f32",) if single else ("f32", "f64", "f16") if ours else ("f32", "f64", "f16", "bf16")
    for kind, dtype in itertools.product(KINDS, dtypes):
        entry = bench.entry(kind, _shapes(family), dtype, family)
        if entry:
            computes[f"{kind}/{dtype}/{family}"] = entry
    if ours:
        computes |= {k.replace("f16", "bf16"): e for k, e in computes.items() if "/f16/" in k and k.endswith(f"/{family}")}
    if single:
        like = family.replace("_tf32", "")
        same = {k: e for k, e in computes.items() if k.endswith(f"/{like}") and "/f32/" not in k}
        computes |= {f"{k.rpartition('/')[0]}/{family}": e for k, e in same.items()}


def _products(both: list[CudaBench], computes: dict[str, Any]) -> None:
    """Entries of products of matrices and of attention by cuBLAS; those of other types do not know TF32."""
    for bench in both:
        family = next(f for f in bench.backend.families if f.startswith("cublas"))
        bench.say(f"kernels: {family}")
        for kind, dtype in itertools.product(PRODUCTS, ("f32",) if "tf32" in family else ("f32", "f64", "f16", "bf16")):
            if entry := bench.entry(kind, PRODUCTS[kind], dtype, family):
                computes[f"{kind}/{dtype}/{family}"] = entry
    same = {k: e for k, e in computes.items() if k.endswith("/cublas") and "/f32/" not in k}
    computes |= {f"{k}_tf32": e for k, e in same.items()}


def _others(bench: CudaBench, computes: dict[str, Any]) -> None:
    """Entries of all other operations; the sums in order have their own."""
    bench.say("kernels: other operations")
    for kind, shapes in OTHERS.items():
        for key, some, family in ((f"{kind}/*/*", shapes, "cuda"), (f"{kind}/*/plain", SLOW, "plain")):
            if (family == "cuda" or kind in IN_ORDER) and (entry := bench.entry(kind, some, "f32", family)):
                computes[key] = entry
    computes |= {f"{kind}/*/*": computes[f"{like}/*/*"] for kind, like in SAME.items() if f"{like}/*/*" in computes}

"""The null backend: what it offers as a CUDA device would, and what that is predicted to take."""

from __future__ import annotations

import copy
import pickle
import random

import numpy as np
import pytest
from cases_fused import FUSED
from cases_ops import KINDS, random_common
from emulated_driver import emulated

import ooc
from ooc.backends.algorithms import EXACT, EXTRA, ROUNDED
from ooc.backends.cuda.tuning import SCRATCH
from ooc.backends.null import BLAS, NullBackend
from ooc.errors import ShapeError, UnsupportedError
from ooc.model.calibration import load_device, shipped
from ooc.ops.descriptor import parse
from ooc.planner.question import Question
from ooc.runtime.context import changed
from ooc.runtime.device import Device
from ooc.schedule.budget import Budget
from ooc.schedule.place import Place
from tools import h200_calibration as h200

pytestmark = pytest.mark.quick

FORMS = KINDS | FUSED
CUDA = (*EXACT, "cuda")
GPUS = tuple(name for name in shipped() if name != "cpu")
CONV = "conv.fprop n=64 c=64 h=56 w=56 k=64 r=3 s=3 pad=1 dtype=f32"
MANY = "conv.fprop n=16 c=1024 h=60 w=60 k=1024 r=3 s=3 pad=1 dtype=f32"  # channels, that repay transforms everywhere


def on(kernels: tuple[str, ...], budget: int | None = 1 << 28, **limits: int | bool) -> Device:
    model = load_device("p100")
    return Device(NullBackend(model.memory_bytes or 0, kernels), model, budget, **limits)  # type: ignore[arg-type]


def planned(device: Device, text: str) -> str:
    op = parse(text)
    (plan,) = device.planner.plans(op, {o.name: Place.HOST for o in op.operands})
    return str(plan.kernel)


def test_equal_where_memory_and_kernels_are() -> None:
    plain, cuda = NullBackend(1 << 30), NullBackend(1 << 30, CUDA)
    assert plain == NullBackend(1 << 30, ("null",)) and hash(plain) == hash(NullBackend(1 << 30, ("null",)))
    assert plain != cuda and plain != NullBackend(1 << 31) and cuda != NullBackend(1 << 30, CUDA[1:])
    for again in (pickle.loads(pickle.dumps(cuda)), copy.copy(cuda), copy.deepcopy(cuda), cuda.bare()):
        assert again == cuda and hash(again) == hash(cuda) and again.kernels == CUDA


def test_offers_one_kernel_without_workspace_unless_told() -> None:
    for form in FORMS:
        op = FORMS[form](rng := random.Random(1), random_common(rng))
        (offer,) = NullBackend().offers(op)
        assert offer.name == "null" and offer.ordered and NullBackend().why_not(op) == {}
        assert len(op.stages) > 1 or offer.workspace(op.dims) == 0


@pytest.mark.parametrize("kernels", [(), ("tensor",), ("cudnn",), ("cuda", "cudnn_lean"), ("null", None)])
def test_kernels_that_make_no_sense(kernels: tuple[str, ...]) -> None:
    with pytest.raises(ShapeError, match="expected some of null, cufft"):
        NullBackend(1 << 30, kernels)


MANY_TAPS = "conv.dgrad n=2 c=4 d=9 h=40 w=41 k=6 t=1 r=13 s=13 groups=2 dtype=f32"


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_offers_what_a_cuda_device_does(form: str, tf32: bool) -> None:
    """While none of its algorithms was measured: the same kernels with the same workspace, of one tile and of many."""
    rng, cuda = random.Random(form), emulated(cudnn=True, tf32=tf32)
    null = NullBackend(kernels=("cufft", *(ROUNDED if tf32 else EXACT), BLAS[tf32], "cuda", "plain"))
    for op in (*(FORMS[form](rng, random_common(rng)) for _ in range(6)), parse(MANY_TAPS)):
        wanted, got = cuda.offers(op), null.offers(op)
        assert [(o.name, o.ordered) for o in got] == [(o.name, o.ordered) for o in wanted]
        assert null.why_not(op) == cuda.why_not(op)
        tiles = [op.dims, *(op.legal({d: rng.randint(1, e) for d, e in op.dims.items()}) for _ in range(4))]
        for mine, theirs in zip(got, wanted, strict=True):
            assert [mine.workspace(z) for z in tiles] == [theirs.workspace(z) for z in tiles]
            many = {d: np.array([z[d] for z in tiles]) for d in op.dims}
            np.testing.assert_array_equal(mine.workspace(many), theirs.workspace(many))


def test_cudnn_takes_no_tile_of_two_thousand_million_elements() -> None:
    op = parse("conv.dgrad n=32768 c=64 h=32 w=32 k=64 r=3 s=3 pad=1 dtype=f32")  # x has 2^31
    *cudnn, cuda = NullBackend(kernels=CUDA).offers(op)
    assert [o.name for o in cudnn] == list(EXACT)
    assert min(o.workspace(op.dims) for o in cudnn) >= 1 << 55 and cuda.workspace(op.dims) == 0
    assert cudnn[-1].workspace({**op.dims, "n": 32767}) == 0


@pytest.mark.parametrize("direction", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("name", GPUS)
def test_the_faster_kernel_is_predicted_to_be_faster(name: str, direction: str) -> None:
    model, backend = load_device(name), NullBackend(kernels=CUDA)
    for dtype in ("f64", "f32", "f16", "bf16"):
        op = parse(MANY.replace("fprop", direction).replace("f32", dtype))
        asked = Question(op, Budget(), backend.offers(op), model)
        *cudnn, cuda = (asked.in_one_piece(o) for o in asked.offers)
        # Older GPUs compute bfloat16 by kernels of our own. The order of what was measured is its own.
        assert (cudnn == sorted(cudnn) or name == "h200") and max(cudnn) <= cuda and (max(cudnn) < cuda or dtype == "bf16")
        keys = [model.entry(f"{op.kind}/{dtype}/{kernel}") for kernel in CUDA]
        assert "*/*/*" not in keys and keys[-1].endswith("/cuda")


def test_plans_choose_among_them() -> None:
    assert planned(on(CUDA), MANY) == "cudnn_winograd"
    assert planned(on(CUDA), CONV.replace("f32", "f16")) == "cudnn"
    assert planned(on(CUDA, workspace_bytes=0), CONV.replace(" pad=1", "")) == "cudnn_lean"
    assert planned(on(CUDA), "pool.max n=64 k=64 h=56 w=56 window=2 stride=2 dtype=f32") == "cuda"
    assert planned(on(("null",)), CONV) == "null"


def test_sums_that_depend_on_the_tiles_are_not_deterministic() -> None:
    wgrad = CONV.replace("fprop", "wgrad")
    with pytest.raises(UnsupportedError, match="not deterministic"):
        planned(on(CUDA, deterministic=True), wgrad)
    assert planned(on((*CUDA, "plain"), deterministic=True), wgrad) == "plain"
    assert planned(on((*CUDA, "plain"), deterministic=True), CONV) == "cuda"  # its threads share no sum


@pytest.mark.parametrize(
    ("text", "sizes", "wanted"),
    [  # bytes that an H200 asked for: perfmodel/results/h200/first.jsonl
        ("conv.fprop n=32 c=64 h=224 w=224 k=64 r=3 s=3 pad=1", {"cudnn_winograd": 1850277888, "cudnn_fft": 53477376}, ()),
        ("conv.fprop n=32 c=256 h=56 w=56 k=256 r=3 s=3 pad=1", {"cudnn_winograd": 471859200, "cudnn_fft": 427819008}, ()),
        ("conv.fprop n=32 c=512 h=14 w=14 k=512 r=3 s=3 pad=1", {"cudnn_winograd": 113246208, "cudnn_fft": 1283457024}, ()),
        ("conv.fprop n=32 c=64 h=224 w=224 k=64 r=3 s=3 pad=1 dtype=f16", {}, (411115923, 411115667)),
        ("conv.fprop n=32 c=512 h=14 w=14 k=512 r=3 s=3 pad=1 dtype=f16", {}, (25954735, 25952687)),
        ("conv.fprop n=1 c=32 d=128 h=128 w=128 k=32 t=3 r=3 s=3 pad=1 dtype=f16", {}, (268491027,)),
    ],
)
def test_workspaces_are_those_that_cudnn_wants(text: str, sizes: dict[str, int], wanted: tuple[int, ...]) -> None:
    op = parse(text if "dtype" in text else f"{text} dtype=f32")
    offers = {o.name: int(o.workspace(op.dims)) for o in NullBackend(kernels=CUDA).offers(op)}
    assert {name: offers[name] for name in sizes} == sizes
    assert all(nbytes <= offers["cudnn"] <= nbytes + EXTRA["fprop"] for nbytes in wanted)


def test_the_fastest_algorithm_has_room_on_tensor_cores_and_off() -> None:
    """All that an H200 was asked for, in all passes: the workspace that its fastest algorithm wants, but those that transform
    without tensor cores."""
    seen = 0
    for op, how, choices, _ in (*h200.probed(), *h200.tuned()):
        kernels = ("cudnn_tf32", "cudnn_tf32_lean") if how == "tf32" else ("cudnn", "cudnn_lean")
        offers = {o.name: int(o.workspace(op.dims)) for o in NullBackend(kernels=(*kernels, "cuda")).offers(op)}
        exact = [c for c in choices if how != "fma" or c[1] in (0, 1)]
        _, code, nbytes = min(exact, default=(0.0, 0, 0))
        if code == 1:
            seen += 1
            assert nbytes <= max(SCRATCH, *offers.values()), (op, nbytes, offers)
    assert seen > 100


def test_kernels_stay_with_another_calibration() -> None:
    other = changed(on(CUDA), None, "h100")
    assert other.backend == NullBackend(load_device("h100").memory_bytes or 0, CUDA)


@pytest.mark.parametrize("tf32", [False, True])
def test_a_device_that_stands_for_a_gpu_has_its_kernels(tf32: bool) -> None:
    bare, cpu = ooc.device("null", tf32=tf32), ooc.device("null", calibration="cpu", tf32=tf32)
    assert bare.backend.kernels == cpu.backend.kernels == ("null",)  # type: ignore[attr-defined]
    for name in GPUS:
        device = ooc.device("null", calibration=name, tf32=tf32)
        assert [*device.backend.families] == [*emulated(cudnn=True, tf32=tf32).families]  # type: ignore[attr-defined]
        assert device.backend.total_bytes == load_device(name).memory_bytes
        assert changed(bare, None, name).backend == device.backend == pickle.loads(pickle.dumps(device)).backend
        assert changed(device, None, "cpu").backend.kernels == ("null",)  # type: ignore[attr-defined]

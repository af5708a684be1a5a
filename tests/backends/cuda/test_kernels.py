"""The CUDA kernels, compiled for the host, give what the naive references give; and the CUDA compiler takes them."""

from __future__ import annotations

import random
import shutil
import subprocess
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import data, noise, random_plan
from cases_fused import FUSED
from cases_ops import KINDS, random_common
from emulated import EmulatedBackend, HostLauncher
from regressions import LINES
from running import assert_right, execute
from sweeps import crossed, swept

from ooc.backends.cuda import kernels, source
from ooc.backends.cuda.code import machine_code
from ooc.backends.cuda.kernels import move, own_kernel
from ooc.backends.cuda.source import device_source
from ooc.backends.gpu_workspace import SHARED, shared_bytes
from ooc.errors import BackendError
from ooc.ir.op import DTYPES, Block, Op, numpy_dtype
from ooc.ir.region import Span
from ooc.ops import Dropout, SoftmaxSum
from ooc.ops.descriptor import parse
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan
from perfmodel.bench.gpu.compiler import Nvrtc, find_nvrtc

FORMS = KINDS | FUSED
SUMS = [
    "conv.fprop", "conv.dgrad", "conv.wgrad", "reduce.bias", "reduce.positions", "bn.moments", "bn.sums", "softmax.sum",
    "softmax_backward.dot", "softmax_backward.sum", "cross_entropy", "dice.sums", "dice.score", "dice_backward.dot",
    "distance.mse", "distance.l1", "distance.bce",
]  # fmt: skip
IN_A_THREAD = ("conv.fprop", "conv.dgrad", "cross_entropy", "dice.score", "dice_backward.dot")
PARALLEL = [kind for kind in SUMS if kind not in IN_A_THREAD and not kind.startswith("distance")]


def seeded(what: str, form: str) -> random.Random:
    return random.Random(zlib.crc32(f"{what} {form}".encode()))


@pytest.mark.parametrize("form", swept(FORMS, quick=("conv.fprop", "softmax.sum")))
def test_random_plans(form: str, count: int = 4) -> None:
    rng = seeded("plans", form)
    backends = [EmulatedBackend(), EmulatedBackend(staged=True, parts=8)]
    for _ in range(count):
        op, backend = FORMS[form](rng, random_common(rng)), rng.choice(backends)
        arrays = data(rng, op)
        for _ in range(2):
            plan = random_plan(rng, op, backend)
            got = execute(plan, arrays, backend, rng)
            assert_right(op, got, arrays, backend, plan.kernel, str(plan.to_json()))


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_many_random_plans(form: str) -> None:
    test_random_plans(form, 1000)


def tiled(op: Op, sizes: dict[str, int], order: list[str], kernel: str, backend: EmulatedBackend) -> Plan:
    """A plan with these tiles; partial sums leave the device between the tiles where the order says so."""
    offer = next(o for o in backend.offers(op) if o.name == kernel)
    places = tuple((o.name, Place.HOST) for o in op.operands)
    return Plan(op, tuple(sizes.items()), tuple(order), 2, places, backend.staged, backend.shared,
                kernel=kernel, workspace_bytes=int(offer.workspace(sizes)))  # fmt: skip


@pytest.mark.parametrize(("kind", "count"), crossed(list(KINDS), (5, 10), every=2))
def test_the_same_bits_under_any_tiling(kind: str, count: int) -> None:
    """In order, a sum goes on where the tile before left it, however many tiles and wherever its dims are split, at multiples of
    their steps."""
    rng, backend = seeded("bits", kind), EmulatedBackend()
    for _ in range(count):
        op = KINDS[kind](rng, random_common(rng))
        arrays = noise(rng, op)
        wanted = execute(tiled(op, dict(op.dims), list(op.dims), "plain", backend), arrays, backend, None)
        for _ in range(3):
            split = {d for d in op.dims if d not in op.reduce}
            for d in op.ordered or op.reduce[:1]:  # what comes after a dim that is split stays whole
                split.add(d)
                if rng.random() < 0.5:
                    break
            inner = [d for d in op.reduce if d in split]
            sizes = op.legal({d: rng.randint(1, e) if d in split and d not in inner[:-1] else e for d, e in op.dims.items()})
            sizes |= dict.fromkeys(inner[:-1], 1)
            sizes |= {d: min(op.dims[d], -(-sizes[d] // step) * step) for d, step in op.ordered_steps.items()}
            free = [d for d in op.dims if d not in inner]
            order = rng.choice(([*rng.sample(free, len(free)), *inner], [*inner, *rng.sample(free, len(free))]))
            got = execute(tiled(op, op.legal(sizes), order, "plain", backend), arrays, backend, rng)
            for name in wanted:
                assert got[name].tobytes() == wanted[name].tobytes(), f"{name} of {op} in tiles {sizes}, {order}"


@pytest.mark.parametrize(("kind", "layout"), crossed(["conv.fprop", "conv.dgrad"], ["channels_first", "channels_last"], every=2))
def test_several_channels_of_a_thread_have_the_same_bits(kind: str, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are, under any tiling, of sums that go on from a partial sum too."""
    rng, backend, launched = seeded("blocked", kind + layout), EmulatedBackend(), set()
    launch = HostLauncher.launch

    def noted(self: HostLauncher, name: str, *given: Any) -> None:
        launched.add(name)
        launch(self, name, *given)

    monkeypatch.setattr(HostLauncher, "launch", noted)
    for channels in (1, 2, 7, 8, 9, 19, 5, 24):
        op = KINDS[kind](rng, {**random_common(rng), "layout": layout})
        op = replace(op, groups=1, c=channels if kind == "conv.dgrad" else op.c, k=op.k if kind == "conv.dgrad" else channels)
        arrays, tilings = noise(rng, op), []
        for _ in range(2):
            inner = op.ordered[:1]  # what comes after a dim that is split stays whole
            tilings.append(
                op.legal({d: rng.randint(1, e) if d in inner or d not in op.reduce else e for d, e in op.dims.items()})
            )
        made = []
        for filled in (1 << 40, 1):
            monkeypatch.setattr(kernels, "FILLED", filled)
            made.append([
                execute(tiled(op, sizes, list(op.dims), kernel, backend), arrays, backend, None)
                for sizes in (dict(op.dims), *tilings) for kernel in ("plain", "cuda")
            ])  # fmt: skip
        for simple, blocked in zip(*made, strict=True):
            for name, wanted in simple.items():
                assert blocked[name].tobytes() == wanted.tobytes(), f"{name} of {op}"
    assert {f"{kind.replace('.', '_')}_blocked", kind.replace(".", "_")} <= launched


@pytest.mark.parametrize("kind", PARALLEL)
@pytest.mark.parametrize("parts", [2, 5, 64, 130])
def test_parallel_sums(kind: str, parts: int) -> None:
    """As many parts as there may be, some of them empty, give the sum in order up to its rounding."""
    rng, backend = seeded("parts", kind), EmulatedBackend(parts=parts)
    assert {type(KINDS[k](rng, random_common(rng))) in SHARED for k in PARALLEL} == {True}
    for _ in range(10):
        op = KINDS[kind](rng, {"dtype": rng.choice(("f64", "f32")), "layout": rng.choice(("channels_first", "channels_last"))})
        arrays = noise(rng, op)
        plans = [tiled(op, dict(op.dims), list(op.dims), kernel, backend) for kernel in ("plain", "cuda")]
        plain, parallel = (execute(plan, arrays, backend, None) for plan in plans)
        for o in op.outputs:
            size = max(1.0, float(np.max(np.abs(plain[o.name]), initial=0)))
            error = 1e-13 if o.dtype == "f64" or op.dtype == "f64" else 1e-5
            np.testing.assert_allclose(parallel[o.name], plain[o.name], rtol=error, atol=error * size, err_msg=str(op))


@pytest.mark.parametrize("kind", SUMS)
@pytest.mark.parametrize("parts", [1, 3])
def test_a_part_of_a_sum_may_be_empty(kind: str, parts: int) -> None:
    """A tile without terms, first or last, changes nothing."""
    rng, launcher = seeded("empty", kind), HostLauncher(7)
    for _ in range(10):
        op = KINDS[kind](rng, random_common(rng))
        if kind == "conv.dgrad" and "g" in op.dims:
            continue  # several groups have all their channels: see Op.legal
        compute = own_kernel(op, launcher, parts, np.full(shared_bytes(op, op.dims, parts), 0xFF, np.uint8))
        arrays = noise(rng, op)
        whole = {d: Span(0, e) for d, e in op.dims.items()}
        before, after = ({d: Span(x, x) if d in op.reduce else s for d, s in whole.items() for x in s[i : i + 1]} for i in (0, 1))
        made = []
        for tiles in ([whole], [before, whole], [whole, after], [before, before, whole, after]):
            out = {o.name: np.full(o.shape, np.nan, numpy_dtype(o.dtype)) for o in (*op.state, *op.outputs)}
            blocks = {n: Block(a, tuple(Span(0, s) for s in a.shape)) for n, a in (arrays | out).items()}
            for i, tile in enumerate(tiles):
                compute(tile, blocks, i == 0, i == len(tiles) - 1)
            made.append(b"".join(out[o.name].tobytes() for o in op.outputs))
        assert set(made) == {made[0]}, str(op)


@pytest.mark.parametrize("line", LINES)
def test_regressions(line: str) -> None:
    text, _, how = line.partition(" ; ")
    given = dict(pair.split("=") for pair in how.split())
    outermost = given.pop("order", "")
    op, backend, rng = parse(text), EmulatedBackend(), random.Random(0)
    sizes, order = op.legal({d: int(v) for d, v in given.items()}), sorted(op.dims, key=lambda d: d != outermost)
    arrays = data(rng, op)
    for kernel in ("plain", "cuda"):
        got = execute(tiled(op, sizes, order, kernel, backend), arrays, backend, rng)
        assert_right(op, got, arrays, backend, kernel, line)


@pytest.mark.parametrize("kind", ["pool.max", "pool_backward.max", "activation_backward", "pointwise", "softmax.sum"])
def test_not_a_number(kind: str) -> None:
    """NaN and infinity come out where the op's reference has them."""
    rng, launcher = seeded("nan", kind), HostLauncher(7)
    for _ in range(60):
        op = KINDS[kind](rng, random_common(rng))
        arrays = data(rng, op)
        for name, array in arrays.items():
            at = np.random.default_rng(rng.getrandbits(32)).random(array.shape)
            array[at < 0.2] = np.nan if kind != "softmax.sum" or rng.random() < 0.5 else np.inf
            if name != "w" and kind != "softmax.sum":
                array[at > 0.9] = -np.inf
        tile = {d: Span(0, e) for d, e in op.dims.items()}
        made = []
        scratch = np.full(shared_bytes(op, op.dims, 3), 0xFF, np.uint8)
        for compute in (op.reference, own_kernel(op, launcher), own_kernel(op, launcher, 3, scratch)):
            out = {o.name: np.zeros(o.shape, numpy_dtype(o.dtype)) for o in op.outputs}
            blocks = {n: Block(a, tuple(Span(0, s) for s in a.shape)) for n, a in (arrays | out).items()}
            with np.errstate(all="ignore"):
                compute(tile, blocks, True, True)
            made.append(next(iter(out.values())).astype(np.float64))
        for found in made[1:]:
            np.testing.assert_array_equal(np.isnan(found), np.isnan(made[0]), err_msg=str(op))
            np.testing.assert_allclose(found, made[0], rtol=1e-2, err_msg=str(op))


def test_channels_that_count_for_nothing() -> None:
    """Masked logits are -infinity: the first of them is no less masked than the others."""
    op = SoftmaxSum(2, 5, (3, 4), "f64")
    x = np.zeros(op.inputs[0].shape)
    x[:, :1] = -np.inf
    sums = np.zeros(op.outputs[0].shape)
    blocks = {n: Block(a, tuple(Span(0, s) for s in a.shape)) for n, a in (("x", x), ("sums", sums))}
    own_kernel(op, HostLauncher())({d: Span(0, e) for d, e in op.dims.items()}, blocks, True, True)
    np.testing.assert_array_equal(sums, np.broadcast_to(np.array([0, 4])[:, None, None], sums.shape))


@pytest.mark.parametrize("dtype", DTYPES)
def test_dropout_far_into_a_large_tensor(dtype: str) -> None:
    """The same random words as the reference's, at indices of more than 32 bits, whatever is drawn."""
    rng, launcher = seeded("dropout", dtype), HostLauncher(64)
    for layout in ("channels_first", "channels_last"):
        op = Dropout(1 << 40, 6, (50, 70), 0.3, rng.getrandbits(64) | 1 << 63, dtype, layout, True)
        draw = Block(np.array([rng.getrandbits(64) | 1 << 63], np.uint64).view(np.int64), (Span(0, 1),))
        n, k, p, q = rng.randrange(1 << 40), 2, 17, 33
        tile = {"n": Span(n, n + 1), "k": Span(k, k + 4), "p": Span(p, p + 20), "q": Span(q, q + 30)}
        region = op.outputs[0].region(tile)
        x = np.random.default_rng(1).standard_normal([s.extent for s in region]).astype(numpy_dtype(dtype))
        made = [np.zeros_like(x), np.zeros_like(x)]
        op.reference(tile, {"x": Block(x, region), "draw": draw, "y": Block(made[0], region)}, True, True)
        own_kernel(op, launcher)(tile, {"x": Block(x, region), "draw": draw, "y": Block(made[1], region)}, True, True)
        assert made[0].tobytes() == made[1].tobytes()
        assert 0 < np.count_nonzero(made[0]) < x.size


@pytest.mark.parametrize("dtype", DTYPES)
def test_moving_blocks(dtype: str) -> None:
    numbers, launcher = np.random.default_rng(3), HostLauncher(7)
    wide = numpy_dtype("f64" if dtype == "f64" else "f32")
    own = numpy_dtype(dtype)
    full = (numbers.standard_normal((4, 5, 6, 7)) * 10.0 ** numbers.integers(-9, 5, (4, 5, 6, 7))).astype(wide)
    full[0, 0, 0, :4] = (np.inf, -np.inf, np.nan, -0.0)
    source = full[1::2, ::-1, 1:5].transpose(0, 3, 1, 2)
    for item in (np.uint8, np.uint16, np.uint32, np.uint64, own):
        whole = numbers.integers(0, 255, (4, 5, 6, 7)).astype(item)
        target = np.zeros((2, 7, 5, 4), item)
        move(launcher, "copy_block", dtype, target, whole[1::2, ::-1, 1:5].transpose(0, 3, 1, 2), target.itemsize)
        assert target.tobytes() == whole[1::2, ::-1, 1:5].transpose(0, 3, 1, 2).tobytes()
    with np.errstate(over="ignore"):
        narrow = np.zeros(full.shape, own)
        move(launcher, "narrow_block", dtype, narrow, full)
        np.testing.assert_array_equal(narrow.astype(wide), full.astype(own).astype(wide))
    back = np.zeros(full.shape, wide)
    move(launcher, "widen_block", dtype, back, narrow)
    np.testing.assert_array_equal(back, narrow.astype(wide))
    target = np.full(source.shape, 2, wide)
    move(launcher, "blend_block", dtype, target, source, 1)
    np.testing.assert_array_equal(target, source + wide.type(2))
    move(launcher, "blend_block", dtype, target, source, 0)
    np.testing.assert_array_equal(target, source)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_every_half_number(dtype: str) -> None:
    """Widening all of them is exact, and narrowing rounds to the nearest, ties to even."""
    own, launcher = numpy_dtype(dtype), HostLauncher(1)
    every = np.arange(1 << 16, dtype=np.uint16).view(own)
    wide = np.zeros(every.shape, np.float32)
    move(launcher, "widen_block", dtype, wide, every)
    np.testing.assert_array_equal(wide, every.astype(np.float32))
    finite = wide[np.isfinite(wide)]
    ordered = np.unique(finite)
    middles = ((ordered[1:].astype(np.float64) + ordered[:-1]) / 2).astype(np.float32)
    beyond = np.array([np.inf, -np.inf, np.nan, 65519.99, 65520, 65535, 3.4e38, -3.4e38, 1e-45, 2.9e-8, 2.98e-8], np.float32)
    values = np.concatenate([wide, middles, np.nextafter(middles, np.inf), np.nextafter(middles, -np.inf), beyond])
    made = np.zeros(values.shape, own)
    move(launcher, "narrow_block", dtype, made, values)
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = values.astype(own)
    known = ~np.isnan(values)
    np.testing.assert_array_equal(made.view(np.uint16)[known], wanted.view(np.uint16)[known])
    assert np.isnan(made[~known].astype(np.float32)).all()


def test_every_file_is_compiled() -> None:
    folder = Path(source.__file__).parents[3] / "kernels" / "device"
    if folder.is_dir():  # tests of an installed package may have no work tree
        assert sorted((*source.SHARED, *source.PARTS)) == sorted(path.stem for path in folder.iterdir())


@pytest.mark.parametrize(("dtype", "index"), crossed(DTYPES, (64, 32), every=8))  # f64 with 64 bits
def test_the_cuda_compiler_takes_them(dtype: str, index: int, tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc not found")
    joined = tmp_path / "device.cu"
    joined.write_text(device_source())
    command = [nvcc, "-arch=sm_90", "-cubin", f"-DOOC_TYPE={DTYPES.index(dtype)}", f"-DOOC_INDEX={index}", "-Werror",
               "all-warnings", "-o", str(tmp_path / "device.cubin"), str(joined)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.fixture
def nvrtc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Nvrtc:
    monkeypatch.setenv("OOC_CACHE", str(tmp_path))
    library = find_nvrtc()
    if library is None:
        pytest.skip("no libnvrtc (the wheel nvidia-cuda-nvrtc has it; make test-cudnn installs it)")
    return Nvrtc(library)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_run_time_compiler_takes_them(dtype: str, nvrtc: Nvrtc) -> None:
    """Without any header, each file by itself and what it needs, with subnormal numbers as they are."""
    kernels = {kernel for kernel, part in source.part_of().items() if part}
    for index in (32, 64):
        made = {part: machine_code(nvrtc, part, dtype, index, "90") for part in source.PARTS}
        assert all(f"{kernel}\0".encode() in made[source.part_of()[kernel]] for kernel in kernels)
    assert "-ftz" not in " ".join(nvrtc.options)
    calls = len(nvrtc.options)
    assert machine_code(nvrtc, "blocks", dtype, 64, "90") == made["blocks"] and len(nvrtc.options) == calls  # from the disk


def test_what_does_not_compile_is_one_error(nvrtc: Nvrtc) -> None:
    with pytest.raises(BackendError, match=r"NVRTC: .*gpu-architecture"):
        machine_code(nvrtc, "blocks", "f32", 32, "11")

"""What every backend must do: memory and views, copies, kernels, reasons. One class, run for each."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import oracle
import pytest
from sweeps import crossed, swept

import ooc
from ooc import native
from ooc.backends.base import Backend, Offer
from ooc.backends.cpu.backend import CpuBackend
from ooc.backends.cpu.onednn import onednn_reason
from ooc.backends.null import NullBackend
from ooc.ir.op import DTYPES, Block, Op, Operand, numpy_dtype
from ooc.ir.region import Region, Span, extents, slices, split
from ooc.ops.descriptor import parse
from ooc.runtime.executor import run
from ooc.runtime.store import NullStore, open_store
from ooc.schedule.lowering import lower
from ooc.schedule.plan import Plan

CONV = "conv.fprop n=2 c=6 h=9 w=8 k=4 r=3 s=3 pad=1:0x2:1 bias=1"
OPS = {
    "conv 1d": "conv.fprop n=2 c=3 w=17 k=5 s=4 stride=2 pad=1:3 bias=1",
    "conv 2d": CONV,
    "conv 2d wide": "conv.fprop n=1 c=19 h=12 w=20 k=35 r=3 s=3 pad=1 bias=1 act=relu",
    "conv 2d last": f"{CONV} layout=channels_last",
    "conv 3d": "conv.fprop n=1 c=2 d=5 h=4 w=6 k=3 t=2 r=3 s=1 stride=1x2x2 dilation=2x1x1 pad=1 act=relu",
    "conv dilated": "conv.fprop n=1 c=2 h=9 w=9 k=2 r=3 s=3 dilation=3 pad=4 stride=2",
    "conv gaps": "conv.fprop n=1 c=2 h=9 w=9 k=2 r=1 s=2 stride=3 pad=3",
    "conv grouped": "conv.fprop n=2 c=6 h=5 w=7 k=4 r=3 s=3 pad=1 groups=2 bias=1",
    "conv depthwise": "conv.fprop n=1 c=5 h=6 w=6 k=5 r=3 s=3 pad=1 groups=5",
    "pointwise": "pointwise n=2 k=3 h=4 w=5 bias=1 act=clipped_relu coef=2",
    "pool max": "pool.max n=2 k=3 h=7 w=6 window=3x2 stride=2x1 pad=1:2x0",
    "pool average": "pool.average n=2 k=3 h=8 w=8 window=4x2 stride=2 pad=1:2x0",
    "pool valid": "pool.average_valid n=1 k=2 d=4 h=5 w=6 window=2 stride=2x1x3 pad=1",
    "chain": f"{CONV} act=relu | pool.max n=2 k=4 h=8 w=9 window=3 stride=2 pad=1",
    "chain of convolutions": f"{CONV} act=relu | conv.fprop n=2 c=4 h=8 w=9 k=3 r=3 s=3 pad=1 | pointwise n=2 k=3 h=8 w=9 bias=1",
}


class Kernels:
    """An op on a backend, tile by tile, each tile in blocks of their own: no plans, no steps, no threads."""

    def __init__(self, backend: Backend, op: Op, offer: Offer, sizes: Mapping[str, int]) -> None:
        self.backend, self.op, self.sizes = backend, op, dict(sizes)
        nbytes = int(offer.workspace(self.sizes))
        room = backend.view(backend.allocate("workspace", nbytes), 0, (nbytes,), "bytes", (0,)) if nbytes else None
        self.kernel = backend.kernel(op, offer.name, self.sizes, room)
        self.stamps = itertools.count(1)

    def block(self, operand: Operand, region: Region, array: Any = None) -> Block:
        shape = extents(region)
        memory = self.backend.allocate(f"{operand.name}", math.prod(shape) * 8 + 64)
        view = self.backend.view(memory, 0, shape, operand.dtype, operand.memory_order)
        view[...] = np.nan if array is None else array[slices(region)]
        return Block(view, region, next(self.stamps))

    def compute(self, arrays: Mapping[str, Any]) -> Any:
        """The whole output; sums of a split reduction stay in one block from first to last."""
        op, y = self.op, self.op.outputs[0]
        result = np.full(y.shape, np.nan, numpy_dtype(y.dtype))
        for outer in self.tiles([d for d in op.dims if d not in op.reduce]):
            made = self.block(y, y.region({**outer, **{d: Span(0, op.dims[d]) for d in op.reduce}}))
            held = {y.name: made}
            parts = list(self.tiles(list(op.reduce)))
            if len(parts) > 1:
                held |= {s.name: self.block(s, s.region(outer)) for s in op.state if s.name != y.name}
            for i, part in enumerate(parts):
                tile = {d: (outer | part)[d] for d in op.dims}
                blocks = {o.name: self.block(o, o.region(tile), arrays[o.name]) for o in op.inputs}
                self.kernel(tile, blocks | held, i == 0, i == len(parts) - 1)
            result[slices(made.region)] = made.array
        return result

    def tiles(self, dims: list[str]) -> Iterator[dict[str, Span]]:
        pieces = [split(self.op.dims[d], self.sizes[d]) for d in dims]
        for spans in itertools.product(*pieces):
            yield dict(zip(dims, spans, strict=True))


def every_kernel(backend: Backend, op: Op) -> tuple[Offer, ...]:
    """What a backend offers, and NumPy's answer too: offered only where no compiler was found, but right everywhere."""
    names = {o.name for o in backend.offers(op)}
    spare = (Offer("reference", lambda sizes: 0),) if backend.name == "cpu" and "reference" not in names else ()
    return (*backend.offers(op), *spare)


def integers(op: Op, most: int = 2) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {o.name: rng.integers(-most, most + 1, o.shape).astype(numpy_dtype(o.dtype)) for o in op.inputs}


def tilings(op: Op, every: bool = False) -> list[dict[str, int]]:
    """Whole; everything cut in three; one element at a time where there are few, of f32 and bf16 or of every type; the reduction
    alone cut."""
    thirds = op.legal({d: -(-e // 3) for d, e in op.dims.items()})
    ones = op.legal(dict.fromkeys(op.dims, 1))
    few = [ones] if math.prod(op.dims.values()) < 500 and (every or op.outputs[0].dtype in ("f32", "bf16")) else []
    return [dict(op.dims), thirds, *few, op.legal({d: 2 if d in op.reduce else e for d, e in op.dims.items()})]


def assert_equal(got: Any, wanted: Any, dtype: str, exact: bool, note: str) -> None:
    if exact:
        np.testing.assert_array_equal(got.astype(np.float64), oracle.stored(wanted, dtype), err_msg=note)
    else:
        bound = {"f64": 1e-13, "f32": 2e-6, "f16": 2e-3, "bf16": 1.6e-2}[dtype]
        np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=bound, atol=bound, err_msg=note)


class BackendConformance:
    """Subclasses give a backend."""

    @pytest.fixture
    def backend(self) -> Backend:
        raise NotImplementedError

    def test_says_what_it_is(self, backend: Backend) -> None:
        assert backend.name in ("cpu", "null", "cuda")
        assert backend.total_bytes > 1 << 20
        assert isinstance(backend.staged, bool) and isinstance(backend.shared, bool)

    @pytest.mark.parametrize("name", OPS)
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_offers_every_operation_with_a_workspace(self, backend: Backend, name: str, dtype: str) -> None:
        op = parse(" | ".join(f"{s} dtype={dtype}" for s in OPS[name].split(" | ")))
        offers = backend.offers(op)
        refused = backend.why_not(op)
        assert offers and not {o.name for o in offers} & set(refused)
        assert all(reason.strip() for reason in refused.values())
        for offer, sizes in itertools.product(offers, tilings(op)):
            assert 0 <= int(offer.workspace(sizes)) < 1 << 28

    @pytest.mark.parametrize("name", ["conv 2d wide", "conv grouped", "chain of convolutions", "pool max"])
    def test_the_workspace_of_many_tilings_bounds_each(self, backend: Backend, name: str) -> None:
        """The planner asks with arrays; a bound below the exact answer would lose nothing but time, negative ones all."""
        op = parse(OPS[name])
        many = tilings(op)
        for offer in backend.offers(op):
            together = np.broadcast_to(offer.workspace({d: np.array([z[d] for z in many]) for d in op.dims}), (len(many),))
            assert (together >= 0).all()

    def test_records_and_waits(self, backend: Backend) -> None:
        backend.wait("compute", backend.record("h2d"))


class ComputingBackend(BackendConformance):
    """A backend that holds data and computes."""

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_views_are_disjoint_and_ordered(self, backend: Backend, dtype: str) -> None:
        memory = backend.allocate("device", 4096)
        item = numpy_dtype(dtype).itemsize
        for order in ((0, 1, 2), (0, 2, 1), (2, 1, 0)):
            one = backend.view(memory, 0, (2, 3, 5), dtype, order)
            two = backend.view(memory, 30 * item, (2, 3, 5), dtype, order)
            one[...], two[...] = 1, 2
            assert one.shape == (2, 3, 5) and (one == 1).all() and (two == 2).all()
            assert [one.strides[a] for a in reversed(order)] == sorted(one.strides)
            assert one.strides[order[-1]] == item

    def test_a_view_sees_the_memory(self, backend: Backend) -> None:
        memory = backend.allocate("device", 256)
        backend.view(memory, 64, (4,), "f32", (0,))[...] = [1, 2, 3, 4]
        assert backend.view(memory, 64, (16,), "bytes", (0,)).tobytes() == np.array([1, 2, 3, 4], np.float32).tobytes()
        assert backend.view(memory, 72, (1, 2), "f32", (0, 1)).tolist() == [[3, 4]]

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("seed", range(5))
    def test_copies_any_strides(self, backend: Backend, dtype: str, seed: int) -> None:
        rng = random.Random(seed)
        memory = backend.allocate("device", 1 << 18)
        data = np.arange(4 * 9 * 10 * 11).reshape(4, 9, 10, 11).astype(numpy_dtype(dtype))
        for _ in range(8):
            spans = [sorted(rng.sample(range(e + 1), 2)) for e in data.shape]
            axes = rng.sample(range(4), 4)
            source = data[tuple(slice(lo, hi, rng.choice((1, 1, 2))) for lo, hi in spans)].transpose(axes)
            source = source[:, ::-1] if rng.random() < 0.3 else source
            block = backend.view(memory, 64, source.shape, dtype, tuple(rng.sample(range(4), 4)))
            backend.copy("h2d", block, source)
            back = np.zeros((*source.shape, 2), numpy_dtype(dtype))
            backend.copy("d2h", back[..., 1], block)
            np.testing.assert_array_equal(back[..., 1], source)
            assert not back[..., 0].any()

    def test_copies_of_megabytes(self, backend: Backend) -> None:
        data = np.random.default_rng(0).standard_normal((3, 700, 900)).astype(np.float32)
        block = backend.view(backend.allocate("device", data.nbytes), 0, data.shape, "f32", (0, 1, 2))
        backend.copy("h2d", block, data)
        np.testing.assert_array_equal(block, data)
        backend.copy("h2d", block.transpose(0, 2, 1).reshape(3, 900, 700), np.zeros((3, 900, 700), np.float32))

    @pytest.mark.parametrize("dtype", swept(DTYPES, quick=("f32",)))
    @pytest.mark.parametrize("name", OPS)
    def test_kernels_equal_the_oracle(self, backend: Backend, name: str, dtype: str, every: bool = False) -> None:
        """Small integers, so every family and tiling gives the same bits (means may differ in the last place)."""
        op = parse(" | ".join(f"{s} dtype={dtype}" for s in OPS[name].split(" | ")))
        half = dtype in ("f16", "bf16")
        arrays = integers(op, 1 if half else 2)
        wanted = oracle.chain(op, arrays)
        for offer, sizes in itertools.product(every_kernel(backend, op), tilings(op, every)):
            got = Kernels(backend, op, offer, sizes).compute(arrays)
            assert_equal(got, wanted, dtype, not name.startswith("pool a"), f"{op}: {offer.name} {sizes}")

    @pytest.mark.slow
    @pytest.mark.parametrize("dtype", ["f64", "f16"])
    @pytest.mark.parametrize("name", OPS)
    def test_other_types_in_tiles_of_one_element(self, backend: Backend, name: str, dtype: str) -> None:
        self.test_kernels_equal_the_oracle(backend, name, dtype, every=True)

    @pytest.mark.parametrize("act", ["elu", "leaky_relu", "sigmoid", "tanh", "clipped_relu"])
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("kind", ["pointwise n=2 k=6 h=5 w=7", "conv.fprop n=2 c=3 h=7 w=9 k=6 r=3 s=3"])
    def test_activations_equal_their_formulas(self, backend: Backend, kind: str, act: str, dtype: str) -> None:
        op = parse(f"{kind} bias=1 act={act} dtype={dtype}")
        rng = np.random.default_rng(1)
        arrays = {o.name: rng.standard_normal(o.shape).astype(numpy_dtype(o.dtype)) for o in op.inputs}
        arrays["x"].flat[:4] = [0.0, -0.0, 30.0, -30.0]
        wanted = oracle.chain(op, arrays)
        for offer in every_kernel(backend, op):
            got = Kernels(backend, op, offer, op.dims).compute(arrays).astype(np.float64)
            bound = {"f64": 1e-13, "f32": 4e-6, "f16": 2e-3, "bf16": 1.6e-2}[dtype]
            np.testing.assert_allclose(got, wanted, rtol=bound, atol=bound * 4, err_msg=offer.name)

    def test_filters_are_taken_anew_when_their_stamp_changes(self, backend: Backend) -> None:
        """Packed filters are kept while the stamp stays: they must not outlive it."""
        op = parse("conv.fprop n=1 c=16 h=12 w=16 k=32 r=3 s=3 pad=1")
        for offer in every_kernel(backend, op):
            kernels = Kernels(backend, op, offer, op.dims)
            for factor in (1, 2, 3):
                arrays = integers(op)
                arrays["w"] = arrays["w"] * factor
                np.testing.assert_array_equal(kernels.compute(arrays), oracle.chain(op, arrays), err_msg=offer.name)

    @pytest.mark.parametrize("how", ["fortran", "sliced", "reversed", "channels last"])
    def test_kernels_use_strided_arrays_in_place(self, backend: Backend, how: str) -> None:
        if not backend.shared:
            pytest.skip("its memory is its own: arrays are never used in place")
        op = parse("conv.fprop n=2 c=4 h=6 w=7 k=4 r=3 s=3 pad=1 bias=1 act=relu | pool.max n=2 k=4 h=6 w=7")
        arrays = integers(op)
        change = {
            "fortran": np.asfortranarray,
            "sliced": lambda a: np.repeat(np.repeat(a, 2, -1), 3, 0)[::3][..., ::2],
            "reversed": lambda a: np.ascontiguousarray(a[..., ::-1])[..., ::-1],
            "channels last": lambda a: np.moveaxis(np.ascontiguousarray(np.moveaxis(a, 1, -1)), -1, 1),
        }[how]
        tile = {d: Span(0, e) for d, e in op.dims.items()}
        for offer in every_kernel(backend, op):
            kernels = Kernels(backend, op, offer, op.dims)
            seen = {n: change(a) if a.ndim > 1 else a for n, a in arrays.items()}  # a bias is always dense
            blocks = {o.name: Block(seen[o.name], o.region(tile)) for o in op.inputs}
            y = op.outputs[0]
            result = change(np.full(y.shape, np.nan, np.float32))
            kernels.kernel(tile, blocks | {"y": Block(result, y.region(tile))}, True, True)
            np.testing.assert_array_equal(result, oracle.chain(op, arrays), err_msg=offer.name)

    @pytest.mark.parametrize(
        ("kind", "dtype", "act"),
        crossed(
            ["pointwise n=1 k=3 w=40", "conv.fprop n=1 c=3 w=40 k=3 s=1"], list(DTYPES),
            ["identity", "relu", "clipped_relu", "elu", "leaky_relu", "sigmoid", "tanh"], every=2,
        ),
    )  # fmt: skip
    def test_nan_and_inf_pass_through(self, backend: Backend, kind: str, act: str, dtype: str) -> None:
        op = parse(f"{kind} act={act} dtype={dtype}")
        arrays = integers(op)
        arrays["x"][0, 0, 5:35:3] = np.nan
        arrays["x"][0, 1, 6], arrays["x"][0, 2, 7] = np.inf, -np.inf
        if "w" in arrays:
            arrays["w"][:] = np.eye(3)[:, :, None]
        wanted = oracle.chain(op, arrays)
        assert np.isnan(wanted[0, 0, 5])
        for offer, sizes in itertools.product(every_kernel(backend, op), tilings(op)):
            got = Kernels(backend, op, offer, sizes).compute(arrays).astype(np.float64)
            np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted), err_msg=f"{offer.name} {sizes}")
            np.testing.assert_array_equal(np.isinf(got), np.isinf(wanted), err_msg=f"{offer.name} {sizes}")

    @pytest.mark.parametrize("how", ["max", "average", "average_valid"])
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_pooling_passes_nan_and_inf(self, backend: Backend, how: str, dtype: str) -> None:
        op = parse(f"pool.{how} n=1 k=20 w=16 window=3 stride=1 pad=1 dtype={dtype}")
        arrays = {"x": np.ones((1, 20, 16), numpy_dtype(dtype))}
        for i in range(16):  # at the first, middle and last place of a window, in every vector lane
            arrays["x"][0, i, i] = np.nan
        arrays["x"][0, 17, 3], arrays["x"][0, 18, 4], arrays["x"][0, 19] = np.inf, -np.inf, -np.inf
        wanted = oracle.chain(op, arrays)
        for offer, sizes in itertools.product(every_kernel(backend, op), tilings(op)):
            got = Kernels(backend, op, offer, sizes).compute(arrays).astype(np.float64)
            np.testing.assert_allclose(got, wanted, rtol=1e-2, err_msg=f"{offer.name} {sizes}")

    def test_convolution_with_nan_equals_the_in_memory_one(self, backend: Backend) -> None:
        """Padding is zero, never NaN or skipped: a NaN reaches exactly the outputs whose window holds it."""
        rng = np.random.default_rng(3)
        op = parse("conv.fprop n=2 c=18 h=14 w=17 k=20 r=3 s=3 pad=1 act=relu")
        arrays = integers(op)
        x = arrays["x"]
        x[rng.random(x.shape) < 0.002] = np.nan
        x[rng.random(x.shape) < 0.001] = np.inf
        arrays["w"][1] = 0  # inf x 0 is NaN, and stays so
        wanted = oracle.chain(op, arrays)
        assert np.isnan(wanted).any() and np.isinf(wanted).any() and np.isfinite(wanted).any()
        for offer, sizes in itertools.product(every_kernel(backend, op), tilings(op)):
            got = Kernels(backend, op, offer, sizes).compute(arrays)
            np.testing.assert_array_equal(got, wanted, err_msg=f"{offer.name} {sizes}")


@pytest.mark.parametrize("threads", [1, 2], scope="class")
class TestCpu(ComputingBackend):
    @pytest.fixture
    def backend(self, threads: int) -> Backend:
        return CpuBackend(threads)

    def test_families_are_ordered_and_refusals_say_why(self, backend: Backend, threads: int) -> None:
        names = [o.name for o in backend.offers(parse("conv.fprop n=1 c=2 w=3 k=1 s=2"))]
        compiled = native.kernels is not None
        expected = {"onednn": not onednn_reason(), "native": compiled, "plain": compiled, "reference": not compiled}
        assert names == [name for name, there in expected.items() if there]
        assert "onednn: computes f32, not f64" in backend.why_not(parse("conv.fprop n=1 c=2 w=3 k=1 s=2 dtype=f64"))["onednn"]
        assert "onednn: convolutions of one tap" in backend.why_not(parse("conv.fprop n=1 c=2 w=3 k=1 s=1"))["onednn"]
        assert "onednn: serves convolutions, not pool.max" in backend.why_not(parse("pool.max n=1 k=1 w=4"))["onednn"]
        assert ("reference" in backend.why_not(parse("pool.max n=1 k=1 w=4"))) == compiled

    def test_memory_is_page_aligned_and_kept(self, backend: Backend, threads: int) -> None:
        one = backend.allocate("device", 10000)
        assert native.address(one) % 4096 == 0
        other = backend.allocate("device", 5000)  # `one` is taken
        assert native.address(other) != native.address(one)
        backend.release("device", one)
        two = backend.allocate("device", 5000)
        assert native.address(two) == native.address(one)
        assert native.address(backend.allocate("staging", 5000)) != native.address(one)
        assert backend.allocate("device", 20000).nbytes >= 20000
        assert backend.allocate("spill", 0).nbytes == 0


@pytest.mark.parametrize("threads", [1, 2])
class TestCpuStaged(BackendConformance):
    """Every operand through a ring, as on a GPU; memory and kernels are those of `TestCpu`."""

    @pytest.fixture
    def backend(self, threads: int) -> Backend:
        return CpuBackend(threads, staged=True)

    @pytest.mark.parametrize("name", OPS)
    @pytest.mark.parametrize("budget", ["256 KiB", "2 KiB"])
    def test_calls_equal_the_oracle(self, threads: int, name: str, budget: str, backend: Backend) -> None:
        op = parse(OPS[name])
        arrays = integers(op)
        out = np.full(op.outputs[0].shape, np.nan, np.float32)
        if budget == "2 KiB" and name == "chain of convolutions":
            budget = "8 KiB"  # the second filter and the halo of both stay together
        with ooc.device("cpu", budget, pinned="1 MiB", threads=threads) as where:
            plan = where.planner.plan(op, {})
            assert plan.staged and plan.pinned_bytes <= 1 << 20
            todo = lower(plan)
            stores = {n: open_store(a) for n, a in {**arrays, "y": out}.items()}
            run(todo, stores, where.backend)
        assert {"read", "h2d", "compute", "d2h", "write"} == {s.lane for s in todo.steps}
        assert_equal(out, oracle.chain(op, arrays), "f32", not name.startswith("pool a"), str(plan))


@pytest.mark.parametrize("kernels", [("null",), ("cudnn_lean", "cuda")], ids="-".join)
class TestNull(BackendConformance):
    @pytest.fixture
    def backend(self, kernels: tuple[str, ...]) -> Backend:
        return NullBackend(kernels=kernels)

    def test_holds_nothing(self, backend: Backend) -> None:
        assert backend.staged and not backend.shared
        assert backend.allocate("device", 1 << 60) is None
        assert backend.view(None, 0, (1 << 40,), "f32", (0,)) is None
        assert backend.why_not(parse(CONV)) == {}

    def test_walks_a_problem_of_any_size(self, backend: Backend) -> None:
        op = parse("conv.fprop n=4096 c=512 h=4096 w=4096 k=512 r=3 s=3 pad=1 bias=1")  # 140 TB
        plan = Plan(
            op,
            tuple(op.legal({"n": 1024, "p": 2048, "c": 256}).items()),
            tuple(op.dims),
            staged=True,
            kernel=backend.offers(op)[-1].name,
        )
        todo = lower(plan)
        stores = {o.name: NullStore(o.shape) for o in op.operands}
        measured = run(todo, stores, backend)  # touches nothing: there is no room for it
        assert plan.tiles == 16 and len(measured.ends) == len(todo.steps)


@pytest.mark.parametrize("budget", [None, "16 KiB"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("step", [2, -1])
def test_a_strided_bias_is_read_by_its_strides(budget: str | None, dtype: str, step: int) -> None:
    op = parse(f"conv.fprop n=1 c=2 h=5 w=5 k=6 r=3 s=3 bias=1 dtype={dtype}")
    arrays = integers(op, 1)
    wide = np.arange(12).astype(arrays["b"].dtype)
    arrays["b"] = wide[::2] if step == 2 else wide[5::-1]
    with ooc.device("cpu", budget):
        got = ooc.conv(arrays["x"], arrays["w"], arrays["b"])
    np.testing.assert_array_equal(got.astype(np.float64), oracle.chain(op, arrays))

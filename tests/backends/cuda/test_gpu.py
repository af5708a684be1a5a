"""The CUDA backend on a real device: what the emulated one promises, with CuPy's and PyTorch's arrays, and beside cuDNN."""

from __future__ import annotations

import functools
import random
import threading
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import data, is_exact, random_plan
from cases_fused import FUSED
from cases_ops import KINDS, random_common
from cpu_kernels import in_one_tile
from cuda_calls import CALLS, Kinds, called, small_integers, stays_on_the_device
from cuda_running import LARGE, Held, assert_nearly_right, device_of, execute, overlapping, under_budget
from cudnn_beside import ACROSS_CHANNELS, BY_CHANNELS, SOFTMAX, RealCudnn, real_cudnn, scalar
from many_taps import PASSES, SHAPES, apart, numbers, op_of

import ooc
from ooc.backends.algorithms import REFUSED
from ooc.backends.cuda import tuning
from ooc.backends.cuda.backend import CudaBackend
from ooc.backends.cuda.cudnn import cudnn_reason
from ooc.backends.device_array import DeviceArray, at, device_array, host_array
from ooc.backends.null import FAMILIES, NullBackend
from ooc.backends.views import dense_strides
from ooc.errors import BackendError, UnsupportedError
from ooc.ir.op import Op, numpy_dtype
from ooc.native import bounds
from ooc.ops.descriptor import parse


def _missing() -> str:
    try:
        ooc.device("cuda")
    except UnsupportedError as error:
        return str(error)
    return ""


MISSING = _missing()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(MISSING), reason=MISSING)]
FORMS = KINDS | FUSED
CONVS = [f for f in FORMS if f.startswith("conv") or (f.startswith("fused") and f not in ("fused batch norm", "fused softmax"))]
CONVS.remove("fused loss gradient")
MIB = 1 << 20


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Measurements of the tests' shapes are no use to anybody else; machine code is, which takes half a minute to compile."""
    folder = tmp_path_factory.mktemp("ooc-cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "cache_folder", lambda: folder)
        yield


def assert_rounded(got: Any, wanted: Any) -> None:
    """Integers as cuDNN's transforms leave them: what is wrong differs by more."""
    np.testing.assert_allclose(got, wanted, rtol=0, atol=0.03)


# ---- a real device in the hands of a test ------------------------------------------------------


class Poisoned(CudaBackend):
    """What is read before it is written shows: memory holds NaN in every type."""

    def allocate(self, space: str, nbytes: int) -> Any:
        memory = super().allocate(space, nbytes)
        if isinstance(memory, DeviceArray):
            runtime = self.driver.runtime  # type: ignore[attr-defined]
            with self.driver.current():
                if memory.nbytes:
                    runtime.memset(at(memory), 0xFF, memory.nbytes)
                runtime.deviceSynchronize()
        else:
            memory[...] = 0xFF
        return memory

    def copy_to(self, array: Any, space: str) -> Any:
        """A copy of an array in CuPy's device or pinned memory: the same order of strides, a gap at every row."""
        cupy = self.driver.cupy  # type: ignore[attr-defined]
        order = tuple(np.argsort([-s for s in array.strides], kind="stable"))
        wider = list(array.shape)
        if array.ndim:
            wider[order[-1]] += 1
        strides = dense_strides(tuple(wider), array.itemsize, order)
        nbytes = max(1, int(np.prod(wider)) * array.itemsize)
        host = np.full(nbytes, 0xFF, np.uint8)
        host_array(host.ctypes.data, array.shape, array.dtype, strides, host)[...] = array
        with self.driver.current():
            memory = cupy.cuda.alloc(nbytes) if space == "device" else cupy.cuda.alloc_pinned_memory(nbytes)
            address = int(memory.ptr)
            cupy.cuda.runtime.memcpy(address, host.ctypes.data, nbytes, cupy.cuda.runtime.memcpyDefault)
            cupy.cuda.runtime.deviceSynchronize()
        return (device_array if space == "device" else host_array)(address, array.shape, array.dtype, strides, memory)

    def fetched(self, array: Any) -> Any:
        """A device array's contents, by one copy of all the bytes it spans."""
        cupy = self.driver.cupy  # type: ignore[attr-defined]
        if not array.size:
            return np.zeros(array.shape, array.dtype)
        lo, hi = bounds(array)
        host = np.empty(hi - lo, np.uint8)
        with self.driver.current():
            cupy.cuda.runtime.deviceSynchronize()
            cupy.cuda.runtime.memcpy(host.ctypes.data, lo, hi - lo, cupy.cuda.runtime.memcpyDefault)
        return np.array(host_array(host.ctypes.data + at(array) - lo, array.shape, array.dtype, array.strides, host))


@functools.cache
def card(tf32: bool = False) -> Poisoned:
    return Poisoned(tf32=tf32)


def seeded(*what: Any) -> random.Random:
    return random.Random(zlib.crc32(repr(what).encode()))


def memmapped(folder: Path) -> Any:
    names = iter(range(1 << 30))

    def make(values: Any) -> Any:
        file = np.memmap(folder / f"{next(names)}.bin", np.uint8, "w+", shape=(max(1, values.nbytes),))
        array = file[: values.nbytes].view(values.dtype).reshape(values.shape)
        array[...] = values
        return array

    return make


def pinned(values: Any) -> Any:
    import cupy

    memory = cupy.cuda.alloc_pinned_memory(max(1, values.nbytes))
    array = np.frombuffer(memory, np.uint8, values.nbytes).view(values.dtype).reshape(values.shape)
    array[...] = values
    return array


def to_cupy(values: Any) -> Any:
    cupy = pytest.importorskip("cupy")
    return cupy.asarray(values)


def strided_cupy(values: Any) -> Any:
    """Every other element of each axis but the first, of a larger array."""
    cupy = pytest.importorskip("cupy")
    wide = cupy.full([e if not i else 2 * e + 1 for i, e in enumerate(values.shape)], 7, values.dtype)
    view = wide[tuple(slice(None) if not i else slice(1, None, 2) for i in range(values.ndim))]
    view[...] = cupy.asarray(values)
    return view


def to_torch(values: Any, where: str = "cuda") -> Any:
    torch = pytest.importorskip("torch")
    if values.dtype == numpy_dtype("bf16"):
        return torch.from_numpy(values.view(np.int16).copy()).to(where).view(torch.bfloat16)
    return torch.from_numpy(values.copy()).to(where)


def strided_torch(values: Any) -> Any:
    """Channels last in memory, or the transpose of a dense tensor."""
    tensor = to_torch(values)
    return tensor.movedim(1, -1).contiguous().movedim(-1, 1) if tensor.ndim > 1 else tensor


def from_torch(tensor: Any) -> Any:
    torch = pytest.importorskip("torch")
    tensor = tensor.detach().cpu().contiguous()
    return tensor.view(torch.int16).numpy().view(numpy_dtype("bf16")) if tensor.dtype == torch.bfloat16 else tensor.numpy()


def all_kinds(folder: Path, dtype: str) -> Kinds:
    import cupy

    found: Any = {
        "numpy": (np.copy, np.copy),
        "memmap": (memmapped(folder), np.array),
        "pinned": (pinned, np.array),
        "torch": (to_torch, from_torch),
        "torch strided": (strided_torch, from_torch),
        "torch cpu": (lambda v: to_torch(v, "cpu"), from_torch),
    }
    if dtype != "bf16":
        found |= {"cupy": (to_cupy, cupy.asnumpy), "cupy strided": (strided_cupy, cupy.asnumpy)}
    return found  # type: ignore[no-any-return]


# ---- exactness ---------------------------------------------------------------------------------


def test_every_family_is_there() -> None:
    """cuDNN is opened, and serves what it should: its tests below do not pass for want of it."""
    assert cudnn_reason() == ""
    few, many = parse("conv.fprop n=1 c=2 h=5 w=5 k=2 r=3 s=3"), parse("conv.fprop n=1 c=32 h=5 w=5 k=32 r=3 s=3")
    assert [o.name for o in card().offers(few)] == ["cudnn_lean", "cuda", "plain"]
    assert [o.name for o in card().offers(many)] == ["cudnn_winograd", "cudnn_fft", "cudnn_lean", "cuda", "plain"]
    assert [o.name for o in card(True).offers(few)] == ["cudnn_tf32", "cudnn_tf32_lean", "cuda", "plain"]


def drawn(form: str, rng: random.Random, tf32: bool) -> Op:
    """TF32 rounds what is not a small integer: such problems are left out then."""
    while True:
        op = FORMS[form](rng, random_common(rng))
        if not tf32 or is_exact(op):
            return op


def under_random_plans(form: str, tf32: bool, count: int) -> None:
    rng, backend = seeded("plans", form, tf32), card(tf32)
    for _ in range(count):
        op = drawn(form, rng, tf32)
        arrays = data(rng, op)
        plan = random_plan(rng, op, backend)
        order = rng if rng.random() < 0.7 else None
        got = execute(plan, arrays, backend, order, backend.copy_to, backend.fetched)
        note = str(plan.to_json())
        assert_nearly_right(op, got, arrays, backend, plan.kernel, note, backend.copy_to, backend.fetched)


@pytest.mark.parametrize("form", FORMS)
def test_random_plans(form: str) -> None:
    under_random_plans(form, False, 12)


@pytest.mark.parametrize("form", CONVS)
def test_random_plans_with_tf32(form: str) -> None:
    under_random_plans(form, True, 12)


def repeated(op: Op) -> dict[str, int]:
    """Sizes of tiles of which there are many."""
    return op.legal({d: -(-e // 7) if d in ("p", "q", "h", "w") else e for d, e in op.dims.items()})


def served() -> Iterator[tuple[str, str]]:
    """Problems, those that Winograd's algorithms and FFT serve among them, with each family that has tiles of them."""
    images = [
        f"conv.{way} {shape} k=33 {taps}r=3 s=3 pad=1"
        for way in ("fprop", "dgrad", "wgrad")
        for shape, taps in (("n=1 c=32 h=130 w=131", ""), ("n=16 c=32 h=40 w=41", ""), ("n=1 c=32 d=9 h=80 w=81", "t=3 "))
    ]
    for line in (*LARGE[:7], *images):
        op = parse(line)
        for offer in NullBackend(kernels=tuple(FAMILIES)[1:]).offers(op):
            if int(offer.workspace(repeated(op))) < REFUSED:
                yield line, offer.name


@pytest.mark.parametrize(("line", "kernel"), list(served()))
def test_every_family_computes_tiles_that_repeat(line: str, kernel: str) -> None:
    """Often enough that cuDNN's algorithms are measured meanwhile: the result of the tile in work must survive that."""
    op, backend, rng = parse(line), card("tf32" in kernel), seeded(line)
    arrays, sizes = data(rng, op), repeated(op)
    offer = next((o for o in backend.offers(op) if o.name == kernel), None)
    assert offer is not None, backend.why_not(op)
    plan = ooc.Plan(op, tuple(sizes.items()), tuple(op.dims), 2, (), True, False, kernel=kernel,
                    workspace_bytes=int(offer.workspace(sizes)))  # fmt: skip
    got = execute(plan, arrays, backend, None, backend.copy_to, backend.fetched)
    assert_nearly_right(op, got, arrays, backend, kernel, str(plan), backend.copy_to, backend.fetched)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("which", PASSES)
def test_every_family_of_many_taps(which: str, shape: str) -> None:
    """By cuFFT, within the room that is planned: no tile falls to our own kernel."""
    op, backend = op_of(which, shape, "f64"), card()
    arrays, sizes = numbers(op), op.legal({d: -(-e // 2) for d, e in op.dims.items()})
    offer = next(o for o in backend.offers(op) if o.name == "cufft")
    plan = ooc.Plan(op, tuple(sizes.items()), tuple(op.dims), 2, (), True, False, kernel="cufft",
                    workspace_bytes=int(offer.workspace(sizes)))  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        got = execute(plan, arrays, backend, None, backend.copy_to, backend.fetched)
    exact = in_one_tile(op, "plain", arrays)
    assert apart(got[op.outputs[0].name], exact) < 1e-12


# ---- budgets -----------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [64 << 10, MIB, 16 * MIB, None])
def test_budgets(budget: int | None) -> None:
    """Device memory that ooc asks for stays within the plan, and the plan within the budget."""
    rng, tiles = seeded("budgets", budget), []
    problems = [parse(line) for line in LARGE] + [FORMS[f](rng, random_common(rng)) for f in FORMS]
    for op in problems:
        backend = Poisoned(card().driver)  # a backend of its own, which has kept no memory
        held = Held(backend.driver)
        tiles.append(under_budget(op, data(rng, op), device_of(backend, budget), held, backend.copy_to, backend.fetched))
        held.stop()
    fitting = [t for t in tiles if t]
    assert len(fitting) > len(problems) // 2
    assert budget is None or budget >= 16 * MIB or max(fitting) > 1


# ---- arrays of other libraries -----------------------------------------------------------------


@pytest.mark.parametrize("budget", [None, "1 MiB"])
@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16"])
@pytest.mark.parametrize("name", CALLS)
def test_calls_with_any_arrays(name: str, dtype: str, budget: str | None, tmp_path: Path) -> None:
    rng, where = seeded(name, dtype, budget), ooc.device("cuda", budget)
    for _ in range(6):
        called(name, all_kinds(tmp_path, dtype), where, rng, dtype)


@pytest.mark.parametrize("budget", [None, "256 KiB"])
@pytest.mark.parametrize("kind", ["cupy", "cupy strided", "torch", "torch strided"])
def test_what_is_on_the_device_is_not_copied(kind: str, budget: str | None, tmp_path: Path) -> None:
    kinds = all_kinds(tmp_path, "f32")
    stays_on_the_device(kinds[kind], kinds["numpy"], ooc.device("cuda", budget))


# ---- order -------------------------------------------------------------------------------------

SPIN = r"""
extern "C" __global__ void spin(long long cycles) {
  const long long begin = clock64();
  while (clock64() - begin < cycles) {}
}
"""
CYCLES = 400_000_000  # a fifth of a second


@pytest.mark.parametrize("budget", [None, "256 KiB"])
def test_x_is_made_on_a_stream_of_cupys(budget: str | None) -> None:
    import cupy

    values, where = small_integers(random.Random(1), (2, 8, 64, 64), "f32"), ooc.device("cuda", budget)
    w = small_integers(random.Random(2), (8, 8, 3, 3), "f32")
    source, x, spin = cupy.asarray(values), cupy.zeros_like(cupy.asarray(values)), cupy.RawKernel(SPIN, "spin")
    spin((1,), (1,), (np.int64(1),))
    cupy.cuda.runtime.deviceSynchronize()
    with ooc.device("cpu"):
        wanted = ooc.conv(values, w, padding=1)
    with where, cupy.cuda.Stream(non_blocking=True) as stream:
        spin((1,), (1,), (np.int64(CYCLES),))
        x[...] = source
        assert not stream.done, "the kernel before is too short to show anything"
        y = ooc.conv(x, w, padding=1)
    assert_rounded(cupy.asnumpy(y), wanted)


@pytest.mark.parametrize("budget", [None, "256 KiB"])
def test_x_is_made_on_a_stream_of_torchs(budget: str | None) -> None:
    torch = pytest.importorskip("torch")
    values, where = small_integers(random.Random(1), (2, 8, 64, 64), "f32"), ooc.device("cuda", budget)
    w = small_integers(random.Random(2), (8, 8, 3, 3), "f32")
    with ooc.device("cpu"):
        wanted = ooc.conv(values, w, padding=1)
    source = torch.from_numpy(values).cuda()
    x, stream = torch.zeros_like(source), torch.cuda.Stream()
    torch.cuda.synchronize()
    with where, torch.cuda.stream(stream):
        torch.cuda._sleep(CYCLES)
        x.copy_(source)
        assert not stream.query(), "the kernel before is too short to show anything"
        y = ooc.conv(x, w, padding=1)
    assert_rounded(y.cpu().numpy(), wanted)


def test_lanes_overlap() -> None:
    """Copies in, kernels and copies out are under way together, not one after the other."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((16, 32, 256, 256), np.float32), rng.standard_normal((32, 32, 3, 3), np.float32)
    with ooc.device("cuda", "32 MiB"):
        for _ in range(2):  # the first one compiles and measures
            ooc.conv(x, w, padding=1)
    report = ooc.last_report()
    assert report is not None and report.tiles >= 8
    for lane, other in (("h2d", "compute"), ("compute", "d2h"), ("h2d", "d2h")):
        assert overlapping(report, lane, other), f"{lane} never overlaps {other}: {report}"


def test_threads_share_a_device() -> None:
    where, failures = ooc.device("cuda", "256 KiB"), []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(8):
                x, w = small_integers(rng, (2, 6, 40, 40), "f32"), small_integers(rng, (8, 6, 3, 3), "f32")
                with ooc.device("cpu"):
                    wanted = ooc.conv(x, w, padding=1)
                with where:
                    assert_rounded(ooc.conv(x, w, padding=1), wanted)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


# ---- devices, and what goes wrong ---------------------------------------------------------------


def test_the_second_device() -> None:
    import cupy

    count = cupy.cuda.runtime.getDeviceCount()
    if count < 2:
        with pytest.raises(UnsupportedError, match=rf"device 'cuda:{count}': this machine has {count} CUDA"):
            ooc.device(f"cuda:{count}")
        pytest.skip("one GPU: there is no cuda:1")
    values = small_integers(random.Random(3), (1, 4, 20, 20), "f32")
    w = small_integers(random.Random(4), (4, 4, 3, 3), "f32")
    with ooc.device("cpu"):
        wanted = ooc.conv(values, w)
    with cupy.cuda.Device(1):
        x = cupy.asarray(values)
    with ooc.device("cuda:1"):
        y = ooc.conv(x, w)
        assert y.device.id == 1
    assert_rounded(cupy.asnumpy(y), wanted)
    with ooc.device("cuda:0"), pytest.raises(UnsupportedError, match=r"other memory \(device 1\) than that of device cuda:0"):
        ooc.conv(x, w)


def test_the_cpu_does_not_reach_the_device() -> None:
    x = to_cupy(np.ones((1, 2, 8, 8), np.float32))
    with ooc.device("cpu"), pytest.raises(UnsupportedError, match="compute there, not on 'cpu'"):
        ooc.conv(x, np.ones((2, 2, 3, 3), np.float32))


def test_a_full_device() -> None:
    """No memory left: one clear error; with memory again, the same device works."""
    backend = card()
    runtime, where = backend.driver.runtime, ooc.device("cuda", "1 GiB")  # type: ignore[attr-defined]
    x, w = np.ones((64, 16, 256, 256), np.float32), np.ones((16, 16, 3, 3), np.float32)
    runtime.deviceSynchronize()
    free, _ = runtime.memGetInfo()
    ballast = []
    try:
        for left in (64 * MIB, 32 * MIB):  # memory is given out in large pieces: the second is what the first left over
            free, _ = runtime.memGetInfo()
            if free > 2 * left:
                ballast.append(runtime.malloc(free - left))
        with where, pytest.raises(BackendError, match=r"cuda:0: cannot allocate \d+ bytes of device memory: .*emory"):
            ooc.conv(x, w, padding=1)
    finally:
        for address in ballast:
            runtime.free(address)
    with where:
        y = ooc.conv(x, w, padding=1)
    assert y[0, 0, 0, 0] == 64 and y[-1, -1, 5, 5] == 144


# ---- beside cuDNN ------------------------------------------------------------------------------


def noise(seed: int, shape: tuple[int, ...], dtype: str) -> Any:
    return to_cupy(np.random.default_rng(seed).standard_normal(shape).astype(numpy_dtype(dtype)))


def assert_same(ours: Any, theirs: Any, dtype: str, factor: float = 1.0) -> None:
    import cupy

    bound = {"f64": 1e-11, "f32": 2e-5, "f16": 4e-3}[dtype] * factor
    one, other = (np.asarray(cupy.asnumpy(a) if isinstance(a, cupy.ndarray) else a, np.float64) for a in (ours, theirs))
    np.testing.assert_allclose(one, other.reshape(one.shape), rtol=bound, atol=bound * max(1.0, float(np.abs(other).max())))


SHAPE = (3, 10, 23, 21)
each_dtype = pytest.mark.parametrize("dtype", ["f64", "f32", "f16"])


@pytest.fixture
def cudnn() -> Iterator[RealCudnn]:
    with ooc.device("cuda"):
        yield real_cudnn()


@each_dtype
@pytest.mark.parametrize("mode", ["max", "average", "average_valid"])
def test_pooling_beside_cudnn(mode: str, dtype: str, cudnn: RealCudnn) -> None:
    import cupy

    x = noise(1, SHAPE, dtype)
    ours = ooc.max_pool(x, 3, 2, 1) if mode == "max" else ooc.avg_pool(x, 3, 2, 1, count_padding=mode == "average")
    y, window = cupy.empty_like(ours), ((3, 3), (1, 1), (2, 2))
    cudnn.apply("cudnnPoolingForward", cudnn.pooling(mode, *window), inputs=[x], out=y)
    assert_same(ours, y, dtype)
    dy, dx = noise(2, y.shape, dtype), cupy.empty_like(x)
    mode = "max_deterministic" if mode == "max" else mode
    cudnn.apply("cudnnPoolingBackward", cudnn.pooling(mode, *window), inputs=[y, dy, x], out=dx)
    if mode.startswith("max"):
        ours = ooc.max_pool_backward(x, dy, 3, 2, 1)
    else:
        ours = ooc.avg_pool_backward(dy, x.shape, 3, 2, 1, count_padding=mode == "average")
    assert_same(ours, dx, dtype, 4)


@each_dtype
@pytest.mark.parametrize("act", ["relu", "clipped_relu", "elu", "sigmoid", "tanh"])
def test_activations_beside_cudnn(act: str, dtype: str, cudnn: RealCudnn) -> None:
    import cupy

    x, coef = noise(3, SHAPE, dtype) * 2, {"clipped_relu": 1.5, "elu": 0.7}.get(act, 0.0)
    x[x == coef] = 1.0  # where the slope is either side's, and y does not tell which cuDNN takes
    y, dx, dy = cupy.empty_like(x), cupy.empty_like(x), noise(4, SHAPE, dtype)
    function = cudnn.activation(act, coef)
    cudnn.apply("cudnnActivationForward", function, inputs=[x], out=y)
    ours = ooc.activation(x, act, coef)
    assert_same(ours, y, dtype)
    cudnn.apply("cudnnActivationBackward", function, inputs=[y, dy, x], out=dx)
    assert_same(ooc.activation_backward(y, dy, act, coef), dx, dtype, 4)


@each_dtype
@pytest.mark.parametrize("algorithm", ["accurate", "log"])
def test_softmax_beside_cudnn(algorithm: str, dtype: str, cudnn: RealCudnn) -> None:
    import cupy

    x, dy, log = noise(5, SHAPE, dtype) * 4, noise(6, SHAPE, dtype), algorithm == "log"
    y, dx = cupy.empty_like(x), cupy.empty_like(x)
    cudnn.apply("cudnnSoftmaxForward", SOFTMAX[algorithm], BY_CHANNELS, inputs=[x], out=y)
    assert_same(ooc.softmax(x, log=log), y, dtype)
    cudnn.apply("cudnnSoftmaxBackward", SOFTMAX[algorithm], BY_CHANNELS, inputs=[y, dy], out=dx)
    assert_same(ooc.softmax_backward(y, dy, log=log), dx, dtype, 4)


@each_dtype
@pytest.mark.parametrize("size", [5, 4])
def test_lrn_beside_cudnn(size: int, dtype: str, cudnn: RealCudnn) -> None:
    import cupy

    x, dy, numbers = noise(7, SHAPE, dtype), noise(8, SHAPE, dtype), (0.3, 0.75, 2.0)
    y, dx = cupy.empty_like(x), cupy.empty_like(x)
    norm = cudnn.lrn(size, *numbers)
    cudnn.apply("cudnnLRNCrossChannelForward", norm, ACROSS_CHANNELS, inputs=[x], out=y)
    assert_same(ooc.lrn(x, size, *numbers), y, dtype, 4)
    cudnn.apply("cudnnLRNCrossChannelBackward", norm, ACROSS_CHANNELS, inputs=[y, dy, x], out=dx)
    assert_same(ooc.lrn_backward(x, dy, size, *numbers), dx, dtype, 8)


@each_dtype
@pytest.mark.parametrize("per", ["spatial", "per_activation"])
def test_batch_norm_beside_cudnn(per: str, dtype: str, cudnn: RealCudnn) -> None:
    """cuDNN keeps the parameters of half types in f32, and saves one over the standard deviation."""
    import cupy

    each = per == "per_activation"
    wide, shape = "f64" if dtype == "f64" else "f32", SHAPE[1:] if each else SHAPE[1:2]
    x, dy = noise(9, SHAPE, dtype) * 3, noise(10, SHAPE, dtype)
    scale, bias, mean, var = (noise(i, shape, wide) for i in (11, 12, 13, 14))
    var, eps = cupy.abs(var) + 0.5, 1e-3
    running = [mean.copy(), var.copy()]
    y, dx, saved = cupy.empty_like(x), cupy.empty_like(x), [cupy.empty_like(mean) for _ in range(4)]
    name = "cudnnBatchNormalization"
    spatial = {"per_activation": each, "eps": eps}
    ours = ooc.batch_norm(x, scale, bias, mean, var, **spatial)
    cudnn.batch_norm(f"{name}ForwardInference", per, [x, y], scale, bias, mean, var, eps)
    assert_same(ours, y, dtype, 4)
    found = ooc.batch_norm(x, scale, bias, mean, var, training=True, momentum=0.25, **spatial)
    cudnn.batch_norm(f"{name}ForwardTraining", per, [x, y], scale, bias, 0.25, *running, eps, *saved[:2])
    assert_same(found.y, y, dtype, 4)
    for own, theirs in ((mean, running[0]), (var, running[1]), (found.mean, saved[0])):
        assert_same(own, theirs, wide, 8)
    assert_same(1 / np.sqrt(found.var + eps), saved[1], wide, 8)
    gradients = ooc.batch_norm_backward(x, dy, scale, found.mean, found.var, **spatial)
    sums = (scale, *saved[2:], eps, *saved[:2])
    cudnn.batch_norm(f"{name}Backward", per, [x, dy, dx], *sums, blends=2)  # of dx, and of the sums
    assert_same(gradients.dx, dx, dtype, 8)
    assert_same(gradients.dscale, saved[2], wide, 50)
    assert_same(gradients.db, saved[3], wide, 50)


@each_dtype
def test_sums_beside_cudnn(dtype: str, cudnn: RealCudnn) -> None:
    import cupy

    x, bias = noise(15, SHAPE, dtype), noise(16, (1, SHAPE[1], 1, 1), dtype)
    c, db = x.copy(), cupy.empty((SHAPE[1],), x.dtype)
    cudnn.apply("cudnnAddTensor", inputs=[bias], out=c, beta=1.0)
    assert_same(ooc.add(x, bias), c, dtype)
    cudnn.call("cudnnScaleTensor", *cudnn.tensor(c), scalar(c, 0.5))
    assert_same(ooc.scale(ooc.add(x, bias), 0.5), c, dtype)
    cudnn.apply("cudnnConvolutionBackwardBias", inputs=[x], out=db)
    assert_same(ooc.bias_backward(x), db, dtype, 8)


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("act", ["relu", "identity"])
def test_conv_bias_activation_beside_cudnn(act: str, dtype: str, cudnn: RealCudnn) -> None:
    """Algorithm 1 (implicit, precomputed), the only one that cuDNN documents for every activation."""
    import cupy

    x, w, b = noise(17, (2, 8, 20, 24), dtype), noise(18, (16, 8, 3, 3), dtype), noise(19, (16,), dtype)
    ours = ooc.conv(x, w, b, padding=1, activation=act)
    y = cupy.empty_like(ours)
    cudnn.conv_bias_activation(1, 3 if dtype == "f32" else 1, act, x, w, b, y)
    assert_same(ours, y, dtype, 4)

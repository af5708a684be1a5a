"""The cuDNN binding, without a GPU: opening, the descriptor layer of the real library, and the calls of a library of our own.

The real library is needed by some tests only: OOC_CUDNN, or the wheel that `make test-cudnn` installs.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import random
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ooc import native
from ooc.backends.cuda import cudnn
from ooc.errors import BackendError, ShapeError, UnsupportedError
from ooc.native import DTYPE_CODES
from ooc.ops import ConvFprop

pytestmark = pytest.mark.skipif(native.kernels is None, reason=native.reason)
needs_library = pytest.mark.skipif(cudnn.open_cudnn() is None, reason="install nvidia-cudnn-cu13 or run make test-cudnn")
F32 = DTYPE_CODES["f32"]
API = Path(__file__).parents[3] / "kernels" / "cudnn" / "api.hpp"
DECLARED = set(re.findall(r'"(cudnn\w+)"', API.read_text()))  # functions that ooc looks up


def opened(path: str) -> Any:
    assert native.kernels is not None
    return native.kernels.Cudnn(path)


@pytest.fixture
def afresh() -> Iterator[None]:
    """What was found out about the library is asked again, and forgotten afterwards."""
    cudnn._open.cache_clear()
    yield
    cudnn._open.cache_clear()


def strides_of(shape: tuple[int, ...], channels_last: bool = False) -> tuple[int, ...]:
    """Of a dense tensor, in elements."""
    order = [0, *range(2, len(shape)), 1] if channels_last else list(range(len(shape)))
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


def describe(library: Any, **changes: Any) -> Any:
    """A convolution of 2 x 4 x 8 x 9 with 6 filters of 3 x 3, with changes."""
    given = {
        "direction": "fprop", "dtype": F32, "x_shape": (2, 4, 8, 9), "w_shape": (6, 4, 3, 3), "w_channels_last": False,
        "y_shape": (2, 6, 6, 7), "pad": (0, 0), "stride": (1, 1), "dilation": (1, 1), "groups": 1, "math": "fma",
    } | changes  # fmt: skip
    given.setdefault("x_strides", strides_of(given["x_shape"]))
    given.setdefault("y_strides", strides_of(given["y_shape"]))
    return library.conv(**given)


def describe_x(library: Any, shape: tuple[int, ...], strides: tuple[int, ...], dtype: int = F32) -> Any:
    """A pointwise convolution of an x, with one filter."""
    batch, channels, spatial = shape[:1], shape[1:2], shape[2:]
    ones, zeros = (1,) * len(spatial), (0,) * len(spatial)
    return describe(
        library, dtype=dtype, x_shape=shape, x_strides=strides, w_shape=(1, *channels, *ones), y_shape=(*batch, 1, *spatial),
        pad=zeros, stride=ones, dilation=ones,
    )  # fmt: skip


# ---- opening ----------------------------------------------------------------------------------


def test_a_path_that_cannot_be_opened(tmp_path: Path) -> None:
    text = tmp_path / "libcudnn.so.9"
    text.write_text("not a library\n" * 100)
    for path, reason in (
        (tmp_path / "missing.so", "No such file"),
        (text, "invalid ELF header|slice is not valid|not a mach-o"),
    ):
        with pytest.raises(RuntimeError, match=rf"cuDNN: cannot open .*{path.name}: .*({reason})") as error:
            opened(str(path))
        assert "\n" not in str(error.value)


def test_a_library_without_the_symbols() -> None:
    path = ctypes.util.find_library("m")
    if path is None:
        pytest.skip("no libm to open")
    with pytest.raises(RuntimeError, match=rf"^cuDNN: {re.escape(path)} has no cudnnGetVersion$"):
        opened(path)


def test_switched_off(afresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OOC_CUDNN", "off")
    assert cudnn.open_cudnn() is None
    assert cudnn.cudnn_reason() == "switched off by OOC_CUDNN=off"


def test_a_file_given_is_the_only_one_tried(afresh: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OOC_CUDNN", str(tmp_path / "absent.so"))
    assert cudnn.open_cudnn() is None
    assert cudnn.cudnn_reason().startswith(f"cuDNN: cannot open {tmp_path / 'absent.so'}: ")


def test_found_nowhere(afresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OOC_CUDNN", raising=False)
    monkeypatch.setattr(cudnn, "wheels", list)
    monkeypatch.setattr(cudnn, "LIBRARY", "libcudnn-of-no-machine.so.9")
    assert cudnn.open_cudnn() is None
    assert re.match(r"cuDNN: cannot open libcudnn-of-no-machine.so.9: .*; pip install nvidia-cudnn-cu13", cudnn.cudnn_reason())
    assert "\n" not in cudnn.cudnn_reason()


def test_wheels_are_found_in_every_folder_of_nvidia(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for part in ("first/nvidia/cublas/lib", "second/nvidia/cudnn/lib"):
        (tmp_path / part).mkdir(parents=True)
        monkeypatch.syspath_prepend(tmp_path / part.split("/")[0])
    library = tmp_path / "second/nvidia/cudnn/lib" / cudnn.LIBRARY
    library.touch()
    assert str(library) in cudnn.wheels()


# ---- the real library -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def library() -> Any:
    return cudnn.open_cudnn()


@needs_library
def test_every_symbol_resolves(library: Any) -> None:
    assert 90000 <= library.version < 100000
    assert cudnn.cudnn_reason() == ""
    exported = ctypes.CDLL(library.path)
    assert len(DECLARED) > 20 and all(hasattr(exported, name) for name in DECLARED)


@needs_library
def test_no_handle_without_a_driver(library: Any) -> None:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        with pytest.raises(BackendError, match=r"^cuDNN: cudnnCreate: CUDNN_STATUS_"):
            library.handle()
    else:
        pytest.skip("this machine has a driver")


def random_fprop(rng: random.Random) -> ConvFprop:
    """With symmetric padding, in 2 or 3 dimensions; one dimension is lifted to 2 by an axis of extent 1."""
    rank = rng.randint(1, 3)
    groups = rng.choice((1, 1, 2, 3))
    c, k = (groups * rng.randint(1, 4) for _ in range(2))
    extent, taps, stride, dilation, pad = (
        tuple(rng.randint(lo, hi) for _ in range(rank)) for lo, hi in ((1, 12), (1, 5), (1, 4), (1, 3), (0, 3))
    )
    if rank == 1:
        extent, taps, stride, dilation, pad = (1, *extent), (1, *taps), (1, *stride), (1, *dilation), (0, *pad)
    return ConvFprop(
        rng.randint(1, 3), c, extent, k, taps, stride, dilation, tuple((p, p) for p in pad), groups=groups,
        dtype=rng.choice(tuple(DTYPE_CODES)), layout=rng.choice(("channels_first", "channels_last")),
    )  # fmt: skip


def described_as(library: Any, direction: str, op: ConvFprop, math: str) -> Any:
    channels_last = op.layout == "channels_last"
    x, y = (op.n, op.c, *op.extent), (op.n, op.k, *op.out)
    return library.conv(
        direction, DTYPE_CODES[op.dtype], x, strides_of(x, channels_last), (op.k, op.c // op.groups, *op.taps), channels_last, y,
        strides_of(y, channels_last), tuple(p for p, _ in op.pad), op.stride, op.dilation, op.groups, math,
    )  # fmt: skip


@needs_library
def test_random_convolutions_have_the_extents_that_cudnn_computes(library: Any) -> None:
    rng = random.Random(9)
    accepted = refused = 0
    while accepted < 200:
        try:
            op = random_fprop(rng)
        except ShapeError:  # a filter that does not fit: the same arguments are tried below
            refused += 1
            continue
        accepted += 1
        for direction in ("fprop", "dgrad", "wgrad"):
            described_as(library, direction, op, rng.choice(("fma", "tf32", "tensor")))
    assert refused > 10  # the draws do reach the border


@needs_library
def test_filters_fit_for_cudnn_exactly_where_they_fit_for_ooc(library: Any) -> None:
    rng = random.Random(10)
    seen = {True: 0, False: 0}
    for _ in range(300):
        extent, taps, stride, dilation, pad = (rng.randint(1, most) for most in (9, 6, 3, 3, 3))
        try:
            out = ConvFprop(1, 2, (5, extent), 3, (1, taps), (1, stride), (1, dilation), ((0, 0), (pad, pad))).out
        except ShapeError:
            out = None
        seen[out is None] += 1
        sizes = {"x_shape": (1, 2, 5, extent), "w_shape": (3, 2, 1, taps), "pad": (0, pad), "stride": (1, stride)}
        if out is None:
            with pytest.raises(BackendError, match="cudnnGetConvolutionNdForwardOutputDim: CUDNN_STATUS_BAD_PARAM"):
                describe(library, **sizes, dilation=(1, dilation), y_shape=(1, 3, 5, 1))
        else:
            describe(library, **sizes, dilation=(1, dilation), y_shape=(1, 3, *out))
    assert min(seen.values()) > 20


REFUSED = {
    "negative padding": ({"pad": (-1, 0)}, {"pad": ((-1, -1), (0, 0))}),
    "zero stride": ({"stride": (0, 1)}, {"stride": (0, 1)}),
    "negative stride": ({"stride": (1, -1)}, {"stride": (1, -1)}),
    "zero dilation": ({"dilation": (1, 0)}, {"dilation": (1, 0)}),
    "no groups": ({"groups": 0}, {"groups": 0}),
    "groups that do not divide the channels": ({"groups": 3, "w_shape": (6, 1, 3, 3)}, {"groups": 3}),
    "an empty batch": ({"x_shape": (0, 4, 8, 9)}, {"n": 0}),
    "no channels": ({"x_shape": (2, 0, 8, 9)}, {"c": 0}),
    "an empty axis": ({"x_shape": (2, 4, 0, 9)}, {"extent": (0, 9)}),
    "no filters": ({"w_shape": (0, 4, 3, 3)}, {"k": 0}),
    "an empty filter": ({"w_shape": (6, 4, 3, 0)}, {"taps": (3, 0)}),
    "a filter larger than padded x": ({"w_shape": (6, 4, 9, 3)}, {"taps": (9, 3)}),
}


@needs_library
@pytest.mark.parametrize("what", sorted(REFUSED))
def test_what_ooc_refuses_cudnn_refuses(library: Any, what: str) -> None:
    for_cudnn, for_ooc = REFUSED[what]
    sizes = {"n": 2, "c": 4, "extent": (8, 9), "k": 6, "taps": (3, 3)}
    with pytest.raises(ShapeError):
        ConvFprop(**(sizes | for_ooc))  # type: ignore[arg-type]
    with pytest.raises(BackendError, match=r"^cuDNN: cudnn\w+: CUDNN_STATUS_BAD_PARAM"):
        describe(library, **for_cudnn)


@needs_library
def test_where_cudnn_is_the_more_permissive(library: Any) -> None:
    # Descriptors say nothing about these; a caller must not rely on them.
    with pytest.raises(ShapeError):
        ConvFprop(2, 4, (8, 9), 5, (3, 3), groups=2)
    describe(library, groups=2, w_shape=(5, 2, 3, 3), y_shape=(2, 5, 6, 7))  # groups need not divide k
    large = (2**16, 2**15, 1, 1)  # 2^31 elements, refused for tensors only
    describe(library, x_shape=(1, 2**15, 1, 1), w_shape=large, y_shape=(1, 2**16, 1, 1))
    describe_x(library, (2, 3, 4, 5), (60, 20, 5, -1))
    describe_x(library, (2, 3, 4, 5), (1, 1, 1, 1))  # elements that share an address


@needs_library
@pytest.mark.parametrize("dtype", sorted(DTYPE_CODES))
def test_tensors_of_2_to_the_31_elements_are_refused(library: Any, dtype: str) -> None:
    code = DTYPE_CODES[dtype]
    for shape in ((2**16, 2**15 - 1, 1, 1), (1, 1, 2**31 - 1, 1)):
        describe_x(library, shape, strides_of(shape), code)
    for shape in ((2**16, 2**15, 1, 1), (1, 1, 2**16, 2**15), (1, 2**31, 1, 1), (2**20, 2**20, 2**20, 1)):
        with pytest.raises(UnsupportedError, match=r"^cuDNN: "):
            describe_x(library, shape, strides_of(shape), code)


@needs_library
def test_numbers_that_do_not_fit_32_bits_are_not_cut(library: Any) -> None:
    with pytest.raises(UnsupportedError, match="a stride of 4294967301 exceeds its 32 bits"):
        describe_x(library, (2, 3, 4, 5), (2**32 + 5, 20, 5, 1))
    with pytest.raises(UnsupportedError, match="an extent of 4294967297 exceeds its 32 bits"):
        describe(library, w_shape=(2**32 + 1, 4, 3, 3))
    with pytest.raises(UnsupportedError, match="a pad of 4294967296 exceeds its 32 bits"):
        describe(library, pad=(2**32, 0))


@needs_library
def test_tensors_that_are_refused(library: Any) -> None:
    for shape, strides in (((2, 3, 0, 5), (60, 20, 5, 1)), ((2, 3, 4, 5), (60, 0, 5, 1))):
        with pytest.raises(BackendError, match=r"^cuDNN: cudnnSetTensorNdDescriptor: CUDNN_STATUS_BAD_PARAM: "):
            describe_x(library, shape, strides)
    with pytest.raises(UnsupportedError):  # more than 8 axes
        describe_x(library, (2,) * 9, strides_of((2,) * 9))
    with pytest.raises(ValueError, match="x needs a batch, channels and spatial axes"):
        describe_x(library, (5,), (1,))
    describe_x(library, (1, 3, 4, 5), (0, 20, 5, 1))  # of an axis of extent 1, the stride may be anything


@needs_library
def test_arguments_that_do_not_fit_together(library: Any) -> None:
    with pytest.raises(ValueError, match=r"y has the shape \(2, 6, 6, 7\), not \(2, 6, 6, 6\)"):
        describe(library, y_shape=(2, 6, 6, 6))
    lengths: list[dict[str, Any]] = [{"y_shape": (2, 6, 6)}, {"pad": (0, 0, 0)}, {"x_strides": (1, 1)}]
    for changes in (*lengths, {"direction": "sideways"}, {"math": "bf16"}, {"dtype": 7}):
        with pytest.raises(ValueError, match=r"^cuDNN: "):
            describe(library, **changes)


# ---- a library of our own that records its calls ----------------------------------------------

# Descriptors are numbered in the order of their making; the log says what reached the library.
STUB = r"""
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef const void *P;
typedef struct { int algo, status; float ms; size_t bytes; int det, math, reserved[3]; } Perf;
static char text[1 << 16];
static int made, fails, busy;
static void log_(const char *format, ...) {
  va_list args; va_start(args, format);
  size_t used = strlen(text);
  vsnprintf(text + used, sizeof text - used, format, args);
}
const char *stub_log(void) { return text; }
void stub_clear(void) { text[0] = 0; }
void stub_fail(int status) { fails = status; }
size_t cudnnGetVersion(void) { return VERSION; }
const char *cudnnGetErrorString(int status) { return status >= 4000 ? "INTERNAL" : "NOT_SUPPORTED"; }
void cudnnGetLastErrorString(char *out, size_t size) { snprintf(out, size, "two\nlines\n"); }
static int make(char **out) { *out = (char *)0 + ++made; return 0; }
#define ID(p) (int)((const char *)(p) - (char *)0)
#define KIND(name) int cudnnCreate##name(char **out) { return make(out); } \
  int cudnnDestroy##name(P p) { log_("~%d ", ID(p)); return 0; }
KIND() KIND(TensorDescriptor) KIND(FilterDescriptor) KIND(ConvolutionDescriptor)
int cudnnSetStream(P h, P s) { if (busy++) log_("race "); log_("stream=%d ", ID(s)); return 0; }
int cudnnGetConvolutionNdForwardOutputDim(P c, P x, P w, int n, int *out) {
  int y[] = {2, 6, 6, 7}; memcpy(out, y, sizeof y); return 0;
}
int cudnnSetConvolutionMathType(P c, int math) { log_("%d.math=%d ", ID(c), math); return 0; }
static int find(int *count, Perf *perf) {
  Perf found[3] = {{.algo = 5, .ms = 2, .bytes = 1000, .math = 3}, {.algo = 4, .status = 3000}, {.algo = 1, .ms = 4, .det = 1}};
  memcpy(perf, found, sizeof found); *count = 3; return fails;
}
#define PASS(name) \
  int cudnnGetConvolution##name##Algorithm_v7(P h, P a, P b, P c, P o, int n, int *count, Perf *perf) { \
    log_("get%d ", n); return find(count, perf); } \
  int cudnnFindConvolution##name##AlgorithmEx(P h, P ad, P a, P bd, P b, P c, P od, P o, int n, int *count, Perf *perf, P w, \
                                              size_t z) { \
    log_("find%d,%d,%d,%d,%zu ", ID(a), ID(b), ID(o), ID(w), z); busy = 0; return find(count, perf); } \
  int cudnnGetConvolution##name##WorkspaceSize(P h, P a, P b, P c, P o, int algo, size_t *bytes) { \
    *bytes = 64 * algo + 1000 * ID(c); return fails; } \
  int cudnnConvolution##name(P h, const float *al, P ad, P a, P bd, P b, P c, int algo, P w, size_t z, const float *be, P od, \
                             P o) { \
    log_(#name " %g*(%d@%d,%d@%d)+%g*%d@%d algo=%d conv=%d workspace=%d,%zu ", *al, ID(a), ID(ad), ID(b), ID(bd), *be, ID(o), \
         ID(od), algo, ID(c), ID(w), z); busy = 0; return fails; }
PASS(Forward) PASS(BackwardData) PASS(BackwardFilter)
"""


def build(folder: Path, version: int) -> Path:
    """The stub as each of the four libraries that cuDNN consists of; what it does not define itself does nothing."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")

    def run(*args: str) -> str:
        return subprocess.run([compiler, *args, "stub.c"], cwd=folder, check=True, capture_output=True, text=True).stdout

    source = folder / "stub.c"
    source.write_text(STUB)
    rest = DECLARED - set(re.findall(r"\b(cudnn\w+)\(", run("-E", "-P")))
    source.write_text(STUB + "".join(f"int {name}(void) {{ busy = 0; return 0; }}\n" for name in sorted(rest)))
    run("-w", "-shared", "-fPIC", f"-DVERSION={version}", "-o", "libcudnn.so.9")
    for part in ("graph", "ops", "cnn"):
        shutil.copy(folder / "libcudnn.so.9", folder / f"libcudnn_{part}.so.9")
    return folder / "libcudnn.so.9"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build(tmp_path_factory.mktemp("stub"), 91234))


@pytest.fixture
def stub(built: str) -> Iterator[Any]:
    """Its other end."""
    calls = ctypes.CDLL(built)
    calls.stub_log.restype = ctypes.c_char_p
    calls.stub_clear()
    yield calls
    calls.stub_fail(0)


def log(stub: Any) -> str:
    text = stub.stub_log().decode()
    stub.stub_clear()
    return text.strip()


def test_the_passes_get_their_operands(built: str, stub: Any) -> None:
    library = opened(built)
    assert library.version == 91234
    handle = library.handle()
    for direction, name in (("fprop", "Forward"), ("dgrad", "BackwardData"), ("wgrad", "BackwardFilter")):
        conv = describe(library, direction=direction, math="tf32")
        *maths, _ = re.findall(r"(\d+)\.math=(\d)", log(stub) + " 0.math=0")
        descs = [int(desc) for desc, _ in maths]
        x, w, y = range(descs[3] + 1, descs[3] + 4)
        assert [int(math) for _, math in maths] == [0, 1, 2, 3]
        first, second, out = {"fprop": (x, w, y), "dgrad": (w, y, x), "wgrad": (x, y, w)}[direction]
        conv.run(handle, 77, 4, 3, 0.5, 100, 200, 2.0, 300, 400, 5000)
        assert log(stub) == (
            f"stream=77 {name} 0.5*(100@{first},200@{second})+2*300@{out} algo=4 conv={descs[3]} workspace=400,5000"
        )
        assert conv.heuristics(handle) == [(5, 3, 1000, False), (1, 0, 0, True)]
        assert log(stub) == "get32"
        timed = conv.measure(handle, 77, 100, 200, 300, 400, 5000)
        assert [entry[1:] for entry in timed] == [(5, 3, 1000, False), (1, 0, 0, True)]
        assert [entry[0] for entry in timed] == pytest.approx([0.002, 0.004])
        assert log(stub) == "stream=77 find100,200,300,400,5000"
        assert conv.workspace(handle, 2) == 128 + 1000 * descs[0]
        assert conv.workspace(handle, 2, math=3) == 128 + 1000 * descs[3]
        with pytest.raises(ValueError, match="no math 4"):
            conv.run(handle, 77, 4, 4, 1.0, 1, 2, 0.0, 3, 0, 0)


def test_a_status_becomes_an_error(built: str, stub: Any) -> None:
    library = opened(built)
    handle, conv = library.handle(), describe(library)
    stub.stub_fail(3004)
    with pytest.raises(UnsupportedError, match=r"^cuDNN: cudnnGetConvolutionForwardWorkspaceSize: NOT_SUPPORTED: two lines$"):
        conv.workspace(handle, 1)
    stub.stub_fail(4000)
    with pytest.raises(BackendError, match=r"^cuDNN: cudnnConvolutionForward: INTERNAL: two lines$"):
        conv.run(handle, 0, 1, 3, 1.0, 1, 2, 0.0, 3, 0, 0)


def test_threads_share_a_handle(built: str, stub: Any) -> None:
    library = opened(built)
    handle, conv = library.handle(), describe(library)
    stub.stub_clear()

    def work(stream: int) -> None:
        for _ in range(50):
            conv.run(handle, stream, 1, 3, 1.0, stream, 2, 0.0, 3, 0, 0)

    threads = [threading.Thread(target=work, args=(stream,)) for stream in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    calls = re.findall(r"stream=(\d) Forward 1\*\((\d)@", text := log(stub))
    assert len(calls) == 150 and all(stream == x for stream, x in calls)
    assert "race" not in text


def test_everything_made_is_destroyed(built: str, stub: Any) -> None:
    library = opened(built)
    conv, handle = describe(library), library.handle()
    stub.stub_clear()
    del conv, handle
    assert len(set(re.findall(r"~(\d+)", log(stub)))) == 8  # 4 convolutions, x, w, y, the handle


def test_an_incomplete_installation_is_a_reason(built: str, tmp_path: Path) -> None:
    # cuDNN itself aborts the process when it misses one of its parts.
    shutil.copy(built, tmp_path)
    with pytest.raises(RuntimeError, match=r"^cuDNN: cannot open .*libcudnn_graph.so.9: .*No such file"):
        opened(str(tmp_path / "libcudnn.so.9"))


@pytest.mark.parametrize(("version", "major"), [(8907, 8), (100100, 10)])
def test_another_version_is_refused(tmp_path: Path, version: int, major: int) -> None:
    with pytest.raises(RuntimeError, match=rf"^cuDNN: version 9 is needed, .*libcudnn.so.9 is version {major}$"):
        opened(str(build(tmp_path, version)))

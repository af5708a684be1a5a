"""What stands in for the library cuDNN: its binding's interface, its algorithms with their workspaces, and what it refuses.

Results are computed by our own kernels on what cuDNN is told. The rules are NVIDIA's (supported configurations of the legacy
convolutions) and what an H200 showed (perfmodel/results/h200, first.jsonl and second/images.jsonl).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ooc.backends.cuda.kernels import own_kernel
from ooc.backends.cuda.tuning import FMA, MATH, TunedCudnn
from ooc.backends.device_array import device_array
from ooc.backends.views import dense_strides
from ooc.errors import UnsupportedError
from ooc.ir.op import ITEM_BYTES, Block, numpy_dtype
from ooc.ir.region import Span
from ooc.native import DTYPE_CODES
from ooc.ops import ConvDgrad, ConvFprop, ConvWgrad

BITS = 2**31  # from here on a stride, a span or a tensor is refused
NAMES = {code: name for name, code in DTYPE_CODES.items()}
# By pass: implicit GEMM, the same with indices computed before (on tensor cores), FFT of all, of tiles, Winograd.
CODES = {"fprop": (0, 1, 4, 5, 7), "dgrad": (0, 1, 2, 3, 5), "wgrad": (0, 1, 2, 6, 5)}
# Bytes that tensor cores want beside x, w and y, the most that was seen: weight gradients sum parts of w in f32.
BEYOND = {
    "fprop": {"f32": 147, "f16": (8 << 20) + 1171, "bf16": (8 << 20) + 147},
    "dgrad": {"f32": 533008, "f16": (2 << 20) + 307, "bf16": 1053584},
    "wgrad": {"f32": 10095239, "f16": 16515751, "bf16": 6080151},
}
SCRIBBLED = 4096  # bytes at both ends of the workspace that a run overwrites


@dataclass(frozen=True)
class Into:
    """Launches on a stream."""

    driver: Any
    stream: int

    def launch(self, name: str, dtype: str, threads: int, args: Any, index: int) -> None:
        self.driver.launch(name, dtype, threads, args, index, self.stream)


class Algorithm(NamedTuple):
    """One that serves a convolution: seconds that it would take, its number, math, workspace, whether it repeats itself."""

    seconds: float
    code: int
    math: int
    nbytes: int
    same: bool = True


@dataclass(frozen=True)
class Told:
    """What the binding was told of a convolution."""

    direction: str
    code: int
    x: tuple[int, ...]
    x_strides: tuple[int, ...]
    w: tuple[int, ...]
    channels_last: bool
    y: tuple[int, ...]
    y_strides: tuple[int, ...]
    pad: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    how: str

    @property
    def dtype(self) -> str:
        return NAMES[self.code]

    @property
    def order(self) -> tuple[int, ...]:
        axes = tuple(range(2, len(self.x)))
        return (0, *axes, 1) if self.channels_last else (0, 1, *axes)

    def packed(self, which: str, first: int) -> bool:
        """Whether x or y has no gaps along the axes from this one on."""
        shape, strides = (self.x, self.x_strides) if which == "x" else (self.y, self.y_strides)
        wanted = dense_strides(shape, 1, self.order)
        return all(e == 1 or s == d for e, s, d in list(zip(shape, strides, wanted, strict=True))[first:])


def refused(told: Told) -> str:
    """Why descriptors of these tensors cannot be made; empty where they can."""
    for name, shape, strides in (("x", told.x, told.x_strides), ("y", told.y, told.y_strides)):
        if max(strides) >= BITS:
            return f"a stride of {max(strides)} exceeds its 32 bits"
        if min(strides) <= 0:
            return f"{name}: a stride of {min(strides)}"
        if sum((e - 1) * s for e, s in zip(shape, strides, strict=True)) >= BITS or math.prod(shape) >= BITS:
            return f"{name}: too many elements"
    return "" if math.prod(told.w) < BITS else "w: too many elements"


def algorithms(told: Told, tf32_planes: bool = True) -> Iterator[Algorithm]:
    """Those that serve a convolution, the fastest first. tf32_planes: whether TF32 wants planes without gaps."""
    if not told.packed(*{"fprop": ("x", len(told.x)), "dgrad": ("y", 1), "wgrad": ("x", 1)}[told.direction]):
        return  # gradients want the tensor packed that they look at window by window
    gemm, fast, fft, tiles, winograd = CODES[told.direction]
    item, how = ITEM_BYTES[told.dtype], MATH[told.how]
    whole = item * (math.prod(told.x) + math.prod(told.w) + math.prod(told.y))
    planes = told.packed("x", 2) and told.packed("y", 2)
    c, k, ones = told.x[1], told.y[1], (1,) * len(told.pad)
    plain = (told.stride, told.dilation, told.groups) == (ones, ones, 1) and not told.channels_last
    made = told.x if told.direction == "dgrad" else told.y
    if told.dtype == "f32" and plain and len(told.pad) == 2:
        if told.w[2:] == (3, 3):
            images = made[0] if told.direction == "wgrad" else -(-made[0] // 16) * 16
            squares = images * -(-made[2] // 4) * -(-made[3] // 4)
            yield Algorithm(1.0, winograd, how, 4 * 36 * (squares * (c + k) + k * c))
        if planes and max(told.w[2:]) <= 32:
            squares = made[0] * math.prod(-(-e // (33 - r)) for e, r in zip(made[2:], told.w[2:], strict=True))
            yield Algorithm(1.2, tiles, how, 4352 * (c * k + min(2 * made[0], squares) * (c + k)))
            yield Algorithm(2.5, fft, how, 3 * whole + (1 << 30))
    tensor = told.how != "fma" and told.dtype != "f64"
    if not tensor:
        yield Algorithm(4.0, fast, how, 1024)
    elif (planes or told.how != "tf32" or not tf32_planes) and not _vast(told):
        yield Algorithm(0.4, fast, how, item * _turned(told) + BEYOND[told.direction][told.dtype])
    yield Algorithm(5.0, gemm, FMA if told.how == "tf32" else how, 0, told.direction == "fprop")


def _turned(told: Told) -> int:
    """Numbers of x, w and y for tensor cores: channels come by fours; of half types by eights, but up to four outside dgrad."""
    c, k, half = told.x[1], told.y[1], told.dtype != "f32"
    eight = [half and (told.direction == "dgrad" or channels > 4) for channels in (c, k)]
    full_c, full_k = (-(-channels // fill) * fill for channels, fill in zip((c, k), (8 if e else 4 for e in eight), strict=True))
    x, w, y = (math.prod(shape) for shape in (told.x, told.w, told.y))
    return x // c * full_c + w // (c // told.groups * k) * (full_c // told.groups * full_k) + y // k * full_k


def _vast(told: Told) -> bool:
    """Whether an image is too large for tensor cores to turn."""
    item = ITEM_BYTES[told.dtype]
    return len(told.pad) == 2 and max(math.prod(told.x[1:]), math.prod(told.y[1:])) * item >= BITS


class StandInLibrary:
    """The binding's `Cudnn` on an emulated device. geometries: what it was told of; ran: the numbers of algorithms that ran."""

    version = 91900

    def __init__(self, driver: Any, tf32_planes: bool = True) -> None:
        self.driver, self.tf32_planes = driver, tf32_planes
        self.geometries: list[Told] = []
        self.ran: list[int] = []

    def handle(self) -> str:
        return "handle"

    def conv(self, *told: Any) -> StandInConv:
        found = Told(*told)
        if reason := refused(found):
            raise UnsupportedError(f"cuDNN: {reason}")
        self.geometries.append(found)
        return StandInConv(self, found)


class StandInConv:
    """The binding's `CudnnConv`."""

    def __init__(self, library: StandInLibrary, told: Told) -> None:
        self.library, self.told = library, told
        kind = {"fprop": ConvFprop, "dgrad": ConvDgrad, "wgrad": ConvWgrad}[told.direction]
        self.op = kind(
            told.x[0], told.x[1], told.x[2:], told.w[0], told.w[2:], told.stride, told.dilation, tuple((p, p) for p in told.pad),
            groups=told.groups, dtype=told.dtype, layout="channels_last" if told.channels_last else "channels_first",
        )  # fmt: skip
        assert told.y == (told.x[0], told.w[0], *self.op.out), f"cuDNN computes other extents: {told}"
        assert told.w[1] * told.groups == told.x[1]
        assert len(told.x) in (4, 5), "cuDNN wants two spatial axes or three"
        self.algorithms = list(algorithms(told, library.tf32_planes))

    def heuristics(self, handle: str) -> list[tuple[int, int, int, bool]]:
        """In cuDNN's order, which never proposes transforms of tiles, as seen on the H200."""
        hidden = CODES[self.told.direction][3:]
        return [(a.code, a.math, a.nbytes, a.same) for a in self.algorithms if a.code not in hidden]

    def workspace(self, handle: str, algorithm: int, how: int) -> int:
        found = next((a for a in self.algorithms if a.code == algorithm), None)
        if found is None:
            raise UnsupportedError("cuDNN: CUDNN_STATUS_NOT_SUPPORTED")
        return found.nbytes

    def measure(
        self, handle: str, stream: int, first: int, second: int, out: int, workspace: int, nbytes: int
    ) -> list[Algorithm]:
        for accumulate in (False, True):  # what is measured leaves something else than the result
            self._compute(stream, first, second, out, accumulate)
        return sorted(a for a in self.algorithms if a.nbytes <= nbytes)

    def run(
        self, handle: str, stream: int, algorithm: int, how: int, alpha: float, first: int, second: int, beta: float, out: int,
        workspace: int, nbytes: int,
    ) -> None:  # fmt: skip
        if self.workspace(handle, algorithm, how) > nbytes:
            raise UnsupportedError("cuDNN: CUDNN_STATUS_BAD_PARAM: the workspace is too small")
        assert beta == 0 or self.told.dtype in ("f32", "f64"), "a half type's sum would be rounded between tiles"
        driver = self.library.driver
        if nbytes:
            ends = workspace, workspace + max(0, nbytes - SCRIBBLED)
            for begin in ends if workspace != driver.scratch else ends[:1]:
                driver.clear(begin, min(nbytes, SCRIBBLED), stream)
        self._compute(stream, first, second, out, beta != 0)
        self.library.ran.append(algorithm)

    def _compute(self, stream: int, first: int, second: int, out: int, accumulate: bool) -> None:
        told, op = self.told, self.op
        lies = {
            "x": (told.x, told.x_strides), "y": (told.y, told.y_strides),
            "w": (told.w, dense_strides(told.w, 1, op.memory_order)),
        }  # fmt: skip
        names = {"fprop": ("x", "w", "y"), "dgrad": ("w", "dy", "dx"), "wgrad": ("x", "dy", "dw")}[told.direction]
        dtype, blocks = numpy_dtype(told.dtype), {}
        for name, address in zip(names, (first, second, out), strict=True):
            shape, strides = lies[name.removeprefix("d")]
            array = device_array(address, shape, dtype, tuple(s * dtype.itemsize for s in strides))
            blocks[name] = Block(array, tuple(Span(0, e) for e in shape))
        tile = {d: Span(0, e) for d, e in op.dims.items()}
        own_kernel(op, Into(self.library.driver, stream))(tile, blocks, not accumulate, True)


def stand_in(driver: Any, stream: int, tf32_planes: bool = True) -> TunedCudnn:
    """cuDNN for an emulated device: what is measured is forgotten with it, what libraries take for themselves is nothing."""
    tuned = TunedCudnn(StandInLibrary(driver, tf32_planes), stream, driver.identity(), lambda: 0, lambda nbytes: driver.scratch)
    tuned.measured.path = Path("/dev/null/nowhere")
    tuned.measured.known = {}
    return tuned

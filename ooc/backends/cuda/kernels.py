"""Our own CUDA kernels (kernels/device/) for every op: what each is given, and how many threads it takes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from ooc import ops
from ooc.backends.base import Kernel
from ooc.backends.cuda.arguments import ACC, ARGS, GROUP, PARTS, Arguments
from ooc.backends.cuda.dense import ACTIVATED, ELEMENTWISE, SUMMING, DenseKernel, by_channel, dense_form, dense_sums, one_by_one
from ooc.backends.cuda.recipes import RECIPES
from ooc.backends.gpu_workspace import SHARED
from ooc.ir.op import ITEM_BYTES, Block, Op, crop
from ooc.ir.region import Span, Tile, extents
from ooc.ops import Convolution

GROUPED = 64  # parts of a sum that one thread joins
BLOCK = 8  # channels of a position that one thread of a blocked convolution computes (BLOCKED in kernels/device/convolution.cu)
FILLED = 1 << 16  # threads from which on a device is busy enough for them


class Launcher(Protocol):
    """What starts a kernel: `threads` threads of `name` for an element type, with the ARGS record as its one argument, and
    coordinates of `index` bits."""

    def launch(self, name: str, dtype: str, threads: int, args: Any, index: int) -> None: ...


def blank_of(op: Op) -> Any:
    """An ARGS record with an op's numbers, of no tile yet."""
    blank = np.zeros((), ARGS)
    wholes, reals = RECIPES[type(op)].numbers(op)
    blank["whole"][: len(wholes)], blank["real"][: len(reals)] = wholes, reals
    return blank


def own_kernel(op: Op, launcher: Launcher, parts: int = 1, scratch: Any | None = None) -> Kernel:
    """A kernel of kernels/device/ for a plain op. parts: how many threads share a result of an op that sums many terms into
    few results; its `shared_bytes` are then in `scratch`, an array. With one part, no result's bits depend on the tiling."""
    if isinstance(op, COPYING):
        return _copying(op, launcher)
    return OwnKernel(op, launcher, parts if type(op) in SHARED else 1, scratch)


class OwnKernel:
    """A kernel of ours for the tiles of an op: see own_kernel."""

    def __init__(self, op: Op, launcher: Launcher, parts: int, scratch: Any | None) -> None:
        recipe = RECIPES[type(op)]
        self.op, self.launcher, self.parts, self.scratch, self.name = op, launcher, parts, scratch, recipe.kernel
        self.made = op.outputs[0]
        named = recipe.slots.split()
        slots = [(ACC, acc) for acc in op.state] + [(named.index(o.name), o) for o in op.operands]
        self.slots = [(slot, o, (o.axes, o.shape) == (self.made.axes, self.made.shape)) for slot, o in slots]
        blank = blank_of(op)
        blank["whole"][PARTS], blank["whole"][GROUP] = parts, GROUPED if parts > GROUPED else 1
        self.blank = blank.tobytes()
        names = ELEMENTWISE.get(self.name)
        self.single = {o.name for o in op.operands if o.name in (names or ())}  # those with a value for each channel, or more
        fits = all(by_channel(o.shape, self.made.shape[1]) for o in op.operands if o.name in self.single)
        self.elementwise, self.item = names is not None and fits, ITEM_BYTES[op.dtype]
        self.ending = f"_{op.act}" if self.name in ACTIVATED else ""  # type: ignore[attr-defined]
        self.summed = SUMMING.get(self.name, ()) if parts > 1 else ()
        self.blocked = isinstance(op, (ops.ConvFprop, ops.ConvDgrad)) and op.groups == 1
        self.cells = op.stride if isinstance(op, ops.PoolBackward) and _in_cells(op) else None

    def __call__(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        whole = self.made.region(tile)
        shape = extents(whole)
        results = math.prod(shape)
        if not results:
            return
        args, arrays = Arguments(self.blank), dict[str, tuple[Any, int]]()
        args.phase(first, last)
        for slot, operand, alike in self.slots:
            region = whole if alike else operand.region(tile)
            if operand.name in blocks:
                part = crop(blocks[operand.name], region)
                arrays[operand.name] = part.array, args.fill(slot, operand.shape, part.region, part.array)
            elif operand is self.made:
                args.fill(slot, operand.shape, region, None)
        if self.parts > 1:
            self._take_parts(args, arrays, shape, results)
        name, count = self.name, results
        if self.elementwise and (form := self._form(arrays)) is not None:
            args.dense(form.told)
            name, count = f"{name}_dense{self.ending}", form.threads
        if self.blocked and (shared := results // shape[1] * -(-shape[1] // BLOCK)) >= FILLED and shape[1] > 1:
            name, count = f"{name}_blocked", shared
        if self.cells is not None:  # one more along each axis than strides fit in
            name, count = f"{name}_cells", math.prod(shape[:2]) * math.prod(e // s + 2 for e, s in zip(shape[2:], self.cells))
        self.launcher.launch(name, self.op.dtype, count, args.record, args.index)

    def _form(self, arrays: Mapping[str, tuple[Any, int]]) -> DenseKernel | None:
        """Of an element-wise kernel, where its operands lie alike but for those with a value for each channel."""
        alike, addresses = [], 0
        for name, (array, address) in arrays.items():
            if name not in self.single:
                alike.append(array)
                addresses |= address
            elif not one_by_one(array):
                return None
        return dense_form(self.made.memory_order, alike, self.item, bool(self.single), addresses)

    def _take_parts(self, args: Arguments, arrays: Mapping[str, tuple[Any, int]], shape: tuple[int, ...], results: int) -> None:
        """The parts of every sum, and where they are many, groups of them."""
        args.scratch(self.scratch)
        name, launch, dtype = self.name, self.launcher.launch, self.op.dtype
        form = self._sums(arrays, shape) if self.summed else None
        if form is not None:
            args.dense(form.told)
        launch(f"{name}_parts" if form is None else f"{name}_dense_parts", dtype, results * self.parts, args.record, args.index)
        if self.parts > GROUPED:
            launch(f"{name}_groups", dtype, results * -(-self.parts // GROUPED), args.record, args.index)

    def _sums(self, arrays: Mapping[str, tuple[Any, int]], shape: tuple[int, ...]) -> DenseKernel | None:
        summed = [arrays[name] for name in self.summed]
        x, addresses = summed[0][0], 0
        for array, address in summed:
            addresses |= address
            if array.strides != x.strides or array.shape != x.shape:
                return None
        return dense_sums(x, shape, next(o.memory_order for o in self.op.inputs if o.name == self.summed[0]), addresses)


def _in_cells(op: ops.PoolBackward) -> bool:
    """Whether a thread may compute the gradient of as many positions as strides are long: no more than two windows reach there
    along an axis."""
    return op.how == "max" and all(w <= 2 * s for w, s in zip(op.window, op.stride, strict=True))


COPYING = (ops.Concat, ops.Permute, ops.Spread)  # made of copies of blocks, any number of them


def _copying(op: ops.Concat | ops.Permute | ops.Spread, launcher: Launcher) -> Kernel:
    def kernel(tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        for target, source in op.copies(blocks):
            if target.size:
                move(launcher, "copy_block", op.dtype, target, source, target.itemsize)

    return kernel


class Ending:
    """What follows on a complete sum of a convolution: bias and activation, by our own kernel, which lets NaN pass."""

    def __init__(self, op: Convolution, backend: Launcher) -> None:
        self.op, (n, k, *extent) = op, op.outputs[0].shape
        end = ops.Pointwise(n, k, tuple(extent), op.bias, op.act, op.coef, dtype=op.dtype, layout=op.layout)
        self.kernel, self.dims = own_kernel(end, backend), tuple(end.dims)
        self.nothing = not op.bias and op.act == "identity"

    def __call__(self, total: Any, tile: Tile, blocks: Mapping[str, Block]) -> None:
        if self.nothing:
            return
        output = self.op.outputs[0]
        region = output.region(tile)
        operands = {"x": Block(total, region), "y": blocks[output.name], **({"b": blocks["b"]} if self.op.bias else {})}
        self.kernel(dict(zip(self.dims, region, strict=True)), operands, True, True)


def tell_slow(backend: Any, op: Op, library: str, reason: str) -> None:
    """Warn, once for each reason, of tiles that a library does not compute."""
    if backend.tells_once((op, reason)):
        text = f"{op}: computed by a kernel of ooc's own, many times slower than {library}, for some tiles: {reason}"
        warnings.warn(text, RuntimeWarning, stacklevel=3)


BLANK = np.zeros((), ARGS).tobytes()


def move(launcher: Launcher, kernel: str, dtype: str, target: Any, source: Any, whole: int = 0) -> None:
    """Run a kernel that moves blocks (copy_block, widen_block, narrow_block, blend_block) on arrays of one shape, of at most
    five axes; whole: its one number."""
    args = Arguments(BLANK)
    args.record["whole"][0] = whole
    for slot, array in enumerate((target, source)):
        lifted = array[(None,) * (5 - array.ndim)]
        args.fill(slot, lifted.shape, tuple(Span(0, e) for e in lifted.shape), lifted)
    launcher.launch(kernel, dtype, math.prod(target.shape), args.record, args.index)

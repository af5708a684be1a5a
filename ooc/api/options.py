"""What functions say of what they share: each text is written once, and put into their docstrings where they are defined.

A line `<padding, run>` of a docstring stands for the texts of these names. Keywords that a function takes as `**options` and
names in its docstring are shown in its signature; calls pass through nothing.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypedDict, TypeVar

from ooc.runtime.progress import Callback

T = TypeVar("T", bound=Callable[..., Any])


class ArrayLike(Protocol):
    """What functions take as arrays: of NumPy, CuPy, PyTorch, zarr, h5py, dask, ..., and the sources of `ooc.open`."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> Any: ...

    def __getitem__(self, key: Any, /) -> Any: ...


TEXTS = {
    "arrays": """\
Arrays: of NumPy with any strides; np.memmap, read and written through its file; of CuPy, PyTorch and whatever has the CUDA
    array interface or DLPack, used where they lie; sources of `ooc.open` and `ooc.create`, and arrays of zarr, h5py and
    tensorstore, read by region (`ooc.as_source`); dask arrays, inputs alone, of which results stay lazy where a block of them
    needs a region of x; arrays of xarray, of which results are such arrays, too; of anything else in memory np.asarray(array)
    is taken. All have one dtype unless said otherwise: float64, float32, float16 or bfloat16 (of ml_dtypes);
    half types are computed in float32. Shapes: n images, c channels read, k channels made, `spatial` 1 to 3 axes (w; h x w;
    d x h x w), `taps` as many (s; r x s; t x r x s).
Integers: uint8, uint16, int16, int32 and bool are read wherever these are, converted tile by tile to the floating dtype of the
    arrays beside them, or float32; results are then of that dtype. Outputs may be of them too: what is written is rounded to
    the nearest, half to even, and held within their range; NaN gives 0.""",
    "errors": """\
ShapeError: shapes or sizes that do not fit, an extent of 0.
ArgumentError (a ShapeError too): a word that is unknown, arguments that do not go together, an output that is read-only or
    overlaps itself, another output or what is still to be read.
OptionError: a keyword that is not listed, or an option of another type.
DtypeError: a dtype that is not listed, dtypes that differ, a masked array.
BudgetError: no tiling fits the device's budget; `smallest_bytes` is the least budget that would do, where it is known.
UnsupportedError: the device has no kernel for this, or does not reach the memory in which an array lies.
StoreError: the file of a memmap is too short, or opening, reading or writing a file failed.
BackendError: a library, a driver or a kernel failed while computing.""",
    "before": "What the arguments or the budget cause is raised before anything is written.",
    # ---- parameters
    "stride": "stride: positions between windows; an int, or one per spatial axis; at least 1, default 1.",
    "padding": """\
padding: positions added around each spatial axis; an int, one per axis, or one pair (before, after) per axis; not negative,
    default 0.""",
    "padding of conv": """\
padding: positions added around each spatial axis; an int, one per axis, or one pair (before, after) per axis; not negative,
    default 0. Or a word: "valid", none; "same", zeros, as many as make ceil(x / stride) results, the odd one behind;
    "reflect", "replicate" and "circular", as many, mirrored at the centre of the outermost position, as that one, and as
    if x went on with its other end (tiles at an end then hold all of that axis).""",
    "dilation": "dilation: positions between taps; an int, or one per spatial axis; at least 1, default 1.",
    "groups": "groups: an int that divides c and k, default 1; each group of filters reads its own c/groups channels.",
    "windows": """\
window: extents of a window; an int, or one per spatial axis; at least 1.
stride: positions between windows; an int, or one per spatial axis; at least 1, default None: the window.
padding: positions added around each spatial axis; an int, one per axis, or one pair (before, after) per axis; not negative
    and smaller than the window, default 0.""",
    "activation": """\
activation: None (default), a name or an `ooc.Activation`: identity, relu, clipped_relu, elu, leaky_relu, sigmoid, tanh.""",
    "name": """\
name: identity, relu (max(x, 0)), clipped_relu (min(max(x, 0), coef)), elu (x, or coef * (exp(x) - 1) where x < 0), leaky_relu
    (x, or coef * x where x < 0), sigmoid or tanh.
coef: a number, looked at for clipped_relu, elu and leaky_relu alone; default None: 6, 1 and 0.01. Where a gradient is taken,
    that of elu and leaky_relu must not be negative.""",
    "pool": "pool: None (default), an int (max pooling, its window and stride), or an `ooc.Pool`.",
    "layout": """\
layout: "channels_first" (default: n x channels x spatial, as shapes are given here) or "channels_last" (n x spatial x
    channels); of images and their gradients. Parameters are as said here in either.""",
    "filter layout": """\
filter_layout: "channels_first" (default: k x c/groups x taps, whatever the layout of the images) or "channels_last" (k x taps
    x c/groups); of filters and their gradients.""",
    "any layout": "layout: taken and not looked at: the result is the same for every layout.",
    "out": """\
out: an array of the result's shape and dtype to write to, a memmap (mode "r+" or "w+") for example; default None: a new one.""",
    "blend": """\
alpha, beta: numbers, default 1.0 and 0.0: the result is alpha * (what is said above) + beta * (what out holds before); a beta
    other than 0 needs out.""",
    "conversion": """\
scale, offset: with an x of integers alone: x * scale + offset is what is computed with, padding added after it; each a number or
    one per channel of x, default None: 1 and 0.""",
    "conversion along axis": """\
scale, offset: with an x of integers alone: x * scale + offset is what is computed with; each a number or one per index of the
    axis, default None: 1 and 0.""",
    "conversion along one": """\
scale, offset: with an x of integers alone: x * scale + offset is what is computed with; each a number or one per index of axis 1
    (of x itself, where that has one axis), default None: 1 and 0.""",
    "run": """\
deterministic: True sums in an order that does not depend on the budget: the same bits at any, on one kind of processor, but
    slower; default False; the device may ask for it too (`ooc.device`).
progress: True shows a bar of the tiles done on stderr (of tqdm, where that is installed), a few lines where that is no terminal;
    default False.
callbacks: a function f(done, tiles), or several, called on the calling thread after each tile; what one of them raises ends
    the call and is passed on; default ().
trace: path of a JSON file to write when all is computed: when each step ran and was predicted to run, for ui.perfetto.dev or
    chrome://tracing; all steps are then kept in memory, 1 KiB each at most; StoreError, before anything is computed, where it
    cannot be written; default None.
resume: path of a folder: what is finished is written down there, and the same call goes on where an earlier one was interrupted,
    be it killed; outputs must be memory maps that nothing else is read from, alpha 1 and beta 0; ArgumentError where it is
    of another call; default None.""",
    # ---- results
    "beside": """\
Each is its output itself where that is given, else a new array beside x, beside dy where x is not read: of PyTorch where
    that is, on its device; else of CuPy where it lies in a device's memory; else of NumPy.""",
}  # fmt: skip
BESIDE = """\
of the dtype of {0}; out itself where it is given, else a new array: of PyTorch where {0} is, on its device; else of CuPy
    where {0} lies in a device's memory; else of NumPy."""
TEXTS |= {f"beside {name}": BESIDE.format(name) for name in ("x", "y", "dy", "the first")}


class RunOptions(TypedDict, total=False):
    """Keywords that all functions take as **options."""

    deterministic: bool
    progress: bool
    callbacks: Callback | Sequence[Callback]
    trace: str | Path | None
    resume: str | Path | None


class ConvertOptions(RunOptions, total=False):
    """Those of functions of images that may be integers."""

    scale: ArrayLike | float | None
    offset: ArrayLike | float | None


class BlendOptions(RunOptions, total=False):
    """Those of functions that blend their result with what is in their output."""

    alpha: float
    beta: float


class ImageOptions(BlendOptions, ConvertOptions):
    """Those of functions that do both."""


class LayoutOptions(BlendOptions, total=False):
    """Those of functions that are the same for every layout."""

    layout: str


class ImageLayoutOptions(LayoutOptions, ImageOptions):
    """Those of such functions of images."""


class OutputOptions(LayoutOptions, total=False):
    """Those of functions that hand their output on."""

    out: Any


class ImageOutputOptions(OutputOptions, ImageLayoutOptions):
    """Those of such functions of images."""


# Keywords that functions take as **options: what holds where they are left out, in the order of their signatures.
DEFAULTS: dict[str, Any] = {
    "layout": "channels_first", "scale": None, "offset": None, "out": None, "alpha": 1.0, "beta": 0.0, "deterministic": False,
    "progress": False, "callbacks": (), "trace": None, "resume": None,
}  # fmt: skip

WIDTH = 120  # of what is filled in
MARK = re.compile(r"^( *)(.*)<([a-z ,]+)>$", re.MULTILINE)
ENTRY = re.compile(r"^ *([*\w, ]+): ", re.MULTILINE)


KNOWN: list[str] = []  # all words that functions take


def documented(definition: T) -> T:
    """Decorator: fill in the docstring of a function or class, and show its options in its signature."""
    KNOWN.extend(word for word in inspect.signature(definition).parameters if word not in KNOWN)
    return fill(definition, TEXTS)


def fill(definition: T, texts: Mapping[str, str]) -> T:
    """Put texts into a docstring in place of their names."""

    def told(match: re.Match[str]) -> str:
        indent, before, names = match.groups()
        lines = [line for name in names.split(", ") for line in texts[name].replace("\n    ", " ").split("\n")]
        return "\n".join(_wrapped(indent, before + line) for line in lines)

    if definition.__doc__:  # there is none under python -OO
        definition.__doc__ = MARK.sub(told, inspect.cleandoc(definition.__doc__))
        if inspect.isfunction(definition):
            _show_options(definition)
    return definition


@cache
def _wrapped(indent: str, line: str) -> str:
    """An entry of a docstring, in lines. Functions share most of their entries, and all are written when ooc is imported."""
    return textwrap.fill(line, WIDTH, initial_indent=indent, subsequent_indent=indent + "    ", break_on_hyphens=False)


def entries(doc: str) -> set[str]:
    """What a docstring has entries for, such as `alpha, beta: numbers`."""
    return {name.strip() for line in ENTRY.findall(doc) for name in line.split(",")}


def _show_options(function: Callable[..., Any]) -> None:
    """Replace **options in a signature by those that the docstring names."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    if not parameters or parameters.pop().kind is not inspect.Parameter.VAR_KEYWORD:
        return
    explained = entries(function.__doc__ or "")
    named = [name for name in DEFAULTS if name in explained and name not in signature.parameters]
    types = {name: hint.__forward_arg__ for name, hint in ImageOutputOptions.__annotations__.items()}
    more = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=DEFAULTS[n], annotation=types[n]) for n in named]
    vars(function)["__signature__"] = signature.replace(parameters=parameters + more)

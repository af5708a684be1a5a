"""Packages of the bioimage.io model zoo: a network with what is done before and after it, as `ooc apply` has it in words.

The description is read and validated by bioimageio.spec, without a network and without running anything of the package.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ooc.apply.axes import SPACE
from ooc.apply.recipe import STORES
from ooc.errors import ArgumentError, StoreError, UnsupportedError
from ooc.files.reached import regular

DESCRIPTIONS = ("bioimageio.yaml", "rdf.yaml", "model.yaml")
MOST_UNPACKED = 1 << 36  # bytes of weights
WEIGHTS = {"onnx": "ONNX", "torchscript": "TorchScript", "pytorch_state_dict": "PyTorch", "keras_hdf5": "Keras"}


class Package(NamedTuple):
    """What a package says.

    Fields:
        model: path of its weights.
        before, after: steps in words, see `ooc.apply.recipe`.
        output: name of the tensor that is wanted, "": the first.
        pad_to: of which extents have to be multiples.
    """

    model: str
    before: str
    after: str
    output: str
    pad_to: int


def is_package(path: str) -> bool:
    """Whether a path is one of a package, zipped, or of the description of one that is not."""
    return path.lower().endswith(".zip") or os.path.basename(path) in DESCRIPTIONS


@contextmanager
def unpacked(path: str) -> Iterator[Package]:
    """What a package says, its weights in a file while the block lasts. Raises StoreError: no package, or not a valid one;
    UnsupportedError: one that ooc does not compute, or bioimageio.spec is missing."""
    regular(path, path)
    told = _described(path)
    with tempfile.TemporaryDirectory(prefix="ooc-") as folder:
        weights = told.weights.onnx
        if weights is None:
            names = [WEIGHTS.get(n, n) for n in type(told.weights).model_fields if getattr(told.weights, n) is not None]
            raise UnsupportedError(f"{path}: its weights are {', '.join(names)}; ooc reads ONNX, and .pt2 beside a package")
        files = [weights, *([weights.external_data] if getattr(weights, "external_data", None) else [])]
        model, *_ = [_taken(path, str(file.source), folder) for file in files]
        yield _worded(path, told, model)


def _described(path: str) -> Any:
    """The description, in the newest words."""
    try:
        import bioimageio.spec as spec
    except ImportError:
        raise UnsupportedError(f'{path}: packages of bioimage.io need bioimageio.spec; pip install "ooc[bioimageio]"') from None
    try:
        with spec.ValidationContext(perform_io_checks=False):
            told = spec.load_model_description(Path(path), format_version="latest", perform_io_checks=False)
    except Exception as error:  # of a library that reads what a stranger wrote
        raise StoreError(f"{path}: not a valid model of bioimage.io: {str(error) or type(error).__name__}") from None
    if len(told.inputs) != 1:
        raise UnsupportedError(f"{path}: a model of {len(told.inputs)} inputs; ooc apply serves those of one")
    return told


def _taken(path: str, name: str, folder: str) -> str:
    """A file of a package, as a file. Raises StoreError for one that is not in the package."""
    if re.match(r"[a-z][a-z0-9+.-]*:", name, re.IGNORECASE):
        raise UnsupportedError(f"{path}: its weights lie at {name}; pass a package that has them")
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
    if ".." in parts or not parts or name.startswith("/"):
        raise StoreError(f"{path}: names a file out of it, {name}")
    if not path.lower().endswith(".zip"):
        file = os.path.join(os.path.dirname(os.path.abspath(path)), *parts)
        regular(file, path)
        return file
    with zipfile.ZipFile(path) as package:
        try:
            held = package.getinfo("/".join(parts))
        except KeyError:
            raise StoreError(f"{path}: has no file {name}") from None
        if held.file_size > MOST_UNPACKED:
            raise StoreError(f"{path}: {name} unpacks to {held.file_size} bytes")
        target = os.path.join(folder, parts[-1])
        with package.open(held) as packed, open(target, "xb") as out:
            shutil.copyfileobj(packed, out)
    return target


# ---------------------------------------------------------------- in words


def _worded(path: str, told: Any, model: str) -> Package:
    (x,), y = told.inputs, told.outputs[0]
    channels = next((str(a.id) for a in x.axes if a.type == "channel"), "")
    before = [_step(path, one, channels, BEFORE) for one in x.preprocessing]
    after = [_step(path, one, channels, AFTER) for one in y.postprocessing]
    steps = [getattr(a.size, "step", 0) for a in x.axes if a.type == "space"]
    least = [getattr(a.size, "min", 0) for a in x.axes if a.type == "space"]
    multiple = max(steps, default=0) if all(s and m % s == 0 for s, m in zip(steps, least, strict=True)) else 1
    odd = [str(a.id) for a in x.axes if a.type not in ("batch", "channel") and str(a.id) not in SPACE]
    if odd:
        raise UnsupportedError(f"{path}: takes axes {', '.join(odd)}; ooc apply has batch, channels and space, z y x")
    return Package(model, ", ".join(filter(None, before)), ", ".join(filter(None, after)), "", max(1, multiple))


def _step(path: str, one: Any, channels: str, known: dict[str, Callable[[Any, str], str]]) -> str:
    words = known.get(one.id)
    if words is None:
        raise UnsupportedError(f"{path}: {one.id} is no step that ooc apply has; pass --pre or --post in its place")
    try:
        return words(one.kwargs, channels)
    except ArgumentError as error:
        raise UnsupportedError(f"{path}: {one.id}: {error}") from None


def _numbers(values: Any) -> str:
    return " ".join(f"{v:.9g}" for v in (values if isinstance(values, Sequence) else [values]))


def _linear(told: Any, channels: str) -> str:
    _check_axis(told, channels)
    return f"scale {_numbers(told.gain)}, add {_numbers(told.offset)}"


def _fixed(told: Any, channels: str) -> str:
    _check_axis(told, channels)
    return f"mean {_numbers(told.mean)}, std {_numbers(told.std)}"


def _check_axis(told: Any, channels: str) -> None:
    """Raise ArgumentError for numbers along another axis than that of channels."""
    axis = getattr(told, "axis", None)
    if axis is not None and str(axis) != channels:
        raise ArgumentError(f"along axis {axis}; ooc apply has numbers per channel")


def _each(told: Any, channels: str) -> str:
    """Whether every channel is measured alone."""
    axes = None if told.axes is None else [str(a) for a in told.axes]
    return "" if axes is None or channels in axes or not channels else " each"


def _range(told: Any, channels: str) -> str:
    if told.reference_tensor is not None:
        raise ArgumentError("by another tensor")
    return f"percentile {_numbers(told.min_percentile)} {_numbers(told.max_percentile)}{_each(told, channels)}"


def _clip(told: Any, channels: str) -> str:
    if told.min is None or told.max is None:
        raise ArgumentError("by percentiles, or at one end alone")
    return f"clip {_numbers(told.min)} {_numbers(told.max)}"


def _threshold(told: Any, channels: str) -> str:
    if isinstance(told.threshold, Sequence):
        raise ArgumentError("a threshold for every channel")
    return f"> {_numbers(told.threshold)}"


def _softmax(told: Any, channels: str) -> str:
    _check_axis(told, channels)
    return "softmax"


def _cast(told: Any, channels: str) -> str:
    if told.dtype not in (*STORES, "float32"):
        raise ArgumentError(f"to {told.dtype}")
    return f"cast {told.dtype}"


BOTH: dict[str, Callable[[Any, str], str]] = {
    "scale_linear": _linear, "fixed_zero_mean_unit_variance": _fixed, "clip": _clip, "sigmoid": lambda told, channels: "sigmoid",
    "softmax": _softmax,
}  # fmt: skip
BEFORE = {
    **{name: BOTH[name] for name in ("scale_linear", "fixed_zero_mean_unit_variance", "clip")},
    "zero_mean_unit_variance": lambda told, channels: f"normalise{_each(told, channels)}", "scale_range": _range,
    "ensure_dtype": lambda told, channels: "",  # the network's dtype is what its first layer reads
}  # fmt: skip
AFTER = {**BOTH, "binarize": _threshold, "ensure_dtype": _cast}

"""The pieces of a training step: pictures, weights, where tensors live, and the calls that each layer makes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from models import Conv, Linear, Shape, Shapes

import ooc
from ooc.cli.demo.image import MEAN, SPREAD, photograph

Array = Any
Weights = Mapping[str, tuple[Array, Array]]
Seen = Callable[[Shapes | None, Mapping[str, Array]], None]


def pictures(batch: int, side: int, classes: int, seed: int, computes: bool = True) -> tuple[Array, Array]:
    """Different crops of a photograph, resized and normalised, and a label for each: its index."""
    x = np.empty((batch, 3, side, side), np.float32)
    if computes:
        photo, rng = photograph(), np.random.default_rng(seed)
        photo = ((photo - MEAN) / SPREAD).astype(np.float32).transpose(2, 0, 1)
        with ooc.device("cpu"):
            for one in x:
                ooc.upsample(_crop(photo, rng)[None], side, "linear", out=one[None])
    return x, np.arange(batch) % classes


def _crop(photo: Array, rng: np.random.Generator) -> Array:
    """A square of a random size and place, perhaps mirrored."""
    height, width = photo.shape[1:]
    side = int(rng.integers(min(height, width) // 3, min(height, width)))
    top, left = int(rng.integers(height - side + 1)), int(rng.integers(width - side + 1))
    return photo[:, top : top + side, left : left + side][..., :: -1 if rng.random() < 0.5 else 1]


def make_weights(layers: Sequence[Shapes], seed: int, computes: bool = True) -> Weights:
    """Filters and biases by layer (He et al. 2015): the variance of what flows through the layers stays the same."""
    rng = np.random.default_rng(seed)
    made = {}
    for s in layers:
        w = rng.standard_normal(s.w, np.float32) if computes else np.empty(s.w, np.float32)
        if computes:
            w *= math.sqrt(2 / math.prod(s.w[1:]))
        made[s.layer.name] = w, np.zeros(s.b, np.float32)
    return made


class Storage:
    """Where activations and gradients live: in memory, or as files in a folder."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.most = 0
        self._bytes: dict[str, int] = {}

    def empty(self, name: str, shape: Shape) -> Array:
        """A new tensor."""
        self._bytes[name] = 4 * math.prod(shape)
        self.most = max(self.most, sum(self._bytes.values()))
        if self.folder is None:
            return np.empty(shape, np.float32)
        return np.lib.format.open_memmap(self._file(name), "w+", np.float32, shape)

    def holding(self, name: str, array: Array) -> Array:
        """A tensor with this content."""
        if self.folder is not None:
            np.save(self._file(name), array)
            array = np.load(self._file(name), mmap_mode="r")
        self._bytes[name] = array.nbytes
        return array

    def drop(self, *names: str) -> None:
        """Tensors that nobody reads any more; names never made are ignored."""
        for name in names:
            if self._bytes.pop(name, None) and self.folder:
                self._file(name).unlink()

    def _file(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{name}.npy"


@dataclass(frozen=True)
class Row:
    """What one call did. share: the busiest lane's part of the time; peak: bytes of the device."""

    name: str
    passing: str
    shape: Shape
    tiles: int
    predicted: float
    seconds: float
    moved: int
    share: float
    peak: int


class Step:
    """One training step, forward and backward; `gradients` and `rows` hold what came of it.

    told: called with what each call did. seen: called when a layer's backward pass is done, with all that it read and made:
    x, y, z, the gradients dz and dy that reached z and y (of a pooled layer dz alone), dx, dw, db; of the loss (None) with
    x, labels, loss, dx.
    """

    def __init__(
        self, layers: Sequence[Shapes], weights: Weights, storage: Storage, seed: int,
        told: Callable[[Row], None] | None = None, seen: Seen | None = None,
    ) -> None:  # fmt: skip
        self.layers, self.weights, self.storage, self.seed = layers, weights, storage, seed
        self.told, self.seen = told, seen
        self.rows: list[Row] = []
        self.gradients: dict[str, Array] = {}
        self._kept: dict[str, dict[str, Array]] = {}  # a layer's x, y and z

    def run(self, x: Array, labels: Array) -> float:
        """Both passes; the loss."""
        for s in self.layers:
            x = self._conv(s, x) if isinstance(s.layer, Conv) else self._linear(s, x)
        loss: float = ooc.cross_entropy(x, labels)
        self._tell("loss", "forward", ())
        dy = ooc.cross_entropy_backward(x, labels, out=self.storage.empty("loss.dx", x.shape))
        self._tell("loss", "backward", dy.shape)
        self._show(None, {"x": x, "labels": labels, "loss": loss, "dx": dy})
        for s in reversed(self.layers):
            dy = self._conv_backward(s, s.layer, dy) if isinstance(s.layer, Conv) else self._linear_backward(s, s.layer, dy)
        self.gradients[f"{self.layers[0].layer.name}.dx"] = dy
        return loss

    # ---- forward

    def _conv(self, s: Shapes, x: Array) -> Array:
        """One pass over x; with pooling, y is kept for the backward pass beside the pooled z."""
        layer = s.layer
        assert isinstance(layer, Conv)
        w, b = self.weights[layer.name]
        y = z = self.storage.empty(f"{layer.name}.y", s.y)
        how: dict[str, Any] = {"padding": layer.padding, "stride": layer.stride, "activation": layer.activation}
        if layer.pool is None:
            ooc.conv(x, w, b, **how, out=y)
        else:
            z = self.storage.empty(f"{layer.name}.z", s.z)
            ooc.conv(x, w, b, **how, pool=layer.pool, with_unpooled=True, out=(y, z))
        self._kept[layer.name] = {"x": x, "y": y, "z": z}
        self._tell(_with_pool(layer), "forward", z.shape)
        return z

    def _linear(self, s: Shapes, x: Array) -> Array:
        layer = s.layer
        assert isinstance(layer, Linear)
        x = x.reshape(s.x)
        w, b = self.weights[layer.name]
        y = self.storage.empty(f"{layer.name}.y", s.y)
        ooc.linear(x, w, b, activation=layer.activation, out=y)
        self._tell(layer.name, "forward", y.shape)
        z = self._dropped(layer, y, "z", "forward") if layer.dropout else y
        self._kept[layer.name] = {"x": x, "y": y, "z": z}
        return z

    def _dropped(self, layer: Linear, x: Array, name: str, passing: str) -> Array:
        """Dropout; with the same seed it is its own gradient."""
        out = self.storage.empty(f"{layer.name}.{name}", x.shape)
        ooc.dropout(x, layer.dropout, dropout_seed(self.seed, layer.name), out=out)
        self._tell(f"{layer.name} dropout", passing, out.shape)
        return out

    # ---- backward

    def _conv_backward(self, s: Shapes, layer: Conv, dy: Array) -> Array:
        kept, outs = self._kept.pop(layer.name), self._outs(s)
        ooc.conv_backward(
            kept["x"], self.weights[layer.name][0], dy, y=kept["y"], padding=layer.padding, stride=layer.stride,
            activation=layer.activation, pool=layer.pool, **outs,
        )  # fmt: skip
        self._tell(_with_pool(layer), "backward", s.x)
        self._show(s, kept | outs | {"dz": dy})
        self._done(layer.name, outs)
        return outs["dx"]

    def _linear_backward(self, s: Shapes, layer: Linear, dy: Array) -> Array:
        kept, dz = self._kept.pop(layer.name), dy
        if layer.dropout:
            dy = self._dropped(layer, dz, "dz", "backward")
        outs = self._outs(s)
        needs = {} if layer.activation is None else {"y": kept["y"], "activation": layer.activation}
        ooc.linear_backward(kept["x"], self.weights[layer.name][0], dy, **needs, **outs)
        self._tell(layer.name, "backward", s.x)
        self._show(s, kept | outs | {"dz": dz, "dy": dy})
        self._done(layer.name, outs)
        return outs["dx"].reshape(self._before(s).z)

    def _outs(self, s: Shapes) -> dict[str, Array]:
        """Room for the gradients of a layer."""
        return {f"d{o}": self.storage.empty(f"{s.layer.name}.d{o}", getattr(s, o)) for o in ("x", "w", "b")}

    def _before(self, s: Shapes) -> Shapes:
        return self.layers[self.layers.index(s) - 1]

    def _done(self, name: str, outs: Mapping[str, Array]) -> None:
        """Keep what was asked for, let go of what only this layer still read."""
        self.gradients |= {f"{name}.{d}": outs[d] for d in ("dw", "db")}
        after = [s.layer.name for s in self.layers].index(name) + 1
        read = self.layers[after].layer.name if after < len(self.layers) else "loss"
        self.storage.drop(f"{name}.y", f"{name}.z", f"{name}.dz", f"{read}.dx")

    # ---- what is told

    def _show(self, s: Shapes | None, tensors: Mapping[str, Array]) -> None:
        if self.seen:
            self.seen(s, tensors)

    def _tell(self, name: str, passing: str, shape: Shape) -> None:
        report = ooc.last_report()
        assert report is not None
        seconds = sum(part.measured.seconds for part in report.parts)
        row = Row(
            name, passing, tuple(shape), report.tiles, report.predicted_seconds, seconds, sum(report.lane_bytes.values()),
            report.overlap_efficiency, report.peak_bytes,
        )  # fmt: skip
        self.rows.append(row)
        if self.told:
            self.told(row)


def _with_pool(layer: Conv) -> str:
    return layer.name + (" + pool" if layer.pool else "")


def dropout_seed(seed: int, name: str) -> int:
    """Another mask for every layer."""
    return seed * 1000 + sum(name.encode())

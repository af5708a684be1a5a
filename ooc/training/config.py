"""What a training run is told, as a TOML file or a dict: tables whose every key has a type and a range."""

from __future__ import annotations

import dataclasses
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ooc.errors import ArgumentError, shown
from ooc.files.records import content, plain, record, understood
from ooc.networks.optimizers import OPTIMIZERS
from ooc.training.outcome import METRICS
from ooc.training.schedule import RateSchedule

MOST_TEXT = 1 << 20  # bytes of a file
MOST_STEPS, MOST_BATCH = 1 << 32, 1 << 20
SIZES = ("side", "classes", "width", "dropout", "channels")  # of a network that has a name
LETTERS = "zyx"
Paths = str | tuple[str, ...]
Table = TypeVar("Table")


@dataclass(frozen=True)
class ModelTable:
    """[model]: a network by its name, with its sizes; or in a file.

    Fields:
        name: of `ooc.networks.models`, such as unet3d.
        graph: a .json file that `Graph.to_json` wrote.
        onnx: an .onnx file.
        output: the tensor that losses and metrics are of; "": the only output.
        side, classes, width, dropout, channels: sizes of a network that has a name; None: its own. channels: of the input of an
            .onnx file that takes any, too.
    """

    name: str = ""
    graph: str = ""
    onnx: str = ""
    output: str = ""
    side: int | None = None
    classes: int | None = None
    width: float | None = None
    dropout: float | None = None
    channels: int | None = None

    def __post_init__(self) -> None:
        if sum(map(bool, (self.name, self.graph, self.onnx))) != 1:
            raise ArgumentError("expected one of name, graph and onnx")
        odd = self.sizes if not self.name else {}
        if {*odd} - ({"channels"} if self.onnx else set()):
            raise ArgumentError(f"{next(iter(odd))}: a network in a file has sizes of its own")

    @property
    def sizes(self) -> dict[str, Any]:
        """The sizes that are told."""
        return {name: getattr(self, name) for name in SIZES if getattr(self, name) is not None}


@dataclass(frozen=True)
class LossTable:
    """One of [[loss]].

    Fields:
        kind: as `Graph.loss` takes it.
        output: the tensor that it is of; "": that of [model].
        keywords: of `Graph.loss` besides.
    """

    kind: str
    output: str = ""
    keywords: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class OptimizerTable:
    """[optimizer]: its kind, its keywords, and how its rate changes.

    Fields:
        kind: of `OPTIMIZERS`.
        keywords: of its class.
        schedule: of its learning rate.
    """

    kind: str
    keywords: Mapping[str, Any]
    schedule: RateSchedule


@dataclass(frozen=True)
class DataTable:
    """[data]: what is learned from, and how patches are drawn from it.

    Fields:
        images, labels: a file, a pattern such as "scans/*.npy", or a list of files.
        axes, label_axes: a letter per axis of the files, of n, c, z, y, x; "": as the files tell, else the last of n, c, space.
        pre: what is done to the numbers of an image, in the words of `ooc apply --pre`.
        patch: extents; (): those of the network's input.
        batch: patches of a step.
        foreground: share of the patches that hold a position whose label is above 0.
        flips: letters of axes that are turned round in half of the patches.
        rotations: letters of axes, of equal extents, in whose planes patches are turned by multiples of 90 degrees.
    """

    images: Paths
    labels: Paths
    axes: str = ""
    label_axes: str = ""
    pre: str = ""
    patch: tuple[int, ...] = ()
    batch: int = 1
    foreground: float = 0.0
    flips: str = ""
    rotations: str = ""

    def __post_init__(self) -> None:
        _within("batch", self.batch, 1, MOST_BATCH)
        _within("foreground", self.foreground, 0, 1)
        for name in ("flips", "rotations"):
            letters = getattr(self, name)
            if len({*letters}) < len(letters) or not {*letters} <= {*LETTERS}:
                raise ArgumentError(f"{name}: expected letters of {LETTERS}, each once, got {shown(letters)}")
        if len(self.rotations) == 1:
            raise ArgumentError(f"rotations: expected two letters or more, which span a plane, got {shown(self.rotations)}")
        if any(e < 1 for e in self.patch):
            raise ArgumentError(f"patch: expected extents of 1 or more, got {shown(self.patch)}")


@dataclass(frozen=True)
class ValidationTable:
    """[validation]: on what the network is measured, and how often.

    Fields:
        images, labels: files, as of [data]; "": a share of those.
        share: of the samples of [data], which are not trained on then.
        every: so many steps.
        metric: what best.ooc is the best of: "loss", "accuracy" or "dice".
    """

    images: Paths = ""
    labels: Paths = ""
    share: float = 0.0
    every: int = 100
    metric: str = "loss"

    def __post_init__(self) -> None:
        _within("every", self.every, 1, MOST_STEPS)
        if bool(self.images) != bool(self.labels):
            raise ArgumentError("expected images and labels, or neither")
        if bool(self.share) == bool(self.images):
            raise ArgumentError("share: expected a share of the samples, or files as images and labels")
        if self.share and not 0 < self.share < 1:
            raise ArgumentError(f"share: expected a number between 0 and 1, got {shown(self.share)}")
        if self.metric not in METRICS:
            raise ArgumentError(f"metric: expected one of {', '.join(METRICS)}, got {shown(self.metric)}")


@dataclass(frozen=True)
class RunTable:
    """[run]: for how long, with what memory, and where it is kept.

    Fields:
        folder: of the run; made where it is missing.
        steps: of the whole run.
        seed: of parameters, dropout, and what is drawn.
        budget, device, policy, deterministic, home, pinned: as `Graph.plan` takes them.
        every: steps from one checkpoint to the next.
        keep: how many checkpoints stay besides last.ooc and best.ooc.
        curve: whether the losses are drawn.
    """

    folder: str
    steps: int
    seed: int = 0
    budget: int | float | str | None = None
    device: str | None = None
    policy: str = "auto"
    deterministic: bool = False
    home: str | None = None
    pinned: int | float | str | None = None
    every: int = 100
    keep: int = 0
    curve: bool = True

    def __post_init__(self) -> None:
        _within("steps", self.steps, 1, MOST_STEPS)
        _within("every", self.every, 1, MOST_STEPS)
        _within("seed", self.seed, 0, (1 << 63) - 1)
        _within("keep", self.keep, 0, 1 << 16)
        if not self.folder:
            raise ArgumentError("folder: expected a path")


class TrainingConfig(NamedTuple):
    """All tables of a run, and the folder at which its paths begin. model: None where the graph is the caller's."""

    model: ModelTable | None
    losses: tuple[LossTable, ...]
    optimizer: OptimizerTable
    data: DataTable
    validation: ValidationTable | None
    run: RunTable
    base: Path

    @property
    def identity(self) -> dict[str, Any]:
        """What must be the same when the run is resumed, by key. Time, memory and device may be others."""
        tables = {
            "model": self.model, "loss": dict(enumerate(map(plain, self.losses), 1)), "optimizer": self.optimizer,
            "data": self.data, "validation": self.validation,
        }  # fmt: skip
        keys = {key: value for name, one in tables.items() for key, value in _flat(name, one)}
        keys |= {f"run.{name}": getattr(self.run, name) for name in ("seed", "deterministic")}
        return keys | ({"run.steps": self.run.steps} if self.optimizer.schedule.kind == "cosine" else {})


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The keys of a table and of those in it, as people write them."""
    inner = plain(value) if dataclasses.is_dataclass(value) else value
    if not isinstance(inner, Mapping):
        yield name, inner
        return
    for key, one in inner.items():
        yield from _flat(name if key == "keywords" else f"{name}.{key}", one)


def configured(config: str | os.PathLike[str] | Mapping[str, Any], own_graph: bool) -> TrainingConfig:
    """The tables of a file or a dict; own_graph: there is no [model]. Raises ArgumentError, which names the key; StoreError."""
    if isinstance(config, Mapping):
        return _tables(_told(config), Path.cwd(), own_graph)
    try:
        path = Path(config)
    except TypeError:
        raise ArgumentError(f"config: expected a path or a dict, got {shown(config)}") from None
    with understood(path, "not TOML"):
        raw = tomllib.loads(content(path, MOST_TEXT).decode())
    return _tables(raw, path.absolute().parent, own_graph)


def _told(value: Any) -> Any:
    """What a dict has, its paths as texts."""
    if isinstance(value, Mapping):
        return {key: _told(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_told(one) for one in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _tables(raw: Mapping[str, Any], base: Path, own_graph: bool) -> TrainingConfig:
    tables = ("model", "loss", "optimizer", "data", "validation", "run")
    for name in raw:
        if name not in tables:
            raise ArgumentError(f"config: no table {shown(name)}; there are {', '.join(tables)}")
    if own_graph and "model" in raw:
        raise ArgumentError("[model]: a graph is given as graph=; expected one of them")
    return TrainingConfig(
        None if own_graph else table(ModelTable, "model", raw.get("model")),
        _losses(raw.get("loss", [])),
        _optimizer(raw.get("optimizer")),
        table(DataTable, "data", raw.get("data")),
        table(ValidationTable, "validation", raw["validation"]) if "validation" in raw else None,
        table(RunTable, "run", raw.get("run")),
        base,
    )


def table(kind: type[Table], name: str, raw: Any) -> Table:
    """A table of a type. Raises ArgumentError, which names the key."""
    if not isinstance(raw, Mapping):
        raise ArgumentError(f"[{name}]: expected a table, got {'none' if raw is None else shown(raw)}")
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    for key in raw:
        if key not in {f.name for f in fields}:
            raise ArgumentError(f"[{name}] {key}: no such key; there are {', '.join(f.name for f in fields)}")
    needed = [f.name for f in fields if f.default is MISSING and f.default_factory is MISSING]
    for key in needed:
        if key not in raw:
            raise ArgumentError(f"[{name}] {key}: is missing")
    try:
        return record(kind, raw)
    except ValueError as error:  # an ArgumentError too
        raise ArgumentError(f"[{name}] {error}") from None


def _losses(raw: Any) -> tuple[LossTable, ...]:
    if not isinstance(raw, (list, tuple)):
        raise ArgumentError(f"[[loss]]: expected a list of tables, got {shown(raw)}")
    return tuple(_loss(f"loss {i}", one) for i, one in enumerate(raw, 1))


def _loss(name: str, raw: Any) -> LossTable:
    if not isinstance(raw, Mapping):
        raise ArgumentError(f"[[{name}]]: expected a table, got {shown(raw)}")
    fields = {key: raw[key] for key in ("kind", "output") if key in raw}
    return table(LossTable, name, {**fields, "keywords": {key: value for key, value in raw.items() if key not in fields}})


def _optimizer(raw: Any) -> OptimizerTable:
    """The optimizer; its own class looks at its keywords. Raises ArgumentError."""
    if not isinstance(raw, Mapping):
        raise ArgumentError(f"[optimizer]: expected a table, got {'none' if raw is None else shown(raw)}")
    keywords = {key: value for key, value in raw.items() if key not in ("kind", "schedule")}
    kind = raw.get("kind")
    if not isinstance(kind, str) or kind not in OPTIMIZERS:
        raise ArgumentError(f"[optimizer] kind: expected one of {', '.join(OPTIMIZERS)}, got {shown(kind)}")
    table(OPTIMIZERS[kind], "optimizer", keywords)
    return OptimizerTable(kind, keywords, table(RateSchedule, "optimizer.schedule", raw.get("schedule", {})))


def _within(name: str, value: float, low: float, high: float) -> None:
    """Raise ArgumentError for a number out of range."""
    if not low <= value <= high:
        raise ArgumentError(f"{name}: expected a number from {low} to {high}, got {shown(value)}")

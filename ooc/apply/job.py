"""One network applied to one tensor: what is read, planned, run and written."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ooc.apply.recipe import AFTER, BEFORE, done, dtype_of, parse
from ooc.errors import BudgetError, ShapeError, UnsupportedError
from ooc.ir.op import INTEGERS, numpy_dtype
from ooc.ir.region import Span
from ooc.networks import Graph, NetworkPlan
from ooc.networks.layers import Resize
from ooc.networks.session import Session
from ooc.networks.where import device_of
from ooc.onnx.model import build, output_names, rank_of
from ooc.schedule.budget import parse_bytes, show_bytes
from ooc.sources import Source, create
from ooc.sources import open as open_source
from ooc.sources.arranged import Arranged, arranged
from ooc.sources.spooled import Spooled

SPACE = "zyx"  # letters of spatial axes, the last ones for fewer
COLOUR = "s"  # what pictures call their channels
PICTURES = (".png", ".jpg", ".jpeg", ".bmp")
SQUEEZED = (".tif", ".tiff", ".nii", *PICTURES)  # whose axes of 1 go, but those of space


def model_axes(rank: int) -> str:
    """Letters of a network's axes: batch, channels, so many of space."""
    return "nc" + SPACE[-rank:]


@dataclass
class Job:
    """A network in a file, applied to a tensor in a file.

    Fields:
        model: path of an .onnx file.
        input: path of what it reads, see `ooc.open`.
        output: path of what it makes, see `ooc.create`; "": nothing is written.
        budget: bytes, or as `ooc.device` takes it; of it the input's decoders take theirs. None: the device's.
        axes: a letter per axis of the input, of n, c, z, y, x; "": as the file tells, or those of the model.
        before, after: steps in words, see `ooc.apply.recipe`.
        outputs: the one tensor of the model that is wanted; "": its first output.
        device: name of a device; None: the current one.
        pad_to: extents become multiples of it by mirroring, and the result is cut back; 1: they stay.
        overwrite: whether to replace an output that is there.
    """

    model: str
    input: str
    output: str = ""
    budget: int | float | str | None = None
    axes: str = ""
    before: str = ""
    after: str = ""
    outputs: str = ""
    device: str | None = None
    pad_to: int = 1
    overwrite: bool = False
    source: Source = field(init=False)
    graph: Graph = field(init=False)
    plan: NetworkPlan = field(init=False)

    def prepare(self) -> NetworkPlan:
        """Open the input, build the graph at its size, plan it. Nothing is written. Raises OocError."""
        steps = parse("pre", self.before, BEFORE), parse("post", self.after, AFTER)
        whole = open_source(self.input)
        try:
            self.source = self._arranged(whole)
            self.graph = self._graph(*steps)
            budget = self._budget()
            self.plan = self.graph.plan(batch=self.source.shape[0], budget=budget, train=False, device=self.device)
        except BaseException:
            whole.close()
            raise
        return self.plan

    def run(self, watch: Callable[[Session], Any] | None = None) -> None:
        """Compute what was prepared, and write it. watch: is given the session before it begins; what it returns is a context
        manager. Raises OocError; then no half-written output stays."""
        with ExitStack() as stack:
            stack.enter_context(self.source)
            session = stack.enter_context(self.plan.session())
            sink = stack.enter_context(self._sink())
            if watch is not None:
                stack.enter_context(watch(session))
            session.forward(self.source, out=sink)

    def close(self) -> None:
        """Close the input."""
        self.source.close()

    # ---- parts

    @property
    def made(self) -> tuple[int, ...]:
        """The shape of the result, with the batch."""
        (name,) = self.graph.outputs
        return (self.source.shape[0], *self.graph.shapes[name])

    def _arranged(self, whole: Source) -> Arranged:
        """The input with the network's axes."""
        axes = self.axes or whole.axes.replace(COLOUR, "c")
        rank = rank_of(self.model) or sum(letter in SPACE for letter in axes) or len(whole.shape) - 2
        wanted = model_axes(rank)
        if not axes:
            axes = wanted if len(whole.shape) == len(wanted) else wanted[len(wanted) - len(whole.shape) :]
        if "t" in axes and "n" not in axes:
            axes = axes.replace("t", "n")
        return arranged(whole, axes, wanted)

    def _graph(self, before: Any, after: Any) -> Graph:
        """The network with what is done before and after it."""
        given = dtype_of(self.source.dtype)

        def begin(graph: Graph, name: str, shape: tuple[int, ...], dtype: str) -> str:
            own = dtype if dtype not in INTEGERS else "f32"
            x = graph.input(f"{name} as stored", self.source.shape[1:], given)
            if given in INTEGERS:
                x = graph.convert(x, dtype=own)
            elif given != own:
                raise UnsupportedError(f"the input is {given}, the network {own}; convert one of them")
            return self._padded(graph, done(graph, x, before))

        extent = list(self.source.shape[2:])
        shape = (self.source.shape[0], self._channels(before), *self._wide(extent))
        outputs = [self.outputs] if self.outputs else first_output(self.model)
        graph = build(self.model, shape, outputs, begin)
        if len(graph.inputs) != 1:
            raise UnsupportedError(f"{self.model}: takes {len(graph.inputs)} inputs; ooc apply serves networks of one")
        (name,) = graph.outputs
        graph.outputs = ()
        graph.output(done(graph, self._cut_back(graph, name, extent), after))
        return graph

    def _wide(self, extent: list[int]) -> tuple[int, ...]:
        """Extents as multiples of pad_to."""
        return tuple(-(-e // self.pad_to) * self.pad_to for e in extent)

    def _channels(self, before: Any) -> int:
        """Channels of the input when all is done before it."""
        trial = Graph("before")
        x = trial.input("x", self.source.shape[1:], "f32")
        return trial.shapes[done(trial, x, before)][0]

    def _padded(self, graph: Graph, x: str) -> str:
        """x mirrored at its ends, to multiples of pad_to."""
        extent = graph.shapes[x][1:]
        size = self._wide(list(extent))
        if size == extent:
            return x
        return graph.add_layer(Resize("reflect", size, (0.0, 1.0, 1.0, 0.0) * len(extent)), (x,))

    def _cut_back(self, graph: Graph, x: str, extent: list[int]) -> str:
        """The result without what belongs to the padding, scaled as the network scales."""
        made, wide = graph.shapes[x][1:], self._wide(extent)
        if wide == tuple(extent) or len(made) != len(extent):
            return x
        if any(m * e % w for m, e, w in zip(made, extent, wide, strict=True)):
            raise UnsupportedError(f"--pad-to: a result of {made} cannot be cut back to {extent}")
        return graph.crop(x, [(0, m - m * e // w) for m, e, w in zip(made, extent, wide, strict=True)])

    def _budget(self) -> int | float | str | None:
        """The budget without what the input's decoders take."""
        taken = self.source.buffer_bytes
        if self.budget is None or not taken:
            return self.budget
        left = (parse_bytes(self.budget, device_of(self.device).backend.total_bytes) or 0) - taken
        if left < 1:
            raise BudgetError(f"{self.input}: decoding takes {show_bytes(taken)}; raise --budget above that")
        return left

    def _sink(self) -> Any:
        """The output, as the network writes it."""
        (name,) = self.graph.outputs
        wanted = model_axes(len(self.made) - 2)[: len(self.made)]
        suffix = Path(self.output.partition("::")[0].lower().split(":")[0]).suffix
        axes = wanted
        if suffix in SQUEEZED:
            axes = "".join(letter for letter, e in zip(wanted, self.made, strict=True) if e > 1 or letter in SPACE)
        if suffix in PICTURES and "c" in axes:
            axes = axes.replace("c", "") + "c"
        shape = [self.made[wanted.index(letter)] for letter in axes]
        dtype = numpy_dtype(self.graph.dtypes[name])
        if math.prod(shape) < 1:
            raise ShapeError(f"{self.output}: nothing is left to write")
        sink = create(self.output, shape, np.dtype(dtype), axes, overwrite=self.overwrite)
        corner = tuple(Span(0, 1) for _ in shape)
        plain = sink.own(corner) == corner  # written by any region
        return arranged(sink if plain else Spooled(sink), axes, wanted)


def first_output(model: str) -> list[str] | None:
    """The name of a model's first output."""
    return output_names(model)[:1]

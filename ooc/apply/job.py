"""One network applied to one tensor: what is read, planned, run and written."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ooc.apply.apart import planned
from ooc.apply.axes import COLOUR, SPACE, model_axes, named_axes, output_axes
from ooc.apply.behind import behind
from ooc.apply.mirrored import Mirrored
from ooc.apply.models import fixed_at, opened, with_remedy
from ooc.apply.padding import cut_back, padded
from ooc.apply.positions import by_letter, positions
from ooc.apply.recipe import AFTER, BEFORE, begin_with, crop, done, dtype_of, measuring, parse
from ooc.apply.sliding import blended
from ooc.apply.statistics import Measure
from ooc.apply.verify import Found, check, steps, verified
from ooc.apply.verify import VerifiedPart as Verifying
from ooc.apply.windows import Windows
from ooc.errors import BudgetError, ShapeError, UnsupportedError
from ooc.files.records import plain
from ooc.ir.op import INTEGERS, numpy_dtype
from ooc.native import trim
from ooc.networks import Graph, NetworkPlan
from ooc.networks.build import Built
from ooc.networks.calls import Network
from ooc.networks.session import Session
from ooc.networks.tensors import Mode
from ooc.networks.where import device_of
from ooc.networks.writer import network
from ooc.schedule.budget import parse_bytes, show_bytes
from ooc.sources import Source, create
from ooc.sources import open as open_source
from ooc.sources.around import Arranged, arranged, innermost
from ooc.sources.beside import beside, check_place, making
from ooc.sources.ome_zarr import version_of
from ooc.sources.place import header_of
from ooc.workers.begin import WorkRequest, forget, is_begun, run_folder
from ooc.workers.result import Result
from ooc.workers.tasks import Task, listed, run_of
from ooc.workers.where import REGIONS, Where, absolute, check_apart


@dataclass
class Application:
    """A network in a file, applied to a tensor in a file.

    Fields:
        model: path of an .onnx or .pt2 file.
        input: path of what it reads, see `ooc.open`.
        output: path of what it makes, see `ooc.create`; "": nothing is written.
        budget: bytes, or as `ooc.device` takes it; of it the input's decoders take theirs. None: the device's.
        axes: a letter per axis of the input, of n, c, z, y, x; "": as the file tells, or those of the model.
        before, after: steps in words, see `ooc.apply.recipe`.
        outputs: the one tensor of the model that is wanted; "": its first output.
        device: name of a device; None: the current one.
        pad_to: extents become multiples of it by mirroring, and the result is cut back; 1: they stay.
        overwrite: whether to replace an output that is there.
        semantics: "whole": the network sees all of the tensor; "window=96,overlap=0.25,blend=gaussian": windows of it, blended as
            MONAI's sliding_window_inference does, for networks that were trained so.
        verify: how many windows of the result are computed again.
        apart: whether a plan under a budget is searched for in a process of its own.
        trust: whether the model may run code, and the input may lead to other files.
        ome: of an output of OME-Zarr, its version: "0.5", "0.4"; "": 0.5, of labels that of their image.
        work: the folder of a run that can be resumed; "": beside the output.
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
    semantics: str = "whole"
    verify: int = 0
    apart: bool = False
    trust: bool = False
    ome: str = ""
    work: str = ""
    resumes: bool = field(init=False, default=False)  # whether the output may be that of a run that was begun
    checked: list[Found] = field(init=False, default_factory=list)
    file: Source = field(init=False)
    source: Source = field(init=False)
    graph: Built = field(init=False)
    plan: NetworkPlan = field(init=False)
    network: Network = field(init=False)
    windows: Windows | None = field(init=False, default=None)
    measure: Measure | None = field(init=False, default=None)
    measured: tuple[Any, Any] | None = field(init=False, default=None)
    rank: int = field(init=False)
    takes_last: bool = field(init=False)
    behind: Graph = field(init=False)
    finish: NetworkPlan = field(init=False)
    fixed: str = field(init=False, default="")  # the size that the model was exported for, where it serves any
    _letters: str = field(init=False)

    def prepare(self) -> NetworkPlan:
        """Open the input, build the graph at its size, plan it. Nothing is written. Raises OocError."""
        with self._opened() as graph:
            budget, batch = self._budget(), 1 if self.windows else self.source.shape[0]
            plan = planned if self.apart and budget is not None else planned_here
            self.graph, self.plan = plan(graph, batch, budget, self.device)
            self.network = self.plan.network
            if self.windows:
                after = parse("post", self.after, AFTER)
                self.behind = behind(self.windows, self.graph, self.source.shape[2:], self._space(), after)
                self.finish = self.behind.plan(batch=self.source.shape[0], budget=budget, train=False, device=self.device)
            if self.verify:
                check(self._task())
        return self.plan

    def spread(self, resume: bool = False) -> list[Task]:
        """The same as tasks for any number of workers, see `ooc.tasks`; the input is closed then. resume: go on with a run that
        was begun. Raises OocError."""
        self.resumes = resume and is_begun(self._work())
        with self._opened() as graph:
            if self.windows:
                raise UnsupportedError("--semantics: windows are blended by one process; tasks are of the whole")
            self.graph, device = graph, device_of(self.device)
            samples, (name,) = self.source.shape[0], graph.outputs
            self.network = network(graph, samples, Mode.INFER, None, device.deterministic)
            if self.verify:
                check(self._task())
            if self.measure is not None:
                self.measured = self.measure.of(self.source)
                begin_with(graph, self.measured)
            budget = parse_bytes(self._budget(), device.backend.total_bytes)
            values = {name: graph.values.get(name, w.initial(name, 0)) for name, w in graph.parameters.items()}
            request = WorkRequest(
                graph, samples, device, budget, device.deterministic, values, Where.of("--input", self.source), self._result(name)
            )
            tasks = listed(run_of(request, self._work(), resume))
        self.source.close()
        return tasks

    @contextmanager
    def _opened(self) -> Iterator[Graph]:
        """The input, opened, and the graph at its size; the input is closed where something fails. Raises OocError."""
        before, after = parse("pre", self.before, BEFORE), parse("post", self.after, AFTER)
        self.windows, self.measure = Windows.of(self.semantics), measuring(before)
        if self.verify and (self.windows or any(step is crop for step, _ in after)):
            raise UnsupportedError("--verify: not with windows or crop")
        if self.output:
            check_apart(Where(absolute(self.input)), Where(absolute(self.output)))
            check_place(self.output, self.overwrite or self.resumes)
        model = opened(self.model, self.trust)
        self.rank, self.takes_last = model.rank, model.takes_last
        whole = open_source(self.input, trust=self.trust)
        try:
            self.file, self.source = whole, self._arranged(whole)
            graph = self._graph(model, before, [] if self.windows else after)
            del model  # its weights are the graph's
            yield graph
        except BaseException:
            whole.close()
            raise

    def run(self, watch: Callable[[Session], Any] | None = None) -> None:
        """Compute what was prepared, and write it. watch: is given the session before it begins; what it returns is a context
        manager. Raises OocError; there is no output then, or the one that was there."""
        forget(self._work())
        with self.source, making(self.output, self.overwrite) as folder, ExitStack() as stack:
            if self.measure is not None:
                self.measured = self.measure.of(self.source)
                begin_with(self.graph, self.measured)
            trim()
            session = stack.enter_context(self.plan.session())
            self.graph.values.clear()  # the session has them: weights would be in memory twice
            trim()
            sink = stack.enter_context(self._sink(folder))
            if watch is not None:
                stack.enter_context(watch(session))
            if self.windows is None:
                session.forward(self.source, out=sink)
                self.verified(sink)
                return
            (name,) = self.graph.outputs
            between = blended(self.windows, self.source, session, self._space(), self.graph.shapes[name])
            tensor = stack.enter_context(between)
            stack.enter_context(self.finish.session()).forward(tensor, out=sink)

    def verified(self, sink: Source) -> None:
        """Compute some windows of a result again, if that is wanted."""
        self.checked = verified(self._task(), sink, self.verify) if self.verify else []

    @contextmanager
    def again(self) -> Iterator[Source]:
        """The result, opened again, with the input behind it."""
        with open_source(self.input, trust=self.trust) as whole, open_source(self.output) as output:
            self.file, self.source = whole, self._arranged(whole)
            axes, letters = output_axes(self.output, self.made)
            yield arranged(output, axes, letters)

    def _task(self) -> Verifying:
        """What there is to verify."""
        before, after = parse("pre", self.before, BEFORE), parse("post", self.after, AFTER)
        floating = next((d for d in self.graph.dtypes.values() if d not in INTEGERS), "f32")

        def begun(graph: Graph, x: str) -> str:
            x = done(graph, x, before)
            begin_with(graph, self.measured)
            return x

        first = steps(begun, dtype_of(self.source.dtype), floating)
        last = steps(lambda graph, x: done(graph, x, after), floating, floating)
        extent, out = self.source.shape[2:], self.made
        wide = self._wide(extent)
        whole = (*out[:2], *(m * w // e for m, w, e in zip(out[2:], wide, extent, strict=False)))
        source = Mirrored(self.source, wide)
        return Verifying(self.model, self.trust, self.outputs, self.graph, self.network, source, out, whole, extent, first, last)

    def close(self) -> None:
        """Close the input."""
        self.source.close()

    # ---- parts

    def _work(self) -> Path | None:
        """The folder of a run that can be resumed; None: the output has no place for it."""
        return run_folder(Where(absolute(self.output)), self.work)

    @property
    def made(self) -> tuple[int, ...]:
        """The shape of the result, with the batch."""
        graph = self.behind if self.windows else self.graph
        (name,) = graph.outputs
        return (self.source.shape[0], *graph.shapes[name])

    @property
    def made_dtype(self) -> str:
        """What the result is of."""
        graph = self.behind if self.windows else self.graph
        return graph.dtypes[graph.outputs[0]]

    @property
    def window_count(self) -> int:
        """How often the network is computed: once, or for each window."""
        if self.windows is None:
            return 1
        return self.source.shape[0] * math.prod(map(len, self.windows.starts(self._space())))

    @property
    def predicted_seconds(self) -> float:
        """Of all of it."""
        return self.plan.predicted_seconds * self.window_count + (self.finish.predicted_seconds if self.windows else 0.0)

    def _space(self) -> tuple[int, ...]:
        """The extents of space that the network is moved over: no smaller than a window."""
        extent = self.source.shape[2:]
        return extent if self.windows is None else tuple(map(max, extent, self.windows.along(extent)))

    def _arranged(self, whole: Source) -> Arranged:
        """The input with the network's axes."""
        axes = self.axes or whole.axes.replace(COLOUR, "c")
        rank = self.rank or sum(letter in SPACE for letter in axes) or len(whole.shape) - 2
        letters = model_axes(rank)
        if not axes:
            layout = f"n{letters[2:]}c" if self.takes_last else letters
            axes = layout[max(0, len(layout) - len(whole.shape)) :]
        if "t" in axes and "n" not in axes:
            axes = axes.replace("t", "n")
        self._letters = axes
        return arranged(whole, axes, letters)

    def _graph(self, model: Any, before: Any, after: Any) -> Graph:
        """The network with what is done before and after it."""
        stored = dtype_of(self.source.dtype)

        def begin(graph: Graph, name: str, shape: tuple[int, ...], dtype: str) -> str:
            floating = dtype if dtype not in INTEGERS else "f32"
            x = graph.input(f"{name} as stored", (self.source.shape[1], *self._taken()), stored)
            if stored in INTEGERS:
                x = graph.convert(x, dtype=floating)
            elif stored != floating:
                raise UnsupportedError(f"the input is {stored}, the network {floating}; convert one of them")
            x = done(graph, x, before)
            return self._filled(graph, x) if self.windows else padded(graph, x, self._wide(graph.shapes[x][1:]))

        extent = list(self.source.shape[2:])
        size = self.windows.along(self.source.shape[2:]) if self.windows else self._wide(extent)
        shape = (1 if self.windows else self.source.shape[0], self._channels(before), *size)
        outputs = [self.outputs] if self.outputs else model.output_names[:1]
        self.fixed = "" if self.windows else fixed_at(model, size)
        try:
            graph: Graph = model.build(shape, outputs, begin)
        except ShapeError as error:
            raise (error if self.windows else with_remedy(error, self.model, model, shape, outputs)) from None
        if len(graph.inputs) != 1:
            raise UnsupportedError(f"{self.model}: takes {len(graph.inputs)} inputs; ooc apply serves networks of one")
        (name,) = graph.outputs
        graph.outputs = ()
        graph.output(done(graph, name if self.windows else cut_back(graph, name, extent, self._wide(extent)), after))
        return graph

    def _taken(self) -> tuple[int, ...]:
        """Extents of what is read at a time: all, or of a window what there is."""
        extent = self.source.shape[2:]
        return extent if self.windows is None else tuple(map(min, extent, self.windows.along(extent)))

    def _filled(self, graph: Graph, x: str) -> str:
        """x with zeros around, as large as a window."""
        assert self.windows is not None
        held = graph.shapes[x][1:]
        more = [s - e for s, e in zip(self.windows.along(held), held, strict=True)]
        return graph.pad(x, [(m // 2, m - m // 2) for m in more]) if any(more) else x

    def _wide(self, extent: Sequence[int]) -> tuple[int, ...]:
        """Extents as multiples of pad_to."""
        return tuple(-(-e // self.pad_to) * self.pad_to for e in extent)

    def _channels(self, before: Any) -> int:
        """Channels of the input when all is done before it."""
        trial = Graph("before")
        x = trial.input("x", self.source.shape[1:], "f32")
        return trial.shapes[done(trial, x, before)][0]

    def _budget(self) -> int | float | str | None:
        """The budget without what the input's decoders take."""
        taken = self.source.buffer_bytes
        if self.budget is None or not taken:
            return self.budget
        left = (parse_bytes(self.budget, device_of(self.device).backend.total_bytes) or 0) - taken
        if left < 1:
            raise BudgetError(f"{self.input}: decoding takes {show_bytes(taken)}; raise --budget above that")
        return left

    def _sink(self, folder: Path) -> Any:
        """The output, in the folder in which it is made, as the network writes it."""
        axes, letters = output_axes(self.output, self.made)
        shape, position = [self.made[letters.index(letter)] for letter in axes], self._position()
        like = None if position is None else self.file
        named, ome = named_axes(self.output, axes), self.ome or version_of(self.output)
        about: dict[str, Any] = {"like": like, "position": position, "overwrite": self.overwrite, "ome": ome}
        sink = create(beside(self.output, folder), shape, self._dtype, named, **about)
        return arranged(sink, axes, letters)

    def _result(self, name: str) -> Result:
        """The output, for workers."""
        axes, letters = output_axes(self.output, self.made)
        shape, position = [self.made[letters.index(letter)] for letter in axes], self._position()
        where = Where(absolute(self.output), tuple(axes.find(letter) for letter in letters))
        about = {
            "shape": shape, "dtype": self._dtype.str, "axes": named_axes(self.output, axes), "overwrite": self.overwrite,
            "ome": self.ome or version_of(self.output),
            "like": None if position is None else plain(Where(absolute(self.input), trust=self.trust)), "position": position,
        }  # fmt: skip
        tensor = self.network.tensors[self.network.outputs[0]]
        direct = where.shared == REGIONS and tensor.shape == self.made
        return Result(where, self.made, self.graph.dtypes[name], about, direct)

    @property
    def _dtype(self) -> np.dtype[Any]:
        """Of the output."""
        return np.dtype(numpy_dtype(self.made_dtype))

    def _position(self) -> dict[str, tuple[float, float]] | None:
        """Where the result lies in the input's file, by letter of an axis of space: of its position 0, and its step. None: it is
        not known, or the file tells of no place."""
        lines = positions(self.graph)
        if self.windows and lines:
            lines = [a.then(b) for a, b in zip(lines, positions(self.behind) or (), strict=True)]
        return None if lines is None else by_letter(self.file, self._letters, lines)

    @property
    def notes(self) -> list[str]:
        """What a user should know of the result, a sentence each."""
        whole = innermost(self.file)
        lost = self.output.lower().endswith((".nii", ".nii.gz")) and header_of(whole) is not None and self._position() is None
        notes = [f"{self.output}: where it lies in space is not known; it has no affine and spacings of 1"] if lost else []
        told = f"{self.model}: was exported for {self.fixed}; all its nodes compute the same at any size"
        return [*notes, told] if self.fixed else notes


def planned_here(graph: Graph, batch: int, budget: Any, device: str | None) -> tuple[Built, NetworkPlan]:
    """The plan of an inference, with its graph."""
    return graph, graph.plan(batch=batch, budget=budget, train=False, device=device)

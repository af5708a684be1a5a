"""Programs that torch.export.save wrote, as graphs at a size."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from ooc.errors import ArgumentError, ShapeError, StoreError, UnsupportedError
from ooc.files.reached import regular
from ooc.files.records import understood
from ooc.networks import Graph
from ooc.torch.archive import checked
from ooc.torch.tracing import traced
from ooc.torch.translation import begin_with, translated
from ooc.torch.translator import Begin


class Pt2Program:
    """A program of a .pt2 file.

    Parameters:
        path: of the file.
        trust: whether what is in it may run code; default False: it is looked at first.

    Raises StoreError: no file, no exported program, or one that holds more than tensors and PyTorch's own operators.
    """

    def __init__(self, path: str | Path, trust: bool = False) -> None:
        self.path, self.program = path, read(path, trust)
        with self._understood():
            kinds = self.program.graph_signature.output_specs
            self.output_names = [spec.arg.name for spec in kinds if spec.kind is OutputKind.USER_OUTPUT]

    @property
    def rank(self) -> int:
        """How many spatial axes the input has."""
        with self._understood():
            rank: int = self._inputs()[0].dim() - 2
            return max(0, rank)

    @property
    def baked(self) -> tuple[int, ...]:
        """The extents of space that the program was exported for, 0: any."""
        with self._understood():
            return tuple(e if isinstance(e, int) else 0 for e in self._inputs()[0].shape[2:])

    dynamic = "dynamic_shapes="  # what an exporter is told for other sizes
    takes_last = False  # channels are first in PyTorch

    def free(self) -> bool:
        """False: a program was followed at one size."""
        return False

    def makes_last(self, output: str = "") -> bool:
        """Whether the output has its channels last."""
        return False

    def build(self, shape: Sequence[int], outputs: Sequence[str] | None, begin: Begin) -> Graph:
        """The graph of the program's network at a size.

        Parameters:
            shape: of its input, batch included.
            outputs: the first output's name, or None.
            begin: makes what stands for the input, with layers in front of it perhaps.

        Returns:
            graph: an `ooc.Graph`; sessions begin with the file's weights.

        Raises:
            ShapeError: a size that was baked in. UnsupportedError: an operator that ooc has not.
        """
        with self._understood():
            return self._built(shape, outputs, begin)

    def _built(self, shape: Sequence[int], outputs: Sequence[str] | None, begin: Begin) -> Graph:
        names = self.output_names
        if outputs and list(outputs) != names[:1]:
            raise ArgumentError(f"{self.path}: outputs: ooc serves the first one of a .pt2 file, {names[0]}")
        taken = [spec for spec in self.program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
        if len(taken) != 1:
            raise UnsupportedError(f"{self.path}: takes {len(taken)} inputs; ooc serves programs of one")
        held = self._inputs()[0]
        module = self.program.module()
        args = [torch.empty(tuple(shape), dtype=held.dtype, device="meta")]
        try:
            trace = traced(module, args, {}, gradients=False)
        except UnsupportedError:
            if tuple(shape) == tuple(held.shape):
                raise
            raise ShapeError(
                f"{self.path}: it was exported for {tuple(held.shape)}, not {tuple(shape)}; "
                "give torch.export.export dynamic_shapes="
            ) from None
        network = translated(trace, Path(self.path).stem, follows=False, fold=True, begin=begin)
        begin_with(network, module)
        network.graph.outputs = network.graph.outputs[:1]
        return network.graph

    def _understood(self) -> AbstractContextManager[None]:
        return understood(self.path, "not a program of torch.export that can be used", StoreError)

    def _inputs(self) -> list[Any]:
        """The inputs as they were when it was exported."""
        names = {s.arg.name for s in self.program.graph_signature.input_specs if s.kind is InputKind.USER_INPUT}
        return [node.meta["val"] for node in self.program.graph.nodes if node.op == "placeholder" and node.name in names]


opened = Pt2Program


def read(path: str | Path, trust: bool = False) -> ExportedProgram:
    """The program of a file. Raises StoreError."""
    try:
        regular(path)
        if trust:
            return torch.export.load(str(path))
        with checked(path) as copy:
            return torch.export.load(copy)
    except StoreError:
        raise
    except Exception as error:  # of whatever the file holds
        first = str(error).strip().split("\n")[0]
        raise StoreError(f"{path}: not a program of torch.export that can be read: {type(error).__name__}: {first}") from None

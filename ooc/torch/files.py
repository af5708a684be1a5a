"""Programs that torch.export.save wrote, as graphs at a size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from ooc.errors import ShapeError, StoreError, UnsupportedError
from ooc.networks import Graph
from ooc.torch.exported import begin_with, exported, translated
from ooc.torch.translator import Begin


def build(path: str | Path, shape: Sequence[int], outputs: Sequence[str] | None, begin: Begin) -> Graph:
    """The graph of a program's network at a size.

    Parameters:
        path: of the .pt2 file.
        shape: of its input, batch included.
        outputs: the first output's name, or None.
        begin: makes what stands for the input, with layers in front of it perhaps.

    Returns:
        graph: an `ooc.Graph`; sessions begin with the file's weights.

    Raises:
        StoreError: no file, or no exported program. ShapeError: a size that was baked in. UnsupportedError: an operator that ooc
        has not.
    """
    program = _read(path)
    names = output_names(path)
    if outputs and list(outputs) != names[:1]:
        raise ShapeError(f"{path}: outputs: ooc serves the first one of a .pt2 file, {names[0]}")
    taken = [spec for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
    if len(taken) != 1:
        raise UnsupportedError(f"{path}: takes {len(taken)} inputs; ooc serves programs of one")
    dtype = _inputs(program)[0].dtype
    module = program.module()
    args = [torch.empty(tuple(shape), dtype=dtype, device="meta")]
    try:
        again = exported(module, args, {})
    except UnsupportedError:
        held = tuple(_inputs(program)[0].shape)
        if tuple(shape) == held:
            raise
        raise ShapeError(
            f"{path}: it was exported for {held}, not {tuple(shape)}; give torch.export.export dynamic_shapes="
        ) from None
    found = translated(again, Path(path).stem, follows=False, fold=True, begin=begin)
    begin_with(found, module)
    found.graph.outputs = found.graph.outputs[:1]
    return found.graph


def output_names(path: str | Path) -> list[str]:
    """The outputs of a program. Raises StoreError."""
    specs = _read(path).graph_signature.output_specs
    return [spec.arg.name for spec in specs if spec.kind is OutputKind.USER_OUTPUT]


def rank_of(path: str | Path) -> int:
    """How many spatial axes the input of a program has. Raises StoreError."""
    rank: int = _inputs(_read(path))[0].dim() - 2
    return max(0, rank)


def _inputs(program: ExportedProgram) -> list[Any]:
    """The inputs as they were when it was exported."""
    names = {s.arg.name for s in program.graph_signature.input_specs if s.kind is InputKind.USER_INPUT}
    return [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder" and node.name in names]


def _read(path: str | Path) -> ExportedProgram:
    try:
        return torch.export.load(str(path))
    except Exception as error:  # of whatever the file holds
        first = str(error).strip().split("\n")[0]
        raise StoreError(f"{path}: not a program of torch.export that can be read: {type(error).__name__}: {first}") from None

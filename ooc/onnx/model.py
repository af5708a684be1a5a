"""From an ONNX file to a graph: the real size goes in, what follows from it alone is computed, each operator becomes layers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ooc.api.arguments import PerAxis, as_int
from ooc.errors import ArgumentError, ShapeError, StoreError, UnsupportedError, shown
from ooc.files.reached import regular
from ooc.files.records import understood
from ooc.networks import Graph
from ooc.onnx import convolutions, elementwise, norms, own, pooling, resizing, sampling, shapes  # noqa: F401  they register what they translate
from ooc.onnx.elementwise import FLOATS
from ooc.onnx.folding import Folder
from ooc.onnx.freeing import free, frees
from ooc.onnx.layout import back, makes_last, takes_last
from ooc.onnx.translator import INTEGERS, WHOLE, OnnxTranslator, label
from ooc.translate.building import GraphTensor, Shape
from ooc.translate.sampling import as_displacement

Sizes = Sequence[int] | Mapping[str, Sequence[int]]
MOST_NODES = 1 << 16  # of a file
PRODUCER = "ooc"  # of files that ooc writes
STORED = dict.fromkeys(WHOLE, "i32") | INTEGERS  # as which outputs are stored that are computed as floating numbers
DTYPES = FLOATS | INTEGERS  # of TensorProto


def load(
    path: str | Path, input_shape: Sizes | None = None, outputs: Sequence[str] | str | None = None,
    displacement: PerAxis | None = None,
) -> Graph:  # fmt: skip
    """The graph of a network in an ONNX file, at a size.

    Its inputs and outputs have the names of the file. Sessions of its plans begin with the file's weights. Plan it with
    `g.plan(batch=input_shape[0], train=False)`.

    Parameters:
        path: of the file; tensors outside it lie in its folder.
        input_shape: of the input, batch included, as (n, c, h, w); a dict by name where there are several; default None: as the
            file has it, where it has it.
        outputs: names of the tensors that are wanted, any of the file's tensors; default None: the file's outputs.
        displacement: how far, in pixels, positions that are sampled (GridSample) lie from those of an even grid at most, as
            `ooc.Graph.grid_sample` takes it; default None: anywhere.

    Returns:
        graph: an `ooc.Graph`.

    Raises:
        StoreError: no file, or no ONNX file.
        ShapeError: sizes that do not fit, sizes baked into the file.
        UnsupportedError: an operator or a use of one that ooc has not, by its node's name; the onnx package is missing.
    """
    return OnnxModel(path).build(input_shape, outputs, plain_input, first=False, displacement=as_displacement(displacement))


Begin = Callable[[Graph, str, tuple[int, ...], str], str]  # makes an input of a name, shape per sample and dtype


def plain_input(graph: Graph, name: str, shape: tuple[int, ...], dtype: str) -> str:
    """An input as the file has it."""
    return graph.input(name, shape, dtype)


class OnnxModel:
    """A network of an ONNX file. trust: makes no difference, as nothing in such a file runs code. Raises StoreError: no file, or
    no ONNX file; UnsupportedError: the onnx package is missing."""

    dynamic = "dynamic axes"  # what an exporter is told for other sizes

    def __init__(self, path: str | Path, trust: bool = False) -> None:
        self.path, self.model = path, _read(path)
        self.output_names = [o.name for o in self.model.graph.output]

    @property
    def rank(self) -> int:
        """How many spatial axes the first input of the network has; 0: the file does not say."""
        graph = self.model.graph
        constants = {t.name for t in graph.initializer}
        input_shapes = [i.type.tensor_type.shape for i in graph.input if i.name not in constants]
        return max(0, len(input_shapes[0].dim) - 2) if input_shapes else 0

    @property
    def baked(self) -> tuple[int, ...]:
        """The extents of space that the network was exported for, 0: any."""
        constants = {t.name for t in self.model.graph.initializer}
        info = next((i for i in self.model.graph.input if i.name not in constants), None)
        held = [] if info is None else [d.dim_value for d in info.type.tensor_type.shape.dim]
        return tuple(held[1:-1] if len(held) > 2 and self.takes_last else held[2:])

    def free(self) -> bool:
        """Forget the size that the network was exported for, if its nodes compute the same at any other; whether that is so."""
        with understood(self.path, "not an ONNX network that can be used"):
            if not frees(self.model):
                return False
            free(self.model, self.takes_last)
        return True

    @property
    def serialized(self) -> bytes:
        """The file's text, as it is now; tensors outside it lie where they did."""
        text: bytes = self.model.SerializeToString()
        return text

    @property
    def takes_last(self) -> bool:
        """Whether the first input of the network has its channels last."""
        graph = self.model.graph
        constants = {t.name for t in graph.initializer}
        return takes_last(graph.node, next((i.name for i in graph.input if i.name not in constants), ""))

    def makes_last(self, output: str = "") -> bool:
        """Whether a tensor (default: the first output) has its channels last. Raises UnsupportedError where it cannot be told."""
        return makes_last(self.model.graph.node, output or self.output_names[0], self.takes_last)

    def build(
        self, input_shape: Sizes | None, outputs: Sequence[str] | str | None, begin: Begin, first: bool = True,
        displacement: Shape = (),
    ) -> Graph:  # fmt: skip
        """As `load`. begin: makes what stands for each input, with layers in front of it perhaps. first: with channels first,
        whatever the file has. displacement: see `ooc.translate.building.Site`."""
        with understood(self.path, "not an ONNX network that can be used"):
            return _built(self.model, Path(self.path), input_shape, outputs, begin, first, displacement)


opened = OnnxModel


def _built(
    model: Any, path: Path, input_shape: Sizes | None, outputs: Sequence[str] | str | None, begin: Begin, first: bool,
    displacement: Shape,
) -> Graph:  # fmt: skip
    graph = Graph(model.graph.name or path.stem)
    folder = Folder({d.domain: d.version for d in model.opset_import})
    types = {o.name: STORED.get(o.type.tensor_type.elem_type, "") for o in model.graph.output}
    stored = {name: dtype for name, dtype in types.items() if dtype}
    translator = OnnxTranslator(graph, folder, model.producer_name == PRODUCER, stored)
    translator.displacement = displacement
    for tensor in model.graph.initializer:
        translator.constant(tensor.name, tensor, path.parent)
    inputs = [i for i in model.graph.input if i.name not in translator.values]
    last = {i.name for i in inputs if first and takes_last(model.graph.node, i.name)}
    if last and isinstance(input_shape, Sequence):
        input_shape = back(input_shape)
    for name, shape, dtype in _inputs(inputs, input_shape, last):
        translator.input(name, shape, dtype, begin, name in last)
    names = _outputs(model.graph, outputs)
    nodes = _needed(model.graph.node, names)
    _check(nodes)
    graph.keep(name for node in nodes for name in node.output)
    translator.readers(nodes, names)
    for node in _constants_first(nodes, translator.values):
        translator.node(node)
    for name in names:
        translator.output(name, first and makes_last(model.graph.node, name, bool(last)))
    return graph


def _read(path: str | Path) -> Any:
    try:
        import onnx
    except ImportError:
        raise UnsupportedError('ooc.onnx: reading ONNX files needs onnx; pip install "ooc[onnx]"') from None
    with understood(path, "not an ONNX file that can be read", StoreError):
        regular(path)
        model = onnx.load(str(path), load_external_data=False)
    if not model.graph.node:
        raise StoreError(f"{path}: not an ONNX file: it has no network")
    if len(model.graph.node) > MOST_NODES:
        raise UnsupportedError(f"{path}: {len(model.graph.node)} nodes; networks of at most {MOST_NODES} are read")
    if model.functions:
        raise UnsupportedError(f"{path}: it has functions of its own; inline them with onnx.inliner.inline_local_functions")
    return model


def _inputs(inputs: Sequence[Any], input_shape: Sizes | None, last: Collection[str]) -> list[tuple[str, tuple[int, ...], str]]:
    """Name, shape with the batch and dtype of each input. last: those with channels last."""
    if isinstance(input_shape, Mapping):
        unknown = set(input_shape) - {i.name for i in inputs}
        if unknown:
            raise ArgumentError(
                f"input_shape: no input {', '.join(sorted(map(str, unknown)))}; there are {', '.join(i.name for i in inputs)}"
            )
        sizes: Mapping[str, Any] = input_shape
    elif input_shape is not None and len(inputs) != 1:
        raise ArgumentError(f"input_shape: expected a dict by name of {', '.join(i.name for i in inputs)}")
    else:
        sizes = {} if input_shape is None else {inputs[0].name: input_shape}
    return [_input(i, sizes.get(i.name), -1 if i.name in last else 1) for i in inputs]


def _input(info: Any, size: Any, channels: int) -> tuple[str, tuple[int, ...], str]:
    kind = info.type.tensor_type
    held = [d.dim_value if d.HasField("dim_value") else 0 for d in kind.shape.dim]
    if kind.elem_type not in DTYPES:
        raise UnsupportedError(f"input {info.name}: of a type that ooc does not compute with; cast it in the network")
    if size is None:
        if not held or not all(held):
            raise ArgumentError(f"input {info.name}: its size is open, {_dims(kind)}; pass input_shape=, batch included")
        return info.name, tuple(held), DTYPES[kind.elem_type]
    try:
        shape = tuple(as_int("input_shape", e) for e in size)
    except TypeError:
        raise ShapeError(f"input_shape: expected integers, got {shown(size)}") from None
    if (held and len(shape) != len(held)) or any(e < 1 for e in shape):
        raise ShapeError(f"input_shape: {info.name} takes {_dims(kind)}, got {shape}")
    baked = [f"axis {i} is {h}" for i, (h, e) in enumerate(zip(held, shape, strict=False)) if h and h != e]
    if len(baked) == 1 and held[channels] not in (0, shape[channels]):
        counts = f"{held[channels]} channels, got {shape[channels]} in {shape}"
        raise ArgumentError(
            f"input_shape: {info.name} takes {counts}; choose channels of the input first, "
            'with ooc apply by --pre "channel 0 1 2"'
        )
    if baked and baked != [f"axis 0 is {held[0]}"]:
        raise ArgumentError(
            f"input_shape: {info.name}: {', '.join(baked)} in the file, got {shape}; the size is baked in: "
            "export the network with dynamic axes, or onnx.tools.update_model_dims"
        )
    return info.name, shape, DTYPES[kind.elem_type]


def _dims(kind: Any) -> str:
    return "(" + ", ".join(str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?" for d in kind.shape.dim) + ")"


def _outputs(graph: Any, outputs: Sequence[str] | str | None) -> list[str]:
    if outputs is None:
        return [o.name for o in graph.output]
    names = [outputs] if isinstance(outputs, str) else list(outputs)
    tensors = {o for node in graph.node for o in node.output}
    missing = [str(n) for n in names if n not in tensors]
    if missing or not names:
        last = ", ".join(o.name for o in graph.output)
        raise ArgumentError(f"outputs: no tensor {', '.join(missing) or 'is named'}; the file's outputs are {last}")
    return names


def _needed(nodes: Sequence[Any], names: Sequence[str]) -> list[Any]:
    """The nodes that some tensors need, in order."""
    sought, needed = set(names), []
    for node in reversed(nodes):
        if sought & set(node.output):
            sought |= set(node.input)
            needed.append(node)
    return needed[::-1]


def _constants_first(nodes: Sequence[Any], known: Mapping[str, Any]) -> list[Any]:
    """In front the nodes that read the file's constants alone: exporters write them behind layers that take in who reads them."""
    constant = {name for name, value in known.items() if not isinstance(value, GraphTensor)}
    first: list[Any] = []
    rest: list[Any] = []
    for node in nodes:
        if constant.issuperset(node.input):
            constant.update(node.output)
            first.append(node)
        else:
            rest.append(node)
    return first + rest


def _check(nodes: Sequence[Any]) -> None:
    """Refuse what no translation may serve before anything is built."""
    for node in nodes:
        if node.domain not in ("", "ai.onnx") or any(a.type in (5, 10) for a in node.attribute):
            what = f"{node.domain or 'control flow'} {node.op_type}"
            raise UnsupportedError(
                f"{label(node)}: {what}: ooc has plain ONNX operators; export without it, or pass outputs= of a tensor before it"
            )

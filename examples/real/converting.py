"""A converted model in float64, forward and backward, under a quarter of what it takes without a budget: outputs and gradients
beside PyTorch's; how much of it runs through ooc, in how many parts, and what PyTorch holds between them."""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from comparing import distance, outputs
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import ooc

CLOSE = 5e-8  # of the largest value; PyTorch's slope of hardsigmoid is 1/6 as float32 has it, off by 3e-8
SMALL = 1e-3  # of the largest gradient of all: what is smaller is compared with that
APART = 256 << 20  # budget of a model that does not run as one
VIEWS = (
    "view",
    "_unsafe_view",
    "reshape",
    "detach",
    "alias",
    "expand",
    "permute",
    "transpose",
    "t",
    "squeeze",
    "unsqueeze",
    "is_pinned",
)


class Conversion(NamedTuple):
    """What came of a model.

    Fields:
        share: of the operations of the forward pass that ooc takes.
        segments: parts that it takes.
        held: bytes of the tensors that PyTorch holds in memory at most, in a forward pass without gradients.
        budget: bytes.
        seconds: of the first pass, of one like it, and of the first one with three samples and no gradients.
        error: of the outputs, of the largest value.
        gradient_error: of the gradients of inputs and parameters.
    """

    share: float
    segments: int
    held: int
    budget: int
    seconds: Sequence[float]
    error: float
    gradient_error: float

    @property
    def right(self) -> bool:
        """Whether all is as PyTorch has it."""
        return max(self.error, self.gradient_error) <= CLOSE

    @property
    def errors(self) -> list[float]:
        """Of both passes."""
        return [self.error, self.gradient_error]


class Watch(TorchDispatchMode):
    """Counts what PyTorch computes of the inputs and of what ooc returns, and the most bytes of it that there are at once.

    Parameters:
        x: the input.
    """

    def __init__(self, x: torch.Tensor) -> None:
        super().__init__()
        self.count, self.peak, self._bytes = 0, 0, 0
        self._follows = {x.untyped_storage()._cdata}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.name().split("::")[1].split(".")[0]
        read = (t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor))
        follows = any(t.untyped_storage()._cdata in self._follows for t in read)
        self.count += follows and name not in VIEWS
        if follows or name in ("empty", "from_file"):  # which ooc fills
            for tensor in tree_leaves(result):
                if isinstance(tensor, torch.Tensor):
                    self._hold(tensor.untyped_storage(), name != "from_file")
        return result

    def _hold(self, storage: Any, in_memory: bool) -> None:
        if storage._cdata in self._follows:
            return
        nbytes = storage.nbytes() * in_memory
        self._follows.add(storage._cdata)
        self._bytes += nbytes
        self.peak = max(self.peak, self._bytes)
        weakref.finalize(storage, self._drop, storage._cdata, nbytes)

    def _drop(self, key: int, nbytes: int) -> None:
        self._follows.discard(key)
        self._bytes -= nbytes


def converted(module: Any, x: Any) -> Conversion:
    """A model converted, run and compared."""
    module, x = module.double(), torch.cat([x, x.flip(-1) / 2]).double()  # of one, PyTorch's batch norms have wrong gradients
    with torch.no_grad(), Watch(x) as plain:
        module(x)
    theirs, gradients, _ = _pass(module, x)
    ooc.torch.convert_model(module, device="cpu")
    segment = module.forward.segment((x.requires_grad_(),), {})
    budget = APART
    if hasattr(segment, "of_pass"):
        budget = segment.of_pass(segment.variables([x], module)).peaks["device"] // 4
    ooc.torch.convert_model(module, budget, device="cpu")
    seconds = []
    for _ in range(2):
        begin = time.perf_counter()
        ours, of_segments, segments = _pass(module, x)
        seconds.append(time.perf_counter() - begin)
    with torch.no_grad():
        module(x)
        with Watch(x) as watch:
            module(x)
        begin = time.perf_counter()
        module(torch.cat([x, x[:1]]))
        seconds.append(time.perf_counter() - begin)
    largest = max(float(g.abs().max()) for g in gradients if g is not None)
    errors = [_difference(a, b, SMALL * largest) for a, b in zip(of_segments, gradients, strict=True)]
    share = 1 - watch.count / plain.count
    return Conversion(share, segments, watch.peak, budget, seconds, distance(ours, theirs), max(errors))


def _difference(ours: Any, theirs: Any, least: float) -> float:
    if theirs is None or ours is None:
        return 0.0 if ours is None or not ours.any() else 1.0
    return float((ours - theirs).abs().max()) / max(float(theirs.abs().max()), least)


def _pass(module: Any, x: Any) -> tuple[Any, list[Any], int]:
    """A pass forward and backward: outputs, gradients of the input and of all parameters, how many parts ooc took."""
    x = x.detach().requires_grad_()
    module.zero_grad()
    results = outputs(module(x))
    generator = torch.Generator().manual_seed(1)
    torch.autograd.backward(results, [torch.randn(y.shape, generator=generator, dtype=y.dtype) for y in results])
    visited, todo, segments = set[Any](), [y.grad_fn for y in results], 0
    while todo:
        node = todo.pop()
        if node is not None and node not in visited:
            visited.add(node)
            segments += node.name().startswith("SegmentFunction")
            todo += [before for before, _ in node.next_functions]
    return [y.detach() for y in results], [x.grad, *(p.grad for p in module.parameters())], segments

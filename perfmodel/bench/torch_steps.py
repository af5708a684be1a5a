"""Training steps of networks in PyTorch, from the parameters that ours begin with: in core, and as people make them fit."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
from numpy.random import default_rng

import ooc

PEERS = ("torch", "torch_channels_last", "torch_save_on_cpu", "torch_checkpoint", "torch_memory_budget")
MEMORY_BUDGET = 0.2  # of the activations, that compiled PyTorch keeps


class ContestantStep(NamedTuple):
    """A training step: run gives the loss, gradient that of the first parameter after it, about and tell what a row says of it,
    the second one after another step."""

    run: Callable[[], float]
    gradient: Callable[[], Any]
    about: Callable[[], dict[str, Any]]
    tell: Callable[[], dict[str, Any]] = dict


@contextmanager
def torch_step(torch: Any, graph: ooc.Graph, batch: int, how: str, dtype: str = "f32") -> Iterator[ContestantStep]:
    """A step by one of PEERS, on a GPU where there is one. dtype: "f32", "bf16" or "f64", which measures no algorithms."""
    where = "cuda" if torch.cuda.is_available() else "cpu"
    x, labels = (torch.from_numpy(a) for a in data(graph.plan(batch=batch, policy="keep", device="null")))
    kind = {"f32": torch.float32, "bf16": torch.bfloat16, "f64": torch.float64}[dtype]
    wide = torch.promote_types(kind, torch.float32)
    torch.backends.cudnn.benchmark &= dtype != "f64"
    model = module_of(graph).to(where, kind).train()
    x = x.to(next(iter(model.parameters())).dtype)
    if how == "torch_channels_last":
        layout = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
        model, x = model.to(memory_format=layout), x.contiguous(memory_format=layout)
    x, labels = (a.pin_memory() if where == "cuda" else a for a in (x, labels))
    compute: Callable[[Any], Any] = model
    if how == "torch_checkpoint":
        compute = _checkpointed(torch, model)
    elif how == "torch_memory_budget":
        _keep(MEMORY_BUDGET)
        compute = torch.compile(model)
    criterion = torch.nn.CrossEntropyLoss()

    def saved() -> AbstractContextManager[Any]:
        offloads = how == "torch_save_on_cpu"
        return torch.autograd.graph.save_on_cpu(pin_memory=where == "cuda") if offloads else nullcontext()

    def run() -> float:
        model.zero_grad(set_to_none=True)
        there, targets = x.to(where, non_blocking=True), labels.to(where, non_blocking=True)
        with saved():
            loss = criterion(compute(there).to(wide), targets)
        loss.backward()
        return float(loss.detach())

    def about() -> dict[str, Any]:
        return {"peak_bytes": int(torch.cuda.max_memory_allocated())} if where == "cuda" else {}

    try:
        yield ContestantStep(run, lambda: next(iter(model.parameters())).grad.to(wide).cpu().numpy(), about)
    finally:
        if how == "torch_memory_budget":
            _keep(1.0)


def data(plan: ooc.NetworkPlan) -> tuple[Any, Any]:
    """A batch at random, and labels."""
    draw = default_rng(0)
    (name,) = plan.graph.inputs
    x = draw.standard_normal((plan.batch, *plan.graph.shapes[name]), np.float32)
    labels = plan.network.tensors["labels"].shape
    return x, draw.integers(0, 3, labels)


def module_of(graph: Any) -> Any:
    """A network as a module of PyTorch, with the parameters that sessions begin with."""
    with graph.plan(batch=1, policy="keep", device="cpu", train=False).session() as session:
        return graph.to_torch(session.parameters())


def _keep(share: float) -> None:
    """Have what PyTorch compiles from now on keep so much of its activations."""
    config: Any = importlib.import_module("torch._functorch.config")
    config.activation_memory_budget = share


def _checkpointed(torch: Any, module: Any) -> Callable[[Any], Any]:
    """A module of torch.fx in about as many parts as the root of its calls, each of which is computed again going back."""
    split = importlib.import_module("torch.fx.passes.split_module").split_module
    count = len(module.graph.nodes)
    number = {node: i for i, node in enumerate(module.graph.nodes)}
    parts = max(1, round(count**0.5))
    halves = split(module, module, lambda node: number[node] * parts // count)

    class Checkpointed(torch.fx.Interpreter):  # type: ignore[misc, name-defined]
        def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
            return torch.utils.checkpoint.checkpoint(self.fetch_attr(target), *args, use_reentrant=False)

    run: Callable[[Any], Any] = Checkpointed(halves).run
    return run

"""Operators that ooc has not, as those that PyTorch makes them of, where ooc has all of these."""

from __future__ import annotations

import operator
from functools import cache
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from ooc.torch.translator import OPERATORS, name_of

FEW = 4096  # values of constants that are compared
FILLED = {f"{how}_like" for how in ("zeros", "ones", "full")} | {f"new_{how}" for how in ("zeros", "ones", "full")}


class Decomposing:
    """Writes calls into a graph: each as it is, or as what it is made of. What does not depend on the inputs is PyTorch's to
    compute, as it is.

    Parameters:
        graph: that is written.
        constants: of the code, by placeholder; those of what calls are made of come to them.

    Fields:
        moving: what depends on the inputs.
    """

    def __init__(self, graph: Graph, constants: dict[Node, torch.Tensor]) -> None:
        self.graph, self.constants = graph, constants
        self.moving = set[Node]()
        self._calls: dict[Any, Node] = {}  # of what does not depend on the inputs

    def write(self, node: Node, args: Any, keywords: Any) -> Any:
        """A call with its operands in the graph: what stands for what it makes there, a node, or several of them."""
        if node.target is operator.getitem and not isinstance(args[0], Node):
            return args[0][args[1]]
        operands = [leaf for leaf in pytree.tree_leaves((args, keywords)) if isinstance(leaf, Node)]
        if name_of(node) in FILLED and not isinstance(value := _fill_value(node), Node):
            like = node.meta["val"]
            size = {"dtype": like.dtype, "device": like.device}
            return self._shared(node, torch.ops.aten.full.default, ([*like.shape], value), size)
        if self.moving.isdisjoint(operands):
            return self._shared(node, node.target, args, keywords)
        program = None if name_of(node) in OPERATORS else _program(node.target, args, keywords)
        if program is not None:
            return self._written(program, operands)
        call = self._call(node, node.target, args, keywords)
        self.moving.add(call)
        return call

    def constant(self, name: str, value: torch.Tensor) -> Node:
        """What stands for a constant of the code; one for all that are equal, of those with few values."""
        few = value.numel() <= FEW and value.device.type == "cpu" and value.layout is torch.strided
        key = (value.dtype, tuple(value.shape), str(value.tolist())) if few else id(value)
        if key not in self._calls:
            self._calls[key] = self.graph.placeholder(name)
            self.constants[self._calls[key]] = self._calls[key].meta["val"] = value
        return self._calls[key]

    def _shared(self, node: Node, target: Any, args: Any, keywords: Any) -> Node:
        """A call that does not depend on the inputs; one for all that are equal, but for those that draw numbers."""
        leaves, spec = pytree.tree_flatten((args, keywords))
        key = target, spec, tuple((type(leaf), leaf) for leaf in leaves)
        if torch.Tag.nondeterministic_seeded in getattr(target, "tags", ()):
            return self._call(node, target, args, keywords)
        if key not in self._calls:
            self._calls[key] = self._call(node, target, args, keywords)
        return self._calls[key]

    def _call(self, node: Node, target: Any, args: Any, keywords: Any) -> Node:
        call = self.graph.create_node("call_function", target, args, keywords, node.name)
        if "val" in node.meta:
            call.meta["val"] = node.meta["val"]
        return call

    def _written(self, program: Any, operands: list[Node]) -> Any:
        """A program in place of a call, whose operands are its placeholders."""
        copies: dict[Node, Any] = {}
        rest = iter(operands)
        for node in program.graph.nodes:
            if node.op == "placeholder":
                copies[node] = next(rest)
            elif node.op == "get_attr":
                copies[node] = self.constant(f"constant{len(self.constants)}", getattr(program, str(node.target)))
            elif node.op == "output":
                return pytree.tree_map_only(Node, copies.__getitem__, node.args[0])
            else:
                args, keywords = pytree.tree_map_only(Node, copies.__getitem__, (node.args, node.kwargs))
                copies[node] = self.write(node, args, keywords)
        return None


def _fill_value(node: Node) -> Any:
    """Of one of `FILLED`."""
    if "full" not in name_of(node):
        return float("ones" in name_of(node))
    return node.kwargs["fill_value"] if "fill_value" in node.kwargs else node.args[2 if name_of(node) == "new_full" else 1]


def _program(target: Any, args: Any, keywords: Any) -> Any:
    """What a call is made of, as a program of its tensors; None: ooc has not all of it either, or it is made of nothing else."""
    leaves, spec = pytree.tree_flatten((args, keywords))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Node)]
    values = [leaves[i].meta.get("val") for i in places]
    if not isinstance(target, torch._ops.OpOverload) or not all(isinstance(v, torch.Tensor) for v in values):
        return None

    def run(*tensors: torch.Tensor) -> Any:
        operands = [*leaves]
        for i, tensor in zip(places, tensors, strict=True):
            operands[i] = tensor
        positional, named = pytree.tree_unflatten(operands, spec)
        return target(*positional, **named)

    try:
        program = make_fx(run, _missing(), "real", _allow_non_fake_inputs=True)(*values)
    except Exception:  # of code that is PyTorch's: the operator is refused by its name
        return None
    program.graph.eliminate_dead_code()
    return program if _is_known(program) else None


@cache
def _missing() -> dict[Any, Any]:
    """How PyTorch computes the operators on tensors that ooc has not; those that it composes itself are taken apart anyway."""
    overloads = {op: how for op, how in decomposition_table.items() if isinstance(op, torch._ops.OpOverload)}
    return {
        op: how
        for op, how in overloads.items()
        if op.__name__.split(".")[0] not in OPERATORS and any("Tensor" in str(a.type) for a in op._schema.arguments)
    }


def _is_known(program: Any) -> bool:
    """Whether ooc has all that depends on the operands."""
    depends = set[Node]()
    for node in program.graph.nodes:
        if node.op == "placeholder":
            depends.add(node)
        elif node.op == "call_function" and not depends.isdisjoint(node.all_input_nodes):
            depends.add(node)
            if node.target is not operator.getitem and name_of(node) not in OPERATORS:
                return False
    return True

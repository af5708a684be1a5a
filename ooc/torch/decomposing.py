"""Operators that ooc has not, as those that PyTorch makes them of, where ooc has all of these."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from ooc.torch.translator import OPERATORS, name_of

MOST_DEEP = 4  # operators of operators of operators


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

    def write(self, node: Node, args: Any, keywords: Any) -> Any:
        """A call with its operands in the graph: what stands for what it makes there, a node, or several of them."""
        if node.target is operator.getitem and not isinstance(args[0], Node):
            return args[0][args[1]]
        leaves = [leaf for leaf in pytree.tree_leaves((args, keywords)) if isinstance(leaf, Node)]
        if self.moving.isdisjoint(leaves):
            return self._call(node, args, keywords)
        parts = None if name_of(node) in OPERATORS else _parts(node, args, keywords, MOST_DEEP)
        if parts is not None:
            return self._written(parts, leaves)
        call = self._call(node, args, keywords)
        self.moving.add(call)
        return call

    def _call(self, node: Node, args: Any, keywords: Any) -> Node:
        call = self.graph.create_node("call_function", node.target, args, keywords, node.name)
        if "val" in node.meta:
            call.meta["val"] = node.meta["val"]
        return call

    def _written(self, parts: Any, leaves: list[Node]) -> Any:
        """A program in place of a call, whose operands are its placeholders."""
        copies: dict[Node, Any] = {}
        operands = iter(leaves)
        for node in parts.graph.nodes:
            if node.op == "placeholder":
                copies[node] = next(operands)
            elif node.op == "get_attr":
                copies[node] = self.graph.placeholder(f"constant{len(self.constants)}")
                value = getattr(parts, str(node.target))
                self.constants[copies[node]] = copies[node].meta["val"] = value
            elif node.op == "output":
                return pytree.tree_map_only(Node, copies.__getitem__, node.args[0])
            else:
                args, keywords = pytree.tree_map_only(Node, copies.__getitem__, (node.args, node.kwargs))
                copies[node] = self.write(node, args, keywords)
        return None


def _parts(node: Node, args: Any, keywords: Any, deep: int) -> Any:
    """What a call is made of, as a program of its tensors; None: ooc has not all of it either, or it is made of nothing else."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or not deep:
        return None
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd")
    if not composite and target not in decomposition_table:
        return None
    leaves, spec = pytree.tree_flatten((args, keywords))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Node)]
    values = [leaves[i].meta.get("val") for i in places]
    if not all(isinstance(v, torch.Tensor) for v in values):
        return None

    def run(*tensors: torch.Tensor) -> Any:
        operands = [*leaves]
        for i, tensor in zip(places, tensors, strict=True):
            operands[i] = tensor
        positional, named = pytree.tree_unflatten(operands, spec)
        return target(*positional, **named)

    try:
        parts = {} if composite else {target: decomposition_table[target]}
        program = make_fx(run, parts, "real", _allow_non_fake_inputs=True)(*values)
    except Exception:  # of code that is PyTorch's: the operator is refused by its name
        return None
    program.graph.eliminate_dead_code()
    return program if _is_known(program, deep) else None


def _is_known(program: Any, deep: int) -> bool:
    """Whether ooc has all that depends on the operands."""
    depends = set[Node]()
    for node in program.graph.nodes:
        if node.op == "placeholder":
            depends.add(node)
        elif node.op == "call_function" and any(n in depends for n in node.all_input_nodes):
            depends.add(node)
            has = node.target is operator.getitem or name_of(node) in OPERATORS
            if not has and _parts(node, node.args, node.kwargs, deep - 1) is None:
                return False
    return True

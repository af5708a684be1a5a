"""What PyTorch computes beside a graph: of parameters, buffers and constants, each when it is read, in the memory that this takes
alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree


class ComputedValues:
    """Values by node, each computed when it is read, and gone when nobody holds it. What draws numbers is computed at once.

    Parameters:
        known: by the node that stands for it.
        calls: what is computed, in order.
        device: of what is made anew.
    """

    def __init__(self, known: Mapping[Node, Any], calls: Sequence[Node], device: torch.device) -> None:
        self._known, self._device = dict(known), device
        self._places = {node: i for i, node in enumerate(calls)}
        self._held: WeakValueDictionary[Node, Any] = WeakValueDictionary()
        for node in calls:
            if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
                self._known[node] = self[node]

    def __getitem__(self, node: Node) -> Any:
        there = self._there(node)
        if there is not None:
            return there
        calls, values = self._missing(node)
        readers = Counter(x for call in calls for x in call.all_input_nodes)
        for call in calls:
            values[call] = self._compute(call, values)
            readers.subtract(call.all_input_nodes)
            for x in call.all_input_nodes:
                if not readers[x]:
                    values.pop(x, None)
        if isinstance(values[node], torch.Tensor):
            self._held[node] = values[node]
        return values[node]

    def _there(self, node: Node) -> Any:
        return self._known[node] if node in self._known else self._held.get(node)

    def _missing(self, node: Node) -> tuple[list[Node], dict[Node, Any]]:
        """The calls that lead to a node from what is there, in order, and that."""
        missing, open_ends, there = {node}, [node], dict[Node, Any]()
        while open_ends:
            for x in open_ends.pop().all_input_nodes:
                value = self._there(x)
                if value is not None:
                    there[x] = value
                elif x in self._places and x not in missing:
                    missing.add(x)
                    open_ends.append(x)
        return sorted(missing, key=self._places.__getitem__), there

    def _compute(self, node: Node, values: Mapping[Node, Any]) -> Any:
        def operand(x: Node) -> Any:
            return values[x] if x in values else _empty(x, self._device)

        arguments = node.args, {k: self._device if k == "device" and v is not None else v for k, v in node.kwargs.items()}
        args, keywords = pytree.tree_map_only(Node, operand, arguments)
        return node.target(*args, **keywords)  # type: ignore[operator]


def _empty(node: Node, device: torch.device) -> torch.Tensor:
    """What stands for a tensor of the graph of which the size alone is looked at; it takes no memory."""
    like = node.meta["val"]
    return torch.zeros((), dtype=like.dtype, device=device).expand(like.shape)

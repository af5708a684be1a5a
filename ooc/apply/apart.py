"""Plans of large networks are searched for in a process of their own: what a search remembers, often more than the plan, leaves
with it.

python -m ooc.apply.apart reads what is asked as JSON, and writes the plan as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from ooc.networks import Graph, NetworkPlan
from ooc.networks.build import Built
from ooc.workers.child import python

FEW = 8  # layers whose search leaves 5 MiB behind and takes less time than a process takes to start


def planned(graph: Graph, batch: int, budget: Any, device: str | None) -> tuple[Built, NetworkPlan]:
    """The plan of an inference, with its graph: as `graph.plan` has it."""
    if len(graph.nodes) <= FEW:
        return graph, graph.plan(batch=batch, budget=budget, train=False, device=device)
    request = {"graph": json.loads(graph.to_json()), "batch": batch, "budget": budget, "device": device}
    text = _answer(json.dumps(request))
    if not text:  # where there is no plan, this is what raises
        return graph, graph.plan(batch=batch, budget=budget, train=False, device=device)
    plan = NetworkPlan.from_json(text, device)
    built = plan.graph
    assert isinstance(built, Built)
    built.begin_with(graph.values)
    return built, plan


def _answer(question: str) -> str:
    """What a process of this module's says; "": it could not be started, or there is no plan."""
    command, env = python("-m", "ooc.apply.apart")
    try:
        return subprocess.run(command, input=question, capture_output=True, text=True, env=env, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""


def main() -> int:
    """Plan what standard input asks for; the exit status."""
    request = json.load(sys.stdin)
    graph = Graph.from_json(json.dumps(request["graph"]))
    print(graph.plan(batch=request["batch"], budget=request["budget"], train=False, device=request["device"]).to_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Plans of networks on disk: what a policy chose, by all that the choice depends on. Nothing in them is believed."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ooc.native
from ooc.cache import cache_folder
from ooc.errors import OocError, StoreError
from ooc.files.records import content, plain, record, understood
from ooc.files.whole import sweep, whole
from ooc.networks.judge import Judge
from ooc.networks.plan import NetworkPlan
from ooc.networks.proposal import Proposal

PACKAGE = Path(__file__).parents[1]
FOLDER, MOST_FILES, MOST_FILE_BYTES = "plans", 512, 8 << 20


@dataclass(frozen=True)
class StoredPlan:
    """What was chosen, and what that came to: the same proposal is predicted the same seconds, or it is not the same question.

    Fields:
        question: the key of all that was asked.
        proposal, smallest_bytes, others, source: as of `NetworkPlan`.
        predicted_seconds: of a step.
    """

    question: str
    proposal: Proposal
    smallest_bytes: int
    others: str
    source: str
    predicted_seconds: float


def from_store(judge: Judge, policy: str, options: Mapping[str, Any], make: Callable[[], NetworkPlan]) -> NetworkPlan:
    """The plan of a policy, as it was made before with the same sources for the same question, else as it is made now. Plans
    without a limit are made at once, and those of a GPU depend on what is free of it: they are not kept. A file that was damaged
    changes nothing; one that somebody wrote on purpose is at most another plan within the limits, of the same results."""
    folder = cache_folder()
    if folder is None or judge.budget is None or judge.device.backend.bare() is None or os.environ.get("OOC_PLANS") == "off":
        return make()
    question = _question(judge, policy, options)
    path = folder / FOLDER / f"{question}.json"
    plan = _read(path, question, judge, policy, options)
    if plan is None:
        plan = make()
        with suppress(OSError, StoreError):  # of a folder that is read alone, or full
            _write(path, question, plan)
    return plan


def _question(judge: Judge, policy: str, options: Mapping[str, Any]) -> str:
    """A hash of all that a choice depends on."""
    net, device, costs = judge.net, judge.device, judge.costs
    asked = {
        "sources": _sources(), "graph": net.graph.to_json(), "batch": net.batch, "mode": net.mode.value, "wanted": net.wanted,
        "lent": net.lent, "home": judge.scene.home,
        "optimizer": net.optimizer and [type(net.optimizer).__name__, {**plain(net.optimizer), "lr": "any"}],
        "budget": judge.budget, "pinned": judge.pinned, "policy": policy, "options": options,
        "limits": (device.workspace_bytes, device.workspace_yields, costs.deterministic),
        "backend": (device.backend.name, device.backend.__reduce__(), device.backend.total_bytes),
        "offers": [[(o.name, o.ordered, o.serving) for o in costs.offers(call.op)] for call in net.calls],
        "model": device.model.__reduce__()[1],
    }  # fmt: skip
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=repr).encode()).hexdigest()


@functools.cache
def _sources() -> str:
    """A hash of the package, compiled kernels and all."""
    digest = hashlib.sha256()
    kernels = getattr(ooc.native.kernels, "__file__", None)
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(path.relative_to(PACKAGE).as_posix().encode() + b"\0" + path.read_bytes())
    digest.update(b"" if kernels is None else Path(kernels).read_bytes())
    return digest.hexdigest()


def _read(path: Path, question: str, judge: Judge, policy: str, options: Mapping[str, Any]) -> NetworkPlan | None:
    """The plan of a file; None where there is none, or it is not what was written there."""
    with suppress(OocError), understood(path):
        head, body = content(path, MOST_FILE_BYTES).split(b"\n", 1)
        kept = record(StoredPlan, json.loads(body)) if head.decode() == hashlib.sha256(body).hexdigest() else None
        if kept is not None and kept.question == question:
            plan = NetworkPlan.of(judge, policy, options, kept.proposal, kept.smallest_bytes, kept.others, kept.source)
            return plan if plan.predicted_seconds == kept.predicted_seconds else None
    return None


def _write(path: Path, question: str, plan: NetworkPlan) -> None:
    kept = StoredPlan(question, plan.proposal, plan.smallest_bytes, plan.others, plan.source, plan.predicted_seconds)
    body = json.dumps(plain(kept)).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    sweep(path.parent)
    with whole(path, settled=False) as file:  # others may read at the same time
        file.write(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
    for old in _oldest(path.parent):
        old.unlink(missing_ok=True)


def _oldest(folder: Path) -> list[Path]:
    """The files that are one too many."""
    files = sorted(folder.glob("*.json"), key=lambda file: file.stat().st_mtime_ns)
    return files[: max(0, len(files) - MOST_FILES)]

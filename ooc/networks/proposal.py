"""What a policy proposes: the fate of every activation, and how a step is run. Plain data, which a plan writes as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ooc.cache import cached_property
from ooc.errors import ArgumentError, shown
from ooc.files.records import plain

CLOSE = "close"  # a proposal's space
WORDS = {  # that fields of a proposal may have
    "window": ("demand", "layer", "vdnn", "at", "runs", "parts", "listed"), "space": ("colour", "first", "ends", "rotate", CLOSE),
    "codec": ("", "zeros"),
}  # fmt: skip


class Fate(StrEnum):
    """The fate of a tensor between the passes.

    KEEP: stays on the device. OFFLOAD: leaves after its last use in the forward pass (of a stage, where the batch passes in
    parts), and comes back. RECOMPUTE: is let go of, and made again. STREAM: lives at home; who reads or makes it is cut into
    tiles. What lasts from step to step may be kept, offloaded or streamed.
    """

    KEEP = "keep"
    OFFLOAD = "offload"
    RECOMPUTE = "recompute"
    STREAM = "stream"


@dataclass(frozen=True)
class Proposal:
    """How a step of a network may be run.

    Fields:
        label: in words, for people.
        fates: by tensor.
        others: the fate of all other tensors.
        window: when what left is asked back: "demand" (when it is needed), "layer" (`ahead` layers before), "vdnn" (vDNN's search
            window), "at" (before the call that `issue` names), "runs" (`ahead` runs before), "parts" (`ahead` parts of chains),
            "listed" (as many runs before as `early` has it).
        ahead: layers, for window "layer"; runs, for window "runs"; parts, for window "parts".
        issue: for window "at", pairs (tensor, index of the backward call before which its load is issued).
        early: for window "listed", how many runs before its use each load is issued, in their order.
        barrier: whether compute waits at the end of each layer for all that moves.
        again: tensors that are made again for every use, and not kept in between.
        staying: tensors that leave, but are there as a whole from the first to the last chain of a pass that uses them.
        bands: pairs (index of a forward call, samples): from its layer on, up to the next band, so many samples pass at a time,
            in both passes; 0: all of them.
        late: indices of backward calls that are put off to the end of the backward pass, and compute all samples at once.
        grids: pairs (index of a call, parts along the batch and every spatial axis): from it on, up to the next pair, calls pass
            tile by tile, see `ooc.networks.chains`, up to the next one that reads a sum over all tiles; (): they do not.
        cells: places in those grids of the tiles that are computed, the others being someone else's; (): all.
        kernels: how convolutions are computed: "fastest", "lean" (least workspace), or "fitting" (fastest whose workspace fits).
        micro: pairs (index of a call, samples that it computes at a time in a smaller workspace).
        chosen: pairs (index of a call, name of its kernel), before `kernels`.
        over: pairs (read, made): gradients that take the place of what their call reads.
        space: how memory is laid out: "colour" (offline, best fit), "first" (offline, lowest gap), "ends" (what stays at one end,
            what passes at the other), "rotate" (what layers make in few blocks taken in turn), "close" (as "colour"; where that
            does not fit, in other orders, with fewer gaps).
        patient: whether bytes that are being stored are left alone until they are, where memory allows.
        codec: how what leaves is packed: "" or "zeros".
        fused: pairs (index of a call, calls): runs of calls that are one, see `ooc.networks.fusing`; all other
            indices count the calls that there are then.
    """

    label: str
    fates: Mapping[str, Fate] = field(default_factory=dict)
    others: Fate = Fate.KEEP
    window: str = "demand"
    ahead: int = 1
    issue: tuple[tuple[str, int], ...] = ()
    early: tuple[int, ...] = ()
    barrier: bool = False
    again: frozenset[str] = frozenset()
    staying: frozenset[str] = frozenset()
    bands: tuple[tuple[int, int], ...] = ()
    late: frozenset[int] = frozenset()
    grids: tuple[tuple[int, tuple[int, ...]], ...] = ()
    cells: tuple[tuple[int, ...], ...] = ()
    kernels: str = "fastest"
    micro: tuple[tuple[int, int], ...] = ()
    chosen: tuple[tuple[int, str], ...] = ()
    over: tuple[tuple[str, str], ...] = ()
    space: str = "colour"
    patient: bool = True
    codec: str = ""
    fused: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        """Raises ArgumentError for words that say nothing, and for parts of no samples: a plan's text may hold anything."""
        for name, words in WORDS.items():
            if getattr(self, name) not in words:
                raise ArgumentError(f"{name}: expected one of {', '.join(map(repr, words))}; got {shown(getattr(self, name))}")
        rule, _, room = self.kernels.partition(":")
        if rule not in ("fastest", "lean", "fitting") or not (room.isdecimal() if rule == "fitting" else room == ""):
            raise ArgumentError(f"kernels: expected 'fastest', 'lean' or 'fitting:bytes'; got {shown(self.kernels)}")
        if any(ahead < 0 for ahead in self.early):
            raise ArgumentError(f"early: expected runs, 0 or more; got {shown(min(self.early))}")
        if any(samples < 0 for _, samples in self.bands) or any(samples < 1 for _, samples in self.micro):
            raise ArgumentError(f"bands, micro: parts of a batch have samples; got {shown(self.bands)}, {shown(self.micro)}")

    @cached_property
    def samples_of(self) -> dict[int, int]:
        """Samples that calls compute at a time, by their index: `micro` as a dict."""
        return dict(self.micro)

    @cached_property
    def kernel_of(self) -> dict[int, str]:
        """Names of kernels by the index of their call: `chosen` as a dict."""
        return dict(self.chosen)

    @property
    def chunk(self) -> int:
        """Samples that pass the whole step at a time; 0: all of them, or not everywhere as many."""
        return self.bands[0][1] if len(self.bands) == 1 and not self.bands[0][0] else 0

    def fields(self) -> dict[str, Any]:
        """It for JSON."""
        return plain(self, ("staying", "early"))

    def resident(self, name: str) -> bool:
        """Whether what lasts from step to step stays on the device: nothing makes it again."""
        return self.fate(name) in (Fate.KEEP, Fate.RECOMPUTE)

    def fate(self, name: str) -> Fate:
        """The fate of a tensor."""
        return self.fates.get(name, self.others)

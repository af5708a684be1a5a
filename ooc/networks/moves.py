"""Where tensors live beyond the device, and how they move there and back: homes, pieces, rings."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterator, Mapping

from ooc.cache import cached_property
from ooc.ir.op import ITEM_BYTES, Operand, aligned
from ooc.ir.region import Region, Span, Whole, elements
from ooc.networks.calls import Network
from ooc.networks.items import Instance
from ooc.networks.program import Program
from ooc.networks.proposal import Proposal
from ooc.networks.scene import SPILL, Scene, place_of
from ooc.networks.tensors import Role
from ooc.schedule.arena import Buffer, Layout
from ooc.schedule.emit import contiguous_runs, pieces
from ooc.schedule.lowering import Outside
from ooc.schedule.place import CALLER, FILE, MOST_PIECES, PAGEABLE, load_route, store_route
from ooc.schedule.steps import Ref, Step

PIECE = 32 << 20  # bytes of a copy, unless there were too many: one that is ahead in its queue keeps others waiting no longer


def nbytes_of(net: Network, instance: Instance) -> int:
    """Bytes of an instance: of its part."""
    tensor = net.tensors[instance.tensor]
    return tensor.nbytes if instance.part is None else elements(instance.part) * ITEM_BYTES[tensor.dtype]


class TensorMoves:
    """The loads and stores of a program.

    resident: the buffers of what lasts, by tensor.
    """

    def __init__(self, net: Network, proposal: Proposal, program: Program, scene: Scene, resident: Mapping[str, Buffer]) -> None:
        self.net, self.proposal, self.scene, self.resident = net, proposal, scene, resident
        self.items = [item for item in program.items if item.what in ("load", "store")]
        self.cuts = program.cuts
        self.moved: dict[str, Operand] = {}  # how what moves is seen, by the name that its steps use
        self.reached: dict[str, Outside] = {}  # what of it lies beyond the device's memory
        self.turns = {way: itertools.cycle(range(2)) for way in ("load", "store")}  # slots of the staging rings

    # ---- homes

    def home_of(self, name: str) -> Buffer | None:
        """What holds a tensor beyond the device; None: an array of the caller's that is only read."""
        tensor = self.net.tensors[name]
        if tensor.role is Role.INPUT or (name in self.net.in_place and name not in self.resident):
            return None
        if name in self.net.outputs:
            return Buffer(CALLER, name, 0, tensor.nbytes)
        if name in self.resident:
            return self.resident[name]
        space = self.scene.home
        if self.proposal.codec and self.scene.staged and space == SPILL:
            space = PAGEABLE  # what is packed by the processor does not come from the device by itself
        return Buffer(space, f"home of {name}", 0, tensor.nbytes)

    def home(self, instance: Instance) -> Buffer | None:
        """What holds an instance beyond the device: samples of its tensor's home, or all of that; None: see `home_of`."""
        whole = self.home_of(instance.tensor)
        if whole is None or whole.space == CALLER or not self._of_samples(instance):
            return whole
        piece = self._piece(instance)
        return Buffer(whole.space, f"home of {piece}", 0, nbytes_of(self.net, piece))

    def _of_samples(self, instance: Instance) -> bool:
        """Whether an instance is some samples, of a piece of its tensor's bytes that all chains respect."""
        tensor = self.net.tensors[instance.tensor]
        if instance.part is None or any(s.extent < e for s, e in zip(instance.part[1:], tensor.shape[1:], strict=True)):
            return False
        return len(self.cuts.get(tensor.name, (0, 1, 2))) > 2

    def _piece(self, instance: Instance) -> Instance:
        """The piece of a tensor that some samples are of: what moves, where no chain cuts it otherwise."""
        assert instance.part is not None
        samples, cuts = instance.part[0], self.cuts.get(instance.tensor)
        if cuts is not None:
            end = bisect_left(cuts, samples.hi)
            samples = Span(cuts[end - 1], cuts[end])
        return Instance(instance.tensor, 0, (samples, *instance.part[1:]))

    def ringed(self, layout: Layout) -> Layout:
        """A layout with the staging rings, where the device needs them, room to pack in, and the parts of homes."""
        offsets, peaks = dict(layout.offsets), dict(layout.peaks)
        offsets |= {part: offsets[whole] + at for part, (whole, at) in self._parts.items()}
        rings = [Buffer("staging", way, slot, nbytes) for way, nbytes in self.rings.items() for slot in range(2)]
        for buffer in (*rings, *self.packing.values()):
            offsets[buffer] = peaks.get("staging", 0)
            peaks["staging"] = aligned(offsets[buffer] + buffer.nbytes)
        return Layout(offsets, peaks)

    @cached_property
    def _parts(self) -> dict[Buffer, tuple[Buffer, int]]:
        """Parts of homes that move on their own: of which home, and from which byte of it on."""
        parts = {}
        for item in self.items:
            for instance in (*item.reads, *item.makes):
                whole, part = self.home_of(instance.tensor), self.home(instance)
                if whole is not None and part is not None and part != whole:
                    samples = self._piece(instance).part
                    assert samples is not None
                    parts[part] = whole, whole.nbytes // self.net.batch * samples[0].lo
        return parts

    @cached_property
    def packing(self) -> dict[str, Buffer]:
        """The buffers that what leaves is packed in, and what comes back unpacked from; none where nothing is."""
        sizes = [
            elements(region)
            for item in self.items
            if item.what == "store" and self.proposal.codec
            for instance in item.reads
            if (home := self.home(instance)) is not None and home.space not in (SPILL, CALLER)
            for region in _pieces(*self._moving(instance, home))
        ]
        return {way: Buffer("staging", f"packing {way}", 0, max(sizes)) for way in ("load", "store") if sizes}

    @cached_property
    def rings(self) -> dict[str, int]:
        """Bytes of a slot of each staging ring: of the largest piece that passes it."""
        rings: dict[str, int] = {}
        for item in self.items if self.scene.staged else ():
            for instance in (*item.reads, *item.makes):
                home = self.home(instance)
                if home is None or home.space != SPILL:
                    operand, held = self._moving(instance, home)
                    most = max(map(elements, _pieces(operand, held))) * ITEM_BYTES[operand.dtype]
                    rings[item.what] = max(rings.get(item.what, 0), most)
        return rings

    # ---- steps

    def steps(self, what: str, instance: Instance, buffer: Buffer, cached: bool) -> Iterator[Step]:
        """A load or a store of an instance that a buffer of the device holds, piece by piece. cached: whether the page cache is
        taken to hold what is at home."""
        home = self.home(instance)
        operand, held = self._moving(instance, home)
        for region in _pieces(operand, held):
            near = Ref(operand.name, buffer, region, 0, held)
            far = () if home is None else (Ref(operand.name, home, region, 0, operand.whole),)
            yield from self._hop(what, operand, region, near, far, next(self.turns[what]), home, cached)

    def _hop(
        self,
        what: str,
        operand: Operand,
        region: Region,
        near: Ref,
        far: tuple[Ref, ...],
        slot: int,
        home: Buffer | None,
        cached: bool,
    ) -> Iterator[Step]:
        nbytes, place = elements(region) * ITEM_BYTES[operand.dtype], place_of(home.space if home is not None else FILE)
        lanes = (load_route if what == "load" else store_route)(place, self.scene.staged)
        ring = () if len(lanes) == 1 else (Ref(operand.name, Buffer("staging", what, slot, self.rings[what]), region),)
        stops = [far, *([ring] if ring else []), (near,)]
        if what == "store":
            stops.reverse()
        for lane, reads, writes in zip(lanes, stops[:-1], stops[1:], strict=True):
            warm = nbytes if lane == "read" and cached else 0
            runs = contiguous_runs(operand, region) if far in (reads, writes) else 1
            yield Step(lane, what, operand.name, reads, writes, region, nbytes=nbytes, runs=runs, again=warm)

    def _moving(self, instance: Instance, home: Buffer | None) -> tuple[Operand, Region]:
        """How a tensor is seen while it moves, and the region of it that an instance is: bytes in one piece, else its axes."""
        tensor = self.net.tensors[instance.tensor]
        mine = home is not None and home.space != CALLER
        if not mine or (instance.part is not None and not self._of_samples(instance)):
            name = tensor.name if home is None else home.name
            operand = Operand(name, tensor.shape, tensor.dtype, tuple(map(Whole, tensor.shape)))
            held = instance.part or operand.whole
        else:
            piece = instance if instance.part is None else self._piece(instance)
            nbytes, first = nbytes_of(self.net, piece), 0
            if instance.part is not None and piece.part is not None:
                first = tensor.nbytes // self.net.batch * (instance.part[0].lo - piece.part[0].lo)
            operand = Operand(str(piece._replace(generation=0)), (nbytes,), "u8", (Whole(nbytes),))
            held = (Span(first, first + nbytes_of(self.net, instance)),)
        if operand.name not in self.moved:
            self.moved[operand.name] = operand
            if home is None or home.space != SPILL:
                self.reached[operand.name] = Outside(tensor.name, operand, home)
        return self.moved[operand.name], held


def _pieces(operand: Operand, held: Region) -> Iterator[Region]:
    """The regions in which one moves."""
    nbytes = elements(held) * ITEM_BYTES[operand.dtype]
    return pieces(operand, held, max(PIECE, -(-nbytes // MOST_PIECES)))

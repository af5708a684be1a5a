"""A training step of VGG16 as the calls that it makes, and where its tensors live: what `perfmodel.figures` predicts.

Forward is one fused call per layer (convolution, bias, ReLU, pooling), backward one fused call per layer (all gradients in
one pass over dy), as with ooc_cuDNN's fused functions. Only sizes exist here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from ooc.api.backward_graph import WantedGradients, backward_graph
from ooc.ir.fused import wired
from ooc.ir.op import Op
from ooc.ops import ConvFprop, PoolForward
from ooc.runtime.device import Device
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan

SHARE = 0.9  # of a device's memory, which ooc_cudaMalloc gives away; the rest is for streaming
CONVS = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))  # channels and convolutions before each pooling
LINEAR = (4096, 4096, 1000)
GRADIENT = "dz"  # how the names of gradients of activations begin


@dataclass(frozen=True)
class FusedCall:
    """One fused call: its op, and the tensor behind each operand. frees: the gradient that nobody reads after it."""

    name: str
    op: Op
    tensors: dict[str, str]
    frees: str = ""

    @property
    def gradients(self) -> list[str]:
        """Gradients of activations that it reads or makes."""
        return sorted({t for t in self.tensors.values() if t.startswith(GRADIENT)})


@dataclass(frozen=True)
class TrainingStep:
    """Forward and backward of a batch. nbytes: of every tensor, parameters first, then in the order of their first use;
    all but the gradients of activations live all the time."""

    batch: int
    calls: tuple[FusedCall, ...]
    nbytes: dict[str, int] = field(default_factory=dict)

    @property
    def most_bytes(self) -> int:
        """Bytes of all tensors that live at the same time, at most."""
        lasting = sum(size for name, size in self.nbytes.items() if not name.startswith(GRADIENT))
        return lasting + max(sum(self.nbytes[t] for t in call.gradients) for call in self.calls)

    def places(self, memory_bytes: int) -> Iterator[tuple[FusedCall, dict[str, Place], int]]:
        """Every call with the places of its operands, and the bytes of the device that are in use during it.

        First come, first served, as ooc_cudaMalloc did: what still fits in its share of the device is there, the rest in
        pinned host memory. A gradient is allocated for the call that makes it.
        """
        free = SHARE * memory_bytes
        home: dict[str, Place] = {}

        def allocate(name: str) -> None:
            nonlocal free
            home[name] = Place.DEVICE if self.nbytes[name] <= free else Place.PINNED
            free -= self.nbytes[name] * (home[name] is Place.DEVICE)

        for name in self.nbytes:
            if not name.startswith(GRADIENT):
                allocate(name)
        for call in self.calls:
            for name in call.gradients:
                if name not in home:
                    allocate(name)
            yield call, {o: home[t] for o, t in call.tensors.items()}, int(SHARE * memory_bytes - free)
            if call.frees and home[call.frees] is Place.DEVICE:
                free += self.nbytes[call.frees]


def vgg16(batch: int, side: int = 224) -> TrainingStep:
    """A training step of VGG16 (Simonyan and Zisserman, 2014), without dropout and loss, in f32."""
    layers = list(enumerate(_layers(batch, side)))
    read = ["x", *(f"{'z' if len(stages) > 1 else 'y'}{i}" for i, stages in layers)]
    calls = [_forward(i, read[i], stages) for i, stages in layers]
    calls += [_backward(i, read[i], stages) for i, stages in reversed(layers)]
    sizes = {c.tensors[o.name]: o.nbytes for c in calls for o in c.op.operands}
    first = sorted(sizes, key=lambda name: name.strip("0123456789") not in ("w", "b", "dw", "db"))
    return TrainingStep(batch, tuple(calls), {name: sizes[name] for name in first})


def plans(step: TrainingStep, device: Device, memory_bytes: int | None) -> Iterator[tuple[FusedCall, list[Plan]]]:
    """Every call with the plans that it runs as on a device with that much memory; None: with everything in it."""
    if memory_bytes is None:
        for call in step.calls:
            yield call, _limited(device, None).planner.plans(call.op, dict.fromkeys(call.tensors, Place.DEVICE))
        return
    for call, places, used in step.places(memory_bytes):
        yield call, _limited(device, memory_bytes - used).planner.plans(call.op, places)


def _limited(device: Device, nbytes: int | None) -> Device:
    """The same device with another budget; plans are remembered for one."""
    return replace(device, device_bytes=nbytes)


# ---- layers


def _layers(batch: int, side: int) -> Iterator[tuple[Op, ...]]:
    """The ops of every layer."""
    c = 3
    for k, count in CONVS:
        for last in (False,) * (count - 1) + (True,):
            conv = ConvFprop(batch, c, (side, side), k, (3, 3), pad=((1, 1), (1, 1)), bias=True, act="relu")
            yield (conv, PoolForward("max", batch, k, (side, side), (2, 2), (2, 2))) if last else (conv,)
            c = k
        side //= 2
    c *= side * side
    for k in LINEAR:  # a pointwise convolution whose positions are the rows
        act = "identity" if k == LINEAR[-1] else "relu"
        yield (ConvFprop(1, c, (batch,), k, (1,), bias=True, act=act, layout="channels_last"),)
        c = k


def _forward(i: int, x: str, stages: Sequence[Op]) -> FusedCall:
    op = wired([("x,w,b>y!", stages[0]), ("y>z!", stages[1])]) if len(stages) > 1 else stages[0]
    return FusedCall(f"forward {i + 1}", op, _names(i, x, op))


def _backward(i: int, x: str, stages: Sequence[Op]) -> FusedCall:
    op, _ = backward_graph(stages, WantedGradients(i > 0, True, True, {}), forward=False)
    return FusedCall(f"backward {i + 1}", op, _names(i, x, op), f"{GRADIENT}{i}")


def _names(i: int, x: str, op: Op) -> dict[str, str]:
    """The tensors behind the operands of layer i, which reads x: dy is the gradient of its result, dx of the one before."""
    shared = {"x": x, "dx": f"{GRADIENT}{i - 1}", "dy": f"{GRADIENT}{i}"}
    return {o.name: shared.get(o.name, f"{o.name}{i}") for o in op.operands}

"""Arrays in the memory of a device, given to a session: fetched by the device that they lie on, refused by others, never read as
if they were the host's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulated_device import theirs
from emulated_driver import emulated
from networks import cpu

import ooc
from ooc.errors import UnsupportedError
from ooc.model.calibration import load_device
from ooc.networks.inputs import outputs_of
from ooc.networks.tensors import Mode
from ooc.networks.writer import network
from ooc.runtime.device import Device

BATCH = 3


def graph() -> ooc.Graph:
    g = ooc.Graph("small")
    h = g.conv(g.input("x", (2, 7, 6)), 4, 3, padding=1, bias=True, activation="relu", name="first")
    logits = g.linear(g.flatten(h), 5, name="last")
    g.output(logits)
    g.loss("cross_entropy", logits)
    return g


def data() -> tuple[Any, Any, dict[str, Any]]:
    rng = np.random.default_rng(0)
    weights = {"first.w": rng.integers(-2, 3, (4, 2, 3, 3)).astype("f4")}
    return rng.integers(-3, 4, (BATCH, 2, 7, 6)).astype("f4"), rng.integers(0, 5, BATCH), weights


class Elsewhere:
    """An array that says it lies on a device, at an address that no process has."""

    def __init__(self, array: Any) -> None:
        self.shape, self.dtype = array.shape, array.dtype
        self.__cuda_array_interface__ = {
            "data": (1 << 46, False), "shape": array.shape, "typestr": array.dtype.str, "strides": None, "version": 3,
        }  # fmt: skip


def step(device: Device, see: Any) -> list[Any]:
    """What a session makes of arrays that lie where `see` puts them."""
    x, labels, weights = data()
    made: list[Any] = []
    with (
        graph()
        .plan(batch=BATCH, device=device, optimizer=ooc.SGD(0.5), deterministic=True)
        .session(parameters={name: see(w) for name, w in weights.items()}) as session
    ):
        made.append(session.step(see(x), see(labels)))
        session.begin_with({"first.w": see(weights["first.w"] + 1)})
        made.append(session.step(see(x), see(labels)))
        made.append(session.parameters()["last.w"])
    with graph().plan(batch=BATCH, device=device, train=False, deterministic=True).session(seed=1) as session:
        made.append(session.forward(see(x)))
    with graph().plan(batch=BATCH, device=device, train="backward", deterministic=True).session(seed=1) as session:
        made.append(session.backward(see(x), see(np.ones((BATCH, 5), "f4")))["x"])
    return made


def test_the_device_they_lie_on_fetches_them() -> None:
    backend = emulated(3, cudnn=True)
    device = Device(backend, load_device("p100"), deterministic=True)
    for found, wanted in zip(step(device, lambda a: theirs(backend, a)), step(device, lambda a: a), strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("what", ["x", "labels", "parameters", "dy"])
def test_others_refuse_them(what: str) -> None:
    x, labels, weights = data()

    def see(name: str, array: Any) -> Any:
        return Elsewhere(array) if name == what else array

    with pytest.raises(UnsupportedError, match="memory of a CUDA device") as refused:
        if what == "dy":
            with graph().plan(batch=BATCH, device=cpu(), train="backward").session() as session:
                session.backward(x, Elsewhere(np.ones((BATCH, 5), "f4")))
        given = {name: see("parameters", w) for name, w in weights.items()}
        with graph().plan(batch=BATCH, device=cpu()).session(parameters=given) as session:
            session.step(see("x", x), see("labels", labels))
    assert len(str(refused.value).splitlines()) == 1


def test_outputs_there_are_refused() -> None:
    x, _, _ = data()
    with graph().plan(batch=BATCH, device=cpu(), train=False).session() as session, pytest.raises(ooc.OocError, match="out"):
        session.forward(x, out=Elsewhere(np.ones((BATCH, 5), "f4")))


def test_outputs_that_no_memory_holds() -> None:
    """Of a session as of a function: one typed line, whose bytes are told."""
    g = ooc.Graph("wide")
    g.output(g.upsample(g.input("x", (1, 2, 2)), (1 << 26, 1 << 26)))
    with pytest.raises(ooc.errors.OutOfMemoryError, match="no memory for a result"):
        outputs_of(network(g, 1, Mode.INFER), None, {})

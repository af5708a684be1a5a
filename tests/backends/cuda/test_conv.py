"""What cuDNN is told of tiles that are used in place, and what happens where it refuses or fails."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from cases import integers
from emulated_device import execute
from emulated_driver import StandInConv, StandInCudnn, emulated

from ooc.backends.conv_call import ConvCall
from ooc.backends.cuda.conv import Shape, canonical, usual
from ooc.backends.device_array import device_array
from ooc.backends.gpu_workspace import beside_bytes
from ooc.backends.views import dense_strides
from ooc.errors import BackendError, UnsupportedError
from ooc.ops.descriptor import parse
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan

WIDE = "conv.fprop n=1 c=64 h=6144 w=6144 k=64 r=3 s=3 pad=1 dtype=f32"
NCHW, NHWC = (0, 1, 2, 3), (0, 2, 3, 1)


def view(shape: tuple[int, ...], strides: tuple[int, ...], address: int = 0) -> Any:
    return device_array(address, shape, np.dtype(np.float32), tuple(4 * s for s in strides))


def test_axes_of_extent_one_have_the_strides_of_a_dense_array() -> None:
    x = view((1, 5, 1, 1, 800), (7, 800, 100, 0, 1))
    assert canonical(x, (0, 1, 2, 3, 4)) == (4000, 800, 800, 800, 1)
    x = view((4, 1, 1, 3, 6), (90, 1234, 0, 30, 5))
    assert canonical(x, (0, 2, 3, 4, 1)) == (90, 1, 90, 30, 5)


def test_a_signal_is_told_with_canonical_strides() -> None:
    op = parse("conv.fprop n=2 c=8 w=100 k=8 s=3 pad=1 dtype=f32")
    told = usual(op, {**op.dims, "n": 1}, "fma")
    assert told.x == (1, 8, 1, 100) and told.x_strides == (800, 100, 100, 1)
    assert told.y_strides == (800, 100, 100, 1)


def shape_of(x: Any, y: Any, bases: tuple[int, ...] = (16, 16, 16), wishes: bool = True) -> Shape:
    op = parse(WIDE)
    w = view((64, 64, 3, 3), dense_strides((64, 64, 3, 3), 1, NCHW))
    return Shape(ConvCall(op), "fma", [x, w, y], bases, (0, 0, 1), 1, wishes)


def test_tiles_that_span_two_thousand_million_elements_are_copied() -> None:
    """A tile of rows of a resident 64 x 6144 x 6144 picture: few elements, but far apart."""
    far = (64 * 6144 * 6144, 6144 * 6144, 6144, 1)
    x, y = view((1, 64, 14, 6144), far), view((1, 64, 12, 6144), far)
    found = shape_of(x, y)
    assert [room.role for room in found.rooms] == [0, 2] and not any(room.wished for room in found.rooms)
    assert found.geometry.x == (1, 64, 14, 6144) and found.geometry.x_strides == (64 * 14 * 6144, 14 * 6144, 6144, 1)
    assert found.geometry.y_strides == (64 * 12 * 6144, 12 * 6144, 6144, 1)
    near = (0, 30 * 6144, 6144, 1)
    assert not shape_of(view((1, 64, 14, 6144), near), view((1, 64, 12, 6144), near)).rooms


def test_addresses_that_are_no_multiples_of_16_are_copied_where_there_is_room() -> None:
    near = (0, 30 * 6144, 6144, 1)
    arrays = view((1, 64, 14, 6144), near), view((1, 64, 12, 6144), near)
    found = shape_of(*arrays, bases=(4, 16, 8))
    assert [(room.role, room.wished) for room in found.rooms] == [(0, True), (2, True)] and found.geometry.aligned == 16
    found = shape_of(*arrays, bases=(4, 16, 8), wishes=False)
    assert not found.rooms and found.geometry.aligned == 4


def test_arrays_that_run_backwards_are_copied() -> None:
    near = (0, 30 * 6144, 6144, 1)
    found = shape_of(view((1, 64, 14, 6144), (0, 30 * 6144, 6144, -1)), view((1, 64, 12, 6144), near))
    assert [room.role for room in found.rooms] == [0]


@pytest.mark.parametrize(
    ("text", "sizes", "wanted"),
    [
        (WIDE, {"p": 12}, ("x", "y")),  # far apart
        ("conv.fprop n=4 c=8 h=63 w=63 k=8 r=3 s=3 pad=1 dtype=f32", {"p": 8, "q": 9}, ()),  # wherever they begin
        ("conv.fprop n=4 c=8 h=64 w=64 k=8 r=3 s=3 pad=1 dtype=f32", {"c": 4}, ("w",)),  # filters with gaps
        ("conv.fprop n=4 c=8 h=64 w=64 k=8 r=3 s=3 pad=1 dtype=f32", {"k": 4}, ()),
    ],
)
def test_room_for_copies_of_what_is_in_place(text: str, sizes: dict[str, int], wanted: tuple[str, ...]) -> None:
    op = parse(text)
    tiles = {**op.dims, **sizes}
    room = {o.name: -(-int(o.block_bytes(tiles)) // 64) * 64 for o in op.operands}
    assert int(beside_bytes(op, tiles, frozenset("xwy"))) == sum(room[name] for name in wanted)
    assert int(beside_bytes(op, tiles, frozenset())) == 0
    many = {d: np.array([n, n]) for d, n in tiles.items()}
    assert beside_bytes(op, many, frozenset("xwy")).tolist() == [sum(room[name] for name in wanted)] * 2


class Failing(StandInCudnn):
    """Refuses when it is asked, or fails when it runs."""

    how = "run"

    def prepare(self, geometry: Any, most_bytes: int) -> StandInConv:
        found = super().prepare(geometry, most_bytes)
        if self.how == "prepare":
            raise BackendError("cuDNN: CUDNN_STATUS_BAD_PARAM")
        if self.how == "run":
            found.run = failing  # type: ignore[method-assign]
        return found


def failing(*_: Any) -> None:
    raise UnsupportedError("cuDNN: no algorithm")


@pytest.mark.parametrize("how", ["prepare", "run"])
@pytest.mark.parametrize("kind", ["fprop", "dgrad", "wgrad"])
def test_our_own_kernels_where_cudnn_fails(kind: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op = parse(f"conv.{kind} n=2 c=4 h=9 w=9 k=4 r=3 s=3 pad=1 dtype=f32")
    backend = emulated(3, cudnn=True)
    monkeypatch.setattr(Failing, "how", how)
    backend.driver.make_cudnn = lambda driver, stream: Failing(driver, stream)
    places = tuple((o.name, Place.DEVICE) for o in op.operands)
    offer = backend.offers(op, frozenset(name for name, _ in places))[0]
    sizes = {**op.dims, "n": 1}
    plan = Plan(op, tuple(sizes.items()), tuple(op.dims), 1, places, True, False, kernel=offer.name,
                workspace_bytes=int(offer.workspace(sizes)))  # fmt: skip
    arrays = integers(random.Random(5), op)
    made = execute(plan, arrays, backend, None)
    made_by_none = execute(plan, arrays, emulated(3, cudnn=True), None)
    assert all(np.array_equal(made[name], made_by_none[name]) for name in made)
    assert backend.cudnn.geometries  # it was asked

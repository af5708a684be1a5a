"""The defects and limits of the 2017 ooc_cuDNN, one test each, with the split that triggered it there."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import formulas as f
import numpy as np
import pytest
from adversarial import adversarial
from races import races

import ooc
from ooc.backends.cpu.backend import CpuBackend
from ooc.ir.bounds import Node
from ooc.ir.fused import Fused, fuse
from ooc.ir.op import Op, numpy_dtype
from ooc.ops import ConvDgrad, ConvFprop, ConvWgrad, Pointwise, PoolBackward, PoolForward, Reduce, SoftmaxApply, SoftmaxSum
from ooc.runtime.store import ArrayStore, Store
from ooc.schedule.lowering import lower
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan

BACKENDS = (CpuBackend(threads=2), CpuBackend(threads=2, staged=True))


def small(seed: int, *shape: int, dtype: str = "f32") -> Any:
    """Small integers: every sum of them is exact, in any order."""
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(numpy_dtype(dtype))


def arrays_of(op: Op) -> dict[str, Any]:
    return {o.name: small(i, *o.shape, dtype=o.dtype) for i, o in enumerate(op.inputs)}


def split(
    op: Op, arrays: Mapping[str, Any], expected: Mapping[str, Any], order: str = "", places: Mapping[str, Place] | None = None,
    **sizes: int,
) -> None:  # fmt: skip
    """Run an op cut into these tiles on every kernel, through every route, in adversarial order; compare every bit.

    order: loop dims to begin with, outermost first. An expected result may start from what is there: its array is then
    an input too.
    """
    tile = op.legal({**op.dims, **sizes})
    assert all(tile[d] == size for d, size in sizes.items()), f"{op} cannot be split so: {tile}"
    loops = (*order.split(), *(d for d in op.dims if d not in order.split()))
    for seed, (backend, place) in enumerate([(b, p) for b in BACKENDS for p in (Place.HOST, Place.DEVICE)]):
        rng = random.Random(seed)
        for offer in backend.offers(op):
            where = {o.name: place for o in op.operands} | dict(places or {})
            plan = Plan(
                op, tuple(tile.items()), loops, rng.choice((1, 2, 3)), tuple(where.items()), backend.staged, backend.shared,
                offer.name, int(offer.workspace(tile)),
            )  # fmt: skip
            todo = lower(plan)
            assert plan.tiles > 1 and races(todo.steps, todo.layout) == []
            outs = {o.name: np.full(o.shape, np.nan, numpy_dtype(o.dtype)) for o in op.outputs}
            own = {n: a.copy() for n, a in arrays.items()}
            if "before" in own:  # beta: the output is read and written in place
                outs["after"] = own["before"]
            stores: dict[str, Store] = {n: ArrayStore(a) for n, a in {**own, **outs}.items()}
            adversarial(todo, stores, backend, rng.choice)
            for name, wanted in expected.items():
                np.testing.assert_array_equal(outs[name].astype(np.float64), wanted, f"{name} of {plan}")


def accumulating(op: Op, made: str) -> Op:
    """alpha 1, beta 1: a result added to what its output holds."""
    operand = next(o for o in op.outputs if o.name == made)
    n, k, *extent = operand.shape
    blend = Pointwise(n, k, tuple(extent), add="nk" + "dhw"[3 - len(extent) :], dtype=op.dtype)
    own = Node(op, tuple(o.name for o in op.inputs), (made,))
    return Fused((own, Node(blend, (made, "before"), ("after",))), ("after",))


# ---- defects, in the order of the list


@pytest.mark.parametrize("pad", [1, 2, ((2, 0), (0, 2))], ids=str)
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_rows_split_under_padding(rows: int, pad: Any) -> None:
    """1: the first band starts above the image; the original carried that negative offset in an unsigned type."""
    pads = ((pad, pad),) * 2 if isinstance(pad, int) else pad
    op = ConvFprop(2, 3, (9, 7), 4, (3, 3), pad=pads)
    arrays = arrays_of(op)
    split(op, arrays, {"y": f.conv(**arrays, padding=pads)}, p=rows)


@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("rows", [1, 4])
def test_dgrad_rows_split_under_dilation(rows: int, stride: int, dilation: int) -> None:
    """2: BackwardData took the filter's extent for the band's; only a few of 224 rows came out. Here, all do."""
    op = ConvDgrad(1, 2, (21, 6), 3, (3, 3), (stride, 1), (dilation, 1), ((2, 2), (1, 1)))
    arrays = arrays_of(op)
    how = {"stride": (stride, 1), "dilation": (dilation, 1), "padding": (2, 1)}
    split(op, arrays, {"dx": f.conv_dx(arrays["dy"], arrays["w"], (1, 2, 21, 6), **how)}, h=rows)


def test_dgrad_rows_of_the_reported_size() -> None:
    """2, at 224 rows, as a call under a budget that forces bands of rows."""
    dy, w = small(1, 1, 2, 224, 8), small(2, 2, 2, 3, 3)
    with ooc.device("cpu", "2 KiB", threads=2):
        dx = ooc.conv_backward(None, w, dy, want="dx", padding=(2, 1), dilation=(2, 1), x_shape=(1, 2, 224, 8)).dx
    np.testing.assert_array_equal(dx, f.conv_dx(dy, w, (1, 2, 224, 8), padding=(2, 1), dilation=(2, 1)))


@pytest.mark.parametrize("order", ["k c", "c k"])
def test_filters_on_the_device_while_output_channels_are_split(order: str) -> None:
    """3: with w in place and y's channels split, the original read filter 0 for every block."""
    op = ConvFprop(2, 4, (5, 5), 6, (3, 3))
    arrays = arrays_of(op)
    assert len({part.tobytes() for part in arrays["w"]}) == 6  # all filters differ
    split(op, arrays, {"y": f.conv(**arrays)}, order, {"w": Place.DEVICE}, k=2, c=3)


@pytest.mark.parametrize("sizes", [{"n": 1}, {"p": 2}, {"k": 2, "c": 1}, {"n": 1, "p": 3, "k": 4}], ids=str)
def test_wgrad_honours_beta(sizes: dict[str, int]) -> None:
    """4: BackwardFilter overwrote dw whatever beta was; partial sums over n and rows must not count it twice either."""
    x, dy, held = small(1, 3, 2, 8, 6), small(2, 3, 4, 8, 6), small(3, 4, 2, 3, 3)
    op = ConvWgrad(3, 2, (8, 6), 4, (3, 3), pad=((1, 1), (1, 1)))
    wanted = f.conv_dw(x, dy, held.shape, padding=1)
    split(op, {"x": x, "dy": dy}, {"dw": wanted}, **sizes)
    for budget in (None, "4 KiB", "1 KiB"):
        dw = held.copy()
        with ooc.device("cpu", budget, threads=2):
            ooc.conv_backward(x, np.zeros_like(held), dy, want="dw", padding=1, dw=dw, alpha=2, beta=-3)
        np.testing.assert_array_equal(dw, 2 * wanted - 3 * held)


@pytest.mark.parametrize("sizes", [{"p": 2}, {"n": 1}, {"q": 3, "k": 2}], ids=str)
def test_reading_y_back_is_ordered_after_writing_it(sizes: dict[str, int]) -> None:
    """4: with beta, y is read in place of what is written later; its slots are used again and again."""
    op = accumulating(ConvFprop(2, 3, (8, 6), 4, (3, 3), pad=((1, 1), (1, 1))), "y")
    arrays = arrays_of(op)
    wanted = f.conv(arrays["x"], arrays["w"], padding=1) + arrays["before"]
    split(op, arrays, {"after": wanted}, **sizes)


def test_predicted_traffic_counts_every_tensor() -> None:
    """5: a stray terminator left y, activation and pooled output out of the model of the fused forward."""
    x, w = np.zeros((4, 8, 20, 20), np.float32), np.zeros((8, 8, 3, 3), np.float32)
    with ooc.device("cpu", "24 KiB", threads=2):
        y, z = ooc.conv(x, w, padding=1, activation="relu", pool=2, with_unpooled=True)
    report = ooc.last_report()
    assert report is not None and report.tiles > 1
    for plan in report.plans:
        assert dict(plan.lane_bytes) == report.lane_bytes and plan.lane_bytes["d2h"] == y.nbytes + z.nbytes


POOLS = [{"window": (3, 3), "stride": (2, 2), "pad": ((1, 1), (1, 0))}, {"window": (2, 3), "stride": (3, 1)},
         {"window": (4, 2), "stride": (1, 3), "pad": ((2, 3), (0, 1))}]  # fmt: skip


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("pool", POOLS, ids=str)
def test_fused_pool_with_padding_and_overlapping_windows(pool: dict[str, Any], rows: int) -> None:
    """6: fusing needed no padding and window == stride, of every block; here neither, at any cut of the rows."""
    conv = ConvFprop(1, 3, (11, 8), 4, (3, 3), pad=((1, 1), (1, 1)), bias=True, act="relu")
    op = fuse(conv, PoolForward("max", 1, 4, (11, 8), **pool))
    arrays = arrays_of(op)
    y = f.act("relu", f.conv(arrays["x"], arrays["w"], arrays["b"], padding=1))
    padding = pool.get("pad", ((0, 0),) * 2)
    split(op, arrays, {"y": f.pool("max", y, pool["window"], stride=pool["stride"], padding=padding)}, p=rows)


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("pool", POOLS, ids=str)
def test_fused_pool_backward_with_padding_and_overlapping_windows(pool: dict[str, Any], rows: int) -> None:
    """6: the backward twin, which compared the stride with itself: dx, dw and db of a pooled layer in one pass."""
    shape = (1, 3, 11, 8)
    conv = ConvFprop(1, 3, (11, 8), 4, (3, 3), pad=((1, 1), (1, 1)))
    back = PoolBackward("max", 1, 4, (11, 8), **pool)
    sizes = {"n": 1, "c": 3, "extent": (11, 8), "k": 4, "taps": (3, 3), "pad": ((1, 1), (1, 1))}
    op = Fused(
        (Node(back, ("y", "dz"), ("dy",)), Node(Reduce("bias", 1, 4, (11, 8)), ("dy",), ("db",)),
         Node(ConvWgrad(**sizes), ("x", "dy"), ("dw",)), Node(ConvDgrad(**sizes), ("dy", "w"), ("dx",))),
        ("db", "dw", "dx"),
    )  # fmt: skip
    arrays = arrays_of(op)
    arrays["y"] = f.conv(arrays["x"], arrays["w"], padding=1).astype(np.float32)
    padding = pool.get("pad", ((0, 0),) * 2)
    dy = f.pool_dx("max", arrays["y"], arrays["dz"], pool["window"], stride=pool["stride"], padding=padding)
    assert conv.outputs[0].shape == dy.shape
    wanted = {"dx": f.conv_dx(dy, arrays["w"], shape, padding=1), "db": dy.sum((0, 2, 3)),
              "dw": f.conv_dw(arrays["x"], dy, (4, 3, 3, 3), padding=1)}  # fmt: skip
    split(op, arrays, wanted, h=rows)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("stride", [2, 3])
def test_pooling_rows_split_under_stride(stride: int, rows: int) -> None:
    """7: the offset into x was counted in rows of y, which is right for stride 1 alone."""
    op = PoolForward("max", 2, 3, (13, 7), (3, 2), (stride, 1))
    arrays = arrays_of(op)
    split(op, arrays, {"y": f.pool("max", arrays["x"], (3, 2), stride=(stride, 1))}, p=rows)


SIMPLE: dict[str, Op] = {
    "activation": Pointwise(2, 6, (32, 32), act="relu"),
    "add": Pointwise(2, 6, (32, 32), add="nkhw"),
    "softmax": Fused((Node(SoftmaxSum(2, 6, (32, 32)), ("x",), ("sums",)),
                      Node(SoftmaxApply("plain", 2, 6, (32, 32)), ("x", "sums"), ("y",))), ("y",)),
}  # fmt: skip


@pytest.mark.parametrize("budget", ["4 KiB", "16 KiB", "48 KiB"])
@pytest.mark.parametrize("name", SIMPLE)
def test_all_slots_count_against_the_budget(name: str, budget: str) -> None:
    """8: activation, add and softmax compared one slot with the memory, and allocated three."""
    op = SIMPLE[name]
    plan = ooc.plan(op, budget, device="cpu")
    todo = lower(plan)
    slots = {r.buffer for s in todo.steps for r in (*s.reads, *s.writes) if r.buffer}
    held = sum(b.nbytes for b in slots)
    limit = int(budget.split()[0]) << 10
    assert held <= plan.peak_bytes <= limit
    assert plan.tiles > 1 and len({b for b in slots if b.name == "x"}) == min(plan.depth, plan.loads(op.inputs[0]))


# ---- limits of its design


@pytest.mark.parametrize("alpha", [1 / 3, 1e-300, 1.0000000001])
def test_double_constants_are_double(alpha: float) -> None:
    """Scalars were floats: a double alpha lost half its digits."""
    x, z = np.random.default_rng(0).standard_normal((2, 2, 5, 6, 4))
    with ooc.device("cpu", "1 KiB", threads=2):
        np.testing.assert_array_equal(ooc.scale(x, alpha), x * alpha)
        out = z.copy()
        ooc.activation(x, "relu", out=out, alpha=alpha, beta=alpha)
        np.testing.assert_allclose(out, np.maximum(x, 0) * alpha + z * alpha, rtol=4e-16)
        y = ooc.conv(x, np.eye(5)[..., None, None], alpha=alpha, beta=0, out=np.full_like(x, np.nan))
        np.testing.assert_array_equal(y, x * alpha)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_half_types_do_not_accumulate_onto_garbage(dtype: str) -> None:
    """A half beta of 0 never compared equal to 0, so that results were added to what the memory held."""
    x, w = small(1, 2, 6, 7, 5, dtype=dtype), small(2, 3, 6, 3, 3, dtype=dtype)
    wanted, one = f.conv(x, w, padding=1), numpy_dtype(dtype)
    for budget in (None, "1 KiB"):
        with ooc.device("cpu", budget, threads=2):
            out = np.full(wanted.shape, np.nan, one)
            np.testing.assert_array_equal(ooc.conv(x, w, padding=1, out=out, beta=0.0).astype(np.float64), wanted)
            np.testing.assert_array_equal(ooc.conv(x, w, padding=1, out=out, beta=1.0).astype(np.float64), 2 * wanted)


def test_groups() -> None:
    """There were none: every pass, cut along groups and along rows."""
    sizes = {"n": 2, "c": 6, "extent": (8, 5), "k": 9, "taps": (3, 2), "pad": ((1, 1), (0, 1)), "groups": 3}
    how = {"padding": ((1, 1), (0, 1)), "groups": 3}
    x, w, dy = small(1, 2, 6, 8, 5), small(2, 9, 2, 3, 2), small(3, 2, 9, 8, 5)
    split(ConvFprop(**sizes), {"x": x, "w": w}, {"y": f.conv(x, w, **how)}, g=1, p=3)
    split(ConvDgrad(**sizes), {"dy": dy, "w": w}, {"dx": f.conv_dx(dy, w, x.shape, **how)}, g=2, h=3)
    split(ConvWgrad(**sizes), {"x": x, "dy": dy}, {"dw": f.conv_dw(x, dy, w.shape, **how)}, g=1, p=3)


def test_strides_of_arrays_count() -> None:
    """Descriptors' strides were ignored: every other row and column of larger arrays, in and out."""
    rooms = [np.full((4, 6, 18, 14), 9, np.float32) for _ in range(2)]
    x, out = (room[::2, 1::2, ::-2, 1::2] for room in rooms)
    x[...] = small(1, *x.shape)
    w = small(2, 3, 3, 3, 3).transpose(1, 0, 3, 2)
    for budget in (None, "1 KiB"):
        with ooc.device("cpu", budget, threads=2):
            assert ooc.conv(x, w, padding=1, out=out) is out
        np.testing.assert_array_equal(out, f.conv(x, w, padding=1))
        out[...] = 9
        assert (rooms[1] == 9).all()


@pytest.mark.parametrize("columns", [1, 3])
def test_columns_can_be_split(columns: int) -> None:
    """Width was never split: forward, both gradients and pooling, under padding."""
    sizes = {"n": 1, "c": 2, "extent": (3, 19), "k": 3, "taps": (2, 3), "pad": ((1, 0), (2, 2)), "stride": (1, 2)}
    how = {"padding": ((1, 0), (2, 2)), "stride": (1, 2)}
    x, w, dy = small(1, 1, 2, 3, 19), small(2, 3, 2, 2, 3), small(3, 1, 3, 3, 11)
    split(ConvFprop(**sizes), {"x": x, "w": w}, {"y": f.conv(x, w, **how)}, q=columns)
    split(ConvDgrad(**sizes), {"dy": dy, "w": w}, {"dx": f.conv_dx(dy, w, x.shape, **how)}, w=columns)
    split(ConvWgrad(**sizes), {"x": x, "dy": dy}, {"dw": f.conv_dw(x, dy, w.shape, **how)}, q=columns)
    split(PoolForward("max", 1, 2, (3, 19), (2, 3), (1, 2)), {"x": x}, {"y": f.pool("max", x, (2, 3), stride=(1, 2))}, q=columns)

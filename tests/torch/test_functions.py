"""ooc.torch's functions: PyTorch's results, gradients by finite differences, and gradients of gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

import ooc  # noqa: E402
from ooc.errors import DtypeError, ShapeError, UnsupportedError  # noqa: E402

Shape = tuple[int, ...]
CONV = {"stride": 2, "padding": 1, "dilation": 1, "groups": 2}
UP = {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2, "dilation": 2}

# By name: the function, its tensors' shapes, its other arguments.
CASES: dict[str, tuple[str, tuple[Shape, ...], dict[str, Any]]] = {
    "conv1d": ("conv1d", ((2, 4, 9), (6, 2, 3), (6,)), CONV),
    "conv2d": ("conv2d", ((2, 4, 7, 6), (6, 2, 3, 2), (6,)), CONV),
    "conv2d, one image": ("conv2d", ((3, 5, 6), (2, 3, 3, 3)), {}),
    "conv2d, same": ("conv2d", ((1, 2, 5, 6), (2, 2, 4, 3)), {"padding": "same", "dilation": (1, 2)}),
    "conv2d, valid": ("conv2d", ((1, 2, 5, 6), (2, 2, 2, 3)), {"padding": "valid"}),
    "conv3d": ("conv3d", ((1, 2, 5, 4, 6), (4, 1, 2, 3, 3), (4,)), {"padding": (0, 1, 2), "groups": 2}),
    "conv_transpose1d": ("conv_transpose1d", ((2, 4, 5), (4, 3, 3), (6,)), UP),
    "conv_transpose2d": ("conv_transpose2d", ((1, 4, 3, 4), (4, 1, 3, 3), (2,)), UP),
    "conv_transpose3d": ("conv_transpose3d", ((1, 2, 3, 2, 3), (2, 2, 2, 2, 2)), {"stride": (2, 1, 2)}),
    "linear": ("linear", ((3, 4, 5), (2, 5), (2,)), {}),
    "max_pool1d": ("max_pool1d", ((1, 2, 9), ), {"kernel_size": 3, "stride": 2, "padding": 1}),
    "max_pool2d": ("max_pool2d", ((2, 2, 7, 6), ), {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}),
    "max_pool3d": ("max_pool3d", ((1, 2, 4, 5, 4), ), {"kernel_size": 2}),
    "avg_pool1d": ("avg_pool1d", ((1, 2, 9), ), {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False}),
    "avg_pool2d": ("avg_pool2d", ((2, 2, 7, 6), ), {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}),
    "avg_pool3d": ("avg_pool3d", ((1, 2, 4, 5, 4), ), {"kernel_size": 2}),
    "relu": ("relu", ((2, 3, 4, 5), ), {}),
    "relu6": ("relu6", ((2, 3, 4, 5), ), {}),
    "leaky_relu": ("leaky_relu", ((2, 3, 4), ), {"negative_slope": 0.2}),
    "elu": ("elu", ((2, 3, 4), ), {"alpha": 0.7}),
    "softmax": ("softmax", ((2, 3, 4), ), {"dim": -1}),
    "log_softmax": ("log_softmax", ((2, 3, 4), ), {"dim": 1}),
    "local_response_norm": ("local_response_norm", ((2, 6, 3, 3), ), {"size": 4, "alpha": 0.5, "k": 1.5}),
    "interpolate": ("interpolate", ((1, 2, 3, 4), ), {"scale_factor": 2}),
    "interpolate, bilinear": ("interpolate", ((1, 2, 3, 4), ), {"size": (5, 7), "mode": "bilinear"}),
    "interpolate, aligned": ("interpolate", ((1, 2, 4), ), {"size": 7, "mode": "linear", "align_corners": True}),
}  # fmt: skip
PLAIN = {"sigmoid": torch.sigmoid, "tanh": torch.tanh}


def drawn(shapes: tuple[Shape, ...], dtype: Any = torch.float64) -> list[Any]:
    torch.manual_seed(0)
    return [torch.randn(s, dtype=dtype, requires_grad=True) for s in shapes]


def functions(name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    return getattr(ooc.torch, name), getattr(F, name)


@pytest.mark.parametrize("case", CASES)
def test_results_and_gradients_are_pytorchs(case: str) -> None:
    name, shapes, how = CASES[case]
    ours, plain = functions(name)
    have, wanted = drawn(shapes), drawn(shapes)
    y, z = ours(*have, **how), plain(*wanted, **how)
    torch.testing.assert_close(y, z, rtol=1e-12, atol=1e-12)
    dy = torch.randn_like(z)
    y.backward(dy)
    z.backward(dy)
    for a, b in zip(have, wanted, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("case", CASES)
def test_gradcheck(case: str) -> None:
    name, shapes, how = CASES[case]
    ours, _ = functions(name)
    assert torch.autograd.gradcheck(lambda *t: ours(*t, **how), drawn(shapes))


@pytest.mark.parametrize("case", CASES)
def test_gradients_of_gradients(case: str) -> None:
    name, shapes, how = CASES[case]
    ours, _ = functions(name)
    assert torch.autograd.gradgradcheck(lambda *t: ours(*t, **how), drawn(shapes))


@pytest.mark.parametrize("case", [c for c in CASES if c != "conv2d, one image"])
def test_batches_of_none(case: str) -> None:
    """Empty results of the right shape, gradients of parameters that are zero, of any order."""
    name, shapes, how = CASES[case]
    ours, plain = functions(name)
    empty = ((0, *shapes[0][1:]), *shapes[1:])
    found = []
    for function in (ours, plain):
        tensors = drawn(empty)
        y = function(*tensors, **how)
        grads = torch.autograd.grad(y.sum(), tensors, create_graph=True)
        found.append((y, *grads))
    torch.testing.assert_close(*found)


def test_batches_of_none_elsewhere() -> None:
    x = torch.randn(0, 3, 4, 5, dtype=torch.float64)
    for name, plain in PLAIN.items():
        torch.testing.assert_close(getattr(ooc.torch, name)(x), plain(x))
    mean, var = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    torch.testing.assert_close(ooc.torch.batch_norm(x, mean, var), F.batch_norm(x, mean, var))
    wide, none = torch.randn(0, 3), torch.zeros(0, dtype=torch.int64)
    for reduction in ("mean", "sum"):
        have, wanted = (f(wide, none, reduction=reduction) for f in (ooc.torch.cross_entropy, F.cross_entropy))
        torch.testing.assert_close(have, wanted, equal_nan=True)


def test_arrays_of_none_are_refused() -> None:
    with pytest.raises(ShapeError, match="n must be at least 1"):
        ooc.conv(np.zeros((0, 3, 8, 8), np.float32), np.zeros((4, 3, 3, 3), np.float32))


@pytest.mark.parametrize("name", PLAIN)
def test_smooth_activations(name: str) -> None:
    (x,) = drawn(((2, 3, 4),))
    ours = getattr(ooc.torch, name)
    torch.testing.assert_close(ours(x), PLAIN[name](x))
    assert torch.autograd.gradcheck(ours, (x,))
    assert torch.autograd.gradgradcheck(ours, (x,))


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(training: bool) -> None:
    shapes: tuple[Shape, ...] = ((3, 4, 5, 2), (4,), (4,))
    found = []
    for function in (ooc.torch.batch_norm, F.batch_norm):
        mean, var = torch.full((4,), 0.3, dtype=torch.float64), torch.full((4,), 1.7, dtype=torch.float64)
        x, w, b = drawn(shapes)
        y = function(x, mean, var, w, b, training, 0.2, 1e-3)
        (y * torch.arange(y.numel()).reshape(y.shape)).sum().backward()
        found.append((y, x.grad, w.grad, b.grad, mean, var))
    for have, wanted in zip(*found, strict=True):
        torch.testing.assert_close(have, wanted)
    mean, var = torch.full((4,), 0.3, dtype=torch.float64), torch.full((4,), 1.7, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x, w, b: ooc.torch.batch_norm(x, mean, var, w, b, False), drawn(shapes))
    assert torch.autograd.gradgradcheck(lambda x, w, b: ooc.torch.batch_norm(x, None, None, w, b, True), drawn(shapes))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_cross_entropy(reduction: str) -> None:
    labels = torch.tensor([[0, 2], [-100, 1]])
    have, wanted = drawn(((2, 3, 2),))[0], drawn(((2, 3, 2),))[0]
    a, b = ooc.torch.cross_entropy(have, labels, reduction), F.cross_entropy(wanted, labels, reduction=reduction)
    torch.testing.assert_close(a, b)
    (2.5 * a).backward()
    (2.5 * b).backward()
    torch.testing.assert_close(have.grad, wanted.grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_tensors_keep_their_type(dtype: Any) -> None:
    x, w, b = drawn(((2, 4, 9, 8), (6, 4, 3, 3), (6,)), dtype)
    y = ooc.torch.conv2d(x, w, b, padding=1)
    assert y.dtype is dtype
    y.float().square().sum().backward()
    exact = [t.detach().double().requires_grad_() for t in (x, w, b)]
    F.conv2d(*exact, padding=1).square().sum().backward()
    width = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}[dtype]
    for have, wanted in zip((x, w, b), exact, strict=True):
        assert have.grad.dtype is dtype
        assert (have.grad.double() - wanted.grad).abs().max() <= width * wanted.grad.abs().max()


def test_a_small_budget_gives_the_same() -> None:
    x, w = drawn(((2, 8, 24, 24), (8, 8, 3, 3)), torch.float32)
    wanted = F.conv2d(x, w, padding=1)
    with ooc.device("cpu", "16 KiB"):
        y = ooc.torch.conv2d(x, w, padding=1)
        (dx,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(y, wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(dx, torch.autograd.grad(wanted.sum(), x)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda t: t.conv2d(torch.ones(1, 2, 4, 4), torch.ones(3, 3, 3, 3)), ShapeError),
        (lambda t: t.conv2d(torch.ones(4, 4), torch.ones(3, 3, 3, 3)), ShapeError),
        (lambda t: t.conv2d(torch.ones(1, 3, 4, 4), torch.ones(3, 3, 3)), ShapeError),
        (lambda t: t.conv2d(torch.ones(1, 3, 4, 4), torch.ones(3, 3, 3, 3), stride=2, padding="same"), ShapeError),
        (lambda t: t.conv2d(torch.ones(1, 3, 4, 4, device="meta"), torch.ones(3, 3, 3, 3)), UnsupportedError),
        (lambda t: t.conv2d(torch.ones(1, 3, 4, 4), torch.ones(3, 3, 3, 3, dtype=torch.float64)), DtypeError),
        (lambda t: t.conv_transpose2d(torch.ones(1, 3, 4, 4), torch.ones(2, 3, 3, 3)), ShapeError),
        (lambda t: t.max_pool2d(torch.ones(1, 3, 4, 4), 2, dilation=2), UnsupportedError),
        (lambda t: t.interpolate(torch.ones(1, 3, 5, 5), scale_factor=1.5), UnsupportedError),
        (lambda t: t.interpolate(torch.ones(1, 3, 5, 5), 7, mode="bicubic"), UnsupportedError),
    ],
)
def test_what_makes_no_sense_is_refused(call: Callable[[Any], Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        call(ooc.torch)

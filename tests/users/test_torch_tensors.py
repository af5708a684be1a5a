"""Tensors of PyTorch on the host: what goes in comes out, and what cannot go in is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ooc

torch = pytest.importorskip("torch")
F = torch.nn.functional


def numbers(*shape: int, dtype: Any = None) -> Any:
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(0)).to(dtype or torch.float32)


@pytest.mark.parametrize("budget", [None, "16 KiB"])
@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16"])
def test_tensors_come_back_as_tensors(name: str, budget: str | None) -> None:
    dtype = getattr(torch, name)
    x, w, b = numbers(2, 4, 12, 9, dtype=dtype), numbers(6, 4, 3, 3, dtype=dtype), numbers(6, dtype=dtype)
    with ooc.device("cpu", budget=budget):
        y = ooc.conv(x, w, b, padding=1)
        assert isinstance(y, torch.Tensor) and y.dtype is dtype
        assert torch.equal(y, F.conv2d(x.double(), w.double(), b.double(), padding=1).to(dtype))
        g = ooc.conv_backward(x, w, y, padding=1)
        assert all(isinstance(a, torch.Tensor) for a in g)
        assert g.dx.dtype is g.dw.dtype is dtype and g.dw.shape == w.shape
        rows = ooc.linear(x.reshape(8, 108), numbers(5, 108, dtype=dtype))
        assert isinstance(rows, torch.Tensor) and rows.shape == (8, 5)
        for made in (
            ooc.softmax(x),
            ooc.max_pool(x, 2),
            ooc.add(x, x),
            ooc.concat([x, x]),
            ooc.chain(x, ooc.Conv(w), ooc.Pool()),
        ):
            assert isinstance(made, torch.Tensor) and made.dtype is dtype


def test_views_and_outputs_of_any_strides() -> None:
    x = numbers(2, 9, 12, 4).permute(0, 3, 2, 1)[:, :, ::2]
    w = numbers(6, 4, 3, 3)
    out = torch.full((2, 6, 6, 9), 7.0).transpose(2, 3).contiguous().transpose(2, 3)
    assert ooc.conv(x, w, padding=1, out=out) is out
    assert torch.equal(out, F.conv2d(x, w, padding=1))
    assert type(ooc.conv(x.numpy(), w, padding=1)) is np.ndarray


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("want", [("dx", "dw", "db"), ("dx",), ("dw", "db"), ("db",)])
def test_gradients_lie_beside_x(want: tuple[str, ...], padding: int) -> None:
    """Whatever else is a tensor, and however the gradients are computed; beside dy where x is not read."""
    x, w = numbers(1, 2, 6, 6), numbers(3, 2, 3, 3)
    dy = F.conv2d(x, w, padding=padding)
    read = "dw" in want
    for here, there in ((x, dy.numpy()), (x.numpy(), dy)):
        for filters in (w, w.numpy()):
            g = ooc.conv_backward(here, filters, there, padding=padding, want=want)
            beside = here if read else there
            assert all(type(made) is type(beside) for made in g if made is not None)
            _, layers = ooc.chain_backward(here, there, ooc.Conv(filters, padding=padding), want=("dw",))
            assert type(layers[0].dw) is type(here)


def test_lazy_negation_and_integers() -> None:
    x = torch.complex(numbers(1, 2, 6, 6), numbers(1, 2, 6, 6)).conj().imag
    assert x.is_neg()
    w = numbers(3, 2, 3, 3)
    assert torch.equal(ooc.conv(x, w), F.conv2d(x.resolve_neg(), w))


REFUSED = {
    "requires a gradient": (lambda x: x.requires_grad_(), ooc.UnsupportedError, r"x: requires a gradient.*detach\(\)"),
    "meta": (lambda x: x.to("meta"), ooc.UnsupportedError, "x: a tensor on device 'meta'"),
    "sparse": (lambda x: x.to_sparse(), ooc.DtypeError, r"x: a tensor of layout torch.sparse_coo.*to_dense\(\)"),
    "complex": (lambda x: x.to(torch.complex64), ooc.DtypeError, "complex64"),
    "int64": (lambda x: x.to(torch.int64), ooc.DtypeError, "int64"),
    "quantized": (lambda x: torch.quantize_per_tensor(x, 1.0, 0, torch.quint8), ooc.DtypeError, "x: a tensor of .*dequantize"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_go_in_is_told(name: str) -> None:
    change, kind, message = REFUSED[name]
    x, w = change(numbers(1, 2, 6, 6)), numbers(3, 2, 3, 3)
    with pytest.raises(kind, match=message) as caught:
        ooc.conv(x, w)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_gradients_may_be_off() -> None:
    x, w = numbers(1, 2, 6, 6), numbers(3, 2, 3, 3).requires_grad_()
    with torch.no_grad():
        assert torch.equal(ooc.conv(x, w), F.conv2d(x, w))
    with pytest.raises(ooc.UnsupportedError, match="w: requires a gradient"):
        ooc.conv(x, w)

"""Networks with attention under a budget that holds no matrix of scores, beside PyTorch in memory: a line of JSON for each.

python examples/real/attention.py [NAME ...] [--json FILE] [--alone]     (needs PyTorch, timm and monai)

Values are compared everywhere where PyTorch holds the network, or computes it in bands; else at corners, on edges and in the
centre, where a value depends on what is near alone; a layer also with rows in float64. `ratio` is ooc's time over PyTorch's,
`grown` what the process took beside its input; --alone leaves PyTorch out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from running import commit, machine, resident
from torch import nn
from torch.nn.functional import normalize, scaled_dot_product_attention, silu

import ooc

WIDTH, HEADS = 768, 12
MIB = 1 << 20
ROUNDS, SHORT = 7, 20.0  # how often what takes no more seconds is measured


class Layer(nn.Module):
    """Attention of 12 heads over rows of 768 values."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        n, tokens, _ = x.shape
        q, k, v = self.qkv(x).reshape(n, tokens, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        return self.out(scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, tokens, WIDTH))


class Residual(nn.Module):
    """Two convolutions behind group norms, as in Stable Diffusion's autoencoder."""

    def __init__(self, c: int, k: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(32, c, eps=1e-6), nn.GroupNorm(32, k, eps=1e-6)])
        self.convs = nn.ModuleList([nn.Conv2d(c, k, 3, padding=1), nn.Conv2d(k, k, 3, padding=1)])
        self.beside = nn.Conv2d(c, k, 1) if c != k else nn.Identity()

    def forward(self, x: Any) -> Any:
        y = x
        for norm, conv in zip(self.norms, self.convs, strict=True):
            y = conv(silu(norm(y)))
        return self.beside(x) + y


class Positions(nn.Module):
    """One head over all positions of a picture."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.norm, self.out = nn.GroupNorm(32, c, eps=1e-6), nn.Linear(c, c)
        self.q, self.k, self.v = nn.Linear(c, c), nn.Linear(c, c), nn.Linear(c, c)

    def forward(self, x: Any) -> Any:
        n, c, h, w = x.shape
        rows = self.norm(x).reshape(n, c, h * w).transpose(1, 2)
        y = scaled_dot_product_attention(self.q(rows)[:, None], self.k(rows)[:, None], self.v(rows)[:, None])[:, 0]
        return x + self.out(y).transpose(1, 2).reshape(n, c, h, w)


class Decoder(nn.Module):
    """Of the shape of Stable Diffusion's autoencoder (Rombach et al., CVPR 2022): 8 times as wide and high."""

    def __init__(self, widths: tuple[int, ...] = (512, 512, 256, 128)) -> None:
        super().__init__()
        top = widths[0]
        layers: list[nn.Module] = [nn.Conv2d(4, top, 3, padding=1), Residual(top, top), Positions(top), Residual(top, top)]
        for i, (c, k) in enumerate(zip((top, *widths), widths, strict=False)):
            layers += [Residual(c, k), Residual(k, k), Residual(k, k)]
            if i < len(widths) - 1:
                layers += [nn.Upsample(scale_factor=2), nn.Conv2d(k, k, 3, padding=1)]
        layers += [nn.GroupNorm(32, widths[-1], eps=1e-6), nn.SiLU(), nn.Conv2d(widths[-1], 3, 3, padding=1)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        return self.layers(x)


class ChannelNorm(nn.Module):
    """Layer norm over the channels of each position."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(c, 1, 1)), nn.Parameter(torch.zeros(c, 1, 1))

    def forward(self, x: Any) -> Any:
        apart = x - x.mean(1, keepdim=True)
        return apart * torch.rsqrt((apart * apart).mean(1, keepdim=True) + 1e-5) * self.scale + self.shift


class Transposed(nn.Module):
    """A block of Restormer (Zamir et al., CVPR 2022): attention among channels, and a gated network."""

    def __init__(self, c: int, heads: int) -> None:
        super().__init__()
        self.heads, wide = heads, 2 * c
        self.temperature = nn.Parameter(torch.ones(heads, 1, 1))
        self.norms = nn.ModuleList([ChannelNorm(c), ChannelNorm(c)])
        self.qkv = nn.Sequential(nn.Conv2d(c, 3 * c, 1), nn.Conv2d(3 * c, 3 * c, 3, padding=1, groups=3 * c))
        self.gates = nn.Sequential(nn.Conv2d(c, 2 * wide, 1), nn.Conv2d(2 * wide, 2 * wide, 3, padding=1, groups=2 * wide))
        self.outs = nn.ModuleList([nn.Conv2d(c, c, 1), nn.Conv2d(wide, c, 1)])

    def forward(self, x: Any) -> Any:
        n, c, h, w = x.shape
        q, k, v = (t.reshape(n, self.heads, c // self.heads, h * w) for t in self.qkv(self.norms[0](x)).chunk(3, 1))
        scores = normalize(q, dim=-1) @ normalize(k, dim=-1).transpose(-2, -1) * self.temperature
        x = x + self.outs[0]((scores.softmax(-1) @ v).reshape(n, c, h, w))
        return self.gated(x)

    def gated(self, x: Any) -> Any:
        """The gated network alone."""
        one, other = self.gates(self.norms[1](x)).chunk(2, 1)
        return x + self.outs[1](nn.functional.gelu(one) * other)

    def of_heads(self, x: Any) -> Any:
        """q, k and v of a band, as channels x positions of each head."""
        n, c = x.shape[:2]
        return [t.reshape(n, self.heads, c // self.heads, *t.shape[2:]) for t in self.qkv(self.norms[0](x)).chunk(3, 1)]

    def in_bands(self, x: Any) -> Any:
        """The same with sums over bands, which takes less memory."""
        sums: list[Any] = [0.0, 0.0, 0.0]
        for band, inner in bands(x):
            q, k, _ = (t[..., inner, :].flatten(3) for t in self.of_heads(band))
            parts = q @ k.transpose(-2, -1), q.square().sum(-1), k.square().sum(-1)
            sums = [total + part.double() for total, part in zip(sums, parts, strict=True)]
        lengths = sums[1].sqrt()[..., None] * sums[2].sqrt()[..., None, :]
        weights = (sums[0] / lengths * self.temperature).softmax(-1).float()

        def attended(band: Any) -> Any:
            v = self.of_heads(band)[2]
            return band + self.outs[0]((weights @ v.flatten(3)).reshape(band.shape))

        return banded(self.gated, banded(attended, x))


def bands(x: Any, rows: int = 432) -> Any:
    """Rows of a picture with one more on each side, and which of them are no more than these."""
    for first in range(0, x.shape[2], rows):
        before = min(first, 1)
        yield x[:, :, first - before : first + rows + 1], slice(before, before + min(rows, x.shape[2] - first))


def banded(layer: Callable[[Any], Any], x: Any) -> Any:
    """What a layer that looks one row far makes of a picture."""
    return torch.cat([layer(band)[:, :, inner] for band, inner in bands(x)], 2)


class Restormer(nn.Module):
    """A light one: two scales, 16 and 32 channels."""

    def __init__(self, c: int = 16) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, c, 3, padding=1), nn.Conv2d(c, 3, 3, padding=1)
        self.fine = nn.ModuleList([Transposed(c, 1), Transposed(c, 1)])
        self.coarse = nn.Sequential(Transposed(2 * c, 2), Transposed(2 * c, 2))
        self.down = nn.Sequential(nn.Conv2d(c, c // 2, 3, padding=1), nn.PixelUnshuffle(2))
        self.up, self.join = nn.Sequential(nn.Conv2d(2 * c, 4 * c, 3, padding=1), nn.PixelShuffle(2)), nn.Conv2d(2 * c, c, 1)

    def forward(self, x: Any) -> Any:
        fine = self.fine[0](self.first(x))
        coarse = self.up(self.coarse(self.down(fine)))
        return x + self.last(self.fine[1](self.join(torch.cat([coarse, fine], 1))))

    def in_bands(self, x: Any) -> Any:
        """The same in less memory."""
        fine = self.fine[0].in_bands(banded(self.first, x))
        coarse = self.down[1](banded(self.down[0], fine))
        for block in self.coarse:
            coarse = block.in_bands(coarse)
        coarse = self.up[1](banded(self.up[0], coarse))
        joined = self.join(torch.cat([coarse, fine], 1))
        return x + banded(self.last, self.fine[1].in_bands(joined))


class Windows(nn.Module):
    """Blocks of Swin with windows of 8 x 8, every second one shifted, and a convolution behind them."""

    def __init__(self, c: int, heads: int, depth: int) -> None:
        from torchvision.models.swin_transformer import SwinTransformerBlock

        super().__init__()
        blocks = (SwinTransformerBlock(c, heads, [8, 8], [4 * (i % 2)] * 2, mlp_ratio=2.0) for i in range(depth))
        self.blocks, self.conv = nn.Sequential(*blocks), nn.Conv2d(c, c, 3, padding=1)

    def forward(self, x: Any) -> Any:
        return x + self.conv(self.blocks(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))


class SwinIR(nn.Module):
    """Twice as wide and high (Liang et al., ICCV workshops 2021); a light one: 24 channels, twice two blocks."""

    def __init__(self, c: int = 24, heads: int = 3, depths: tuple[int, ...] = (2, 2)) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, c, 3, padding=1), nn.LayerNorm(c)
        self.groups = nn.Sequential(*(Windows(c, heads, depth) for depth in depths))
        self.body = nn.Conv2d(c, c, 3, padding=1)
        self.last = nn.Sequential(nn.Conv2d(c, 12, 3, padding=1), nn.PixelShuffle(2))

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        deep = self.norm(self.groups(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.last(x + self.body(deep))


def vit(side: int) -> Any:
    """Four layers of a ViT-B over patches of 16 x 16."""
    import timm

    return timm.models.vision_transformer.VisionTransformer(
        img_size=side, patch_size=16, embed_dim=WIDTH, depth=4, num_heads=HEADS, num_classes=0, class_token=False, global_pool=""
    )


def unetr(side: int) -> Any:
    """Of a volume, a side of so many voxels."""
    from monai.networks.nets import UNETR

    return UNETR(in_channels=1, out_channels=2, img_size=(side,) * 3, feature_size=16)


class Case(NamedTuple):
    """What is measured.

    Fields:
        make: the network.
        shape: of its input.
        budget: bytes.
        fits: whether PyTorch in memory takes less than the machine has.
        near: pixels around it that a value depends on, a multiple of all windows; 0: on everything.
    """

    make: Callable[[], Any]
    shape: tuple[int, ...]
    budget: int
    fits: bool = True
    near: int = 0


CASES = {
    "layer_4096": Case(Layer, (1, 4096, WIDTH), 256 * MIB),
    "vit_4096": Case(lambda: vit(1024), (1, 3, 1024, 1024), 256 * MIB),
    "layer_65536": Case(Layer, (1, 65536, WIDTH), 256 * MIB),
    "unetr_256": Case(lambda: unetr(256), (1, 1, 256, 256, 256), 1024 * MIB),
    "swinir_20mp": Case(SwinIR, (1, 3, 3888, 5184), 1024 * MIB, fits=False, near=64),
    "restormer_20mp": Case(Restormer, (1, 3, 3888, 5184), 1024 * MIB, fits=False),
    "vae_2048": Case(Decoder, (1, 4, 256, 256), 1024 * MIB),
    "vit_65536": Case(lambda: vit(4096), (1, 3, 4096, 4096), 256 * MIB),
}


def rows_in_f64(module: Any, x: Any, y: Any) -> float:
    """The largest difference of three rows of a layer from their values in float64."""
    double = module.double()
    with torch.no_grad():
        q, k, v = double.qkv(x[0].double()).reshape(-1, 3, HEADS, WIDTH // HEADS).permute(1, 2, 0, 3)
        picked = [0, x.shape[1] // 2, x.shape[1] - 1]
        weights = (q[:, picked] @ k.transpose(1, 2) / (WIDTH // HEADS) ** 0.5).softmax(-1)
        exact = double.out((weights @ v).transpose(0, 1).reshape(len(picked), WIDTH)).numpy()
    module.float()
    return float(np.abs(y[0, picked] - exact).max() / np.abs(exact).max())


def in_windows(module: Any, x: Any, y: Any, near: int) -> float:
    """The largest difference of windows at corners, on edges and in the centre from PyTorch's results there."""
    scale, worst = y.shape[-1] // x.shape[-1], 0.0
    spots = [sorted({0, (e // 2 - near) // near * near, e - near}) for e in x.shape[2:]]
    for corner in itertools.product(*spots):
        around = [slice(max(0, a - near), a + 2 * near) for a in corner]
        with torch.no_grad():
            z = module(x[..., *around]).numpy()
        inner = [slice((a - s.start) * scale, (a - s.start + near) * scale) for a, s in zip(corner, around, strict=True)]
        mine = y[..., *(slice(a * scale, (a + near) * scale) for a in corner)]
        worst = max(worst, float(np.abs(mine - z[..., *inner]).max() / np.abs(z).max()))
    return worst


def measured(name: str, alone: bool) -> dict[str, Any]:
    """A line of results."""
    make, shape, budget, fits, near = CASES[name]
    torch.manual_seed(0)
    module, x = make().eval(), torch.randn(shape)
    begin = time.perf_counter()
    plan = ooc.torch.graph(module, shape).plan(batch=1, train=False, device="cpu", budget=budget)
    planned = time.perf_counter() - begin
    held, seconds, theirs = resident(), list[float](), list[float]()
    with plan.session() as session, torch.no_grad():
        while not seconds or (len(seconds) < ROUNDS and seconds[0] < SHORT):  # in turn: the machine is others', too
            begin = time.perf_counter()
            y = session.forward(x.numpy())
            seconds.append(time.perf_counter() - begin)
            if len(seconds) == 1:
                grown = resident() - held
            if fits and not alone:
                begin = time.perf_counter()
                try:
                    z = module(x).numpy()
                except RuntimeError as error:  # no memory, where `ulimit -d` says how much there is
                    print(f"{name}: PyTorch: {error}".split("\n")[0], file=sys.stderr)
                    fits = False
                else:
                    theirs.append(time.perf_counter() - begin)
    row: dict[str, Any] = {
        "what": name, "budget": budget, "peak": plan.peaks["device"], "peaks": plan.peaks, "planned": planned,
        "seconds": median(seconds), "predicted": plan.predicted_seconds, "grown": grown, "rounds": len(seconds),
    }  # fmt: skip
    if isinstance(module, Layer):
        row["from_f64"] = rows_in_f64(module, x, y)
    if theirs:
        row["torch"], row["ratio"] = median(theirs), median(seconds) / median(theirs)
        row["from_torch"] = float(np.abs(y - z).max() / np.abs(z).max())
    elif near:
        row["from_torch"] = in_windows(module, x, y, near)
    elif not alone and hasattr(module, "in_bands"):
        with torch.no_grad():
            z = module.in_bands(x).numpy()
        row["from_torch"] = float(np.abs(y - z).max() / np.abs(z).max())
    return row


def main(arguments: list[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CASES)}; default: all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where lines of results are added")
    parser.add_argument("--alone", action="store_true", help="without PyTorch's run")
    chosen = parser.parse_args(arguments)
    if unknown := set(chosen.names) - set(CASES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(CASES)}")
    warnings.simplefilter("ignore")
    for name in chosen.names or CASES:
        row = {**measured(name, chosen.alone), "commit": commit(), "machine": machine()}
        print(json.dumps(row), flush=True)
        if chosen.json:
            with chosen.json.open("a") as file:
                file.write(json.dumps(row) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

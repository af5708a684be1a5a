"""`ooc.diffusers.enable_exact_tiling`: an autoencoder of Stable Diffusion's shape, in tiles and without seams."""

from __future__ import annotations

import types
from typing import Any

import pytest

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")

import ooc  # noqa: E402
import ooc.diffusers  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


def autoencoder() -> Any:
    torch.manual_seed(0)
    return diffusers.AutoencoderKL(
        block_out_channels=(32, 64), down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4, layers_per_block=1, norm_num_groups=8, sample_size=32,
    ).eval()  # fmt: skip


@torch.no_grad()
def test_both_ways() -> None:
    vae, latents, picture = autoencoder(), torch.randn(1, 4, 40, 48), torch.randn(1, 3, 80, 96)
    decoded, encoded = vae.decode(latents).sample, vae.encode(picture).latent_dist.mean
    vae.enable_tiling()
    assert (vae.decode(latents).sample - decoded).abs().max() > 0.05, "tiles that are blended would have done"
    assert ooc.diffusers.enable_exact_tiling(vae, budget="8 MiB") is vae and not vae.use_tiling
    torch.testing.assert_close(vae.decode(latents).sample, decoded, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(vae.encode(picture).latent_dist.mean, encoded, rtol=1e-4, atol=1e-4)
    assert ooc.diffusers.disable_exact_tiling(vae) is vae
    assert all("forward" not in m.__dict__ for m in vae.modules()) and torch.equal(vae.decode(latents).sample, decoded)


@torch.no_grad()
def test_a_pipeline() -> None:
    vae, latents = autoencoder(), torch.randn(1, 4, 16, 16)
    expected = vae.decode(latents).sample
    assert ooc.diffusers.enable_exact_tiling(types.SimpleNamespace(vae=vae), "8 MiB", "cpu") is vae
    torch.testing.assert_close(vae.decode(latents).sample, expected, rtol=1e-4, atol=1e-4)


def test_what_is_refused() -> None:
    for wrong in (torch.nn.Conv2d(1, 1, 1), None, "vae", types.SimpleNamespace(vae=None)):
        with pytest.raises(ooc.OptionError, match="vae: expected an autoencoder"):
            ooc.diffusers.enable_exact_tiling(wrong)
    with pytest.raises(ooc.ArgumentError, match="budget='8 GX'"):
        ooc.diffusers.enable_exact_tiling(autoencoder(), budget="8 GX")
    vae = ooc.diffusers.enable_exact_tiling(autoencoder(), budget=100)
    with torch.no_grad(), pytest.raises(ooc.BudgetError):
        vae.decode(torch.randn(1, 4, 16, 16))

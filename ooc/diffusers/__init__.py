"""ooc for diffusers: the autoencoder of an image or video model on large pictures, exactly, under a memory budget."""

from __future__ import annotations

from typing import Any

from ooc.errors import OptionError

try:
    import torch
except ImportError as error:
    raise ImportError('ooc.diffusers: needs PyTorch and diffusers; pip install "ooc[diffusers]"', name=error.name) from None

from ooc.runtime.device import Device
from ooc.torch import convert_model, revert_model

__all__ = ["disable_exact_tiling", "enable_exact_tiling"]

PARTS = ("encoder", "decoder", "quant_conv", "post_quant_conv")  # of an autoencoder, those that it has


def enable_exact_tiling(
    vae: torch.nn.Module, budget: int | float | str | None = None, device: Device | str | None = None
) -> torch.nn.Module:
    """Let `vae.encode` and `vae.decode` run in tiles that make the result of the whole picture: no blending, no seams.

    It stands where `vae.enable_tiling()` does, which blends tiles that were computed each for itself; that is turned off.

    Parameters:
        vae: an autoencoder of diffusers (`AutoencoderKL` and its relatives), or a pipeline that has one as `.vae`.
        budget: of the device's memory, as `ooc.device` takes it ("4 GiB"), of the encoder and of the decoder each; latents and
            pictures are beside it. Default None: the device's.
        device: an `ooc.Device` or a name that `ooc.device` takes; default None: the current one.

    Returns:
        vae: the autoencoder, which is changed in place.

    Raises:
        OptionError: an object that has neither an encoder nor a decoder. ArgumentError: a budget that is none.
        BudgetError: no plan fits, in the first call of a size.

    Example:
        >>> ooc.diffusers.enable_exact_tiling(pipeline.vae, budget="4 GiB")
        >>> picture = pipeline.vae.decode(latents).sample
    """
    vae = _autoencoder(vae)
    for name in ("disable_tiling", "disable_slicing"):
        getattr(vae, name, lambda: None)()
    for part in _parts(vae):
        convert_model(part, budget, device=device)
    return vae


def disable_exact_tiling(vae: torch.nn.Module) -> torch.nn.Module:
    """Let an autoencoder run as diffusers has it again, without tiling and slicing; returns it. Raises OptionError for an object
    that is none."""
    vae = _autoencoder(vae)
    for part in _parts(vae):
        revert_model(part)
    return vae


def _autoencoder(vae: Any) -> torch.nn.Module:
    """The autoencoder that was passed, or that of a pipeline."""
    inside = vae if isinstance(vae, torch.nn.Module) else getattr(vae, "vae", None)
    if not isinstance(inside, torch.nn.Module) or not any(_parts(inside)):
        raise OptionError(f"vae: expected an autoencoder with an encoder or a decoder, got a {type(vae).__name__}")
    return inside


def _parts(vae: torch.nn.Module) -> list[torch.nn.Module]:
    parts = (getattr(vae, name, None) for name in PARTS)
    return [part for part in parts if isinstance(part, torch.nn.Module)]

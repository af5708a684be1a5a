"""Networks of MONAI, nnU-Net and diffusers by ooc's hooks: beside the whole network, and the package's own windows or tiles.

`python examples/real/hooks.py [--side 256] [--budget "2 GiB"]`: random weights, one line of JSON for each network. Each is run in
a process of its own, whose memory is measured: what the hook takes beside the volume and the result.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

import ooc

WINDOW = 96


def networks() -> dict[str, Callable[[], Any]]:
    """MONAI's, as its examples build them."""
    from monai.networks.nets import DynUNet, SegResNet, UNet

    return {
        "UNet": lambda: UNet(3, 1, 2, (8, 16, 32), (2, 2), num_res_units=1, norm="instance"),
        "SegResNet": lambda: SegResNet(3, 8, 1, 2),
        "DynUNet": lambda: DynUNet(3, 1, 2, [3, 3, 3], [1, 2, 2], [2, 2], filters=[8, 16, 32]),
    }


def resident() -> int:
    """Bytes that this process had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def volume(name: str, side: int, budget: str) -> dict[str, Any]:
    """One of MONAI's networks on a cube."""
    from monai.inferers import SlidingWindowInferer

    import ooc.monai

    torch.manual_seed(0)
    network, x = networks()[name]().eval(), torch.randn(1, 1, side, side, side)
    with torch.no_grad():
        inferer = ooc.monai.WholeVolumeInferer(budget)
        inferer(x[..., :32, :32, :32], network)  # imports, and whatever is made once
        before, begin = resident(), time.perf_counter()
        y = inferer(x, network)
        seconds, peak = time.perf_counter() - begin, resident() - before - y.nbytes
        whole = network(x)
        windows = SlidingWindowInferer(min(WINDOW, side // 2), 1, overlap=0.25)(x, network)
    return row(y, whole, windows, seconds) | {"peak_bytes": peak}


def picture(name: str, side: int, budget: str) -> dict[str, Any]:
    """The decoder of Stable Diffusion's shape, with fewer channels, on latents that make a picture four times as large."""
    from diffusers import AutoencoderKL

    import ooc.diffusers

    torch.manual_seed(0)
    vae = AutoencoderKL(
        block_out_channels=(32, 64, 128, 128), down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4, latent_channels=4, layers_per_block=2, norm_num_groups=32, sample_size=256,
    ).eval()  # fmt: skip
    latents = torch.randn(1, 4, side // 2, side // 2)
    with torch.no_grad():
        ooc.diffusers.enable_exact_tiling(vae, budget)
        vae.decode(latents[..., :16, :16])
        before, begin = resident(), time.perf_counter()
        y = vae.decode(latents).sample
        seconds, peak = time.perf_counter() - begin, resident() - before - y.nbytes
        ooc.diffusers.disable_exact_tiling(vae)
        whole = vae.decode(latents).sample
        vae.enable_tiling()
        tiles = vae.decode(latents).sample
    return row(y, whole, tiles, seconds) | {"peak_bytes": peak}


def row(y: Any, whole: Any, windows: Any, seconds: float) -> dict[str, Any]:
    """How far from the whole both are, as shares of its largest value."""
    scale = float(whole.abs().max())
    return {
        "shape": list(y.shape), "difference": float((y - whole).abs().max()) / scale,
        "own_windows": float((windows - whole).abs().max()) / scale, "seconds": seconds,
    }  # fmt: skip


def measured(make: Callable[..., dict[str, Any]], name: str, side: int, budget: str) -> None:
    """Print a row."""
    warnings.simplefilter("ignore")
    print(json.dumps({"network": name, "budget": budget, "ooc": ooc.__version__} | make(name, side, budget)), flush=True)


def main() -> None:
    """All of them, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=256)
    parser.add_argument("--budget", default="1 GiB")
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    jobs = [(volume, name) for name in networks()] + [(picture, "AutoencoderKL")]
    spawning = multiprocessing.get_context("spawn")
    for make, name in jobs:
        if args.only in name:
            process = spawning.Process(target=measured, args=(make, name, args.side, args.budget))
            process.start()
            process.join()


if __name__ == "__main__":
    main()

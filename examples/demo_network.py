"""How the network of `ooc demo` was trained: by ooc, on pictures that scikit-image ships, each enlarged too.

`python examples/demo_network.py FOLDER [--steps 4000]` writes FOLDER/network.npz; it needs scikit-image and Pillow.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import ooc
from ooc.cli.demo.denoise import DILATIONS, NOISE

PICTURES = (
    "astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "hubble_deep_field.jpg", "camera.png", "brick.png", "grass.png",
    "gravel.png", "moon.png", "coins.png",
)  # fmt: skip
SIDE, PATCH, CHANNELS = 1024, 64, 32
ENLARGED = (1, 2, 4)  # so that smooth pictures are known, too


def pairs(folder: Path) -> None:
    """Write pictures with noise and without."""
    import skimage.data

    source, rng = Path(skimage.data.__file__).parent, np.random.default_rng(7)
    for name in PICTURES:
        picture = Image.open(source / name).convert("RGB")
        for factor in ENLARGED:
            size = (picture.width * factor, picture.height * factor)
            enlarged = np.asarray(picture.resize(size, Image.Resampling.BICUBIC))
            top, left = (max(0, e - SIDE) // 2 for e in enlarged.shape[:2])
            clean = np.moveaxis(enlarged[top : top + SIDE, left : left + SIDE], 2, 0).astype(np.float32) / 255
            noise = rng.standard_normal(clean.shape, np.float32) * np.float32(NOISE)
            np.save(folder / f"x-{name}-{factor}.npy", clean + noise)
            np.save(folder / f"y-{name}-{factor}.npy", np.ascontiguousarray(clean))


def network() -> ooc.Graph:
    """As `ooc.cli.demo.denoise` has it, on a patch."""
    graph = ooc.Graph("denoiser")
    x = h = graph.input("noisy", (3, PATCH, PATCH))
    for i, dilation in enumerate(DILATIONS):
        last = i + 1 == len(DILATIONS)
        k, act = (3, "identity") if last else (CHANNELS, "relu")
        h = graph.conv(h, k, 3, padding=dilation, dilation=dilation, bias=True, activation=act, name=f"layer{i}")
    graph.output(graph.add(x, h))
    return graph


def main() -> None:
    """Do what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=4000)
    args = parser.parse_args()
    args.folder.mkdir(exist_ok=True)
    pairs(args.folder)
    graph = network()
    config: dict[str, Any] = {
        "loss": [{"kind": "mse"}],
        "optimizer": {"kind": "adam", "lr": 0.002, "schedule": {"kind": "cosine", "warmup": 50}},
        "data": {"images": str(args.folder / "x-*.npy"), "labels": str(args.folder / "y-*.npy"), "axes": "cyx",
                 "label_axes": "cyx", "batch": 8, "flips": "yx"},
        "run": {"folder": str(args.folder / "run"), "steps": args.steps, "device": "cpu", "every": 500},
    }  # fmt: skip
    trained = ooc.train(config, graph=graph, callback=lambda row: print(row, flush=True))
    with np.load(trained.folder / "last.ooc") as file:
        np.savez_compressed(args.folder / "network.npz", **{n: file[n].astype(np.float16) for n in graph.parameters})


if __name__ == "__main__":
    main()

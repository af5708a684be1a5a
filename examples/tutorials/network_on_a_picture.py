# %% [markdown]
# # A trained network on a picture
#
# You will run a network in an ONNX file on a whole picture, from file to file, under a budget that the network does not fit,
# and see what it would have given in separate windows.
#
# It needs `pip install ".[onnx,images]"`.

# %%
import subprocess
import sys

import numpy as np

import ooc

# %% [markdown]
# ## A picture and a network
#
# Any picture and any ONNX file will do; here both are made, so that nothing is downloaded. The picture has 1536 x 1024
# pixels. The network finds edges: six layers smooth the picture step by step, 16 filters take its slopes in as many directions,
# and the root of their squares is the result. So a result sees 15 pixels along each axis.

# %%
height, width = 1024, 1536
rows, columns = np.mgrid[:height, :width].astype(np.float32)
rng = np.random.default_rng(4)
picture = 128 + 30 * np.sin(rows / 90) + 30 * np.cos(columns / 130)
for _ in range(40):
    row, column, radius = rng.integers(0, height), rng.integers(0, width), rng.integers(20, 140)
    picture[(rows - row) ** 2 + (columns - column) ** 2 < radius**2] += rng.integers(-50, 50)
picture = np.clip(picture + rng.normal(0, 12, picture.shape), 0, 255).astype(np.uint8)
with ooc.create("picture.png", picture.shape, "u1") as file:
    file.write(((0, height), (0, width)), picture)

smooth = np.array([1, 2, 1], np.float32)
smooth = np.outer(smooth, smooth) / 16
slope = np.outer([1, 2, 1], [-1, 0, 1]).astype(np.float32) / 8
angles = np.arange(16, dtype=np.float32).reshape(16, 1, 1) * np.pi / 8
weights = {f"smooth{i}.w": smooth[None, None] for i in range(6)}
weights["slopes.w"] = (np.cos(angles) * slope + np.sin(angles) * slope.T)[:, None]
weights["sum.w"] = np.full((1, 16, 1, 1), 1 / 8, np.float32)


def edges(rows: int, columns: int) -> ooc.Graph:
    """The network for pictures of a size."""
    g = ooc.Graph("edges")
    h = g.input("x", (1, rows, columns))
    for i in range(6):
        h = g.conv(h, 1, 3, padding=1, name=f"smooth{i}")
    h = g.conv(h, 16, 3, padding=1, name="slopes")
    g.output(g.function(g.conv(g.multiply(h, h), 1, 1, name="sum"), "sqrt", name="y"))
    g.begin_with(weights)
    return g


edges(height, width).to_onnx("edges.onnx")

# %% [markdown]
# ![The picture](picture.png)
#
# ## What would it take?
#
# The 16 slopes of all pixels are 96 MiB, and so are their squares. `--plan` answers from the shapes alone and computes nothing:
#
# ```sh
# ooc apply edges.onnx --input picture.png --budget 32MiB --plan
# ```


# %%
def run(*words: str) -> None:
    """An `ooc` command, and what it says."""
    print(subprocess.run([sys.executable, "-m", "ooc", *words], check=True, capture_output=True, text=True).stdout)


run("apply", "edges.onnx", "--input", "picture.png", "--budget", "32MiB", "--plan")

# %% [markdown]
# A PNG is decoded as a whole, which takes 18 MiB of the budget here; TIFF, Zarr and .npy are read by region.
#
# The line `tensors` says how far a result sees, `memory` what the plan holds of the device and the smallest budget that has a
# plan, `predicted` the seconds.
#
# ## From file to file
#
# Steps before and after the network are part of the command: numbers are divided by 255 on the way in, and made visible on the
# way out.
#
# ```sh
# ooc apply edges.onnx --input picture.png --output edges.png --budget 32MiB --pre "/ 255" --post "scale 4000, cast uint8"
# ```

# %%
run("apply", "edges.onnx", "--input", "picture.png", "--output", "edges.png", "--budget", "32MiB",
    "--pre", "/ 255", "--post", "scale 4000, cast uint8")  # fmt: skip
result = np.asarray(ooc.open("edges.png"))
print(result.shape, result.dtype)

# %% [markdown]
# ![The edges](edges.png)
#
# ## Why not in windows?
#
# The usual way around too little memory is to cut the picture into windows and to put the results side by side. What a window
# does not see is zeros then. Here are windows of 256 x 256, without an overlap.

# %%
x = (picture / np.float32(255))[None, None].astype(np.float32)
with edges(256, 256).plan(batch=1, train=False, device="cpu").session() as session:
    windows = np.zeros((1, 1, height, width), np.float32)
    for top in range(0, height, 256):
        for left in range(0, width, 256):
            part = (..., slice(top, top + 256), slice(left, left + 256))
            windows[part] = session.forward(np.ascontiguousarray(x[part]))
windows = np.clip(np.rint(4000 * windows[0, 0]), 0, 255).astype(np.uint8)
with ooc.create("windows.png", windows.shape, "u1") as file:
    file.write(((0, height), (0, width)), windows)
wrong = windows != result
print(f"{wrong.mean():.0%} of the pixels differ, by {np.abs(windows.astype(int) - result).max()} of 255 at most")

# %% [markdown]
# ![The edges of windows, with seams between them](windows.png)
#
# The frame around the picture is the network's own: it was made with zeros around its input. The seams are not. They are edges
# that no picture has. An overlap makes them fainter. One of 7 pixels would remove them here, as a
# result sees 15; networks that people use see hundreds of pixels, or, with norms and pooling over the whole picture, all of
# them.
#
# ## The same in Python

# %%
graph = ooc.onnx.load("edges.onnx", input_shape=(1, 1, height, width))
with graph.plan(batch=1, train=False, budget="32 MiB", device="cpu").session() as session:
    y = session.forward(x)
assert np.abs(np.clip(np.rint(4000 * y[0, 0]), 0, 255) - result).max() <= 1

# %% [markdown]
# ## Where to go on
#
# - [A trained network from file to file](../../docs/apply.md): formats, steps, options
# - [How others do it](../../docs/comparison.md), with figures of real networks
# - Next: [train a network on volumes, and apply it to a larger one](train_on_volumes.py)

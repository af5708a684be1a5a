# %% [markdown]
# # A volume that does not fit
#
# You will convolve a volume that lies in a file, write the result to another file, and do it in less memory than either of
# them takes. Then you will choose a budget, and check that the result does not depend on it.

# %%
import numpy as np

import ooc

# %% [markdown]
# ## The volume
#
# Arrays are `n x channels x depth x height x width`. This one is small, so that the page is quick to build: 18 MiB. Nothing
# changes when it has 18 GiB, but for the time. With a file of your own, write `x = np.load("scan.npy", mmap_mode="r")`, or
# `x = ooc.open("scan.zarr")` for Zarr, TIFF, HDF5 and NIfTI.

# %%
x = np.lib.format.open_memmap("scan.npy", "w+", np.float32, (1, 1, 96, 224, 224))
x[...] = np.random.default_rng(0).standard_normal(x.shape, np.float32)
print(f"the volume: {x.nbytes / 2**20:.0f} MiB")

# %% [markdown]
# ## A convolution under a budget
#
# Eight filters of 3 x 3 x 3 make eight channels; ReLU and a pooling of 2 follow in the same call. The convolution's result
# alone would take 147 MiB. It never exists as a whole: ooc cuts the work into tiles, and each tile passes all three steps.
#
# `ooc.device` says where to compute and how much memory that may take. The result goes straight to a file.

# %%
w = np.random.default_rng(1).standard_normal((8, 1, 3, 3, 3), np.float32)
b = np.zeros(8, np.float32)
y = np.lib.format.open_memmap("features.npy", "w+", np.float32, (1, 8, 48, 112, 112))

with ooc.device("cpu", budget="8 MiB"):
    ooc.conv(x, w, b, padding=1, activation="relu", pool=2, out=y)

# %% [markdown]
# ## What happened
#
# The report of the last call tells the tiles, what each lane did and for how long, and the peak of memory: as predicted and
# as measured. A *lane* is one kind of work: `read` copies from the file, `compute` is the kernels, `write` copies to the file.

# %%
report = ooc.last_report()
print(report)
assert report.peak_bytes <= 8 * 2**20

# %% [markdown]
# ## How large a budget?
#
# Ask before you compute. `ooc.plan` takes the sizes alone: no array, and no device either. The smaller the budget, the more of
# the volume is read twice, since neighbouring tiles share a border, the *halo*.

# %%
sizes = "conv.fprop n=1 c=1 d=96 h=224 w=224 k=8 t=3 r=3 s=3 pad=1"
for budget in ("64 KiB", "256 KiB", "1 MiB", "8 MiB"):
    plan = ooc.plan(sizes, budget, device="cpu", places={"x": "disk", "y": "disk"})
    read = plan.lane_bytes["read"] / x.nbytes
    print(f"{budget:>8}: {plan.tiles:5} tiles, the volume is read {read:.2f} times, {plan.predicted_seconds:.2f} s predicted")

# %% [markdown]
# ## The same result
#
# The budget decides how the work is cut, not what comes out. Without a budget everything is in memory at once; the results
# differ in the last bits of the sums at most, as another budget may choose another kernel. `deterministic=True` gives the same
# bits at any budget.

# %%
in_memory = ooc.conv(np.array(x), w, b, padding=1, activation="relu", pool=2)
print(f"largest difference: {np.abs(in_memory - y).max() / np.abs(in_memory).max():.1e} of the largest value")

with ooc.device("cpu", budget="2 MiB"):
    one = ooc.conv(x, w, b, padding=1, deterministic=True)
with ooc.device("cpu", budget="20 MiB"):
    two = ooc.conv(x, w, b, padding=1, deterministic=True)
assert np.array_equal(one, two)

# %% [markdown]
# ## Where to go on
#
# - [How large a budget?](../../docs/budget.md)
# - [All functions](../../docs/functions.md)
# - Next: [a trained network on a picture](network_on_a_picture.py)

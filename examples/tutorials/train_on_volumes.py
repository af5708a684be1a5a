# %% [markdown]
# # Train on volumes, apply to a larger one
#
# You will train a small 3-D network on patches of volumes in files, stop half-way and go on, and apply what was trained to a
# volume that is larger than any patch: as a whole, without windows.

# %%
import numpy as np

import ooc

# %% [markdown]
# ## Volumes and labels
#
# Six volumes of noise with a brighter box in each. `labels` says for every position whether it belongs to the box. With data of
# your own these are .npy, Zarr, HDF5, TIFF or NIfTI files.

# %%
rng = np.random.default_rng(0)


def volume(side: int, box: int) -> tuple[np.ndarray, np.ndarray]:
    """A scan and its labels."""
    labels = np.zeros((side,) * 3, np.uint8)
    corner = rng.integers(0, side - box, 3)
    labels[tuple(slice(c, c + box) for c in corner)] = 1
    return (labels + rng.normal(0, 0.8, labels.shape)).astype(np.float32), labels


for i in range(6):
    scan, labels = volume(40, 18)
    np.save(f"scan{i}.npy", scan)
    np.save(f"labels{i}.npy", labels)

# %% [markdown]
# ## The network
#
# A graph is made of layers on named tensors. Shapes are per sample, channels first. The same function makes the network for
# patches, and later for the whole volume.


# %%
def network(side: int) -> ooc.Graph:
    """Four convolutions, the last one to two classes."""
    g = ooc.Graph("boxes")
    h = g.input("x", (1, side, side, side))
    for _ in range(3):
        h = g.conv(h, 8, 3, padding=1, bias=True, activation="relu")
    g.output(g.conv(h, 2, 3, padding=1, bias=True, name="logits"))
    return g


# %% [markdown]
# ## What a step takes
#
# The plan of a training step says what becomes of the activations. Under this budget they do not all fit.

# %%
g = network(24)
g.loss("cross_entropy", "logits")
for budget in (None, "5 MiB"):
    print(g.plan(batch=4, budget=budget, device="cpu", optimizer=ooc.Adam(0.01)), "\n")

# %% [markdown]
# ## Training
#
# `ooc.train` takes tables: a file for `ooc train CONFIG.toml`, or a dict in Python. One of the volumes is set aside for
# validation.

# %%
config = {
    "loss": [{"kind": "dice", "background": False}, {"kind": "cross_entropy"}],
    "optimizer": {"kind": "adam", "lr": 0.01},
    "data": {"images": "scan*.npy", "labels": "labels*.npy", "batch": 4, "foreground": 0.5, "flips": "zyx"},
    "validation": {"share": 0.2, "every": 20, "metric": "dice"},
    "run": {"folder": "run", "steps": 20, "budget": "5 MiB", "device": "cpu", "every": 20, "curve": False},
}
first = ooc.train(config, graph=network(24))
print(f"loss {first.losses[0]:.3f} -> {first.losses[-1]:.3f} in {len(first.losses)} steps")

# %% [markdown]
# ## Stop and go on
#
# Everything that the next step depends on is in the checkpoint: parameters, what the optimizer keeps, the seed and the step. So a
# run that was stopped, or killed, goes on as if nothing had happened. Here it gets 40 more steps.

# %%
config["run"]["steps"] = 60
trained = ooc.train(config, graph=network(24), resume=True)
print(f"loss {trained.losses[-1]:.3f} after {len(trained.losses)} steps; best validation {trained.best}")

# %% [markdown]
# ## The whole volume
#
# A new volume, in a file, 96 positions a side. The parameters fit a network of any size. The activations of one layer would take
# 27 MiB; the budget is 4.

# %%
scan, labels = volume(96, 40)
np.save("large.npy", scan[None, None])
whole = network(96)
with np.load("run/best.ooc") as best:
    whole.begin_with({name: best[name].reshape(w.shape) for name, w in whole.parameters.items()})
plan = whole.plan(batch=1, train=False, budget="4 MiB", device="cpu")
print(plan)
with plan.session() as session:
    labelled = session.forward(np.load("large.npy", mmap_mode="r")).argmax(1)[0]
overlap = 2 * np.sum(labelled * labels) / (labelled.sum() + labels.sum())
print(f"Dice of the box: {overlap:.3f}")
assert overlap > 0.8

# %% [markdown]
# ## Where to go on
#
# - [Training on files](../../docs/training.md): all keys of a configuration
# - [Whole networks](../../docs/networks.md): graphs, plans, policies, losses, optimizers
# - Next: [a run that is killed](killed_run.py)

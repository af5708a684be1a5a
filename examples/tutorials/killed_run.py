# %% [markdown]
# # A run that is killed
#
# You will start a long run, kill it as the system would, and go on where it was, with the same bits in the end.

# %%
import subprocess
import sys
from pathlib import Path

import numpy as np

import ooc

# %% [markdown]
# ## A single call
#
# A convolution whose result goes to a memory map takes `resume=`, a folder. What is finished is written down there.
#
# The program below slows itself down after each tile, so that there is time to kill it.

# %%
x = np.lib.format.open_memmap("x.npy", "w+", np.float32, (1, 8, 512, 512))
x[...] = np.random.default_rng(0).standard_normal(x.shape, np.float32)
np.save("w.npy", np.random.default_rng(1).standard_normal((8, 8, 3, 3)).astype(np.float32))
np.lib.format.open_memmap("y.npy", "w+", np.float32, (1, 8, 512, 512))

program = """
import sys, time
import numpy as np
import ooc

def slowly(done, tiles):
    print(done, tiles, flush=True)
    time.sleep(float(sys.argv[1]))

x, y = np.load("x.npy", mmap_mode="r"), np.load("y.npy", mmap_mode="r+")
with ooc.device("cpu", budget="512 KiB"):
    ooc.conv(x, np.load("w.npy"), padding=1, out=y, resume="journal", callbacks=slowly)
"""
Path("program.py").write_text(program)

# %% [markdown]
# Start it, and kill it with SIGKILL when it has done half of its tiles. That is what the out-of-memory killer and batch systems
# send; no program can catch it.

# %%
child = subprocess.Popen([sys.executable, "program.py", "0.2"], stdout=subprocess.PIPE, text=True)
for line in child.stdout:
    done, tiles = map(int, line.split())
    if done >= tiles // 2:
        break
child.kill()
child.communicate()
print(f"killed after {done} of {tiles} tiles; exit status {child.returncode}")

# %% [markdown]
# The same call once more goes on. Tiles that are in the journal are compared with what is in the file, by a checksum, and not
# computed again.

# %%
second = subprocess.run([sys.executable, "program.py", "0"], check=True, capture_output=True, text=True)
print(f"the second run computed {len(second.stdout.splitlines())} of {tiles} tiles")

with ooc.device("cpu", budget="512 KiB"):
    uninterrupted = ooc.conv(x, np.load("w.npy"), padding=1)
assert np.array_equal(np.load("y.npy"), uninterrupted)

# %% [markdown]
# ## A network from file to file
#
# `ooc apply --resume` does the same for a whole network. The work is cut into tasks; each that is finished is a small file in the
# folder `OUT.work` beside the result. Until the last one is done there is nothing at the place of the result, and never a half.
#
# ```sh
# ooc apply net.onnx --input x.npy --output result.zarr --budget 1MiB --resume
# ```
#
# In Python, with tasks that any number of processes may take:

# %%
g = ooc.Graph("net")
h = g.input("x", (8, 512, 512))
for _ in range(4):
    h = g.conv(h, 8, 3, padding=1, bias=True, activation="relu")
g.output(h)
plan = g.plan(batch=1, train=False, budget="2 MiB", device="cpu")

tasks = ooc.tasks(plan, "x.npy", "result.npy")
print(f"{len(tasks)} tasks, {sum(task.done for task in tasks)} are finished")

# %% [markdown]
# Compute half of them, and forget everything, as a process that dies does. `ooc.tasks(..., resume=True)` finds the folder, and
# `ooc.run_tasks` computes what is left.

# %%
for task in tasks[: len(tasks) // 2]:
    task()
assert not Path("result.npy").exists()

tasks = ooc.tasks(plan, "x.npy", "result.npy", resume=True)
print(f"{sum(task.done for task in tasks)} of {len(tasks)} tasks are finished")
ooc.run_tasks(tasks)

with plan.session() as session:
    assert np.allclose(np.load("result.npy"), session.forward(np.load("x.npy")), atol=1e-5)

# %% [markdown]
# ## Where to go on
#
# - [Past one process](../../docs/scale.md): several processes, GPUs and machines, batch systems, Dask
# - [Training that is killed](train_on_volumes.py)

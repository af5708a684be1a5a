"""Plans for GPUs that are not here: what their datasheets, and what an H200 was measured to do, lead to must not be absurd."""

from __future__ import annotations

import functools

import pytest
from sweeps import swept

from ooc.backends.null import GPU_KERNELS, NullBackend
from ooc.ir.op import Op
from ooc.model.calibration import load_device
from ooc.ops.descriptor import parse
from ooc.runtime.device import Device
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan
from perfmodel.problems import sets

GPUS = ("h200", "a100", "rtx4090", "p100")
MIB = 1 << 20
LARGE = {
    "16384 x 16384": "conv.fprop n=1 c=64 h=16384 w=16384 k=64 r=3 s=3 pad=1 dtype=f32",
    "512 x 512 x 512": "conv.fprop n=1 c=32 d=512 h=512 w=512 k=32 t=3 r=3 s=3 pad=1 dtype=f32",
}
# Squarer tiles have less halo, and rows of 10 KiB and more pass at the link's full rate; on an H200 rows of 1 KiB were seen to.
SHORTER_ROWS = {("rtx4090", "16384 x 16384"): 10 << 10, ("p100", "16384 x 16384"): 10 << 10, ("h200", "16384 x 16384"): 4 << 10}
SMALLER_COPIES = {("rtx4090", "resnet50 8"), ("p100", "resnet50 8")}  # 1 x 1 with a stride of 2: a row is 3.4 MiB
FEWER_CHANNELS = {("rtx4090", "512 x 512 x 512")}  # 16 of 32: what takes twice as long still hides behind the link
BATCH = {"vgg16": 256, "resnet50": 256, "unet3d": 8}


@functools.cache
def problems() -> dict[str, Op]:
    found = {name: parse(text) for name, text in LARGE.items()}
    for name, batch in BATCH.items():
        found |= {f"{name} {i}": sets.with_batch(op, batch) for i, op in enumerate(sets.problems(name))}
    return found


def planned(gpu: str, op: Op) -> Plan:
    """From pinned memory, under a quarter of the tensors, or of the GPU's memory."""
    model = load_device(gpu)
    assert model.memory_bytes
    backend = NullBackend(model.memory_bytes, GPU_KERNELS)
    budget = min(sum(o.nbytes for o in op.operands), model.memory_bytes * 3) // 4
    return Device(backend, model, budget).planner.plan(op, {o.name: Place.PINNED for o in op.operands})


@pytest.mark.parametrize("name", swept(tuple(problems()), suite=4))
@pytest.mark.parametrize("gpu", GPUS)
def test_tiles_have_whole_rows_many_channels_and_large_copies(gpu: str, name: str) -> None:
    op = problems()[name]
    plan = planned(gpu, op)
    sizes, last = plan.sizes, [d for d in op.dims if d in "qw"][-1]
    if (gpu, name) in SHORTER_ROWS:
        assert 4 * sizes[last] >= SHORTER_ROWS[gpu, name], plan
    else:
        assert sizes[last] == op.dims[last], plan
    assert plan.kernel.startswith("cudnn")
    made = "c" if op.kind == "conv.dgrad" else "k"
    assert sizes[made] >= min(16 if (gpu, name) in FEWER_CHANNELS else 32, op.dims[made]), plan
    for operand in (op.inputs[0], op.outputs[0]):
        if plan.tiles > 1 and operand.nbytes >= 512 * MIB and operand.shape[1] >= 16:
            assert int(operand.block_bytes(sizes)) >= (3.4 if (gpu, name) in SMALLER_COPIES else 4) * MIB, plan
